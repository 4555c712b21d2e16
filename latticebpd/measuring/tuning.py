"""The weight of a language model, tuned on examples that are then left out of every report (Kim 2024, appendix D).

Every system has a weight of its own, that under which its decodes of the examples take the fewest calls. An *example*
is a text, where lattice files number their texts, else a lattice, and then the weight is chosen by position. Its number
is that which ``latticebpd.measuring.blocks`` gives it: texts, or lattices, from 0 through all files in order.

The records are stored with the model (``latticebpd.scoring.weights``); whoever reports on the same lattices
(``lattices`` is a hash of the files) leaves the examples out with :func:`without`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.shards import shard_files
from latticebpd.measuring.lattice_files import blocks, text_numbers
from latticebpd.measuring.sweep import ALPHAS, AlphaSweep, sweep_alpha
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.rescoring import LanguageModel, check_vocabulary
from latticebpd.scoring.weights import LATTICE, TEXT, Tuning, edge

SYSTEMS = ("16-best", "64-tree")
PIECE = 64
"""Lattices that are rescored at every weight before the next ones: what a neural rescorer has read of them it still
has."""
WIDENINGS = 4
"""How often a grid grows where its best weight is its last: each time by twice and four times that weight, or a half
and a quarter."""

Paths = Sequence[str | os.PathLike[str]]


def tune(
    paths: Paths,
    lm: LanguageModel,
    system: str = "64-tree",
    alphas: Sequence[float] = ALPHAS,
    examples: int = 100,
    seed: int = 0,
    on_piece: Callable[[int], None] | None = None,
) -> tuple[Tuning, AlphaSweep]:
    """The weight under which ``system`` needs the fewest calls to decode examples drawn at random; of equal ones the
    least.

    Where texts are not known, it is that under which most tokens are accepted, by position. A best weight at the edge
    of the grid widens the grid, up to ``WIDENINGS`` times; the record tells if it stands at the edge all the same.

    Args:
        paths: lattice files, or directories of them.
        lm: the language model.
        system: as ``latticebpd.drafters.system_names`` has it.
        alphas: weights to try.
        examples: how many; all where there are no more.
        on_piece: called with the lattices done, for progress.

    Raises:
        ValueError: no lattice, a model of another vocabulary, or files of which only some number their texts.
    """
    unit, drawn = draw_examples(paths, examples, seed)

    def pieces() -> Iterator[LatticeSet]:
        for block, used in _marked(blocks(paths), unit, drawn):
            check_vocabulary(lm, block.fingerprint, block.vocab_size, "the lattices' model")
            own = np.flatnonzero(used)
            for begin in range(0, len(own), PIECE):
                yield block.take(own[begin : begin + PIECE])
                if on_piece is not None:
                    on_piece(len(own[begin : begin + PIECE]))

    swept = sweep_alpha(pieces(), system, lm, alphas)
    for _ in range(WIDENINGS):
        if not (further := _beyond(swept)):
            break
        swept += sweep_alpha(pieces(), system, lm, further)
    efficiency = tuple(round(float(value), 6) for value in swept.block_efficiency)
    return (
        Tuning(swept.best, system, swept.alphas, efficiency, unit, drawn, seed, lattices_fingerprint(paths), swept.by),
        swept,
    )


def _beyond(swept: AlphaSweep) -> list[float]:
    """Weights beyond the edge of the grid where its best one stands; none where it stands inside."""
    side = edge(swept.alphas, swept.block_efficiency.tolist())
    return [swept.best * factor for factor in ((2, 4) if side > 0 else (0.25, 0.5))] if side else []


def draw_examples(paths: Paths, count: int, seed: int) -> tuple[str, tuple[int, ...]]:
    """The unit of the files' examples, and the numbers of ``count`` of them, rising."""
    if count < 1:
        raise ValueError(f"expected at least one example, got {count}")
    lattices, texts = text_numbers(paths)
    if not lattices:
        raise ValueError("expected at least one lattice, got files without any")
    everything = np.arange(lattices) if texts is None else np.unique(texts)
    drawn = np.random.default_rng(seed).permutation(everything)[:count]
    return LATTICE if texts is None else TEXT, tuple(sorted(drawn.tolist()))


def without(lattices: Iterable[LatticeSet], tuning: Tuning | Calibration) -> Iterator[LatticeSet]:
    """The blocks of the same files, less the examples that weights were fitted to."""
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


def _marked(
    lattices: Iterable[LatticeSet], unit: str, examples: Sequence[int]
) -> Iterator[tuple[LatticeSet, np.ndarray]]:
    """Every block, and ``[n]`` which of its lattices belong to the examples."""
    for block, numbers in numbered(lattices, unit):
        yield block, np.isin(numbers, examples)


def numbered(lattices: Iterable[LatticeSet], unit: str) -> Iterator[tuple[LatticeSet, np.ndarray]]:
    """Every block, and ``[n]`` the number of the example that each of its lattices belongs to.

    Raises:
        ValueError: examples are texts, and a file does not number its own.
    """
    seen = 0
    for block in lattices:
        if unit == TEXT and block.sequence is None:
            raise ValueError(
                "expected lattices that tell their texts, as those that the weight was tuned on, got a file without"
                " `sequence`"
            )
        yield block, block.sequence if unit == TEXT and block.sequence is not None else seen + np.arange(len(block))
        seen += len(block)
