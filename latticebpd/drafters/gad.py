"""Drafters that ask a non-autoregressive model (GAD; Xia 2022, sections 3 and 4).

A draft fills k masks behind the text in one pass.  The masks' outputs are a sausage lattice like any heads', so what is
drafted from it is the same: each mask's best token, which is the paper's draft, the p best rescored paths, or the best
prefix tree.  Under ``Exact`` acceptance this is GAD, under ``TopBeta(beta, tau)`` GAD++.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache, EncoderDecoderCache

from latticebpd.drafters.base import State
from latticebpd.drafters.heads import HasHeads, HeadsDrafter, PathsDrafter, TreeDrafter, VanillaDrafter, lattices_from_logits
from latticebpd.drafts import DraftTree
from latticebpd.lattice import SausageLattice
from latticebpd.nonautoregressive import NonAutoregressiveModel, masked_columns
from latticebpd.rescoring import LanguageModel
from latticebpd.stopping import own_end_of_text_ids
from latticebpd.verification import Source


class MaskFiller:
    """A non-autoregressive model beside growing texts: sources are encoded once, and what was read of a text is kept.

    The cache is laid out as the tree verifier's: row ``r`` keeps its text from place 0 on, a pass appends its columns
    behind the longest row, and afterwards the text's columns move to the end of their row's text and the rest is cut off.
    """

    def __init__(self, model: NonAutoregressiveModel) -> None:
        self.model = model
        self.device = model.base.device
        self.encoded: dict[tuple[int, ...], Tensor] = {}
        self.rows: dict[int, int] = {}  # row of the batch -> row of the cache
        self.texts: list[tuple[tuple[int, ...], list[int]]] = []  # of each row of the cache: its source, what was read of its text
        self.cache: Any = None
        self.source = Source(torch.empty(0), torch.empty(0))

    @torch.inference_mode()
    def logits(self, states: Sequence[State], slots: int) -> Tensor:
        """``[rows, slots', vocab]``: fill ``slots`` slots behind every text, fewer where the model's positions end, perhaps none."""
        self._align(states)
        model, texts = self.model, [state.tokens for state in states]
        read = [len(text) for _, text in self.texts]
        unread = max(len(text) - done for text, done in zip(texts, read, strict=True))
        slots = min(slots, model.max_positions - max(read) - unread + model.anchored)
        if slots < 1:
            return torch.empty(len(states), 0, model.vocab_size)
        columns = masked_columns(texts, read, slots, model.mask_token_id, anchored=model.anchored)
        hidden = model(self.source, columns, self.cache)
        self._keep(states)
        return model.logits(hidden)

    @torch.inference_mode()
    def encode(self, sources: Sequence[Sequence[int]]) -> None:
        """Encode those sources that are not encoded yet, as one batch, on a GPU in a stream of its own; forget all others."""
        wanted = dict.fromkeys(map(tuple, sources))
        missing = [source for source in wanted if source not in self.encoded]
        if not missing:
            return
        width = max(map(len, missing))
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            ids = torch.tensor([[*source, *[source[-1]] * (width - len(source))] for source in missing], device=self.device)
            mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in missing], device=self.device)
            hidden = self.model.encode(ids, mask).hidden
        if stream is not None:
            stream.synchronize()
        kept = {source: line for source, line in self.encoded.items() if source in wanted}
        self.encoded = kept | {source: line[: len(source)] for source, line in zip(missing, hidden, strict=True)}

    def _align(self, states: Sequence[State]) -> None:
        """Make the cache's rows those of ``states``: the same ones, some of them, or else new ones."""
        places = [self._place(state) for state in states]
        known = [place for place in places if place is not None]
        if len(known) < len(states):
            self._begin([tuple(state.source) for state in states])
        elif known != list(range(len(self.texts))):
            index = torch.tensor(known, device=self.device)
            self.cache.batch_select_indices(index)
            self.source = self.source.select(index)
            self.texts = [self.texts[place] for place in known]
            self._cut()
        self.rows = {state.row: place for place, state in enumerate(states)}

    def _place(self, state: State) -> int | None:
        """The row of the cache that has read a beginning of this text, if there is one."""
        place = self.rows.get(state.row)
        if place is None:
            return None
        source, text = self.texts[place]
        known = source == tuple(state.source) and len(text) < len(state.tokens) and text == list(state.tokens[: len(text)])
        return place if known else None

    def _begin(self, sources: list[tuple[int, ...]]) -> None:
        """An empty cache, one row for each source."""
        self.encode(sources)
        lines = [self.encoded[source] for source in sources]
        masks = [torch.ones(len(line), dtype=torch.long, device=self.device) for line in lines]
        self.source = Source(pad_sequence(lines, batch_first=True), pad_sequence(masks, batch_first=True))
        self.cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
        self.texts = [(source, []) for source in sources]

    def _keep(self, states: Sequence[State]) -> None:
        """Make the text's columns of the last pass part of their rows; forget the masks."""
        first = max(len(text) for _, text in self.texts)
        moves = [
            (row, first + column, len(text) + column)
            for row, ((_, text), state) in enumerate(zip(self.texts, states, strict=True))
            for column in range(len(state.tokens) - len(text))
            if len(text) < first
        ]
        if moves:
            rows, origins, targets = torch.tensor(moves, device=self.device).T
            for layer in self.cache.self_attention_cache.layers:
                for kept in (layer.keys, layer.values):
                    kept[rows, :, targets] = kept[rows, :, origins]
        for (_, text), state in zip(self.texts, states, strict=True):
            text.extend(state.tokens[len(text) :])
        self._cut()

    def _cut(self) -> None:
        longest = max(len(text) for _, text in self.texts)
        for layer in self.cache.self_attention_cache.layers:
            layer.keys, layer.values = layer.keys[:, :, :longest], layer.values[:, :, :longest]


class _MaskDrafter(HeadsDrafter):
    """What the drafters below share: their lattices are a non-autoregressive model's masks."""

    _reading: Future[None] | None = None

    @cached_property
    def filler(self) -> MaskFiller:
        return MaskFiller(cast(NonAutoregressiveModel, self.model))

    def read(self, sources: Sequence[Sequence[int]]) -> None:
        """Begin to encode the sources of the next ``generate``, beside whatever happens meanwhile.

        Called right before ``generate`` it has drafter and verifier encode at the same time; without it the drafter
        encodes when it is first asked.
        """
        worker = ThreadPoolExecutor(1)
        self._reading = worker.submit(self.filler.encode, sources)
        worker.shutdown(wait=False)

    def lattices(self, states: Sequence[State]) -> list[SausageLattice]:
        """The lattice that starts right after each state's tokens, up to where its best token ends the text; none without room."""
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        assert self.slots is not None
        logits = self.filler.logits(states, min(self.slots, max(state.max_depth for state in states)))
        if not logits.shape[1]:
            return []
        ends = own_end_of_text_ids(self.filler.model.base)
        return [_cut(found, state.max_depth, ends) for found, state in zip(lattices_from_logits(logits, self.k), states, strict=True)]

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        lattices = self.lattices(states)
        return self.draft(lattices, states) if lattices else [DraftTree.empty()] * len(states)


class GadDrafter(_MaskDrafter, VanillaDrafter):
    """The paper's draft: the best token of every mask.

    Args:
        model: fills the masks.
        block_size: masks per draft, at most the model's own block size, which is the default.
    """

    def __init__(self, model: NonAutoregressiveModel, block_size: int | None = None) -> None:
        super().__init__(_asked(model), _masks(model, block_size))


class GadPathsDrafter(_MaskDrafter, PathsDrafter):
    """The ``p`` best rescored paths; arguments as for ``PathsDrafter`` and ``GadDrafter``."""

    def __init__(
        self,
        model: NonAutoregressiveModel,
        lm: LanguageModel,
        p: int = 16,
        alpha: float | None = None,
        k: int = 16,
        block_size: int | None = None,
    ) -> None:
        super().__init__(_asked(model), lm, p, alpha, k, _masks(model, block_size))


class GadTreeDrafter(_MaskDrafter, TreeDrafter):
    """The best prefix tree of ``num_nodes`` nodes; arguments as for ``TreeDrafter`` and ``GadDrafter``."""

    def __init__(
        self,
        model: NonAutoregressiveModel,
        lm: LanguageModel,
        num_nodes: int = 64,
        alpha: float | None = None,
        k: int = 16,
        block_size: int | None = None,
    ) -> None:
        super().__init__(_asked(model), lm, num_nodes, alpha, k, _masks(model, block_size))


def _asked(model: NonAutoregressiveModel) -> HasHeads:
    """The model as the heads' drafters take it: they ask it for its vocabulary alone, since the lattices come from the masks."""
    return cast(HasHeads, model)


def _masks(model: NonAutoregressiveModel, block_size: int | None) -> int:
    if block_size is not None and not 1 <= block_size <= model.block_size:
        raise ValueError(f"expected a block size from 1 to {model.block_size} (what the drafter was trained for), got {block_size}")
    return block_size or model.block_size


def _cut(lattice: SausageLattice, slots: int, ends: Sequence[int]) -> SausageLattice:
    """The first ``slots`` slots, up to the first whose best token is among ``ends``."""
    ended = np.flatnonzero(np.isin(lattice.tokens[:, 0], ends))
    slots = min(slots, int(ended[0]) + 1 if ended.size else lattice.slots)
    return lattice if slots == lattice.slots else SausageLattice(lattice.tokens[:slots], lattice.log_probs[:slots])
