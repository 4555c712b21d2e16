"""How sections name systems and plots, and write numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from latticebpd.report.content import Plot, decimals
from latticebpd.report.measurements import Measured

if TYPE_CHECKING:
    from matplotlib.figure import Figure

one, two, three = decimals(1), decimals(2), decimals(3)
percent = decimals(1, " %")


def plot_of(measured: Measured, name: str, what: str, figure: Figure, note: str = "") -> Plot:
    """A data set's plot: its name and what it is counted by stand in the caption."""
    return Plot(f"{name}-{slug(measured.name)}", f"{measured.name}: {what}, {measured.counted}.{note}", figure)


def slug(name: str) -> str:
    """A data set's name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "data"


def system_label(name: str, model: str | None) -> str:
    """A system's name for readers: ``16-best:0-gram`` -> ``16-best, no LM``."""
    if name in ("vanilla", "chain", "oracle"):
        return name
    kind, _, chosen = name.partition(":")
    kind = kind.replace("-tree", "-node tree").replace("-calibrated", "-node calibrated tree")
    return f"{kind}, {'no LM' if chosen == '0-gram' else chosen or model}"


def counted(sets: Sequence[Measured]) -> str:
    """What a table or plot counts, for its caption: ``by decode``."""
    return " or ".join(dict.fromkeys(measured.counted for measured in sets))
