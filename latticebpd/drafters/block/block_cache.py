"""A block drafter that follows growing texts: the context of each text is cached, blocks are discarded (DFlash)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from latticebpd.drafters.block.block_network import BlockDrafter, anchored_blocks, check_target
from latticebpd.drafters.drafter import State, expect_width
from latticebpd.drafters.prefix_cache import PrefixCache
from latticebpd.drafters.text_states import layers_of
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.transformers.embeddings import shared_embeddings
from latticebpd.verification.row_cache import RowCache


class BlockFiller:
    """A drafter with its target's embeddings and output projection; ValueError for a drafter of another target."""

    def __init__(self, drafter: BlockDrafter, target: AnyModel, fingerprint: str | None = None) -> None:
        check_target(drafter, target, fingerprint)
        self.drafter = drafter
        self.embeddings, projection = shared_embeddings(target_model(target))
        self.output = drafter.output(projection)
        self.read = PrefixCache(is_encoder_decoder=False)

    def embedded(self, anchors: Tensor) -> Tensor:
        """``[rows, blocks]`` anchors' tokens -> ``[rows, blocks * block_size, hidden]``: anchor and masks of each."""
        config = self.drafter.config
        tokens = anchors.new_full((*anchors.shape, config.block_size), config.mask_token_id)
        tokens[:, :, 0] = anchors
        return F.embedding(tokens.flatten(1), self.embeddings).to(self.drafter.dtype)

    @torch.inference_mode()
    def states(self, texts: Sequence[State]) -> Tensor:
        """``[rows, slots, hidden]``: the slot states after every text; see `layers_of`."""
        drafter, read, device = self.drafter, self.read, self.drafter.device
        read.align(texts)
        layers = [layers_of(text) for text in texts]
        expect_width(layers[0], len(drafter.config.target_layer_ids) * drafter.config.hidden_size)
        new = [states[done:].to(device, drafter.dtype) for states, done in zip(layers, read.lengths, strict=True)]
        if any(map(len, new)):
            padded = pad_sequence(new, batch_first=True)
            begins = torch.tensor(read.lengths, device=device)[:, None]
            drafter.read(padded, begins + torch.arange(padded.shape[1], device=device), read.cache.past)
            read.keep([text.tokens[done:-1] for text, done in zip(texts, read.lengths, strict=True)])
        anchors = [[length] for length in read.cache.lengths]
        return self._fill([[text.tokens[-1]] for text in texts], anchors, read.cache, read.cache.longest)[:, 0]

    @torch.inference_mode()
    def contexts(self, last: Sequence[Tensor]) -> Tensor:
        """``[rows, hidden]`` context vectors of each row's last token before its anchor, zeros where there is none.

        last: ``[n, layers * hidden]`` of each row, of which the last is read.
        """
        drafter = self.drafter
        rows = [states[-1:] if len(states) else states.new_zeros(1, states.shape[1]) for states in last]
        known = torch.tensor([[len(states) > 0] for states in last], device=drafter.device)
        return drafter.context(torch.cat(rows).to(drafter.device, drafter.dtype)) * known

    @torch.inference_mode()
    def states_of_text(
        self, tokens: Sequence[int], layers: Tensor, anchors: Sequence[int], together: int = 64
    ) -> Iterator[Tensor]:
        """``[anchors, slots, hidden]``, a few anchors at a time: the slot states at positions of a finished text.

        layers: ``[n, layers * hidden]`` the target's hidden states at its first n tokens, up to the last anchor.
        anchors: positions in the text, ascending. together: blocks in one pass.
        """
        drafter, device = self.drafter, self.drafter.device
        cache = RowCache(is_encoder_decoder=False)
        cache.lengths = [len(layers)]
        if len(layers):
            positions = torch.arange(len(layers), device=device)[None]
            drafter.read(layers[None].to(device, drafter.dtype), positions, cache.past)
        for begin in range(0, len(anchors), together):
            part = list(anchors[begin : begin + together])
            yield self._fill([[tokens[anchor] for anchor in part]], [part], cache, len(layers))[0]

    def _fill(
        self, tokens: Sequence[Sequence[int]], anchors: Sequence[Sequence[int]], cache: RowCache, context: int
    ) -> Tensor:
        """``[rows, blocks, slots, hidden]``: slot states; tokens, anchors (positions): ``[rows, blocks]``."""
        drafter, config, device = self.drafter, self.drafter.config, self.drafter.device
        at = torch.tensor(anchors, device=device)
        positions, visible = anchored_blocks(at, config.block_size, context, config.causal_head)
        hidden = drafter.fill(self.embedded(torch.tensor(tokens, device=device)), positions, visible, cache.past)
        cache.cut()
        return drafter.slot_states(hidden)
