"""``--lm`` as commands take it: one model or several, by file, with or without a name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latticebpd.scoring.rescoring import LanguageModel


def model_paths(options: Sequence[str]) -> dict[str, str]:
    """Where language models are, by name: of ``NAME=PATH``, or of a path alone, whose name without ending is then the
    model's.

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


def named_models(options: Sequence[str]) -> dict[str, LanguageModel]:
    """Language models by name, see :func:`model_paths`, each with the weights that are stored with it.

    Raises:
        ValueError: as there, or a path that is no model.
        FileNotFoundError: there is no such file.
    """
    from latticebpd.scoring.rescoring import as_scorer

    paths = model_paths(options)
    for path in paths.values():
        as_scorer(path)
    return dict(paths)


def alphas_of(option: str, text: str) -> list[float]:
    """Weights separated by commas, or ``paper`` for the paper's grid."""
    from latticebpd.measuring.tuning import ALPHAS

    if text == "paper":
        return list(ALPHAS)
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"expected {option} as weights separated by commas, such as 0.5,1,2, or paper, got {text!r}"
        ) from None
