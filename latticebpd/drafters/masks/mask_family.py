"""The family of mask-filling models (GAD; Xia 2022): a non-autoregressive encoder–decoder drafts for another one."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np

from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import DrafterLattices, LoadOptions, PositionLattices, Target, of_files
from latticebpd.drafters.masks.mask_filler import MaskFiller
from latticebpd.drafters.masks.mask_network import ROLE, NonAutoregressiveModel, check_pair, is_drafter
from latticebpd.drafters.text_states import NetworkSource, lattices_by_states
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import Model, TransformersModel

DRAFTS_ONLY = f"a {ROLE}"
recognises = is_drafter


def runs_beside_engine(path: Path) -> bool:
    return False


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The mask-filling model of a directory, for an encoder–decoder."""
    wanted = "a drafter of a decoder-only model"
    expect(loaded.target.is_encoder_decoder, wanted, "a mask-filling model, which drafts for encoder–decoders", of=path)
    verifier: Any = loaded.target
    model = NonAutoregressiveModel.from_pretrained(path)
    check_pair(verifier.model, model, vocabulary_fingerprint(loaded.tokenizer.get_vocab()))
    return MaskLattices(model, target=verifier)


class MaskLattices(NetworkSource):
    """The outputs of a non-autoregressive model that fills masks after the text in one pass (GAD; Xia 2022, sections 3
    and 4).

    A lattice ends where its best token ends the text.

    block_size: masks per draft, at most the model's own block size, which is the default.
    """

    needs_hidden = False
    vocabulary_name = "the drafter"
    has_transitions = False

    def __init__(
        self, model: NonAutoregressiveModel, k: int = 16, block_size: int | None = None, target: Model | None = None
    ) -> None:
        super().__init__(lambda: weights_fingerprint(model), target)
        wanted = f"a block size from 1 to {model.block_size} (what the drafter was trained for)"
        expect(block_size is None or 1 <= block_size <= model.block_size, wanted, block_size)
        self.model, self.k, self.num_slots = model, k, block_size or model.block_size
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size
        self.num_tokens = self.vocab_size
        self.filler = MaskFiller(model)
        self._reading: Future[None] | None = None

    def read(self, sources: Sequence[Sequence[int]]) -> None:
        """Begin to encode the sources of the next ``generate``, in a thread of its own.

        Called right before ``generate`` it has drafter and verifier encode at the same time; without it the drafter
        encodes when it is first asked.
        """
        worker = ThreadPoolExecutor(1)
        self._reading = worker.submit(self.filler.encode, sources)
        worker.shutdown(wait=False)

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        ends = TransformersModel.of(self.model).eos_ids
        return [
            None if lattice is None else _cut(lattice, state.max_depth, ends)
            for lattice, state in zip(self._uncut_lattices(states), states, strict=True)
        ]

    def _uncut_lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        """Lattices that do not stop where the text ends."""
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        logits = self.filler.logits(states, min(self.num_slots, max(state.max_depth for state in states)))
        if not logits.shape[1]:  # the model has no position left
            return [None] * len(states)
        return list(lattices_from_logits(logits, self.k))

    def default_system(self, rescored: bool) -> str:
        return "{n}-tree" if rescored else "vanilla"

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        target = None if self._target is None else TransformersModel.of(self._target)
        return of_files(self.files, type(self)(self.model, k, slots, target))

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        return lattices_by_states(self._uncut_lattices, text, positions, self.num_slots, source)


def _cut(lattice: SausageLattice, slots: int, ends: Sequence[int]) -> SausageLattice:
    """The first ``slots`` slots, up to the first whose best token is among ``ends``."""
    ended = np.flatnonzero(np.isin(lattice.tokens[:, 0], ends))
    return lattice.first_slots(min(slots, int(ended[0]) + 1) if ended.size else slots)
