"""Jacobi decoding against ``generate()``, greedy and with beams, in one run: time, iterations, operations.

Systems take turns at every batch, so that a drift of the machine's speed meets all alike.  A system's *iterations* are
the decoder's forward passes; speedups are ratios of sums over all texts, and per text for the distribution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.jacobi.operations import ModelShape
from latticebpd.jacobi.solution import Solution
from latticebpd.target.stock_model import BaseModel, Model

GREEDY = "greedy"
QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Decoded:
    """One batch's texts and their costs: new tokens, the decoder's passes and the operations of every row, where they
    are counted."""

    tokens: list[list[int]]
    passes: list[int]
    flops: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Batch:
    """Texts that are decoded together.

    ids, mask: ``[rows, n]``.
    start: the first one's number among all inputs.
    lengths: of each row's greedy text, if greedy decoding came first.
    """

    ids: Tensor
    mask: Tensor
    start: int
    lengths: list[int] | None = None


System: TypeAlias = Callable[[Batch], Decoded]


@dataclass
class Measured:
    """One system over all texts.

    seconds: wall-clock time of every text; a batch's time is shared out evenly.
    passes: forward passes of the decoder in which a text took part.
    """

    name: str
    tokens: list[list[int]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    passes: list[int] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)

    def time_speedup(self, baseline: Measured) -> float:
        return sum(baseline.seconds) / sum(self.seconds)

    def iteration_speedup(self, baseline: Measured) -> float:
        return sum(baseline.passes) / sum(self.passes)

    def distribution(self, baseline: Measured, what: str) -> dict[str, float]:
        """Quantiles over texts of the speedup in ``seconds`` or ``passes``."""
        each = np.array(getattr(baseline, what)) / np.array(getattr(self, what))
        return {
            f"{quantile:g}": float(value)
            for quantile, value in zip(QUANTILES, np.quantile(each, QUANTILES), strict=True)
        }

    def interval(self, baseline: Measured, what: str, level: float = 0.95, samples: int = 2000) -> tuple[float, float]:
        """Bootstrap interval of the speedup in ``seconds`` or ``passes``, a ratio of sums: texts drawn anew, systems
        paired."""
        theirs, mine = np.array(getattr(baseline, what), float), np.array(getattr(self, what), float)
        times = np.random.default_rng(0).multinomial(len(mine), np.full(len(mine), 1 / len(mine)), size=samples)
        low, high = np.quantile((times @ theirs) / (times @ mine), [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def differing(self, baseline: Measured) -> int:
        """How many texts are not the baseline's."""
        return sum(mine != theirs for mine, theirs in zip(self.tokens, baseline.tokens, strict=True))

    def flops_per_speed(self, baseline: Measured) -> float:
        """Operations over all texts, divided by the speedup in time: the cost of the paper's table 3."""
        return sum(self.flops) / self.time_speedup(baseline)


def stock(model: Model, max_new_tokens: int, num_beams: int = 1, **options: Any) -> System:
    """``transformers``' own ``generate()``; its passes are counted as they happen, operations only where it has no
    further options."""
    base = BaseModel.of(model)
    shape, ends = ModelShape.of(base.model), frozenset(base.eos_ids)
    fill = GenerationSettings(base).fill_id

    def decode(batch: Batch) -> Decoded:
        ids, mask = batch.ids, batch.mask
        with _passes(base) as passes:
            out = base.model.generate(
                ids.to(base.device),
                attention_mask=mask.to(base.device),
                do_sample=False,
                num_beams=num_beams,
                max_new_tokens=max_new_tokens,
                pad_token_id=fill,
                **options,
            )
        prompt = 1 if base.is_encoder_decoder else ids.shape[1]
        tokens = [_until_end(row, ends) for row in out[:, prompt:].tolist()]
        if options:
            return Decoded(tokens, [passes[0]] * len(ids))
        source = mask.sum(1).tolist() if base.is_encoder_decoder else [0] * len(ids)
        read = [1] * len(ids) if base.is_encoder_decoder else mask.sum(1).tolist()
        # A beam goes on until the batch's last; greedy decoding's rows end by themselves and are counted so.
        steps = [passes[0]] * len(ids) if num_beams > 1 else [len(row) for row in tokens]
        flops = []
        for n, p, m in zip(source, read, steps, strict=True):
            encoder = shape.flops(n, 0, 0, 0)
            flops.append(encoder + num_beams * (shape.greedy_flops(n, p, m) - encoder))
        return Decoded(tokens, steps, flops)

    return decode


def parallel(model: Model, algorithm: Callable[[Batch], Solution]) -> System:
    """A Jacobi algorithm of that model."""
    base = BaseModel.of(model)
    shape = ModelShape.of(base.model)

    def decode(batch: Batch) -> Decoded:
        found = algorithm(batch)
        own = batch.mask.sum(1).tolist()
        source, prompt = (own, [1] * len(own)) if base.is_encoder_decoder else ([0] * len(own), own)
        flops = [
            shape.flops(n, columns, pairs, columns - p + 1)
            for n, p, columns, pairs in zip(source, prompt, found.columns.tolist(), found.pairs.tolist(), strict=True)
        ]
        return Decoded([found.tokens(row) for row in range(len(own))], found.passes.tolist(), flops)

    return decode


def compare(
    systems: Mapping[str, System],
    inputs: Sequence[Sequence[int]],
    pad: int,
    pad_left: bool,
    batch_size: int = 1,
    warm_ups: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    on_batch: Callable[[], None] | None = None,
) -> dict[str, Measured]:
    """Decode all inputs with all systems.

    Args:
        systems: by name; where ``greedy`` is the first, the others hear its texts' lengths.
        inputs: token ids.
        pad: the token that fills a batch up; it is masked.
        pad_left: on which side: the left for a causal LM, the right for an encoder, whose positions count from the
            left.
        batch_size: texts decoded together; 1 is the paper's setting.
        warm_ups: first batches that are decoded once more beforehand, unmeasured.
        clock: tells seconds.
        on_batch: called after every batch.
    """
    if not inputs:
        raise ValueError("expected at least one text, got none")
    batches = [
        _batch(inputs[start : start + batch_size], start, pad, pad_left) for start in range(0, len(inputs), batch_size)
    ]
    found = {name: Measured(name) for name in systems}
    for number, batch in enumerate([*batches[:warm_ups], *batches]):
        for name, system in systems.items():
            started = clock()
            decoded = system(batch)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            seconds = clock() - started
            if name == GREEDY:
                batch = replace(batch, lengths=[len(row) for row in decoded.tokens])
            if number < min(warm_ups, len(batches)):
                continue
            measured = found[name]
            measured.tokens += decoded.tokens
            measured.seconds += [seconds / len(batch.ids)] * len(batch.ids)
            measured.passes += decoded.passes
            measured.flops += decoded.flops
        if on_batch is not None:
            on_batch()
    return found


@contextmanager
def _passes(base: BaseModel) -> Iterator[list[int]]:
    """Counts the decoder's forward passes."""
    count = [0]

    def one_more(*_: Any) -> None:
        count[0] += 1

    hook = base.decoder.register_forward_pre_hook(one_more)
    try:
        yield count
    finally:
        hook.remove()


def _until_end(row: list[int], ends: frozenset[int]) -> list[int]:
    """The tokens up to the first that ends the text; what follows is padding."""
    end = next((place for place, token in enumerate(row) if token in ends), len(row) - 1)
    return row[: end + 1]


def _batch(rows: Sequence[Sequence[int]], start: int, pad: int, pad_left: bool) -> Batch:
    width = max(map(len, rows))

    def filled(row: Sequence[int], fill: int) -> list[int]:
        padding = [fill] * (width - len(row))
        return [*padding, *row] if pad_left else [*row, *padding]

    ids, mask = [filled(row, pad) for row in rows], [filled([1] * len(row), 0) for row in rows]
    return Batch(torch.tensor(ids), torch.tensor(mask), start)
