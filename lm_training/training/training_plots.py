"""A training run's log as a table and as a drawing.

``training-log.jsonl`` has one record per update; measured ones have ``validation``. Dotted names are nested:
``validation.head_accuracy.top-1.2`` is head 2's. Heads count from 2, transitions from head 3, slots
from 1, other lists from 0.
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
FIRST = {"head": 2, "transition": 3, "slot": 1}
"""The first number in predictors' ``_losses`` and ``_accuracy``."""
UNITS = {
    "validation.perplexity": "perplexity per token",
    "validation.accuracy": "share of tokens that are right",
    "validation.serving_block_efficiency": "tokens per call when decoding",
    "validation.chain_block_efficiency": "tokens per call of best chains",
}


def read_log(directory: Path) -> list[Values]:
    """The run's records in order, flat, without a line that a kill has cut short; ValueError if there are none."""
    path = directory / LOG
    if not path.exists():
        raise ValueError(f"{directory}: expected a training run ({LOG}), found none")
    records: dict[float, Values] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            flat = dict(_flat({"": json.loads(line)}))
        except json.JSONDecodeError:
            continue
        if "step" in flat:
            records[flat["step"]] = flat
    if not records:
        raise ValueError(f"{path}: expected one JSON object per update, got none")
    return [records[step] for step in sorted(records)]


def write_csv(log: list[Values], path: Path) -> None:
    """One row per update and one column per name; cells without a measurement are empty."""
    names = list(dict.fromkeys(name for record in log for name in record))
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(log)


def draw(log: list[Values]) -> Figure:
    """Losses, each head's or slot's loss and accuracy on held-out text, and other measurements, over updates."""
    names = {name for record in log for name in record}
    scalars = [name for name in UNITS if name in names]
    numbers = {kind: _numbers(names, f"validation.{kind}_losses.") for kind in FIRST}
    kinds = [kind for kind in FIRST if numbers[kind]]
    panels = 1 + 2 * len(kinds) + len(scalars)
    columns = min(panels, 3)
    with rc_context(STYLE):
        figure = Figure(figsize=(4.4 * columns, 3.3 * -(-panels // columns)), layout="constrained")
        axes = iter(figure.subplots(-(-panels // columns), columns, squeeze=False).flatten().tolist())
        _draw_losses(next(axes), log)
        for kind in kinds:
            for measure, title, unit in (
                ("losses", f"Loss by {kind}, held out", "nats per label"),
                ("accuracy.top-1", f"{kind.capitalize()}s' best token, held out", "share that is right"),
            ):
                axis = next(axes)
                for index, number in enumerate(numbers[kind]):
                    colour = RAMP[round(index * (len(RAMP) - 1) / max(1, len(numbers[kind]) - 1))]
                    values = _series(log, f"validation.{kind}_{measure}.{number}")
                    axis.plot(*values, color=colour.light, marker="o", markersize=3, label=f"{kind} {number}")
                axis.legend(ncols=2, fontsize=7)
                _label(axis, title, unit)
        for name in scalars:
            axis = next(axes)
            axis.plot(*_series(log, name), color=SERIES[0].light, marker="o")
            _label(axis, name.removeprefix("validation.").replace("_", " ").capitalize(), UNITS[name])
        for axis in axes:
            axis.set_axis_off()
    return figure


def write_plots(directory: Path) -> None:
    """``training.csv`` and ``training.png`` of the log in a run's directory."""
    log = read_log(directory)
    write_csv(log, directory / CSV)
    with replacing(directory / PNG) as temporary:
        temporary.write_bytes(png(draw(log)))


def _numbers(names: set[str], start: str) -> list[int]:
    return sorted(int(name.removeprefix(start)) for name in names if name.startswith(start))


def _flat(record: dict[str, Any], start: str = "") -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        name = f"{start}{key}"
        if isinstance(value, list):
            kind = re.search("(head|transition|slot)_(losses|accuracy)", name)
            value = {str(number): item for number, item in enumerate(value, FIRST[kind[1]] if kind else 0)}
        if isinstance(value, dict):
            yield from _flat(value, f"{name}." if name else "")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield name, value


def _series(log: list[Values], name: str) -> tuple[list[float], list[float]]:
    """Updates with a measurement of this name, and the measurements."""
    measured = [record for record in log if name in record]
    return [record["step"] for record in measured], [record[name] for record in measured]


def _draw_losses(axis: Axes, log: list[Values]) -> None:
    steps, losses = _series(log, "loss")
    width = max(1, len(losses) // 50)
    smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
    axis.plot(steps, losses, color=FAINT.light, linewidth=0.6, alpha=0.5)
    label = "training" if width == 1 else f"training, mean of {width} updates"
    axis.plot(steps[width - 1 :], smooth, color=SERIES[0].light, label=label)
    held_out = {"validation.loss": "held out", "validation.base_loss": "base model, held out"}
    for (name, label), colour in zip(held_out.items(), SERIES[1:3], strict=True):
        if any(name in record for record in log):
            axis.plot(*_series(log, name), color=colour.light, marker="s", label=label)
    axis.legend()
    _label(axis, "Loss", "nats")


def _label(axis: Axes, title: str, unit: str) -> None:
    axis.set_title(title)
    axis.set_xlim(left=0)
    axis.set_xlabel("update")
    axis.set_ylabel(unit)
