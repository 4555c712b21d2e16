"""Rescoring side by side: the compiled core, OpenFst from Python and from C++, and a layered dynamic programme.

    python -m benchmarks.bench_rescoring --lm lm.fst --lattices flat.npz --lattices trained.npz
    python -m benchmarks.bench_rescoring --corpus tokens.npy --max-ngrams 1000000

The second form makes its own: a Katz 4-gram of the corpus, and lattices of eight *skip-gram heads* (head j predicts the
token j ahead from the current token alone, by counts on the first nine tenths of the corpus; contexts come from the last
tenth). Such heads are weak and their lattices flat: the hard case.

Every exact method must find the same p best scores, or the run ends with an error. Times are microseconds; each is the
least of the repetitions for one lattice, and a table gives the median over lattices (p95 where it says so). The grids are
those of Tables 12 and 13 of Kim et al. 2024: p = 1..16 on 8 x 16, and slots x k.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pynini
import pywrapfst

import fst
from fst.product import product

HEADS, K = 8, 16


class Lattices(NamedTuple):
    name: str
    tokens: np.ndarray  # [n, slots, k], columns by falling log-probability
    log_probs: np.ndarray
    contexts: np.ndarray  # [n, c], -1 pads on the left

    def cut(self, slots: int, k: int) -> Lattices:
        """The first slots and best k; where more slots are wanted than there are, lattices are joined end to end."""
        joined = -(-slots // self.tokens.shape[1])
        n = len(self.tokens) // joined
        tokens, log_probs = (
            a[: n * joined].reshape(n, -1, a.shape[-1])[:, :slots, :k] for a in (self.tokens, self.log_probs)
        )
        return Lattices(
            self.name,
            np.ascontiguousarray(tokens),
            np.ascontiguousarray(log_probs),
            self.contexts[: n * joined : joined],
        )

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


def skip_gram_lattices(corpus: np.ndarray, count: int) -> Lattices:
    corpus = corpus.astype(np.int64)
    split = len(corpus) * 9 // 10
    train, held = corpus[:split], corpus[split:]
    vocab = int(corpus.max()) + 1
    unigrams = np.bincount(train, minlength=vocab) / len(train)
    at = np.sort(np.random.default_rng(0).choice(len(held) - 40, count, replace=False)) + 20
    tokens, log_probs = np.empty((count, HEADS, K), np.int32), np.empty((count, HEADS, K))
    for head in range(HEADS):
        pairs = np.sort(train[: -head - 1] * vocab + train[head + 1 :])
        for i, last in enumerate(held[at - 1]):
            begin, end = np.searchsorted(pairs, [last * vocab, (last + 1) * vocab])
            seen = np.bincount(pairs[begin:end] - last * vocab, minlength=vocab)
            p = (seen + 50 * unigrams) / (seen.sum() + 50)
            tokens[i, head] = np.argsort(-p, kind="stable")[:K]
            log_probs[i, head] = np.log(p[tokens[i, head]])
    return Lattices("skip-gram", tokens, log_probs, np.stack([held[a - 8 : a] for a in at]))


def katz_model(corpus: np.ndarray, max_ngrams: int | None) -> fst.NgramModel:
    from lm_training.ngram.estimation import estimate

    return fst.NgramModel.from_table(estimate(corpus, 4, vocab_size=int(corpus.max()) + 1, max_ngrams=max_ngrams))


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


def path_scores(paths: pywrapfst.Fst | pynini.Fst) -> np.ndarray:
    """Scores of every path of an acyclic automaton, best first."""
    scores, stack = [], [(paths.start(), 0.0)]
    while stack:
        state, cost = stack.pop()
        if state < 0:
            continue
        if (final := float(paths.final(state))) != float("inf"):
            scores.append(-cost - final)
        stack += [(arc.nextstate, cost + float(arc.weight)) for arc in paths.arcs(state)]
    return np.sort(scores)[::-1]


class OpenFstProgram:
    """`phi_compose.cpp`, compiled where a compiler and OpenFst's headers are."""

    def __init__(self, scratch: Path) -> None:
        self.binary = scratch / "phi_compose"
        source = Path(__file__).with_name("phi_compose.cpp")
        compiler = shutil.which("g++")
        command = [compiler or "g++", "-O3", "-std=c++17", str(source), "-lfst", "-ldl", "-o", str(self.binary)]
        self.missing = None if compiler else "no g++"
        if compiler and (built := subprocess.run(command, capture_output=True, text=True)).returncode != 0:
            first = next((line for line in built.stderr.splitlines() if "error" in line), "it does not compile")
            self.missing = f"{first} (apt-get install libfst-dev)"

    def run(
        self, lm_path: Path, lattices: Lattices, p: int, repeats: int
    ) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """Times [n, 3] of compose, shortest path and layered programme, and the scores of the two methods."""
        lines = []
        for i in range(len(lattices.tokens)):
            context = lattices.context(i)[-3:]
            lines.append(f"{lattices.tokens.shape[1]} {len(context)} {' '.join(map(str, context))}")
            for tokens, log_probs in zip(lattices.tokens[i].tolist(), lattices.log_probs[i].tolist(), strict=True):
                columns = [
                    f"{token} {log_prob!r}" for token, log_prob in zip(tokens, log_probs, strict=True) if token >= 0
                ]
                lines.append(f"{len(columns)} {' '.join(columns)}")
        command = [str(self.binary), str(lm_path), str(p), str(repeats)]
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True)
        times, openfst, layered = zip(*(line.split("|") for line in done.stdout.splitlines()), strict=True)
        numbers = [np.array([[float(x) for x in line.split()] for line in times])]
        scores = [[np.array([float(x) for x in line.split()]) for line in lines] for lines in (openfst, layered)]
        return numbers[0], scores[0], scores[1]


def row(name: str, cells: list[float | str]) -> None:
    print(
        f"| {name} | " + " | ".join(cell if isinstance(cell, str) else f"{cell:,.1f}" for cell in cells) + " |",
        flush=True,
    )


def header(name: str, columns: list[str]) -> None:
    print(f"\n| {name} | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1), flush=True)


def bench(
    lm: fst.NgramModel, lm_path: Path, lattices: Lattices, program: OpenFstProgram, args: argparse.Namespace
) -> None:
    n = len(lattices.tokens)
    few = lattices.first(args.slow_count)
    print(f"\n## {lattices.name}: {n} lattices, slots x k = {lattices.tokens.shape[1]} x {lattices.tokens.shape[2]}")
    mass = np.exp(lattices.log_probs)
    print(f"Mean probability of the best column {mass.max(-1).mean():.3f}, of all columns {mass.sum(-1).mean():.3f}.")

    def nbest(of: Lattices, p: int) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
        return lambda i: fst.nbest_paths(of.tokens[i], of.log_probs[i], lm, p, 1.0, of.context(i))

    header("16-best, 8 x 16", ["median us", "p95 us", "times the core's median", "exact"])
    core = microseconds(nbest(lattices, 16), n, args.repeats)
    reference = [nbest(few, 16)(i)[1] for i in range(len(few.tokens))]

    def compare(name: str, times: np.ndarray, exact: str) -> None:
        ratio = np.median(times) / np.median(core[: len(times)])
        row(name, [float(np.median(times)), float(np.percentile(times, 95)), f"{ratio:.1f}", exact])

    compare("core, one call", core, "yes")
    compare(
        "core, no model",
        microseconds(lambda i: fst.nbest_paths(lattices.tokens[i], lattices.log_probs[i], None, 16), n, args.repeats),
        "",
    )

    if program.missing is None:
        times, openfst, layered = program.run(lm_path, few, 16, 3)
        for i, expected in enumerate(reference):
            check("OpenFst's phi matcher", i, openfst[i] - lm.score(few.context(i)[-3:]), expected)
            check("the layered programme", i, layered[i], expected)
        compare("OpenFst C++, phi matcher: compose + shortest path", times[:, 0] + times[:, 1], "yes")
        compare("... of it compose", times[:, 0], "")
        compare("C++ layered programme", times[:, 2], "yes")
    else:
        print(f"| OpenFst C++, phi matcher | not run: {program.missing} |")

    products = [
        product(few.tokens[i], few.log_probs[i], lm, 1.0, few.context(i)) for i in range(min(5, len(few.tokens)))
    ]
    for i, automaton in enumerate(products):
        check("pywrapfst", i, path_scores(pywrapfst.shortestpath(automaton, nshortest=16)), reference[i])
    compare(
        "pywrapfst, shortest path on the resolved product",
        microseconds(lambda i: pywrapfst.shortestpath(products[i], nshortest=16), len(products), 3),
        "yes",
    )
    epsilon = pynini.Fst.from_pywrapfst(pywrapfst.convert(pywrapfst.Fst.read(str(lm_path)), "vector"))
    acceptors = [
        pynini.Fst.from_pywrapfst(fst.lattice_to_fst(few.tokens[i], few.log_probs[i])) for i in range(len(few.tokens))
    ]
    for state in epsilon.states():
        epsilon.set_final(state, 0)

    def inexact(i: int) -> pynini.Fst:
        return pynini.shortestpath(pynini.compose(acceptors[i], epsilon), nshortest=16)

    epsilon_times = []
    for i in range(len(few.tokens)):
        epsilon.set_start(lm.core.state_of(few.context(i)))
        epsilon_times.append(microseconds(lambda _, i=i: inexact(i), 1, 2)[0])
    compare("pynini, epsilon backoff: compose + shortest path", np.array(epsilon_times), "no")

    header("p best of 8 x 16", [f"p = {p}" for p in (1, 2, 4, 8, 16, 64, 256, 1024)])
    row(
        "core, median us",
        [float(np.median(microseconds(nbest(lattices, p), n, args.repeats))) for p in (1, 2, 4, 8, 16, 64, 256, 1024)],
    )
    if program.missing is None:
        row(
            "OpenFst C++, median us",
            [float(np.median(program.run(lm_path, few.first(20), p, 2)[0][:, :2].sum(1))) for p in (1, 2, 4, 8, 16)],
        )

    header("16 best, median us", [f"k = {k}" for k in (2, 4, 8, 16)])
    for slots in (4, 8, 16):
        cells: list[float | str] = []
        for k in (2, 4, 8, 16):
            part = lattices.cut(slots, k)
            cells.append(float(np.median(microseconds(nbest(part, 16), len(part.tokens), args.repeats))))
        row(f"core, {slots} slots", cells)
        if program.missing is None:
            row(
                f"OpenFst C++, {slots} slots",
                [
                    float(np.median(program.run(lm_path, few.cut(slots, k).first(20), 16, 2)[0][:, :2].sum(1)))
                    for k in (2, 4, 8, 16)
                ],
            )

    columns = ["median us", "p95 us"]
    header("prefix tree of 8 x 16", [*columns, "OpenFst C++ 16-best / this"] if program.missing is None else columns)
    for num_nodes in (16, 64, 256):
        times_of_trees = microseconds(tree_of(lattices, lm, num_nodes), n, args.repeats)
        cells = [float(np.median(times_of_trees)), float(np.percentile(times_of_trees, 95))]
        if program.missing is None:
            cells.append(f"{np.median(times[:, :2].sum(1)) / np.median(times_of_trees[: len(times)]):.1f}")
        row(f"core, {num_nodes} nodes", cells)

    header(f"a batch of {n}, lattices a second", [f"{threads} threads" for threads in args.threads])
    paths, scores = [lattices.tokens, lattices.log_probs, lm], []
    for name, batch in (
        ("16 best", lambda threads: fst.nbest_paths_batch(*paths, 16, 1.0, lattices.contexts, threads=threads)),
        (
            "64-node tree",
            lambda threads: fst.best_first_tree_batch(*paths, 64, 1.0, lattices.contexts, threads=threads),
        ),
    ):
        row(
            name,
            [float(n / 1e-6 / microseconds(lambda _, t=t, b=batch: b(t), 1, args.repeats)[0]) for t in args.threads],
        )
        results = [batch(threads) for threads in args.threads]
        scores.append(results[0][-2])
        if not all(np.array_equal(x, y) for other in results[1:] for x, y in zip(results[0], other, strict=True)):
            sys.exit(f"{name}: the result depends on the number of threads")
    for i, expected in enumerate(reference):
        check("the batch", i, scores[0][i], expected)


def tree_of(lattices: Lattices, lm: fst.NgramModel, num_nodes: int) -> Callable[[int], object]:
    return lambda i: fst.best_first_tree(
        lattices.tokens[i], lattices.log_probs[i], lm, num_nodes, 1.0, lattices.context(i)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", type=Path, help="an OpenFst const file, as NgramModel.save writes it")
    parser.add_argument(
        "--lattices", type=Path, action="append", default=[], help="lattice files (.npz); may be repeated"
    )
    parser.add_argument(
        "--corpus", type=Path, help="token ids (.npy) to make model and lattices from, where these are not given"
    )
    parser.add_argument("--max-ngrams", type=int, help="size of the model made from the corpus")
    parser.add_argument("--count", type=int, default=300, help="lattices of a file to use")
    parser.add_argument("--slow-count", type=int, default=40, help="lattices for the slow methods")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of the batches")
    args = parser.parse_args()
    if not (args.corpus or (args.lm and args.lattices)):
        parser.error("expected --lm and --lattices, or --corpus")
    with tempfile.TemporaryDirectory() as scratch:
        corpus = np.load(args.corpus, mmap_mode="r") if args.corpus else None
        lm_path = args.lm or Path(scratch, "lm.fst")
        if args.lm is None and corpus is not None:
            katz_model(np.asarray(corpus), args.max_ngrams).save(lm_path)
        sets = [read_lattices(path, args.count) for path in args.lattices]
        if not sets and corpus is not None:
            sets = [skip_gram_lattices(np.asarray(corpus), args.count)]
        begin = time.perf_counter()
        lm = fst.NgramModel.load(lm_path)
        load_ms = 1e3 * (time.perf_counter() - begin)
        cpu = next(
            (
                line.split(":")[1].strip()
                for line in Path("/proc/cpuinfo").read_text().splitlines()
                if "model name" in line
            ),
            platform.machine(),
        )
        print(f"Machine: {cpu}, {platform.system()} {platform.release()}. Command: {' '.join(sys.argv)}")
        print(f"Model: {lm_path.name}, {sum(lm.num_ngrams):,} n-grams {lm.num_ngrams}, loaded in {load_ms:.1f} ms.")
        program = OpenFstProgram(Path(scratch))
        for lattices in sets:
            bench(lm, lm_path, lattices, program, args)


if __name__ == "__main__":
    main()
