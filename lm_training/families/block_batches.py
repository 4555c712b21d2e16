"""Blocks behind anchors of texts whose hidden states are kept: what a block drafter reads, and what it is to say.

An *anchor* is a written token that others follow. A block of its own stands behind each of a few random anchors of a
text, all side by side under one mask (`latticebpd.drafters.block.block_network.anchored_blocks`); slot m, from 1 on, is
to say the m-th token behind the anchor. Slots behind a text's end, or whose token is not among those that are drafted,
have no label.
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
from lm_training.families.blockwise import HeadData
from lm_training.training.labels import ModelTexts

UNLABELLED = -1


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Blocks of several texts.

    states: ``[rows, context, layers * hidden]`` of the target's layers, side by side, texts padded on the right with
        zeros.
    anchors: ``[rows, blocks]`` positions; where a text has fewer, 0 without labels.
    tokens: ``[rows, blocks * block_size]`` each block's anchor and masks.
    inside: ``[rows, blocks, slots]`` whether a slot is one of the text's.
    labels: ``[rows, blocks, slots]`` by their place among the tokens that are drafted; ``UNLABELLED``.
    previous: ``[rows, blocks, slots]`` the token before each slot, of the target's vocabulary.
    last: ``[rows, blocks, slots, hidden]`` the states that the target chose the slots' tokens from, where they are
        asked for.
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
        drafter: what reads the batches.
        data: texts with states of every position.
        blocks: of each text.
        with_last: whether batches hold the states that the target chose tokens from.

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
            wanted = ",".join(map(str, layers))
            raise ValueError(
                f"expected hidden states beside the {name} texts; make them with `latticebpd train hidden --whole"
                f" --layers {wanted}`"
            )
        data.states.require_whole(layers)
        if len(data.states) != len(data.texts) or data.states.hidden_size != self.config.hidden_size:
            raise ValueError(
                f"expected hidden states of {len(data.texts)} {name} texts, {self.config.hidden_size} wide (the"
                f" drafter's), got {len(data.states)} of {data.states.hidden_size}"
            )
        self.layers = [layer_name(layer) for layer in layers]
        self.texts, self.states = ModelTexts.of(target, data.texts, name).texts, data.states
        self.place = np.arange(self.config.vocab_size)
        if drafter.draft_tokens is not None:
            self.place[:] = UNLABELLED
            self.place[drafter.draft_tokens.cpu().numpy()] = np.arange(len(drafter.draft_tokens))

    def __len__(self) -> int:
        return len(self.texts)

    def anchors(self, index: int, rng: np.random.Generator) -> np.ndarray:
        """``[n]`` random anchors of a text, ascending, each at most once; fewer than ``blocks`` where there are no
        more."""
        first, end = int(self.texts.prompt_lengths[index]), int(self.texts.lengths[index]) - 1
        drawn: np.ndarray = rng.permutation(np.arange(first, max(first, end)))[: self.blocks]
        return np.sort(drawn)

    def batch(self, chosen: Sequence[int], anchors: Sequence[np.ndarray], part: int = 0, parts: int = 1) -> BlockBatch:
        """Part of a step's texts, with blocks behind the given anchors of each."""
        config, blocks = self.config, max([1, *map(len, anchors)])
        labels = [self._labels(index, drawn, blocks) for index, drawn in zip(chosen, anchors, strict=True)]
        counts = sum(((said[2] >= 0).sum(axis=0) for said in labels), np.zeros(config.slots, np.int64)) / parts
        mine = list(range(part, len(chosen), parts))
        placed = np.zeros((len(mine), blocks), np.int64)
        tokens = np.full((len(mine), blocks, config.block_size), config.mask_token_id)
        for row, slot in enumerate(mine):
            placed[row, : len(anchors[slot])] = anchors[slot]
            tokens[row, :, 0] = self.texts[chosen[slot]][placed[row]]
        context = max(1, int(placed.max(initial=0)))  # layers take no empty context
        states = torch.zeros(len(mine), context, len(self.layers) * config.hidden_size)
        for row, slot in enumerate(mine):
            read = [self.states.of_whole_text(chosen[slot], layer)[:context].float() for layer in self.layers]
            states[row, : len(read[0])] = torch.cat(read, dim=1)
        inside, previous, said = (np.stack([labels[slot][kind] for slot in mine]) for kind in range(3))
        last = None
        if self.with_last:
            last = torch.zeros(*said.shape, config.hidden_size)
            for row, slot in enumerate(mine):
                where = (placed[row][:, None] + np.arange(config.slots))[inside[row]]
                last[row][torch.from_numpy(inside[row])] = self.states.of_whole_text(chosen[slot], LAST)[
                    torch.from_numpy(where)
                ].float()

        def moved(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device)

        return BlockBatch(
            states.to(self.device), moved(placed), moved(tokens.reshape(len(mine), -1)), moved(inside), moved(said),
            moved(previous),
            None if last is None else last.to(self.device), moved(counts.astype(np.float32)),
        )  # fmt: skip

    def _labels(self, index: int, anchors: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``[blocks, slots]`` each: whether a slot is the text's, the token before it, and its label."""
        row, slots = self.texts[index].astype(np.int64), np.arange(self.config.slots)
        inside, previous = np.zeros((blocks, len(slots)), bool), np.zeros((blocks, len(slots)), np.int64)
        said = np.full_like(previous, UNLABELLED)
        places = anchors[:, None] + slots
        inside[: len(anchors)] = places + 1 < len(row)
        previous[: len(anchors)] = row[np.minimum(places, len(row) - 1)]
        said[inside] = self.place[row[(places + 1)[inside[: len(anchors)]]]]
        return inside, previous, said
