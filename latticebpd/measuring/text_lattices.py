"""What a drafter foresees at every position of a finished text, from one pass of the base model over it.

Position ``p`` is that of a hidden state: the one that token ``p + 1`` was chosen from. A lattice drawn there foresees
the tokens from ``p + 2`` on, as it would have in a decode that had committed ``p + 1``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from latticebpd.drafters.block.block_lattices import block_lattices
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.lattice_sources import BlockLattices
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel, Model

MOST_LOGITS = 1 << 25
"""Outputs held at a time."""


class Foreseer(Protocol):
    """A base model, and what drafts beside it.

    model: the former. slots: of the lattices. tokens: how many the drafter knows. tied: whether the lattices have
        transitions.
    fingerprint, vocab_size: of the vocabulary.  weights: a hash of everybody's weights.
    """

    slots: int
    tokens: int
    tied: bool
    fingerprint: str | None
    vocab_size: int

    @property
    def model(self) -> Model: ...

    @property
    def weights(self) -> str: ...

    def outputs(
        self, text: Sequence[int], positions: range, k: int, source: Sequence[int] = ()
    ) -> Iterator[tuple[list[SausageLattice], Tensor]]:
        """The lattices at some positions, in order, a few at a time, and the entropies of the outputs: ``[lattices,
        slots + 1]`` nats, the base model's first."""


def foreseer(drafts: BlockwiseLM | BlockLattices) -> Foreseer:
    """Of a model with heads, or of a block drafter beside its target."""
    return _Blocks(drafts) if isinstance(drafts, BlockLattices) else _Heads(drafts)


class _Heads:
    tied = False

    def __init__(self, model: BlockwiseLM) -> None:
        self.model, self.slots = model, model.num_heads - 1
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size
        self.tokens = model.vocab_size if model.shortlist is None else len(model.shortlist)

    @property
    def weights(self) -> str:
        return weights_fingerprint(self.model)

    def outputs(
        self, text: Sequence[int], positions: range, k: int, source: Sequence[int] = ()
    ) -> Iterator[tuple[list[SausageLattice], Tensor]]:
        states, own = _read(self.model, text, positions, source)
        hidden = states[-1][0, positions.start : positions.stop]
        step = max(1, MOST_LOGITS // (self.slots * self.vocab_size))
        for begin in range(0, len(positions), step):
            logits = self.model.head_logits(hidden[begin : begin + step])
            found = lattices_from_logits(logits, k, self.model.shortlist)
            yield found, torch.cat([own[begin : begin + step], entropy(logits)], dim=1)


class _Blocks:
    def __init__(self, blocks: BlockLattices) -> None:
        self.blocks, self.model, self.vocab_size, self.fingerprint = (
            blocks,
            blocks.target,
            blocks.vocab_size,
            blocks.fingerprint,
        )
        config = blocks.drafter.config
        self.slots = config.slots if blocks.slots is None else min(config.slots, blocks.slots)
        self.tokens, self.tied = config.draft_vocab_size or config.vocab_size, blocks.heads.of(blocks.drafter).bigram

    @property
    def weights(self) -> str:
        return f"{weights_fingerprint(BaseModel.of(self.model).model)} with {weights_fingerprint(self.blocks.drafter)}"

    def outputs(
        self, text: Sequence[int], positions: range, k: int, source: Sequence[int] = ()
    ) -> Iterator[tuple[list[SausageLattice], Tensor]]:
        blocks = self.blocks
        states, own = _read(self.model, text, positions, source)
        layers = torch.cat([states[layer + 1][0, : positions.stop] for layer in blocks.needs_layers], dim=-1)
        anchors = [position + 1 for position in positions]
        width = k if blocks.heads.of(blocks.drafter).bigram else 1  # softmaxes a slot
        together = max(1, MOST_LOGITS // (self.slots * self.tokens * width))
        begin = 0
        for hidden in blocks.filler.states_of_text(text, layers, anchors, together):
            hidden = hidden[:, : self.slots]
            rows = slice(begin, begin + len(hidden))
            begin = rows.stop
            found = block_lattices(
                blocks.drafter,
                blocks.filler.output,
                hidden,
                [text[anchor] for anchor in anchors[rows]],
                k,
                blocks.heads,
            )
            yield found, torch.cat([own[rows], entropy(blocks.filler.output(hidden))], dim=1)


def _read(
    model: Model, text: Sequence[int], positions: range, source: Sequence[int]
) -> tuple[Sequence[Tensor], Tensor]:
    """All layers' states, and the entropies, ``[positions, 1]``, of the base model's output."""
    base = BaseModel.of(model)
    ids = torch.tensor([list(text)], device=base.device)
    if source:
        given = torch.tensor([list(source)], device=base.device)
        out = base.model(input_ids=given, decoder_input_ids=ids, output_hidden_states=True, use_cache=False)
        states, logits = out.decoder_hidden_states, out.logits[:, positions.start :]
    else:
        read: Any = base.text(ids)
        out = base.model(**read, output_hidden_states=True, logits_to_keep=len(text) - positions.start, use_cache=False)
        states, logits = out.hidden_states, out.logits
    return states, entropy(logits[0, : len(positions)])[:, None]


def entropy(logits: Tensor) -> Tensor:
    """``[..., vocab]`` -> ``[...]`` nats."""
    nats: Tensor = torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1)
    return nats
