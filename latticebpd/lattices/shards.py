"""Directories of numbered files: the shards of one data set, and a JSON file with the settings that produced them.

A shard is written atomically and depends only on the settings and its number. So a killed run loses one shard, the
same command continues it, and any number of processes may each make every n-th shard (a *part*). ``latticebpd
lattices`` writes::

    lattices.json      the settings, and how many shards the data set has
    shard-00042.npz    lattices of the next few texts, a ``LatticeSet``
    texts-00042.npz    those texts, prompts included, ``Texts``

Any other directory of lattice files is read in the order of their names.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latticebpd.checks import expect
from latticebpd.lattices.json_files import read_json, write_json
from latticebpd.lattices.texts import Texts

SETTINGS = "lattices.json"


def whole_number(settings: dict[str, Any], name: str = "num_shards", least: int = 1) -> int:
    """A number of some settings; ValueError unless it is an integer, ``least`` or more."""
    number = settings[name]
    if type(number) is not int or number < least:
        raise ValueError(f"{name} is {number!r}")
    return number


@dataclass(frozen=True)
class ShardDirectory:
    """A directory of shards.

    settings_name: the JSON file in it.  command: what fills it, holds: what is in it ("lattices"), both for messages.
    count: settings -> number of shards; a KeyError, TypeError or ValueError if the settings lack it.
    """

    path: Path
    settings_name: str
    command: str
    holds: str
    suffix: str = ".npz"
    count: Callable[[dict[str, Any]], int] = whole_number

    def file(self, number: int, kind: str = "shard") -> Path:
        """A file of a shard."""
        return self.path / f"{kind}-{number:05d}{self.suffix}"

    @property
    def is_ours(self) -> bool:
        """Whether the command has begun to fill the directory."""
        return (self.path / self.settings_name).exists()

    def settings(self) -> dict[str, Any]:
        """The settings that the shards depend on; ValueError if the file is damaged."""

        def parse(record: dict[str, Any]) -> dict[str, Any]:
            self.count(record)
            return record

        problem = f"expected settings as `{self.command}` writes them:"
        return read_json(self.path / self.settings_name, parse, problem, "give a directory that it has filled")

    def files(self) -> list[Path]:
        """All shards; ValueError if the directory was not filled by the command or shards are missing."""
        count = self.count(self.settings())
        existing = {path.name for path in self.path.glob(f"shard-*{self.suffix}")}
        # Damaged settings may give any count: the work is bounded by the files that exist.
        files = [path for path in map(self.file, range(min(count, len(existing) + 1))) if path.name in existing]
        if len(files) < count:
            missing = next(file.name for file in map(self.file, range(count)) if file.name not in existing)
            problem = f"{count - len(files)} of {count} shards are missing, first {missing}"
            raise ValueError(f"{self.path}: {problem}; run the same `{self.command}` command again, which continues it")
        return files

    def claim(self, settings: Mapping[str, Any]) -> None:
        """Write the settings into a new directory, or compare them with those of a used one; ValueError for others and
        for a directory of other files."""
        wanted = json.loads(json.dumps(settings))
        if not self.is_ours:
            self.path.mkdir(parents=True, exist_ok=True)
            others = self._others(set())
            if not self.is_ours:  # nor has another process of the same run claimed it meanwhile
                self._refuse(others)
                self.record(wanted)
        used = self.settings()
        # Hashes come last: other settings say more.
        for name in sorted({*used, *wanted}, key=lambda name: ("sha256:" in str(wanted.get(name)), name)):
            if used.get(name) != wanted.get(name):
                values = f"{name} {used.get(name)}, asked for is {wanted.get(name)}"
                raise ValueError(f"{self.path}: holds {self.holds} made with {values}; choose another directory")

    def renew(self) -> None:
        """Create the directory, or delete its shards, after which it is invalid until its settings are recorded again;
        ValueError if it holds other files."""
        self.path.mkdir(parents=True, exist_ok=True)
        shards = [path for path in self.path.glob(f"shard-*{self.suffix}") if self.is_ours and path.stem[6:].isdigit()]
        self._refuse(self._others({self.path / self.settings_name, *shards}))
        self.record({})
        for path in shards:
            path.unlink()

    def _others(self, ours: set[Path]) -> list[str]:
        """Files of another origin; a killed run may leave hidden ones."""
        return sorted(file.name for file in self.path.iterdir() if file not in ours and not file.name.startswith("."))

    def _refuse(self, others: list[str]) -> None:
        if others:
            expected = "expected a directory that is new, empty or filled by this command before"
            raise ValueError(f"{self.path}: {expected}, found {others[0]}; choose another")

    def record(self, settings: Mapping[str, Any]) -> None:
        """Write the settings."""
        write_json(self.path / self.settings_name, settings, indent=2)


def shares(total: int, size: int, part: tuple[int, int]) -> Iterator[tuple[int, range]]:
    """The shards ``i``, ``i + n``, ... of part ``(i, n)``, and each one's items: ``size`` of ``total``, or the rest."""
    for shard in range(part[0], -(-total // size), part[1]):
        yield shard, range(shard * size, min(total, (shard + 1) * size))


def share_size(total: int, size: int, part: tuple[int, int]) -> int:
    """The number of items in a part's shards."""
    return sum(len(items) for _, items in shares(total, size, part))


def parse_part(text: str | None) -> tuple[int, int]:
    """``i/n`` as numbers, by default ``torchrun``'s RANK/WORLD_SIZE, else 0/1; ValueError unless 0 <= i < n."""
    text = f"{os.environ.get('RANK', 0)}/{os.environ.get('WORLD_SIZE', 1)}" if text is None else text
    match = re.fullmatch("([0-9]+)/([0-9]+)", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"expected --part as i/n with 0 <= i < n, such as 0/4, got {text!r}")
    return int(match[1]), int(match[2])


def lattice_directory(path: str | os.PathLike[str]) -> ShardDirectory:
    """What ``latticebpd lattices`` fills."""
    return ShardDirectory(Path(path), SETTINGS, "latticebpd lattices", "lattices")


def distilled_directory(path: str | os.PathLike[str]) -> ShardDirectory:
    """What ``latticebpd distill`` fills: texts, as `Texts`."""

    def count(settings: dict[str, Any]) -> int:
        return -(-whole_number(settings, "prompts") // whole_number(settings["options"], "shard_prompts"))

    return ShardDirectory(Path(path), "distill.json", "latticebpd distill", "text", count=count)


def stored_texts(paths: Sequence[str | os.PathLike[str]]) -> Texts | None:
    """The texts of files and of directories that ``latticebpd distill`` has filled, in order; None if these are not
    texts. ValueError for a damaged file, and for texts among other files."""
    files: list[Path] = []
    kinds = set[bool]()
    for path in map(Path, paths):
        own = distilled_directory(path)
        kinds.add(own.is_ours or (path.is_file() and Texts.is_file(path)))
        files += own.files() if own.is_ours else [path]
    expect(len(kinds) <= 1, "lattices or texts", "both kinds", "name those of one kind")
    return Texts.joined([Texts.load(file) for file in files]) if kinds == {True} else None


def shard_files(path: str | os.PathLike[str]) -> list[Path]:
    """The lattice files of a data set: the file itself, or all of a directory; ValueError if any is missing."""
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
    """Tokens and prompt length of every text of directories that ``latticebpd lattices`` has filled."""
    for directory in map(lattice_directory, paths):
        if not directory.is_ours:
            wanted = "a directory that `latticebpd lattices` has filled, which holds the texts too"
            raise ValueError(f"{directory.path}: expected {wanted}; lattice files do not name the prompts")
        for shard in range(len(directory.files())):
            yield from Texts.load(directory.file(shard, "texts")).items()


def text_ends(path: str | os.PathLike[str]) -> list[int] | None:
    """The tokens that end texts in a directory of lattices, None for the model's own; ValueError if damaged."""
    ends = lattice_directory(path).settings().get("eos_ids")
    if ends is None or (isinstance(ends, list) and ends and all(type(end) is int and end >= 0 for end in ends)):
        return ends
    raise ValueError(f"{path}: expected eos_ids as token ids, got {ends!r:.60}")


def text_weights(path: str | os.PathLike[str]) -> str | None:
    """The weights that the model of a directory of lattices was asked for; None for those by default, and for other
    files; ValueError if damaged."""
    directory = lattice_directory(path)
    weights = directory.settings().get("weights") if directory.is_ours else None
    if weights is None or isinstance(weights, str):
        return weights
    raise ValueError(f"{path}: expected the name of weights, got {weights!r:.60}")
