"""Random word lattices, and all of their paths."""

from __future__ import annotations

import numpy as np

import fst

Path_ = tuple[tuple[int, ...], float, tuple[int, ...]]


def all_paths(lattice: fst.Lattice) -> list[Path_]:
    """Tokens, log-probability and arcs of every complete path."""
    paths = []

    def descend(state: int, tokens: tuple[int, ...], log_prob: float, arcs: tuple[int, ...]) -> None:
        if lattice.finals[state] > -np.inf:
            paths.append((tokens, log_prob + float(lattice.finals[state]), arcs))
        for arc, (token, weight, target) in enumerate(lattice.arcs(state), int(lattice.offsets[state])):
            descend(target, tokens if token < 0 else (*tokens, token), log_prob + weight, (*arcs, arc))

    descend(0, (), 0.0, ())
    return paths


def random_lattice(seed: int, states: int = 40, vocabulary: int = 20, epsilons: float = 0.1) -> fst.Lattice:
    rng = np.random.default_rng(seed)
    arcs = []
    for state in range(states - 1):
        for _ in range(rng.integers(1, 5)):
            target = min(states - 1, state + int(rng.integers(1, 4)))
            arcs.append(
                (
                    state,
                    target,
                    -1 if rng.random() < epsilons else int(rng.integers(vocabulary)),
                    float(np.float32(-rng.exponential())),
                )
            )
    arcs += [(state, state + 1, int(rng.integers(vocabulary)), -3.0) for state in range(states - 1)]
    return fst.Lattice.from_arcs(arcs, [(states - 1, -0.5), (states - 3, -2.0)])
