"""What a drafter family is: from a path to lattices after growing or finished texts.

A family is a module with three functions, ``recognises``, ``runs_beside_engine`` and ``load``, and a class of
*sources*, which ``load`` returns. ``registry.py`` lists the families; nothing else names one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

from latticebpd.drafters.drafter import State
from latticebpd.drafters.drafter_files import DrafterFiles
from latticebpd.lattices.sausage import SausageLattice

if TYPE_CHECKING:
    import numpy as np

    from latticebpd.models.target_model import TargetModel


MAX_LOGITS = 1 << 25
"""Outputs of a drafter that are held at a time, where a finished text is read."""
PositionLattices: TypeAlias = "Iterator[tuple[list[SausageLattice], np.ndarray | None]]"


class Target(Protocol):
    """The model that decodes, the folder or file that it was loaded from, and its tokenizer; ``latticebpd.Loaded`` is
    one."""

    @property
    def folder(self) -> Path: ...

    @property
    def target(self) -> TargetModel: ...

    @property
    def tokenizer(self) -> Any: ...


@dataclass(frozen=True)
class LoadOptions:
    """How drafters are loaded.

    bigram: use what ties neighbouring slots, and the confidence head, of drafters that have them.
    """

    bigram: bool = True


class LatticeSource(Protocol):
    """Lattices for the rows of a batch while texts grow."""

    @property
    def needs_hidden(self) -> bool:
        """Whether states must carry the hidden state that predicted their last token."""

    @property
    def fingerprint(self) -> str | None:
        """Hash of the vocabulary of the lattices' tokens, if it is known."""

    @property
    def vocab_size(self) -> int | None:
        """Its size, if it is known."""

    @property
    def vocabulary_name(self) -> str:
        """Whose tokens they are, in words."""

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        """The lattice right after each state's tokens, at most as long as the length limit allows; None: no lattice."""


class DrafterLattices(LatticeSource, Protocol):
    """Lattices by a trained drafter, next to its target.

    k: arcs per slot.  num_slots: slots of its lattices.  num_tokens: how many tokens the drafter knows.
    has_transitions: whether its lattices have transitions.
    shortlist: ``[n]`` int64, ascending: the tokens that the drafter knows; None: all of its vocabulary.
    uses_target_calibration: whether a language model that lies next to the target is calibrated for these lattices.
    files: of the drafter, where it was loaded by its path; None: not known.
    """

    k: int
    num_tokens: int
    has_transitions: bool
    shortlist: np.ndarray | None
    uses_target_calibration: bool
    files: DrafterFiles | None

    @property
    def num_slots(self) -> int: ...

    @property
    def target(self) -> TargetModel: ...

    @property
    def weights_fingerprint(self) -> str:
        """Hash of the model's and the drafter's weights."""

    def default_system(self, rescored: bool) -> str:
        """The system's name without a calibration, with ``{n}`` for its nodes; rescored: the caller named a language
        model."""

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        """The same drafter with ``k`` arcs per slot and its first ``slots`` slots; None: all."""

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        """The lattices at some positions of a finished text, in order, a few at a time.

        Position ``p`` is that of a hidden state: the one that predicted token ``p + 1``. The lattice drawn there covers
        the tokens from ``p + 2`` on, as in a decode that has committed ``p + 1``.

        source: what an encoder–decoder's encoder reads.

        Yields lattices, and the outputs' entropies, ``[lattices, slots + 1]`` nats, the target's first; None: unknown.
        """


class Family(Protocol):
    """A module of ``latticebpd.drafters``."""

    __name__: str

    @property
    def DRAFTS_ONLY(self) -> str | None:  # noqa: N802  # a module's constant
        """What such a directory holds, in words, if it cannot decode by itself; else None."""

    def recognises(self, path: Path) -> bool:
        """Whether a path holds a drafter of this family."""

    def runs_beside_engine(self, path: Path) -> bool:
        """Whether the drafter of a path can draft for a target on the CPU engine."""

    def load(self, path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
        """The drafter of a path, next to its target; ValueError where it cannot be read, or does not fit."""


Source = TypeVar("Source", bound=DrafterLattices)


def of_files(files: DrafterFiles | None, source: Source) -> Source:
    """A source of the drafter that these files are of."""
    source.files = files
    return source
