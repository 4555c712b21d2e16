"""The searches and the model's lookups over again: slow, obvious, and sharing no code with the core.

`lm_log_prob` reads an n-gram table by its definition; the searches enumerate everything. `shortest_paths` is the
outside oracle: OpenFst's own p shortest paths on the product of lattice and model, its failure arcs resolved here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pywrapfst

from fst import UNK, NgramTable


class ReferenceLM:
    """p(token | context) of an n-gram table, by the recursive definition of backing off."""

    def __init__(self, table: NgramTable, unk_log_prob: float = -1000.0) -> None:
        self.order = table.order
        self.unk_log_prob = unk_log_prob
        self.cost: dict[tuple[int, ...], float] = {}
        self.backoff_cost: dict[tuple[int, ...], float] = {}
        for rows, log_probs, backoffs in zip(table.ngrams, table.log_probs, table.backoffs, strict=True):
            for row, log_prob, backoff in zip(rows.tolist(), log_probs.tolist(), backoffs.tolist(), strict=True):
                self.cost[tuple(row)] = -log_prob
                self.backoff_cost[tuple(row)] = -backoff

    def log_prob(self, token: int, context: Sequence[int]) -> float:
        known: list[int] = []
        for word in context:
            name = self._name(word)
            known = (
                [*known, name] if (name,) in self.cost else []
            )  # an unknown word without <unk> wipes the history out
        history = tuple(known[max(0, len(known) - self.order + 1) :])
        name, total = self._name(token), 0.0
        while (*history, name) not in self.cost:
            if not history:
                return -(total - self.unk_log_prob)
            total += self.backoff_cost.get(history, 0.0)
            history = history[1:]
        return -(total + self.cost[*history, name])

    def _name(self, token: int) -> int:
        return token if (token,) in self.cost else UNK


def columns(tokens: np.ndarray, log_probs: np.ndarray) -> list[list[tuple[int, float]]]:
    """(token, log_prob) of every slot, by rising token, without padding and absent tokens."""
    return [
        sorted(
            (int(token), float(log_prob))
            for token, log_prob in zip(*slot, strict=True)
            if token >= 0 and log_prob > -math.inf
        )
        for slot in zip(tokens, log_probs, strict=True)
    ]


def gain(tokens: np.ndarray, transitions: np.ndarray | None, prefix: Sequence[int], token: int) -> float:
    """The transition from the last token of a prefix to the one behind it."""
    if transitions is None or not prefix:
        return 0.0
    slot = len(prefix)
    return float(transitions[slot - 1, tokens[slot - 1].tolist().index(prefix[-1]), tokens[slot].tolist().index(token)])


def nbest_paths(
    tokens: np.ndarray,
    log_probs: np.ndarray,
    lm: ReferenceLM | None,
    p: int,
    alpha: float,
    context: Sequence[int] = (),
    transitions: np.ndarray | None = None,
) -> list[tuple[tuple[int, ...], float]]:
    """The p best of all paths, enumerated."""
    scored = []
    for path in itertools.product(*columns(tokens, log_probs)):
        words, total = [token for token, _ in path], 0.0
        for t, (token, log_prob) in enumerate(path):
            weight = log_prob + gain(tokens, transitions, words[:t], token)
            total += weight + (alpha * lm.log_prob(token, [*context, *words[:t]]) if lm is not None else 0.0)
        if total > -math.inf:
            scored.append((tuple(words), total))
    return sorted(scored, key=lambda item: (-item[1], item[0]))[:p]


def best_first_tree(
    tokens: np.ndarray,
    log_probs: np.ndarray,
    lm: ReferenceLM | None,
    num_nodes: int,
    alpha: float,
    context: Sequence[int] = (),
    transitions: np.ndarray | None = None,
) -> list[tuple[tuple[int, ...], float]]:
    """The num_nodes best of all prefixes, enumerated: (prefix, log probability)."""
    slots = columns(tokens, log_probs)
    layer: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    everything = []
    for slot in slots:
        grown = []
        for prefix, total in layer:
            reached = [(token, lp + gain(tokens, transitions, prefix, token)) for token, lp in slot]
            reached = [(token, lp) for token, lp in reached if lp > -math.inf]
            if not reached:
                continue
            scores = [
                lp + (alpha * lm.log_prob(token, [*context, *prefix]) if lm is not None else 0.0)
                for token, lp in reached
            ]
            normaliser = max(scores) + math.log(sum(math.exp(score - max(scores)) for score in scores))
            grown += [
                ((*prefix, token), total + (score - normaliser))
                for (token, _), score in zip(reached, scores, strict=True)
            ]
        everything += grown
        layer = grown
    return sorted(everything, key=lambda item: (-item[1], item[0]))[:num_nodes]


def shortest_paths(
    tokens: np.ndarray, log_probs: np.ndarray, lm: ReferenceLM | None, p: int, alpha: float, context: Sequence[int] = ()
) -> list[tuple[tuple[int, ...], float]]:
    """OpenFst's shortestpath(nshortest=p) on lattice x model; a state of the product is (slot, last order - 1
    tokens)."""
    memory = lm.order - 1 if lm is not None else 0
    product = pywrapfst.VectorFst()
    states: dict[tuple[int, tuple[int, ...]], int] = {}

    def state(slot: int, history: Sequence[int]) -> int:
        key = (slot, tuple(history[max(0, len(history) - memory) :]) if memory else ())
        if key not in states:
            states[key] = product.add_state()
            queue.append(key)
        return states[key]

    queue: list[tuple[int, tuple[int, ...]]] = []
    slots = columns(tokens, log_probs)
    product.set_start(state(0, context))
    while queue:
        slot, history = key = queue.pop()
        if slot == len(slots):
            product.set_final(states[key], 0)
            continue
        for token, log_prob in slots[slot]:
            score = log_prob + (alpha * lm.log_prob(token, history) if lm is not None else 0.0)
            product.add_arc(
                states[key], pywrapfst.Arc(token + 1, token + 1, -score, state(slot + 1, [*history, token]))
            )
    best = pywrapfst.shortestpath(product, nshortest=p)
    paths = []
    stack: list[tuple[int, tuple[int, ...], float]] = [(best.start(), (), 0.0)]
    while stack:
        at, words, cost = stack.pop()
        if (final := float(best.final(at))) != math.inf:
            paths.append((words, -(cost + final)))
        for arc in best.arcs(at):
            stack.append((arc.nextstate, (*words, arc.ilabel - 1) if arc.ilabel else words, cost + float(arc.weight)))
    return sorted(paths, key=lambda item: (-item[1], item[0]))
