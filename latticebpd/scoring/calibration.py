"""What `latticebpd calibrate` stores for a language model: the weight of each feature of a token, slot by slot.

For an n-gram model's file ``lm.fst`` it is ``lm.fst.calibration.json``: a JSON object with the fields of
:class:`Calibration`, the names of the features and a ``format_version``.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fst.search import FEATURES
from latticebpd.lattices.json_files import read_json, write_json
from latticebpd.lattices.values import read_only
from latticebpd.scoring.weights import check_examples

FORMAT_VERSION = 2
LARGEST = 1e6


@dataclass(frozen=True)
class Calibration:
    """Weights of a log-linear model of the next token, and what they were fitted on.

    weights: ``[slots][features]``, in the order of ``fst.FEATURES``; the last row is for all further slots.
    further: whether trees continue after the lattice with copies: the last row is then for the slots after it, and the
        row before for the lattice's further slots.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: they were drawn by.
    lattices: ``latticebpd.measuring.tuning.lattices_fingerprint`` of the files.  k: arcs of their slots.
    nats: ``[slots]`` the cross-entropy of a token on held-out texts.
    slots: how many of a lattice's first slots trees need; None: all.
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
            rows = "expected rows for the lattice's slots and for those after it"
            raise ValueError(f"{rows}, got {len(table)}, further {self.further}")
        if self.slots is not None and (type(self.slots) is not int or self.slots < 1):
            raise ValueError(f"expected slots >= 1, or none for all, got {self.slots!r}")
        check_examples(self.unit, self.examples)

    @cached_property
    def table(self) -> np.ndarray:
        """``[slots, features]`` float64."""
        return read_only(np.array(self.weights, np.float64))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Raises ValueError if the file is damaged or of another format."""

        def parse(record: dict[str, Any]) -> Calibration:
            version, features = record.pop("format_version"), record.pop("features")
            if version != FORMAT_VERSION or tuple(features) != FEATURES:
                raise ValueError(f"format {version!r}, not {FORMAT_VERSION} with the features of this version")
            lists = {name: tuple(record[name]) for name in ("examples", "nats")}
            return cls(**{**record, **lists, "weights": tuple(tuple(map(float, row)) for row in record["weights"])})

        return read_json(path, parse, "expected a calibration, got", "make it anew by `latticebpd calibrate`")

    def save(self, path: str | os.PathLike[str]) -> None:
        write_json(path, {"format_version": FORMAT_VERSION, "features": FEATURES, **asdict(self)})


def calibration_path(model: str | os.PathLike[str]) -> Path:
    """The file of an n-gram model's calibration."""
    return Path(f"{os.fspath(model)}.calibration.json")


def stored_calibration(model: str | os.PathLike[str]) -> Calibration | None:
    """The calibration stored with a model's file, if any."""
    path = calibration_path(model)
    return Calibration.load(path) if path.exists() else None
