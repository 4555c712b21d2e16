"""The weight of a language model, tuned on examples that are then left out of every report (Kim 2024, appendix D).

An *example* is a text, where lattice files number their texts, else a lattice.  Its number is that which
``latticebpd.analysis.blocks`` gives it: texts, or lattices, from 0 through all files in order.

A record of the tuning is stored with the model: of a neural rescorer in its ``rescorer.json``, of an n-gram model's file
``lm.fst`` beside it, as ``lm.fst.alpha.json``.  It is one JSON object with the fields of :class:`Tuning`; whoever reports on the
same lattices (``lattices`` is a hash of the files) leaves the examples out with :func:`without`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fst.files import replacing
from latticebpd.analysis.stream import blocks
from latticebpd.analysis.sweep import ALPHAS, AlphaSweep, sweep_alpha
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.shards import shard_files
from latticebpd.scoring.rescoring import LanguageModel, alpha_path, check_vocabulary

TEXT, LATTICE = "text", "lattice"
PIECE = 64
"""Lattices that are rescored at every weight before the next ones: what a neural rescorer has read of them it still has."""

Paths = Sequence[str | os.PathLike[str]]


@dataclass(frozen=True)
class Tuning:
    """What a weight was chosen by.

    alpha: the weight.  system: what it was chosen for, as ``latticebpd.analysis.systems`` names it.
    alphas, block_efficiency: the weights tried, and the tokens a call of each, by position.
    unit: ``text`` or ``lattice``; examples: the numbers of those used, rising.  seed: by which they were drawn.
    lattices: ``lattices_fingerprint`` of the files.
    """

    alpha: float
    system: str
    alphas: tuple[float, ...]
    block_efficiency: tuple[float, ...]
    unit: str
    examples: tuple[int, ...]
    seed: int
    lattices: str

    @classmethod
    def from_json(cls, record: Any) -> Tuning:
        """Raises ValueError for anything but the fields of a tuning."""
        try:
            lists = {name: tuple(record[name]) for name in ("alphas", "block_efficiency", "examples")}
            found = cls(**{**record, **lists})
            if found.unit not in (TEXT, LATTICE) or not found.alpha >= 0 or not all(type(number) is int for number in found.examples):
                raise ValueError(f"alpha {found.alpha!r}, unit {found.unit!r}, examples {found.examples[:3]}...")
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"expected a record of a tuned weight, got {error}") from error
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tuning:
        """Raises ValueError where the file is none of ours; FileNotFoundError where there is none."""
        try:
            return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))
        except ValueError as error:  # damaged JSON and UTF-8 are ValueErrors too
            raise ValueError(f"{os.fspath(path)}: {error}; tune the weight again with `latticebpd tune`") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all."""
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")

    @classmethod
    def of(cls, model: str | os.PathLike[str]) -> Tuning | None:
        """The tuning that is stored with a model's file or a neural rescorer's directory; None where none is."""
        if not Path(model).is_dir():
            return cls.load(alpha_path(model)) if alpha_path(model).exists() else None
        from latticebpd.scoring.neural.settings import RescorerSettings

        stored = RescorerSettings.load(model).tuning if RescorerSettings.stored(model) else None
        return None if stored is None else cls.from_json(stored)

    def store(self, model: str | os.PathLike[str]) -> None:
        """Make the weight the model's own, and keep the record with it."""
        if not Path(model).is_dir():
            self.save(alpha_path(model))
            return
        from latticebpd.scoring.neural.settings import RescorerSettings

        settings = RescorerSettings.load(model) if RescorerSettings.stored(model) else RescorerSettings()
        replace(settings, alpha=self.alpha, tuning=asdict(self)).save(model)


def tune(
    paths: Paths,
    lm: LanguageModel,
    system: str = "64-tree",
    alphas: Sequence[float] = ALPHAS,
    examples: int = 100,
    seed: int = 0,
    on_piece: Callable[[int], None] | None = None,
) -> tuple[Tuning, AlphaSweep]:
    """The weight under which ``system`` has most tokens accepted on examples drawn at random, by position; of equal ones the least.

    Args:
        paths: lattice files, or directories of them.
        lm: the language model.
        alphas: weights to try.
        examples: how many; all where there are no more.
        on_piece: called with the lattices done, for progress.

    Raises:
        ValueError: no lattice, a model of another vocabulary, or files of which only some number their texts.
    """
    unit, drawn = draw_examples(paths, examples, seed)

    def pieces() -> Iterator[LatticeSet]:
        for block, used in _marked(blocks(paths), unit, drawn):
            check_vocabulary(lm, block.fingerprint, owner="the lattices' model")
            own = np.flatnonzero(used)
            for begin in range(0, len(own), PIECE):
                yield block.take(own[begin : begin + PIECE])
                if on_piece is not None:
                    on_piece(len(own[begin : begin + PIECE]))

    swept = sweep_alpha(pieces(), system, lm, alphas)
    efficiency = tuple(round(float(value), 6) for value in swept.block_efficiency)
    return Tuning(swept.best, system, swept.alphas, efficiency, unit, drawn, seed, lattices_fingerprint(paths)), swept


def draw_examples(paths: Paths, count: int, seed: int) -> tuple[str, tuple[int, ...]]:
    """The unit of the files' examples, and the numbers of ``count`` of them, rising."""
    if count < 1:
        raise ValueError(f"expected at least one example, got {count}")
    texts: set[int] = set()
    lattices, numbered = 0, set()
    for block in blocks(paths):
        numbered.add(block.sequence is not None)
        texts.update([] if block.sequence is None else np.unique(block.sequence).tolist())
        lattices += len(block)
    if len(numbered) > 1:
        raise ValueError("expected files that all number their texts, or none that does, got both kinds; tune on one kind")
    if not lattices:
        raise ValueError("expected at least one lattice, got files without any")
    everything = np.array(sorted(texts)) if texts else np.arange(lattices)
    drawn = np.random.default_rng(seed).permutation(everything)[:count]
    return TEXT if texts else LATTICE, tuple(sorted(drawn.tolist()))


def without(lattices: Iterable[LatticeSet], tuning: Tuning) -> Iterator[LatticeSet]:
    """The blocks of the same files, less the examples that the weight was tuned on."""
    for block, used in _marked(lattices, tuning.unit, tuning.examples):
        if not used.all():
            yield block.take(~used) if used.any() else block


def lattices_fingerprint(paths: Paths) -> str:
    """A hash of the files' bytes, directories' files included, in order."""
    digest = hashlib.sha256()
    for path in paths:
        for file in shard_files(path):
            with open(file, "rb") as bytes_:
                digest.update(hashlib.file_digest(bytes_, "sha256").digest())
    return f"sha256:{digest.hexdigest()[:16]}"


def _marked(lattices: Iterable[LatticeSet], unit: str, examples: Sequence[int]) -> Iterator[tuple[LatticeSet, np.ndarray]]:
    """Every block, and ``[n]`` which of its lattices belong to the examples."""
    seen = 0
    for block in lattices:
        if unit == TEXT and block.sequence is None:
            raise ValueError(
                "expected lattices that tell their texts, as those that the weight was tuned on, got a file without `sequence`"
            )
        numbers = block.sequence if unit == TEXT and block.sequence is not None else seen + np.arange(len(block))
        yield block, np.isin(numbers, examples)
        seen += len(block)
