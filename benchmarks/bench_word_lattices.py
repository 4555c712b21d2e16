"""Word lattices side by side: our search, and OpenFst's composition and shortest paths from Python.

    python -m benchmarks.bench_word_lattices -o benchmarks/results/word_lattices.csv
    python -m benchmarks.bench_word_lattices --table benchmarks/results/word_lattices.csv

Lattices are acyclic, an arc spans one to three states, a tenth are epsilons, words by the model's unigrams.  Every
method must give the same p best scores, or the run ends with an error.  Times are milliseconds a lattice, the least
of the repetitions; the table has medians over lattices.

    core       `Lattice.nbest_paths`; "again": the lattice is determinized already
    OpenFst    the lattice determinized, composed with `NgramModel.to_fst(tokens)`, shortest paths

OpenFst determinizes before it composes: ``shortestpath(unique=True)`` on the composition misses some of the best paths.
"""

from __future__ import annotations

import argparse
import timeit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import fst
from benchmarks.common import columns, grouped, options, recorded, run, signature, table
from latticebpd.drafters.bundled import LM

SIZES = ((20, 2), (100, 2), (100, 4), (1000, 2))
"""States, and arcs that leave each on average."""
SYSTEMS = ("core", "core, again", "OpenFst", "core, posteriors", "OpenFst, distances")
REPEATS = 3


def random_lattice(rng: np.random.Generator, lm: fst.NgramModel, states: int, density: float) -> fst.Lattice:
    """A lattice of ``states`` states with ``density`` arcs leaving each on average."""
    row = lm.states[lm.unigram_state]
    arcs = lm.arcs[int(row["pos"]) : int(row["pos"]) + int(row["narcs"])]
    words = rng.choice(arcs["ilabel"] - 1, 3 * states, p=np.exp(-arcs["weight"]) / np.exp(-arcs["weight"]).sum())
    links = [(s, s + 1, int(rng.choice(words)), float(np.float32(-rng.exponential()))) for s in range(states - 1)]
    for _ in range(int((density - 1) * states)):
        source = int(rng.integers(states - 1))
        target = min(states - 1, source + int(rng.integers(1, 4)))
        token = -1 if rng.random() < 0.1 else int(rng.choice(words))
        links.append((source, target, token, float(np.float32(-rng.exponential()))))
    return fst.Lattice.from_arcs(links, [(states - 1, 0.0)])


def openfst_paths(lattice: Any, model: Any, p: int) -> Any:
    import pynini

    deterministic = pynini.determinize(lattice.copy().rmepsilon(), delta=1e-6)
    return pynini.shortestpath(pynini.compose(deterministic, model), nshortest=p)


def fresh(lattice: fst.Lattice) -> fst.Lattice:
    """The same without what a search has stored with it."""
    return fst.Lattice(*(getattr(lattice, name) for name in ("offsets", "tokens", "log_probs", "targets", "finals")))


def openfst_sums(lattice: Any, model: Any) -> tuple[object, object]:
    """Forward and backward sums, of which posteriors are made."""
    import pynini

    composed = pynini.arcmap(pynini.compose(lattice, model), map_type="to_log64")
    return pynini.shortestdistance(composed), pynini.shortestdistance(composed, reverse=True)


def measure(lm: fst.NgramModel, lattice: fst.Lattice, p: int) -> dict[str, float]:
    """Milliseconds by system; ValueError where OpenFst has other scores."""
    automaton, expected = lattice.to_fst(), lattice.nbest_paths(lm, p)[1]
    weights = openfst_paths(automaton, lm.to_fst(lattice.tokens), p).paths().weights()
    scores = -np.sort([float(weight) for weight in weights])
    if not np.allclose(scores, expected, atol=1e-3):  # OpenFst sums in float32
        raise ValueError(f"expected OpenFst's scores {scores[:3]}, got {expected[:3]}")
    systems: dict[str, Callable[[], object]] = {
        "core": lambda: fresh(lattice).nbest_paths(lm, p),
        "core, again": lambda: lattice.nbest_paths(lm, p),
        "OpenFst": lambda: openfst_paths(automaton, lm.to_fst(lattice.tokens), p),
        "core, posteriors": lambda: lattice.arc_posteriors(lm),
        "OpenFst, distances": lambda: openfst_sums(automaton, lm.to_fst(lattice.tokens)),
    }
    return {name: 1e3 * min(timeit.repeat(work, number=1, repeat=REPEATS)) for name, work in systems.items()}


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every lattice and number of paths."""
    lm, rng, rows = fst.NgramModel.load(LM), np.random.default_rng(0), list[dict[str, Any]]()
    signature(ngrams=f"{sum(lm.num_ngrams):,}")
    for states, density in SIZES:
        lattices = [random_lattice(rng, lm, states, density) for _ in range(args.count)]
        for p in (16, 100):
            for number, lattice in enumerate(lattices):
                about = {"states": states, "arcs": density, "p": p, "lattice": number}
                rows.append(about | measure(lm, lattice, p))
    return rows


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The table's lines: medians over lattices."""
    lines = []
    for (states, arcs, p), own in grouped(rows, "states", "arcs", "p").items():
        times = np.median(columns(own, *SYSTEMS), axis=1)
        lines.append([f"{states} states, {arcs} arcs each", p, *(f"{each:.3g}" for each in times)])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--count", type=int, default=10, help="lattices of each size")
    table("", ("lattice", "p", *SYSTEMS), lines_of(recorded(parser, measured)))


if __name__ == "__main__":
    run(main)
