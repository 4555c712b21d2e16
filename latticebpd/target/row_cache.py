"""The key–value cache of rows that grow by passes of which only some columns stay.

A layer's keys and values are one padded block, ``[rows, attention heads, places, size]``. Row ``r`` keeps its text at
places ``0 .. lengths[r] - 1``; a pass appends its columns behind the longest row. Afterwards each row's kept columns
move down to the end of its text and the block is cut to the longest text, so that memory follows the texts, not the
number of passes. What lies between a row's text and the columns must never be looked at.

The block is the beginning of a buffer with room for more, which a pass fills: nothing is copied but the new columns,
until the room is used up.

What else has a vector for every token, such as the states that some layers handed on, is kept beside keys and values in
the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

from latticebpd.cpu import _kernels


class GrowingLayer(DynamicLayer):
    """One layer.  keys, values: views of the first ``places`` of ``buffers``, made when somebody asks."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.buffers: list[Tensor] = []
        self.places = 0

    @property
    def keys(self) -> Any:
        return self.buffers[0][:, :, : self.places] if self.buffers else None

    @keys.setter
    def keys(self, given: Any) -> None:
        """The base class begins with None."""

    @property
    def values(self) -> Any:
        return self.buffers[1][:, :, : self.places] if self.buffers else None

    @values.setter
    def values(self, given: Any) -> None:
        """As for keys."""

    def get_seq_length(self) -> int:
        return self.places

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append columns, ``[rows, attention heads, columns, size]``; returns all keys and values."""
        begin = self.places
        end = begin + key_states.shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            buffers = [
                new.new_empty(*new.shape[:2], end + end // 2, new.shape[3]) for new in (key_states, value_states)
            ]
            for wider, narrower in zip(buffers, self.buffers, strict=bool(self.buffers)):
                wider[:, :, :begin] = narrower[:, :, :begin]
            self.buffers, self.is_initialized = buffers, True
            self.dtype, self.device = key_states.dtype, key_states.device
        for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin:end] = new
        self.places = end
        return self.keys, self.values

    def cut(self, places: int) -> None:
        """Forget all but the first places."""
        self.places = places

    def move(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Copy, in each row named, what stands at one place to another."""
        for buffer in self.buffers:
            if buffer.device.type == "cpu":  # PyTorch takes longer to be called than to copy
                _, heads, places, size = buffer.shape
                _kernels.move(buffer.data_ptr(), heads, places, size * buffer.element_size(), moves)
            else:
                rows, origins, targets = torch.tensor(moves, device=buffer.device).T
                buffer[rows, :, targets] = buffer[rows, :, origins]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Go on with the given rows."""
        self.buffers = [buffer[indices] for buffer in self.buffers]


class RowCache:
    """The cache of a batch.

    Args:
        encodes: whether the model is an encoder–decoder, whose cache holds what it made of the sources as well.
    """

    def __init__(self, is_encoder_decoder: bool) -> None:
        self.text: Any = DynamicCache()
        self.text.layer_class_to_replicate = GrowingLayer
        self.source = DynamicCache() if is_encoder_decoder else None
        self.beside = GrowingLayer()
        self.past: Any = self.text if self.source is None else EncoderDecoderCache(self.text, self.source)
        self.lengths: list[int] = []

    @property
    def longest(self) -> int:
        """Tokens of the longest row: where the columns of a pass begin."""
        return max(self.lengths)

    @property
    def arguments(self) -> dict[str, Any]:
        """Of a decoder that is to append a pass."""
        return {"past_key_values": self.past, "use_cache": True}

    def append(self, vectors: Tensor) -> None:
        """Take up a vector, ``[rows, columns, size]``, for every column of the pass whose keys and values were just
        appended."""
        self.beside.update(vectors[:, None], vectors[:, None, :, :0])

    def vectors(self, row: int) -> Tensor | None:
        """``[tokens, size]`` of a row's text; None where none were appended.  Good until the next pass."""
        found: Tensor | None = self.beside.keys[row, 0, : self.lengths[row]] if self.beside.buffers else None
        return found

    @torch.inference_mode()
    def keep(self, columns: Sequence[Sequence[int]]) -> None:
        """Append columns of the last pass to each row's text, in the given order; forget the others."""
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

    @torch.inference_mode()
    def cut(self, lengths: Sequence[int] | None = None) -> None:
        """Forget what was read behind so many tokens of each row; by default, the last pass."""
        self.lengths = self.lengths if lengths is None else list(lengths)
        for layer in self._layers():
            layer.cut(self.longest)

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        """Go on with the given rows, in this order; a row may come several times."""
        for layer in (*self._layers(), *(self.source.layers if self.source is not None else ())):
            layer.batch_select_indices(torch.tensor(rows, device=layer.keys.device))
        self.cut([self.lengths[row] for row in rows])

    def _layers(self) -> list[GrowingLayer]:
        """All but those that share another's keys and values."""
        return [layer for layer in (*self.text.layers, self.beside) if layer.buffers]
