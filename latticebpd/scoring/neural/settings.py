"""What is stored with a neural rescorer beside its model: ``rescorer.json``."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fst.files import replacing

RESCORER_CONFIG = "rescorer.json"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class RescorerSettings:
    """alpha: the weight wherever none is given.  tokenizer_fingerprint: hash of the vocabulary, if known.
    tuning: how alpha was found (``latticebpd.analysis.tuning``), if it was tuned."""

    alpha: float = 1.0
    tokenizer_fingerprint: str | None = None
    tuning: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        checked_alpha(self.alpha)
        if not isinstance(self.tokenizer_fingerprint, str | None):
            raise ValueError(f"expected a fingerprint or null, got {self.tokenizer_fingerprint!r}")
        if not isinstance(self.tuning, dict | None):
            raise ValueError(f"expected a record of the tuning or null, got {self.tuning!r}")

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
            settings = cls(**record) if version == FORMAT_VERSION else None
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # damaged JSON and UTF-8 are ValueErrors
            raise ValueError(f"{path}: not a rescorer's settings: {error}; is the copy complete?") from error
        if settings is None:
            raise ValueError(f"{path}: expected a rescorer of format {FORMAT_VERSION}, got {version}; update latticebpd")
        return settings

    def save(self, directory: str | os.PathLike[str]) -> None:
        """The file appears whole or not at all."""
        with replacing(Path(directory) / RESCORER_CONFIG) as temporary:
            temporary.write_text(json.dumps({"format_version": FORMAT_VERSION, **asdict(self)}, indent=2) + "\n", encoding="utf-8")


def checked_alpha(alpha: float) -> float:
    """Raises ValueError for a weight that no rescorer can have."""
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not (alpha >= 0 and math.isfinite(alpha)):
        raise ValueError(f"expected a finite alpha >= 0, got {alpha}")
    return float(alpha)
