"""A language model that reads texts, and prefixes that continue them.

Rescoring asks for the next token's probabilities after a text, then after the text and a drafted token, and so on, for
many drafts of the same text. A *reader* answers level by level: ``read`` takes the texts, ``grow`` adds one token to
any number of prefixes at a time. All prefixes of a text attend to the one copy of it in the cache (tree attention).
Texts stay in the cache between calls: the next ``read`` matches its texts with those of any row, and the model reads
the rest, in a decode the tokens that the last call committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree_attention import TreeVerifier
from latticebpd.verification.tree_positions import PositionScheme
from latticebpd.verification.verifier import Verified
from latticebpd.verification.verifier_choice import verifier_for

PROJECTED = 256
"""The most prefixes whose logits over the full vocabulary are in memory at a time."""

UNSEEN = -1000.0
"""The least log-probability (Kim 2024, appendix C.3): a path stays finite where the model rules out a token."""


@dataclass(frozen=True, eq=False)
class Outputs:
    """What a model predicts after each of ``n`` prefixes.

    Log-probabilities are logits less a constant of the prefix, which takes a projection to the full vocabulary. Where
    it does not matter, or not yet, the candidates' own rows of the output embedding suffice.

    rows, columns: ``[n]`` the positions of the prefixes' last tokens in the pass ``verified``.
    embedding: weight and bias of the output embedding, if logits are exactly its product with the hidden state.
    """

    verified: Verified
    rows: Sequence[int]
    columns: Sequence[int]
    embedding: tuple[Tensor, Tensor | None] | None = None

    @torch.inference_mode()
    def log_probs(self, candidates: np.ndarray) -> np.ndarray:
        """``[n, k]`` token ids -> ``[n, k]`` natural log p(token | prefix), at least ``UNSEEN``, float64.

        Ids that the model does not know have ``UNSEEN``; results for negative ids are meaningless.
        """
        if len(self.rows) > PROJECTED:
            parts = np.array_split(np.arange(len(self.rows)), -(-len(self.rows) // PROJECTED))
            return np.concatenate([self.at(part).log_probs(candidates[part]) for part in parts])
        logits = _float32(self.verified.logits_of(self.rows, self.columns))
        chosen = logits.gather(1, _known(candidates, logits.shape[1], logits.device))
        return _bounded(chosen - logits.logsumexp(dim=1, keepdim=True), candidates < logits.shape[1])

    @torch.inference_mode()
    def scores(self, candidates: np.ndarray) -> np.ndarray:
        """``log_probs`` plus a constant for each prefix, without a projection to the full vocabulary if possible."""
        if self.embedding is None:
            return self.log_probs(candidates)
        weight, bias = self.embedding
        ids = _known(candidates, len(weight), weight.device)
        chosen = torch.einsum("nkh,nh->nk", weight[ids], self.hidden)
        return _bounded(_float32(chosen if bias is None else chosen + bias[ids]), candidates < len(weight))

    def at(self, indices: np.ndarray) -> Outputs:
        """Those of some prefixes, in this order."""
        rows, columns = ([values[i] for i in indices.tolist()] for values in (self.rows, self.columns))
        return replace(self, rows=rows, columns=columns)

    @property
    def hidden(self) -> Tensor:
        """``[n, hidden]``."""
        return self.verified.hidden[list(self.rows), list(self.columns)]


@torch.inference_mode()
def log_norms(levels: Sequence[Outputs]) -> list[np.ndarray]:
    """The constants in the ``scores`` of several outputs of one reader, ``[n]`` each, from one projection."""
    if not levels or (embedding := levels[0].embedding) is None:
        return [np.zeros(len(level.rows)) for level in levels]
    hidden = torch.cat([level.hidden for level in levels]).split(PROJECTED)
    sums = torch.cat([_float32(F.linear(part, *embedding)).logsumexp(dim=1).double().cpu() for part in hidden])
    return [part.numpy() for part in sums.split([len(level.rows) for level in levels])]


def _known(candidates: np.ndarray, vocab_size: int, device: torch.device) -> Tensor:
    """The candidates' ids, others replaced by ids that the model knows."""
    return torch.from_numpy(candidates.clip(0, vocab_size - 1).astype(np.int64)).to(device)


def _float32(logits: Tensor) -> Tensor:
    """In float32 at least."""
    return logits if logits.dtype == torch.float64 else logits.float()


def _bounded(values: Tensor, known: np.ndarray) -> np.ndarray:
    return np.where(known, np.maximum(values.double().cpu().numpy(), UNSEEN), UNSEEN)


Reader: TypeAlias = "CachedReader | RecomputingReader"


def reader_for(model: AnyModel, use_cache: bool = True) -> Reader:
    """The fastest reader that is correct for the model; without ``use_cache``, one that reads full texts every time."""
    target = target_model(model)
    if isinstance(target, EngineModel):
        return EngineReader(target)
    stock = TransformersModel.of(model).model
    verifier = verifier_for(stock, use_cache=use_cache)
    return CachedReader(stock, verifier.placement) if isinstance(verifier, TreeVerifier) else RecomputingReader(stock)


class CachedReader:
    """Tree attention over a key-value cache.

    The cache holds the texts, as in ``TreeVerifier``, then the columns of the levels that have been grown.
    """

    model: PreTrainedModel | EngineModel

    def __init__(self, model: PreTrainedModel, placement: PositionScheme) -> None:
        self.model, self.placement = model, placement
        self.verifier: Any = None
        self._begin([])

    def _begin(self, texts: Sequence[np.ndarray]) -> None:
        """The cache holds these texts, and no prefixes."""
        self.texts = list(texts)
        # Of the prefixes grown: which columns each of a row's columns sees, [rows, grown, grown], and every prefix's
        # column and depth. The last entry of these two stands for the text itself, whose number is -1.
        self._sees = np.zeros((len(texts), 0, 0), dtype=bool)
        self._columns = self._depths = np.array([ROOT], dtype=np.int64)

    @torch.inference_mode()
    def read(self, texts: Sequence[np.ndarray], tails: np.ndarray | None = None) -> Outputs:
        """What follows each text: ``rows * (t + 1)`` outputs, text by text: after the text, then after each token of
        its tail. Drops all prefixes.

        texts: at least one token each.  tails: ``[rows, t]`` tokens read in the same pass and not kept.
        """
        known = [_longest_prefix(self.texts, text) for text in texts]
        rows = len(self.texts)
        self.texts = []  # an interrupted read leaves nothing to build on
        # If little is known, texts are read as prompts are: in one causal pass, where the tree's would be wide.
        if self.verifier is None or 2 * sum(length for _, length in known) < sum(map(len, texts)):
            self._begin_cache()
            verified = self.verifier.prefill(texts)
            if tails is None:
                self._begin(texts)
                return self._outputs(verified, range(len(texts)), [0] * len(texts))
            known, rows = [(row, len(text)) for row, text in enumerate(texts)], len(texts)
        if [row for row, _ in known] != list(range(rows)):
            self.verifier.select([row for row, _ in known])
        # Every text's last token is read, again if need be, since its output is asked for.
        read = [min(length, len(text) - 1) for text, (_, length) in zip(texts, known, strict=True)]
        self.verifier.cut(read)
        unread = [text[length:] for text, length in zip(texts, read, strict=True)]
        tails = _tails(self.model, texts, tails)
        chains = [DraftTree.from_paths([[*new[1:], *tail]]) for new, tail in zip(unread, tails, strict=True)]
        verified = self.verifier.verify([int(new[0]) for new in unread], chains)
        self.verifier.keep([range(len(new) - 1) for new in unread])
        self._begin(texts)
        width = tails.shape[1] + 1
        columns = [len(new) - 1 + i for new in unread for i in range(width)]
        return self._outputs(verified, np.repeat(np.arange(len(texts)), width).tolist(), columns)

    @torch.inference_mode()
    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        """Read one more token after each of ``n`` prefixes; outputs are in their order.

        rows: ``[n]``, each one's text.  tokens: ``[n]``; one that the model does not know is read as another.
        parents: ``[n]``, the prefix that each continues: -1 for the text itself, else its number among all that were
            grown since ``read``, counted from 0.
        """
        assert self.verifier is not None, "read comes before grow"
        lengths = np.array(self.verifier.cache.lengths)
        longest, grown = int(lengths.max()), self._sees.shape[1]
        columns = index_in_group(rows)
        size = int(columns.max()) + 1
        # Each new column sees the columns that its parent sees, and itself.
        sees = np.zeros((len(lengths), size, grown + size), dtype=bool)
        deeper = parents != ROOT
        sees[rows[deeper], columns[deeper], :grown] = self._sees[rows[deeper], self._columns[parents[deeper]]]
        sees[rows, columns, grown + columns] = True
        depths = np.where(deeper, self._depths[parents], -1) + 1  # 0 for the first token after the text
        ids = np.zeros((len(lengths), size), dtype=np.int64)
        positions = np.repeat(lengths[:, None], size, axis=1)
        ids[rows, columns] = _known_ids(self.model, tokens)
        positions[rows, columns] += depths
        of_text = np.broadcast_to(np.arange(longest) < lengths[:, None, None], (len(lengths), size, longest))
        verified = self.verifier.read(ids, positions, np.concatenate([of_text, sees], axis=2))
        self._sees = np.concatenate([np.pad(self._sees, ((0, 0), (0, 0), (0, size))), sees], axis=1)
        self._columns = np.concatenate([self._columns[:-1], grown + columns, [ROOT]])
        self._depths = np.concatenate([self._depths[:-1], depths, [ROOT]])
        return self._outputs(verified, rows.tolist(), columns.tolist())

    def _begin_cache(self) -> None:
        assert not isinstance(self.model, EngineModel)
        self.verifier = TreeVerifier(self.model, self.placement)

    def _outputs(self, verified: Verified, rows: Sequence[int], columns: Sequence[int]) -> Outputs:
        projection = None if self.verifier is None else self.verifier.forward.projection
        return Outputs(verified, rows, columns, None if projection is None else projection.linear)


class EngineReader(CachedReader):
    """The same by the CPU engine, in whose caches rows have different lengths."""

    def __init__(self, model: EngineModel) -> None:
        self.model, self.verifier = model, EngineVerifier(model)
        self._begin([])

    def _begin(self, texts: Sequence[np.ndarray]) -> None:
        self.texts, self._sizes = list(texts), np.zeros(len(texts), np.int64)  # columns of each text
        self._columns = np.array([ROOT])

    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        order = np.argsort(rows, kind="stable")
        above, ids = self._columns[parents], _known_ids(self.model, tokens)
        verified = self.verifier.grow(rows[order], above[order], ids[order])
        self._columns = np.concatenate([self._columns[:-1], self._sizes[rows] + index_in_group(rows), [ROOT]])
        self._sizes += np.bincount(rows, minlength=len(self._sizes))
        return Outputs(verified, [0] * len(rows), np.argsort(order).tolist())

    def _begin_cache(self) -> None:
        pass  # prefill does

    def _outputs(self, verified: Verified, rows: Sequence[int], columns: Sequence[int]) -> Outputs:
        return Outputs(verified, rows, columns)


class RecomputingReader:
    """As ``CachedReader`` without a cache: prefixes are rows of a plain batch. Slow, and correct for every model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model, self.verifier = model, RecomputingVerifier(model)
        self.texts: list[list[int]] = []
        self.prefixes: list[list[int]] = []

    def read(self, texts: Sequence[np.ndarray], tails: np.ndarray | None = None) -> Outputs:
        self.texts, self.prefixes = [text.tolist() for text in texts], []
        pairs = zip(self.texts, _tails(self.model, texts, tails).tolist(), strict=True)
        return self._read([[*text, *tail[:length]] for text, tail in pairs for length in range(len(tail) + 1)])

    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        pairs = zip(parents.tolist(), _known_ids(self.model, tokens).tolist(), strict=True)
        new = [[*([] if parent == ROOT else self.prefixes[parent]), token] for parent, token in pairs]
        self.prefixes += new
        return self._read([[*self.texts[row], *prefix] for row, prefix in zip(rows.tolist(), new, strict=True)])

    def _read(self, sequences: list[list[int]]) -> Outputs:
        return Outputs(self.verifier.prefill(sequences), range(len(sequences)), [0] * len(sequences))


def _longest_prefix(texts: Sequence[np.ndarray], text: np.ndarray) -> tuple[int, int]:
    """The one of ``texts`` with the longest common prefix with ``text``, and its length in tokens."""
    best = (0, 0)
    for row, cached in enumerate(texts):
        shorter = min(len(cached), len(text))
        differs = cached[:shorter] != text[:shorter]
        shared = int(differs.argmax()) if differs.any() else shorter
        if shared > best[1]:
            best = (row, shared)
    return best


def _known_ids(model: AnyModel, tokens: np.ndarray) -> np.ndarray:
    return tokens.clip(max=target_model(model).vocab_size - 1)


def _tails(model: AnyModel, texts: Sequence[np.ndarray], tails: np.ndarray | None) -> np.ndarray:
    return np.empty((len(texts), 0), np.int64) if tails is None else _known_ids(model, tails)


def index_in_group(groups: np.ndarray) -> np.ndarray:
    """``[n]`` -> ``[n]`` how many equal entries come before each."""
    order = np.argsort(groups, kind="stable")
    ordered, index = groups[order], np.empty(len(groups), dtype=np.int64)
    index[order] = np.arange(len(groups)) - np.searchsorted(ordered, ordered)
    return index
