"""Which drafter lattices are of: its family and its weights' files, which are the same however they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fst.files import FileStamp
from latticebpd.models.catalogue import HEADS
from latticebpd.models.engine.engine_model import file_hash


@dataclass(frozen=True)
class DrafterFiles:
    """family: its folder of ``latticebpd.drafters``.  files: the drafter's own weights, not its target's, unless they
    hold both."""

    family: str
    files: tuple[FileStamp, ...]

    @classmethod
    def of(cls, family: str, path: Path, beside_target: bool) -> DrafterFiles:
        """Those of a directory or a file; beside_target: the target's own weights lie there too."""
        found = sorted(path.glob("*.safetensors")) or sorted(path.glob("*.gguf")) if path.is_dir() else [path]
        if beside_target:
            earlier = [file for file in found if not file.name.startswith("model")]
            found = sorted((path / HEADS[0]).parent.glob("*.safetensors")) or earlier or found
        return cls(family, tuple(map(FileStamp.of, found)))

    @property
    def name(self) -> str:
        """The family and a hash of the files: what a calibration stores of its drafter."""
        return f"{self.family} {_hash(self.files)}"


@lru_cache(maxsize=8)
def _hash(files: tuple[FileStamp, ...]) -> str:
    return file_hash([file.path for file in files])
