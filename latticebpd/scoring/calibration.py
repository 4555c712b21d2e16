"""What `latticebpd calibrate` stores for a language model: the weight of each feature of a token, slot by slot.

For an n-gram model's file ``lm.fst`` it is ``lm.fst.calibration.json``: a JSON object with the fields of
:class:`Calibration` and a ``format_version``. It is for a drafter's lattices, or for a model without heads, whose trees
are of the n-gram model and the text alone; of the latter there are two by default, with and without an n-gram model,
fitted to a model's own answers.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from fst.search import FEATURES
from latticebpd.checks import expect
from latticebpd.lattices.json_files import from_record, read_json, write_json
from latticebpd.lattices.values import read_only
from latticebpd.scoring.weights import alpha_path, check_examples, settings_path, stored_file

FORMAT_VERSION = 2
LARGEST = 1e6
MOST_PROPOSALS = 64
DEFAULTS = Path(__file__).parent / "default_calibrations"


@dataclass(frozen=True)
class TreeSize:
    """Calibrated trees of ``nodes`` nodes: tokens per call, and how many of a lattice's first slots they need."""

    nodes: int
    tokens: float
    slots: int

    def __post_init__(self) -> None:
        expect(min(self.nodes, self.tokens, self.slots) >= 1, "nodes, tokens per call and slots >= 1", self)


@dataclass(frozen=True)
class Calibration:
    """Weights of a log-linear model of the next token, and what they were fitted on.

    weights: ``[slots][features]``, in the order of ``fst.FEATURES``; the last row is for all further slots.
    further: whether trees continue after the lattice with copies: the last row is then for the slots after it, and the
        row before for the lattice's further slots.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: they were drawn by.
    lattices: ``latticebpd.measuring.tuning.lattices_fingerprint`` of the files, or the texts' own.
    k: arcs of the lattices' slots; 0: there are no lattices, and the rows of weights are those of the trees' depths.
    nats: ``[slots]`` the cross-entropy of a token on held-out texts.
    slots: how many of a lattice's first slots trees need; None: all.  trees: the same by size, on the fitting texts.
    features: ``fst.FEATURES``, which differs in files of other versions.
    proposals: tokens that the n-gram model proposes where a lattice has no slot.
    drafter: whose lattices they are, as ``LatticeSet.drafter``, or the family alone; None: not known.
    """

    weights: tuple[tuple[float, ...], ...]
    unit: str
    examples: tuple[int, ...]
    seed: int
    lattices: str
    k: int
    nats: tuple[float, ...] = ()
    further: bool = False
    slots: int | None = None
    features: tuple[str, ...] = FEATURES
    trees: tuple[TreeSize, ...] = ()
    proposals: int = 0
    drafter: str | None = None

    def __post_init__(self) -> None:
        expect(self.features == FEATURES, "the features of this version", f"{self.features!r:.60}")
        widths = {len(row) for row in self.weights}
        fits = widths == {len(FEATURES)} and (np.abs(self.table) <= LARGEST).all()
        expect(fits, f"weights [slots, {len(FEATURES)}] from -1e6 to 1e6", f"rows of {widths or 'none'}")
        wanted = "rows for the lattice's slots and for those after it"
        expect(not self.further or len(self.weights) >= 2, wanted, "one row")
        expect(self.k >= 0, "k >= 0", self.k)
        expect(not (self.further and self.without_lattices), "k >= 1 of lattices that are continued", self.k)
        expect(0 <= self.proposals <= MOST_PROPOSALS, f"0 to {MOST_PROPOSALS} proposals", self.proposals)
        expect(self.slots is None or self.slots >= 1, "slots >= 1", self.slots)
        expect(min(self.nats, default=0) >= 0, "nats >= 0", min(self.nats, default=0))
        check_examples(self.unit, self.examples, self.seed)

    @property
    def without_lattices(self) -> bool:
        """Whether it is for models without heads."""
        return self.k == 0

    def check_drafter(self, drafter: str | None, slots: int | None = None) -> None:
        """ValueError where these are the weights of another drafter, as far as one can know.

        drafter: the one at hand, as ``LatticeSet.drafter``.  slots: of its lattices.
        """
        own, remedy = self.drafter, "calibrate a copy of the n-gram model for it, or draft N-tree"
        if own is not None and drafter is not None:
            expect(f"{drafter} ".startswith(f"{own} "), f"a calibration of this drafter, {drafter}", own, remedy)
        elif slots is not None:
            fitted = len(self.weights) - self.further
            expect(fitted <= slots, f"a calibration of this drafter, of {slots} slots", f"one of {fitted}", remedy)

    @cached_property
    def table(self) -> np.ndarray:
        """``[slots, features]`` float64."""
        return read_only(np.array(self.weights, np.float64))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Raises ValueError if the file is damaged or of another format."""
        parse = partial(from_record, cls, version=FORMAT_VERSION)
        return read_json(path, parse, "expected a calibration, got", "make it anew by `latticebpd calibrate`")

    def save(self, path: str | os.PathLike[str]) -> None:
        write_json(path, {"format_version": FORMAT_VERSION, **asdict(self)})


def calibration_path(model: str | os.PathLike[str]) -> Path:
    """The file of an n-gram model's calibration."""
    return Path(f"{os.fspath(model)}.calibration.json")


def stored_calibration(model: str | os.PathLike[str]) -> Calibration | None:
    """The calibration stored with a model's file, if any."""
    return Calibration.load(path) if (path := stored_file(model, calibration_path)) else None


@lru_cache(maxsize=2)
def default_calibration(with_ngram: bool) -> Calibration:
    """For models without heads where nothing is stored; with_ngram: for an n-gram model and the text, else the text
    alone."""
    return Calibration.load(DEFAULTS / ("ngram_and_text.json" if with_ngram else "text.json"))


def stored_files(model: str | os.PathLike[str]) -> tuple[Path | None, ...]:
    """The files of a model, its tunings, settings and calibration; None where there is none."""
    return tuple(stored_file(model, path_of) for path_of in (Path, alpha_path, settings_path, calibration_path))
