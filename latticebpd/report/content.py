"""The contents of a report: sections of tables and plots."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def text(value: Any) -> str:
    return "–" if value is None else str(value)


def decimals(digits: int, unit: str = "") -> Callable[[Any], str]:
    """A number with so many decimals; a dash for None and NaN."""
    return lambda value: "–" if value is None or value != value else f"{value:,.{digits}f}{unit}"


@dataclass(frozen=True)
class Column:
    """title: its head. note: what its numbers mean, shown on hover. form: value -> text."""

    title: str
    note: str = ""
    form: Callable[[Any], str] = text


@dataclass(frozen=True)
class Cell:
    """A value with a mark or a second number after it. good: whether it is an improvement; None for neither."""

    value: Any
    note: str = ""
    good: bool | None = None

    @property
    def is_words(self) -> bool:
        """Whether it may take several lines, as no number does."""
        return any(map(str.isalpha, str(self.value)))


@dataclass(frozen=True)
class Table:
    """name: of its CSV file. rows: values, or ``Cell``s, one for each column. notes: below it."""

    name: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[tuple[Any, ...]]
    notes: tuple[str, ...] = ()

    def csv(self) -> str:
        """The bare values, with a line of titles."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(column.title for column in self.columns)
        for row in self.rows:
            values = (cell.value if isinstance(cell, Cell) else cell for cell in row)
            writer.writerow("" if value is None or value != value else value for value in values)
        return file.getvalue()

    def shown(self) -> list[list[Cell]]:
        """The rows as text."""
        rows = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in self.rows]
        forms = [column.form for column in self.columns]
        return [
            [Cell(form(cell.value), cell.note, cell.good) for form, cell in zip(forms, row, strict=True)]
            for row in rows
        ]


@dataclass(frozen=True)
class Plot:
    """name: of its PNG file, and in the page. caption: what it shows and how to read it."""

    name: str
    caption: str
    figure: Figure


@dataclass(frozen=True)
class Drawing:
    """A finished SVG, shown at its own size in a box that scrolls."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Section:
    """id: in the page. lead: a few sentences, as plain text."""

    id: str
    title: str
    lead: str
    items: Sequence[Table | Plot | Drawing]
