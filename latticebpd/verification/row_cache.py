"""The key–value cache of rows that grow by passes of which only some columns are kept.

A layer's keys and values are one padded block, ``[rows, attention heads, length, size]``, a view of a buffer with room
for more. Row ``r`` has its text at positions ``0 .. lengths[r] - 1``; a pass appends its columns after the longest row.
Then each row's kept columns move down to the end of its text, and the block is cut to the longest text. Positions
between a row's text and the columns must be masked. Other vectors of every token, such as hidden states, are cached in
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from latticebpd.cpu import _engine


class GrowingLayer(DynamicLayer):
    """One layer; ``keys`` and ``values`` are views of the first ``length`` positions of ``buffers``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.buffers: list[Tensor] = []
        self.length = 0

    def _view(self, index: int) -> Tensor | None:
        return self.buffers[index][:, :, : self.length] if self.buffers else None

    # The setters ignore the None that the base class assigns.
    keys: Any = property(lambda self: self._view(0), lambda self, value: None)
    values: Any = property(lambda self: self._view(1), lambda self, value: None)

    def get_seq_length(self) -> int:
        return self.length

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns, ``[rows, attention heads, columns, size]``; returns all keys and values."""
        begin, new = self.length, (key_states, value_states)
        end = begin + key_states.shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            buffers = [states.new_empty(*states.shape[:2], end + end // 2, states.shape[3]) for states in new]
            for wider, narrower in zip(buffers, self.buffers, strict=bool(self.buffers)):
                wider[:, :, :begin] = narrower[:, :, :begin]
            self.buffers, self.is_initialized = buffers, True
            self.dtype, self.device = key_states.dtype, key_states.device
        for buffer, states in zip(self.buffers, new, strict=True):
            buffer[:, :, begin:end] = states
        self.length = end
        return self.keys, self.values

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy vectors within rows; moves: (row, source, destination)."""
        for buffer in self.buffers:
            if buffer.device.type == "cpu":  # calling PyTorch would take longer than copying
                _engine.move(buffer.view(torch.uint8).numpy(), moves)
            else:
                rows, sources, destinations = torch.tensor(moves, device=buffer.device).T
                buffer[rows, :, destinations] = buffer[rows, :, sources]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Replace the rows by the given ones."""
        self.buffers = [buffer[indices] for buffer in self.buffers]


class RowCache:
    """The cache of a batch; an encoder–decoder's also holds the keys and values of its sources."""

    def __init__(self, is_encoder_decoder: bool) -> None:
        self.text: Any = DynamicCache()
        self.text.layer_class_to_replicate = GrowingLayer
        self.source = DynamicCache() if is_encoder_decoder else None
        self.states = GrowingLayer()
        self.past: Any = self.text if self.source is None else EncoderDecoderCache(self.text, self.source)
        self.lengths: list[int] = []

    @property
    def longest(self) -> int:
        """Tokens of the longest row, after which the columns of a pass begin."""
        return max(self.lengths)

    def arguments(self, name: str) -> dict[str, Any]:
        """Arguments of a decoder that is to append a pass; name: its `cache_argument`."""
        return {name: self.past, "use_cache": True}

    def append(self, vectors: Tensor) -> None:
        """Cache a vector for each column of the last pass, ``[rows, columns, size]``."""
        self.states.update(vectors[:, None], vectors[:, None, :, :0])

    def vectors(self, row: int) -> Tensor | None:
        """``[tokens, size]`` the vectors of a row's text, valid until the next pass; None if none were appended."""
        return self.states.keys[row, 0, : self.lengths[row]] if self.states.buffers else None

    @torch.inference_mode()
    def keep(self, columns: Sequence[Sequence[int]]) -> None:
        """Append columns of the last pass to each row's text, in the given order; drop the others."""
        first = self.longest
        moves = [
            (row, first + column, length + i)
            for row, (length, kept) in enumerate(zip(self.lengths, columns, strict=True))
            for i, column in enumerate(kept)
            if first + column != length + i
        ]
        if moves:
            for layer in self._layers():
                layer.move(moves)
        self.cut([length + len(kept) for length, kept in zip(self.lengths, columns, strict=True)])

    def cut(self, lengths: Sequence[int] | None = None) -> None:
        """Drop all but so many tokens of each row; by default, the last pass."""
        self.lengths = self.lengths if lengths is None else list(lengths)
        for layer in self._layers():
            layer.length = self.longest

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Continue with the given rows, in this order; a row may occur several times."""
        for layer in (*self._layers(), *(self.source.layers if self.source is not None else ())):
            layer.batch_select_indices(torch.tensor(rows, device=layer.keys.device))
        self.cut([self.lengths[row] for row in rows])

    def _layers(self) -> list[GrowingLayer]:
        """All but those that share another's keys and values."""
        return [layer for layer in (*self.text.layers, self.states) if layer.buffers]
