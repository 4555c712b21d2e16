"""Directories of lattice files: the shards of one data set, and how they were made.

``latticebpd lattices`` fills a directory with::

    lattices.json      how the lattices were made, and how many shards there are to be
    shard-00042.npz    lattices of the next few texts, a ``LatticeSet``
    texts-00042.npz    those texts themselves, prompts included, a ``Texts``

A file appears whole or not at all, so a killed run loses one shard.  A directory of lattice files of any other making
is read in the order of their names.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fst.files import replacing

SETTINGS = "lattices.json"


@dataclass(frozen=True)
class Texts:
    """Texts end to end.

    tokens: ``[n]`` int32 ids.  starts: ``[texts + 1]`` int64, where each begins; the last is ``n``.
    prompt_lengths: ``[texts]`` int64, how many tokens of each are prompt.
    """

    tokens: np.ndarray
    starts: np.ndarray
    prompt_lengths: np.ndarray

    def __post_init__(self) -> None:
        arrays = (self.tokens, self.starts, self.prompt_lengths)
        if any(array.ndim != 1 or array.dtype.kind not in "iu" for array in arrays):
            raise ValueError("expected tokens, starts and prompt_lengths as lists of integers")
        lengths = np.diff(self.starts)
        if not len(self.starts) or self.starts[0] != 0 or self.starts[-1] != len(self.tokens) or (lengths < 1).any():
            raise ValueError(f"expected starts that rise from 0 to {len(self.tokens)} (the number of tokens)")
        if self.prompt_lengths.shape != lengths.shape or (self.prompt_lengths < 1).any() or (self.prompt_lengths > lengths).any():
            raise ValueError("expected one prompt length for each text, from 1 to the text's length")
        if self.tokens.min(initial=0) < 0:
            raise ValueError(f"expected token ids >= 0, got {self.tokens.min()}")

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]], prompt_lengths: Sequence[int]) -> Texts:
        """Texts given one by one, prompts included."""
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        tokens = np.fromiter((token for row in rows for token in row), np.int32, int(starts[-1]))
        return cls(tokens, starts, np.array(prompt_lengths, np.int64))

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __iter__(self) -> Iterator[tuple[list[int], int]]:
        """Tokens, prompt included, and the length of the prompt, text by text."""
        for index, length in enumerate(self.prompt_lengths.tolist()):
            yield self.tokens[self.starts[index] : self.starts[index + 1]].tolist(), length

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a compressed ``.npz``; the file appears when it is complete."""
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, tokens=self.tokens, starts=self.starts, prompt_lengths=self.prompt_lengths)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Texts:
        """Read what ``save`` wrote; ValueError, by the file's name, for anything else."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["tokens"], file["starts"], file["prompt_lengths"])
        except (ValueError, KeyError, EOFError, IndexError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
            raise ValueError(f"{path}: not a file of texts, as `latticebpd lattices` writes them: {error}") from error


def shard_path(directory: Path, shard: int) -> Path:
    return directory / f"shard-{shard:05d}.npz"


def texts_path(directory: Path, shard: int) -> Path:
    return directory / f"texts-{shard:05d}.npz"


def shard_files(path: str | os.PathLike[str]) -> list[Path]:
    """The lattice files of a data set: of a directory all shards, of a file the file itself.

    Raises:
        ValueError: a directory without lattice files, or one whose shards are not all there.
    """
    path = Path(path)
    if not path.is_dir():
        return [path]
    if not (path / SETTINGS).exists():
        files = sorted(file for file in path.glob("*.npz") if not file.name.startswith("."))
        if not files:
            raise ValueError(f"{path}: expected lattice files (.npz) in the directory, found none")
        return files
    wanted = [shard_path(path, shard) for shard in range(read_settings(path)["num_shards"])]
    missing = [file.name for file in wanted if not file.exists()]
    if missing:
        raise ValueError(
            f"{path}: {len(missing)} of {len(wanted)} shards are missing, first {missing[0]}; "
            "run the same `latticebpd lattices` command again, it goes on"
        )
    return wanted


def texts_of(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[list[int], int]]:
    """Every text of directories that ``latticebpd lattices`` has filled: its tokens and the length of its prompt.

    Raises:
        ValueError: a path that is no such directory.
    """
    for path in map(Path, paths):
        if not (path / SETTINGS).exists():
            raise ValueError(
                f"{path}: expected a directory that `latticebpd lattices` has filled, which holds the texts too; "
                "lattice files alone do not tell the prompts"
            )
        for shard in range(len(shard_files(path))):
            yield from Texts.load(texts_path(path, shard))


def claim(directory: Path, wanted: Mapping[str, Any]) -> None:
    """Write the settings into a new directory; compare them with those of a used one.

    Raises:
        ValueError: the directory holds lattices of another making, or files that are not ours.
    """
    wanted = json.loads(json.dumps(wanted))
    if (directory / SETTINGS).exists():
        found = read_settings(directory)
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise ValueError(
                    f"{directory}: holds lattices made with {name} {found.get(name)}, asked for is {wanted.get(name)}; "
                    "choose another directory"
                )
        return
    directory.mkdir(parents=True, exist_ok=True)
    if any(not path.name.startswith(".") for path in directory.iterdir()):  # a killed run may leave hidden ones
        raise ValueError(f"{directory}: expected a directory that is new, empty or filled by this command before, found other files")
    with replacing(directory / SETTINGS) as temporary:
        temporary.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")


def read_settings(directory: Path) -> dict[str, Any]:
    """How the lattices of a directory were made; ValueError where the file is damaged."""
    try:
        record: dict[str, Any] = json.loads((directory / SETTINGS).read_text(encoding="utf-8"))
        if type(record["num_shards"]) is not int or record["num_shards"] < 1:
            raise ValueError(f"num_shards is {record['num_shards']!r}")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{directory / SETTINGS}: expected settings as `latticebpd lattices` writes them: {error}") from error
    return record
