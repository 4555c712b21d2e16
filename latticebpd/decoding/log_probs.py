"""Log-probabilities of the tokens that a text consists of: those of a decode without drafts.

They are the target model's own, before logits processors, temperature and sampling's filters. A constraint comes
first: with one they are those of its legal tokens. They cost one more output projection of each token, and nothing for
texts that do not ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.constraints.token_automaton import TokenAutomaton, after
from latticebpd.lattices.values import as_numpy
from latticebpd.verification.verifier import Verified


@dataclass(frozen=True)
class TokenLogProb:
    """A token of a text.

    log_prob: natural logarithm of its probability after the tokens before it.
    top: the most probable tokens there and their log-probabilities, in descending order, of equal ones the lowest id
        first; as many as were asked for, fewer where fewer are possible.
    """

    token: int
    log_prob: float
    top: tuple[tuple[int, float], ...]


def log_probs_of_paths(
    tops: Sequence[int | None],
    paths: Sequence[Sequence[int]],
    tokens: Sequence[Sequence[int]],
    verified: Verified,
    automata: Sequence[tuple[TokenAutomaton, int] | None],
) -> list[list[TokenLogProb]]:
    """For each row those of ``tokens``: its accepted path's and the next one, up to the end of a constraint's text.

    tops: how many of the most probable tokens each row asks for; None: it asks for nothing, and gets nothing.
    automata: each row's constraint and the state before its tree.
    """
    pairs = [
        (row, column)
        for row, (top, path) in enumerate(zip(tops, paths, strict=True))
        for column in ([] if top is None else [0, *(node + 1 for node in path)])
    ]
    result: list[list[TokenLogProb]] = [[] for _ in tops]
    if not pairs:
        return result
    exactly = verified if verified.only is None else verified.only(lambda row, column: False)
    rows, columns = zip(*pairs, strict=True)
    states = [(None, 0) if position is None else position for position in automata]
    for row, line in zip(rows, as_numpy(exactly.logits_of(rows, columns)), strict=True):
        (automaton, state), token, top = states[row], tokens[row][len(result[row])], tops[row]
        assert top is not None
        if automaton is not None:
            legal = np.flatnonzero(automaton.legal(state))
            if not len(legal):
                continue  # after the text's end
            costs = automaton.costs(state, legal) if automaton.weighted else 0
            result[row].append(_of_line(line[legal] - costs, legal, token, top))
            states[row] = automaton, after(automaton, state, token)
        else:
            result[row].append(_of_line(line, None, token, top))
    return result


def of_committed(own: Sequence[TokenLogProb], committed: Sequence[int], top: int) -> list[TokenLogProb]:
    """Those of a pass's committed tokens: ``own`` as far as they go; what a constraint then determines is certain."""
    certain = [TokenLogProb(token, 0.0, ((token, 0.0),)[:top]) for token in committed[len(own) :]]
    return [*own[: len(committed)], *certain]


def _of_line(logits: np.ndarray, ids: np.ndarray | None, token: int, top: int) -> TokenLogProb:
    """logits: ``[n]``, of the tokens ``ids``, ascending; None: of all."""
    log_probs = logits - logits.max()
    log_probs -= np.log(np.exp(log_probs).sum(dtype=np.float64)).astype(log_probs.dtype)
    count = min(top, len(log_probs))
    best = np.empty(0, np.int64)
    if count:
        least = np.partition(log_probs, len(log_probs) - count)[len(log_probs) - count]
        candidates = np.flatnonzero((log_probs >= least) & np.isfinite(log_probs))
        best = candidates[np.argsort(-log_probs[candidates], kind="stable")][:count]
    index = token if ids is None else int(np.searchsorted(ids, token))
    named = best if ids is None else ids[best]
    likely = zip(named.tolist(), log_probs[best].tolist(), strict=True)
    return TokenLogProb(token, float(log_probs[index]), tuple(likely))
