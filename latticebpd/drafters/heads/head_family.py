"""The family of prediction heads (Stern 2018, Kim 2024, Medusa): they lie next to the model that they draft for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from latticebpd.checks import expect
from latticebpd.drafters.drafter import State, expect_width
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.drafters.family import MAX_LOGITS, DrafterLattices, LoadOptions, PositionLattices, Target, of_files
from latticebpd.drafters.heads.engine_heads import EngineHeads, has_kernels
from latticebpd.drafters.heads.head_files import has_heads, read_settings
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.engine.engine_model import EngineModel

if TYPE_CHECKING:
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.drafters.heads.torch_heads import TorchHeads

DRAFTS_ONLY = None
recognises = has_heads


def runs_beside_engine(path: Path) -> bool:
    """Whether there are kernels for a directory's heads; False where they cannot be read, which `load` then says."""
    try:
        return has_kernels(read_settings(path))
    except ValueError:
        return False


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The heads that lie next to the target; ValueError for those of another model."""
    if path != loaded.folder:
        wanted, got = "a block drafter or a mask-filling model", "a model with heads"
        raise ValueError(f"{path}: expected {wanted}, found {got}; give it as --model")
    if isinstance(loaded.target, EngineModel):
        return HeadLattices(EngineHeads(path, loaded.target, loaded.tokenizer), bigram=options.bigram)
    from latticebpd.drafters.heads.blockwise import BlockwiseLM
    from latticebpd.models.transformers.transformers_model import TransformersModel

    base = TransformersModel.of(loaded.target).model
    return HeadLattices(BlockwiseLM.with_heads(base, path), bigram=options.bigram)


class HeadLattices:
    """The outputs of prediction heads (Stern 2018): they read one hidden state per row, all rows at once.

    heads: those of a ``BlockwiseLM`` are heads 2..h; or what computes them.
    k: arcs per slot.
    slots: ask the first so many heads only; None asks all.  A head costs a projection to the vocabulary, and
        a small tree seldom reaches the last ones.
    bigram: use the heads' transitions, if they have some.
    """

    needs_hidden = True
    vocabulary_name = "the model"
    uses_target_calibration = True
    files: DrafterFiles | None = None

    def __init__(
        self,
        heads: BlockwiseLM | EngineHeads | TorchHeads,
        k: int = 16,
        slots: int | None = None,
        bigram: bool = True,
    ) -> None:
        expect(slots is None or slots >= 1, "slots >= 1, or None for all", slots)
        self.heads: Any = _computed(heads)  # whose states are its own kind of arrays
        self.k, self.slots, self.bigram = k, slots, bigram
        self.needs_layers = tuple(layer - 1 for layer in self.heads.layers)
        self.has_transitions = bool(bigram and k > 1 and self.heads.has_transitions)
        self.fingerprint, self.vocab_size = self.heads.fingerprint, self.heads.vocab_size
        self.num_tokens, self.target = self.heads.num_tokens, self.heads.target
        self.shortlist = self.heads.shortlist

    @property
    def num_slots(self) -> int:
        return len(range(self.heads.num_heads - 1)[: self.slots])

    @property
    def weights_fingerprint(self) -> str:
        return str(self.heads.weights_fingerprint)

    def default_system(self, rescored: bool) -> str:
        return "copies+{n}-tree"

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return of_files(self.files, type(self)(self.heads, k, slots, self.bigram))

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        read = [[state.hidden] for state in states]
        wanted = "states with the hidden state that predicted the last token, which heads read"
        expect(not any(parts[0] is None for parts in read), wanted, "some without")
        expect_width(read[0][0], self.target.hidden_size)
        if self.needs_layers:
            layers = [state.layers for state in states]
            missing = any(each is None or not len(each) for each in layers)
            expect(not missing, f"states of layers {self.needs_layers} (from 0), which heads read", "some without")
            read = [[*parts, each[-1]] for parts, each in zip(read, layers, strict=True)]
        reachable = min(self.num_slots, max(state.max_depth for state in states))
        last = [state.tokens[-1] for state in states]
        drawn = self.heads.draw(self.heads.joined(read), last, reachable, self.k, self.bigram)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        from latticebpd.drafters.text_states import entropy
        from latticebpd.verification.finished_texts import read_text

        read = read_text(self.target, text, positions, self.needs_layers, source)
        own = entropy(read.logits)[:, None].cpu().numpy()
        at = slice(positions.start, positions.stop)
        states = self.heads.joined(list(zip(read.hidden[at], read.layers[at], strict=True)))
        following = text[positions.start + 1 : positions.stop + 1]
        step = max(1, MAX_LOGITS // (self.num_slots * self.vocab_size))
        for begin in range(0, len(positions), step):
            rows = slice(begin, begin + step)
            drawn = self.heads.draw(states[rows], following[rows], self.slots, self.k, self.bigram)
            yield drawn, np.hstack([own[rows], self.heads.entropies(states[rows], following[rows], self.slots)])


def _computed(heads: Any) -> EngineHeads | TorchHeads:
    """What computes the heads."""
    if not hasattr(heads, "heads"):  # a blockwise model's
        return heads
    from latticebpd.drafters.heads.torch_heads import TorchHeads

    return TorchHeads(heads)
