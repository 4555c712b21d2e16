"""Many lattices in one pass: speed and peak memory of `latticebpd oracle` and `compare`, by the number of lattices and
of files.

    python -m benchmarks.bench_analysis -o benchmarks/results/analysis.csv
    python -m benchmarks.bench_analysis --table benchmarks/results/analysis.csv

Lattices are synthetic: 9 slots x 16 arcs, tokens of a vocabulary of 8,192, falling log-probabilities, texts of 128
positions; the right token of a slot is its r-th arc with probability 0.36 * 0.6^r, or is missing.  They are written as
a directory of shards, then read by the commands, each a process of its own.  The counts of the same lattices must not
depend on the number of files, or the run ends with an error.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import options, recorded, run, signature, table, usage
from latticebpd.drafters.bundled import LM
from latticebpd.lattices.lattice_set import LatticeSet

SLOTS, ARCS, VOCABULARY, TEXT = 9, 16, 8192, 128
RANKS = 0.36 * 0.6 ** np.arange(ARCS)
"""Probabilities that the arc of a rank is right."""
SETS = ((TEXT, 1), (2**17, 4), (2**19, 4), (2**19, 128))
"""Lattices and files: the first shows what starting a command takes."""
COMMANDS = {
    "`oracle`, 5 widths × 3 numbers of heads": ("oracle", "--k", "1,2,4,8,16", "--heads", "3,6,9"),
    "`compare`, 16-best and 64-tree": ("compare", "-s", "16-best", "-s", "64-tree", "--lm", LM, "--alpha", "1"),
}
HEAD = ("command", "lattices", "files", "seconds", "lattices/s", "peak MB")


def write(directory: Path, count: int, files: int) -> None:
    """``count`` lattices in ``files`` shards; the same lattices whatever the number of shards."""
    edges = np.linspace(0, count // TEXT, files + 1).astype(int)
    directory.mkdir(parents=True)
    for number, (first, last) in enumerate(pairwise(edges.tolist())):
        arrays = [np.concatenate(arrays) for arrays in zip(*map(text, range(first, last)), strict=True)]
        LatticeSet(*arrays, sequence=np.repeat(np.arange(last - first), TEXT)).save(directory / f"{number:05d}.npz")


def text(index: int) -> tuple[np.ndarray, ...]:
    """Tokens, log-probabilities, continuations and contexts of one text's lattices."""
    rng = np.random.default_rng((0, index))
    words = rng.integers(0, VOCABULARY, TEXT + SLOTS + 1).astype(np.int32)
    at = np.arange(TEXT)[:, None]
    continuation = words[at + 1 + np.arange(SLOTS)]
    # A stride that is odd, and so prime to the vocabulary's size, keeps the tokens of a slot apart.
    stride = 2 * rng.integers(0, VOCABULARY // 2, (TEXT, SLOTS, 1)) + 1
    rank = rng.choice(ARCS + 1, (TEXT, SLOTS), p=np.append(RANKS, 1 - RANKS.sum()))
    offset = np.arange(ARCS) - rank[:, :, None]
    missing = np.where(rank[:, :, None] < ARCS, 0, 2 * ARCS)
    tokens = (continuation[:, :, None] + stride * (offset + missing)) % VOCABULARY
    log_probs = np.cumsum(-rng.exponential(0.6, (TEXT, SLOTS, ARCS)), axis=2) - 0.5
    context = words[np.maximum(at + np.arange(-3, 1), 0)]
    return tokens.astype(np.int32), log_probs.astype(np.float32), continuation, context


def measured(sets: Sequence[tuple[int, int]] = SETS) -> list[dict[str, Any]]:
    rows, counts = list[dict[str, Any]](), dict[tuple[str, int], bytes]()
    signature(numpy=np.__version__, lattices=f"{SLOTS} x {ARCS}")
    with tempfile.TemporaryDirectory() as scratch:
        for lattices, files in sets:
            directory, tally = Path(scratch, f"{lattices}-in-{files}"), Path(scratch, "tally")
            write(directory, lattices, files)
            for name, words in COMMANDS.items():
                used = usage([sys.executable, "-m", "latticebpd", *words, directory, "--tally", tally])
                if counts.setdefault((name, lattices), tally.read_bytes()) != tally.read_bytes():
                    raise ValueError(f"{name}: expected the same counts of {files} files as of fewer, got others")
                rows.append({"command": name, "lattices": lattices, "files": files, **used})
    return rows


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The table's lines, command by command."""
    lines = []
    for row in sorted(rows, key=lambda row: [*COMMANDS].index(row["command"])):
        lattices, seconds = int(row["lattices"]), float(row["seconds"])
        cells = (f"{seconds:.1f}", f"{lattices / seconds:,.0f}", f"{float(row['mb']):.0f}")
        lines.append([row["command"], f"{lattices:,}", row["files"], *cells])
    return lines


def main() -> None:
    table("", HEAD, lines_of(recorded(options(__doc__, whole=True), lambda _: measured())))


if __name__ == "__main__":
    run(main)
