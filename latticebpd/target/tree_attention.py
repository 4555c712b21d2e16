"""Tree attention: all drafts of all rows in one pass over one cache.

A node attends to its row's text, to the next token, to its ancestors and to itself, at the position that it would
have in the text; a tree without branches is ordinary causal attention.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import EncodedSource, Forward, Verified
from latticebpd.target.row_cache import RowCache
from latticebpd.target.stock_model import Model
from latticebpd.target.tree_positions import Placement


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
        layers: those whose states are kept.
    """

    def __init__(
        self, model: Model, placement: Placement, source: EncodedSource | None = None, layers: Sequence[int] = ()
    ) -> None:
        self.forward = Forward(model, source, layers)
        self.placement = placement
        self.device = self.forward.base.device
        self.cache = RowCache(source is not None)

    @property
    def max_nodes(self) -> int | None:
        places = self.placement.places
        return None if places is None else places - self.cache.longest - 1

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        self.cache.lengths = [len(prompt) for prompt in prompts]
        width = self.cache.longest
        # Padding stands on the right, where causal attention keeps it out of sight; any token will do.
        tokens = torch.tensor(
            [[*prompt, *[prompt[-1]] * (width - len(prompt))] for prompt in prompts], device=self.device
        )
        last = torch.tensor(self.cache.lengths, device=self.device) - 1
        return self._kept(self.forward.last({**self.forward.base.text(tokens), **self.cache.arguments}, last))

    def begin(self, rows: int) -> None:
        self.cache.lengths = [0] * rows

    @torch.inference_mode()
    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        columns = max(map(len, trees)) + 1
        tokens = np.zeros((len(trees), columns), dtype=np.int64)
        positions = np.empty((len(trees), columns), dtype=np.int64)
        tokens[:, 0] = next_tokens
        positions[:] = np.array(self.cache.lengths)[:, None]
        for row, tree in enumerate(trees):
            tokens[row, 1 : len(tree) + 1] = tree.tokens
            positions[row, 1 : len(tree) + 1] += tree.depths
        return self.read(tokens, positions, visible_keys(trees, self.cache.lengths))

    @torch.inference_mode()
    def read(self, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Verified:
        """One pass over any columns, ``[rows, columns]`` and ``[rows, columns, places + columns]``."""
        arrays = (torch.from_numpy(array).to(self.device) for array in (tokens, positions, visible))
        return self._kept(self.forward.nodes({**self.placement.arguments(*arrays), **self.cache.arguments}))

    def _kept(self, verified: Verified) -> Verified:
        if verified.layers is not None:
            self.cache.append(verified.layers)
        return verified

    def layer_states(self, row: int) -> Tensor | None:
        return self.cache.vectors(row)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep([[0, *(node + 1 for node in path)] for path in paths])

    def forget(self) -> None:
        self.cache.cut()

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        if self.forward.source is not None:
            self.forward.source = self.forward.source.select(torch.tensor(rows, device=self.device))
