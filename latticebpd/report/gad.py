"""The section of a report on non-autoregressive drafts, from what `benchmarks/bench_gad.py` measured."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from latticebpd.report.content import Column, Section, Table, decimals, text

two, percent = decimals(2), decimals(2, " %")

CALLS = "Calls of the verifier after the prefill, a sentence; each verifies one draft."
TOKENS = "Tokens that a call commits; the end of text is one."
BLEU = "Against the references, by sacrebleu; its signature stands with the benchmark's."
SPEED = "Time of the baseline over this one's, both measured in the same run, sentence by sentence in turns."

MODULES = ("verifier's encoder", "drafter's encoder", "drafter's decoder", "verifier's decoder", "others")


def _shown(value: Any) -> str:
    return two(value) if isinstance(value, float) else text(value)


_COST = (("iterations", CALLS), ("tok.", TOKENS))
_QUALITY = (("tok.", TOKENS), ("BLEU", BLEU))
_SYSTEMS = (
    Column("system"),
    Column("iterations", CALLS, _shown),
    Column("tok.", TOKENS, _shown),
    Column("over beam 5", SPEED, decimals(2, "×")),
    Column("over greedy", SPEED, decimals(2, "×")),
    Column("ms a sentence", form=two),
)
_TEXTS = (
    *_SYSTEMS[:3],
    Column("BLEU", BLEU, two),
    Column("repeats", "Tokens that repeat the one before.", percent),
)
_BLOCKS = (
    Column("k", "Masks per draft."),
    *(Column(f"{system} {what}", note, two) for system in ("GAD", "GAD++") for what, note in _COST),
    Column("GAD++ BLEU", BLEU, two),
)
_GRID = (
    Column("τ", "How far below the best log-probability a drafted token may lie.", two),
    *(Column(f"β = {beta}, {what}", note, two) for beta in (3, 5) for what, note in _QUALITY),
)
_LATTICES = (
    Column("drafts"),
    Column("verified a call", "Drafted tokens that a call of the verifier sees.", two),
    Column("tok.", TOKENS, two),
    Column("iterations", CALLS, two),
)
_SWAP = (Column("system"), Column("tok.", TOKENS, two), Column("iterations", CALLS, two), Column("BLEU", BLEU, two))
_TABLES: dict[str, tuple[str, str, tuple[Column, ...]]] = {
    "quality": ("gad-texts", "Calls and texts", _TEXTS),
    "block sizes": ("gad-blocks", "Block sizes, GAD and GAD++ (β = 3, τ = 1)", _BLOCKS),
    "beta and tau": ("gad-grid", "GAD++ by β and τ", _GRID),
    "lattices": ("gad-lattices", "Lattices, n-gram model and trees, exact acceptance", _LATTICES),
    "modules": (
        "gad-modules",
        "Milliseconds a sentence by module, one after another",
        tuple(Column(name, form=_shown) for name in ("system", *MODULES, "total")),
    ),
    "swap": ("gad-swap", "Another drafter in its place", _SWAP),
    "memory": ("gad-memory", "Memory", (Column("what"), Column("MiB", form=_shown))),
}


def read_record(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The JSON that the benchmark wrote.

    Raises:
        ValueError: the file is none.
    """
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected what benchmarks/bench_gad.py wrote (gad.json): {error}") from error
    if not isinstance(record, dict) or not any(name in record for name in ("batches of 1", *_TABLES)):
        raise ValueError(f"{path}: expected what benchmarks/bench_gad.py wrote (gad.json), found no table of it")
    return record


def gad_section(record: Mapping[str, Any]) -> Section:
    """Tables of all that was measured; what was not is left out.

    Raises:
        ValueError: a table of another shape than the benchmark writes.
    """
    tables = [
        _table(f"gad-systems-{name.removeprefix('batches of ')}", f"Systems, {name}", _SYSTEMS, rows)
        for name, rows in record.items()
        if name.startswith("batches of ")
    ]
    tables += [_table(*_TABLES[name], record[name]) for name in _TABLES if name in record]
    lead = (
        "A non-autoregressive drafter fills a block of masks in one pass; the verifier keeps what it would have written itself (GAD), "
        "or what comes close to it (GAD++)."
    )
    return Section("gad", "Non-autoregressive drafts", lead, tables)


def _table(name: str, caption: str, columns: Sequence[Column], rows: Any) -> Table:
    if not isinstance(rows, list) or any(not isinstance(row, list) or len(row) != len(columns) for row in rows):
        titles = ", ".join(column.title for column in columns)
        raise ValueError(f"{caption}: expected rows of {len(columns)} values ({titles}), got something else; measure anew")
    return Table(name, caption, tuple(columns), tuple(tuple(row) for row in rows))
