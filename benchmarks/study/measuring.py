"""What the scripts of the study share: resumable stages, decodes counted text by text, intervals, small CSV files."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.resuming import claim, stage
from benchmarks.smollm2.intervals import RESAMPLES
from benchmarks.smollm2.intervals import interval as pooled
from fst.files import replacing
from latticebpd import generate
from latticebpd.drafters.heads.blockwise import BlockwiseLM

__all__ = [
    "RESULTS",
    "Decoded",
    "claim",
    "decode",
    "fewer_heads",
    "interval",
    "most",
    "read_csv",
    "speed_rows",
    "speed_table",
    "spread",
    "stage",
    "timed",
    "widened",
    "write_csv",
]

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Decoded:
    """One system on all texts.

    rows: new tokens of each text.  tokens, calls: ``[texts]``, what the calls behind the prefill committed, and how many they were.
    """

    rows: list[list[int]]
    tokens: list[int]
    calls: list[int]

    def save(self, path: Path) -> None:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(vars(self)) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Decoded:
        return cls(**json.loads(path.read_text(encoding="utf-8")))

    @property
    def accepted(self) -> tuple[float, float, float]:
        """Mean accepted block size (Stern 2018, section 7), pooled over all texts, and its interval."""
        return pooled(np.array(self.tokens), np.array(self.calls))


def ended(row: Sequence[int], end: int) -> list[int]:
    """The tokens up to the end of text."""
    row = list(row)
    return row[: row.index(end) + 1] if end in row else row


def decode(
    model: Any, sources: Sequence[Sequence[int]], drafter: Any, rule: Any, max_new: int, rows: int = 50
) -> Decoded:
    """Write what follows every source; an encoder-decoder's, whose decoder begins with one token."""
    base = model.base if isinstance(model, BlockwiseLM) else model
    pad, end = base.config.pad_token_id, base.config.eos_token_id
    found = Decoded([], [], [])
    for first in range(0, len(sources), rows):
        part = sources[first : first + rows]
        width = max(map(len, part))
        ids = [[*source, *[pad] * (width - len(source))] for source in part]
        mask = [[1] * len(source) + [0] * (width - len(source)) for source in part]
        out = generate(model, ids, drafter, rule, max_new, attention_mask=mask, trace=True)
        tokens, calls = [0] * len(part), [0] * len(part)
        for step in out.trace or ():
            tokens[step.row] += len(step.committed)
            calls[step.row] += 1
        found.rows.extend(ended(row, end) for row in out.sequences[:, 1:].tolist())
        found.tokens.extend(tokens)
        found.calls.extend(calls)
    return found


System = tuple[Any, Any, Any]
"""Model, drafter, acceptance rule."""


def timed(path: Path, systems: dict[str, System], sources: Sequence[Sequence[int]], max_new: int) -> None:
    """Seconds of the processor a token, and tokens and calls, of every source by itself, systems in turns; the first source warms up."""
    found: dict[str, list[list[float]]] = {name: [] for name in systems}
    for source in [sources[0], *sources]:
        for name, (model, drafter, rule) in systems.items():
            started = time.process_time()
            run = decode(model, [source], drafter, rule, max_new)
            found[name].append([(time.process_time() - started) / len(run.rows[0]), run.tokens[0], run.calls[0]])
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({name: rows[1:] for name, rows in found.items()}) + "\n", encoding="utf-8")


def speed_rows(path: Path) -> list[dict[str, Any]]:
    """What `timed` found, for a CSV file: every system beside the first."""
    taken = {name: np.array(rows).T for name, rows in json.loads(path.read_text(encoding="utf-8")).items()}
    greedy, rows = next(iter(taken.values()))[0], []
    for name, (seconds, tokens, calls) in taken.items():
        accepted, milliseconds = float(tokens.sum() / max(1, calls.sum())), 1e3 * float(seconds.mean())
        row = {"system": name, "accepted": accepted, "ms a token": milliseconds}
        speedup = interval(
            lambda chosen, own=seconds: greedy[chosen].mean(axis=-1) / own[chosen].mean(axis=-1), len(greedy)
        )
        rows.append(row | {f"speedup{end}": value for end, value in zip(("", " low", " high"), speedup, strict=True)})
    return rows


@torch.no_grad()
def fewer_heads(heads: Any, num_heads: int) -> Any:
    """The first heads of feed-forward ones, which are independent of each other, as new ones; head 1 is the base model's."""
    kept = type(heads)(heads.hidden_size, num_heads, heads.intermediate_size)
    kept.up.copy_(heads.up[: num_heads - 1])
    kept.down.copy_(heads.down[: num_heads - 1])
    return kept


def interval(measure: Callable[[np.ndarray], Any], count: int) -> tuple[float, float, float]:
    """A measure of all texts, and its bootstrap interval of 95 %.

    measure: ``[..., texts]`` numbers of texts -> ``[...]``.
    """
    drawn = np.random.default_rng(0).integers(0, count, (RESAMPLES, count))  # the same ones for every system
    low, high = np.quantile(measure(drawn), [0.025, 0.975])
    return float(measure(np.arange(count))), float(low), float(high)


def most(found: Mapping[float, float]) -> float:
    """The best weight; among equals the one that is nearest to 1."""
    return max(found, key=lambda alpha: (found[alpha], -abs(math.log(alpha))))


def widened(found: Mapping[float, float]) -> tuple[float, ...]:
    """The weights tried, and one more beyond the best where that is the least or the largest."""
    chosen, least, largest = most(found), min(found), max(found)
    if chosen == least > 1 / 64:
        return (*found, least / 2)
    return (*found, largest * 2) if chosen == largest < 64 else tuple(found)


def spread(row: dict[str, str], name: str, places: int = 2) -> str:
    """A value and its interval."""
    value, low, high = (float(row[f"{name}{end}"]) for end in ("", " low", " high"))
    return f"{value:.{places}f} ({low:.{places}f} to {high:.{places}f})"


def speed_table(rows: Sequence[dict[str, str]]) -> None:
    """What `speed_rows` found, on standard output."""
    print("\n| system | mean accepted block size | ms a token | over greedy |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['system']} | {float(row['accepted']):.2f} | {float(row['ms a token']):.2f} | {spread(row, 'speedup')} |"
        )


def write_csv(path: Path, rows: Sequence[dict[str, Any]], digits: int = 4) -> None:
    """Numbers with so many digits behind the point."""
    rounded = [
        {name: round(value, digits) if isinstance(value, float) else value for name, value in row.items()}
        for row in rows
    ]
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rounded[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rounded)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
