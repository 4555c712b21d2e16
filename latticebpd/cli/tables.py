"""Tables and rows of numbers as commands print them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from latticebpd.console import err, out

if TYPE_CHECKING:
    from latticebpd.measuring.model_decodes import Decoded


def print_table(
    title: str | None,
    headings: Iterable[str],
    rows: Iterable[Sequence[str]],
    *,
    no_wrap: bool = False,
    caption: str | None = None,
    bold: int | None = None,
) -> None:
    """A table of names and numbers; no_wrap: of the names. bold: the row to stress."""
    first, *columns = headings
    table = Table(title=title, box=box.SIMPLE_HEAD, caption=caption)
    table.add_column(first, no_wrap=no_wrap)
    for name in columns:
        table.add_column(name, justify="right")
    for number, row in enumerate(rows):
        table.add_row(*row, style="bold" if number == bold else None)
    out.print(table)


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
