"""The family of prediction heads (Stern 2018, Kim 2024, Medusa): they lie next to the model that they draft for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from latticebpd.drafters.drafter import State
from latticebpd.drafters.family import FamilySource, LoadOptions, Target
from latticebpd.drafters.heads.blockwise import BlockwiseLM, is_blockwise
from latticebpd.drafters.text_states import MAX_LOGITS, entropy, text_states
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import Model

DRAFTS_ONLY = None


def recognises(path: Path) -> bool:
    """Whether a model's directory has heads."""
    return is_blockwise(path)


def load(path: Path, target: Target, options: LoadOptions) -> FamilySource:
    """The heads of the target itself, which were loaded with it; ValueError for those of another model."""
    if path != target.path or not isinstance(target.model, BlockwiseLM):
        raise ValueError(
            f"{path}: expected a block drafter or a mask-filling model, found a model with heads; give it as --model"
        )
    return HeadLattices(target.model)


class HasHeads(Protocol):
    """Prediction heads of a target; ``BlockwiseLM`` is one."""

    tokenizer_fingerprint: str | None

    @property
    def vocab_size(self) -> int: ...

    def head_logits(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, slots, vocab]``: slot ``i`` predicts the token ``i + 1`` after the next token.

        The tokens are those of the vocabulary or, where the heads have one, of the attribute ``shortlist`` (ids,
        ascending).

        slots: the first so many heads only.
        """


class HeadLattices:
    """The outputs of prediction heads (Stern 2018): they read one hidden state per row, all rows at once.

    Args:
        model: the heads; those of a ``BlockwiseLM`` are heads 2..h.
        k: arcs per slot.
        slots: ask the first so many heads only; None asks all.  A head costs a projection to the vocabulary, and
            a small tree seldom reaches the last ones.
    """

    needs_hidden = True
    owner = "the model"
    has_transitions = False
    shares_lm = True

    def __init__(self, model: HasHeads, k: int = 16, slots: int | None = None) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"expected slots >= 1, or None for all, got {slots}")
        self.model, self.k, self.slots = model, k, slots
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size

    @torch.inference_mode()
    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        reachable = max(state.max_depth for state in states)
        hidden = [state.hidden for state in states if state.hidden is not None]
        if len(hidden) < len(states):
            raise ValueError(
                "expected states with the hidden state that predicted the last token, which heads read, got some"
                " without"
            )
        logits = self.model.head_logits(
            torch.stack(hidden), reachable if self.slots is None else min(reachable, self.slots)
        )
        drawn = lattices_from_logits(logits, self.k, getattr(self.model, "shortlist", None))
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(drawn, states, strict=True)]

    @property
    def target(self) -> Model:
        model: Any = self.model
        return model  # type: ignore[no-any-return]

    @property
    def num_slots(self) -> int:
        heads: Any = self.model
        number = heads.num_heads - 1
        return int(number if self.slots is None else min(self.slots, number))

    @property
    def num_tokens(self) -> int:
        shortlist: Tensor | None = getattr(self.model, "shortlist", None)
        return self.vocab_size if shortlist is None else len(shortlist)

    @property
    def weights(self) -> str:
        module: Any = self.model
        return weights_fingerprint(module)

    def default_system(self, rescored: bool) -> str:
        return "copies+{n}-tree"

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return type(self)(self.model, k, slots)

    @torch.inference_mode()
    def lattices_of_text(
        self, text: Sequence[int], positions: range, source: Sequence[int] = ()
    ) -> Iterator[tuple[list[SausageLattice], Tensor | None]]:
        states, own = text_states(self.target, text, positions, source)
        hidden = states[-1][0, positions.start : positions.stop]
        step = max(1, MAX_LOGITS // (self.num_slots * self.vocab_size))
        for begin in range(0, len(positions), step):
            logits = self.model.head_logits(hidden[begin : begin + step], self.slots)
            drawn = lattices_from_logits(logits, self.k, getattr(self.model, "shortlist", None))
            yield drawn, torch.cat([own[begin : begin + step], entropy(logits)], dim=1)
