"""What `latticebpd calibrate` stores beside a language model: how much each thing known of a token is worth, slot by
slot.

With an n-gram model's file ``lm.fst`` it is ``lm.fst.calibration.json``: a JSON object with the fields of
:class:`Calibration`, the names of the features and a ``format_version``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fst.files import replacing
from fst.search import FEATURES
from latticebpd.lattices.values import read_only
from latticebpd.scoring.weights import LATTICE, TEXT

FORMAT_VERSION = 2
LARGEST = 1e6


@dataclass(frozen=True)
class Calibration:
    """Weights of a log-linear model of the next token, and what they were fitted on.

    weights: ``[slots][features]``, in the order of ``fst.FEATURES``; the last row is for all further slots.
    further: whether trees go on behind the lattice with copies: the last row is then that of slots behind it, and of
        the lattice's further slots the row before.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: by which they were drawn.
    lattices: ``latticebpd.measuring.tuning.lattices_fingerprint`` of the files.  k: arcs of their slots.
    nats: ``[slots]`` what a token costs on texts that the weights were not fitted on.
    slots: of a lattice that trees need, the first ones; None where all are to be asked for.
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

    def __post_init__(self) -> None:
        table = self.table
        if table.ndim != 2 or not len(table) or table.shape[1] != len(FEATURES) or not (np.abs(table) <= LARGEST).all():
            raise ValueError(f"expected weights [slots, {len(FEATURES)}] from -1e6 to 1e6, got {table.shape}")
        if type(self.further) is not bool or (self.further and len(table) < 2):
            raise ValueError(
                f"expected weights of the lattice's slots, then of those behind it, got {len(table)}, further"
                f" {self.further}"
            )
        if self.slots is not None and (type(self.slots) is not int or self.slots < 1):
            raise ValueError(f"expected slots >= 1, or none for all, got {self.slots!r}")
        if self.unit not in (TEXT, LATTICE) or not all(type(number) is int for number in self.examples):
            raise ValueError(
                f"expected the numbers of texts or lattices, got unit {self.unit!r}, examples {self.examples[:3]}..."
            )

    @cached_property
    def table(self) -> np.ndarray:
        """``[slots, features]`` float64; made once, since every draft asks for it."""
        return read_only(np.array(self.weights, np.float64))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Raises ValueError where the file is none of ours, FileNotFoundError where there is none."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            version, features = record.pop("format_version"), record.pop("features")
            if version != FORMAT_VERSION or tuple(features) != FEATURES:
                raise ValueError(
                    f"expected format {FORMAT_VERSION} and the features of this version, got format {version!r}"
                )
            lists = {name: tuple(record[name]) for name in ("examples", "nats")}
            return cls(**{**record, **lists, "weights": tuple(tuple(map(float, row)) for row in record["weights"])})
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            RecursionError,
        ) as error:  # damaged JSON and UTF-8 are ValueErrors
            raise ValueError(
                f"{os.fspath(path)}: expected a calibration, got {error}; make it anew by `latticebpd calibrate`"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all."""
        with replacing(path) as temporary:
            record = {"format_version": FORMAT_VERSION, "features": FEATURES, **asdict(self)}
            temporary.write_text(json.dumps(record) + "\n", encoding="utf-8")


def calibration_path(model: str | os.PathLike[str]) -> Path:
    """Where the calibration of an n-gram model's file is stored: beside it."""
    return Path(f"{os.fspath(model)}.calibration.json")


def stored_calibration(model: str | os.PathLike[str]) -> Calibration | None:
    """The calibration that is stored with a model's file, if one is."""
    path = calibration_path(model)
    return Calibration.load(path) if path.exists() else None
