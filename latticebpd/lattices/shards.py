"""Directories of numbered files: the shards of one data set, and a JSON file that says how they are made.

A shard appears whole or not at all and depends on the settings and its number alone. So a killed run loses one shard,
the same command goes on, and any number of processes may each make every n-th (a *part*). ``latticebpd lattices``
fills::

    lattices.json      how the lattices were made, and how many shards there are to be
    shard-00042.npz    lattices of the next few texts, a ``LatticeSet``
    texts-00042.npz    those texts themselves, prompts included, ``Texts``

``latticebpd distill`` and ``latticebpd train encode`` fill such directories with texts. A directory of lattice files of
any other making is read in the order of their names.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fst.files import replacing
from latticebpd.lattices.texts import Texts

SETTINGS = "lattices.json"
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OSError)
"""Damaged JSON and UTF-8 are ValueErrors."""


@dataclass(frozen=True)
class ShardDirectory:
    """A directory that a command fills, or has filled.

    path: the directory.  settings_name: of the JSON file in it.  command: that fills it, for messages.
    holds: what is in it, for messages: "lattices".  suffix: of the shards' files.
    count: from the settings to the number of shards; a KeyError, TypeError or ValueError where they do not tell.
    """

    path: Path
    settings_name: str
    command: str
    holds: str
    suffix: str = ".npz"
    count: Callable[[dict[str, Any]], int] = lambda settings: _whole_number("num_shards", settings["num_shards"])

    def file(self, number: int, kind: str = "shard") -> Path:
        """A file of a shard."""
        return self.path / f"{kind}-{number:05d}{self.suffix}"

    @property
    def is_ours(self) -> bool:
        """Whether the command has begun to fill the directory."""
        return (self.path / self.settings_name).exists()

    def settings(self) -> dict[str, Any]:
        """How the shards are made; ValueError where that cannot be read."""
        file = self.path / self.settings_name
        try:
            record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            self.count(record)
        except _UNREADABLE as error:
            raise ValueError(
                f"{file}: expected settings as `{self.command}` writes them, in a directory that it has filled: {error}"
            ) from error
        return record

    def files(self) -> list[Path]:
        """All shards.

        Raises:
            ValueError: the directory is none of ours, or shards are missing.
        """
        count = self.count(self.settings())
        there = {
            path.name for path in self.path.glob(f"shard-*{self.suffix}")
        }  # the settings may say any number; these take room
        wanted = (self.file(number) for number in range(min(count, len(there) + 1)))
        files = [path for path in wanted if path.name in there]
        if len(files) < count:
            first = next(number for number in range(count) if self.file(number).name not in there)
            raise ValueError(
                f"{self.path}: {count - len(files)} of {count} shards are missing, first {self.file(first).name}; "
                f"run the same `{self.command}` command again, it goes on"
            )
        return files

    def claim(self, wanted: Mapping[str, Any]) -> None:
        """Write the settings into a new directory; compare them with those of a used one.

        Raises:
            ValueError: the directory holds what was made otherwise, or files that are not ours.
        """
        wanted = json.loads(json.dumps(wanted))
        if not self.is_ours:
            self.path.mkdir(parents=True, exist_ok=True)
            others = [
                path for path in self.path.iterdir() if not path.name.startswith(".")
            ]  # a killed run may leave hidden ones
            if others and not self.is_ours:  # another process of ours may have been quicker
                raise ValueError(
                    f"{self.path}: expected a directory that is new, empty or filled by this command before, found"
                    " other files"
                )
            if not self.is_ours:
                self.record(wanted)
        found = self.settings()
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise ValueError(
                    f"{self.path}: holds {self.holds} made with {name} {found.get(name)}, asked for is"
                    f" {wanted.get(name)}; choose another directory"
                )

    def renew(self) -> None:
        """Take a new directory, or delete the shards of one of ours, which is not whole before its settings are
        recorded again.

        Raises:
            ValueError: the directory holds anything that we have not made.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        shards = [path for path in self.path.glob(f"shard-*{self.suffix}") if self.is_ours and path.stem[6:].isdigit()]
        ours = {self.path / self.settings_name, *shards}
        strange = sorted(
            path.name for path in self.path.iterdir() if path not in ours and not path.name.startswith(".")
        )
        if strange:
            raise ValueError(
                f"{self.path}: expected a new directory, or one that `{self.command}` has filled, found {strange[0]};"
                " choose another"
            )
        self.record({})
        for path in shards:
            path.unlink()

    def record(self, settings: Mapping[str, Any]) -> None:
        """Write the settings."""
        with replacing(self.path / self.settings_name) as temporary:
            temporary.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def shares(total: int, size: int, part: tuple[int, int]) -> Iterator[tuple[int, range]]:
    """The shards ``i``, ``i + n``, ... of a part ``(i, n)``, and which of so many things each holds, ``size`` but for
    the last one."""
    for shard in range(part[0], -(-total // size), part[1]):
        yield shard, range(shard * size, min(total, (shard + 1) * size))


def parse_part(text: str | None) -> tuple[int, int]:
    """``i/n`` as numbers; without a text, what ``torchrun`` says (RANK of WORLD_SIZE), else all of it.

    Raises:
        ValueError: anything but 0 <= i < n.
    """
    named = f"{os.environ.get('RANK', 0)}/{os.environ.get('WORLD_SIZE', 1)}" if text is None else text
    index, slash, parts = named.partition("/")
    if not (
        slash
        and index.isascii()
        and parts.isascii()
        and index.isdigit()
        and parts.isdigit()
        and int(index) < int(parts)
    ):
        raise ValueError(f"expected --part as i/n with 0 <= i < n, such as 0/4, got {named!r}")
    return int(index), int(parts)


def _whole_number(name: str, value: Any, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} is {value!r}")
    return value


def lattice_directory(path: str | os.PathLike[str]) -> ShardDirectory:
    """What ``latticebpd lattices`` fills."""
    return ShardDirectory(Path(path), SETTINGS, "latticebpd lattices", "lattices")


def shard_files(path: str | os.PathLike[str]) -> list[Path]:
    """The lattice files of a data set: of a directory all shards, of a file the file itself.

    Raises:
        ValueError: a directory without lattice files, or one whose shards are not all there.
    """
    directory = lattice_directory(path)
    if not directory.path.is_dir():
        return [directory.path]
    if directory.is_ours:
        return directory.files()
    files = sorted(file for file in directory.path.glob("*.npz") if not file.name.startswith("."))
    if not files:
        raise ValueError(f"{path}: expected lattice files (.npz) in the directory, found none")
    return files


def texts_of(paths: Sequence[str | os.PathLike[str]]) -> Iterator[tuple[list[int], int]]:
    """Every text of directories that ``latticebpd lattices`` has filled: its tokens and the length of its prompt.

    Raises:
        ValueError: a path that is no such directory.
    """
    for directory in map(lattice_directory, paths):
        if not directory.is_ours:
            raise ValueError(
                f"{directory.path}: expected a directory that `latticebpd lattices` has filled, which holds the texts"
                " too; lattice files alone do not tell the prompts"
            )
        for shard in range(len(directory.files())):
            yield from Texts.load(directory.file(shard, "texts")).items()


def text_ends(path: str | os.PathLike[str]) -> list[int] | None:
    """The tokens that end texts in a directory of lattices; None where these are the model's own.

    Raises:
        ValueError: the directory's settings are damaged.
    """
    found = lattice_directory(path).settings().get("eos_ids")
    if found is not None and not (
        isinstance(found, list) and found and all(type(token) is int and token >= 0 for token in found)
    ):
        raise ValueError(f"{path}: expected eos_ids as token ids, got {found!r:.60}")
    return found
