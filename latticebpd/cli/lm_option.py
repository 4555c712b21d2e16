"""``--lm`` as commands take it: one model or several, by file, with or without a name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from latticebpd.scoring.rescoring import LanguageModel


def named_paths(
    options: Sequence[str], is_name: Callable[[str], bool], expected: str, remedy: str = ""
) -> dict[str, str]:
    """Paths by name: of ``NAME=PATH``, or of a path only, whose name without ending is then the name; ValueError for
    two of one name, or for what ``is_name`` refuses."""
    paths: dict[str, str] = {}
    for option in options:
        name, equals, path = option.partition("=")
        if not equals or Path(option).exists():
            name, path = Path(option).stem, option
        if name in paths or not is_name(name):
            raise ValueError(f"expected {expected}, got {option!r}{remedy}")
        paths[name] = path
    return paths


def named_models(options: Sequence[str]) -> dict[str, LanguageModel]:
    """Language models by name, see :func:`named_paths`; ValueError for a path that is no model."""
    from latticebpd.scoring.rescoring import as_scorer

    wanted = "--lm as NAME=PATH with a name of its own"
    paths = named_paths(options, lambda name: name not in ("", "0-gram") and ":" not in name, wanted)
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
        wanted = f"{option} as weights separated by commas, such as 0.5,1,2, or paper"
        raise ValueError(f"expected {wanted}, got {text!r}") from None
