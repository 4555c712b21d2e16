"""What the benchmarks share: options, resumable stages, files, bootstrap intervals, tables, programs that are timed."""

from __future__ import annotations

import argparse
import csv
import json
import lzma
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice, permutations, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from rich.console import Console

import latticebpd as package
from fst.files import replacing
from latticebpd.checks import expect
from latticebpd.machine import machine_settings, processor
from latticebpd.models.engine.engine_model import file_hash

RESAMPLES = 2000
NOTE, MADE_BY = "settings.json", "made by"
DRAFTING = (
    "model.gguf",
    "model.safetensors",
    "latticebpd/heads.safetensors",
    "lm.fst",
    "lm.fst.alpha.json",
    "lm.fst.calibration.json",
)
ENDS = ("", " low", " high")
"""Suffixes of a value's and its interval's columns in CSV files."""
err = Console(stderr=True)
Interval = tuple[float, float, float]


# ---------------------------------------------------------------- options and stages
def options(doc: str | None, whole: bool = False) -> argparse.ArgumentParser:
    """A parser whose help is the first paragraph of a module's docstring, with defaults, or the ``whole`` docstring."""
    form = argparse.RawDescriptionHelpFormatter if whole else argparse.ArgumentDefaultsHelpFormatter
    return argparse.ArgumentParser(description=doc if whole else (doc or "").split("\n\n")[0], formatter_class=form)


def named(text: str) -> tuple[str, str]:
    """``NAME=VALUE``, for an option."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def program() -> str:
    """The module that runs, as ``python -m`` takes it."""
    spec = sys.modules["__main__"].__spec__
    return spec.name if spec else Path(sys.argv[0]).stem


def run(main: Callable[[], object]) -> None:
    """Call a program's ``main``; an expected error is one line."""
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"{program().rpartition('.')[2]}: error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)


def set_up(threads: int = 1) -> None:
    """Threads of PyTorch, and no messages or progress bars of `transformers`."""
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


def latticebpd(*arguments: object) -> None:
    """Run a command.  Strings are split at spaces, paths are not.

    Its output goes to standard error, since a benchmark prints its tables alone.
    """
    words = [word for each in arguments for word in (each.split() if isinstance(each, str) else [str(each)])]
    subprocess.run([sys.executable, "-m", "latticebpd", *words], check=True, stdout=2)


def slug(name: str) -> str:
    """A name as a part of a file's."""
    return name.replace(",", "").replace(" ", "-")


def stage(result: Path, make: Callable[[], object]) -> Path:
    """The result, made if it is missing."""
    if not result.exists():
        print(f"-- {result}", file=sys.stderr, flush=True)
        result.parent.mkdir(parents=True, exist_ok=True)
        make()
    return result


def stored(path: Path, make: Callable[[], Any]) -> Any:
    """A value from its JSON file, computed and written first if that is missing."""
    return read_json(stage(path, lambda: write_json(path, make())))


def claim(directory: Path, arguments: argparse.Namespace, names: str) -> None:
    """Note the options that a directory's results are made with; ValueError where it was begun with others."""
    settings = {name: str(getattr(arguments, name)) for name in names.split()}
    known = stored(directory / NOTE, lambda: settings)
    for name, value in settings.items():
        if known.get(name) != value:
            problem = f"holds results with {name} {known.get(name)}, asked for is {value}"
            raise ValueError(f"{directory}: {problem}; choose another directory")


# ---------------------------------------------------------------- files
def write_json(path: Path, value: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read_lines(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """The first records of a JSONL file, plain or compressed by xz."""
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in islice(file, limit)]


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]], digits: int = 4) -> None:
    """Numbers with so many digits after the decimal point."""
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            short = (round(value, digits) if isinstance(value, float) else value for value in row.values())
            writer.writerow(dict(zip(row, short, strict=True)))


def made_by(folder: Path | None = None) -> str:
    """The commit, with ``+`` where code differs from it, and one hash of the files of a model's folder that decide what
    is drafted: the model, its heads, its n-gram model and what was fitted with that."""
    git = ["git", "-C", str(Path(package.__file__).parents[1])]
    try:
        commit, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno", "*.py", "*.[ch]pp"])
        )
    except (OSError, subprocess.CalledProcessError):
        commit, changes = f"version {package.__version__}", ""
    files = [] if folder is None else [file for name in DRAFTING if (file := folder / name).exists()]
    return f"{commit.strip()}{'+' * bool(changes)}{f' {file_hash(files)}' if files else ''}"


def stamped(rows: Iterable[Mapping[str, Any]], folder: Path | None = None) -> list[dict[str, Any]]:
    """Rows that say what they are `made_by`."""
    origin = made_by(folder)
    return [{**row, MADE_BY: origin} for row in rows]


def resumed(
    path: Path,
    items: Iterable[Any],
    name: Callable[[Any], str],
    make: Callable[[Any], Sequence[Mapping[str, Any]]],
    folder: Path | None = None,
) -> list[dict[str, Any]]:
    """Stamped rows of each item, kept by its ``name`` in a file of JSON lines: a run that was killed goes on."""
    known = {line["item"]: line["rows"] for line in (read_lines(path) if path.exists() else [])}
    path.parent.mkdir(parents=True, exist_ok=True)
    rows, origin = list[dict[str, Any]](), made_by(folder)
    for item in items:
        if (key := name(item)) not in known:
            known[key] = [{**row, MADE_BY: origin} for row in make(item)]
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"item": key, "rows": known[key]}) + "\n")
        rows += known[key]
    return rows


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def recorded(
    parser: argparse.ArgumentParser, measure: Callable[[argparse.Namespace], Sequence[Mapping[str, Any]]]
) -> list[dict[str, str]]:
    """Rows of a CSV file: what ``measure`` makes of the parser's options, written first, or those of another run."""
    parser.add_argument("-o", "--output", type=Path, help="CSV file of what is measured")
    parser.add_argument("--table", type=Path, help="print the tables of such a file, and measure nothing")
    args = parser.parse_args()
    if args.table is None:
        if args.output is None:
            parser.error("expected -o, or --table")
        write_csv(args.output, stamped(measure(args)))
    return read_csv(args.table or args.output)


def by_kind(items: Iterable[Any], kind: Callable[[Any], Any]) -> dict[Any, list[Any]]:
    """Items by their kind, in the order of each kind's first item."""
    kinds = dict[Any, list[Any]]()
    for item in items:
        kinds.setdefault(kind(item), []).append(item)
    return kinds


def grouped(rows: Iterable[Mapping[str, Any]], *names: str) -> dict[Any, list[Mapping[str, Any]]]:
    """Rows by their value of a column, or by their values of several."""
    return by_kind(rows, itemgetter(*names))


def in_turn(items: Iterable[Any], kind: Callable[[Any], object]) -> list[Any]:
    """Items in the order of first ones of every kind, second ones and so on."""
    return [each for rank in zip_longest(*by_kind(items, kind).values()) for each in rank if each is not None]


def columns(rows: Sequence[Mapping[str, Any]], *names: str) -> np.ndarray:
    """``[names, rows]``, numbers; NaN where a cell is empty."""
    return np.array([[float(row[name] or "nan") for row in rows] for name in names])


# ---------------------------------------------------------------- intervals
def interval(measure: Callable[[np.ndarray], Any], count: int) -> Interval:
    """A measure of all texts, and its bootstrap interval of 95 %: texts are resampled, the same ones for every system.

    measure: ``[..., texts]`` numbers of texts -> ``[...]``.
    """
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))
    low, high = np.quantile(measure(drawn), [0.025, 0.975])
    return float(measure(np.arange(count))), float(low), float(high)


def pooled(tokens: np.ndarray, calls: np.ndarray, other: tuple[np.ndarray, np.ndarray] | None = None) -> Interval:
    """Tokens per call over all texts ``[texts]``, low and high; or the gain over another system's, as a share."""

    def measure(drawn: np.ndarray) -> Any:
        value = tokens[drawn].sum(axis=-1) / calls[drawn].sum(axis=-1).clip(min=1)
        if other is None:
            return value
        return value / (other[0][drawn].sum(axis=-1) / other[1][drawn].sum(axis=-1).clip(min=1)) - 1

    return interval(measure, len(calls))


def permutation_p(one: np.ndarray, other: np.ndarray) -> float:
    """The share of all orders of ``other [n]`` whose correlation with ``one [n]`` is at least as strong as their own,
    in either direction: how often as few points agree so by chance. Of at most nine points."""
    expect(one.shape == other.shape and 2 <= len(one) <= 9, "two lists of one length, 2 to 9", f"{one.shape}")
    orders = np.array([*permutations(range(len(other)))])
    strengths = np.abs((one - one.mean()) @ (other - other.mean())[orders].T)
    return float((strengths >= strengths[0] * (1 - 1e-9)).mean())


def with_ends(name: str, values: Sequence[float]) -> dict[str, float]:
    """A value and its interval as columns of a CSV file."""
    return {f"{name}{end}": value for end, value in zip(ENDS, values, strict=True)}


def with_interval(value: float, low: float, high: float, places: int = 2) -> str:
    """A value and its interval, as tables have them."""
    return f"{value:.{places}f} ({low:.{places}f} to {high:.{places}f})"


def interval_of(row: Mapping[str, Any], name: str) -> Interval:
    """A value and its interval, from such columns."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ENDS)
    return value, low, high


def spread(row: Mapping[str, Any], name: str, places: int = 2) -> str:
    """A value and its interval from such columns, as tables have them."""
    return with_interval(*interval_of(row, name), places=places)


# ---------------------------------------------------------------- tables and signatures
def markdown(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown; floats with two digits after the decimal point, None as an empty cell."""

    def cell(value: Any) -> str:
        return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    return "\n".join(f"| {' | '.join(map(cell, line))} |" for line in (head, ["---"] * len(head), *rows))


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    print(f"\n{title}\n" if title else "", markdown(head, rows), sep="\n", flush=True)


def signature(**about: Any) -> dict[str, Any]:
    """What the numbers depend on: command, machine and versions; printed as one line."""
    versions = {
        "command": shlex.join(["python", "-m", program(), *sys.argv[1:]]),
        "processor": processor(),
        **machine_settings(),
        **about,
        "latticebpd": package.__version__,
        "commit": made_by(),
        "python": platform.python_version(),
    }
    print(" | ".join(f"{name} {value}" for name, value in versions.items()), flush=True)
    return versions


# ---------------------------------------------------------------- programs
LAUNCHER = """
import json, os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10]))
"""
"""Starts a program from a small process: a child's peak memory begins with that of the process that started it."""


def usage(command: Sequence[object], stdin: Path | None = None) -> dict[str, float]:
    """A program's seconds by the clock and of all cores, and the most MB that it ever had; ValueError if it fails."""
    words, start = [*map(str, command)], time.perf_counter()
    with open(stdin or os.devnull, "rb") as file:
        launched = [sys.executable, "-c", LAUNCHER, *words]
        done = subprocess.run(launched, stdin=file, capture_output=True, text=True, check=True)
    status, cpu, memory = json.loads(done.stdout)
    if status:
        raise ValueError(f"{' '.join(words)}: failed\n{done.stderr}")
    return {"seconds": time.perf_counter() - start, "cpu": cpu, "mb": memory / 1e6}
