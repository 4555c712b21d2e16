"""Entropy pruning: leave out the n-grams that a backoff model misses least (Stolcke 1998).

Without the n-gram h w, the model says α'(h) p(w | h') for it, with h' the context without its first word and

    α(h)  = (1 - Σ p(v | h)) / (1 - Σ p(v | h'))         v: all words explicit after h,
    α'(h) = (1 - Σ p(v | h) + p(w | h)) / (1 - Σ p(v | h') + p(w | h')),

and the divergence from the model with it is

    D(h, w) = -P(h) { p(w | h) [log p(w | h') + log α'(h) - log p(w | h)] + (1 - Σ p(v | h)) [log α'(h) - log α(h)] }.

The *loss* is the relative rise of perplexity, exp(D) - 1.  P(h) is the chain of conditional probabilities of h's words;
``<s>``, which has none, counts as often as ``</s>``.

An automaton needs the prefix and the suffix of every n-gram it has, so an n-gram stays as long as one stays that needs
it.  Nothing in D(h, w) depends on longer n-grams; taking the highest order first, as Stolcke does, therefore comes to
keeping every n-gram whose *worth*, the highest loss among itself and all that need it, is at least the threshold.  The
n-grams worth most also form a closed model, of whatever size is asked for.
"""

from __future__ import annotations

import numpy as np

from fst.files import release
from fst.table import BOS, EOS, NgramTable
from lm_training.ngram.links import NgramLinks, first_of_each, groups_of_contexts
from lm_training.ngram.smoothing.base import backoff_weights


def prune(table: NgramTable, theta: float | None = None, max_ngrams: int | None = None) -> NgramTable:
    """Leave out every n-gram that costs less than ``theta``, and the cheapest beyond ``max_ngrams``.

    Unigrams always stay.  Backoff weights are computed anew.

    Args:
        table: the model; it must be closed, as ``fst.table`` says.
        theta: the relative rise of perplexity from which on an n-gram is worth keeping; OpenGrm's and SRILM's threshold.
        max_ngrams: how many n-grams, of all orders together, may stay at most.

    Raises:
        ValueError: ``max_ngrams`` is less than there are unigrams, or the table is not closed.
    """
    if theta is not None and not theta >= 0:
        raise ValueError(f"expected a threshold of at least 0, got {theta}")
    num_unigrams = table.num_ngrams[0]
    if max_ngrams is not None and max_ngrams < num_unigrams:
        raise ValueError(f"expected room for the {num_unigrams} unigrams, which always stay, got max_ngrams={max_ngrams}; allow more")
    links = NgramLinks.of(table.ngrams)
    worths = _worths(links, losses(table, links))
    kept = [worth >= (theta or 0.0) for worth in worths]
    if max_ngrams is not None and sum(int(mask.sum()) for mask in kept) > max_ngrams:
        _keep_most_worth(kept, worths, max_ngrams - num_unigrams)
    return _restricted(table, links, kept)


def losses(table: NgramTable, links: NgramLinks) -> list[np.ndarray]:
    """``[n_o]`` per order: the relative rise of perplexity if this n-gram alone were left out.

    At least 0, rounding aside; infinite for unigrams and where a probability of 0 leaves it undefined.
    """
    history = _start_log_probs(table)
    result = [np.full(len(history), np.inf)]
    for order in range(2, table.order + 1):
        loss, longer = np.empty((2, table.num_ngrams[order - 1]))
        for group in groups_of_contexts(table.ngrams[order - 1]):
            prefixes, suffixes = links.prefixes[order - 1][group.span], links.suffixes[order - 1][group.span]
            log_high, log_low = table.log_probs[order - 1][group.span], table.log_probs[order - 2][suffixes]
            log_backoff = table.backoffs[order - 2][prefixes]
            loss[group.span] = _losses(log_high, log_low, log_backoff, history[prefixes], group.first)
            longer[group.span] = history[prefixes] + log_high
            release(table.ngrams[order - 1])
        result.append(loss)
        history = longer
    return result


def _losses(log_high: np.ndarray, log_low: np.ndarray, log_backoff: np.ndarray, log_history: np.ndarray, first: np.ndarray) -> np.ndarray:
    """``[n]`` losses of n-grams context after context: exp(D) - 1 with all its parts as they stand in the formula above.

    log_high, log_low, log_backoff, log_history: ``[n]`` natural logs of p(w | h), p(w | h'), α(h) and P(h).
    first: ``[n]`` bool, where each context begins.
    """
    high, low = np.exp(log_high), np.exp(log_low)
    starts, context_of = np.flatnonzero(first), np.cumsum(first) - 1
    left = (1 - np.add.reduceat(high, starts))[context_of].clip(min=0)
    unseen = (1 - np.add.reduceat(low, starts))[context_of].clip(min=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of 0 makes nan
        log_new_backoff = np.log((left + high) / (unseen + low))
        explicit_part = high * (log_low + log_new_backoff - log_high)
        unseen_part = left * (log_new_backoff - log_backoff)
        loss: np.ndarray = np.expm1(-np.exp(log_history) * (explicit_part + unseen_part))
    return np.where(np.isfinite(loss), loss.clip(min=0), np.inf)


def _start_log_probs(table: NgramTable) -> np.ndarray:
    """``[n_1]`` natural log P(h) of contexts of one word."""
    tokens = table.ngrams[0][:, 0]
    starts = table.log_probs[0].copy()
    starts[tokens == BOS] = table.log_probs[0][tokens == EOS].max(initial=-np.inf)
    return starts


def _worths(links: NgramLinks, order_losses: list[np.ndarray]) -> list[np.ndarray]:
    """Per order the highest loss among each n-gram and all that need it, directly or not."""
    worths = [loss.copy() for loss in order_losses]
    for order in range(len(worths), 1, -1):
        np.maximum.at(worths[order - 2], links.prefixes[order - 1], worths[order - 1])
        np.maximum.at(worths[order - 2], links.suffixes[order - 1], worths[order - 1])
    return worths


def _keep_most_worth(kept: list[np.ndarray], worths: list[np.ndarray], room: int) -> None:
    """Narrow ``kept`` to the ``room`` n-grams above order 1 that are worth most, equals by order and then by rank.

    What an n-gram needs is worth at least as much and of lower order, so it comes before it.
    """
    chosen = np.concatenate([np.flatnonzero(mask) + offset for mask, offset in zip(kept[1:], _offsets(kept[1:]), strict=True)])
    values = np.concatenate(worths[1:])[chosen]
    best = chosen[np.argsort(-values, kind="stable")[:room]]
    flags = np.zeros(sum(len(mask) for mask in kept[1:]), dtype=bool)
    flags[best] = True
    for mask, offset in zip(kept[1:], _offsets(kept[1:]), strict=True):
        mask[:] = flags[offset : offset + len(mask)]


def _offsets(masks: list[np.ndarray]) -> list[int]:
    return [0, *np.cumsum([len(mask) for mask in masks])[:-1].tolist()]


def _restricted(table: NgramTable, links: NgramLinks, kept: list[np.ndarray]) -> NgramTable:
    """The n-grams that are kept, with backoff weights that make every context sum to 1 again."""
    ngrams = [rows[mask] for rows, mask in zip(table.ngrams, kept, strict=True)]
    probs = [np.exp(log_probs[mask]) for log_probs, mask in zip(table.log_probs, kept, strict=True)]
    backoffs = [np.zeros(len(rows)) for rows in ngrams]
    for order in range(2, table.order + 1):
        mask = kept[order - 1]
        places = np.cumsum(kept[order - 2]) - 1  # rows of the order below, after what goes is gone
        prefixes, suffixes = places[links.prefixes[order - 1][mask]], places[links.suffixes[order - 1][mask]]
        starts = np.flatnonzero(first_of_each(prefixes))
        weights, probs[order - 1] = backoff_weights(probs[order - 1], probs[order - 2][suffixes], starts)
        backoffs[order - 2][prefixes[starts]] = np.log(weights)
    while len(ngrams) > 1 and not len(ngrams[-1]):
        ngrams, probs, backoffs = ngrams[:-1], probs[:-1], backoffs[:-1]
    with np.errstate(divide="ignore"):
        log_probs = [np.log(p) for p in probs]
    return NgramTable(ngrams, log_probs, backoffs, table.symbols, table.fingerprint)
