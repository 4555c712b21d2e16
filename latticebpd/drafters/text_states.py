"""What sources of lattices by networks of their own share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.drafters.family import PositionLattices
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_tensor
from latticebpd.models.target_model import AnyModel, TargetModel, target_model

ROWS = 16
"""Positions drafted together where a drafter reads texts itself."""


class NetworkSource:
    """What sources of lattices by a network of their own, next to their target, share."""

    uses_target_calibration = False
    shortlist: np.ndarray | None = None
    files: DrafterFiles | None = None

    def __init__(self, hash_weights: Callable[[], str], target: AnyModel | None) -> None:
        self._hash_weights, self._target = hash_weights, None if target is None else target_model(target)

    @property
    def target(self) -> TargetModel:
        if self._target is None:
            raise ValueError("expected a drafter with the target that it drafts for, got none")
        return self._target

    @property
    def weights_fingerprint(self) -> str:
        return f"{self.target.fingerprint} with {self._hash_weights()}"

    def default_system(self, rescored: bool) -> str:
        return "{n}-tree"


def lattices_by_states(
    lattices: Callable[[Sequence[State]], Sequence[SausageLattice | None]],
    text: Sequence[int],
    positions: range,
    max_depth: int,
    source: Sequence[int] = (),
    layers: Any = None,
) -> PositionLattices:
    """Lattices at some positions, by a drafter that reads texts itself: as at each moment of a decode.

    layers: ``[n, layers * hidden]`` states of the target's layers at the text's first n tokens, if it reads them.
    """
    for begin in range(0, len(positions), ROWS):
        chosen = positions[begin : begin + ROWS]
        states = [
            State(row, text[: at + 2], 1, None, max_depth, source, None if layers is None else layers[: at + 1])
            for row, at in enumerate(chosen)
        ]
        drawn = [lattice for lattice in lattices(states) if lattice is not None]
        fits = len(drawn) == len(states) and all(lattice.slots >= max_depth for lattice in drawn)
        expect(fits, "texts within the drafter's positions", f"one of {chosen[-1] + 2} tokens", "make them shorter")
        yield drawn, None


def layers_of(text: State) -> Tensor:
    """A text's states of the target's layers; ValueError where it has none, or not of all its tokens but the last."""
    tokens = len(text.tokens) - 1
    if text.layers is None or len(text.layers) != tokens:
        wanted = f"the target's layers' states of {tokens} tokens, which the drafter reads"
        got = "none" if text.layers is None else f"{len(text.layers)} tokens'"
        raise ValueError(f"expected {wanted}, got {got}")
    return as_tensor(text.layers)


def entropy(logits: Tensor) -> Tensor:
    """``[..., vocab]`` -> ``[...]`` nats."""
    return torch.special.entr(logits.float().softmax(dim=-1)).sum(dim=-1)
