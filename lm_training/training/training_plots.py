"""A training run's log as a table and as a drawing.

``training-log.jsonl`` has one record per update; those of measured updates hold ``validation``. Names with dots lead
into records, ``validation.head_accuracy.top-1.2`` is head 2's: heads count from 2, as everywhere, slots from 1, other
lists from 0.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fst.files import replacing
from latticebpd.report.theme import FAINT, RAMP, SERIES, STYLE, png
from lm_training.training.training_loop import LOG

CSV, PNG = "training.csv", "training.png"
Values = dict[str, float]
FIRST = {"head": 2, "slot": 1}
"""What the numbers of predictors' ``_losses`` and ``_accuracy`` begin with."""
AXES = {
    "validation.perplexity": "perplexity per token",
    "validation.accuracy": "share of tokens that are right",
    "validation.serving_block_efficiency": "tokens per call when decoding",
    "validation.chain_block_efficiency": "tokens per call of best chains",
}
"""What the values of some names are."""


def read_log(directory: Path) -> list[Values]:
    """The run's records in order, flat, a name for every number; a line that a kill has cut short is left out.

    Raises:
        ValueError: there is no log, or nothing in it.
    """
    path = directory / LOG
    if not path.exists():
        raise ValueError(f"{directory}: expected a training run ({LOG}), found none")
    records: dict[float, Values] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict):
            flat = dict(_flat(record))
            if "step" in flat:
                records[flat["step"]] = flat
    if not records:
        raise ValueError(f"{path}: expected one JSON object per update, got none")
    return [records[step] for step in sorted(records)]


def write_csv(log: list[Values], path: Path) -> None:
    """One row per update and one column per name; cells of what was not measured are empty."""
    names = list(dict.fromkeys(name for record in log for name in record))
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)


def draw(log: list[Values]) -> Figure:
    """Losses, each head's loss and accuracy on held-out text, and every other held-out measure, over updates."""
    found = {name for record in log for name in record}
    scalars = [name for name in AXES if name in found]
    parts = {
        kind: sorted(int(name.rsplit(".", 1)[1]) for name in found if name.startswith(f"validation.{kind}_losses."))
        for kind in FIRST
    }
    parts = {kind: numbers for kind, numbers in parts.items() if numbers}
    panels = 1 + 2 * len(parts) + len(scalars)
    columns = min(panels, 3)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.4 * columns, 3.3 * -(-panels // columns)), layout="constrained")
        axes = iter(figure.subplots(-(-panels // columns), columns, squeeze=False).flatten().tolist())
        _draw_losses(next(axes), log)
        for kind, numbers in parts.items():
            _draw_parts(next(axes), log, kind, numbers, "losses", f"Loss by {kind}, held out", "nats per label")
            title = f"{kind.capitalize()}s' best token, held out"
            _draw_parts(next(axes), log, kind, numbers, "accuracy.top-1", title, "share that is right")
        for name in scalars:
            axis = next(axes)
            axis.plot(*_series(log, name), color=SERIES[0].light, marker="o")
            _label(axis, name.removeprefix("validation.").replace("_", " ").capitalize(), AXES[name])
        for axis in axes:
            axis.set_axis_off()
    return figure


def write_plots(directory: Path) -> None:
    """``training.csv`` and ``training.png`` of a run's log, beside it."""
    log = read_log(directory)
    write_csv(log, directory / CSV)
    with replacing(directory / PNG) as temporary:
        temporary.write_bytes(png(draw(log)))


def _flat(record: dict[str, Any], start: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, list):
            first = next(
                (begin for kind, begin in FIRST.items() if re.search(f"{kind}_(losses|accuracy)", f"{start}{name}")), 0
            )
            value = {str(number): item for number, item in enumerate(value, first)}
        if isinstance(value, dict):
            yield from _flat(value, f"{start}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{start}{name}", value


def _series(log: list[Values], name: str) -> tuple[list[float], list[float]]:
    """Updates at which a name was measured, and the measurements."""
    measured = [record for record in log if name in record]
    return [record["step"] for record in measured], [record[name] for record in measured]


def _draw_losses(axis: Axes, log: list[Values]) -> None:
    steps, losses = _series(log, "loss")
    width = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    axis.plot(steps, losses, color=FAINT.light, linewidth=0.6, alpha=0.5)
    label = "training" if width == 1 else f"training, mean of {width} updates"
    axis.plot(steps[width - 1 :], smooth, color=SERIES[0].light, label=label)
    for name, what, colour in (
        ("validation.loss", "held out", SERIES[1]),
        ("validation.base_loss", "base model, held out", SERIES[2]),
    ):
        if any(name in record for record in log):
            axis.plot(*_series(log, name), color=colour.light, marker="s", label=what)
    axis.legend()
    _label(axis, "Loss", "nats")


def _draw_parts(
    axis: Axes, log: list[Values], kind: str, numbers: list[int], measure: str, title: str, unit: str
) -> None:
    for place, number in enumerate(numbers):
        colour = RAMP[round(place * (len(RAMP) - 1) / max(1, len(numbers) - 1))]
        values = _series(log, f"validation.{kind}_{measure}.{number}")
        axis.plot(*values, color=colour.light, marker="o", markersize=3, label=f"{kind} {number}")
    axis.legend(ncols=2, fontsize=7)
    _label(axis, title, unit)


def _label(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title)
    axis.set_xlim(left=0)
    axis.set_xlabel("update")
    axis.set_ylabel(unit)
