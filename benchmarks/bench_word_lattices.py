"""Word lattices side by side: our search, and OpenFst's composition and shortest paths from Python.

    python -m benchmarks.bench_word_lattices

Lattices are acyclic, an arc spans one to three states, a tenth are epsilons, words by the model's unigrams.  Every
method must give the same p best scores, or the run ends with an error.  Times are milliseconds a lattice, the median
over lattices of the least of the repetitions.

    core       `Lattice.nbest_paths`; "again": the lattice is determinized already
    OpenFst    the lattice determinized, composed with `NgramModel.to_fst(tokens)`, shortest paths

OpenFst determinizes before it composes: ``shortestpath(unique=True)`` on the composition misses some of the best paths.
"""

from __future__ import annotations

import sys
import timeit
from pathlib import Path

import numpy as np
import pynini

import fst
from benchmarks.common import options, signature, table
from latticebpd.drafters.bundled import LM


def random_lattice(rng: np.random.Generator, lm: fst.NgramModel, states: int, density: float) -> fst.Lattice:
    """A lattice of ``states`` states with ``density`` arcs leaving each on average."""
    row = lm.states[lm.unigram_state]
    arcs = lm.arcs[int(row["pos"]) : int(row["pos"]) + int(row["narcs"])]
    words = rng.choice(arcs["ilabel"] - 1, 3 * states, p=np.exp(-arcs["weight"]) / np.exp(-arcs["weight"]).sum())
    found = [(s, s + 1, int(rng.choice(words)), float(np.float32(-rng.exponential()))) for s in range(states - 1)]
    for _ in range(int((density - 1) * states)):
        source = int(rng.integers(states - 1))
        target = min(states - 1, source + int(rng.integers(1, 4)))
        token = -1 if rng.random() < 0.1 else int(rng.choice(words))
        found.append((source, target, token, float(np.float32(-rng.exponential()))))
    return fst.Lattice.from_arcs(found, [(states - 1, 0.0)])


def scores_of(best: pynini.Fst) -> np.ndarray:
    return -np.sort(np.array([float(weight) for weight in best.paths().weights()]))


def openfst_paths(lattice: pynini.Fst, model: pynini.Fst, p: int) -> pynini.Fst:
    deterministic = pynini.determinize(lattice.copy().rmepsilon(), delta=1e-6)
    return pynini.shortestpath(pynini.compose(deterministic, model), nshortest=p)


def fresh(lattice: fst.Lattice) -> fst.Lattice:
    """The same without what a search has stored with it."""
    return fst.Lattice(*(getattr(lattice, name) for name in ("offsets", "tokens", "log_probs", "targets", "finals")))


def measure(lm: fst.NgramModel, lattices: list[fst.Lattice], p: int, repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {}
    for lattice in lattices:
        automaton = lattice.to_fst()
        expected = lattice.nbest_paths(lm, p)[1]
        found = scores_of(openfst_paths(automaton, lm.to_fst(lattice.tokens), p))
        if not np.allclose(found, expected, atol=1e-3):  # OpenFst sums in float32
            sys.exit(f"OpenFst and the core differ: {found[:3]} and {expected[:3]}")
        for name, work in {
            "core": lambda lattice=lattice: fresh(lattice).nbest_paths(lm, p),
            "core, again": lambda lattice=lattice: lattice.nbest_paths(lm, p),
            "OpenFst": lambda lattice=lattice, automaton=automaton: openfst_paths(
                automaton, lm.to_fst(lattice.tokens), p
            ),
            "core, posteriors": lambda lattice=lattice: lattice.arc_posteriors(lm),
            "OpenFst, posteriors": lambda lattice=lattice, automaton=automaton: openfst_sums(
                automaton, lm.to_fst(lattice.tokens)
            ),
        }.items():
            times.setdefault(name, []).append(1e3 * min(timeit.repeat(work, number=1, repeat=repeats)))
    return {name: float(np.median(values)) for name, values in times.items()}


def openfst_sums(lattice: pynini.Fst, model: pynini.Fst) -> tuple[object, object]:
    """Forward and backward sums, of which posteriors are made."""
    composed = pynini.arcmap(pynini.compose(lattice, model), map_type="to_log64")
    return pynini.shortestdistance(composed), pynini.shortestdistance(composed, reverse=True)


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--lm", type=Path, default=LM, help="n-gram model, FST or ARPA")
    parser.add_argument("--count", type=int, default=10, help="lattices of each size")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    lm, rng, rows = fst.NgramModel.load(args.lm), np.random.default_rng(0), []
    for states, density in ((20, 2), (100, 2), (100, 4), (1000, 2)):
        lattices = [random_lattice(rng, lm, states, density) for _ in range(args.count)]
        for p in (1, 16, 100):
            times = measure(lm, lattices, p, args.repeats)
            cells = (f"{each:.3g}" for each in times.values())
            rows.append([f"{states} states, {density} arcs each", p, *cells])
    signature(ngrams=f"{sum(lm.num_ngrams):,}")
    table("milliseconds a lattice", ("lattices", "p", *times), rows)


if __name__ == "__main__":
    main()
