"""Tree attention: all drafts of all rows in one pass over one cache.

A node attends to its row's text, to the next token, to its ancestors and to itself, at the position that it would have
in the text; a tree without branches is ordinary causal attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.transformers.transformers_model import Model
from latticebpd.verification.forward import EncodedSource, Forward
from latticebpd.verification.row_cache import RowCache
from latticebpd.verification.tree_positions import PositionScheme
from latticebpd.verification.verifier import Verified


def visible_keys(trees: Sequence[DraftTree], lengths: Sequence[int]) -> np.ndarray:
    """``[rows, columns, longest + columns]`` bool: which keys each column attends to.

    trees: one per row; columns = the most nodes + 1.  lengths: of each row's text in the cache.
    """
    columns, longest = max(map(len, trees)) + 1, max(lengths)
    visible = np.zeros((len(trees), columns, longest + columns), dtype=bool)
    visible[:, :, longest] = True  # columns that a row does not have see the next token too: no softmax over nothing
    for row, (tree, length) in enumerate(zip(trees, lengths, strict=True)):
        visible[row, :, :length] = True
        visible[row, 1 : len(tree) + 1, longest + 1 : longest + 1 + len(tree)] = tree.ancestors
    return visible


class TreeVerifier:
    """The target model with its key–value cache, verifying by tree attention.

    model: a causal LM or encoder–decoder with SDPA or eager attention.  placement: how it receives positions.
    source: of an encoder–decoder.  layers: those whose states are kept.
    """

    def __init__(
        self, model: Model, placement: PositionScheme, source: EncodedSource | None = None, layers: Sequence[int] = ()
    ) -> None:
        self.forward, self.placement = Forward(model, source, layers), placement
        self.device = self.forward.base.device
        self.cache = RowCache(source is not None)

    @property
    def max_nodes(self) -> int | None:
        limit = self.placement.max_keys
        return None if limit is None else limit - self.cache.longest - 1

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        self.cache.lengths = [len(prompt) for prompt in prompts]
        last = torch.tensor(self.cache.lengths, device=self.device) - 1
        text = self.forward.base.padded_text([list(prompt) for prompt in prompts])
        return self._kept(self.forward.last({**text, **self._cache_arguments()}, last))

    def begin(self, rows: int) -> None:
        self.cache.lengths = [0] * rows

    @torch.inference_mode()
    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        tokens = np.zeros((len(trees), max(map(len, trees)) + 1), dtype=np.int64)
        positions = np.repeat(np.array(self.cache.lengths)[:, None], tokens.shape[1], axis=1)
        tokens[:, 0] = next_tokens
        for row, tree in enumerate(trees):
            tokens[row, 1 : len(tree) + 1] = tree.tokens
            positions[row, 1 : len(tree) + 1] += tree.depths
        return self.read(tokens, positions, visible_keys(trees, self.cache.lengths))

    @torch.inference_mode()
    def read(self, tokens: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> Verified:
        """One pass over any columns, ``[rows, columns]`` and ``[rows, columns, longest + columns]``."""
        arrays = (torch.from_numpy(array).to(self.device) for array in (tokens, positions, visible))
        return self._kept(self.forward.nodes({**self.placement.arguments(*arrays), **self._cache_arguments()}))

    def _cache_arguments(self) -> dict[str, Any]:
        return self.cache.arguments(self.forward.base.cache_argument)

    def _kept(self, verified: Verified) -> Verified:
        if verified.layers is not None:
            self.cache.append(verified.layers)
        return verified

    def layer_states(self, row: int) -> Tensor | None:
        return self.cache.vectors(row)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        self.cache.keep([[0, *(node + 1 for node in path)] for path in paths])

    def cut(self, lengths: Sequence[int]) -> None:
        self.cache.cut(lengths)

    def select(self, rows: Sequence[int]) -> None:
        self.cache.select(rows)
        self.forward = self.forward.select(rows)
