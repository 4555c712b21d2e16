"""Lattices made, counted and compared from the command line, in shards and in one piece."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import fst
from latticebpd import loading
from latticebpd.cli.input_data import read_texts
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.shards import SETTINGS, lattice_directory, text_ends, texts_of
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import blocks, compare, tally
from latticebpd.measuring.examples import exclude_examples, lattices_fingerprint
from latticebpd.measuring.quality import perplexity
from latticebpd.models.chat import PlainText
from latticebpd.models.load_target import load_tokenizer
from latticebpd.scoring.weights import Tuning, store_tunings
from tests.helpers.blockwise_models import greedy, tiny_model
from tests.helpers.commands import Run
from tests.helpers.lattices import top_arcs
from tests.helpers.trigrams import trigram

WORDS = [f"w{i}" for i in range(23)]


@pytest.fixture(scope="module")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    tiny_model().save_pretrained(directory)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("prompts") / "held-out.jsonl"
    path.write_text("".join(json.dumps({"text": " ".join(rng.choice(WORDS, 30))}) + "\n" for _ in range(5)))
    return path


@pytest.fixture(scope="module")
def arguments(model_directory: Path, prompts: Path) -> tuple[object, ...]:
    return (
        "lattices",
        "--model",
        model_directory,
        "--prompts",
        prompts,
        "-k",
        4,
        "--max-prompt-tokens",
        6,
        "--max-new-tokens",
        14,
    )


def test_a_directory_of_shards_counts_as_one_file_does(run: Run, arguments: tuple[object, ...], tmp_path: Path) -> None:
    status, _, err = run(*arguments, "-o", tmp_path / "one.npz")
    assert status == 0, err
    status, _, err = run(*arguments, "-o", tmp_path / "shards", "--shard-size", 2)
    assert status == 0, err
    assert "lattices of 5 texts of 4 slots x 4" in " ".join(err.split())
    outputs = {run("oracle", tmp_path / name, "--json", "--heads", "3,5")[1] for name in ("one.npz", "shards")}
    assert len(outputs) == 1
    record = json.loads(outputs.pop())
    assert record["lattices"] == 5 * 13
    assert (record["signature"]["k"], record["signature"]["heads"]) == (4, 5)
    assert record["signature"]["lattices"].endswith("its own greedy text")
    parts = []
    for index in range(3):
        parts.append(tmp_path / f"{index}.json")
        assert run("oracle", tmp_path / "shards", "--shard", f"{index}/3", "--tally", parts[-1])[0] == 0
    assert run("oracle", tmp_path / "one.npz", "--tally", tmp_path / "whole.json")[0] == 0
    assert run("merge", *parts, "--tally", tmp_path / "merged.json")[0] == 0
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_killed_run_goes_on(run: Run, arguments: tuple[object, ...], tmp_path: Path) -> None:
    command = (*arguments, "-o", tmp_path / "shards", "--shard-size", 2)
    assert run(*command)[0] == 0
    full = [lattice_directory(tmp_path / "shards").file(shard).read_bytes() for shard in range(3)]
    lattice_directory(tmp_path / "shards").file(2).unlink()
    status, _, err = run("oracle", tmp_path / "shards")
    assert status == 2
    assert "1 of 3 shards are missing" in err
    assert run(*command)[0] == 0
    assert [lattice_directory(tmp_path / "shards").file(shard).read_bytes() for shard in range(3)] == full
    status, _, err = run(*command, "--teacher-force")
    assert status == 2
    assert "holds lattices made with teacher_force False, asked for is True; choose another directory" in err


def test_oracle_decodes_with_the_model(
    run: Run, arguments: tuple[object, ...], model_directory: Path, tmp_path: Path
) -> None:
    assert run(*arguments, "-o", tmp_path / "shards")[0] == 0
    status, out, err = run("oracle", tmp_path / "shards", "--k", "1,4", "--model", model_directory, "--json")
    assert status == 0, err
    record = json.loads(out)
    for row, decoded in zip(record["rows"], record["decoded"], strict=True):
        assert decoded["k"] == row["k"]
        assert decoded["block_efficiency"] == row["block_efficiency"]
        assert decoded["differing_texts"] == 0
    assert (
        "decoded by the model, 2 texts"
        in run("oracle", tmp_path / "shards", "--model", model_directory, "--limit", 2)[1]
    )
    (file,) = (tmp_path / "shards").glob("shard-*.npz")
    status, _, err = run("oracle", file, "--model", model_directory)
    assert status == 2
    assert "lattice files do not name the prompts" in err


def test_the_oracle_and_its_decodes_leave_out_what_a_weight_was_tuned_on(
    run: Run, arguments: tuple[object, ...], model_directory: Path, tmp_path: Path
) -> None:
    assert run(*arguments, "-o", tmp_path / "shards", "--shard-size", 2)[0] == 0
    store_tunings(tmp_path / "tuned", [Tuning(0.5, "16-best", (0.5,), (1.0,), "text", (0, 1, 2, 4), 0, "sha256:0")])
    command = ("oracle", tmp_path / "shards", "--k", "1,4", "--exclude", tmp_path / "tuned.alpha.json")
    status, out, err = run(*command, "--model", model_directory, "--json")
    assert status == 0, err
    record = json.loads(out)
    (left,) = (
        block for block in exclude_examples(blocks([tmp_path / "shards"]), Tuning.load(tmp_path / "tuned.alpha.json"))
    )
    assert np.unique(left.sequence).tolist() == [3]
    assert record["lattices"] == 13
    for row, decoded, efficiency in zip(
        record["rows"], record["decoded"], tally([left], [1, 4]).block_efficiency[:, 0], strict=True
    ):
        assert decoded["texts"] == 1
        assert decoded["block_efficiency"] == row["block_efficiency"] == efficiency
        assert decoded["differing_texts"] == 0
    parts = [tmp_path / "a.json", tmp_path / "b.json"]
    assert run(*command, "--shard", "0/2", "--tally", parts[0])[0] == 2  # text 3 is in the other part
    assert run(*command, "--shard", "1/2", "--tally", parts[1])[0] == 0


def test_parts_of_a_comparison_merge_to_the_whole(run: Run, arguments: tuple[object, ...], tmp_path: Path) -> None:
    assert run(*arguments, "-o", tmp_path / "l.npz")[0] == 0
    trigram().save(tmp_path / "lm.fst")
    command = ("compare", tmp_path / "l.npz", "--lm", tmp_path / "lm.fst", "-s", "3-best", "-s", "6-tree")
    parts = [tmp_path / f"{index}.json" for index in range(3)]
    for index, part in enumerate(parts):
        assert run(*command, "--shard", f"{index}/3", "--tally", part)[0] == 0
    status, full, err = run(*command, "--tally", tmp_path / "whole.json", "--json")
    assert status == 0, err
    assert run("merge", *parts, "--tally", tmp_path / "merged.json", "--json")[:2] == (0, full)
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert "by decode, 65 lattices" in run("merge", *parts)[1]
    assert run("oracle", tmp_path / "l.npz", "--tally", tmp_path / "oracle.json")[0] == 0
    for bad, message in (
        (("merge", parts[0], tmp_path / "oracle.json"), "expected counts of one kind"),
        (("merge", *parts, "--plot", tmp_path / "p.png"), "expected --plot with counts of the oracle"),
        ((*command, "--shard", "0/2", "--alphas", "1,2"), "expected --alphas without --shard"),
    ):
        status, _, err = run(*bad)
        assert (status, message in " ".join(err.split())) == (2, True), err


def knows_beginnings(texts: list[tuple[list[int], int]]) -> fst.NgramModel:
    """Knows each text's second new token by the first and the prompt's last; by the first alone it is sure of
    another."""
    triples = np.unique(np.array([text[length - 1 : length + 2] for text, length in texts], np.int32), axis=0)
    wrong = np.stack([triples[:, 1], (triples[:, 2] + 1) % 23], axis=1)
    pairs = np.unique(np.concatenate([triples[:, :2], triples[:, 1:], wrong]), axis=0)
    rare = [-9.0 if tuple(pair) in set(map(tuple, triples[:, 1:].tolist())) else -0.1 for pair in pairs.tolist()]
    unigrams = np.arange(23, dtype=np.int32)[:, None]
    scores = [np.full(23, -5.0), np.array(rare), np.full(len(triples), -0.1)]
    return fst.NgramModel.from_table(
        fst.NgramTable([unigrams, pairs, triples], scores, [np.zeros(len(each)) for each in scores])
    )


def test_the_prompt_is_context_or_not(
    run: Run, arguments: tuple[object, ...], model_directory: Path, tmp_path: Path
) -> None:
    wide = ("-k", 23)  # so that every token can be drafted
    assert run(*arguments, *wide, "-o", tmp_path / "with")[0] == 0
    assert run(*arguments, *wide, "-o", tmp_path / "without", "--no-prompt-context")[0] == 0
    knows_beginnings(list(texts_of([tmp_path / "with"]))).save(tmp_path / "lm.fst")
    systems = ("-s", "1-tree", "-s", "2-tree")  # a path looks beyond the end of the text, a prefix does not
    command = ("compare", "--lm", tmp_path / "lm.fst", *systems, "--alpha", 50, "--model", model_directory, "--json")
    left_out, never_there, there = (
        json.loads(run(*command, tmp_path / name, *options)[1])
        for name, options in (("with", ["--no-prompt-context"]), ("without", ["--no-prompt-context"]), ("with", []))
    )
    assert left_out["signature"]["context"] == "answer"
    assert there["signature"]["context"] is None
    assert left_out["systems"] == never_there["systems"]
    for result in (left_out, there):  # decodes make the calls of the walk through the lattices
        for walked, decoded in zip(result["systems"], result["decoded"], strict=True):
            assert (decoded["system"], decoded["differing_texts"]) == (walked["system"], 0)
            assert decoded["block_efficiency"] == walked["block_efficiency"]
    for position in (1, 2):  # both systems draft the second token where they know the prompt
        assert there["systems"][position]["block_efficiency"] > left_out["systems"][position]["block_efficiency"]
    assert there["systems"][0] == left_out["systems"][0]  # vanilla asks no language model


def test_given_text_is_labelled_as_such_and_data_without_a_lattice_named(
    run: Run, arguments: tuple[object, ...], model_directory: Path, tmp_path: Path
) -> None:
    assert run(*arguments, "-o", tmp_path / "given", "--teacher-force")[0] == 0
    for command in ("oracle", "compare"):
        out = " ".join(run(command, tmp_path / "given")[1].split())
        assert "by a walk through the given text" in out
        assert "by decode" not in out
    status, _, err = run("report", tmp_path / "given", "--model", model_directory, "-o", tmp_path / "report")
    assert status == 0, err
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    assert "verified against given texts, not what the model would write itself" in page
    assert "verified against the base model&#39;s own text" not in page
    assert "every system, by a walk through the given text" in page
    with (
        tmp_path / "report" / "decoded.csv"
    ).open() as file:  # what the model writes itself is what its decodes are held to
        assert {row["other texts"] for row in csv.DictReader(file)} == {"0"}
    (tmp_path / "short.jsonl").write_text('{"text": "w1 w2 w3"}\n')
    for output in ("none.npz", "none"):
        status, _, err = run(
            *arguments, "--prompts", tmp_path / "short.jsonl", "-o", tmp_path / output, "--teacher-force"
        )
        assert status == 2
        assert (
            "short.jsonl: expected at least one text with two tokens after its prompt, which make a lattice, found"
            " none" in err
        )
        assert not (tmp_path / output).exists()
    LatticeSet.load(next((tmp_path / "given").glob("shard-*.npz"))).take(np.zeros(0, int)).save(tmp_path / "empty.npz")
    status, _, err = run("oracle", tmp_path / "given", tmp_path / "empty.npz")
    assert (status, "empty.npz: expected at least one lattice, got none" in err) == (2, True)


@pytest.mark.long
def test_compare_decodes_with_the_model_under_every_rule_and_measures_what_it_writes(
    run: Run, arguments: tuple[object, ...], model_directory: Path, prompts: Path, tmp_path: Path
) -> None:
    assert run(*arguments, "-o", tmp_path / "own")[0] == 0
    store_tunings(tmp_path / "tuned", [Tuning(0.5, "16-best", (0.5,), (1.0,), "text", (1,), 0, "sha256:0")])
    command = (
        "compare",
        tmp_path / "own",
        "-s",
        "6-tree",
        "--exclude",
        tmp_path / "tuned.alpha.json",
        "--model",
        model_directory,
    )
    texts = list(texts_of([tmp_path / "own"]))
    written = [" ".join(WORDS[token] for token in text[length:]) for text, length in texts]
    written[2] = "w0 w0"
    (tmp_path / "written.txt").write_text("".join(f"{line}\n" for line in written))
    options = ("--rule", "exact", "--rule", "top-k:23", "--references", tmp_path / "written.txt")
    options += ("--measure", "exact-match", "--measure", "perplexity", "--measure", "rouge-l")
    status, out, err = run(*command, *options, "--json")
    assert status == 0, err
    record = json.loads(out)
    rows, decoded = {row["system"]: row for row in record["systems"]}, {row["system"]: row for row in record["decoded"]}
    assert list(decoded) == [
        "vanilla",
        "6-tree",
        "oracle",
        *(f"{name}, top-k:23" for name in ("vanilla", "6-tree", "oracle")),
    ]
    for name in ("vanilla", "oracle"):
        assert decoded[name]["block_efficiency"] == rows[name]["block_efficiency"]  # a replay makes a decode's calls
        assert decoded[name]["block_efficiency_with_prefill"] == rows[name]["block_efficiency_with_prefill"]
    for name in rows:
        exact, lenient = decoded[name], decoded[f"{name}, top-k:23"]
        assert (exact["texts"], exact["tokens"], exact["differing_texts"]) == (4, 4 * 13, 0)
        assert exact["block_efficiency_with_prefill"] == (exact["tokens"] + 4) / (exact["calls"] + 4)
        assert exact["exact-match"] == 75  # all but the one whose reference is another text
        assert lenient["calls"] < exact["calls"]  # every token is among the 23 best
        assert lenient["perplexity"] > exact["perplexity"] == decoded["vanilla"]["perplexity"]
        assert lenient["rouge-l"] < exact["rouge-l"] < 100
    out = " ".join(run(*command, *options)[1].split())
    assert "decoded by the model, 4 texts" in out
    unread = [
        ([*text[:length], *(WORDS.index(word) for word in line.split())], length)
        for (text, length), line in zip(texts, written, strict=True)
    ]
    expected = perplexity(tiny_model(), [unread[number] for number in (0, 2, 3, 4)])  # the one left out was tuned on
    status, out, err = run(*command, *options[:6], "--measure", "reference-perplexity", "--json")
    assert status == 0, err
    assert [row["reference-perplexity"] for row in json.loads(out)["decoded"]] == pytest.approx([expected] * 6)
    assert expected != pytest.approx(exact["perplexity"])
    (tmp_path / "refs.jsonl").write_text("".join(json.dumps({"reference": [line, "w1"]}) + "\n" for line in written))
    status, out, err = run(*command, "--references", tmp_path / "refs.jsonl", "--measure", "f1", "--json")
    assert (status, json.loads(out)["decoded"][0]["f1"] >= 75) == (0, True), err
    report = (
        "report",
        tmp_path / "own",
        "--model",
        model_directory,
        "-o",
        tmp_path / "report",
        "--decode-texts",
        5,
    )
    status, _, err = run(*report, "--references", tmp_path / "written.txt", "--measure", "exact-match")
    assert status == 0, err
    with (tmp_path / "report" / "decoded.csv").open() as file:
        assert {row["exact-match"] for row in csv.DictReader(file)} == {"80.0"}
    (tmp_path / "few.txt").write_text("one\n")
    for bad, message in (
        (
            ("--references", tmp_path / "few.txt", "--measure", "f1"),
            "few.txt: expected one line for each of the lattices' 5 texts, got 1",
        ),
        (("--measure", "f1"), "expected --references with --measure"),
        (
            ("--measure", "meteor"),
            "expected measures among perplexity, reference-perplexity, exact-match, f1, rouge-l, bleu, got 'meteor'",
        ),
        (("--rule", "near"), "expected an acceptance rule exact, top-k:K"),
    ):
        status, _, err = run(*command, *bad)
        assert (status, message in " ".join(err.split())) == (2, True), err
    status, _, err = run("compare", tmp_path / "own", "--rule", "top-k:2")
    assert (status, "expected --model with --rule" in err) == (2, True)


def test_compare_leaves_out_what_a_weight_was_tuned_on(run: Run, arguments: tuple[object, ...], tmp_path: Path) -> None:
    assert run(*arguments, "-o", tmp_path / "l.npz")[0] == 0
    trigram().save(tmp_path / "lm.fst")
    tuning = Tuning(0.5, "16-best", (0.5, 1.0), (1.0, 1.0), "text", (0, 3), 0, "sha256:0")
    store_tunings(tmp_path / "tuned", [tuning])
    command = (
        "compare",
        tmp_path / "l.npz",
        "--lm",
        f"small={tmp_path / 'lm.fst'}",
        "--lm",
        f"big={tmp_path / 'lm.fst'}",
    )
    options = ("-s", "3-best", "-s", "3-best:big", "-s", "3-best:0-gram", "--alpha", 0.5, "--alphas", "0.5,2")
    status, out, err = run(*command, *options, "--exclude", tmp_path / "tuned.alpha.json", "--json")
    assert status == 0, err
    record = json.loads(out)
    assert record["lattices"] == 3 * 13
    kept = exclude_examples(blocks([tmp_path / "l.npz"]), [tuning])
    expected = compare(kept, ["3-best"], trigram(), 0.5).block_efficiency[1]
    rows = {row["system"]: row for row in record["systems"]}
    assert rows["3-best"]["block_efficiency"] == rows["3-best:big"]["block_efficiency"] == expected
    assert [sweep["system"] for sweep in record["alpha_sweep"]] == ["3-best", "3-best:big"]
    assert record["alpha_sweep"][0]["block_efficiency"][0] == rows["3-best"]["block_efficiency"]
    assert record["alpha_sweep"][0]["by"] == "decode"
    assert {"win_repair", "loss_regress", "longest_run", "relative_gain"} <= set(rows["3-best"])
    assert "tokens/call by weight" in run(*command, *options)[1]
    store_tunings(tmp_path / "lm.fst", [replace(tuning, lattices=lattices_fingerprint([tmp_path / "l.npz"]))])
    status, out, err = run(*command, "-s", "3-best", "--json")  # weight and examples are those stored with the model
    assert (status, json.loads(out)["lattices"]) == (0, 3 * 13)
    assert json.loads(out)["systems"][1]["block_efficiency"] == expected
    assert "2 texts that small's weights were fitted to are left out" in " ".join(err.split())
    store_tunings(tmp_path / "tuned", [replace(tuning, examples=(0, 1, 2, 3, 4))])
    for of_all in (("oracle", tmp_path / "l.npz"), command):
        status, _, err = run(*of_all, "--exclude", tmp_path / "tuned.alpha.json")
        assert status == 2
        assert (
            "expected lattices besides those that the weights were tuned on, got no others; tune on fewer examples"
            in err
        )
    for options, message in (
        (("--alphas", "a"), "expected --alphas as weights"),
        (("-s", "3-best:none"), "expected a language model among 0-gram, small, big, got 'none'"),
        (("--exclude", tmp_path / "lm.fst"), "tune the weight again"),
        (("--lm", f"small={tmp_path / 'lm.fst'}"), "expected --lm as NAME=PATH with a name of its own"),
    ):
        status, _, err = run(*command, *options)
        assert status == 2
        assert message in err


def test_parts_make_the_whole(
    run: Run, arguments: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given by hand, or by ``torchrun``."""
    assert run(*arguments, "-o", tmp_path / "whole", "--shard-size", 2)[0] == 0
    assert run(*arguments, "-o", tmp_path / "parts", "--shard-size", 2, "--part", "1/2")[0] == 0
    assert not lattice_directory(tmp_path / "parts").file(0).exists()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(*arguments, "-o", tmp_path / "parts", "--shard-size", 2)[0] == 0
    for shard in range(3):
        assert (
            lattice_directory(tmp_path / "parts").file(shard).read_bytes()
            == lattice_directory(tmp_path / "whole").file(shard).read_bytes()
        )
    status, _, err = run(*arguments, "-o", tmp_path / "one.npz")
    assert status == 2
    assert "expected a directory to fill part by part" in err


def test_rescore_reads_directories(run: Run, arguments: tuple[object, ...], tmp_path: Path) -> None:
    assert run(*arguments, "-o", tmp_path / "shards", "--shard-size", 3)[0] == 0
    status, out, _ = run("rescore", tmp_path / "shards", "-p", 2)
    assert status == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["lattice"] for record in records] == [*range(3 * 13), *range(2 * 13)]
    lattices = LatticeSet.load(lattice_directory(tmp_path / "shards").file(0))
    assert records[0]["tokens"][0] == top_arcs(lattices[0], 1).tokens[:, 0].tolist()


def test_data_sets_of_every_kind_are_read(model_directory: Path, prompts: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    plain = PlainText(load_tokenizer(model_directory))

    def read(path: Path, limit: int | None = None, sources: bool = False) -> list[tuple[list[int], int]]:
        return list(read_texts(path, plain, 4, 3, limit=limit, sources=sources).items())

    first = tokenizer.encode(json.loads(prompts.read_text().splitlines()[0])["text"]).ids
    assert read(prompts)[0] == (first[:7], 4)
    assert len(read(prompts, 2)) == 2
    (tmp_path / "t.txt").write_text("w1 w2")
    assert read(tmp_path / "t.txt") == [([1, 2], 2)]
    np.save(tmp_path / "ids.npy", np.arange(40, dtype=np.uint16) % 23)
    assert [text[0] for text, _ in read(tmp_path / "ids.npy")] == [0, 7, 14, 21, 5]
    assert [text[0] for text, _ in read(tmp_path / "ids.npy", 2)] == [0, 14]  # from all over the array
    Texts.of_rows([np.array([1, 2, 3, 4, 5, 6, 7, 8, 9])], [6], np.int32).save(tmp_path / "s.npz")
    assert read(tmp_path / "s.npz") == [([3, 4, 5, 6, 7, 8, 9], 4)]  # of a long prompt the end is kept
    assert read(tmp_path / "s.npz", sources=True) == [([1, 2, 3, 4, 5, 6, 7, 8, 9], 6)]  # of a source all
    full = tokenizer.encode(json.loads(prompts.read_text().splitlines()[0])["text"]).ids
    assert read(prompts, sources=True)[0] == (full, len(full))
    with pytest.raises(
        ValueError, match=r"ids\.npy: expected text or sequences \(\.npz\) as an encoder–decoder's sources"
    ):
        read(tmp_path / "ids.npy", sources=True)
    question = {"question_id": 1, "category": "qa", "turns": ["w1 w2 w3", "w9"]}
    (tmp_path / "q.jsonl").write_text(json.dumps(question) + "\n")
    assert read(tmp_path / "q.jsonl") == [([1, 2, 3], 3)]
    (tmp_path / "empty.txt").write_text("")
    np.save(tmp_path / "short.npy", np.arange(3, dtype=np.uint16))
    for name, message in (
        ("empty.txt", "expected at least one text"),
        ("short.npy", r"expected at least 7 token ids \(one window\), got 3"),
    ):
        with pytest.raises(ValueError, match=rf"{name}: {message}"):
            read(tmp_path / name)


def test_bad_requests_end_with_one_line_and_leave_nothing(
    run: Run, arguments: tuple[object, ...], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    np.savez(tmp_path / "empty.npz",
    tokens=np.zeros((0, 2, 2), int), log_probs=np.zeros((0, 2, 2)), continuation=np.zeros((0, 2), int),
             context=np.zeros((0, 1), int))  # fmt: skip
    (tmp_path / "none").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / SETTINGS).write_text("{")
    before = sorted(tmp_path.rglob("*"))
    for command, message in (
        (
            (*arguments, "-o", tmp_path / "file"),
            "file: expected a name that ends in .npz, or a directory, found a file",
        ),
        ((*arguments, "-k", 9000, "-o", tmp_path / "out"), "expected at most 23 arcs per slot"),
        (("oracle", tmp_path / "empty.npz"), "empty.npz: expected at least one lattice, got none"),
        (("compare", tmp_path / "empty.npz"), "empty.npz: expected at least one lattice, got none"),
        (
            ("report", tmp_path / "empty.npz", "-o", tmp_path / "out"),
            "empty.npz: expected at least one lattice, got none",
        ),
        (("oracle", tmp_path / "none"), "none: expected lattice files (.npz) in the directory, found none"),
        (("oracle", tmp_path / "damaged"), "lattices.json: expected settings"),
        (("oracle", tmp_path / "empty.npz", "--k", "-1"), "expected --k as numbers >= 1"),
        (("report", "a=", "-o", tmp_path / "out"), "expected"),
    ):
        status, out, err = run(*command)
        assert (status, out) == (2, ""), command
        assert len(err.strip().splitlines()) == 1
        assert message in err
    assert sorted(tmp_path.rglob("*")) == before


def test_help_of_the_report_has_an_example(run: Run) -> None:
    status, out, _ = run("report", "--help")
    assert status == 0
    assert "Example: latticebpd report" in " ".join(out.replace("│", " ").split())


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A chat model whose turns end with a token that its text comes to, and that it does not know itself; and that
    token."""
    model = tiny_model()
    end = next(end for end in range(2, 23) if end in greedy(model, [3, 4, end, 1], 12)[2:])
    directory = tmp_path_factory.mktemp("chat")
    model.save_pretrained(directory)
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token=f"w{end}")
    tokenizer.chat_template = (
        f"{{% for message in messages %}}{{{{ message['content'] }}}} w{end} {{% endfor %}}{{% if add_generation_prompt"
        " %}w1{% endif %}"
    )
    tokenizer.save_pretrained(directory)
    return directory, end


@pytest.mark.parametrize("forced", [(), ("--teacher-force",)])
def test_decodes_of_a_report_end_with_the_chats_turn(
    run: Run, chat: tuple[Path, int], tmp_path: Path, forced: tuple[str, ...]
) -> None:
    directory, end = chat
    answer = " ".join(WORDS[5:19])
    turns = [{"role": "user", "content": "w3 w4"}, *([{"role": "assistant", "content": answer}] if forced else [])]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": turns}) + "\n")
    data = ("lattices", "--model", directory, "--prompts", tmp_path / "chats.jsonl", "-k", 4, "--max-new-tokens", 12)
    status, _, err = run(*data, *forced, "-o", tmp_path / "d")
    assert status == 0, err
    assert text_ends(tmp_path / "d") == [end]
    ((text, length),) = texts_of([tmp_path / "d"])
    assert list(text[:length]) == [3, 4, end, 1]
    own = greedy(tiny_model(), [3, 4, end, 1], 12)
    own = own[: own.index(end) + 1]
    assert 2 < len(own) < 12
    if not forced:
        assert list(text[length:]) == own
    status, _, err = run("report", tmp_path / "d", "--model", directory, "-o", tmp_path / "report")
    assert (status, "differ" in err) == (0, False), err
    with (tmp_path / "report" / "decoded.csv").open() as file:
        assert {float(row["tokens"]) for row in csv.DictReader(file)} == {len(own) - 1}


def test_damaged_ends_of_texts_are_refused_and_a_model_without_heads_is_named(
    run: Run, arguments: tuple[object, ...], model_directory: Path, tmp_path: Path
) -> None:
    assert run(*arguments, "-o", tmp_path / "d")[0] == 0
    assert text_ends(tmp_path / "d") is None
    tiny_model().base.save_pretrained(tmp_path / "stock")
    status, _, err = run("oracle", tmp_path / "d", "--model", tmp_path / "stock")
    assert status == 2
    assert "expected a model with heads, got one without" in err
    settings = json.loads((tmp_path / "d" / SETTINGS).read_text())
    (tmp_path / "d" / SETTINGS).write_text(json.dumps(settings | {"eos_ids": ["x"]}))
    status, _, err = run("oracle", tmp_path / "d", "--model", model_directory)
    assert status == 2
    assert "expected eos_ids as token ids, got ['x']" in err


def test_lattices_are_of_the_weights_asked_for(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, load = [], loading.load
    monkeypatch.setattr(loading, "load", lambda *args, **more: asked.append(more["weights"]) or load(*args, **more))
    command = ("lattices", "--limit", 2, "--max-new-tokens", 6, "-o", tmp_path / "shards")
    assert run(*command, "--weights", "torch")[0] == 0
    status, _, err = run(*command)
    assert status == 2
    assert "holds lattices made with weights torch, asked for is None" in " ".join(err.split())
    status, _, err = run(*command, "--weights", "int3")
    assert (status, "expected weights among float32, int8, gguf" in err) == (2, True)
    assert asked == ["torch", None, "int3"]
