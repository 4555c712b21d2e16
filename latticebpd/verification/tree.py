"""Tree attention: all drafts of all rows in one pass over one cache.

A node attends to its row's text, to the next token, to its ancestors and to itself, at the position that it would
have in the text; a tree without branches is ordinary causal attention.

The cache is one padded block, ``[rows, attention heads, places, size]`` a layer.  Row ``r`` keeps its text at places
``0 .. lengths[r] - 1``; a pass appends its columns behind the longest row.  After acceptance each row's accepted
columns move down to the end of its text and the block is cut to the longest text, so memory follows the texts, not
the number of calls.  What lies between a row's text and the columns is never looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.base import Model
from latticebpd.models.forward import Forward, Source, Verified
from latticebpd.models.placement import Placement


def visible_keys(trees: Sequence[DraftTree], lengths: Sequence[int]) -> np.ndarray:
    """``[rows, columns, places + columns]`` bool: which keys each column looks at.

    Args:
        trees: one per row; columns = the most nodes + 1.
        lengths: of each row's text in the cache; places = the longest.
    """
    columns, places = max(map(len, trees)) + 1, max(lengths)
    visible = np.zeros((len(trees), columns, places + columns), dtype=bool)
    visible[:, :, places] = True  # columns that a row does not have see the next token too: no softmax over nothing
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        visible[row, :, :length] = True
        visible[row, 1 : len(tree) + 1, places + 1 : places + 1 + len(tree)] = tree.ancestors
    return visible


class TreeVerifier:
    """The base model with its key–value cache, verifying by tree attention.

    Args:
        model: a causal LM or encoder–decoder with SDPA or eager attention, full in every layer.
        placement: how it is told positions.
        source: an encoder–decoder's source.
    """

    def __init__(self, model: Model, placement: Placement, source: Source | None = None) -> None:
        self.forward = Forward(model, source)
        self.placement = placement
        self.device = self.forward.base.device
        self.text = DynamicCache()
        self.cache: Any = self.text if source is None else EncoderDecoderCache(self.text, DynamicCache())
        self.lengths: list[int] = []

    @property
    def max_nodes(self) -> int | None:
        places = self.placement.places
        return None if places is None else places - max(self.lengths) - 1

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        self.lengths = [len(prompt) for prompt in prompts]
        width = max(self.lengths)
        # Padding stands on the right, where causal attention keeps it out of sight; any token will do.
        tokens = torch.tensor([[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts], device=self.device)
        last = torch.tensor(self.lengths, device=self.device) - 1
        return self.forward.last({"input_ids": tokens, "past_key_values": self.cache, "use_cache": True}, last)

    def begin(self, rows: int) -> None:
        self.lengths = [0] * rows

    @torch.inference_mode()
    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        columns = max(map(len, trees)) + 1
        tokens = np.zeros((len(trees), columns), dtype=np.int64)
        positions = np.empty((len(trees), columns), dtype=np.int64)
        tokens[:, 0] = next_tokens
        positions[:] = np.array(self.lengths)[:, None]
        for row, tree in enumerate(trees):
            tokens[row, 1 : len(tree) + 1] = tree.tokens
            positions[row, 1 : len(tree) + 1] += tree.depths
        arguments = self.placement.arguments(
            self._on_device(tokens), self._on_device(positions), self._on_device(visible_keys(trees, self.lengths))
        )
        return self.forward.nodes({**arguments, "past_key_values": self.cache, "use_cache": True})

    @torch.inference_mode()
    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        first = max(self.lengths)
        rows: list[int] = []
        origins: list[int] = []
        targets: list[int] = []
        for row, path in enumerate(paths):
            places = [first, *(first + 1 + node for node in path)]
            length = self.lengths[row]
            moved = [(origin, length + i) for i, origin in enumerate(places) if origin != length + i]
            rows += [row] * len(moved)
            origins += [origin for origin, _ in moved]
            targets += [target for _, target in moved]
            self.lengths[row] = length + len(places)
        index = self._on_device(np.array([rows, origins, targets], dtype=np.int64)) if rows else None
        for layer in self._layers():
            if index is not None:
                for states in (layer.keys, layer.values):
                    states[index[0], :, index[2]] = states[index[0], :, index[1]]
        self.forget()

    @torch.inference_mode()
    def forget(self) -> None:
        longest = max(self.lengths)
        for layer in self._layers():
            layer.keys, layer.values = layer.keys[:, :, :longest], layer.values[:, :, :longest]

    @torch.inference_mode()
    def select(self, rows: Sequence[int]) -> None:
        index = self._on_device(np.array(rows, dtype=np.int64))
        self.lengths = [self.lengths[row] for row in rows]
        self.cache.batch_select_indices(index)
        self.forget()
        if self.forward.source is not None:
            self.forward.source = self.forward.source.select(index)

    def _layers(self) -> list[Any]:
        """The cache's layers, but for those that share another's keys and values."""
        layers: list[Any] = self.text.layers
        return [layer for layer in layers if layer.keys is not None]

    def _on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device)
