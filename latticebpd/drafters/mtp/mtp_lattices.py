"""The lattices of MTP layers: the best prefixes of each length, as for an assistant, and the layers' predictions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import PositionLattices, of_files
from latticebpd.drafters.mtp.mtp_reader import MtpReader
from latticebpd.drafters.prefix_lattices import prefix_lattices
from latticebpd.drafters.text_states import NetworkSource, lattices_by_states
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.target_model import AnyModel
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.finished_texts import read_text
from latticebpd.verification.tree_positions import layers_of as attention_of

SLOTS = 4
"""Tokens that a draft is long, of models with fewer layers: the last one is applied again."""


class MtpLattices(NetworkSource):
    """The outputs of a target's MTP layers after its text and their own best prefixes.

    mtp: the ``MtpModel`` of ``transformers``.  slots: by default as many as layers, at least ``SLOTS``. ``chain`` with
    ``k`` of 1 and as many slots as layers is what ``generate(use_mtp=True)`` drafts.
    """

    needs_hidden = True
    has_transitions = True
    uses_target_calibration = True
    vocabulary_name = "the model"

    def __init__(self, mtp: Any, target: AnyModel, k: int = 16, slots: int | None = None) -> None:
        super().__init__(lambda: weights_fingerprint(mtp.layers), target)
        self.vocab_size = self.num_tokens = self.target.vocab_size
        expect(1 <= k <= self.num_tokens, f"1 to {self.num_tokens} arcs per slot (the model's tokens)", k)
        self.mtp, self.k, self.num_slots = mtp, k, slots or max(SLOTS, len(mtp.layers))
        self.fingerprint: str | None = getattr(target, "tokenizer_fingerprint", None)
        self.needs_layers = (TransformersModel.of(target).num_layers - 1,)
        self.reader = MtpReader(mtp)

    def default_system(self, rescored: bool) -> str:
        """Trees are for models whose text can be read once: others, with recurrent layers, read it again for each
        leaf."""
        model = TransformersModel.of(self.target).model
        return "copies+{n}-tree" if attention_of(model).only_attention else "chain"

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return of_files(self.files, type(self)(self.mtp, self.target, k, slots))

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        layers = read_text(self.target, text, positions, self.needs_layers).layers
        return lattices_by_states(self.lattices, text, positions, self.num_slots, layers=layers)

    @torch.inference_mode()
    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        slots = min(self.num_slots, max(state.max_depth for state in states))
        drawn = prefix_lattices(self.reader.read(states), self.reader.grow, slots, self.k)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]
