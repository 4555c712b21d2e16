"""Words that the sections share: systems' names, definitions, forms of numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from latticebpd.report.content import decimals
from latticebpd.report.measurements import Measured

EFFICIENCY = "Tokens committed per call of the model: accepted drafted tokens and the one that comes free."
ORACLE = "The lattice's best path in hindsight: what perfect rescoring would draft."
one, two, three = decimals(1), decimals(2), decimals(3)
percent = decimals(1, " %")


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
    """What the numbers of a table or plot are about, for its caption: ``by decode``."""
    return " or ".join(dict.fromkeys(measured.counted for measured in sets))
