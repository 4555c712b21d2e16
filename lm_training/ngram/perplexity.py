"""Perplexity: how well a model predicts tokens it was not trained on.

``table_log_probs`` scores a whole text at once with sorted keys alone (``lm_training.ngram.links``), one vectorised lookup
per order instead of one walk per token.  It shares no code with the compiled core, and so checks it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fst.model import NgramModel
from fst.table import BOS, EOS, UNK, NgramTable
from lm_training.ngram.links import NgramLinks, take


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
    tokens = np.asarray(tokens)
    if tokens.ndim != 1:
        raise ValueError(f"expected a flat array of token ids, got shape {tokens.shape}")
    predicted = tokens != BOS
    if isinstance(model, NgramModel):
        known = predicted & _in_vocabulary(model, tokens)
        log_prob = _model_log_prob(model, tokens, known)
    else:
        log_probs = table_log_probs(model, tokens)
        known = predicted & np.isfinite(log_probs)
        log_prob = float(log_probs[known].sum())
    num_tokens = int(known.sum())
    return Perplexity(
        num_tokens=num_tokens,
        num_oov=int(predicted.sum()) - num_tokens,
        log_prob=log_prob,
        log10_prob=log_prob / math.log(10),
        perplexity=math.exp(-log_prob / num_tokens) if num_tokens else math.nan,
    )


def _in_vocabulary(model: NgramModel, tokens: np.ndarray) -> np.ndarray:
    """``[n]`` bool: whether the model has a probability for the token."""
    if model.unk_label:
        return np.ones(len(tokens), dtype=bool)
    state = model.states[model.unigram_state]
    labels = model.arcs["ilabel"][int(state["pos"]) : int(state["pos"]) + int(state["narcs"])]
    known: np.ndarray = np.isin(tokens, labels - 1)
    if np.isfinite(state["final"]):
        known |= tokens == EOS
    return known


def _model_log_prob(model: NgramModel, tokens: np.ndarray, known: np.ndarray) -> float:
    """Natural log-probability of all known tokens, by the core, from each one that is not known to the next."""
    ids = np.where(tokens == UNK, model.vocab_size, tokens.astype(np.int64))  # any id beyond the vocabulary is <unk>
    total = 0.0
    # No context crosses an unknown token or begins before <s>, and </s> is none itself.
    cuts = np.flatnonzero(~known | (tokens == EOS))
    for start, stop in zip(np.append(0, cuts + 1), np.append(cuts, len(tokens)), strict=True):
        bos = bool(start > 0 and tokens[start - 1] == BOS)
        eos = bool(stop < len(tokens) and tokens[stop] == EOS and known[stop])
        if stop > start or eos:
            total += model.score(ids[start:stop], bos=bos, eos=eos)
    return total


def table_log_probs(table: NgramTable, tokens: np.ndarray) -> np.ndarray:
    """``[n]`` natural log p(token | all tokens before it) under the model; -inf for tokens without a probability."""
    links = NgramLinks.of(table.ngrams)
    tokens = np.asarray(tokens).astype(np.int64)
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
