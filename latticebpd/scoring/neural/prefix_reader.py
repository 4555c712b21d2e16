"""A language model that reads texts and the prefixes that grow behind them.

Rescoring asks a model for the next token's probabilities behind a text, then behind the text and a drafted token, and
so on, for many drafts of the same text. A *reader* answers level by level: ``read`` takes the texts, ``grow`` adds one
token to any number of prefixes at a time. All prefixes of a text attend to the one copy of it in the cache (tree
attention), so drafts cost their own tokens only, and nothing is copied or reordered between levels.

Between calls the texts stay. The next ``read`` looks for what it knows already, wherever in the batch it stands, and
the
model reads the rest: in a decode, the tokens that the last call committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.lattices.drafts import ROOT, DraftTree
from latticebpd.scoring.neural.candidate_scores import Outputs
from latticebpd.target.forward import Verified
from latticebpd.target.recompute import RecomputingVerifier
from latticebpd.target.stock_model import BaseModel
from latticebpd.target.tree_attention import TreeVerifier
from latticebpd.target.tree_positions import Placement
from latticebpd.target.verifier_choice import verifier_for


class Reader(Protocol):
    """A model over a batch of texts."""

    def read(self, texts: Sequence[np.ndarray], tails: np.ndarray | None = None) -> Outputs:
        """What follows each text; begins anew, with no prefixes.

        Args:
            texts: at least one token each.
            tails: ``[rows, t]`` tokens behind each text that are read in the same pass and not kept.

        Returns:
            ``rows * (t + 1)`` outputs: behind a text, then behind it and its tail's first token, ...; then the next
            text's.
        """

    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        """Read one more token behind each of ``n`` prefixes; outputs are theirs, in order.

        Args:
            rows: ``[n]``, the text that each belongs to.
            parents: ``[n]``, the prefix that each continues: -1 for the text itself, else its number among all that
                were grown since ``read``, counted from 0.
            tokens: ``[n]``; one that the model does not know is read as some other.
        """


def reader_for(model: PreTrainedModel, use_cache: bool = True) -> Reader:
    """The quickest reader that is right for the model; without ``use_cache``, the one that reads whole texts every
    time."""
    verifier = verifier_for(model, use_cache=use_cache)
    return CachedReader(model, verifier.placement) if isinstance(verifier, TreeVerifier) else RecomputingReader(model)


class CachedReader:
    """Tree attention over a key-value cache.

    The cache's places are the texts', as in ``TreeVerifier``, then the columns of the levels that have been grown.
    """

    def __init__(self, model: PreTrainedModel, placement: Placement) -> None:
        self.model, self.placement = model, placement
        self.verifier: TreeVerifier | None = None
        self.texts: list[np.ndarray] = []
        # Of the prefixes grown: which columns each of a row's columns sees, [rows, grown, grown], and every prefix's
        # column and depth.  The last entry of these two stands for the text itself, whose number is -1.
        self._sees = np.zeros((0, 0, 0), dtype=bool)
        self._columns = self._depths = np.array([ROOT], dtype=np.int64)

    @torch.inference_mode()
    def read(self, texts: Sequence[np.ndarray], tails: np.ndarray | None = None) -> Outputs:
        known, cached = [_longest_known(self.texts, text) for text in texts], len(self.texts)
        self.texts = []  # a read that is broken off leaves nothing to build on
        # A batch of which little is known is read as prompts are: in one causal pass, where the tree's would be wide.
        if self.verifier is None or 2 * sum(length for _, length in known) < sum(map(len, texts)):
            self.verifier = TreeVerifier(self.model, self.placement)
            verified = self.verifier.prefill(texts)  # type: ignore[arg-type]  # arrays of ids are sequences of ids
            if tails is None:
                self._begin(texts)
                return self._outputs(verified, range(len(texts)), [0] * len(texts))
            known, cached = [(row, len(text)) for row, text in enumerate(texts)], len(texts)
        if [row for row, _ in known] != list(range(cached)):
            self.verifier.select([row for row, _ in known])
        # Every text's last token is read (again), since what follows it is asked for.
        read = [min(length, len(text) - 1) for text, (_, length) in zip(texts, known, strict=True)]
        self.verifier.cache.cut(read)
        unread = [text[length:] for text, length in zip(texts, read, strict=True)]
        ahead = np.empty((len(texts), 0), np.int64) if tails is None else np.minimum(tails, _last_id(self.model))
        chains = [_chain(np.concatenate([new[1:], tail])) for new, tail in zip(unread, ahead, strict=True)]
        verified = self.verifier.verify([int(new[0]) for new in unread], chains)
        self.verifier.keep([range(len(new) - 1) for new in unread])
        self._begin(texts)
        width = ahead.shape[1] + 1
        columns = [len(new) - 1 + i for new in unread for i in range(width)]
        return self._outputs(verified, np.repeat(np.arange(len(texts)), width).tolist(), columns)

    @torch.inference_mode()
    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        assert self.verifier is not None, "read comes before grow"
        lengths = np.array(self.verifier.cache.lengths)
        places, grown = int(lengths.max()), self._sees.shape[1]
        counts = np.bincount(rows, minlength=len(lengths))
        columns, size = _place_in_group(rows, counts), int(counts.max())
        # What each new column sees of the columns grown: what its parent sees, and itself.
        sees = np.zeros((len(lengths), size, grown + size), dtype=bool)
        deeper = parents != ROOT
        sees[rows[deeper], columns[deeper], :grown] = self._sees[rows[deeper], self._columns[parents[deeper]]]
        sees[rows, columns, grown + columns] = True
        depths = np.where(deeper, self._depths[parents], -1) + 1  # of the first token behind the text: 0
        ids = np.zeros((len(lengths), size), dtype=np.int64)
        positions = np.repeat(lengths[:, None], size, axis=1)
        ids[rows, columns] = np.minimum(tokens, _last_id(self.model))
        positions[rows, columns] += depths
        of_text = np.broadcast_to(np.arange(places) < lengths[:, None, None], (len(lengths), size, places))
        visible = np.concatenate([of_text, sees], axis=2)
        verified = self.verifier.read(ids, positions, visible)
        wider = np.zeros((len(lengths), grown, size), dtype=bool)
        self._sees = np.concatenate([np.concatenate([self._sees, wider], axis=2), sees], axis=1)
        self._columns = np.concatenate([self._columns[:-1], grown + columns, [ROOT]])
        self._depths = np.concatenate([self._depths[:-1], depths, [ROOT]])
        return self._outputs(verified, rows.tolist(), columns.tolist())

    def _begin(self, texts: Sequence[np.ndarray]) -> None:
        """These are in the cache, and no prefixes."""
        self.texts = list(texts)
        self._sees = np.zeros((len(texts), 0, 0), dtype=bool)
        self._columns = self._depths = np.array([ROOT], dtype=np.int64)

    def _outputs(self, verified: Verified, rows: Sequence[int], columns: Sequence[int]) -> Outputs:
        projection = BaseModel.of(self.model).exact_projection
        return Outputs(verified, rows, columns, None if projection is None else projection.linear)


class RecomputingReader:
    """No cache: every prefix is read from its text's beginning, as a row of a plain batch. Slow, and right for every
    model."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.verifier = RecomputingVerifier(model)
        self.last_id = _last_id(model)
        self.texts: list[np.ndarray] = []
        self.prefixes: list[list[int]] = []

    def read(self, texts: Sequence[np.ndarray], tails: np.ndarray | None = None) -> Outputs:
        self.texts, self.prefixes = list(texts), []
        ahead = np.empty((len(texts), 0), np.int64) if tails is None else np.minimum(tails, self.last_id)
        width = ahead.shape[1] + 1
        return self._read(
            [
                [*text.tolist(), *tail[:length].tolist()]
                for text, tail in zip(texts, ahead, strict=True)
                for length in range(width)
            ]
        )

    def grow(self, rows: np.ndarray, parents: np.ndarray, tokens: np.ndarray) -> Outputs:
        new = [
            [*([] if parent == ROOT else self.prefixes[parent]), token]
            for parent, token in zip(parents.tolist(), np.minimum(tokens, self.last_id).tolist(), strict=True)
        ]
        self.prefixes += new
        return self._read(
            [[*self.texts[row].tolist(), *prefix] for row, prefix in zip(rows.tolist(), new, strict=True)]
        )

    def _read(self, sequences: list[list[int]]) -> Outputs:
        return Outputs(self.verifier.prefill(sequences), range(len(sequences)), [0] * len(sequences))


def _longest_known(texts: Sequence[np.ndarray], text: np.ndarray) -> tuple[int, int]:
    """The text in the cache that shares most with ``text`` from the beginning on, and how many tokens."""
    best = (0, 0)
    for row, cached in enumerate(texts):
        shorter = min(len(cached), len(text))
        differs = cached[:shorter] != text[:shorter]
        shared = int(differs.argmax()) if differs.any() else shorter
        if shared > best[1]:
            best = (row, shared)
    return best


def _last_id(model: PreTrainedModel) -> int:
    return BaseModel.of(model).vocab_size - 1


def _chain(tokens: np.ndarray) -> DraftTree:
    return DraftTree(tokens.astype(np.int32), np.arange(-1, len(tokens) - 1, dtype=np.int32))


def _place_in_group(groups: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """``[n]``: which of its group's members each is, in order; counts: members of every group."""
    order = np.argsort(groups, kind="stable")
    places = np.empty(len(groups), dtype=np.int64)
    places[order] = np.arange(len(groups)) - np.repeat(np.cumsum(counts) - counts, counts)
    return places
