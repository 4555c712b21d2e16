"""Cost of a call by its size: decides how many tokens to draft, and whether to draft at all.

A pass over ``rows`` texts of ``columns`` tokens each, the next token and the drafted ones, takes ``seconds``; between
the sizes that were measured it is taken to rise evenly. Making the drafts takes ``drafting``, whatever is left of them.
``latticebpd profile`` measures both; `latticebpd.drafters.cost_aware` cuts trees by them.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np

from latticebpd.checks import expect
from latticebpd.lattices.json_files import from_record, read_json, write_json

FORMAT_VERSION = 1
REMEMBERED = 64
"""Draft tokens up to which costs are computed at once."""


@dataclass(frozen=True)
class CostCurve:
    """Seconds of a call.

    rows, columns: the sizes measured, rising.  seconds: ``[rows][columns]`` of a pass.
    about: model, machine, threads, tokens of context. drafting: ``[rows]`` seconds of making the drafts; empty: not
        measured.
    packed: a pass over several rows reads their tokens one after another, as the CPU engine does, and costs by their
        sum; else rows are padded to the widest.
    accepted: seconds of each accepted token: the target's next token is computed for one node after another, of which
        a pass's seconds contain the first.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    seconds: tuple[tuple[float, ...], ...]
    about: dict[str, str] = field(default_factory=dict)
    drafting: tuple[float, ...] = ()
    packed: bool = False
    accepted: float = 0.0

    def __post_init__(self) -> None:
        for name, sizes in (("rows", self.rows), ("columns", self.columns)):
            fits: object = sizes and min(sizes) >= 1 and list(sizes) == sorted(set(sizes))
            expect(fits, f"{name} of at least 1, rising", sizes)
        rows, columns = len(self.rows), len(self.columns)
        table, drafting = np.array(self.seconds, np.float64), np.array(self.drafting, np.float64)
        fits = table.shape == (rows, columns) and np.isfinite(table).all() and (table > 0).all()
        expect(fits, f"seconds [{rows}][{columns}] above 0", table.shape)
        fits = drafting.shape in ((0,), (rows,)) and np.isfinite(drafting).all() and (drafting >= 0).all()
        expect(fits, f"seconds of drafting [{rows}] of at least 0", self.drafting)
        expect(0 <= self.accepted < np.inf, "seconds of an accepted token of at least 0", self.accepted)

    def of(self, rows: int, columns: np.ndarray) -> np.ndarray:
        """``[n]`` seconds of passes over ``rows`` texts and ``columns [n]`` tokens each.

        Beyond the sizes measured a pass costs in proportion to its tokens.
        """
        wide, deep = np.array(self.columns), np.array(self.rows)
        by_rows = np.array([np.interp(columns, wide, each) for each in self.seconds])  # [rows, n]
        by_rows *= np.maximum(columns / wide[-1], 1)
        return np.array([np.interp(rows, deep, each) for each in by_rows.T]) * max(rows / deep[-1], 1)

    def up_to(self, rows: int, nodes: int) -> np.ndarray:
        """``[nodes + 1]`` seconds of passes over ``rows`` texts and 0, 1, ... ``nodes`` draft tokens: of all rows
        together where they are packed, else of each. They are remembered, since every call asks for them."""
        known = self._known.get(rows)
        if known is None or len(known) <= nodes:
            drafted = np.arange(max(nodes, REMEMBERED) + 1)
            known = self._known[rows] = self.of(1, rows + drafted) if self.packed else self.of(rows, 1 + drafted)
        return known[: nodes + 1]

    @cached_property
    def _known(self) -> dict[int, np.ndarray]:
        return {}

    def of_calls(self, rows: int, nodes: Any, tokens: Any) -> Any:
        """Seconds of calls that draft so many nodes, as of `up_to`, and commit so many tokens; numbers or arrays."""
        return self.up_to(rows, int(np.max(nodes)))[nodes] + self.drafting_of(rows) + self.accepted * (tokens - rows)

    def drafting_of(self, rows: int) -> float:
        """Seconds of making the drafts of ``rows`` texts; 0 where it was not measured."""
        if not self.drafting:
            return 0.0
        return float(np.interp(rows, self.rows, self.drafting)) * max(rows / self.rows[-1], 1)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostCurve:
        """Raises ValueError if the file holds no costs."""
        parse = partial(from_record, cls, version=FORMAT_VERSION)
        return read_json(path, parse, "expected costs as `latticebpd profile` writes them, got", "measure them again")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically."""
        write_json(path, {"format_version": FORMAT_VERSION, **asdict(self)})
