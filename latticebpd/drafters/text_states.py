"""The target's states at every position of a finished text, from one pass, and lattices drawn there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import PositionLattices
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import BaseModel, Model

MAX_LOGITS = 1 << 25
"""Outputs held at a time."""
ROWS = 16
"""Positions drafted together where a drafter reads texts itself."""


class NetworkSource:
    """What sources of lattices by a network of their own, next to their target, share."""

    shares_lm = False

    def __init__(self, network: nn.Module, target: Model | None) -> None:
        self._network, self._target = network, target

    @property
    def target(self) -> Model:
        if self._target is None:
            raise ValueError("expected a drafter with the target that it drafts for, got none")
        return self._target

    @property
    def weights(self) -> str:
        return f"{weights_fingerprint(BaseModel.of(self.target).model)} with {weights_fingerprint(self._network)}"

    def default_system(self, rescored: bool) -> str:
        return "{n}-tree"


@torch.inference_mode()
def text_states(
    model: Model, text: Sequence[int], positions: range, source: Sequence[int] = ()
) -> tuple[Sequence[Tensor], Tensor]:
    """All layers' states ``[1, tokens, hidden]``, and the entropies ``[positions, 1]`` of the target's output."""
    base = BaseModel.of(model)
    ids = torch.tensor([list(text)], device=base.device)
    if source:
        source_ids = torch.tensor([list(source)], device=base.device)
        out = base.model(input_ids=source_ids, decoder_input_ids=ids, output_hidden_states=True, use_cache=False)
        states, logits = out.decoder_hidden_states, out.logits[:, positions.start :]
    else:
        read: Any = base.text(ids)
        out = base.model(**read, output_hidden_states=True, logits_to_keep=len(text) - positions.start, use_cache=False)
        states, logits = out.hidden_states, out.logits
    return states, entropy(logits[0, : len(positions)])[:, None]


def lattices_by_states(
    lattices: Callable[[Sequence[State]], Sequence[SausageLattice | None]],
    text: Sequence[int],
    positions: range,
    max_depth: int,
    source: Sequence[int] = (),
) -> PositionLattices:
    """Lattices at some positions, by a drafter that reads texts itself: as at each moment of a decode."""
    for begin in range(0, len(positions), ROWS):
        chosen = positions[begin : begin + ROWS]
        states = [State(row, text[: position + 2], 1, None, max_depth, source) for row, position in enumerate(chosen)]
        drawn = [lattice for lattice in lattices(states) if lattice is not None]
        fits = len(drawn) == len(states) and all(lattice.slots >= max_depth for lattice in drawn)
        expect(fits, "texts within the drafter's positions", f"one of {chosen[-1] + 2} tokens", "make them shorter")
        yield drawn, None


def entropy(logits: Tensor) -> Tensor:
    """``[..., vocab]`` -> ``[...]`` nats."""
    return torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1)
