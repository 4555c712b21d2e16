"""Tables and rows of numbers as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.cells import cell_len
from rich.table import Table

from fst.printable import printable
from latticebpd.console import err, out

if TYPE_CHECKING:
    from latticebpd.measuring.model_decodes import Decoded

GAP = 2
"""Columns between two of a table."""


def print_table(
    title: str | None,
    headings: Iterable[str],
    rows: Iterable[Sequence[str]],
    *,
    names: int = 1,
    caption: str | None = None,
    bold: int | None = None,
) -> None:
    """A table of names and numbers, which are never cut: where a terminal is too narrow, headings take several lines,
    and columns without room follow below, next to the names again.

    names: columns that name the rows.  bold: the row to stress.
    """
    headings, rows = [*headings], [[*map(printable, row)] for row in rows]
    widths = _widths(headings, rows, out.width)
    if title:
        out.print(title, style="italic")
    for shown in _with_room(widths, names, out.width):
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
        for each in shown:
            justify: Literal["left", "right"] = "right" if each else "left"
            table.add_column(headings[each], width=widths[each], justify=justify, overflow="fold")
        for number, row in enumerate(rows):
            table.add_row(*(row[each] for each in shown), style="bold" if number == bold else None)
        out.print(table)
        out.print()
    if caption:
        out.print(f"{caption}\n", style="dim")


def _widths(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """The columns' widths: those of cells and headings, where these do not fit of cells and the headings' words."""

    def widest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=0)

    cells = [widest(row[each] for row in rows) for each in range(len(headings))]
    widths = [max(cell, widest(name.splitlines())) for cell, name in zip(cells, headings, strict=True)]
    if sum(widths) + GAP * (len(widths) - 1) > width:
        widths = [max(cell, widest(name.split())) for cell, name in zip(cells, headings, strict=True)]
        widths[0] = min(widths[0], max(width - GAP - max(widths[1:], default=0), 1))
    return widths


def _with_room(widths: Sequence[int], names: int, width: int) -> Iterator[list[int]]:
    """The numbers of the columns that a table has room for, then those of the next one; each begins with the names."""
    shown = first = [*range(names)]
    for each in range(names, len(widths)):
        used = sum(widths[column] + GAP for column in shown)
        if used + widths[each] > width and shown != first:
            yield shown
            shown = first
        shown = [*shown, each]
    yield shown


def number_or_none(value: float) -> float | None:
    """NaN, which JSON does not have, as None."""
    return None if value != value else float(value)


def number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def decoded_rows(decoded: Decoded, quality: Mapping[str, list[float]] = MappingProxyType({})) -> list[dict[str, Any]]:
    """One row for every drafter and rule."""
    calls = decoded.calls
    return [
        {
            "system": name,
            "block_efficiency": None if not calls[i] else float(decoded.block_efficiency[i]),
            "block_efficiency_with_prefill": float(decoded.block_efficiency_with_prefill[i]),
            "calls": int(calls[i]),
            "tokens": int(decoded.tokens[i]),
            "verified_tokens": int(decoded.verified[i]),
            "texts": decoded.texts,
            "differing_texts": int(decoded.differing[i]),
            **{measure: values[i] for measure, values in quality.items()},
        }
        for i, name in enumerate(decoded.names)
    ]


def print_decoded(rows: Sequence[dict[str, Any]], first: str, columns: Sequence[str]) -> None:
    """Decodes by the model: some columns of their rows."""
    names = {"block_efficiency": "tokens/call", "block_efficiency_with_prefill": "with prefill"}
    names["differing_texts"] = "other texts"

    def shown(row: dict[str, Any], each: str) -> str:
        return f"{row[each]}" if isinstance(row[each], int) else number(row[each], ".3f" if each in names else ".2f")

    lines = ([f"{row[first]}", *(shown(row, each) for each in columns)] for row in rows)
    headings = [first, *(names.get(each, each) for each in columns)]
    print_table(f"decoded by the model, {rows[0]['texts']} texts", headings, lines)


def warn_differing(texts: int) -> None:
    err.print(f"{texts} texts differ from the files'; are the lattices of another model?", style="yellow")
