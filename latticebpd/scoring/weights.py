"""The weight of a language model, as it is stored with it: one for every drafting system that it was tuned for.

``latticebpd tune --write`` stores the record of each tuning: with an n-gram model's file ``lm.fst`` beside it, as
``lm.fst.alpha.json``; with a neural rescorer in its directory's ``rescorer.json``.  An ``alpha.json`` holds
``{"format_version": 2, "tunings": [...]}``, each a JSON object with the fields of :class:`Tuning`; such an object
alone, as earlier versions wrote it, is read too.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

from fst.files import replacing
from fst.search import LARGEST_WEIGHT

TEXT, LATTICE = "text", "lattice"
DECODE, POSITION = "decode", "position"
RESCORER_CONFIG = "rescorer.json"
FORMAT_VERSION = 2


@dataclass(frozen=True)
class Tuning:
    """What a weight was chosen by.

    alpha: the weight.  system: what it was chosen for, as ``latticebpd.drafters.system_names`` has it.
    alphas, block_efficiency: the weights tried, rising, and the tokens a call of each.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: by which they were drawn.
    lattices: ``latticebpd.measuring.tuning.lattices_fingerprint`` of the files.
    by: ``decode`` where tokens a call are those of decodes, ``position`` where they are means over positions.
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

    @property
    def at_edge(self) -> bool:
        """Whether the weights tried get better up to the last one, so that a better one may lie beyond."""
        return edge(self.alphas, self.block_efficiency) != 0

    @classmethod
    def from_json(cls, record: Any) -> Tuning:
        """Raises ValueError for anything but the fields of a tuning."""
        try:
            lists = {name: tuple(record[name]) for name in ("alphas", "block_efficiency", "examples")}
            found = cls(**{**record, **lists})
            checked_alpha(found.alpha)
            words = found.unit in (TEXT, LATTICE) and found.by in (DECODE, POSITION) and isinstance(found.system, str)
            if not words or not all(type(number) is int for number in found.examples):
                raise ValueError(
                    f"system {found.system!r}, unit {found.unit!r}, by {found.by!r}, examples {found.examples[:3]}..."
                )
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"expected a record of a tuned weight, got {error}") from error
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> tuple[Tuning, ...]:
        """The records of an ``alpha.json``; ValueError where the file is none of ours, FileNotFoundError where there is
        none."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if isinstance(record, dict) and "tunings" in record:
                if record.get("format_version") != FORMAT_VERSION:
                    raise ValueError(
                        f"expected format {FORMAT_VERSION}, got {record.get('format_version')!r}; update latticebpd"
                    )
                record = record["tunings"]
            records = record if isinstance(record, list) else [record]
            if not records:
                raise ValueError("expected at least one record")
            return tuple(map(cls.from_json, records))
        except (ValueError, RecursionError) as error:  # damaged JSON and UTF-8 are ValueErrors too
            raise ValueError(f"{os.fspath(path)}: {error}; tune the weight again with `latticebpd tune`") from error


def edge(alphas: Sequence[float], block_efficiency: Sequence[float]) -> int:
    """Of rising weights: 1 where the greatest is the best, -1 where the least above 0 is, better than the next; else
    0."""
    tried = [(alpha, value) for alpha, value in zip(alphas, block_efficiency, strict=True) if alpha > 0]
    if len(tried) < 2:
        return 0
    best = max(block_efficiency)
    if tried[-1][1] == best and all(value < best for _, value in tried[:-1]):
        return 1
    return -1 if tried[0][1] == best > tried[1][1] and len(tried) == len(alphas) else 0


def save_tunings(path: str | os.PathLike[str], tunings: Sequence[Tuning]) -> None:
    """Write an ``alpha.json``; the file appears whole or not at all."""
    with replacing(path) as temporary:
        record = {"format_version": FORMAT_VERSION, "tunings": [asdict(tuning) for tuning in tunings]}
        temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class RescorerSettings:
    """What ``rescorer.json`` holds.

    alpha: the weight wherever none is given.  tokenizer_fingerprint: hash of the vocabulary, if known.
    tunings: how weights were found, where any was tuned.
    """

    alpha: float = 1.0
    tokenizer_fingerprint: str | None = None
    tunings: tuple[Tuning, ...] = ()

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)
        if not isinstance(self.tokenizer_fingerprint, str | None):
            raise ValueError(f"expected a fingerprint or null, got {self.tokenizer_fingerprint!r}")

    @staticmethod
    def stored(directory: str | os.PathLike[str]) -> bool:
        """Whether a directory holds such settings."""
        return (Path(directory) / RESCORER_CONFIG).is_file()

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> RescorerSettings:
        """Raises ValueError where the file is damaged or of a later format."""
        path = Path(directory) / RESCORER_CONFIG
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            version = record.pop("format_version")
            if version == 1:  # had one tuning, or null
                tuning = record.pop("tuning", None)
                record["tunings"] = [] if tuning is None else [tuning]
            settings = None
            if version in (1, FORMAT_VERSION):
                settings = cls(**{**record, "tunings": tuple(map(Tuning.from_json, record.get("tunings", ())))})
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
        ) as error:  # damaged JSON and UTF-8 are ValueErrors
            raise ValueError(f"{path}: not a rescorer's settings: {error}; is the copy complete?") from error
        if settings is None:
            raise ValueError(
                f"{path}: expected a rescorer of format {FORMAT_VERSION}, got {version}; update latticebpd"
            )
        return settings

    def save(self, directory: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all."""
        with replacing(Path(directory) / RESCORER_CONFIG) as temporary:
            temporary.write_text(
                json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=2) + "\n", encoding="utf-8"
            )


def alpha_path(model: str | os.PathLike[str]) -> Path:
    """Where the tuned weights of an n-gram model's file are stored: beside it."""
    return Path(f"{os.fspath(model)}.alpha.json")


def stored_tunings(model: str | os.PathLike[str]) -> tuple[Tuning, ...]:
    """The tunings that are stored with a model's file or a neural rescorer's directory."""
    if Path(model).is_dir():
        return RescorerSettings.load(model).tunings if RescorerSettings.stored(model) else ()
    return Tuning.load(alpha_path(model)) if alpha_path(model).exists() else ()


def store_tunings(model: str | os.PathLike[str], tunings: Sequence[Tuning]) -> None:
    """Make the weights the model's own, and keep the records with it, in place of earlier ones for the same systems."""
    systems = {tuning.system for tuning in tunings}
    kept = (*tunings, *(earlier for earlier in stored_tunings(model) if earlier.system not in systems))
    if not Path(model).is_dir():
        save_tunings(alpha_path(model), kept)
        return
    settings = RescorerSettings.load(model) if RescorerSettings.stored(model) else RescorerSettings()
    replace(settings, alpha=kept[0].alpha, tunings=kept).save(model)


def weight_for(tunings: Sequence[Tuning], system: str | None) -> float | None:
    """The weight that was tuned for a system, or for one most like it: of its kind the nearest in size, else the first.

    None where nothing was tuned.
    """
    if not tunings:
        return None
    size, kind = _size_and_kind(system or "")
    alike = [tuning for tuning in tunings if kind and _size_and_kind(tuning.system)[1] == kind]
    return min(
        alike, key=lambda tuning: abs(math.log(_size_and_kind(tuning.system)[0] / size)), default=tunings[0]
    ).alpha


def _size_and_kind(system: str) -> tuple[int, str]:
    """``16-best`` -> 16, best; another name has no kind."""
    size, _, kind = system.partition(":")[0].partition("-")
    return (int(size), kind) if size.isdecimal() and int(size) else (1, "")


def checked_alpha(alpha: Any) -> float:
    """Raises ValueError for a weight that no scorer can have."""
    if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 <= float(alpha) <= LARGEST_WEIGHT:
        raise ValueError(f"expected an alpha from 0 to {LARGEST_WEIGHT:g}, got {alpha}")
    return float(alpha)
