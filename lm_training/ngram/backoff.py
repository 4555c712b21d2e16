"""Backoff models: from counts to probabilities and backoff weights, for any smoothing.

A backoff model gives the words seen after a context h explicit probabilities, and the rest of the mass, scaled, to the
next shorter context h' (h without its first word):

    p(w | h) = p̂(w | h)             if h w is an n-gram of the model
               α(h) p(w | h')        otherwise,    α(h) = (1 - Σ p̂(w | h)) / (1 - Σ p(w | h')),

sums over the w seen after h.  A ``Smoothing`` method (``lm_training.ngram.smoothing``) defines p̂.

(Katz 1987; Chen and Goodman 1998, section 2.)
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fst.files import release
from fst.processors import in_order
from fst.table import BOS, EOS, NgramTable
from latticebpd.checks import expect
from lm_training.ngram.array_store import ArrayStore
from lm_training.ngram.counts import NgramCounts, OrderCounts
from lm_training.ngram.smoothing.base import ContextCounts, Estimator, Smoothing
from lm_training.ngram.trie import ContextGroup, NgramTrie, context_groups, first_of_each


def estimate_backoff(
    counts: NgramCounts,
    smoothing: Smoothing,
    vocabulary: np.ndarray | None = None,
    store: ArrayStore | None = None,
    threads: int = 1,
) -> NgramTable:
    """Estimate a backoff model, which sums to 1 after every context.

    N-grams below the minimum count are dropped, with all longer ones that contain them; their occurrences stay in the
    denominators.  A context depends only on its own counts, the counts of counts and the next lower order.  So groups
    of contexts are estimated independently, ``threads`` at once, and the results go to the store.

    vocabulary: ids ``[v]`` that get a probability even if they never occur. Raises ValueError without any token.
    """
    store = store or ArrayStore()
    tokens, unigram_counts = _with_vocabulary(counts[0], vocabulary)
    lower = _unigram_probabilities(tokens, unigram_counts, counts[0].counts_of_counts, smoothing)
    trie, vocabulary_size = NgramTrie(tokens), int(np.count_nonzero(tokens != BOS))
    with np.errstate(divide="ignore"):  # <s> has probability 0
        log_probs = [store.put("log_probs-1", np.log(lower))]
    ngrams, backoffs = [store.put("ngrams-1", tokens[:, np.newaxis])], []
    with ThreadPoolExecutor(threads) as pool:
        for order, seen in enumerate(counts[1:], 2):
            backoffs.append(store.zeros(f"backoffs-{order - 1}", len(ngrams[-1])))
            fitted = smoothing.fit(order, seen.counts_of_counts)
            estimator = _OrderEstimator(seen, smoothing, fitted, trie, lower, vocabulary_size)
            dtypes: dict[str, npt.DTypeLike] = {"log_probs": np.float64}
            if order < len(counts):  # the next order needs these
                dtypes |= {"keys": np.int64, "prefixes": np.int64, "suffixes": np.int64, "probs": np.float64}
            columns = {name: store.column(f"{name}-{order}", dtype) for name, dtype in dtypes.items()}
            columns["ngrams"] = store.column(f"ngrams-{order}", np.int32, order)
            for group in in_order(pool, estimator.estimate, context_groups(seen.ngrams), 2 * threads):
                for name, column in columns.items():
                    column.append(group[name])
                backoffs[-1][group["contexts"]] = group["log_weights"]
                store.release()
                release(seen.ngrams)
            finished = {name: column.finish() for name, column in columns.items()}
            ngrams.append(finished["ngrams"])
            log_probs.append(finished["log_probs"])
            if order < len(counts):
                trie.append(*(finished[name] for name in ("keys", "prefixes", "suffixes")))
                lower = finished["probs"]
    backoffs.append(store.zeros(f"backoffs-{len(counts)}", len(ngrams[-1])))
    return NgramTable(ngrams, log_probs, backoffs)


@dataclass(frozen=True, eq=False)
class _OrderEstimator:
    """Estimates the contexts of one order, group by group, from the order below.

    lower: ``[n]`` probabilities of the order below.
    vocabulary_size: the number of tokens that can follow a context.
    """

    counts: OrderCounts
    smoothing: Smoothing
    fitted: Estimator
    trie: NgramTrie
    lower: np.ndarray
    vocabulary_size: int

    def estimate(self, group: ContextGroup) -> dict[str, np.ndarray]:
        """By name: ``[n]`` of each n-gram that stays; ``[c]`` ``contexts``, rows of the lower order; their weights."""
        rows, row_counts = (np.asarray(array[group.span]) for array in (self.counts.ngrams, self.counts.counts))
        context_of = np.cumsum(group.first) + (group.context - 1)
        prefixes, suffixes = self.trie.locate(rows)
        linked = (prefixes >= 0) & (suffixes >= 0)
        if not linked.all():
            rows, row_counts, context_of, prefixes, suffixes = (
                array[linked] for array in (rows, row_counts, context_of, prefixes, suffixes)
            )
        starts = np.flatnonzero(first_of_each(prefixes))
        seen = ContextCounts(
            counts=row_counts,
            starts=starts,
            totals=self.counts.totals[context_of[starts]],
            types=self.counts.types[context_of[starts]],
            closing=rows[:, -1] == EOS,
            exhaustive=np.diff(starts, append=len(rows)) == self.vocabulary_size,
        )
        weights, probs = self.smoothing.backoff_weights(self.fitted(seen), self.lower[suffixes], starts)
        links = {"keys": self.trie.keys_of(rows[:, -1], prefixes), "prefixes": prefixes, "suffixes": suffixes}
        contexts = {"contexts": prefixes[starts], "log_weights": np.log(weights)}
        return {"ngrams": rows, "probs": probs, "log_probs": np.log(probs)} | links | contexts


def _with_vocabulary(counts: OrderCounts, vocabulary: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Unigrams ``[n]`` and their counts, 0 for ids of the vocabulary that never occur."""
    tokens, token_counts = counts.ngrams[:, 0], counts.counts
    if vocabulary is not None:
        union = np.union1d(tokens, vocabulary).astype(np.int32)
        merged = np.zeros(len(union), dtype=np.int64)
        merged[np.searchsorted(union, tokens)] = token_counts
        tokens, token_counts = union, merged
    expect(np.any(tokens != BOS), "at least one token", remedy="is the corpus empty?")
    return tokens, token_counts


def _unigram_probabilities(
    tokens: np.ndarray, counts: np.ndarray, counts_of_counts: np.ndarray, smoothing: Smoothing
) -> np.ndarray:
    """``[n]`` p(w), positive except of ``<s>``, which is never predicted."""
    probs = np.zeros(len(tokens))
    predicted = tokens != BOS
    seen, unseen = predicted & (counts > 0), predicted & (counts == 0)
    if not seen.any():
        probs[unseen] = 1 / unseen.sum()
        return probs
    order = ContextCounts(
        counts=counts[seen],
        starts=np.zeros(1, dtype=np.int64),
        totals=counts[seen].sum(keepdims=True),
        types=np.array([seen.sum()]),
        closing=tokens[seen] == EOS,
        exhaustive=np.array([not unseen.any()]),
    )
    probs[seen], probs[unseen] = smoothing.unigrams(order, counts_of_counts, int(unseen.sum()))
    return probs


def normalised_table(
    ngrams: list[np.ndarray], probs: list[np.ndarray], prefixes: list[np.ndarray], suffixes: list[np.ndarray]
) -> NgramTable:
    """The model of these explicit probabilities, with backoff weights that make every context sum to 1.

    All arguments are ``[n_o]`` or ``[n_o, o]`` per order, prefixes and suffixes rows of the order below.
    """
    probs, backoffs = list(probs), [np.zeros(len(rows)) for rows in ngrams]
    for index in range(1, len(ngrams)):
        starts = np.flatnonzero(first_of_each(prefixes[index]))
        weights, probs[index] = Smoothing.backoff_weights(probs[index], probs[index - 1][suffixes[index]], starts)
        backoffs[index - 1][prefixes[index][starts]] = np.log(weights)
    with np.errstate(divide="ignore"):
        return NgramTable(ngrams, [np.log(order_probs) for order_probs in probs], backoffs)
