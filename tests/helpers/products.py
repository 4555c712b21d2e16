"""The product of a sausage and a backoff model as OpenFst sees it: a slow reference that shares no code with the core.

OpenFst's Python interface has no matcher for failure arcs, and composing with epsilons instead is wrong: it lets a path
back off where an explicit arc exists. So the product is built here with failure resolved,

    states    (slot, history), where the lattice has transitions (slot, history, column before): the histories are
    states of the model arcs      for each token of the slot from each history: cost = -(log_prob + transition + alpha
              * ln p(token | history)), leading to the history that follows
    final     (slots, any history)

and OpenFst finds its shortest paths. With distinct tokens in every slot it is deterministic, hence so are the paths.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pywrapfst

from fst import NgramModel
from fst.automaton import LOG_ZERO, Automaton
from fst.lattices import slots_of

START = -1

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


def product(
    tokens: npt.ArrayLike,
    log_probs: npt.ArrayLike,
    lm: NgramModel | None = None,
    alpha: float = 1.0,
    context: Sequence[int] = (),
    transitions: npt.ArrayLike | None = None,
) -> pywrapfst.VectorFst:
    """The failure-resolved product of ``tokens, log_probs [slots, k]`` with ``lm`` after the tokens of ``context``."""
    walk = ModelWalk(lm.automaton) if lm is not None and alpha != 0 else None
    history = 0
    if walk is not None:
        history = walk.automaton.unigram_state
        for token in context:
            _, history = walk.step(history, token)
    result = pywrapfst.VectorFst()
    layer = {(history, START): result.add_state()}
    result.set_start(layer[history, START])
    ids, slots = np.asarray(tokens).tolist(), slots_of(tokens, log_probs)

    def arcs(slot: int, before: int) -> list[tuple[int, float, int]]:
        columns = [(token, log_prob, ids[slot].index(token)) for token, log_prob in sorted(slots[slot])]
        if transitions is None or slot == 0:
            return columns
        gains = np.asarray(transitions, np.float32)[slot - 1, before].astype(float).tolist()
        return [(token, weight + gains[at], at) for token, weight, at in columns if gains[at] > -1e30]

    for slot in range(len(slots)):
        following: dict[tuple[int, int], int] = {}
        for (history, before), state in layer.items():
            for token, log_prob, column in arcs(slot, before):
                cost, next_history = walk.step(history, token) if walk is not None else (0.0, 0)
                reached = next_history, START if transitions is None else column
                if reached not in following:
                    following[reached] = result.add_state()
                result.add_arc(state, pywrapfst.Arc(token + 1, token + 1, alpha * cost - log_prob, following[reached]))
        layer = following
    for state in layer.values():
        result.set_final(state)
    return result


def shortest_paths(automaton: pywrapfst.Fst, p: int) -> tuple[Ints, Floats]:
    """OpenFst's p shortest paths of an acyclic acceptor: ``tokens [p', slots]`` and ``scores [p']``, best first."""
    tree = pywrapfst.shortestpath(automaton, nshortest=p)
    paths: list[tuple[float, tuple[int, ...]]] = []

    def descend(state: int, cost: float, tokens: tuple[int, ...]) -> None:
        final = float(tree.final(state))
        if final != np.inf:
            paths.append((cost + final, tokens))
        for arc in tree.arcs(state):
            descend(arc.nextstate, cost + float(arc.weight), (*tokens, arc.ilabel - 1) if arc.ilabel else tokens)

    if tree.start() >= 0:
        descend(tree.start(), 0.0, ())
    paths.sort()
    slots = len(paths[0][1]) if paths else 0
    return np.array([tokens for _, tokens in paths], np.int32).reshape(-1, slots), np.array(
        [-cost for cost, _ in paths]
    )


class ModelWalk:
    """Follows an automaton token by token, in plain Python: nothing is shared with the compiled core."""

    def __init__(self, automaton: Automaton) -> None:
        self.automaton = automaton
        self._rows: dict[int, dict[int, tuple[float, int]]] = {}

    def step(self, state: int, token: int) -> tuple[float, int]:
        """Cost of ``token`` after the history ``state``, and the history after it."""
        unigram_state = self.automaton.unigram_state
        label = token + 1 if token >= 0 and token + 1 in self.row(unigram_state) else self.automaton.unk_label
        cost = 0.0
        while True:
            row = self.row(state)
            if label and label in row:
                return cost + row[label][0], row[label][1]
            if state == unigram_state:
                return cost - LOG_ZERO, state
            cost, state = cost + row[0][0], row[0][1]

    def row(self, state: int) -> dict[int, tuple[float, int]]:
        """label -> (cost, next state)."""
        if state not in self._rows:
            record = self.automaton.states[state]
            arcs = self.automaton.arcs[int(record["pos"]) : int(record["pos"]) + int(record["narcs"])]
            self._rows[state] = {label: (weight, target) for label, _, weight, target in arcs.tolist()}
        return self._rows[state]
