"""The program as a user types it: results on standard output, one line and status 2 on bad input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fst
from latticebpd.cli import COMMANDS, PANELS, _LazyCommands
from latticebpd.cli.help_panels import FIRST, LONG
from latticebpd.drafters.bundled import LM
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.loading import load
from tests.helpers.commands import Run
from tests.helpers.trigrams import trigram


@pytest.fixture(scope="module")
def lattice_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lattices") / "l.npz"
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(23)[:4] for _ in range(6 * 3)]).reshape(6, 3, 4).astype(np.int32)
    log_probs = -np.sort(rng.exponential(size=(6, 3, 4)).astype(np.float32), axis=2)
    continuation = tokens[:, :, 1].copy()
    continuation[3:, 1] = 99  # the last three leave the lattice in the second slot
    LatticeSet(tokens, log_probs, continuation, np.full((6, 2), -1, np.int32)).save(path)
    return path


def test_version_and_help_name_every_command(run: Run) -> None:
    assert run("--version")[:2] == (0, "0.1.0\n")
    status, out, _ = run("--help")
    assert status == 0
    for command in ("demo", "generate", "lattices", "rescore", "oracle", "lm", "train"):
        assert command in out


def panels(out: str) -> list[str]:
    """The titles of a help's panels."""
    return re.findall(r"^╭─ (.*?) ─+╮$", out, re.MULTILINE)


def test_commands_stand_in_panels_by_what_they_are_for(run: Run) -> None:
    out = run("--help")[1]
    assert panels(out) == ["Options", *PANELS]
    places = [out.index(f"│ {name} ") for name in COMMANDS]
    assert places == sorted(places)


def test_options_used_most_stand_first_where_there_are_many() -> None:
    commands = _LazyCommands(COMMANDS)
    chosen = {name: commands[name] for name in COMMANDS}
    chosen |= {
        f"{name} {each}": sub for name in COMMANDS for each, sub in getattr(chosen[name], "commands", {}).items()
    }
    for words, command in chosen.items():
        options = [each for each in command.params if each.param_type_name == "option"]
        assert (len(options) > LONG) == (words in FIRST), words
        if words in FIRST:
            names = FIRST[words].split()
            assert [each.name for each in options if each.rich_help_panel is None] == names, words
            assert {each.name for each in options if each.required} <= set(names), words
            assert len(names) <= 7
    assert FIRST.keys() <= chosen.keys()


def test_help_shows_the_options_used_most_and_their_defaults(run: Run) -> None:
    out = run("generate", "--help")[1]
    assert panels(out) == ["Arguments", "Options", "More options"]
    first = out[out.index("─ Options") : out.index("─ More options")]
    shown = re.findall(r"^│ --([a-z-]+)", first, re.MULTILINE)
    assert [name.replace("-", "_") for name in shown] == [*FIRST["generate"].split(), "help"]
    assert "[default: 128; x>=1]" in first


@pytest.mark.parametrize(
    "command",
    ["demo", "generate", "lattices", "rescore", "oracle", "merge", "compare",
     "lm train", "lm interpolate", "lm kenlm", "lm arpa2fst", "lm fst2arpa", "lm info", "lm perplexity",
     "train tokenizer", "train encode", "train blockwise"],
)  # fmt: skip
def test_help_of_every_command_has_an_example(run: Run, command: str) -> None:
    status, out, _ = run(*command.split(), "--help")
    assert status == 0
    assert f"Example: latticebpd {command}" in " ".join(out.replace("│", " ").split())


def test_oracle_counts_what_the_lattices_hold(run: Run, lattice_file: Path) -> None:
    status, out, _ = run("oracle", lattice_file, "--k", "1,2,4", "--json")
    assert status == 0
    rows = {row["k"]: row for row in json.loads(out)["rows"]}
    assert rows[1]["block_efficiency"] == 1.0  # the right token is always the second
    assert rows[2]["block_efficiency"] == rows[4]["block_efficiency"] == 1 + (3 * 3 + 3 * 1) / 6
    assert rows[4]["accept_counts"] == [0, 3, 0, 3]
    assert "3.000" in run("oracle", lattice_file)[1]


def test_parts_of_the_oracle_merge_to_the_whole(run: Run, lattice_file: Path, tmp_path: Path) -> None:
    for name, shard in (("whole", "0/1"), ("a", "0/2"), ("b", "1/2")):
        lattices = LatticeSet.load(lattice_file)
        LatticeSet(
            lattices.tokens, lattices.log_probs, lattices.continuation, lattices.context, sequence=np.arange(6) // 2
        ).save(tmp_path / "l.npz")
        assert run("oracle", tmp_path / "l.npz", "--shard", shard, "--tally", tmp_path / f"{name}.json")[0] == 0
    status, out, _ = run(
        "merge",
        tmp_path / "a.json",
        tmp_path / "b.json",
        "--tally",
        tmp_path / "sum.json",
        "--json",
        "--plot",
        tmp_path / "o.svg",
    )
    assert status == 0
    assert (tmp_path / "sum.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    rows = json.loads(out)["rows"]
    assert list(rows[0]) == ["k", "heads", "by", "block_efficiency", "best_block_efficiency", "accept_counts"]
    assert [*rows[-1].values()][:3] == [16, 4, "decode"]
    assert (tmp_path / "o.svg").read_text().startswith("<?xml")


def test_merge_refuses_parts_that_are_there_twice_or_not_at_all(run: Run, lattice_file: Path, tmp_path: Path) -> None:
    lattices = replace(LatticeSet.load(lattice_file), sequence=np.arange(6) // 2)
    lattices.save(tmp_path / "l.npz")
    parts = [tmp_path / f"{index}.json" for index in range(3)]
    for index, part in enumerate(parts):
        assert run("oracle", tmp_path / "l.npz", "--shard", f"{index}/3", "--tally", part)[0] == 0
    assert run("oracle", tmp_path / "l.npz", "--shard", "1/2", "--tally", tmp_path / "half.json")[0] == 0
    first, _, last = parts
    record = json.loads(first.read_text())
    del record["parts"]
    (tmp_path / "old.json").write_text(json.dumps(record))
    (tmp_path / "unknown.json").write_text(json.dumps({**record, "parts": []}))
    (tmp_path / "odd.json").write_text(json.dumps({**record, "parts": [["0/1"]]}))
    for names, message in (
        ([first, first, first], "expected every part once, got 0/3 twice"),
        ([*parts, first], "expected every part once, got 0/3 twice"),
        ([first, tmp_path / "half.json"], "expected parts of one number, got 0/3, 1/2"),
        ([first, last], "1/3 is missing; count it with --shard 1/3, or add up without it by --partial 1"),
        ([*parts, "--partial", 1], "expected --partial to name the missing parts, got 1"),
        ([first, last, "--partial", 1, "--partial", 3], "expected --partial to name the missing parts, got 1, 3"),
        ([tmp_path / "old.json"], "make it anew"),
        ([tmp_path / "unknown.json"], "make it anew"),
        ([tmp_path / "odd.json"], "make it anew"),
    ):
        status, out, err = run("merge", *names)
        assert (status, out, len(err.splitlines())) == (2, "", 1), err
        assert message in err
    status, partial, err = run("merge", last, first, "--partial", 1, "--json", "--tally", tmp_path / "partial.json")
    assert (status, json.loads(partial)["lattices"], "without 1/3" in err) == (0, 4, True)
    assert json.loads((tmp_path / "partial.json").read_text())["parts"] == ["0/3", "2/3"]
    merged = run("merge", tmp_path / "partial.json", parts[1], "--json")
    assert merged[:2] == run("oracle", tmp_path / "l.npz", "--json")[:2]


def test_compare_shows_vanilla_and_the_oracle_beside_what_was_asked_for(
    run: Run, lattice_file: Path, tmp_path: Path
) -> None:
    trigram().save(tmp_path / "lm.fst")
    status, out, _ = run("compare", lattice_file, "--lm", tmp_path / "lm.fst", "-s", "9-best", "--json")
    assert status == 0
    rows = {row["system"]: row for row in json.loads(out)["systems"]}
    assert list(rows) == ["vanilla", "9-best", "oracle"]
    assert rows["vanilla"]["block_efficiency"] == 1.0
    assert rows["oracle"]["block_efficiency"] == 3.0
    assert rows["oracle"]["by"] == "position"  # the file does not number its texts
    assert "9-best" in run("compare", lattice_file, "-s", "9-best")[1]


def test_rescore_prints_the_drafts_of_the_library(run: Run, lattice_file: Path, tmp_path: Path) -> None:
    lm = trigram()
    lm.save(tmp_path / "lm.fst")
    status, out, _ = run("rescore", lattice_file, "--lm", tmp_path / "lm.fst", "-p", 3, "--alpha", 0.5)
    assert status == 0
    records = [json.loads(line) for line in out.splitlines()]
    assert len(records) == 6
    lattice = LatticeSet.load(lattice_file)[4]
    tokens, scores = fst.nbest_paths(lattice.tokens, lattice.log_probs, lm, p=3, alpha=0.5)
    assert records[4]["tokens"] == tokens.tolist()
    np.testing.assert_allclose(records[4]["scores"], scores)


def test_language_model_is_trained_converted_and_measured(run: Run, tmp_path: Path) -> None:
    ids = np.tile(np.array([1, 2, 3, 1, 2, 4, 0], np.uint16), 60)
    np.save(tmp_path / "ids.npy", ids)
    assert run("lm", "train", tmp_path / "ids.npy", "--order", 3, "--min-count", "1", "-o", tmp_path / "lm.fst")[0] == 0
    assert run("lm", "fst2arpa", tmp_path / "lm.fst", tmp_path / "lm.arpa.gz")[0] == 0
    assert run("lm", "arpa2fst", tmp_path / "lm.arpa.gz", tmp_path / "again.fst")[0] == 0
    info = json.loads(run("lm", "info", tmp_path / "again.fst", "--json")[1])
    assert info["order"] == 3
    own = json.loads(run("lm", "info", tmp_path / "lm.fst", "--json")[1])["num_ngrams"]
    assert info["num_ngrams"] == [own[0] + 3, *own[1:]]  # the markers that KenLM demands
    perplexities = [
        json.loads(run("lm", "perplexity", tmp_path / name, tmp_path / "ids.npy", "--json")[1])
        for name in ("lm.fst", "lm.arpa.gz")
    ]
    assert perplexities[0]["perplexity"] == pytest.approx(perplexities[1]["perplexity"], rel=1e-4)
    assert 1.0 < perplexities[0]["perplexity"] < 1.6  # nearly deterministic text
    assert "3" in run("lm", "info", tmp_path / "lm.fst")[1]


def test_tokenizer_corpus_and_model_are_trained_from_text(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text(
        "".join(json.dumps({"text": f"the cat {i} sat on the mat and the dog ran " * 8}) + "\n" for i in range(8))
    )
    assert run("train", "tokenizer", text, "--vocab-size", 300, "-o", tmp_path / "tokenizer.json")[0] == 0
    encode = ("train", "encode", text, "--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "ids.npy")
    assert run(*encode)[0] == 0
    status, _, err = run(
        "train", "blockwise", tmp_path / "ids.npy", "--validation", tmp_path / "ids.npy", "--tokenizer",
        tmp_path / "tokenizer.json",
        "-o", tmp_path / "model", "--steps", 2, "--batch-size", 2, "--sequence-length", 16, "--hidden-size", 16,
        "--num-layers", 1, "--num-heads", 3, "--objective", "joint", "--head-weights", "1,0.5",
    )  # fmt: skip
    assert status == 0, err
    options = json.loads((tmp_path / "model" / "training-state.json").read_text())["options"]
    assert (options["objective"], options["head_weights"]) == ("joint", [1.0, 0.5])
    status, out, _ = run(
        "generate", "the cat", "--model", tmp_path / "model", "--system", "6-tree", "--max-new-tokens", 8, "--json"
    )
    assert status == 0
    assert json.loads(out)["tokens"] <= 8
    status, _, err = run(
        "lattices",
        "--model",
        tmp_path / "model",
        "--prompts",
        text,
        "--k",
        4,
        "--max-new-tokens",
        12,
        "--limit",
        2,
        "-o",
        tmp_path / "l.npz",
    )
    assert status == 0, err
    assert LatticeSet.load(tmp_path / "l.npz").tokens.shape[1:] == (2, 4)


def _bad_inputs(directory: Path, lattices: Path) -> dict[str, tuple[tuple[object, ...], str]]:
    (directory / "garbage").write_bytes(b"\x00\x01garbage" * 50)
    (directory / "garbage.npz").write_bytes(b"PK\x03\x04garbage")
    (directory / "bad.arpa").write_text("\\data\\\nngram 1=2\n\n\\1-grams:\n-0.1\t1\nx\t2\n\n\\end\\\n")
    np.save(directory / "floats.npy", np.zeros(3))
    np.save(directory / "ids.npy", np.arange(9, dtype=np.uint16))
    return {
        "missing lattices": (("oracle", directory / "none.npz"), "none.npz: expected a file, found none"),
        "corrupt lattices": (("oracle", directory / "garbage.npz"), "garbage.npz: expected a lattice file"),
        "no system": (("compare", lattices, "-s", "best"), "expected vanilla, chain, oracle, P-best or N-tree"),
        "no tally": (("merge", directory / "garbage.npz"), "garbage.npz: "),
        "no shard": (("oracle", directory / "garbage.npz", "--shard", "2/2"), "expected a shard i/n"),
        "k that is no number": (("oracle", directory / "garbage.npz", "--k", "x"), "expected --k as numbers"),
        "missing model": (("lm", "info", directory / "none.fst"), "none.fst: expected a file, found none"),
        "corrupt model": (("lm", "info", directory / "garbage"), "garbage"),
        "bad ARPA line": (("lm", "arpa2fst", directory / "bad.arpa", directory / "out.fst"), "6"),
        "no integers": (("lm", "train", directory / "floats.npy", "-o", directory / "out.fst"), "integer"),
        "unknown output": (("lm", "train", directory / "ids.npy", "-o", directory / "out.bin"), "ends in .fst, .arpa"),
        "bad min-count": (
            ("lm", "train", directory / "ids.npy", "--min-count", "a", "-o", directory / "out.fst"),
            "--min-count",
        ),
        "no such model directory": (
            ("generate", "x", "--model", directory / "none"),
            "expected the directory of a model",
        ),
        "missing tokenizer": (
            ("lm", "train", directory / "ids.npy", "--tokenizer", directory / "t", "-o", directory / "o.fst"),
            "no such file",
        ),
    }


CASES = [
    "missing lattices", "corrupt lattices", "k that is no number", "missing model", "corrupt model", "bad ARPA line",
    "no integers",
    "unknown output", "bad min-count", "no such model directory", "missing tokenizer", "no system", "no tally",
    "no shard",
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input_ends_with_one_line_and_status_2(run: Run, lattice_file: Path, tmp_path: Path, case: str) -> None:
    inputs = _bad_inputs(tmp_path, lattice_file)
    assert set(inputs) == set(CASES)
    arguments, message = inputs[case]
    before = sorted(path.name for path in tmp_path.iterdir())
    status, out, err = run(*arguments)
    assert status == 2
    assert out == ""
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("latticebpd: error: ")
    assert message in lines[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == before  # nothing half-written


def test_unknown_option_is_a_usage_error(run: Run) -> None:
    status, out, err = run("oracle", "--nonsense")
    assert status == 2
    assert out == ""
    assert "--nonsense" in err


@pytest.mark.parametrize("arguments", [(), ("lm",), ("train",)])
def test_no_command_prints_the_help(run: Run, arguments: tuple[str, ...]) -> None:
    status, out, err = run(*arguments)
    assert status in (0, 2)  # older versions of typer call it a success
    assert "Usage: latticebpd" in out + err


def test_usage_error_is_one_line_that_names_the_help(run: Run) -> None:
    for arguments, message in (
        (("lm", "train", "x", "-o", "y.fst", "--order", 0), "'--order'"),
        (("lm", "train"), "Missing argument 'inputs"),
        (("no-such-command",), "No such command 'no-such-command'"),
    ):
        status, out, err = run(*arguments)
        assert (status, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("latticebpd: error: ")
        assert message.lower() in line.lower()  # older versions of typer show arguments in capitals
        assert "see `latticebpd " in line


@pytest.mark.parametrize(
    "error", [RuntimeError("strange\n  thing"), IndexError("x"), EOFError("end"), MemoryError(), AssertionError()]
)
def test_the_unforeseen_is_one_line_with_a_hint_and_status_1(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(fst.NgramModel, "load", fail)
    status, out, err = run("lm", "info", "lm.fst")
    assert (status, out) == (1, "")
    (line,) = err.strip().splitlines()
    assert (
        line == f"latticebpd: error: unforeseen {type(error).__name__}: {' '.join(str(error).split())}; "
        "`latticebpd --debug COMMAND ...` shows where it comes from"
    )
    status, _, err = run("--debug", "lm", "info", "lm.fst")
    assert status == 1
    assert err.strip().startswith("Traceback (most recent call last):")
    assert err.splitlines()[-1] == line


def test_names_that_cannot_be_printed_are_escaped(run: Run) -> None:
    status, _, err = run("lm", "info", "surrogate-\udcff.fst")
    assert status == 2
    assert err == "latticebpd: error: surrogate-\\udcff.fst: expected a file, found none\n"


def test_text_that_is_not_utf8_is_refused_in_one_line(run: Run, tmp_path: Path) -> None:
    """Of arguments, options, files and standard input; Python has such bytes as lone surrogates."""
    (path := tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    latin = os.fsdecode(b"caf\xe9")
    for arguments, message in (
        ((latin,), r"expected PROMPT as text in UTF-8, got 'caf\udce9' at character 3"),
        (
            ("the", "--system-prompt", latin),
            r"expected --system-prompt as text in UTF-8, got 'caf\udce9' at character 3",
        ),
        (("the", "--stop", "a", "--stop", latin), r"expected --stop as text in UTF-8, got 'caf\udce9' at character 3"),
        (("--file", path), rf"{path}: expected text in UTF-8, got b'caf\xe9\n' at byte 3"),
    ):
        assert run("generate", *arguments) == (2, "", f"latticebpd: error: {message}\n")
    for text in (latin, ["the", latin]):
        with pytest.raises(ValueError, match="expected a prompt as text in UTF-8"):
            load().generate(text)


def ended(*arguments: object, before: Callable[[], None] | None = None, **streams: int) -> tuple[int, str]:
    """Exit status and standard error of the program in a process of its own."""
    line = [sys.executable, "-m", "latticebpd", *map(str, arguments)]
    program = subprocess.run(line, check=False, preexec_fn=before, **{"stderr": subprocess.PIPE, **streams})
    return program.returncode, (program.stderr or b"").decode()


def test_a_reader_that_has_gone_ends_the_program_quietly() -> None:
    """While a command writes, and while the command line's library writes its help."""
    for arguments in (("lm", "info", LM), ("--help",), ("lm", "info", "--help")):
        reader, writer = os.pipe()
        os.close(reader)
        assert ended(*arguments, stdout=writer) == (0, "")
        os.close(writer)


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_closed_standard_streams_are_empty(closed: list[int]) -> None:
    def close() -> None:
        for number in closed:
            os.close(number)

    assert ended("lm", "info", LM, before=close, stdout=subprocess.DEVNULL) == (0, "")
    arguments = ("generate", "-", "--drafter-model", "none")  # refused after the text is read, and before any work
    status, err = ended(*arguments, before=close, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    assert (status, err.partition(", got none")[0]) == (
        2,
        "" if 2 in closed else "latticebpd: error: expected --model with --drafter-model",
    )
