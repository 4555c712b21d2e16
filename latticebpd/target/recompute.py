"""Verification without a cache: every path of every tree is read from the beginning, as a row of a plain batch.

It asks nothing of a model but that it is causal: no masks, no positions, no cache.  That makes it the yardstick of
the quicker verifiers, and the one that serves every model; its cost grows with the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import EncodedSource, Forward, Verified
from latticebpd.target.stock_model import Model


def leaf_paths(tree: DraftTree) -> list[list[int]]:
    """The paths from the root to every leaf, which hold all nodes; one empty path for an empty tree."""
    inner = set(tree.parents.tolist())
    return [tree.path(node) for node in range(len(tree)) if node not in inner] or [[]]


class RecomputingVerifier:
    """The base model called on whole texts.

    Args:
        model: any causal LM or encoder–decoder.
        source: an encoder–decoder's source.
        layers: those whose states are kept.
    """

    def __init__(self, model: Model, source: EncodedSource | None = None, layers: Sequence[int] = ()) -> None:
        self.forward = Forward(model, source, layers)
        self.source = source
        self.device = self.forward.base.device
        self.texts: list[list[int]] = []
        self.pending: list[tuple[int, DraftTree]] = []
        self.states: list[Tensor] = []
        self.read_states: list[list[Tensor]] = []  # of the last pass: for each row and column, its whole sequence's

    @property
    def max_nodes(self) -> None:
        return None

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Sequence[int]]) -> Verified:
        self.texts = [list(prompt) for prompt in prompts]
        last = torch.tensor([len(text) - 1 for text in self.texts], device=self.device)
        read = self.forward.last(self._arguments(self.texts), last)
        if read.layers is not None:
            self.states = [states[: len(text)] for states, text in zip(read.layers, self.texts, strict=True)]
        return read

    def begin(self, rows: int) -> None:
        self.texts, self.states = [[] for _ in range(rows)], []

    @torch.inference_mode()
    def verify(self, next_tokens: Sequence[int], trees: Sequence[DraftTree]) -> Verified:
        self.pending = list(zip(next_tokens, trees, strict=True))
        columns = max(map(len, trees)) + 1
        sequences: list[list[int]] = []
        owners: list[int] = []
        # Where each column is read: the first sequence that holds it, and the place in that sequence.
        found = np.zeros((2, len(trees), columns), dtype=np.int64)
        for row, (text, (next_token, tree)) in enumerate(zip(self.texts, self.pending, strict=True)):
            found[:, row] = [[len(sequences)], [len(text)]]
            for path in leaf_paths(tree):
                found[0, row, np.array(path, dtype=np.int64) + 1] = len(sequences)
                sequences.append([*text, next_token, *tree.tokens[path].tolist()])
                owners.append(row)
            found[1, row, 1 : len(tree) + 1] += tree.depths
        if self.source is not None:
            self.forward.source = self.source.select(torch.tensor(owners, device=self.device))
        read = self.forward.nodes(self._arguments(sequences))
        sequence, place = found
        if read.layers is not None:
            self.read_states = [[read.layers[each] for each in row] for row in sequence.tolist()]
        return Verified(
            read.hidden[torch.from_numpy(sequence).to(self.device), torch.from_numpy(place).to(self.device)],
            lambda rows, at: read.logits_of(
                sequence[list(rows), list(at)].tolist(), place[list(rows), list(at)].tolist()
            ),
        )

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for text, (next_token, tree), path in zip(self.texts, self.pending, paths, strict=True):
            text += [next_token, *tree.tokens[list(path)].tolist()]
        if self.read_states:
            ends = [path[-1] + 1 if len(path) else 0 for path in paths]
            self.states = [
                row[end][: len(text)] for row, end, text in zip(self.read_states, ends, self.texts, strict=True)
            ]

    def forget(self) -> None:
        self.pending = []

    def select(self, rows: Sequence[int]) -> None:
        self.texts = [self.texts[row] for row in rows]
        self.states = [self.states[row] for row in rows] if self.states else []
        if self.source is not None:
            self.source = self.source.select(torch.tensor(rows, device=self.device))

    def layer_states(self, row: int) -> Tensor | None:
        return self.states[row] if self.states else None

    def _arguments(self, sequences: list[list[int]]) -> dict[str, Any]:
        """Equally long rows; what is added on the right is out of the sight of everything before it."""
        width = max(map(len, sequences))
        padded = [[*sequence, *[sequence[-1]] * (width - len(sequence))] for sequence in sequences]
        return {**self.forward.base.text(torch.tensor(padded, device=self.device)), "use_cache": False}
