"""``--lm`` as commands take it: one model or several, by file, with or without a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latticebpd.scoring.rescoring import Rescorer


def model_paths(options: Sequence[str]) -> dict[str, str]:
    """Where language models are, by name: of ``NAME=PATH``, or of a path alone, whose name without ending is then the model's.

    Raises:
        ValueError: two models of one name, or a name that means something else.
    """
    paths: dict[str, str] = {}
    for option in options:
        name, equals, path = option.partition("=")
        if not equals or Path(option).exists():
            name, path = Path(option).stem, option
        if name in paths or name in ("", "0-gram") or ":" in name:
            raise ValueError(f"expected --lm as NAME=PATH with a name of its own, got {option!r}")
        paths[name] = path
    return paths


def named_models(options: Sequence[str]) -> dict[str, Rescorer]:
    """Language models by name, see :func:`model_paths`.

    Raises:
        ValueError: as there, or a path that is no model.
        FileNotFoundError: there is no such file.
    """
    from latticebpd.scoring.rescoring import as_rescorer

    return {name: as_rescorer(path) for name, path in model_paths(options).items()}
