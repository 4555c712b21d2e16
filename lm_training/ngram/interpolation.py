"""Linear interpolation of two backoff models: p(w | h) = λ p_1(w | h) + (1 - λ) p_2(w | h).

A mixture of backoff models is no backoff model, since its two parts back off by themselves.  The model built here has
all n-grams of either, each with exactly the mixture's probability (a part that lacks the n-gram backs off for it), and
backoff weights that make every context sum to 1; only for n-grams that neither has is it an approximation.  A token
that one of the models does not know has probability 0 there.

(The static interpolation of SRILM's ``ngram -mix-lm``; Stolcke 2002.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fst.table import NgramTable
from lm_training.ngram.links import NgramLinks, first_of_each
from lm_training.ngram.perplexity import table_log_probs
from lm_training.ngram.smoothing.base import backoff_weights


def interpolate(first: NgramTable, second: NgramTable, weight: float) -> NgramTable:
    """The mixture that gives ``first`` the weight λ = ``weight`` and ``second`` the rest.

    Raises:
        ValueError: the weight is not between 0 and 1, the models belong to different vocabularies, or one is not closed.
    """
    if not 0 < weight < 1:
        raise ValueError(f"expected a weight between 0 and 1, got {weight}; use one of the models alone if that is meant")
    if first.symbols != second.symbols:
        raise ValueError("expected two models with the same words for the same ids, got different words; see in_one_vocabulary")
    if first.fingerprint and second.fingerprint and first.fingerprint != second.fingerprint:
        raise ValueError(
            f"expected two models of one tokenizer, got the fingerprints {first.fingerprint} and {second.fingerprint}; "
            "estimate both with the same"
        )
    tables = (first, second)
    ngrams, links, places = _union(tables)
    scores = [_log_probs_of(table, links, place) for table, place in zip(tables, places, strict=True)]
    shares = np.log([weight, 1 - weight])
    probs = [np.exp(np.logaddexp(shares[0] + one, shares[1] + other)) for one, other in zip(*scores, strict=True)]
    backoffs = [np.zeros(len(rows)) for rows in ngrams]
    for order in range(2, len(ngrams) + 1):
        prefixes, suffixes = links.prefixes[order - 1], links.suffixes[order - 1]
        starts = np.flatnonzero(first_of_each(prefixes))
        weights, probs[order - 1] = backoff_weights(probs[order - 1], probs[order - 2][suffixes], starts)
        backoffs[order - 2][prefixes[starts]] = np.log(weights)
    with np.errstate(divide="ignore"):
        log_probs = [np.log(p) for p in probs]
    return NgramTable(ngrams, log_probs, backoffs, first.symbols, first.fingerprint or second.fingerprint)


def in_one_vocabulary(first: NgramTable, second: NgramTable) -> tuple[NgramTable, NgramTable]:
    """The two tables with the same words for the same ids: those of ``first``, then those that only ``second`` has.

    Models of token ids come back as they are.

    Raises:
        ValueError: one model is of words and the other of token ids.
    """
    if (first.symbols is None) != (second.symbols is None):
        raise ValueError("expected two models of words or two of token ids, got one of each; estimate both over one vocabulary")
    if first.symbols is None or second.symbols is None or first.symbols == second.symbols:
        return first, second
    ids = {word: number for number, word in enumerate(first.symbols)}
    symbols = first.symbols + [word for word in second.symbols if word not in ids]
    ids = {word: number for number, word in enumerate(symbols)}
    new_ids = np.array([ids[word] for word in second.symbols], dtype=np.int32)
    ngrams, log_probs, backoffs = [], [], []
    for rows, row_log_probs, row_backoffs in zip(second.ngrams, second.log_probs, second.backoffs, strict=True):
        renamed = np.where(rows < 0, rows, new_ids[rows.clip(min=0)] if len(new_ids) else rows)
        by_id = np.lexsort(renamed.T[::-1])
        ngrams.append(renamed[by_id])
        log_probs.append(row_log_probs[by_id])
        backoffs.append(row_backoffs[by_id])
    return replace(first, symbols=symbols), NgramTable(ngrams, log_probs, backoffs, symbols, second.fingerprint)


def best_weight(first: NgramTable, second: NgramTable, tokens: np.ndarray, rounds: int = 30) -> float:
    """The λ under which the mixture, λ p_1 + (1 - λ) p_2 token by token, makes held-out ``tokens`` ``[n]`` likeliest.

    By expectation maximisation: λ becomes the mean share that ``first`` has in the probability of each token.  Tokens
    that neither model knows say nothing.
    """
    first_log_probs, second_log_probs = table_log_probs(first, tokens), table_log_probs(second, tokens)
    known = np.isfinite(first_log_probs) | np.isfinite(second_log_probs)
    if not known.any():
        raise ValueError(f"expected held-out tokens that the models know, got none among {len(tokens)}; give other text")
    odds = np.exp(np.clip(second_log_probs[known] - first_log_probs[known], -700, 700))
    weight = 0.5
    for _ in range(rounds):
        weight = float(np.mean(weight / (weight + (1 - weight) * odds)))
    return weight


def _union(tables: tuple[NgramTable, NgramTable]) -> tuple[list[np.ndarray], NgramLinks, list[list[np.ndarray]]]:
    """The n-grams of both tables, their links, and for each table and order the place ``[n_o]`` of its rows among them."""
    unigrams = np.union1d(*(table.ngrams[0][:, 0] for table in tables)).astype(np.int32)
    ngrams = [unigrams[:, np.newaxis]]
    links = NgramLinks(unigrams)
    parts = [NgramLinks.of(table.ngrams) for table in tables]
    places = [[np.searchsorted(unigrams, table.ngrams[0][:, 0])] for table in tables]
    for order in range(2, max(table.order for table in tables) + 1):
        members = [i for i in (0, 1) if tables[i].order >= order]
        prefixes = {i: places[i][-1][parts[i].prefixes[order - 1]] for i in members}
        suffixes = {i: places[i][-1][parts[i].suffixes[order - 1]] for i in members}
        keys = {i: prefixes[i] * links.radix + links.codes(tables[i].ngrams[order - 1][:, -1]) for i in members}
        union = np.unique(np.concatenate(list(keys.values())))
        rows = np.empty((len(union), order), dtype=np.int32)
        union_prefixes, union_suffixes = np.empty((2, len(union)), dtype=np.int64)
        for i in members:
            place = np.searchsorted(union, keys[i])
            rows[place], union_prefixes[place], union_suffixes[place] = tables[i].ngrams[order - 1], prefixes[i], suffixes[i]
            places[i].append(place)
        links.append(rows[:, -1], union_prefixes, union_suffixes)
        ngrams.append(rows)
    return ngrams, links, places


def _log_probs_of(table: NgramTable, links: NgramLinks, places: list[np.ndarray]) -> list[np.ndarray]:
    """Per order, ``[n_o]`` natural log p(w | h) that ``table`` gives each n-gram of ``links``, its own or not."""
    scores = [np.full(len(links.keys[0]), -np.inf)]
    scores[0][places[0]] = table.log_probs[0]
    for order in range(2, len(links.keys) + 1):
        backoffs = np.zeros(len(links.keys[order - 2]))
        if order - 1 <= table.order:
            backoffs[places[order - 2]] = table.backoffs[order - 2]
        score = backoffs[links.prefixes[order - 1]] + scores[-1][links.suffixes[order - 1]]
        if order <= table.order:
            score[places[order - 1]] = table.log_probs[order - 1]
        scores.append(score)
    return scores
