"""A block drafter beside growing texts: the context that it has read of them is kept, the blocks are forgotten
(DFlash)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from latticebpd.drafters.block.block_network import BlockDrafter, anchored_blocks, check_target
from latticebpd.drafters.prefix_cache import GrowingText, PrefixCache
from latticebpd.target.stock_model import BaseModel, Model


class SeenText(GrowingText, Protocol):
    """A growing text, and what the target's layers handed on for all of its tokens but the last: ``[tokens - 1, layers
    * hidden]``."""

    @property
    def layers(self) -> Tensor | None: ...


class BlockFiller:
    """A drafter with its target's embeddings and output projection.

    Args:
        drafter: what fills the blocks.
        target: the model that it was trained for.
        fingerprint: hash of the target's vocabulary, where it is known.

    Raises:
        ValueError: a drafter of another target.
    """

    def __init__(self, drafter: BlockDrafter, target: Model, fingerprint: str | None = None) -> None:
        check_target(drafter, target, fingerprint)
        base = BaseModel.of(target)
        self.drafter = drafter
        self.output = drafter.output(base.projection)
        self.embeddings: Any = base.model.get_input_embeddings().weight
        self.read = PrefixCache(is_encoder_decoder=False)

    def embedded(self, anchors: Tensor) -> Tensor:
        """``[rows, blocks]`` anchors' tokens -> ``[rows, blocks * block_size, hidden]``: each block's anchor, and
        masks."""
        config = self.drafter.config
        tokens = anchors.new_full((*anchors.shape, config.block_size), config.mask_token_id)
        tokens[:, :, 0] = anchors
        return F.embedding(tokens.flatten(1), self.embeddings).to(self.drafter.dtype)

    @torch.inference_mode()
    def states(self, texts: Sequence[SeenText]) -> Tensor:
        """``[rows, slots, hidden]``: the states that say the tokens behind every text.

        Raises:
            ValueError: a text without its layers' states.
        """
        drafter, read, device = self.drafter, self.read, self.drafter.device
        read.align(texts)
        layers = [_layers_of(text) for text in texts]
        new = [states[done:].to(device, drafter.dtype) for states, done in zip(layers, read.lengths, strict=True)]
        if any(map(len, new)):
            padded = pad_sequence(new, batch_first=True)
            begins = torch.tensor(read.lengths, device=device)[:, None]
            drafter.read(padded, begins + torch.arange(padded.shape[1], device=device), read.cache.past)
            read.keep(
                [text.tokens[done : len(text.tokens) - 1] for text, done in zip(texts, read.lengths, strict=True)]
            )
        config, longest = drafter.config, read.cache.longest
        anchors = torch.tensor(read.cache.lengths, device=device)[:, None]
        positions, visible = anchored_blocks(anchors, config.block_size, longest, config.causal_head)
        last = torch.tensor([[text.tokens[-1]] for text in texts], device=device)
        hidden = drafter.fill(self.embedded(last), positions, visible, read.cache.past)
        read.cache.cut()
        return drafter.said(hidden)[:, 0]

    @torch.inference_mode()
    def states_of_text(
        self, tokens: Sequence[int], layers: Tensor, anchors: Sequence[int], together: int = 64
    ) -> Iterator[Tensor]:
        """``[anchors, slots, hidden]``, a few anchors at a time: the states that say what follows a finished text's
        positions.

        Args:
            tokens: the text.
            layers: ``[n, layers * hidden]`` what the target's layers handed on for its first n tokens, all before the
                last anchor.
            anchors: positions in it, ascending.
            together: blocks in one pass.
        """
        drafter, config, device = self.drafter, self.drafter.config, self.drafter.device
        cache = PrefixCache(is_encoder_decoder=False).cache
        cache.lengths = [len(layers)]
        if len(layers):
            drafter.read(
                layers[None].to(device, drafter.dtype), torch.arange(len(layers), device=device)[None], cache.past
            )
        for begin in range(0, len(anchors), together):
            part = torch.tensor([list(anchors[begin : begin + together])], device=device)
            positions, visible = anchored_blocks(part, config.block_size, len(layers), config.causal_head)
            last = torch.tensor([[tokens[anchor] for anchor in anchors[begin : begin + together]]], device=device)
            hidden = drafter.fill(self.embedded(last), positions, visible, cache.past)
            cache.cut()
            yield drafter.said(hidden)[0]


def _layers_of(text: SeenText) -> Tensor:
    if text.layers is None or len(text.layers) != len(text.tokens) - 1:
        found = "none" if text.layers is None else f"{len(text.layers)} tokens'"
        raise ValueError(
            f"expected the target's layers' states of {len(text.tokens) - 1} tokens, which a block drafter reads, got"
            f" {found}"
        )
    return text.layers
