"""Optional packages: everything else works without them, and what needs one says at once how to install it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.commands import Run

EXTRAS = {"matplotlib": "plots", "duckdb": "data", "zstandard": "data", "datasets": "datasets", "llguidance": "grammar"}
PROGRAM = f"""
import sys
sys.modules.update(dict.fromkeys({[*EXTRAS]}))  # from now on they cannot be imported
from latticebpd.cli import main
main()
"""
"""The program where none of these packages is installed."""


def without_extras(*arguments: object) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_needs_no_extra() -> None:
    systems = json.loads(without_extras("demo", "--prompts", 1, "--max-new-tokens", 8, "--json"))["systems"]
    assert {"4-gram", "oracle"} <= {system["name"] for system in systems}


def test_pages_without_plots_need_no_extra(tmp_path: Path) -> None:
    without_extras("generate", "The history", "--max-new-tokens", 4, "--trace", tmp_path / "trace.html")
    assert "<svg" in (tmp_path / "trace.html").read_text(encoding="utf-8")


def test_text_in_the_usual_files_needs_no_extra(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("the city of the river\n")
    (tmp_path / "b.jsonl").write_text('{"text": "the river"}\n')
    without_extras("lm", "train", tmp_path / "a.txt", tmp_path / "b.jsonl", "--words", "-o", tmp_path / "lm.fst")
    assert (tmp_path / "lm.fst").exists()


COMMANDS = {
    "report": ("matplotlib", "report missing -o report"),
    "oracle": ("matplotlib", "oracle missing.npz --plot plot.png"),
    "merge": ("matplotlib", "merge missing.json --plot plot.svg"),
    "calibrate": ("matplotlib", "calibrate missing --lm missing.fst --plot plot.pdf"),
    "ddg": ("matplotlib", "ddg missing.txt --model missing -o graphs.html -o graph.png"),
    "lattices, Parquet": ("duckdb", "lattices --prompts missing.parquet -o lattices"),
    "lattices": ("zstandard", "lattices --prompts missing.jsonl.zst -o lattices"),
    "distill": ("zstandard", "distill missing.jsonl.zst --model missing -o distilled"),
    "train encode": ("duckdb", "train encode text.txt missing.parquet --tokenizer missing.json -o encoded"),
    "train encode, data set": ("datasets", "train encode saved --tokenizer missing.json -o encoded"),
    "train tokenizer": ("zstandard", "train tokenizer missing.txt.zst -o tokenizer.json"),
    "train translation": ("zstandard", "train translation a.jsonl --validation missing.jsonl.zst -o translator"),
    "generate": ("llguidance", "generate text --json-object --model missing"),
    "chat": ("llguidance", "chat --choice yes --choice no --model missing"),
    "lm train": ("zstandard", "lm train text.txt missing.txt.zst --words -o lm.fst"),
    "lm kenlm": ("duckdb", "lm kenlm missing.parquet --words -o lm.fst"),
    "lm interpolate": ("zstandard", "lm interpolate missing.fst missing.fst --held-out missing.txt.zst -o lm.fst"),
    "lm perplexity": ("duckdb", "lm perplexity missing.fst missing.parquet"),
}
"""By name: a package, and a command that needs it. Its inputs do not exist: it is refused before it reads any."""


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_without_its_package_is_refused_in_one_line_before_any_work(
    name: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, line = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved/state.json").write_text("{}")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setitem(sys.modules, package, None)  # it cannot be imported
    status, out, err = run(*line.split())
    assert (status, out) == (2, "")
    assert err.startswith(f"latticebpd: error: expected the package {package} for ")
    assert err.endswith(f", found none; pip install 'latticebpd[{EXTRAS[package]}]'\n")
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_python_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from latticebpd.report import make_report
    from lm_training.data.records import read_records

    for package in EXTRAS:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"the package matplotlib .*pip install 'latticebpd\[plots\]'"):
        make_report(None)  # type: ignore[arg-type]
    for name in ("a.parquet", "a.txt.zst"):
        (tmp_path / name).write_bytes(np.zeros(9, np.uint8).tobytes())
        with pytest.raises(ValueError, match=rf"{name}, found none; pip install 'latticebpd\[data\]'"):
            list(read_records([tmp_path / name]))
