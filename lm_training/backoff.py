"""Backoff models: from counts to probabilities and backoff weights, whatever the smoothing.

A backoff model gives the words seen after a context h a share of their own, and the rest of the mass, scaled, to what
the next shorter context h' (h without its first word) says:

    p(w | h) = p̂(w | h)             if h w is an n-gram of the model
               α(h) p(w | h')        otherwise,    α(h) = (1 - Σ p̂(w | h)) / (1 - Σ p(w | h')),

sums over the w seen after h.  ``estimate_backoff`` is that rule.  What p̂ is, is the business of a smoothing method, an
object with one function (``Smoothing``); ``lm_training.katz`` has Katz's.

(Katz 1987; Chen and Goodman 1998, section 2.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from fst.table import BOS, EOS, NgramTable
from lm_training.counts import NgramCounts
from lm_training.links import NgramLinks, first_of_each

NO_MASS = 1e-9
"""Probability below which a sum that should be 0 or 1 is one, rounding aside."""


@dataclass(frozen=True)
class OrderCounts:
    """What a smoothing method sees of one order.

    order: the order, 1 for unigrams.
    counts: ``[n]`` int64, the n-grams that the model keeps, context after context.
    starts: ``[contexts]`` where the n-grams of each context begin.
    totals: ``[contexts]`` int64, c(h): all that was seen after the context, dropped n-grams included.
    counts_of_counts: ``[m]`` int64, entry r the number of n-grams seen r times, dropped ones included.
    closing: ``[n]`` bool, whether the n-gram ends in ``</s>``.
    exhaustive: ``[contexts]`` bool, whether every word of the vocabulary was seen after the context.
    """

    order: int
    counts: np.ndarray
    starts: np.ndarray
    totals: np.ndarray
    counts_of_counts: np.ndarray
    closing: np.ndarray
    exhaustive: np.ndarray

    def sums(self, values: np.ndarray) -> np.ndarray:
        """``[contexts]`` sums of ``values`` ``[n]`` over the n-grams of each context."""
        sums: np.ndarray = np.add.reduceat(values, self.starts) if len(self.starts) else np.zeros(0, dtype=values.dtype)
        return sums

    def spread(self, values: np.ndarray) -> np.ndarray:
        """``[n]``: to each n-gram the value of its context, of ``values`` ``[contexts]``."""
        return np.repeat(values, self.sizes)

    @property
    def sizes(self) -> np.ndarray:
        """``[contexts]`` how many n-grams each context has."""
        return np.diff(self.starts, append=len(self.counts))


class Smoothing(Protocol):
    """How the mass after a context is shared between the words seen there and all others."""

    def probabilities(self, seen: OrderCounts) -> np.ndarray:
        """``[n]`` p̂(w | h) of each n-gram; what they leave of a context's mass goes to the words not seen there."""
        ...


def estimate_backoff(
    counts: NgramCounts,
    smoothing: Smoothing,
    min_counts: Sequence[int] = (1,),
    vocabulary: np.ndarray | None = None,
) -> NgramTable:
    """Estimate a backoff model that sums to 1 after every context.

    Args:
        counts: what was counted; its order becomes the model's.
        smoothing: how probabilities are discounted.
        min_counts: an n-gram of order o seen less often than entry o - 1 (the last entry for higher orders) is
            dropped, and with it all longer ones that contain it; its occurrences stay in the denominators.  Unigrams
            seen at all are always kept.
        vocabulary: ids ``[v]`` that must get a probability even if they were never seen.

    Raises:
        ValueError: there is nothing to estimate from, or a minimum count is below 1.
    """
    if not len(min_counts) or min(min_counts) < 1:
        raise ValueError(f"expected a minimum count of at least 1 for each order, got {list(min_counts)}")
    unigrams, unigram_counts = _with_vocabulary(counts, vocabulary)
    links = NgramLinks(unigrams)
    ngrams = [unigrams]
    probs = [_unigram_probabilities(unigrams[:, 0], unigram_counts, smoothing)]
    backoffs = [np.zeros(len(unigrams))]
    for order in range(2, counts.order + 1):
        rows, numbers = counts.ngrams[order - 1], counts.counts[order - 1]
        minimum = min_counts[min(order, len(min_counts)) - 1]
        first = first_of_each(rows[:, :-1])
        context_of = np.cumsum(first) - 1
        kept = np.flatnonzero(numbers >= minimum)
        prefixes, suffixes = links.locate(rows[kept])
        whole = (prefixes >= 0) & (suffixes >= 0)
        kept, prefixes, suffixes = kept[whole], prefixes[whole], suffixes[whole]
        links.append(rows[kept, -1], prefixes, suffixes)
        ngrams.append(rows[kept])
        starts = np.flatnonzero(first_of_each(context_of[kept]))
        contexts = prefixes[starts]
        seen = OrderCounts(
            order=order,
            counts=numbers[kept],
            starts=starts,
            totals=(np.add.reduceat(numbers, np.flatnonzero(first)) if len(rows) else numbers)[context_of[kept[starts]]],
            counts_of_counts=np.bincount(np.minimum(numbers, _RARE)),
            closing=rows[kept, -1] == EOS,
            exhaustive=np.diff(starts, append=len(kept)) == np.count_nonzero(unigrams != BOS),
        )
        explicit = smoothing.probabilities(seen)
        weights, explicit = backoff_weights(explicit, probs[-1][suffixes], starts)
        backoffs[-1][contexts] = np.log(weights)
        probs.append(explicit)
        backoffs.append(np.zeros(len(kept)))
    with np.errstate(divide="ignore"):
        return NgramTable(ngrams, [np.log(p) for p in probs], backoffs)


_RARE = 1000
"""Counts above this share one entry of the counts of counts; no cutoff is that high."""


def backoff_weights(explicit: np.ndarray, lower: np.ndarray, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """α of each context, and the explicit probabilities, rescaled where no α could make the context sum to 1.

    Args:
        explicit: ``[n]`` p̂(w | h), context after context.
        lower: ``[n]`` p(w | h') of the same words.
        starts: ``[contexts]`` where the n-grams of each context begin.

    Where the words seen after h are all that h' allows (the denominator is 0), the explicit probabilities are scaled
    to sum to 1; α multiplies 0 and is set to 1.  Where they leave nothing to words that h' does allow (as in models
    made elsewhere and rounded), they are scaled to leave ``NO_MASS``, so that α is positive.
    """
    if not len(starts):
        return np.zeros(0), explicit
    sums = np.add.reduceat(explicit, starts)
    unseen = 1 - np.add.reduceat(lower, starts)
    complete = unseen <= NO_MASS
    greedy = ~complete & (sums > 1 - NO_MASS)
    targets = np.where(complete, 1.0, np.where(greedy, 1 - NO_MASS, sums))
    if (complete | greedy).any():
        explicit = explicit * np.repeat(targets / sums, np.diff(starts, append=len(explicit)))
    return np.divide(1 - targets, unseen, out=np.ones(len(sums)), where=~complete), explicit


def _with_vocabulary(counts: NgramCounts, vocabulary: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Unigrams ``[n, 1]`` and their counts, the vocabulary's unseen ids among them with a count of 0."""
    tokens, numbers = counts.ngrams[0][:, 0], counts.counts[0]
    if vocabulary is not None:
        both = np.union1d(tokens, vocabulary).astype(np.int32)
        merged = np.zeros(len(both), dtype=np.int64)
        merged[np.searchsorted(both, tokens)] = numbers
        tokens, numbers = both, merged
    if not np.any(tokens != BOS):
        raise ValueError("expected at least one token, got none; is the corpus empty?")
    return tokens[:, np.newaxis], numbers


def _unigram_probabilities(tokens: np.ndarray, counts: np.ndarray, smoothing: Smoothing) -> np.ndarray:
    """``[n]`` p(w), positive but for ``<s>``, which is never predicted.

    Where all were seen there is nothing to save mass for, and p is the relative frequency.  Otherwise what the
    smoothing leaves is shared equally by the unseen, none of whom may overtake a token that was seen.
    """
    probs = np.zeros(len(tokens))
    predicted = tokens != BOS
    seen = predicted & (counts > 0)
    unseen = predicted & (counts == 0)
    if not seen.any():
        probs[unseen] = 1 / unseen.sum()
        return probs
    probs[seen] = counts[seen] / counts[seen].sum()
    if unseen.any():
        ones = np.zeros(1, dtype=np.int64)
        order = OrderCounts(
            order=1,
            counts=counts[seen],
            starts=ones,
            totals=counts[seen].sum(keepdims=True),
            counts_of_counts=np.bincount(np.minimum(counts[seen], _RARE)),
            closing=tokens[seen] == EOS,
            exhaustive=np.array([False]),
        )
        probs[seen] = smoothing.probabilities(order)
        left = 1 - probs[seen].sum()
        if left <= NO_MASS:
            left = 1 / (counts[seen].sum() + 1)
        probs[unseen] = min(left / unseen.sum(), probs[seen].min())
        probs /= probs.sum()
    return probs
