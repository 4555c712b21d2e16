"""Verification without a cache: every path of every tree is read from the beginning, as a row of a plain batch.

It needs no masks, positions or cache of a model, only that it is causal. That makes it the reference for the faster
verifiers, and the fallback for every model; its cost grows with the text.
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
from latticebpd.verification.verifier import Verified


class RecomputingVerifier:
    """The target model, any causal LM or encoder–decoder, called on full texts.

    source: of an encoder–decoder.  layers: those whose states are kept.
    """

    max_nodes = None

    def __init__(self, model: Model, source: EncodedSource | None = None, layers: Sequence[int] = ()) -> None:
        self.forward = Forward(model, source, layers)
        self.device = self.forward.base.device
        self.texts: list[list[int]] = []
        self.pending: list[tuple[int, DraftTree]] = []
        self.states: list[Tensor] = []
        self.read_states: list[list[Tensor]] = []  # for each row and column of the last pass, of its sequence

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
        sequences: list[list[int]] = []
        owners: list[int] = []
        # The first sequence that holds each column, and the column's index in it.
        sequence, index = np.zeros((2, len(trees), max(map(len, trees)) + 1), dtype=np.int64)
        for row, (text, (next_token, tree)) in enumerate(zip(self.texts, self.pending, strict=True)):
            sequence[row], index[row] = len(sequences), len(text)
            leaves = np.setdiff1d(np.arange(len(tree)), tree.parents)  # whose paths hold all nodes
            for path in map(tree.path, leaves.tolist()) if len(tree) else [[]]:
                sequence[row, np.array(path, dtype=np.int64) + 1] = len(sequences)
                sequences.append([*text, next_token, *tree.tokens[path].tolist()])
                owners.append(row)
            index[row, 1 : len(tree) + 1] += tree.depths
        read = self.forward.select(owners).nodes(self._arguments(sequences))
        if read.layers is not None:
            self.read_states = [[read.layers[each] for each in row] for row in sequence.tolist()]

        def logits_of(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            return read.logits_of(*(each[list(rows), list(columns)].tolist() for each in (sequence, index)))

        at = [torch.from_numpy(each).to(self.device) for each in (sequence, index)]
        return Verified(read.hidden[at[0], at[1]], logits_of)

    def keep(self, paths: Sequence[Sequence[int]]) -> None:
        for text, (next_token, tree), path in zip(self.texts, self.pending, paths, strict=True):
            text += [next_token, *tree.tokens[list(path)].tolist()]
        if self.read_states:
            ends = [path[-1] + 1 if len(path) else 0 for path in paths]
            read = [states[end] for states, end in zip(self.read_states, ends, strict=True)]
            self.states = [states[: len(text)] for states, text in zip(read, self.texts, strict=True)]

    def cut(self, lengths: Sequence[int]) -> None:
        self.texts = [text[:length] for text, length in zip(self.texts, lengths, strict=True)]
        self.states = [states[:length] for states, length in zip(self.states, lengths, strict=bool(self.states))]

    def select(self, rows: Sequence[int]) -> None:
        self.texts = [self.texts[row] for row in rows]
        self.states = [self.states[row] for row in rows] if self.states else []
        self.forward = self.forward.select(rows)

    def layer_states(self, row: int) -> Tensor | None:
        return self.states[row] if self.states else None

    def _arguments(self, sequences: list[list[int]]) -> dict[str, Any]:
        return {**self.forward.base.padded_text(sequences), "use_cache": False}
