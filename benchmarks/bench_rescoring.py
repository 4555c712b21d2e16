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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fst
from benchmarks.common import err, options, recorded, run, signature, table

PS, KS, SLOTS, NODES = (1, 2, 4, 8, 16, 64, 256, 1024), (2, 4, 8, 16), (4, 8), (16, 64, 256)
MAX_P = 16
"""Of OpenFst."""
CORE, OPENFST, PATHS, TREE = "core", "OpenFst C++", "best paths", "tree"
REPEATS = 5
Key = tuple[str, str, str, int, int, int]
"""Case, method, search, slots, k, and paths or nodes."""
COLUMNS = ("case", "by", "search", "slots", "k", "size", "lattice", "us")


class Lattices(NamedTuple):
    tokens: np.ndarray  # [n, slots, k], columns by falling log-probability
    log_probs: np.ndarray
    contexts: np.ndarray  # [n, c], -1 pads on the left

    @classmethod
    def read(cls, path: Path, count: int) -> Lattices:
        with np.load(path) as file:
            order = np.argsort(-file["log_probs"][:count], axis=-1, kind="stable")
            tokens = np.take_along_axis(file["tokens"][:count], order, -1).astype(np.int32)
            log_probs = np.take_along_axis(file["log_probs"][:count], order, -1).astype(np.float64)
            return cls(tokens, log_probs, file["context"][:count].astype(np.int64))

    def cut(self, slots: int, k: int) -> Lattices:
        """The first slots and best k."""
        return Lattices(*(np.ascontiguousarray(each[:, :slots, :k]) for each in self[:2]), self.contexts)

    def context(self, i: int) -> list[int]:
        return [int(token) for token in self.contexts[i] if token >= 0]


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


def openfst(command: Sequence[object], lattices: Lattices) -> tuple[np.ndarray, list[np.ndarray]]:
    """Microseconds ``[n]``, and the p best scores of each lattice."""
    lines = []
    for i, (tokens, log_probs) in enumerate(zip(lattices.tokens, lattices.log_probs, strict=True)):
        context = lattices.context(i)[-3:]
        lines.append(f"{len(tokens)} {len(context)} {' '.join(map(str, context))}")
        for slot in zip(tokens.tolist(), log_probs.tolist(), strict=True):
            arcs = [f"{token} {log_prob:.9g}" for token, log_prob in zip(*slot, strict=True)]
            lines.append(f"{len(arcs)} {' '.join(arcs)}")
    done = subprocess.run(list(map(str, command)), input="\n".join(lines), capture_output=True, text=True, check=True)
    found = [np.array(line.split(), float) for line in done.stdout.splitlines()]
    return np.array([each[0] for each in found]), [each[1:] for each in found]


def measured(given: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every lattice, method and search."""
    rows: list[dict[str, Any]] = []
    signature(count=given.count)
    with tempfile.TemporaryDirectory() as scratch:
        binary = compiled(Path(scratch))
        for case, lm_path, path in given.case:
            lm, whole = fst.NgramModel.load(lm_path), Lattices.read(Path(path), given.count)

            def add(times: np.ndarray, *key: Any, case: str = case) -> None:
                rows.extend(dict(zip(COLUMNS, (case, *key, i, each), strict=True)) for i, each in enumerate(times))

            for slots, k, p in dict.fromkeys(
                [(8, 16, p) for p in PS] + [(slots, k, 16) for slots in SLOTS for k in KS]
            ):
                cut = whole.cut(slots, k)

                def nbest(i: int, of: Lattices = cut, p: int = p, lm: fst.NgramModel = lm) -> Any:
                    return fst.nbest_paths(of.tokens[i], of.log_probs[i], lm, p, 1.0, of.context(i))

                add(microseconds(nbest, len(cut.tokens)), CORE, PATHS, slots, k, p)
                if binary is not None and p <= MAX_P:
                    times, scores = openfst([binary, lm_path, p, 3], cut)
                    for i, found in enumerate(scores):
                        ours, theirs = nbest(i)[1], found - lm.score(cut.context(i)[-3:])
                        if ours.shape != theirs.shape or not np.allclose(ours, theirs, atol=1e-4):
                            raise ValueError(f"{case}, lattice {i}: expected OpenFst's {theirs[:3]}, got {ours[:3]}")
                    add(times, OPENFST, PATHS, slots, k, p)
            for nodes in NODES:

                def tree(i: int, nodes: int = nodes, lm: fst.NgramModel = lm, of: Lattices = whole) -> Any:
                    return fst.best_first_tree(of.tokens[i], of.log_probs[i], lm, nodes, 1.0, of.context(i))

                add(microseconds(tree, len(whole.tokens)), CORE, TREE, 8, 16, nodes)
    return rows


def tables(rows: Sequence[Mapping[str, str]]) -> list[tuple[tuple[str, ...], list[list[str]]]]:
    """Heads and lines: both methods on 8 x 16, by p, by slots and k."""
    times: dict[Key, list[float]] = {}
    for row in rows:
        key = (row["case"], row["by"], row["search"], int(row["slots"]), int(row["k"]), int(row["size"]))
        times.setdefault(key, []).append(float(row["us"]))
    cases, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("case", "by"))

    def median(*key: Any, spread: bool = False) -> str:
        if key not in times:
            return ""
        high = f" ({np.percentile(times[key], 95):,.1f})" if spread else ""
        return f"{np.median(times[key]):,.1f}{high}"

    def ratio(case: str) -> str:
        ours, theirs = (np.median(times[case, by, PATHS, 8, 16, 16]) for by in (CORE, OPENFST))
        return f"**{theirs / ours:.1f}**"

    both = [[f"16 best paths, {by}", *(median(c, by, PATHS, 8, 16, 16, spread=True) for c in cases)] for by in methods]
    if OPENFST in methods:
        both.append(["... over the core", *map(ratio, cases)])
    both += [
        [f"tree of {n} nodes, core", *(median(c, CORE, TREE, 8, 16, n, spread=True) for c in cases)] for n in NODES
    ]
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
