"""Kim's tables: the pages have the committed counts, counts of texts add up, no text was trained on."""

from __future__ import annotations

import csv
import importlib
import json
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import fst
from latticebpd import LatticeSet
from latticebpd.drafters import HeadLattices
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import compare
from latticebpd.measuring.collect import CollectOptions, collect
from latticebpd.scoring.neural import NeuralRescorer
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.scoring.rescoring import Tuned
from tests.helpers.blockwise_models import tiny_model

GAIN = re.compile(r"[+-]\d+\.\d \([+-]\d+\.\d to [+-]\d+\.\d\)")
STUDY = Path(__file__).parents[2] / "benchmarks" / "study"


@pytest.fixture
def modules() -> tuple[ModuleType, ModuleType, ModuleType]:
    return (
        importlib.import_module("benchmarks.study.kim"),
        importlib.import_module("benchmarks.study.kim_tables"),
        importlib.import_module("benchmarks.study.kim_tasks"),
    )


@pytest.fixture
def lattices() -> LatticeSet:
    """Three texts over a vocabulary of 40, eight slots of five arcs."""
    rng, parts = np.random.default_rng(0), []
    for text in range(3):
        written = rng.integers(3, 40, 30).astype(np.int32)
        n = 20
        following = np.stack([written[i + 2 : i + 10] for i in range(n)])
        tokens = np.stack([[rng.permutation(np.arange(3, 40))[:5] for _ in range(8)] for _ in range(n)]).astype(
            np.int32
        )
        right = rng.integers(0, 5, (n, 8))
        known = rng.random((n, 8)) < 0.7
        for row, slot in zip(*np.nonzero(known), strict=True):
            if following[row, slot] not in tokens[row, slot]:
                tokens[row, slot, right[row, slot]] = following[row, slot]
        log_probs = -np.sort(rng.exponential(2, (n, 8, 5)).astype(np.float32), axis=2) - 1.7
        context = np.stack([np.concatenate([np.full(28 - i, -1), written[: i + 2]]) for i in range(n)]).astype(np.int32)
        entropy = rng.random((n, 9)).astype(np.float32)
        parts.append(LatticeSet(tokens, log_probs, following, context, None, np.full(n, text), entropy, vocab_size=40))
    return LatticeSet.joined(parts)


@pytest.fixture
def lm() -> fst.NgramModel:
    from tests.helpers.sentence_models import estimate

    table = estimate(np.random.default_rng(1).integers(0, 40, 4000), order=2, vocab_size=40)
    return fst.NgramModel.from_table(table)


SYSTEMS = ("1-best:g4", "16-best:g4", "16-tree:0-gram")


def test_counts_of_texts_add_up_to_those_of_all(
    modules: tuple[ModuleType, ...], lattices: LatticeSet, lm: fst.NgramModel
) -> None:
    kim = modules[0]
    models = {"g4": Tuned(NgramScorer(lm, 0.5), ())}
    calls, verified, drafts = kim.compared("squad", lattices, models, SYSTEMS)
    full = compare([lattices], SYSTEMS, models)
    assert [row["text"] for row in calls] == [0, 1, 2]
    for i, system in enumerate(full.systems):
        assert sum(row[system] for row in calls) == full.decode_totals[i, 1]
        assert sum(row[system] for row in verified) == full.nodes[i]
    outcomes = full.outcomes[full.systems.index("1-best:g4")]
    own = [row for row in drafts if row["system"] == "1-best:g4"]
    assert [sum(row[name] for row in own) for name in ("wins", "ties", "losses")] == outcomes.tolist()
    assert outcomes[0]
    assert outcomes[2]
    oracle = [row for row in kim.oracles("squad", lattices) if row["k"] == 1]
    assert [row["h9"] for row in oracle] == [row["vanilla"] for row in calls]
    entropies, bins = kim.entropies("squad", lattices)
    assert [row["calls"] for row in entropies] == [row["vanilla"] for row in calls]
    assert sum(row["calls"] for row in bins if row["head"] == 1) == sum(row["vanilla"] for row in calls)


def test_a_weight_is_that_of_the_fewest_calls(
    modules: tuple[ModuleType, ...], lattices: LatticeSet, lm: fst.NgramModel, tmp_path: Path
) -> None:
    kim = modules[0]
    lattices.save(tmp_path / "tuning.npz")
    tuned = kim.tuned_models([tmp_path / "tuning.npz"], {"g4": lm}, {"g4": ("1-best", "16-best")})
    rows = kim.weights("squad", tuned)
    for system in ("1-best", "16-best"):
        own = [row for row in rows if row["system"] == system]
        (chosen,) = (row for row in own if row["chosen"])
        assert chosen["tokens_per_call"] == max(row["tokens_per_call"] for row in own)


def test_coverage_is_what_the_shortlist_lacks_and_head_1_is_measured_on_the_same_tokens(
    modules: tuple[ModuleType, ...], tmp_path: Path
) -> None:
    kim, shortlist = modules[0], np.array([1, 2, 4, 5, 8, 9, 11, 13, 15, 16, 17, 19, 20, 21])
    base = tiny_model().base
    heads = new_heads(base, "feed-forward", 5, shortlist=shortlist)
    torch.nn.init.normal_(heads.down, std=0.5)
    model = BlockwiseLM(base, heads).eval()
    lattices, texts = collect(
        HeadLattices(model, 4), Texts.of_rows([[3, 4, 5], [6, 7]], [3, 2]), CollectOptions(4, 12, 30)
    )
    part = kim.Part([(list(map(int, text)), length) for text, length in texts.items()], lattices, tmp_path)
    rows = kim.coverage("squad", part, model)
    for row, (text, length) in zip(rows, texts.items(), strict=True):
        written = [int(token) for token in text[length:][:12]]
        following = written[1:]
        assert row["tokens"] == len(following)
        assert row["outside"] == sum(token not in shortlist for token in following)
        with torch.no_grad():
            states = base(torch.tensor([list(map(int, text))]), output_hidden_states=True)
            first = model.head_logits(states.hidden_states[-1][0, length - 1 : length - 1 + len(following)])[:, 0]
            drafted = shortlist[first.argmax(dim=-1).numpy()].tolist()
        assert row["foreseen"] == sum(one == other for one, other in zip(drafted, following, strict=True))
        at, nats = 0, []  # vanilla drafts, by hand
        own = lattices.take(kim.numbers_of(lattices) == row["text"])
        while at < len(following):
            with torch.no_grad():
                logits = base(torch.tensor([[int(token) for token in text[: length + at]]])).logits[0, -1, shortlist]
            nats.append(float(torch.distributions.Categorical(logits=logits).entropy()))
            best = own.tokens[at, np.arange(4), own.log_probs[at].argmax(axis=-1)]
            right = np.logical_and.accumulate(best == own.continuation[at])
            at += int(right.sum()) + 1
        assert row["calls"] == len(nats)
        assert float(row["h1"]) == pytest.approx(np.mean(nats), abs=1e-4)
    assert 0 < sum(row["outside"] for row in rows) < sum(row["tokens"] for row in rows)


def test_coverage_was_counted_on_the_texts_of_all_other_counts(modules: tuple[ModuleType, ...]) -> None:
    counts = modules[1].Counts(STUDY / "results")
    rows = counts.rows("coverage")
    for other, names in (("calls", ("task", "text", "tokens")), ("entropy", ("task", "text", "calls"))):
        assert [[row[name] for name in names] for row in rows] == [
            [row[name] for name in names] for row in counts.rows(other)
        ]


def test_the_page_says_how_much_of_the_gap_is_coverage(modules: tuple[ModuleType, ...]) -> None:
    counts = modules[1].Counts(STUDY / "results")
    rows, shares = counts.rows("coverage"), {}
    for task in ("all", "squad", "xquad"):
        tokens, outside, right = (counts.column(name, task, rows).sum() for name in ("tokens", "outside", "foreseen"))
        shares[task] = 1 - outside / tokens, right / (tokens - outside)
    full, right = shares.pop("all")
    quoted = [
        f"{100 * each:.1f}" for of, own in shares.values() for each in ((full - of) * own, full * right - of * own)
    ]
    page = " ".join((STUDY / "kim_failures.md").read_text(encoding="utf-8").split())
    more, behind, more_too, behind_too = quoted
    assert f"On SQuAD head 2 is {behind} points behind, on XQuAD {behind_too}." in page
    assert f"With the coverage of all tasks it would be right {more} and {more_too} points more often." in page


def test_repeated_line_breaks_are_those_among_the_repeated_tokens(
    modules: tuple[ModuleType, ...], lattices: LatticeSet, lm: fst.NgramModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = modules[0]

    class Vocabulary:
        def __init__(self, breaks: set[int]) -> None:
            self.breaks = breaks

        def get_vocab(self) -> dict[str, int]:
            return {"Ċ" * (token + 1) if token in self.breaks else f"Ċ{token}": token for token in range(40)}

    _, _, drafts = kim.compared("squad", lattices, {"g2": Tuned(NgramScorer(lm, 0.5), ())}, ("1-best:g2",))
    equal = [row["equal"] for row in drafts if row["system"] == "1-best:g2"]
    line_breaks = {}
    for breaks in (set(range(40)), set(range(20)), set[int]()):
        monkeypatch.setattr(kim, "tokenizer", lambda breaks=breaks: Vocabulary(breaks))
        rows = kim.line_breaks("squad", lattices, NgramScorer(lm, 0.5))
        assert [row["equal"] for row in rows] == equal
        line_breaks[len(breaks)] = [row["line_breaks"] for row in rows]
    assert line_breaks[40] == equal
    assert line_breaks[0] == [0, 0, 0]
    assert 0 < sum(line_breaks[20]) < sum(equal)


def test_the_page_says_how_many_repeated_tokens_are_line_breaks(modules: tuple[ModuleType, ...]) -> None:
    counts = modules[1].Counts(STUDY / "results")
    rows, drafts = counts.rows("breaks"), [row for row in counts.rows("drafts") if row["system"] == "1-best:g2"]
    assert [[row[name] for name in ("task", "text", "equal")] for row in rows] == [
        [row[name] for name in ("task", "text", "equal")] for row in drafts
    ]
    columns = {task: [counts.column(name, task, rows).sum() for name in ("line_breaks", "equal")] for task in QUOTED}
    shares = [f"{100 * breaks / equal:.0f}" for breaks, equal in columns.values()]
    page = " ".join((STUDY / "kim_failures.md").read_text(encoding="utf-8").split())
    words = (
        "Of the repeated tokens of its drafts {} % on LAMBADA, {} % on documentation and {} % on news are line breaks"
    )
    assert words.format(*shares[:3]) + f" ({shares[3]} % over all tasks)" in page


def test_what_the_page_says_of_neural_rescorers_is_in_the_counts(modules: tuple[ModuleType, ...]) -> None:
    columns = modules[1].Counts(STUDY / "results").rescorers
    page = " ".join((STUDY / "kim_models.md").read_text().split())
    pairs = (("own 4-gram", "own"), ("4-gram", "general"), ("in-domain", "general"), ("own", "general"))
    for pair in pairs:
        own, other = ([np.array([float(row[name]) for row in columns[each]]) for name in ("tokens", "1-best")]
                      for each in pair)  # fmt: skip
        value, low, high = (f"{100 * each:.1f}" for each in modules[1].pooled(*own, tuple(other)))
        assert f"{value} % ({low} to {high})" in page


def test_what_other_pages_quote_is_in_the_counts(modules: tuple[ModuleType, ...]) -> None:
    counts = modules[1].Counts(STUDY / "results")
    systems = ("16-best:g4", "16-tree:g4", "16-calibrated:own4-text")
    gains = [f"{counts.gain('all', system)[0]:.0f}" for system in systems]
    pages = [STUDY.parents[1] / "README.md", STUDY.parent / "README.md", STUDY / "README.md"]
    quoted = [re.findall(r"(\d+) %", page.read_text().partition("paths with a 4-gram gain")[2])[:3] for page in pages]
    assert quoted[0] == quoted[2] == gains
    assert quoted[1][:2] == gains[:2]


QUOTED = ("lambada", "docs", "news", "all")


def test_neural_rescorers_are_counted_at_their_own_weights(
    modules: tuple[ModuleType, ...], lattices: LatticeSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kim = modules[0]
    gpt2 = GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    small = tmp_path / "rescorers" / "own"  # is not trained again
    NeuralRescorer(gpt2).save_pretrained(small)
    log = [{"step": 5, "loss": 3.0, "validation": {"loss": 3.0, "perplexity": 20.0}}, {"step": 6, "loss": 2.9}]
    (small / "training-log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    lattices.save(tmp_path / "cut.npz")
    part = kim.Part([([1, 2, 3, 4, 5], 2)], lattices, tmp_path / "cut.npz")
    monkeypatch.setattr(kim, "parts", lambda *_: (part, part))
    for corpus in ("people", "general", "own"):
        (tmp_path / f"{corpus}.npy").touch()
    counted = kim.count_rescorer(tmp_path, tmp_path, kim.TASKS["squad"], "own", tmp_path)
    (about,) = counted["rescorers-models"]
    assert (about["rescorer"], about["updates"], about["held_out"]) == ("own", 6, "20.0")
    assert about["parameters"] == gpt2.num_parameters()
    assert 20 < float(about["perplexity"]) < 80  # 40 tokens, nothing learnt
    rows, tuned = counted["rescorers"], counted["rescorers-weights"]
    assert [row["text"] for row in rows] == [0, 1, 2]
    # The same texts: the weight's tokens per call are those of the counts
    (chosen,) = (row for row in tuned if row["chosen"])
    calls = sum(row["1-best"] for row in rows)
    assert chosen["tokens_per_call"] == pytest.approx(sum(row["tokens"] for row in rows) / calls, abs=1e-6)


def test_texts_that_share_words_with_training_prompts_are_refused(modules: tuple[ModuleType, ...]) -> None:
    tasks = modules[2]

    class Words:
        def ids(self, text: str) -> list[int]:
            return list(range(len(text.split())))

        def prompt(self, turns: list[str]) -> list[int]:
            return self.ids(turns[0])

    words = " ".join(f"word{i}" for i in range(200))
    items = [tasks.Item(words, (), "new"), tasks.Item("Quite another " + words.replace("word", "other"), (), "known")]
    known = tasks.shingles("other5 Other6 other7, other8 other9 other10 other11 other12")
    chosen, refused = tasks.chosen(tasks.TASKS["news"], iter(items), 5, known, Words())
    assert ([row["source"] for row in chosen], refused) == (["new"], 1)
    assert (len(chosen[0]["tokens"]), chosen[0]["prompt_tokens"]) == (192, 96)
    question = tasks.Item(tasks.QUESTION.format(context="Rain falls.", question="What falls?"), ("Rain",), "q")
    # The instruction's own words are no reason to refuse
    chosen, refused = tasks.chosen(tasks.TASKS["squad"], iter([question]), 5, tasks.shingles(tasks.QUESTION), Words())
    assert (len(chosen), refused) == (1, 0)


def test_text_as_people_write_it(modules: tuple[ModuleType, ...]) -> None:
    tasks = modules[2]
    assert tasks.untokenised("the second @-@ most , 1 @,@ 500 ( or so ) . `` I do n't , '' he said") == (
        'the second-most, 1,500 (or so). "I don\'t," he said'
    )
    assert tasks.cased("it rained . i left").startswith("It rained . I")


@pytest.mark.long
def test_the_pages_have_tables_of_the_counts(modules: tuple[ModuleType, ...]) -> None:
    tables = modules[1]
    counts = tables.Counts(STUDY / "results")
    page = "".join((STUDY / name).read_text(encoding="utf-8") for name in tables.PAGES)
    assert tables.refreshed(page, counts) == page, (
        "the pages' tables are not those of the counts; run python -m benchmarks.study.kim"
    )
    on_page = re.findall("<!-- kim (.*) -->", page)
    assert sorted({*on_page} & {*tables.TABLES}) == sorted(on_page)
    for name in tables.FIGURES:
        assert f"results/kim-{name}.png" in page + (STUDY / "README.md").read_text(encoding="utf-8")
        assert (STUDY / "results" / f"kim-{name}.png").exists()
    # What the page quotes in words, with its interval, is in a table
    in_tables = {gain for name in on_page for gain in GAIN.findall(tables.TABLES[name](counts))}
    assert set(GAIN.findall(page)) == in_tables


def test_one_task_is_counted_and_printed_alone(
    modules: tuple[ModuleType, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a task's stored counts on; there are no correlations across one task."""
    kim, tables, _ = modules
    counts = tables.Counts(STUDY / "results", ("lambada",))
    kinds = (
        "calls",
        "verified",
        "drafts",
        "oracle",
        "entropy",
        "entropy-bins",
        "quality",
        "weights",
        "ngrams",
        "coverage",
    )
    rows: dict[str, list[dict[str, str]]] = {kind: counts.rows(kind) for kind in (*kinds, "coverage")}
    calibrated = {
        kind: [{key: row.pop(key) for key in list(row) if "calibrated" in key} for row in rows[kind]]
        for kind in kinds[:2]
    }
    (tmp_path / "counts").mkdir()
    for name, value in (("lambada", rows), ("lambada-calibrated-1", calibrated)):
        (tmp_path / "counts" / f"{name}.json").write_text(json.dumps(value))
    monkeypatch.setattr(kim, "lattices", lambda *_: tmp_path)
    command = ["kim", "--data", str(tmp_path), "--work", str(tmp_path), "--tasks", "lambada"]
    monkeypatch.setattr("sys.argv", command)
    kim.main()
    printed = capsys.readouterr().out
    page = (STUDY / "kim.md").read_text(encoding="utf-8").splitlines()
    lines = [line for line in printed.splitlines() if line.startswith("| LAMBADA")]
    assert {line for line in page if line.startswith("| LAMBADA")} - set(lines) == set()
    assert not [line for line in printed.splitlines() if line.startswith(("| news", "| across"))]
    # The committed counts, told the task, print the same
    monkeypatch.setattr("sys.argv", ["kim", "--tasks", "lambada", "--tables", "1", "3", "4"])
    kim.main()
    again = capsys.readouterr().out
    assert again.strip()
    assert again.splitlines() == printed.splitlines()[: len(again.splitlines())]


def test_figures_are_drawn_from_counts_alone(modules: tuple[ModuleType, ...], tmp_path: Path) -> None:
    tables = modules[1]
    for file in (STUDY / "results").glob("kim-*.csv"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tables.show(tmp_path, ["figure-3", "figure-7"])
    assert (tmp_path / "kim-figure-3.png").stat().st_size > 10_000
    with pytest.raises(ValueError, match="expected tables among"):
        tables.show(tmp_path, ["figure-8"])


def test_weights_come_from_other_texts(modules: tuple[ModuleType, ...]) -> None:
    """Sources of test texts, as they were counted, are those of `TEST` texts behind `TUNING` ones, each once."""
    kim = modules[0]
    with open(STUDY / "results" / "kim-quality.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for task in kim.TASKS:
        own = [row for row in rows if row["task"] == task]
        assert [int(row["text"]) for row in own] == list(range(kim.TUNING, kim.TUNING + kim.TEST))
        assert len({row["source"] for row in own}) == kim.TEST
