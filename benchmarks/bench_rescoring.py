"""Rescoring side by side: the compiled core, OpenFst in C++, and a layered dynamic programme.

    python -m benchmarks.bench_rescoring --lm lm.fst --lattices flat.npz --lattices trained.npz

Every method must give the same p best scores, or the run ends with an error. Times are microseconds; each is the
least of the repetitions for one lattice, and a table gives the median over lattices (p95 where it says so). The grids
are those of Tables 12 and 13 of Kim et al. 2024: p = 1..16 on 8 x 16, and slots x k.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fst
from benchmarks.common import options, signature, table

PS, KS, SLOTS, NODES = (1, 2, 4, 8, 16, 64, 256, 1024), (2, 4, 8, 16), (4, 8, 16), (16, 64, 256)


class Lattices(NamedTuple):
    name: str
    tokens: np.ndarray  # [n, slots, k], columns by falling log-probability
    log_probs: np.ndarray
    contexts: np.ndarray  # [n, c], -1 pads on the left

    def cut(self, slots: int, k: int) -> Lattices:
        """The first slots and best k; where more slots are wanted than there are, lattices are joined end to end."""
        joined = -(-slots // self.tokens.shape[1])
        n = len(self.tokens) // joined
        arrays = (a[: n * joined].reshape(n, -1, a.shape[-1])[:, :slots, :k] for a in (self.tokens, self.log_probs))
        return Lattices(self.name, *map(np.ascontiguousarray, arrays), self.contexts[: n * joined : joined])

    def first(self, n: int) -> Lattices:
        return Lattices(self.name, self.tokens[:n], self.log_probs[:n], self.contexts[:n])

    def context(self, i: int) -> list[int]:
        return [int(token) for token in self.contexts[i] if token >= 0]


def read_lattices(path: Path, count: int) -> Lattices:
    with np.load(path) as file:
        order = np.argsort(-file["log_probs"][:count], axis=-1, kind="stable")
        tokens = np.take_along_axis(file["tokens"][:count], order, -1).astype(np.int32)
        log_probs = np.take_along_axis(file["log_probs"][:count], order, -1).astype(np.float64)
        return Lattices(path.stem, tokens, log_probs, file["context"][:count].astype(np.int64))


def microseconds(work: Callable[[int], object], n: int, repeats: int) -> np.ndarray:
    """[n]: the least time of work(i) over the repetitions; these go round all lattices, so that none stays in cache."""
    best = np.full(n, np.inf)
    for _ in range(repeats):
        for i in range(n):
            begin = time.perf_counter()
            work(i)
            best[i] = min(best[i], time.perf_counter() - begin)
    return best * 1e6


def check(name: str, i: int, scores: np.ndarray, expected: np.ndarray) -> None:
    if scores.shape != expected.shape or not np.allclose(scores, expected, atol=1e-4):
        sys.exit(f"{name} and the core differ on lattice {i}: {scores[:3]}... and {expected[:3]}...")


def compiled(directory: Path) -> Path | None:
    """`phi_compose.cpp`'s program, where there are a compiler and OpenFst's headers."""
    binary, source = directory / "phi_compose", Path(__file__).with_name("phi_compose.cpp")
    command = [shutil.which("g++") or "false", "-O3", "-std=c++17", str(source), "-lfst", "-ldl", "-o", str(binary)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        first = next((line for line in done.stderr.splitlines() if "error" in line), "no g++")
        print(f"OpenFst C++ is not run: {first} (apt-get install g++ libfst-dev)")
    return None if done.returncode else binary


def openfst(command: list[Any], lattices: Lattices) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Times [n, 3] of compose, shortest path and layered programme, and the scores of the two methods.

    command: program, n-gram model, p, repetitions.
    """
    lines = []
    for i in range(len(lattices.tokens)):
        context = lattices.context(i)[-3:]
        lines.append(f"{lattices.tokens.shape[1]} {len(context)} {' '.join(map(str, context))}")
        for tokens, log_probs in zip(lattices.tokens[i].tolist(), lattices.log_probs[i].tolist(), strict=True):
            arcs = [f"{token} {score!r}" for token, score in zip(tokens, log_probs, strict=True) if token >= 0]
            lines.append(f"{len(arcs)} {' '.join(arcs)}")
    done = subprocess.run(list(map(str, command)), input="\n".join(lines), capture_output=True, text=True, check=True)
    columns = zip(*(line.split("|") for line in done.stdout.splitlines()), strict=True)
    times, best, layered = ([np.array(line.split(), float) for line in column] for column in columns)
    return np.array(times), best, layered


def bench(lm: fst.NgramModel, lm_path: Path, lattices: Lattices, binary: Path | None, args: argparse.Namespace) -> None:
    n, few = len(lattices.tokens), lattices.first(args.slow_count)
    print(f"\n## {lattices.name}: {n} lattices, slots x k = {lattices.tokens.shape[1]} x {lattices.tokens.shape[2]}")
    mass = np.exp(lattices.log_probs)
    print(f"Mean probability of the best arc {mass.max(-1).mean():.3f}, of all arcs {mass.sum(-1).mean():.3f}.")

    def nbest(of: Lattices, p: int) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        return lambda i: fst.nbest_paths(of.tokens[i], of.log_probs[i], lm, p, 1.0, of.context(i))

    def tree(nodes: int) -> Callable[[int], object]:
        tokens, scores = lattices.tokens, lattices.log_probs
        return lambda i: fst.best_first_tree(tokens[i], scores[i], lm, nodes, 1.0, lattices.context(i))

    def median(of: Lattices, p: int) -> str:
        return f"{np.median(microseconds(nbest(of, p), len(of.tokens), args.repeats)):,.1f}"

    def openfst_median(of: Lattices, p: int) -> str:
        return f"{np.median(openfst([binary, lm_path, p, 2], of.first(20))[0][:, :2].sum(1)):,.1f}"

    core = microseconds(nbest(lattices, 16), n, args.repeats)
    reference = [nbest(few, 16)(i)[1] for i in range(len(few.tokens))]
    found = {"core, one call": core}
    if binary is not None:
        times, best, layered = openfst([binary, lm_path, 16, 3], few)
        for i, expected in enumerate(reference):
            check("OpenFst's phi matcher", i, best[i] - lm.score(few.context(i)[-3:]), expected)
            check("the layered programme", i, layered[i], expected)
        found["OpenFst C++, phi matcher: compose + shortest path"] = times[:, :2].sum(1)
        found |= {"... of it compose": times[:, 0], "C++ layered programme": times[:, 2]}

    def cells(times: np.ndarray) -> list[str]:
        return [f"{np.median(times):,.1f}", f"{np.percentile(times, 95):,.1f}"]

    ratios = {name: np.median(each) / np.median(core[: len(each)]) for name, each in found.items()}
    head = ("16-best, 8 x 16", "median us", "p95 us", "times the core's median")
    table("", head, [[name, *cells(each), f"{ratios[name]:.1f}"] for name, each in found.items()])

    rows: list[list[Any]] = [["core, median us", *(median(lattices, p) for p in PS)]]
    if binary is not None:
        rows.append(["OpenFst C++, median us", *(openfst_median(few, p) if p <= 16 else "" for p in PS)])
    table("", ("p best of 8 x 16", *(f"p = {p}" for p in PS)), rows)

    rows = []
    for slots in SLOTS:
        rows.append([f"core, {slots} slots", *(median(lattices.cut(slots, k), 16) for k in KS)])
        if binary is not None:
            rows.append([f"OpenFst C++, {slots} slots", *(openfst_median(few.cut(slots, k), 16) for k in KS)])
    table("", ("16 best, median us", *(f"k = {k}" for k in KS)), rows)

    trees = {nodes: microseconds(tree(nodes), n, args.repeats) for nodes in NODES}
    rows = [[f"core, {nodes} nodes", *cells(each)] for nodes, each in trees.items()]
    if binary is not None:
        slow = np.median(times[:, :2].sum(1))
        rows = [
            [*row, f"{slow / np.median(trees[nodes][: len(times)]):.1f}"]
            for row, nodes in zip(rows, trees, strict=True)
        ]
    head = ("prefix tree of 8 x 16", "median us", "p95 us", "OpenFst C++ 16-best / this")
    table("", head[: len(rows[0])], rows)

    inputs, common, rows = (lattices.tokens, lattices.log_probs, lm), (1.0, lattices.contexts), []
    batches: dict[str, Callable[[int], Any]] = {
        "16 best": lambda threads: fst.nbest_paths_batch(*inputs, 16, *common, threads=threads),
        "64-node tree": lambda threads: fst.best_first_tree_batch(*inputs, 64, *common, threads=threads),
    }
    for name, batch in batches.items():
        seconds = [microseconds(lambda _, t=t, b=batch: b(t), 1, args.repeats)[0] * 1e-6 for t in args.threads]
        rows.append([name, *(f"{n / each:,.0f}" for each in seconds)])
        first, *others = [batch(threads) for threads in args.threads]
        if not all(np.array_equal(x, y) for other in others for x, y in zip(first, other, strict=True)):
            sys.exit(f"{name}: the result depends on the number of threads")
        for i, expected in enumerate(reference) if name == "16 best" else ():
            check("the batch", i, first[-2][i], expected)
    table("", (f"a batch of {n}, lattices a second", *(f"{threads} threads" for threads in args.threads)), rows)


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--lm", type=Path, required=True, help="an OpenFst const file, as NgramModel.save writes it")
    about = "lattice file (.npz); may come several times"
    parser.add_argument("--lattices", type=Path, action="append", required=True, help=about)
    parser.add_argument("--count", type=int, default=300, help="lattices of a file to use")
    parser.add_argument("--slow-count", type=int, default=40, help="lattices for the slow methods")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the batches")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        begin = time.perf_counter()
        lm = fst.NgramModel.load(args.lm)
        milliseconds = 1e3 * (time.perf_counter() - begin)
        signature()
        print(f"{args.lm.name}: {sum(lm.num_ngrams):,} n-grams {lm.num_ngrams}, loaded in {milliseconds:.1f} ms")
        binary = compiled(Path(scratch))
        for path in args.lattices:
            bench(lm, args.lm, read_lattices(path, args.count), binary, args)


if __name__ == "__main__":
    main()
