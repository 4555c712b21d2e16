"""A non-autoregressive model that fills masks behind growing texts (GAD; Xia 2022, section 3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from latticebpd.models.base import BaseModel
from latticebpd.models.forward import Source
from latticebpd.models.mask_filling import NonAutoregressiveModel, masked_columns
from latticebpd.models.row_cache import RowCache


class GrowingText(Protocol):
    """One row: its index in the batch, its tokens so far, and its source's tokens."""

    @property
    def row(self) -> int: ...

    @property
    def tokens(self) -> Sequence[int]: ...

    @property
    def source(self) -> Sequence[int]: ...


class MaskFiller:
    """A non-autoregressive model beside growing texts: sources are encoded once, and what was read of a text is kept.

    The cache is the tree verifier's: of a pass, the columns that are the text's stay, the masks are forgotten.  Of a bidirectional
    model, whose text's columns have seen masks, only what was made of the source stays.
    """

    def __init__(self, model: NonAutoregressiveModel) -> None:
        self.model = model
        self.device = model.base.device
        self.encoded: dict[tuple[int, ...], Tensor] = {}
        self.rows: dict[int, int] = {}  # row of the batch -> row of the cache
        self.texts: list[tuple[tuple[int, ...], list[int]]] = []  # of each row of the cache: its source, what was read of its text
        self.cache = RowCache(encodes=True)
        self.source = Source(torch.empty(0), torch.empty(0))

    @torch.inference_mode()
    def logits(self, states: Sequence[GrowingText], slots: int) -> Tensor:
        """``[rows, slots', vocab]``: fill ``slots`` slots behind every text, fewer where the model's positions end, perhaps none."""
        self._align(states)
        model, texts = self.model, [state.tokens for state in states]
        read = [len(text) for _, text in self.texts]
        unread = max(len(text) - done for text, done in zip(texts, read, strict=True))
        slots = min(slots, model.max_positions - max(read) - unread + model.anchored)
        if slots < 1:
            return torch.empty(len(states), 0, model.vocab_size)
        columns = masked_columns(texts, read, slots, model.mask_token_id, None, model.anchored, model.bidirectional)
        hidden = model(self.source, columns, self.cache.past)
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
        BaseModel.of(self.model).check_sources(width)
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        with torch.cuda.stream(stream) if stream is not None else nullcontext():
            ids = torch.tensor([[*source, *[source[-1]] * (width - len(source))] for source in missing], device=self.device)
            mask = torch.tensor([[1] * len(source) + [0] * (width - len(source)) for source in missing], device=self.device)
            hidden = self.model.encode(ids, mask).hidden
        if stream is not None:
            stream.synchronize()
        kept = {source: line for source, line in self.encoded.items() if source in wanted}
        self.encoded = kept | {source: line[: len(source)] for source, line in zip(missing, hidden, strict=True)}

    def _align(self, states: Sequence[GrowingText]) -> None:
        """Make the cache's rows those of ``states``: the same ones, some of them, or else new ones."""
        places = [self._place(state) for state in states]
        known = [place for place in places if place is not None]
        if len(known) < len(states):
            self._begin([tuple(state.source) for state in states])
        elif known != list(range(len(self.texts))):
            self.cache.select(known)
            self.source = self.source.select(torch.tensor(known, device=self.device))
            self.texts = [self.texts[place] for place in known]
        self.rows = {state.row: place for place, state in enumerate(states)}

    def _place(self, state: GrowingText) -> int | None:
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
        self.cache = RowCache(encodes=True)
        self.cache.lengths = [0] * len(sources)
        self.texts = [(source, []) for source in sources]

    def _keep(self, states: Sequence[GrowingText]) -> None:
        """Make the text's columns of the last pass part of their rows; forget the masks."""
        unread = [
            [] if self.model.bidirectional else state.tokens[len(text) :] for (_, text), state in zip(self.texts, states, strict=True)
        ]
        self.cache.keep([range(len(new)) for new in unread])
        for (_, text), new in zip(self.texts, unread, strict=True):
            text.extend(new)
