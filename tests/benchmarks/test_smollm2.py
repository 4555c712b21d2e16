"""How the real model's heads and n-gram models are made: stages resume, prompts share nothing with evaluation texts."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.main import get_command

from benchmarks.common import read_csv, slug
from benchmarks.smollm2 import amounts, beams, drafters, make, more_text, trees
from benchmarks.smollm2.prompts import TEMPLATES, filled, prompts
from benchmarks.smollm2.trees import Answer
from latticebpd import MixtureDrafter, NoDrafter, PromptNgramDrafter, State
from latticebpd.drafters import bundled
from latticebpd.drafters.heads.head_networks import FeedForwardHeads, SternHeads
from latticebpd.drafters.strategies import BeamTree, BestTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.texts import Texts
from latticebpd.scoring.ngram import NgramScorer
from lm_training.cli import train
from tests.helpers.prompt_sources import WORDS, save_sources

HEADS = "latticebpd/heads.json"


def test_lattices_that_were_begun_are_gone_on_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder of a stopped run is there, but not whole: weights must not be tuned on what there is of it."""
    Texts.of_rows([[3, 4, 5], [6, 7, 8]], [1, 1]).save(tmp_path / "held-out.npz")
    (tmp_path / "lattices").mkdir()
    called: list[str] = []
    monkeypatch.setattr(make, "latticebpd", lambda *arguments: called.append(arguments[0]))
    make.weights(tmp_path, tmp_path / "heads", tmp_path / "held-out.npz", tmp_path / "lm.fst")
    assert called == ["lattices --prompts", "tune", "calibrate"]


def test_every_32nd_answer_is_held_out_and_further_ones_are_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = [[5, 6, number] for number in range(100)]
    texts = Texts.of_rows([[*prompt, 7, 8][: 4 + prompt[2] % 2] for prompt in asked], [3] * 100)
    make.save_answers(tmp_path / "own-text.npz", np.arange(100), texts, "hash")
    monkeypatch.setattr(make, "HERE", tmp_path)
    monkeypatch.setattr(make, "conversations", lambda *_: None)
    monkeypatch.setattr(make, "chat_prompts", lambda _: (asked, "hash"))
    texts.chosen([3, 64]).save(tmp_path / "more.npz")
    wanted = [row for row, _ in texts.items()]
    learnt = [row for number, row in enumerate(wanted) if number % make.HELD_OUT]
    for further, added in (([], []), ([tmp_path / "more.npz"], [wanted[3], wanted[64]])):
        train, held = make.own_text(tmp_path / str(len(added)), tmp_path, further)
        assert [row for row, _ in Texts.load(held).items()] == wanted[:: make.HELD_OUT]
        assert [row for row, _ in Texts.load(train).items()] == [*learnt, *added]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    save_sources(tmp_path)
    return tmp_path


def test_prompts_are_balanced_distinct_and_the_same_every_time(sources: Path) -> None:
    weights = TEMPLATES["weights"]
    records = prompts(sources, 2 * sum(weights.values()), WORDS)
    assert Counter(row["kind"] for row in records) == {kind: 2 * weight for kind, weight in weights.items()}
    texts = [row["messages"][0]["content"] for row in records]
    assert len(set(texts)) == len(texts)
    assert not any("{" in text for row, text in zip(records, texts, strict=True) if row["kind"] in ("maths", "reason"))
    assert prompts(sources, 30, WORDS) == records[:30]


def test_more_prompts_share_no_eight_words_with_evaluation_texts(
    sources: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(more_text, "passages", lambda _: iter(()))
    weights = more_text.MORE["weights"]
    asked = sources / "asked.jsonl"

    def written(*before: str) -> list[dict[str, Any]]:
        rows = [{"messages": [{"role": "user", "content": text}]} for text in ("An old prompt", *before)]
        asked.write_text("".join(json.dumps(row) + "\n" for row in rows))
        more_text.save_more_prompts(sources, sources / "more.jsonl", 4 * sum(weights.values()), asked, WORDS)
        return [json.loads(line) for line in (sources / "more.jsonl").read_text().splitlines()]

    def texts(rows: list[dict[str, Any]]) -> list[str]:
        return ["\n".join(each["content"] for each in row["messages"]) for row in rows]

    every = written()
    assert {row["kind"] for row in every} == set(weights)
    assert all(len(WORDS.prompt_of(row["messages"])) <= more_text.MAX_TOKENS for row in every)
    assert {row["messages"][0]["role"] for row in every} == {"user", "system"}
    assert all(row["messages"][-1]["role"] == "user" for row in every)
    assert len(set(texts(every))) == len(every)
    assert written() == every
    assert " 0 refused" in capsys.readouterr().out
    other = written(texts(every)[5])
    assert texts(every)[5] not in texts(other)
    assert texts(every)[4] in texts(other)
    # A test part with the sentence of some documents.
    shared = "the river 7 runs slowly PAST old, mills"
    assert any("river 7 runs slowly past old mills and quiet" in text for text in texts(every))
    (sources / "qa/xquad-en-test.jsonl").write_text(json.dumps({"id": 1, "context": shared}) + "\n")
    chosen = texts(written())
    assert not any("river 7 runs slowly past old mills and quiet" in text for text in chosen)
    assert any("river 8 runs slowly past old mills and quiet" in text for text in chosen)


def test_stored_answers_are_those_of_the_shards_that_there_are(tmp_path: Path) -> None:
    size, path = 6, tmp_path / "more.npz.xz"
    prompts = [[5, 6, number] for number in range(4 * size)]

    def answered(work: Path, shards: list[int]) -> None:
        """Answers to shards of what is not answered yet, stored."""
        work.mkdir(exist_ok=True)
        (work / "distill.json").write_text(json.dumps({"prompts": 4 * size, "options": {"shard_prompts": size}}))
        if not (work / "numbers.npy").exists():
            more_text.save_unanswered(prompts, "hash", path, work / "asked.npz", work / "numbers.npy")
        asked = Texts.load(work / "asked.npz")
        for shard in shards:
            rows = [
                [*asked[row], 7, 8][: 4 + int(asked[row][2]) % 2] for row in range(shard * size, (shard + 1) * size)
            ]
            Texts.of_rows(rows, [3] * size).save(work / f"shard-{shard:05d}.npz")
        more_text.store(work, work / "numbers.npy", path, prompts, "hash")

    def expect(numbers: list[int]) -> None:
        ids, texts = make.load_answers(path, prompts, "hash")
        assert ids.tolist() == numbers
        assert [row.tolist() for row in map(texts.__getitem__, range(len(texts)))] == [
            [*prompts[number], 7, 8][: 4 + number % 2] for number in ids
        ]

    answered(tmp_path / "one", [0, 2])
    first = [*range(size), *range(2 * size, 3 * size)]
    expect(first)
    answered(tmp_path / "one", [])  # stored again: nothing twice
    expect(first)
    answered(tmp_path / "two", [1])  # a new folder goes on with what is missing: shards 1 and 3 of the first
    expect([*first, *range(3 * size, 4 * size)])
    with pytest.raises(ValueError, match=r"more\.npz\.xz: expected the answers to the prompts of this data \(other\)"):
        make.load_answers(path, prompts, "other")
    with pytest.raises(ValueError, match="expected shards of answers, found none"):
        more_text.store(tmp_path / "empty", tmp_path / "empty" / "numbers.npy", path, prompts, "hash")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_heads_are_made_on_either_device(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By commands that there are: states come first on a CPU, and only there."""
    commands, saved = dict[str, list[str]](), list[Path]()
    parsers: Any = get_command(train.app)

    def parsed(*words: object) -> None:
        name, *rest = " ".join(map(str, words)).removeprefix("train ").split()
        context = parsers.commands[name].make_context(name, [*rest])
        commands[Path(context.params["output"]).name if name == "heads" else name] = rest

    blockwise = SimpleNamespace(save_heads=lambda folder, dtype: saved.append(folder))
    monkeypatch.setattr(make, "latticebpd", parsed)
    monkeypatch.setattr(make, "load_blockwise", lambda name: blockwise)
    texts = [tmp_path / "train.npz", tmp_path / "held-out.npz"]
    assert make.heads(tmp_path, *texts, 900, device=device) == tmp_path / "heads"
    assert saved == [tmp_path / "package"]
    before = ["hidden", "first-heads"] if device == "cpu" else []
    assert list(commands) == [*before, "marginal-heads", "heads"]
    assert all(("cuda" in words) == (device == "cuda") for words in commands.values())
    assert {"--freeze-heads", "--warm-start"} <= set(commands["heads"])
    assert str(tmp_path / "marginal-heads") in commands["heads"]


def test_templates_hold_expressions_of_their_values() -> None:
    assert filled("{a + b * 2} and {', '.join(t)}", {"a": 1, "b": 3, "t": ["x", "y"]}) == "7 and x, y"


def short_answer() -> Answer:
    """Three lattices of three slots, whose right tokens are not all the first ones."""
    probabilities = np.array([[0.6, 0.4], [0.7, 0.3], [0.9, 0.1]], np.float32)
    tokens = np.array([[1, 4], [8, 2], [3, 6]])
    lattices = LatticeSet(
        np.tile(tokens, (3, 1, 1)), np.log(np.tile(probabilities, (3, 1, 1))),
        np.full((3, 3), -1), np.full((3, 1), -1),
    )  # fmt: skip
    return Answer([9, 5, 1, 2, 3, 7], 1, lattices)


def test_children_of_right_nodes_are_counted_after_first_choices_and_after_others() -> None:
    # After 1 come 8 and 2, the right one though not the first; after 2 only 3 is among the eight best nodes.
    counts = drafters.children_after(short_answer(), BestTree(NgramScorer(None), 8))
    np.testing.assert_allclose(counts, [[2, 1.0, 1], [1, 0.9, 1]], rtol=1e-6)


def test_a_replay_writes_calls_and_what_is_right_after_right_nodes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    system, path = "64 calibrated, no text", tmp_path / "heads.csv"
    monkeypatch.setattr(drafters, "lattices", lambda *_: (tmp_path, tmp_path))
    monkeypatch.setattr(drafters, "release", lambda *_: bundled.LM.parent)
    monkeypatch.setattr(drafters, "strategies", lambda *_: {system: BestTree(NgramScorer(None), 8)})
    monkeypatch.setattr(trees, "answers", lambda _: [short_answer()])
    drafters.replay(tmp_path, "heads", path)
    assert [(row["drafter"], row["system"]) for row in read_csv(path)] == [("heads", system), ("heads", "oracle")]
    assert [row["right"] for row in read_csv(drafters.branches(path))] == ["1.0", "1.0"]


@pytest.mark.parametrize("nodes", [6, 12, 100])
def test_a_beam_of_a_tree_is_the_beam_by_the_same_probabilities(nodes: int) -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        tokens = np.stack([rng.permutation(20)[:4] for _ in range(4)])
        lattice = SausageLattice(tokens, rng.standard_normal((4, 4)), 2 * rng.standard_normal((3, 4, 4)))
        (own,), (expected,) = (
            each.draft([lattice], [[]])
            for each in (beams.BeamOfTree(BestTree(NgramScorer(None), 4**5), 3, nodes), BeamTree(3, nodes))
        )
        np.testing.assert_array_equal(own.tokens, expected.tokens)
        np.testing.assert_array_equal(own.parents, expected.parents)
        np.testing.assert_allclose(own.log_probs, expected.log_probs, rtol=1e-5)


def test_what_a_tree_expects_is_added_up_over_the_calls_of_its_replay() -> None:
    tokens, calls, verified, expected = beams.replay(short_answer(), BestTree(NgramScorer(None), 1))
    assert verified > 1
    assert tokens == calls + 1  # the first call's node is right, no other one
    assert expected == pytest.approx(0.6 * verified)


def test_accepted_nodes_are_compared_with_those_that_trees_and_beams_expect() -> None:
    about = {"probabilities": "learned", "nodes": "16", "text": "0"}
    counts = {"tree": ("30", "20", "320", "12.5"), "beam": ("25", "20", "320", "5.0")}
    rows = [
        {**about, "kind": kind, "tokens": tokens, "calls": calls, "verified": verified, "expected": expected}
        for kind, (tokens, calls, verified, expected) in counts.items()
    ]
    (line,) = beams.lines_of(rows)
    assert line == ["learned", "16", "1.500", "0.80", "1.250", "1.00", "+20.0% (+20.0% to +20.0%)"]


def test_other_heads_stand_in_the_package_s_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package, heads = tmp_path / "package", tmp_path / "heads"
    for folder, names in ((package, (HEADS, "lm.fst", "model.gguf")), (heads, (HEADS, "training.json"))):
        (folder / "latticebpd").mkdir(parents=True)
        for name in names:
            (folder / name).write_text(folder.name)
    monkeypatch.setattr(drafters, "resolved", lambda _: package)
    for _ in range(2):
        home = drafters.linked(tmp_path / "home", heads)
        contents = {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}
        assert contents == {HEADS: "heads", "lm.fst": "package", "model.gguf": "package"}


def test_ten_questions_of_each_category_are_asked_in_the_files_order(tmp_path: Path) -> None:
    rows = [{"question_id": number, "category": "qa" if number % 4 else "rag", "turns": ["?"]} for number in range(16)]
    path = tmp_path / "spec_bench/question.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    drafters.questions(tmp_path, tmp_path)
    kept = [json.loads(line)["question_id"] for line in (tmp_path / drafters.QUESTIONS).read_text().splitlines()]
    assert kept == [*range(14)]  # ten of the twelve of one category, all four of the other


def test_the_block_drafter_is_kept_after_each_number_of_updates(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[str] = []

    def command(*arguments: object) -> None:
        called.append(" ".join(map(str, arguments)))
        if "block-drafter" in called[-1]:
            output = Path(str(arguments[-1]))
            output.mkdir(exist_ok=True)
            for name in ("model.safetensors", "training-state.json"):
                (output / name).write_text(str(len(called)))

    def texts(*_: object) -> tuple[Path, Path]:
        train, held = files = tmp_path / "train.npz", tmp_path / "held-out.npz"
        for path in (train, held):
            Texts.of_rows([[3, 4, number] for number in range(5)], [1] * 5).save(path)
        return files

    monkeypatch.setattr(drafters, "latticebpd", command)
    monkeypatch.setattr(drafters, "own_text", texts)
    monkeypatch.setattr(drafters, "TEXTS", 3)
    monkeypatch.setattr(drafters, "WRITTEN", 4)
    drafters.train(tmp_path, tmp_path)
    assert len(Texts.load(tmp_path / "blocks/train.npz")) == 3
    assert [line.split()[1] for line in called] == ["hidden", *["block-drafter"] * 6]
    kept = [tmp_path / "blocks" / f"block-{steps}-updates" for steps in drafters.STEPS]
    assert [[each.name for each in path.iterdir()] for path in kept] == [["model.safetensors"]] * 3
    assert [(path / "model.safetensors").read_text() for path in kept] == ["2", "3", "4"]
    assert all(f"--head-on {kept[-1]} " in line for line in called[-3:])
    drafters.train(tmp_path, tmp_path)
    assert not any("--num-layers" in line for line in called[7:])  # what was kept is not trained again


def test_times_are_pooled_by_drafter_and_system_and_searches_have_medians() -> None:
    systems = [("greedy", "", 0.0), *((name, system, 5.0) for name in ("a", "b") for system in drafters.TIMED_SYSTEMS)]
    rows = [
        {"drafter": name, "system": system, "text": str(text), "tokens": "10", "calls": "5", "ms": str(40 + 20 * text)}
        | {"drafting ms": str(drafting)}
        for name, system, drafting in systems
        for text in range(2)
    ]
    greedy, first, second = drafters.clock_lines(rows)
    assert greedy == ["greedy", "200 (167 to 250)", "", "", ""]
    assert first == ["a", "200 (167 to 250)", "1.0", "200 (167 to 250)", "1.0"]
    assert second[0] == "b"
    searched = [{"drafter": "a", "system": each, "us": us} for each in ("x", "y") for us in ("1", "2", "9")]
    assert drafters.search_lines(searched) == [["a", "2", "2"]]


def test_a_drafters_calls_are_timed() -> None:
    drafter = PromptNgramDrafter()
    seconds = drafters.timed(drafter)
    assert [len(tree) for tree in drafter.propose([State(0, [1, 2, 1], 1, None, 4)])] == [4]
    assert len(seconds) == 1
    assert seconds[0] > 0


def test_constants_climb_to_the_best_of_those_that_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def walk(_: object, mixture: Any) -> tuple[float, int, int]:
        copies = mixture.first
        missed = abs(copies.keep - 0.9) + abs(mixture.sure - 0.8) + abs(copies.novelty - 12) + abs(copies.longer - 1.5)
        return 10 - missed - abs(copies.max_ngram - 12), 1, 0

    monkeypatch.setattr(trees, "walk", walk)
    monkeypatch.setattr(trees, "LatticeDrafter", lambda *_: NoDrafter())
    monkeypatch.setattr(trees, "SavedTopK", lambda _: None)
    answer = Answer([1, 2], 1, None)  # type: ignore[arg-type]
    constants = trees.best_constants([answer], bundled.LM)
    assert constants == {"sure": 0.8, "keep": 0.9, "longer": 1.5, "novelty": 12.0, "max_ngram": 12}
    copies, mixture = PromptNgramDrafter(), MixtureDrafter(NoDrafter(), NoDrafter())
    assert constants == {"sure": mixture.sure, **{name: getattr(copies, name) for name in constants if name != "sure"}}


def test_the_change_by_three_times_the_text_is_the_slope_over_the_amounts() -> None:
    """Two texts; tokens per call rise by 0.1 for three times the text, the other system's do not."""
    calls = np.array([100, 300])
    threefold = np.log(np.array([51, 157, 482, 1445, 2955]) / 51) / np.log(3)  # the last is a doubling
    tree, walk = (
        [np.stack([(1.2 + step * times) * calls, calls, 0 * calls], axis=1) for times in threefold.tolist()]
        for step in (0.1, 0.0)
    )
    assert amounts.change([*amounts.AMOUNTS], tree) == "+0.100 (+0.100 to +0.100)"
    assert amounts.change([*amounts.AMOUNTS], tree, walk) == "+8.3 (+8.3 to +8.3)"  # 0.1 of 1.2


def test_block_drafters_differ_by_layers_mask_and_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in (("first", [5, 6]), ("second", [7, 8]), ("held-out", [9, 9])):
        Texts.of_rows([row], [1]).save(tmp_path / f"{name}.npz")
    commands = list[str]()
    for module in (amounts, drafters):
        monkeypatch.setattr(module, "latticebpd", lambda *words: commands.append(" ".join(map(str, words))))
    files = [tmp_path / "first.npz", tmp_path / "second.npz"]
    trained = [amounts.block(tmp_path, files, name) for name in amounts.BLOCKS]
    assert len({*trained}) == 10
    assert [[row for row, _ in Texts.load(trained[0].parent / "second.npz").items()]] == [[[5, 6], [7, 8]]]
    of_training = [each for each in commands if each.startswith("train block-drafter")]
    shapes = [re.findall(r"--(bidirectional|causal) --num-layers (\d) .*--steps (\d+)", each) for each in of_training]
    of_one_text = [(mask, layers, "240") for mask in ("bidirectional", "causal") for layers in "123"]
    of_others = [("bidirectional", layers, steps) for layers in "13" for steps in ("180", "400")]
    assert shapes == [[each] for each in (*of_one_text, *of_others)]
    for command, output in zip(of_training, trained, strict=True):
        assert command.endswith(f"-o {output}")


def test_heads_of_more_updates_go_on_from_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In folders of their own: the earlier heads stay."""
    commands = list[str]()

    def train(*words: object) -> None:
        state = Path(str(words[-1])) / "training-state.json"
        state.parent.mkdir(parents=True, exist_ok=True)
        state.write_text((state.read_text() if state.exists() else "") + "|")
        commands.append(" ".join(map(str, words)))

    monkeypatch.setattr(make, "latticebpd", train)
    monkeypatch.setattr(drafters, "linked", lambda home, _: home)
    for own, longer in amounts.LONGER.items():
        folders = [amounts.heads(tmp_path, [], name) for name in (longer, own, longer)]
        assert folders == [tmp_path / "amounts" / slug(name) for name in (longer, own, longer)]
        states = [(folder.parent / f"{folder.name}-heads/training-state.json").read_text() for folder in folders]
        assert states == ["|||", "||", "|||"]  # the copy of one run went on twice
    kinds = [re.findall(r"--kind ([\w-]+) --steps (\d+)", each) for each in commands]
    steps = ["2600", "5200", "2600", "5200"]
    assert kinds == [[(kind, each)] for kind in ("feed-forward", "conditioned") for each in steps]


def test_a_shared_layer_has_the_parameters_of_separate_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[str]()
    monkeypatch.setattr(make, "latticebpd", lambda *words: commands.append(" ".join(map(str, words))))
    monkeypatch.setattr(drafters, "linked", lambda home, _: home)
    amounts.heads(tmp_path, [], amounts.SHARED)
    kind, width, steps = re.findall(r"--kind (\w+) --intermediate-size (\d+) --steps (\d+)", commands[0])[0]
    assert (kind, steps) == ("stern", "1200")
    shared, separate = SternHeads(576, 9, int(width)), FeedForwardHeads(576, 9, 640)
    counts = [sum(each.numel() for each in heads.parameters()) for heads in (shared, separate)]
    assert counts[0] == pytest.approx(counts[1], rel=0.005)


def test_heads_of_all_tokens_have_no_shortlist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = list[list[str]]()
    monkeypatch.setattr(make, "latticebpd", lambda *words: commands.append(" ".join(map(str, words[:-1])).split()))
    monkeypatch.setattr(drafters, "linked", lambda home, _: home)
    for name in (amounts.EVERY, amounts.COMPARED[amounts.EVERY]):
        amounts.heads(tmp_path, [], name)
    at = commands[1].index("--shortlist")
    assert commands[0] == commands[1][:at] + commands[1][at + 2 :]


def test_amounts_of_text_are_parts_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Texts.of_rows([[5, 6, number] for number in range(9)], [2] * 9)
    written.save(tmp_path / "train.npz")
    read = list[object]()
    monkeypatch.setattr(amounts, "AMOUNTS", {"1k": (2, 1), "3k": (5, 1), "9k": (9, 1)})
    monkeypatch.setattr(drafters, "WRITTEN", 5)
    monkeypatch.setattr(amounts, "own_text", lambda *_: (tmp_path / "train.npz", tmp_path / "held-out.npz"))
    monkeypatch.setattr(amounts, "latticebpd", lambda *words: read.extend(words))
    paths = amounts.parts(tmp_path, tmp_path)
    texts = [[row[2] for row, _ in Texts.load(path).items()] for path in paths]
    assert [len(each) for each in texts] == [2, 3, 4]
    assert sorted(each for part in texts for each in part) == list(range(9))
    assert sorted(each for part in texts[:2] for each in part) == list(range(5))  # those of before, whatever came later
    assert read[1] == tmp_path / "held-out.npz"
    assert read[2:5] == paths
