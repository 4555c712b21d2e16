"""A backoff n-gram model as plain arrays: what estimators produce, ARPA files spell out and automata are built from.

Tokens are non-negative ids; the markers that only a language model knows have negative ids of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fst.printable import expect

BOS = -2
"""``<s>``: only ever the first token of an n-gram."""
EOS = -3
"""``</s>``: only ever the last token of an n-gram."""
UNK = -4
"""``<unk>``: stands for every token that the unigrams lack."""


@dataclass(frozen=True, eq=False)
class NgramTable:
    """An n-gram backoff model, order by order; index ``o - 1`` of every list belongs to order ``o``.

    ngrams: ``[n_o, o]`` int32 each, rows unique and in lexicographic order; every prefix (the context) and every
        suffix (the backoff) of a row is a row of the order below.
    log_probs: ``[n_o]`` float64 each, natural log p(last token | the tokens before it).
    backoffs: ``[n_o]`` float64 each, natural log of the backoff weight of the n-gram as a context; 0 where it is
        no context, and throughout the highest order.
    symbols: the word of every id, or None where tokens are the ids of some tokenizer.
    fingerprint: hash of the tokenizer's vocabulary that the ids belong to, or None.
    """

    ngrams: list[np.ndarray]
    log_probs: list[np.ndarray]
    backoffs: list[np.ndarray]
    symbols: list[str] | None = None
    fingerprint: str | None = None

    def __post_init__(self) -> None:
        counts = len(self.ngrams), len(self.log_probs), len(self.backoffs)
        wanted = "one array of ngrams, log_probs and backoffs for each of at least one order"
        expect(counts[0] == counts[1] == counts[2] >= 1, wanted, f"{counts[0]}, {counts[1]} and {counts[2]}")
        columns = zip(self.ngrams, self.log_probs, self.backoffs, strict=True)
        for order, (rows, log_probs, backoffs) in enumerate(columns, 1):
            fits = rows.shape[1:] == (order,) and log_probs.shape == backoffs.shape == rows.shape[:1]
            wanted = f"ngrams [n, {order}], log_probs [n] and backoffs [n]"
            expect(fits, wanted, f"{rows.shape}, {log_probs.shape} and {backoffs.shape}", of=f"order {order}")

    @property
    def order(self) -> int:
        return len(self.ngrams)

    @property
    def num_ngrams(self) -> list[int]:
        return [len(rows) for rows in self.ngrams]
