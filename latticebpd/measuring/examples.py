"""Examples that weights are fitted to, and that reports on the same files leave out.

An *example* is a text, where lattice files number their texts, else a lattice. Its number is that of
``latticebpd.measuring.blocks``: texts, or lattices, from 0 through all files in order.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.shards import shard_files, texts_of
from latticebpd.measuring.lattice_files import required_texts, text_numbers
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.weights import LATTICE, TEXT, Tuning

FittedRecord: TypeAlias = Tuning | Calibration
"""What was fitted, and to which examples."""
Paths = Sequence[PathLike]


def draw_examples(paths: Paths, count: int, seed: int) -> tuple[str, tuple[int, ...]]:
    """The unit of the files' examples, and the numbers of ``count`` of them, rising."""
    expect(count >= 1, "at least one example", count)
    lattices, texts = text_numbers(paths)
    expect(lattices, "at least one lattice", "files without any")
    everything = np.arange(lattices) if texts is None else np.unique(texts)
    drawn = np.random.default_rng(seed).permutation(everything)[:count]
    return LATTICE if texts is None else TEXT, tuple(sorted(drawn.tolist()))


def numbered(lattices: Iterable[LatticeSet], unit: str) -> Iterator[tuple[LatticeSet, np.ndarray]]:
    """Every block, and ``[n]`` its lattices' examples; ValueError where these are texts and the file numbers none."""
    seen = 0
    for block in lattices:
        if unit == TEXT:
            yield block, required_texts(block, "as those that the weight was tuned on")
        else:
            yield block, seen + np.arange(len(block))
        seen += len(block)


def exclude_examples(lattices: Iterable[LatticeSet], records: Iterable[FittedRecord]) -> Iterator[LatticeSet]:
    """The blocks of the same files without the examples of the records; ValueError where nothing is left."""
    examples: dict[str, list[int]] = defaultdict(list)
    for record in records:
        examples[record.unit] += record.examples
    left = iter(lattices)
    for unit in sorted(examples):  # "lattice" before "text": lattices are numbered through all files
        left = _without(left, unit, examples[unit])
    is_empty = True
    for block in left:
        is_empty = False
        yield block
    wanted = "lattices besides those that the weights were tuned on"
    expect(not (examples and is_empty), wanted, "no others", "tune on fewer examples, or measure other texts")


def _without(lattices: Iterable[LatticeSet], unit: str, examples: Sequence[int]) -> Iterator[LatticeSet]:
    for block, numbers in numbered(lattices, unit):
        used = np.isin(numbers, examples)
        if not used.all():
            yield block.take(~used) if used.any() else block


def remaining_texts(paths: Paths, records: Iterable[FittedRecord]) -> Iterator[tuple[int, tuple[list[int], int]]]:
    """Number, and tokens and prompt length, of every text of directories that nothing was fitted to."""
    used = {number for record in records if record.unit == TEXT for number in record.examples}
    return ((number, text) for number, text in enumerate(texts_of(paths)) if number not in used)


def lattices_fingerprint(paths: Paths) -> str:
    """A hash of the files' bytes, directories' files included, in order."""
    digest = hashlib.sha256()
    for path in paths:
        for file in shard_files(path):
            with open(file, "rb") as bytes_:
                digest.update(hashlib.file_digest(bytes_, "sha256").digest())
    return f"sha256:{digest.hexdigest()[:16]}"
