"""Rescoring side by side: the compiled core, and OpenFst in C++ (`phi_compose.cpp`).

    python -m benchmarks.bench_rescoring --case NAME lm.fst lattices.npz [--case ...] -o rows.csv
    python -m benchmarks.bench_rescoring --table benchmarks/results/rescoring.csv

Both must give the same p best scores, or the run ends with an error. Times are microseconds; each is the least of the
repetitions for one lattice, and a table gives the median over lattices (95th percentile). The grids are those of Tables
12 and 13 of Kim et al. 2024: p best paths of 8 x 16, and slots x k. Without OpenFst's headers the core runs alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import fst
from benchmarks.common import columns, err, grouped, options, recorded, run, signature, table
from benchmarks.smollm2.trees import narrowed
from latticebpd.lattices.lattice_set import LatticeSet

PS, KS, SLOTS, NODES = (1, 2, 4, 8, 16, 64, 256, 1024), (2, 4, 8, 16), (4, 8), (16, 64, 256)
MAX_P = 16
"""Of OpenFst."""
CORE, OPENFST, PATHS, TREE = "core", "OpenFst C++", "best paths", "tree"
REPEATS = 15
COLUMNS = ("case", "by", "search", "slots", "k", "size", "lattice", "us")
"""Case, method, search, slots, k, and paths or nodes; a lattice, and its time."""


def cut(lattices: LatticeSet, slots: int, k: int) -> LatticeSet:
    """The first slots and best k, columns by falling log-probability. Neither search reads transitions."""
    best = narrowed(replace(lattices, transitions=None), k)
    arrays = (np.ascontiguousarray(each[:, :slots]) for each in (best.tokens, best.log_probs, best.continuation))
    tokens, log_probs, continuation = arrays
    return replace(best, tokens=tokens, log_probs=log_probs.astype(float), continuation=continuation, entropy=None)


def microseconds(work: Callable[[int], object], n: int) -> np.ndarray:
    """[n]: the least time of work(i) over the repetitions; these go round all lattices, so that none stays in cache."""
    best = np.full(n, np.inf)
    for _ in range(REPEATS):
        for i in range(n):
            begin = time.perf_counter()
            work(i)
            best[i] = min(best[i], time.perf_counter() - begin)
    return best * 1e6


def compiled(directory: Path) -> Path | None:
    """`phi_compose.cpp`'s program, where there are a compiler and OpenFst's headers."""
    binary, source = directory / "phi_compose", Path(__file__).with_name("phi_compose.cpp")
    command = [shutil.which("g++") or "false", "-O3", "-std=c++17", str(source), "-lfst", "-ldl", "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no g++")
        err.print(f"Without OpenFst: {first}")
        return None
    return binary


def openfst(command: Sequence[object], lattices: LatticeSet) -> tuple[np.ndarray, list[np.ndarray]]:
    """Microseconds ``[n]``, and the p best scores of each lattice."""
    lines = []
    for i, (tokens, log_probs) in enumerate(zip(lattices.tokens, lattices.log_probs, strict=True)):
        context = lattices.context_of(i)[-3:]
        lines.append(f"{len(tokens)} {len(context)} {' '.join(map(str, context))}")
        for slot in zip(tokens.tolist(), log_probs.tolist(), strict=True):
            arcs = [f"{token} {log_prob:.9g}" for token, log_prob in zip(*slot, strict=True)]
            lines.append(f"{len(arcs)} {' '.join(arcs)}")
    done = subprocess.run(list(map(str, command)), input="\n".join(lines), capture_output=True, text=True, check=True)
    scores = [np.array(line.split(), float) for line in done.stdout.splitlines()]
    return np.array([each[0] for each in scores]), [each[1:] for each in scores]


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every lattice, method and search."""
    rows: list[dict[str, Any]] = []
    signature(count=args.count)
    with tempfile.TemporaryDirectory() as scratch:
        binary = compiled(Path(scratch))
        for case, lm_path, path in args.case:
            lm, every = fst.NgramModel.load(lm_path), LatticeSet.load(path)
            lattices = cut(every.take(np.arange(len(every))[: args.count]), *every.tokens.shape[1:])

            def add(times: np.ndarray, *key: Any, case: str = case) -> None:
                rows.extend(dict(zip(COLUMNS, (case, *key, i, each), strict=True)) for i, each in enumerate(times))

            grid = [(8, 16, p) for p in PS] + [(slots, k, 16) for slots in SLOTS for k in KS]
            for slots, k, p in dict.fromkeys(grid):
                short = cut(lattices, slots, k)

                def nbest(i: int, of: LatticeSet = short, p: int = p, lm: fst.NgramModel = lm) -> Any:
                    return fst.nbest_paths(of.tokens[i], of.log_probs[i], lm, p, 1.0, of.context_of(i))

                add(microseconds(nbest, len(short)), CORE, PATHS, slots, k, p)
                if binary is not None and p <= MAX_P:
                    times, scores = openfst([binary, lm_path, p, REPEATS], short)
                    for i, expected in enumerate(scores):
                        ours, theirs = nbest(i)[1], expected - lm.score(short.context_of(i)[-3:])
                        if ours.shape != theirs.shape or not np.allclose(ours, theirs, atol=1e-4):
                            raise ValueError(f"{case}, lattice {i}: expected OpenFst's {theirs[:3]}, got {ours[:3]}")
                    add(times, OPENFST, PATHS, slots, k, p)
            for nodes in NODES:

                def tree(i: int, nodes: int = nodes, lm: fst.NgramModel = lm, of: LatticeSet = lattices) -> Any:
                    return fst.best_first_tree(of.tokens[i], of.log_probs[i], lm, nodes, 1.0, of.context_of(i))

                add(microseconds(tree, len(lattices)), CORE, TREE, 8, 16, nodes)
    return rows


def tables(rows: Sequence[Mapping[str, str]]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Heads and lines: both methods on 8 x 16, by p, by slots and k."""
    times = {key: columns(own, "us")[0] for key, own in grouped(rows, *COLUMNS[:6]).items()}
    cases, methods = (list(grouped(rows, name)) for name in ("case", "by"))

    def median(case: str, by: str, search: str, *sizes: int, spread: bool = False) -> str:
        own = times.get((case, by, search, *map(str, sizes)))
        if own is None:
            return ""
        return f"{np.median(own):,.1f}" + (f" ({np.percentile(own, 95):,.1f})" if spread else "")

    def ratio(case: str) -> str:
        ours, theirs = (np.median(times[case, by, PATHS, "8", "16", "16"]) for by in (CORE, OPENFST))
        return f"{theirs / ours:.1f}"

    both = [[f"16 best paths, {by}", *(median(c, by, PATHS, 8, 16, 16, spread=True) for c in cases)] for by in methods]
    if OPENFST in methods:
        both.append(["... over the core", *map(ratio, cases)])
    for nodes in NODES:
        times_of_trees = (median(case, CORE, TREE, 8, 16, nodes, spread=True) for case in cases)
        both.append([f"tree of {nodes} nodes, core", *times_of_trees])
    by_p = [[f"{case}, {by}", *(median(case, by, PATHS, 8, 16, p) for p in PS)] for case in cases for by in methods]
    by_size = [
        [f"{case}, {slots} slots, {by}", *(median(case, by, PATHS, slots, k, 16) for k in KS)]
        for case in cases
        for slots in SLOTS
        for by in methods
    ]
    return [
        (("8 × 16, median µs (p95)", *cases), both),
        (("p best paths of 8 × 16, median µs", *(f"p = {p}" for p in PS)), by_p),
        (("16 best paths, median µs", *(f"k = {k}" for k in KS)), by_size),
    ]


def main() -> None:
    parser = options(__doc__, whole=True)
    about = "name, OpenFst const file as NgramModel.save writes it, lattices (.npz)"
    parser.add_argument("--case", nargs=3, action="append", default=[], metavar=("NAME", "LM", "FILE"), help=about)
    parser.add_argument("--count", type=int, default=60, help="lattices of a file to use")
    for head, lines in tables(recorded(parser, measured)):
        table("", head, lines)


if __name__ == "__main__":
    run(main)
