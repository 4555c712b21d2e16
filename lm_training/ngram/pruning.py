"""Entropy pruning: drop the n-grams whose loss changes a backoff model least (Stolcke 1998).

Without the n-gram h w, the model gives it α'(h) p(w | h'), with h' the context h without its first word and

    α(h)  = (1 - Σ p(v | h)) / (1 - Σ p(v | h'))         v: all words explicit after h,
    α'(h) = (1 - Σ p(v | h) + p(w | h)) / (1 - Σ p(v | h') + p(w | h')),

and the divergence from the complete model is

    D(h, w) = -P(h) { p(w | h) [log p(w | h') + log α'(h) - log p(w | h)] + (1 - Σ p(v | h)) [log α'(h) - log α(h)] }.

The *loss* is the relative rise of perplexity, exp(D) - 1.  P(h) is the product of the conditional probabilities of h's
words; ``<s>``, which has none, gets that of ``</s>``.

An automaton needs the prefix and the suffix of every n-gram, so an n-gram stays while one that needs it stays.  D(h, w)
does not depend on longer n-grams.  So Stolcke's procedure, highest order first, keeps every n-gram whose *closure
loss*, the highest loss among itself and all that need it, reaches the threshold.  The n-grams of highest closure loss
also form a closed model, of any size.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fst.files import release
from fst.table import BOS, EOS, NgramTable
from latticebpd.checks import expect
from lm_training.ngram.backoff import normalised_table
from lm_training.ngram.trie import NgramTrie, context_groups


def prune(table: NgramTable, theta: float | None = None, max_ngrams: int | None = None) -> NgramTable:
    """Drop every n-gram whose loss is below ``theta``, and those of least loss beyond ``max_ngrams``.

    Unigrams always stay.  Backoff weights are recomputed.

    theta: the relative rise of perplexity from which on an n-gram is kept; OpenGrm's and SRILM's threshold. max_ngrams:
    the most n-grams, of all orders together, that may stay. Raises ValueError where that is less than the number of
    unigrams, or the table is not closed, see ``fst.table``.
    """
    expect(theta is None or theta >= 0, "a threshold of at least 0", theta)
    num_unigrams = table.num_ngrams[0]
    wanted = f"room for the {num_unigrams} unigrams, which always stay"
    expect(max_ngrams is None or max_ngrams >= num_unigrams, wanted, f"max_ngrams={max_ngrams}", "allow more")
    trie = NgramTrie.of(table.ngrams)
    closure = losses(table, trie)
    for order in range(table.order, 1, -1):
        for needed in (trie.prefixes[order - 1], trie.suffixes[order - 1]):
            np.maximum.at(closure[order - 2], needed, closure[order - 1])
    kept = [order_losses >= (theta or 0.0) for order_losses in closure]
    if max_ngrams is not None and sum(int(mask.sum()) for mask in kept) > max_ngrams:
        # Equal losses by order, then by row: an n-gram comes after those that it needs.
        flat = np.where(np.concatenate(kept), np.concatenate(closure), -1.0)
        mask = np.zeros(len(flat), dtype=bool)
        mask[np.argsort(-flat, kind="stable")[:max_ngrams]] = True
        kept = np.split(mask, np.cumsum(table.num_ngrams)[:-1])
    return _restricted(table, trie, kept)


def losses(table: NgramTable, trie: NgramTrie) -> list[np.ndarray]:
    """``[n_o]`` per order: the relative rise of perplexity without only this n-gram.

    At least 0, rounding aside; infinite for unigrams and if a probability of 0 leaves it undefined.
    """
    tokens = table.ngrams[0][:, 0]
    history = table.log_probs[0].copy()  # natural log P(h)
    history[tokens == BOS] = table.log_probs[0][tokens == EOS].max(initial=-np.inf)
    result = [np.full(len(history), np.inf)]
    for order in range(2, table.order + 1):
        loss, longer = np.empty((2, table.num_ngrams[order - 1]))
        for group in context_groups(table.ngrams[order - 1]):
            prefixes, suffixes = trie.prefixes[order - 1][group.span], trie.suffixes[order - 1][group.span]
            log_high, log_low = table.log_probs[order - 1][group.span], table.log_probs[order - 2][suffixes]
            log_backoff = table.backoffs[order - 2][prefixes]
            loss[group.span] = _losses(log_high, log_low, log_backoff, history[prefixes], group.first)
            longer[group.span] = history[prefixes] + log_high
            release(table.ngrams[order - 1])
        result.append(loss)
        history = longer
    return result


def _losses(
    log_high: np.ndarray, log_low: np.ndarray, log_backoff: np.ndarray, log_history: np.ndarray, first: np.ndarray
) -> np.ndarray:
    """``[n]`` losses of n-grams, context after context, by the formula above.

    log_high, log_low, log_backoff, log_history: ``[n]`` natural logs of p(w | h), p(w | h'), α(h) and P(h).
    first: ``[n]`` bool, the first n-gram of each context.
    """
    high, low = np.exp(log_high), np.exp(log_low)
    starts, context_of = np.flatnonzero(first), np.cumsum(first) - 1
    left = (1 - np.add.reduceat(high, starts))[context_of].clip(min=0)
    unseen = (1 - np.add.reduceat(low, starts))[context_of].clip(min=0)
    with np.errstate(divide="ignore", invalid="ignore"):  # a probability of 0 gives nan
        log_new_backoff = np.log((left + high) / (unseen + low))
        explicit_part = high * (log_low + log_new_backoff - log_high)
        unseen_part = left * (log_new_backoff - log_backoff)
        loss = np.expm1(-np.exp(log_history) * (explicit_part + unseen_part))
    return np.where(np.isfinite(loss), loss.clip(min=0), np.inf)


def _restricted(table: NgramTable, trie: NgramTrie, kept: list[np.ndarray]) -> NgramTable:
    """The n-grams that are kept, ``[n_o]`` bool per order, without empty highest orders."""
    while len(kept) > 1 and not kept[-1].any():
        kept = kept[:-1]
    ngrams = [rows[mask] for rows, mask in zip(table.ngrams, kept, strict=False)]
    probs = [np.exp(log_probs[mask]) for log_probs, mask in zip(table.log_probs, kept, strict=False)]
    new_rows = [np.zeros(1, dtype=np.int64), *(np.cumsum(mask) - 1 for mask in kept)]  # of the order below
    prefixes, suffixes = (
        [new[rows[mask]] for new, rows, mask in zip(new_rows, links, kept, strict=False)]
        for links in (trie.prefixes, trie.suffixes)
    )
    pruned = normalised_table(ngrams, probs, prefixes, suffixes)
    return replace(pruned, symbols=table.symbols, fingerprint=table.fingerprint)
