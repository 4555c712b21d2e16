"""Run a notebook's cells and store what they show: ``python docs/notebook.py docs/tour.ipynb``.

A kernel of Jupyter's would bring thirty packages for what is two dozen lines: the cells run one after the other in one
namespace; what they print, the value of a last expression and the figures of pyplot are the outputs.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["MPLBACKEND"] = "agg"  # draws without windows
SHOWN = {"image/svg+xml": "_repr_svg_", "text/html": "_repr_html_"}


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with new outputs; an error in a cell is raised."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": _outputs("".join(cell["source"]), names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def _outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    tree = ast.parse(source, f"cell {count}")
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)
        value = None if last is None else eval(compile(last, f"cell {count}", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append({"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())})
    if value is not None:
        found.append({"data": _data(value), "execution_count": count, "metadata": {}, "output_type": "execute_result"})
    return found + [{"data": each, "metadata": {}, "output_type": "display_data"} for each in _figures()]


def _figures() -> Iterator[dict[str, Any]]:
    """The figures that a cell has drawn, as Jupyter shows them."""
    pyplot: Any = sys.modules.get("matplotlib.pyplot")
    for number in pyplot.get_fignums() if pyplot else ():
        picture = io.BytesIO()
        pyplot.figure(number).savefig(picture, format="png", dpi=72, bbox_inches="tight", metadata={"Software": None})
        pyplot.close(number)
        yield {"image/png": base64.b64encode(picture.getvalue()).decode(), "text/plain": ["<Figure>"]}


def _data(value: Any) -> dict[str, Any]:
    shown = {kind: getattr(value, method)() for kind, method in SHOWN.items() if hasattr(value, method)}
    return {**{kind: _lines(text) for kind, text in shown.items() if text}, "text/plain": _lines(repr(value)[:500])}


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(
            json.dumps(run(json.loads(path.read_text(encoding="utf-8"))), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
