"""Perplexity: how well a model predicts tokens it was not trained on.

``table_log_probs`` scores a whole text at once with sorted keys alone (``lm_training.links``), one vectorised lookup
per order instead of one walk per token.  It shares no code with the compiled core, and so checks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fst.model import NgramModel
from fst.table import BOS, UNK, NgramTable
from lm_training.links import NgramLinks, take


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    num_tokens: tokens scored, out-of-vocabulary ones not counted.
    num_oov: tokens that the model gives no probability; they are left out, and no context reaches across them.
    log_prob: natural log of the probability of the tokens scored.
    log10_prob: the same to base 10, as ARPA files and SRILM have it.
    perplexity: exp(-log_prob / num_tokens); nan without a token.
    """

    num_tokens: int
    num_oov: int
    log_prob: float
    log10_prob: float
    perplexity: float


def perplexity(model: NgramTable | NgramModel, tokens: np.ndarray) -> Perplexity:
    """Perplexity of one stream of ids ``[n]``; ``<s>`` (``fst.table.BOS``) in it starts a sentence and is not scored.

    Ids that are no unigram are read as ``<unk>`` if the model has it, and are out of vocabulary if not.
    """
    log_probs = table_log_probs(model.to_table() if isinstance(model, NgramModel) else model, tokens)
    predicted = np.asarray(tokens) != BOS
    known = predicted & np.isfinite(log_probs)
    num_tokens = int(known.sum())
    log_prob = float(log_probs[known].sum())
    return Perplexity(
        num_tokens=num_tokens,
        num_oov=int(predicted.sum()) - num_tokens,
        log_prob=log_prob,
        log10_prob=log_prob / math.log(10),
        perplexity=math.exp(-log_prob / num_tokens) if num_tokens else math.nan,
    )


def table_log_probs(table: NgramTable, tokens: np.ndarray) -> np.ndarray:
    """``[n]`` natural log p(token | all tokens before it) under the model; -inf for tokens without a probability."""
    tokens = np.asarray(tokens)
    if tokens.ndim != 1:
        raise ValueError(f"expected a flat array of token ids, got shape {tokens.shape}")
    links = NgramLinks.of(table.ngrams)
    tokens = tokens.astype(np.int64)
    known = np.isin(tokens, table.ngrams[0][:, 0])
    if UNK in table.ngrams[0][:, 0]:
        tokens = np.where(known, tokens, UNK)
    # rows: of the n-gram of the current length that ends at each token, -1 if the model lacks it.
    rows = links.find(1, np.zeros(len(tokens), dtype=np.int64), tokens)
    log_probs = take(table.log_probs[0], rows, -np.inf)
    for order in range(2, table.order + 1):
        contexts = np.concatenate([[-1], rows[:-1]])[: len(rows)]
        rows = links.find(order, contexts, tokens)
        backed_off = log_probs + take(table.backoffs[order - 2], contexts, 0.0)
        log_probs = np.where(rows < 0, backed_off, take(table.log_probs[order - 1], rows, 0.0))
    return log_probs
