"""Batches for block drafters: stored hidden states of texts, blocks that follow anchors, and their labels.

An *anchor* is a written token that others follow. Each of a few random anchors of a text starts a block; one pass
fills all blocks under one mask (`latticebpd.drafters.block.block_network.anchored_blocks`). The label of slot m, from
1 on, is the m-th token after the anchor. Slots beyond the text, or whose token is not drafted, have no label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latticebpd.drafters.block.block_network import BlockConfig, BlockDrafter
from latticebpd.target.stock_model import Model
from lm_training.data.hidden_states import LAST, layer_name
from lm_training.data.loading import HeadData
from lm_training.data.shortlist import shortlist_indices
from lm_training.training.labels import ModelTexts

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Blocks of several texts.

    states: ``[rows, context, layers * hidden]`` of the target's layers, zeros after a text's end.
    anchors: ``[rows, blocks]`` positions; surplus ones are 0 and have no labels.
    tokens: ``[rows, blocks * block_size]`` each block's anchor and masks.
    inside: ``[rows, blocks, slots]`` whether a slot is one of the text's.
    labels: ``[rows, blocks, slots]`` indices of the drafted tokens, or ``UNLABELLED``.
    previous: ``[rows, blocks, slots]`` the token before each slot, of the target's vocabulary.
    last: ``[rows, blocks, slots, hidden]`` the target's states that predict the slots' tokens, if asked for.
    counts: ``[slots]`` labels, the mean over the parts of a step.
    """

    states: Tensor
    anchors: Tensor
    tokens: Tensor
    inside: Tensor
    labels: Tensor
    previous: Tensor
    last: Tensor | None
    counts: Tensor


class BlockSampler:
    """Makes batches of chosen texts.

    Args:
        target: whose text it is.
        data: texts with states of every position.
        blocks: of each text.
        with_last: whether batches hold the states that predict the slots' tokens.

    Raises:
        ValueError: texts without states, or with those of another width; texts that the target cannot read.
    """

    def __init__(
        self, target: Model, drafter: BlockDrafter, data: HeadData, name: str, blocks: int, with_last: bool = False
    ) -> None:
        self.config: BlockConfig = drafter.config
        self.device, self.blocks, self.with_last = drafter.device, blocks, with_last
        layers = [layer + 1 for layer in self.config.target_layer_ids]  # files count from 1
        if data.states is None:
            command = f"latticebpd train hidden --whole --layers {','.join(map(str, layers))}"
            raise ValueError(f"expected hidden states beside the {name} texts; make them with `{command}`")
        data.states.require_whole(layers)
        if len(data.states) != len(data.texts) or data.states.hidden_size != self.config.hidden_size:
            raise ValueError(
                f"expected hidden states of {len(data.texts)} {name} texts, {self.config.hidden_size} wide (the"
                f" drafter's), got {len(data.states)} of {data.states.hidden_size}"
            )
        self.layers = [layer_name(layer) for layer in layers]
        self.texts, self.states = ModelTexts.of(target, data.texts, name).texts, data.states
        drafted = drafter.draft_tokens
        self.indices = shortlist_indices(self.config.vocab_size, None if drafted is None else drafted.cpu().numpy())

    def __len__(self) -> int:
        return len(self.texts)

    def anchors(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """``[n]`` at most ``blocks`` different random anchors of a text, ascending."""
        first, end = int(self.texts.prompt_lengths[index]), int(self.texts.lengths[index]) - 1
        drawn: np.ndarray = rng.permutation(np.arange(first, max(first, end)))[: self.blocks]
        return np.sort(drawn)

    def batch(self, chosen: Sequence[int], anchors: Sequence[np.ndarray], part: int = 0, parts: int = 1) -> BlockBatch:
        """Part of a step's texts, with blocks after the given anchors of each."""
        config, blocks = self.config, max([1, *map(len, anchors)])
        slots = [self._slots(index, drawn, blocks) for index, drawn in zip(chosen, anchors, strict=True)]
        counts = sum(((labels >= 0).sum(axis=0) for _, _, labels in slots), np.zeros(config.slots, np.int64)) / parts
        mine = range(part, len(chosen), parts)
        positions = np.zeros((len(mine), blocks), np.int64)
        tokens = np.full((len(mine), blocks, config.block_size), config.mask_token_id)
        for row, turn in enumerate(mine):
            positions[row, : len(anchors[turn])] = anchors[turn]
            tokens[row, :, 0] = self.texts[chosen[turn]][positions[row]]
        inside, previous, labels = (np.stack([slots[turn][kind] for turn in mine]) for kind in range(3))
        context = max(1, int(positions.max(initial=0)))  # layers need a context
        states = torch.zeros(len(mine), context, len(self.layers) * config.hidden_size)
        last = torch.zeros(*labels.shape, config.hidden_size) if self.with_last else None
        for row, turn in enumerate(mine):
            read = [self.states.of_whole_text(chosen[turn], layer)[:context].float() for layer in self.layers]
            states[row, : len(read[0])] = torch.cat(read, dim=1)
            if last is not None:
                columns = (positions[row][:, None] + np.arange(config.slots))[inside[row]]
                chosen_from = self.states.of_whole_text(chosen[turn], LAST)[torch.from_numpy(columns)]
                last[row][torch.from_numpy(inside[row])] = chosen_from.float()
        arrays = (positions, tokens.reshape(len(mine), -1), inside, labels, previous, counts.astype(np.float32))
        *moved, moved_counts = (torch.from_numpy(array).to(self.device) for array in arrays)
        return BlockBatch(
            states.to(self.device), *moved, last=None if last is None else last.to(self.device), counts=moved_counts
        )

    def _slots(self, index: int, anchors: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``[blocks, slots]`` each: whether a slot is the text's, the token before it, and its label."""
        row, slots = self.texts[index].astype(np.int64), np.arange(self.config.slots)
        inside, previous = np.zeros((blocks, len(slots)), bool), np.zeros((blocks, len(slots)), np.int64)
        labels = np.full_like(previous, UNLABELLED)
        positions = anchors[:, None] + slots
        inside[: len(anchors)] = positions + 1 < len(row)
        previous[: len(anchors)] = row[np.minimum(positions, len(row) - 1)]
        labels[inside] = self.indices[row[(positions + 1)[inside[: len(anchors)]]]]
        return inside, previous, labels
