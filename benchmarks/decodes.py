"""Decodes of encoder-decoders, counted text by text and timed, and what tuning and figures need of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from benchmarks.common import Interval, interval, pooled, slug, spread, stored, table, with_ends
from fst.files import replacing
from latticebpd import Drafter, Exact, Loaded, generate
from latticebpd.decoding.decode_rows import until_end
from latticebpd.lattices.texts import padded
from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from latticebpd.report.theme import MARKERS, SERIES, png

RESULTS = Path(__file__).parent / "study" / "results"

STATISTICS = ("hypothesis", "reference", *(f"{what}{n}" for what in ("match", "total") for n in range(1, 5)))
"""What BLEU is made of: lengths, n-grams that the reference has, all n-grams."""

System = tuple[Callable[[], Any], Any] | dict[str, Any]
"""What makes a drafter, and an acceptance rule; or options of ``generate()``."""


@dataclass
class Decoded:
    """One system on all texts.

    rows: new tokens of each text.  tokens, calls: ``[texts]``, what the calls after the prefill committed, and their
    number.  verified: drafted tokens in all.  seconds: of each text; a batch's are shared equally.
    """

    rows: list[list[int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    verified: int = 0
    seconds: list[float] = field(default_factory=list)


def decode(
    model: Model,
    sources: Sequence[Sequence[int]],
    system: System,
    max_new: int,
    rows: int = 50,
    clock: Callable[[], float] = time.process_time,
) -> Decoded:
    """Write what follows every source; an encoder-decoder's, whose decoder begins with one token."""
    base = TransformersModel.of(model).model
    pad, ends = base.config.pad_token_id, frozenset([base.config.eos_token_id])
    decoded = Decoded()
    for part in (sources[first : first + rows] for first in range(0, len(sources), rows)):
        ids, mask = map(torch.from_numpy, padded(part, pad))
        started = clock()
        if isinstance(system, dict):
            stock = {"do_sample": False, "num_beams": 1, "max_new_tokens": max_new, **system}
            sequences = base.generate(ids, attention_mask=mask, **stock)
        else:
            drafter = system[0]()
            if hasattr(drafter, "read"):
                drafter.read(part)
            out = generate(model, ids, drafter, system[1], max_new, attention_mask=mask, trace=True)
            sequences, committed = out.sequences, np.zeros((len(part), 2), int)
            for step in out.trace or ():
                committed[step.row] += len(step.committed), 1
            decoded.tokens += committed[:, 0].tolist()
            decoded.calls += committed[:, 1].tolist()
            decoded.verified += out.verified_tokens
        decoded.seconds += [(clock() - started) / len(part)] * len(part)
        decoded.rows += [until_end(row, ends) for row in sequences[:, 1:].tolist()]
    return decoded


def bleu_statistics(texts: Sequence[str], references: Sequence[str]) -> list[list[int]]:
    """`STATISTICS` of every text."""
    import sacrebleu

    return [[*map(int, each)] for each in sacrebleu.BLEU()._extract_corpus_statistics(texts, [references])]


def bleu_of(statistics: np.ndarray) -> np.ndarray:
    """``[..., 10]`` sums of `STATISTICS` -> ``[...]`` BLEU."""
    import sacrebleu

    sums = statistics.reshape(-1, len(STATISTICS)).tolist()
    scores = [sacrebleu.BLEU()._compute_score_from_stats(each).score for each in sums]
    return np.array(scores).reshape(statistics.shape[:-1])


def bleu_interval(statistics: np.ndarray) -> Interval:
    """BLEU of texts by their ``[texts, 10]`` `STATISTICS`."""
    return interval(lambda drawn: bleu_of(statistics[drawn].sum(axis=-2)), len(statistics))


COUNTED = ("tokens", "calls", *STATISTICS[:6])
"""Columns of `counts_row`: n-grams of a text follow from its length, and so are left out."""


def counts_row(decoded: Decoded, texts: Sequence[str], references: Sequence[str]) -> dict[str, str]:
    """What a system commits in how many calls, and what BLEU is made of: a cell has the numbers of all texts."""
    numbers = decoded.tokens, decoded.calls, *zip(*bleu_statistics(texts, references), strict=True)
    return {name: " ".join(map(str, each)) for name, each in zip(COUNTED, numbers, strict=False)}


def accepted_size(tokens: np.ndarray, calls: np.ndarray) -> Interval:
    """Mean accepted block size (Stern 2018, section 7), pooled over all texts; 1 where no calls were counted."""
    return pooled(tokens, calls) if calls.any() else (1.0, 1.0, 1.0)


def measures_of(row: Mapping[str, str]) -> dict[str, float]:
    """Mean accepted block size and BLEU of a `counts_row`, with intervals over texts."""
    tokens, calls, *statistics = (np.array(row[name].split(), int) for name in COUNTED)
    totals = [np.maximum(statistics[0] - shorter, 0) for shorter in range(4)]
    sums = np.stack([*statistics, *totals], axis=-1)
    return with_ends("accepted", accepted_size(tokens, calls)) | with_ends("BLEU", bleu_interval(sums))


def vanilla(loaded: Loaded, block: int) -> Callable[[], Drafter]:
    """Makes drafts of the best token of each of the first heads: blocks of ``block`` tokens, the model's own the
    first."""
    return partial(loaded.drafter, "vanilla", k=1, slots=block - 1)


@dataclass(frozen=True)
class Decodes:
    """Decodes of the same sources, each in a JSON file of the folder; what is missing is decoded first."""

    folder: Path
    sources: Sequence[Sequence[int]]
    max_new: int

    def __call__(
        self, name: str, model: Model, drafter: Callable[[], Any], rule: Any, wanted: list[list[int]] | None = None
    ) -> Decoded:
        """ValueError where exact acceptance writes other texts than those ``wanted``."""
        path = self.folder / f"{slug(name)}.json"
        decoded = Decoded(**stored(path, lambda: vars(decode(model, self.sources, (drafter, rule), self.max_new))))
        if wanted is not None and isinstance(rule, Exact) and decoded.rows != wanted:
            raise ValueError(f"{name}: expected generate()'s texts, got others")
        return decoded


def in_turns(
    systems: Mapping[str, tuple[Model, System]],
    sources: Sequence[Sequence[int]],
    max_new: int,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[Decoded]]:
    """Every source by itself, systems in turns; the first source warms up.

    systems: model and system by name.
    """
    decodes: dict[str, list[Decoded]] = {name: [] for name in systems}
    for source in [*sources[:1], *sources]:
        for name, (model, system) in systems.items():
            decodes[name].append(decode(model, [source], system, max_new, clock=clock))
    return {name: runs[1:] for name, runs in decodes.items()}


def speed_rows(
    path: Path, systems: Mapping[str, tuple[Model, System]], sources: Sequence[Sequence[int]], max_new: int
) -> list[dict[str, Any]]:
    """CPU time a token of every system against the first's, and mean accepted block sizes, for a CSV file.

    path: the JSON file of every text's seconds a token, tokens and calls, measured `in_turns` if it is missing.
    """

    def measured() -> dict[str, list[tuple[float, ...]]]:
        return {
            name: [(each.seconds[0] / len(each.rows[0]), each.tokens[0], each.calls[0]) for each in runs]
            for name, runs in in_turns(systems, sources, max_new).items()
        }

    taken = {name: np.array(rows).T for name, rows in stored(path, measured).items()}
    greedy, rows = 1e3 * next(iter(taken.values()))[0], []
    for name, (seconds, tokens, calls) in taken.items():
        accepted, milliseconds = float(tokens.sum() / max(1, calls.sum())), 1e3 * seconds
        row = {"system": name, "accepted": accepted, "ms a token": float(milliseconds.mean())}
        rows.append(row | with_ends("speedup", pooled(greedy, milliseconds)))
    return rows


def speed_table(rows: Sequence[Mapping[str, str]]) -> None:
    """`speed_rows` on standard output."""
    head = ("system", "mean accepted block size", "ms a token", "over greedy")
    cells = [[row["system"], float(row["accepted"]), float(row["ms a token"]), spread(row, "speedup")] for row in rows]
    table("", head, cells)


def save_figure(path: Path, figure: Figure) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(png(figure))


def style_of(number: int) -> dict[str, Any]:
    """Colour and marker of a series."""
    return {"color": SERIES[number].light, "marker": MARKERS[number]}


def draw_band(
    axes: Any, at: Sequence[float], values: Iterable[Interval], label: str, number: int, **style: Any
) -> None:
    """Values by ``at``, their intervals as a band."""
    middle, low, high = np.array([*values]).T
    axes.plot(at, middle, label=label, **style_of(number), **style)
    axes.fill_between(at, low, high, color=SERIES[number].light, alpha=0.15, linewidth=0)


@torch.no_grad()
def fewer_heads(heads: Any, num_heads: int) -> Any:
    """The first of feed-forward or conditioned heads, without transitions, as new ones; head 1 is the base model's."""
    kept = type(heads)(**heads.settings() | {"num_heads": num_heads})
    kept.shortlist = heads.shortlist
    for weights, others in ((kept.up, heads.up), (kept.down, heads.down)):
        weights.copy_(others[: num_heads - 1])
    return kept


def most(efficiencies: Mapping[float, float]) -> float:
    """The best weight; among equals the one nearest to 1."""
    return max(efficiencies, key=lambda alpha: (efficiencies[alpha], -abs(math.log(alpha))))


def widened(efficiencies: Mapping[float, float]) -> tuple[float, ...]:
    """The weights tried, and one more beyond the best where that is the least or the largest."""
    chosen, least, largest = most(efficiencies), min(efficiencies), max(efficiencies)
    if chosen == least > 1 / 64:
        return (*efficiencies, least / 2)
    return (*efficiencies, largest * 2) if chosen == largest < 64 else tuple(efficiencies)
