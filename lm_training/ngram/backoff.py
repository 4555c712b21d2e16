"""Backoff models: from counts to probabilities and backoff weights, whatever the smoothing.

A backoff model gives the words seen after a context h a share of their own, and the rest of the mass, scaled, to what
the next shorter context h' (h without its first word) says:

    p(w | h) = p̂(w | h)             if h w is an n-gram of the model
               α(h) p(w | h')        otherwise,    α(h) = (1 - Σ p̂(w | h)) / (1 - Σ p(w | h')),

sums over the w seen after h.  ``estimate_backoff`` is that rule.  What p̂ is, is the business of a smoothing method, an
object of a class derived from ``Smoothing``: ``lm_training.ngram.smoothing`` has them all.

(Katz 1987; Chen and Goodman 1998, section 2.)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from fst.files import release
from fst.table import BOS, EOS, NgramTable
from lm_training.ngram.columns import InMemory, Store
from lm_training.ngram.counts import NgramCounts, in_order
from lm_training.ngram.links import NgramLinks, Rows, first_of_each, groups_of_contexts
from lm_training.ngram.smoothing.base import Estimator, OrderCounts, Smoothing


def estimate_backoff(
    counts: NgramCounts,
    smoothing: Smoothing,
    vocabulary: np.ndarray | None = None,
    store: Store | None = None,
    threads: int = 1,
) -> NgramTable:
    """Estimate a backoff model, which sums to 1 after every context if the smoothing is ``normalised``.

    An n-gram that was not counted often enough is dropped, and with it all longer ones that contain it; its occurrences
    stay in the denominators.  Every context needs nothing but its own counts, the counts of counts, and the next lower
    order: they are estimated some at a time, ``threads`` such groups at once, and what comes out goes to the store.

    Args:
        counts: what was counted; its order becomes the model's.
        smoothing: how probabilities are discounted.
        vocabulary: ids ``[v]`` that must get a probability even if they were never seen.

    Raises:
        ValueError: there is nothing to estimate from.
    """
    store = store or InMemory()
    tokens, unigram_counts = _with_vocabulary(counts, vocabulary)
    lower = _unigram_probabilities(tokens, unigram_counts, counts.counts_of_counts[0], smoothing)
    with np.errstate(divide="ignore"):
        ngrams = [_stored(store, "ngrams-1", tokens[:, np.newaxis])]
        log_probs, backoffs = [_stored(store, "log_probs-1", np.log(lower))], [store.zeros("backoffs-1", len(tokens))]
    links = NgramLinks(tokens)
    vocabulary_size = int(np.count_nonzero(tokens != BOS))
    with ThreadPoolExecutor(threads) as pool:
        for order in range(2, counts.order + 1):
            fitted = smoothing.fit(order, counts.counts_of_counts[order - 1])
            estimator = _OrderEstimator(counts, order, smoothing, fitted, links, lower, vocabulary_size)
            columns = {
                "ngrams": store.column(f"ngrams-{order}", np.int32, order),
                "log_probs": store.column(f"log_probs-{order}", np.float64),
            }
            if order < counts.order:  # what the next order looks up
                columns |= {name: store.column(f"{name}-{order}", np.int64) for name in ("keys", "prefixes", "suffixes")}
                columns["probs"] = store.column(f"probs-{order}", np.float64)
            for group in in_order(pool, estimator.estimate, groups_of_contexts(counts.ngrams[order - 1]), 2 * threads):
                for name, column in columns.items():
                    column.append(vars(group)[name])
                backoffs[-1][group.contexts] = group.log_weights
                store.release()
                release(counts.ngrams[order - 1])
            arrays = {name: column.finish() for name, column in columns.items()}
            ngrams.append(arrays["ngrams"])
            log_probs.append(arrays["log_probs"])
            backoffs.append(store.zeros(f"backoffs-{order}", len(arrays["ngrams"])))
            if order < counts.order:
                links.extend(arrays["keys"], arrays["prefixes"], arrays["suffixes"])
                lower = arrays["probs"]
    return NgramTable(ngrams, log_probs, backoffs)


def _stored(store: Store, name: str, values: np.ndarray) -> np.ndarray:
    column = store.column(name, values.dtype, *values.shape[1:])
    column.append(values)
    return column.finish()


@dataclass(frozen=True, eq=False)
class _Group:
    """What was estimated of some contexts: ``[n]`` of each n-gram kept, ``[contexts]`` of each context."""

    ngrams: np.ndarray
    keys: np.ndarray
    prefixes: np.ndarray
    suffixes: np.ndarray
    probs: np.ndarray
    log_probs: np.ndarray
    contexts: np.ndarray
    log_weights: np.ndarray


@dataclass(frozen=True, eq=False)
class _OrderEstimator:
    """Estimates the contexts of one order, group by group, from the order below."""

    counts: NgramCounts
    order: int
    smoothing: Smoothing
    fitted: Estimator
    links: NgramLinks
    lower: np.ndarray
    vocabulary_size: int

    def estimate(self, group: Rows) -> _Group:
        o = self.order - 1
        rows = np.asarray(self.counts.ngrams[o][group.begin : group.end])
        row_counts = np.asarray(self.counts.counts[o][group.begin : group.end])
        context_of = np.cumsum(group.first) + (group.context - 1)
        prefixes, suffixes = self.links.locate(rows)
        linked = (prefixes >= 0) & (suffixes >= 0)
        if not linked.all():
            rows, row_counts, context_of, prefixes, suffixes = (
                array[linked] for array in (rows, row_counts, context_of, prefixes, suffixes)
            )
        starts = np.flatnonzero(first_of_each(prefixes))
        seen = OrderCounts(
            counts=row_counts,
            starts=starts,
            totals=self.counts.totals[o][context_of[starts]],
            types=self.counts.types[o][context_of[starts]],
            closing=rows[:, -1] == EOS,
            exhaustive=np.diff(starts, append=len(rows)) == self.vocabulary_size,
        )
        weights, probs = self.smoothing.backoff_weights(self.fitted(seen), self.lower[suffixes], starts)
        keys = self.links.keys_of(rows[:, -1], prefixes)
        return _Group(rows, keys, prefixes, suffixes, probs, np.log(probs), prefixes[starts], np.log(weights))


def _with_vocabulary(counts: NgramCounts, vocabulary: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Unigrams ``[n]`` and their counts, the vocabulary's unseen ids among them with a count of 0."""
    tokens, token_counts = counts.ngrams[0][:, 0], counts.counts[0]
    if vocabulary is not None:
        union = np.union1d(tokens, vocabulary).astype(np.int32)
        merged = np.zeros(len(union), dtype=np.int64)
        merged[np.searchsorted(union, tokens)] = token_counts
        tokens, token_counts = union, merged
    if not np.any(tokens != BOS):
        raise ValueError("expected at least one token, got none; is the corpus empty?")
    return tokens, token_counts


def _unigram_probabilities(tokens: np.ndarray, counts: np.ndarray, counts_of_counts: np.ndarray, smoothing: Smoothing) -> np.ndarray:
    """``[n]`` p(w), positive but for ``<s>``, which is never predicted."""
    probs = np.zeros(len(tokens))
    predicted = tokens != BOS
    seen, unseen = predicted & (counts > 0), predicted & (counts == 0)
    if not seen.any():
        probs[unseen] = 1 / unseen.sum()
        return probs
    order = OrderCounts(
        counts=counts[seen],
        starts=np.zeros(1, dtype=np.int64),
        totals=counts[seen].sum(keepdims=True),
        types=np.array([seen.sum()]),
        closing=tokens[seen] == EOS,
        exhaustive=np.array([not unseen.any()]),
    )
    probs[seen], probs[unseen] = smoothing.unigrams(order, counts_of_counts, int(unseen.sum()))
    return probs
