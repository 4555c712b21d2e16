"""Linear interpolation of two backoff models: p(w | h) = λ p_1(w | h) + (1 - λ) p_2(w | h).

A mixture of backoff models is no backoff model, since each of the two backs off by itself.  The model built here has
all n-grams of both, each with exactly the mixture's probability (a model without the n-gram backs off), and backoff
weights that make every context sum to 1; it approximates the mixture only for n-grams that neither has.  A token that
one of the models does not know has probability 0 in it.

(The static interpolation of SRILM's ``ngram -mix-lm``; Stolcke 2002.)
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fst.table import NgramTable
from latticebpd.checks import expect
from lm_training.ngram.backoff import normalised_table
from lm_training.ngram.perplexity import table_log_probs
from lm_training.ngram.trie import NgramTrie


def interpolate(first: NgramTable, second: NgramTable, weight: float) -> NgramTable:
    """The mixture of ``first`` by the weight λ = ``weight`` and ``second`` by 1 - λ; ValueError where the weight is not
    between 0 and 1, the vocabularies differ, or a model is not closed."""
    expect(0 < weight < 1, "a weight between 0 and 1", weight, "else use one of the models by itself")
    same_words = first.symbols == second.symbols
    expect(same_words, "two models with the same words for the same ids", "others", "see in_one_vocabulary")
    tables, fingerprints = (first, second), {first.fingerprint, second.fingerprint} - {None}
    got = f"the fingerprints {first.fingerprint} and {second.fingerprint}"
    expect(len(fingerprints) < 2, "two models of one tokenizer", got, "estimate both with the same")
    ngrams, trie, union_rows = _union(tables)
    scores = [_log_probs_of(table, trie, rows) for table, rows in zip(tables, union_rows, strict=True)]
    shares = np.log([weight, 1 - weight])
    probs = [np.exp(np.logaddexp(shares[0] + one, shares[1] + other)) for one, other in zip(*scores, strict=True)]
    mixture = normalised_table(ngrams, probs, trie.prefixes, trie.suffixes)
    return replace(mixture, symbols=first.symbols, fingerprint=first.fingerprint or second.fingerprint)


def in_one_vocabulary(first: NgramTable, second: NgramTable) -> tuple[NgramTable, NgramTable]:
    """The two tables with the same words for the same ids: those of ``first``, then those that only ``second`` has.

    Models of token ids are returned unchanged; ValueError where only one model is of words.
    """
    alike, wanted = (first.symbols is None) == (second.symbols is None), "two models of words or two of token ids"
    expect(alike, wanted, "one of each", "estimate both over one vocabulary")
    if first.symbols is None or second.symbols is None or first.symbols == second.symbols:
        return first, second
    symbols = list(dict.fromkeys(first.symbols + second.symbols))
    ids = {word: number for number, word in enumerate(symbols)}
    new_ids = np.array([ids[word] for word in second.symbols], dtype=np.int32)
    renamed = [np.where(rows < 0, rows, new_ids[rows.clip(min=0)] if len(new_ids) else rows) for rows in second.ngrams]
    orders = [np.lexsort(rows.T[::-1]) for rows in renamed]
    ngrams, log_probs, backoffs = (
        [values[by_id] for values, by_id in zip(column, orders, strict=True)]
        for column in (renamed, second.log_probs, second.backoffs)
    )
    return replace(first, symbols=symbols), NgramTable(ngrams, log_probs, backoffs, symbols, second.fingerprint)


def best_weight(first: NgramTable, second: NgramTable, tokens: np.ndarray, rounds: int = 30) -> float:
    """The λ of the mixture, token by token, that gives held-out ``tokens`` ``[n]`` the highest likelihood.

    Expectation maximisation: λ becomes the mean share of ``first`` in the probability of each token.  Tokens that
    neither model knows are skipped.
    """
    first_log_probs, second_log_probs = table_log_probs(first, tokens), table_log_probs(second, tokens)
    known = np.isfinite(first_log_probs) | np.isfinite(second_log_probs)
    expect(known.any(), "held-out tokens that the models know", f"none among {len(tokens)}", "give other text")
    odds = np.exp(np.clip(second_log_probs[known] - first_log_probs[known], -700, 700))
    weight = 0.5
    for _ in range(rounds):
        weight = float(np.mean(weight / (weight + (1 - weight) * odds)))
    return weight


def _union(tables: tuple[NgramTable, NgramTable]) -> tuple[list[np.ndarray], NgramTrie, list[list[np.ndarray]]]:
    """The n-grams of both tables, their trie, and per table and order the union's rows ``[n_o]`` of its n-grams."""
    unigrams = np.union1d(*(table.ngrams[0][:, 0] for table in tables)).astype(np.int32)
    ngrams, trie = [unigrams[:, np.newaxis]], NgramTrie(unigrams)
    tries = [NgramTrie.of(table.ngrams) for table in tables]
    union_rows = [[np.searchsorted(unigrams, table.ngrams[0][:, 0])] for table in tables]
    for order in range(2, max(table.order for table in tables) + 1):
        members = [i for i in (0, 1) if tables[i].order >= order]
        prefixes = {i: union_rows[i][-1][tries[i].prefixes[order - 1]] for i in members}
        suffixes = {i: union_rows[i][-1][tries[i].suffixes[order - 1]] for i in members}
        keys = {i: trie.keys_of(tables[i].ngrams[order - 1][:, -1], prefixes[i]) for i in members}
        union = np.unique(np.concatenate(list(keys.values())))
        rows = np.empty((len(union), order), dtype=np.int32)
        union_prefixes, union_suffixes = np.empty((2, len(union)), dtype=np.int64)
        for i in members:
            own = np.searchsorted(union, keys[i])
            rows[own], union_prefixes[own], union_suffixes[own] = tables[i].ngrams[order - 1], prefixes[i], suffixes[i]
            union_rows[i].append(own)
        trie.append(union, union_prefixes, union_suffixes)
        ngrams.append(rows)
    return ngrams, trie, union_rows


def _log_probs_of(table: NgramTable, trie: NgramTrie, rows: list[np.ndarray]) -> list[np.ndarray]:
    """Per order, ``[n_o]`` natural log p(w | h) by ``table`` of each n-gram of the trie; ``rows`` are its own."""
    scores = [np.full(len(trie.keys[0]), -np.inf)]
    scores[0][rows[0]] = table.log_probs[0]
    for order in range(2, len(trie.keys) + 1):
        backoffs = np.zeros(len(trie.keys[order - 2]))
        if order - 1 <= table.order:
            backoffs[rows[order - 2]] = table.backoffs[order - 2]
        score = backoffs[trie.prefixes[order - 1]] + scores[-1][trie.suffixes[order - 1]]
        if order <= table.order:
            score[rows[order - 1]] = table.log_probs[order - 1]
        scores.append(score)
    return scores
