"""Perplexity: how well a model predicts tokens that it was not trained on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from fst.model import NgramModel
from fst.table import BOS, EOS, UNK, NgramTable
from latticebpd.checks import expect
from lm_training.ngram.trie import NgramTrie, take


@dataclass(frozen=True)
class Perplexity:
    """How well a model predicts a text.

    num_tokens: scored tokens, out-of-vocabulary ones excluded.
    num_oov: tokens without a probability; they are skipped, and no context reaches across them.
    log_prob: natural log of the probability of the scored tokens.
    log10_prob: the same to base 10, as in ARPA files and SRILM.
    perplexity: exp(-log_prob / num_tokens); nan without tokens.
    """

    num_tokens: int
    num_oov: int
    log_prob: float
    log10_prob: float
    perplexity: float


def perplexity(model: NgramModel, tokens: np.ndarray) -> Perplexity:
    """Perplexity of one stream of ids ``[n]``; ``<s>`` (``fst.table.BOS``) starts a sentence and is not scored.

    Ids without a unigram are scored as ``<unk>`` if the model has it, and are out of vocabulary if not.
    """
    tokens = np.asarray(tokens)
    expect(tokens.ndim == 1, "a flat array of token ids", f"shape {tokens.shape}")
    predicted = tokens != BOS
    known = predicted & _in_vocabulary(model, tokens)
    log_prob, num_tokens = _log_prob(model, tokens, known), int(known.sum())
    per_token = math.exp(-log_prob / num_tokens) if num_tokens else math.nan
    return Perplexity(num_tokens, int(predicted.sum()) - num_tokens, log_prob, log_prob / math.log(10), per_token)


def _in_vocabulary(model: NgramModel, tokens: np.ndarray) -> np.ndarray:
    """``[n]`` bool: whether the model has a probability for the token."""
    if model.unk_label:
        return np.ones(len(tokens), dtype=bool)
    state = model.states[model.unigram_state]
    labels = model.arcs["ilabel"][int(state["pos"]) : int(state["pos"]) + int(state["narcs"])]
    return np.isin(tokens, labels - 1) | (model.core.has_end & (tokens == EOS))


def _log_prob(model: NgramModel, tokens: np.ndarray, known: np.ndarray) -> float:
    """Natural log-probability of all known tokens, segment by segment between unknown ones."""
    ids = np.where(tokens == UNK, model.vocab_size, tokens.astype(np.int64))  # an id beyond the vocabulary is <unk>
    total = 0.0
    # No context crosses an unknown token or begins before <s>, and </s> is no context.
    cuts = np.flatnonzero(~known | (tokens == EOS))
    for start, stop in zip(np.append(0, cuts + 1), np.append(cuts, len(tokens)), strict=True):
        bos = bool(start > 0 and tokens[start - 1] == BOS)
        eos = bool(stop < len(tokens) and tokens[stop] == EOS and known[stop])
        if stop > start or eos:
            total += model.score(ids[start:stop], bos=bos, eos=eos)
    return total


def table_log_probs(table: NgramTable, tokens: np.ndarray) -> np.ndarray:
    """``[n]`` natural log p(token | all tokens before it) under a table; -inf for tokens without a probability.

    One vectorised lookup per order, for all tokens at once; shares no code with the compiled core.
    """
    trie = NgramTrie.of(table.ngrams)
    tokens = np.asarray(tokens).astype(np.int64)
    if UNK in table.ngrams[0][:, 0]:
        tokens = np.where(np.isin(tokens, table.ngrams[0][:, 0]), tokens, UNK)
    # rows: of the n-gram of the current length that ends at each token, -1 if the model lacks it.
    rows = trie.find(1, np.zeros(len(tokens), dtype=np.int64), tokens)
    log_probs = take(table.log_probs[0], rows, -np.inf)
    for order in range(2, table.order + 1):
        contexts = np.concatenate([[-1], rows[:-1]])[: len(rows)]
        rows = trie.find(order, contexts, tokens)
        backed_off = log_probs + take(table.backoffs[order - 2], contexts, 0.0)
        log_probs = np.where(rows < 0, backed_off, take(table.log_probs[order - 1], rows, 0.0))
    return log_probs
