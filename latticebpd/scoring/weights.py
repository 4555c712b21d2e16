"""The stored weights of a language model: one for every drafting system that it was tuned for.

``latticebpd tune --write`` stores a record of each tuning: for an n-gram model's file ``lm.fst`` in
``lm.fst.alpha.json``, ``{"format_version": 2, "tunings": [...]}`` with the fields of :class:`Tuning`, or, in format 1,
a single such record; for a neural rescorer in its directory's ``rescorer.json``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from fst.search import LARGEST_WEIGHT
from latticebpd.checks import expect
from latticebpd.lattices.json_files import from_record, read_json, write_json

TEXT, LATTICE = "text", "lattice"
DECODE, POSITION = "decode", "position"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Tuning:
    """A tuned weight and what it was chosen by.

    system: what ``alpha`` was tuned for, as ``latticebpd.drafters.system_names`` spells it.
    alphas, block_efficiency: the weights tried, rising, and the tokens per call of each.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: they were drawn by.
    lattices: ``latticebpd.measuring.tuning.lattices_fingerprint`` of the files.
    by: ``decode`` if tokens per call were measured in decodes, ``position`` if they are means over positions.
    """

    alpha: float
    system: str
    alphas: tuple[float, ...]
    block_efficiency: tuple[float, ...]
    unit: str
    examples: tuple[int, ...]
    seed: int
    lattices: str
    by: str = POSITION

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)
        check_examples(self.unit, self.examples, self.seed)
        wanted = f"an efficiency for each of {len(self.alphas)} alphas"
        expect(len(self.alphas) == len(self.block_efficiency), wanted, len(self.block_efficiency))
        fits = self.by in (DECODE, POSITION) and _size_and_kind(self.system)[0] < 2**63
        expect(fits, "a drafting system, by decode or position", f"{self.system!r:.40}, by {self.by!r:.30}")

    @property
    def at_edge(self) -> bool:
        """Whether the best weight is the last one tried, so that a better one may lie beyond."""
        return edge(self.alphas, self.block_efficiency) != 0

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Tuning, ...]:
        """The records of an ``alpha.json``; ValueError if damaged."""

        def parse(record: Any) -> tuple[Tuning, ...]:
            if isinstance(record, dict) and "tunings" in record:
                tunings = from_record(_Tunings, record, FORMAT_VERSION).tunings
            else:
                tunings = tuple(from_record(cls, each) for each in (record if isinstance(record, list) else [record]))
            if not tunings:
                raise ValueError("no records")
            return tunings

        return read_json(path, parse, "expected tuned weights, got", "tune the weight again with `latticebpd tune`")


@dataclass(frozen=True)
class _Tunings:
    """The contents of an ``alpha.json``."""

    tunings: tuple[Tuning, ...]


def check_examples(unit: str, examples: Sequence[int], seed: int) -> None:
    """Raises ValueError unless a record names the texts or lattices that it was fitted on."""
    if unit not in (TEXT, LATTICE) or min(examples, default=0) < 0 or seed < 0:
        got = f"unit {unit!r:.60}, least example {min(examples, default=0)}, seed {seed}"
        raise ValueError(f"expected numbers of texts or lattices, and a seed, of at least 0, got {got}")


def edge(alphas: Sequence[float], block_efficiency: Sequence[float]) -> int:
    """Of rising weights: 1 if the greatest is the best, -1 if the least above 0 is, better than the next; else 0."""
    tried = [(alpha, value) for alpha, value in zip(alphas, block_efficiency, strict=True) if alpha > 0]
    if len(tried) < 2:
        return 0
    best = max(block_efficiency)
    if tried[-1][1] == best and all(value < best for _, value in tried[:-1]):
        return 1
    return -1 if tried[0][1] == best > tried[1][1] and len(tried) == len(alphas) else 0


@dataclass(frozen=True)
class RescorerSettings:
    """The contents of ``rescorer.json``.

    alpha: the default weight.  tokenizer_fingerprint: hash of the vocabulary, if known.
    """

    alpha: float = 1.0
    tokenizer_fingerprint: str | None = None
    tunings: tuple[Tuning, ...] = ()

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)

    @classmethod
    def stored(cls, directory: str | os.PathLike[str]) -> RescorerSettings | None:
        """The settings in a directory, if any; ValueError if the file is damaged or of a later format."""

        def parse(record: Any) -> RescorerSettings:
            is_old = isinstance(record, dict) and record.get("format_version") == 1
            if is_old:
                tuning = record.pop("tuning", None)
                record["tunings"] = [] if tuning is None else [tuning]
            return from_record(cls, record, 1 if is_old else FORMAT_VERSION)

        path = settings_path(directory)
        return read_json(path, parse, "not a rescorer's settings:", "is the copy complete?") if path.is_file() else None

    def save(self, directory: str | os.PathLike[str]) -> None:
        write_json(settings_path(directory), {"format_version": FORMAT_VERSION, **asdict(self)}, indent=2)


def alpha_path(model: str | os.PathLike[str]) -> Path:
    """The file of an n-gram model's tuned weights."""
    return Path(f"{os.fspath(model)}.alpha.json")


def settings_path(directory: str | os.PathLike[str]) -> Path:
    """The file of a neural rescorer's settings."""
    return Path(directory) / "rescorer.json"


def stored_file(model: str | os.PathLike[str], path_of: Callable[[str | os.PathLike[str]], Path]) -> Path | None:
    """The file of a model's record: next to a link to the model, else next to the file that the link points to."""
    owners = (model, Path(model).resolve()) if Path(model).is_symlink() else (model,)
    return next((path for each in owners if (path := path_of(each)).exists()), None)


def stored_tunings(model: str | os.PathLike[str]) -> tuple[Tuning, ...]:
    """The tunings stored with an n-gram model's file or a neural rescorer's directory."""
    if Path(model).is_dir():
        return (RescorerSettings.stored(model) or RescorerSettings()).tunings
    return Tuning.load(path) if (path := stored_file(model, alpha_path)) else ()


def store_tunings(model: str | os.PathLike[str], tunings: Sequence[Tuning]) -> None:
    """Store weights with a model, in place of earlier ones for the same systems; the first is the default weight."""
    systems = {tuning.system for tuning in tunings}
    kept = (*tunings, *(earlier for earlier in stored_tunings(model) if earlier.system not in systems))
    if not Path(model).is_dir():
        write_json(alpha_path(model), {"format_version": FORMAT_VERSION, "tunings": [asdict(each) for each in kept]})
        return
    replace(RescorerSettings.stored(model) or RescorerSettings(), alpha=kept[0].alpha, tunings=kept).save(model)


def weight_for(tunings: Sequence[Tuning], system: str | None) -> float | None:
    """The weight tuned for a system or the most similar one: nearest in size of its kind, else the first; or None."""
    size, kind = _size_and_kind(system or "")
    alike = [tuning for tuning in tunings if kind and _size_and_kind(tuning.system)[1] == kind]
    alike.sort(key=lambda tuning: abs(math.log(_size_and_kind(tuning.system)[0] / size)))
    return next((tuning.alpha for tuning in (*alike, *tunings)), None)


def _size_and_kind(system: str) -> tuple[int, str]:
    """``16-best`` -> 16, best; another name has no kind."""
    size, _, kind = system.partition(":")[0].partition("-")
    return (int(size), kind) if size.isdecimal() and int(size) else (1, "")


def checked_alpha(alpha: Any) -> float:
    """Raises ValueError for anything but a weight."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 <= float(alpha) <= LARGEST_WEIGHT:
        raise ValueError(f"expected an alpha from 0 to {LARGEST_WEIGHT:g}, got {alpha}")
    return float(alpha)
