"""Where the time of a decode on the CPU engine goes, measured from outside: in the model's passes, in drafting, in the
constraint, and in what is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.common import columns, interval, with_interval
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.decoding.loop import RowBatch
from latticebpd.drafters.drafter import Drafter
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.verifier import Verified

PASSES, DRAFTING, MASKS, REST = "passes", "drafting", "masks", "rest"
HEAD = ("part", "ms a call", "share (95 %)")


@dataclass
class Clock:
    """Seconds by part; a part that begins within another one stops its clock."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((PASSES, DRAFTING, MASKS, REST), 0.0))
    _running: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._change(lambda: self._running.append(name))
        try:
            yield
        finally:
            self._change(self._running.pop)

    def _change(self, change: Callable[[], Any]) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        change()
        self._since = now

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(call)
        def measured(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return call(*args, **kwargs)

        return measured


@contextmanager
def measuring(clock: Clock) -> Iterator[None]:
    """What runs in this block is *passes* (reading, logits, caches), *drafting* (search, copies, drafts made legal) or,
    but for what `TimedConstraint` and `TimedDrafter` take, *rest*."""
    verified = EngineVerifier._verified

    def with_times(self: EngineVerifier, *args: Any) -> Verified:
        out = verified(self, *args)
        names = ("logits_of", "best_of", "some_logits_of")
        return replace(out, **{name: clock.timed(PASSES, getattr(out, name)) for name in names})

    with (
        patch.object(EngineVerifier, "_verified", with_times),
        patch.object(EngineVerifier, "_read", clock.timed(PASSES, EngineVerifier._read)),
        patch.object(EngineVerifier, "_keep", clock.timed(PASSES, EngineVerifier._keep)),
        patch.object(RowBatch, "_draft", clock.timed(DRAFTING, RowBatch._draft)),
        clock.part(REST),
    ):
        yield


@dataclass(frozen=True)
class TimedConstraint:
    """A constraint all of whose work is *masks*, wherever it is asked for."""

    constraint: Constraint
    clock: Clock

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> TokenAutomaton:
        return TimedAutomaton(self.clock.timed(MASKS, self.constraint.automaton)(tokens, eos_ids), self.clock)


class TimedAutomaton:
    """See `TokenAutomaton`."""

    def __init__(self, inner: TokenAutomaton, clock: Clock) -> None:
        self.start, self.vocab_size, self.weighted = inner.start, inner.vocab_size, inner.weighted
        for name in ("legal", "successors", "costs", "forced", "release"):
            setattr(self, name, clock.timed(MASKS, getattr(inner, name)))

    legal: Callable[[int], np.ndarray]
    successors: Callable[[int, np.ndarray], np.ndarray]
    costs: Callable[[int, np.ndarray], np.ndarray]
    forced: Callable[[int], np.ndarray]
    release: Callable[[int], None]


class TimedDrafter:
    """A drafter that learns of committed tokens in the time of *drafting*."""

    def __init__(self, drafter: Drafter, clock: Clock) -> None:
        self._drafter, self.observe = drafter, clock.timed(DRAFTING, drafter.observe)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each part, and one for all but passes and rest; with intervals over questions."""
    parts = columns(rows, PASSES, DRAFTING, MASKS, REST)
    calls = columns(rows, "calls")[0].sum()
    shown = {
        **dict(zip((PASSES, DRAFTING, MASKS, REST), parts, strict=True)),
        f"{DRAFTING} and {MASKS}": parts[1:3].sum(0),
    }

    def line(name: str, own: np.ndarray) -> list[str]:
        def share(drawn: np.ndarray) -> Any:
            return 100 * own[drawn].sum(axis=-1) / parts.sum(axis=0)[drawn].sum(axis=-1)

        return [name, f"{1000 * own.sum() / calls:.2f}", f"{with_interval(*interval(share, len(rows)), 1)} %"]

    return [line(name, own) for name, own in shown.items()]
