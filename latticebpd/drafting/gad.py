"""Drafters that ask a non-autoregressive model (GAD; Xia 2022, sections 3 and 4).

A draft fills k masks behind the text in one pass.  The masks' outputs are a sausage lattice like any heads', so what is
drafted from it is the same: each mask's best token, which is the paper's draft, the p best rescored paths, or the best
prefix tree.  Under ``Exact`` acceptance this is GAD, under ``TopBeta(beta, tau)`` GAD++.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import cast

import numpy as np

from latticebpd.drafting.base import State
from latticebpd.drafting.heads import HasHeads, HeadsDrafter, PathsDrafter, TreeDrafter, VanillaDrafter, lattices_from_logits
from latticebpd.lattices.drafts import DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.base import BaseModel
from latticebpd.models.mask_filler import MaskFiller
from latticebpd.models.mask_filling import NonAutoregressiveModel
from latticebpd.scoring.rescoring import LanguageModel


class _MaskDrafter(HeadsDrafter):
    """What the drafters below share: their lattices are a non-autoregressive model's masks."""

    _reading: Future[None] | None = None

    @cached_property
    def filler(self) -> MaskFiller:
        return MaskFiller(cast(NonAutoregressiveModel, self.model))

    def read(self, sources: Sequence[Sequence[int]]) -> None:
        """Begin to encode the sources of the next ``generate``, beside whatever happens meanwhile.

        Called right before ``generate`` it has drafter and verifier encode at the same time; without it the drafter
        encodes when it is first asked.
        """
        worker = ThreadPoolExecutor(1)
        self._reading = worker.submit(self.filler.encode, sources)
        worker.shutdown(wait=False)

    def lattices(self, states: Sequence[State]) -> list[SausageLattice]:
        """The lattice that starts right after each state's tokens, up to where its best token ends the text; none without room."""
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        assert self.slots is not None
        logits = self.filler.logits(states, min(self.slots, max(state.max_depth for state in states)))
        if not logits.shape[1]:
            return []
        ends = BaseModel.of(self.filler.model).eos_ids
        return [_cut(found, state.max_depth, ends) for found, state in zip(lattices_from_logits(logits, self.k), states, strict=True)]

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        lattices = self.lattices(states)
        return self.draft(lattices, states) if lattices else [DraftTree.empty()] * len(states)


class GadDrafter(_MaskDrafter, VanillaDrafter):
    """The paper's draft: the best token of every mask.

    Args:
        model: fills the masks.
        block_size: masks per draft, at most the model's own block size, which is the default.
    """

    def __init__(self, model: NonAutoregressiveModel, block_size: int | None = None) -> None:
        super().__init__(_asked(model), _masks(model, block_size))


class GadPathsDrafter(_MaskDrafter, PathsDrafter):
    """The ``p`` best rescored paths; arguments as for ``PathsDrafter`` and ``GadDrafter``."""

    def __init__(
        self,
        model: NonAutoregressiveModel,
        lm: LanguageModel,
        p: int = 16,
        alpha: float | None = None,
        k: int = 16,
        block_size: int | None = None,
    ) -> None:
        super().__init__(_asked(model), lm, p, alpha, k, _masks(model, block_size))


class GadTreeDrafter(_MaskDrafter, TreeDrafter):
    """The best prefix tree of ``num_nodes`` nodes; arguments as for ``TreeDrafter`` and ``GadDrafter``."""

    def __init__(
        self,
        model: NonAutoregressiveModel,
        lm: LanguageModel,
        num_nodes: int = 64,
        alpha: float | None = None,
        k: int = 16,
        block_size: int | None = None,
    ) -> None:
        super().__init__(_asked(model), lm, num_nodes, alpha, k, _masks(model, block_size))


def _asked(model: NonAutoregressiveModel) -> HasHeads:
    """The model as the heads' drafters take it: they ask it for its vocabulary alone, since the lattices come from the masks."""
    return cast(HasHeads, model)


def _masks(model: NonAutoregressiveModel, block_size: int | None) -> int:
    if block_size is not None and not 1 <= block_size <= model.block_size:
        raise ValueError(f"expected a block size from 1 to {model.block_size} (what the drafter was trained for), got {block_size}")
    return block_size or model.block_size


def _cut(lattice: SausageLattice, slots: int, ends: Sequence[int]) -> SausageLattice:
    """The first ``slots`` slots, up to the first whose best token is among ``ends``."""
    ended = np.flatnonzero(np.isin(lattice.tokens[:, 0], ends))
    slots = min(slots, int(ended[0]) + 1 if ended.size else lattice.slots)
    return lattice if slots == lattice.slots else SausageLattice(lattice.tokens[:slots], lattice.log_probs[:slots])
