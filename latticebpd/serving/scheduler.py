"""One thread owns the model: requests join its batch between passes, and leave it when they end.

Prompts are read in blocks of about 0.2 seconds, one between two passes. A block belongs to the prompt with the fewest
unread tokens, so that a long prompt does not hold up a short one; every fourth belongs to the request that came first,
so that no stream of short prompts holds up a long one for ever. What another text begins with is not read again (see
`prefix_store`). On the CPU engine a token's results do not depend on blocks or other rows, so that every text is that
of a decode of its own. PyTorch's verifiers cannot take in rows: there one request is decoded after another.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

import numpy as np
import torch

from latticebpd.decoding.loop import Row, RowBatch, Step
from latticebpd.decoding.session import PendingTokens
from latticebpd.drafters.copies.text_history import TextHistory
from latticebpd.serving.answer_log_probs import LogProbs
from latticebpd.serving.answer_text import AnswerText
from latticebpd.serving.limits import Limits
from latticebpd.serving.metrics import ServerMetrics
from latticebpd.serving.prefix_store import PrefixStore, ReadText
from latticebpd.serving.schema import RequestError
from latticebpd.serving.structured import GuardedAutomaton
from latticebpd.verification.engine_verifier import PREFILL_CHUNK, EngineVerifier
from latticebpd.verification.verifier import Verifier

log = logging.getLogger("uvicorn.error")

STOP, LENGTH, TIME, CANCELLED, ERROR = "stop", "length", "time", "cancelled", "error"
"""How a request ends: its text's end, its length limit, its time limit, its client or an error of the server."""
BLOCK_SECONDS = 0.2
"""Time that a block of a prompt should take, since whatever arrives meanwhile waits for its end."""
MIN_BLOCK = 8
"""Tokens of the smallest block; fewer would cost more a token."""
FIRST_COME = 4
"""Every so many blocks, one belongs to the request that came first."""


@dataclass(frozen=True)
class Counts:
    """What an answer has cost so far.

    tokens: that it has.  prefill: of them, those that a prefill wrote, 0 or 1.
    calls, drafted, accepted: passes that had its row, prefill aside; drafted tokens in them, and accepted ones.
    """

    tokens: int = 0
    prefill: int = 0
    calls: int = 0
    drafted: int = 0
    accepted: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True)
class Progress:
    """What a pass added to an answer.

    text: new characters, perhaps none.
    reason: how the request ended; None: it goes on.
    failure: what to tell the client of an error that its request caused.
    counts: of the answer up to here.
    log_probs: of the new tokens; none unless they were asked for.
    """

    text: str
    reason: str | None = None
    failure: RequestError | None = None
    counts: Counts = field(default_factory=Counts)
    log_probs: LogProbs = ()


Sender = Callable[[Progress], None]
CLOSING = "the server is closing"


@dataclass(eq=False)
class Job:
    """A request, or one of its answers.

    batch: its only row, of which nothing has been read.
    send: called by the scheduler's thread.
    deadline, arrived: on the monotonic clock, in seconds.
    shares: whether tokens of its prompt need not be read where another text has them.
    begun, first, ended: when its prompt was first read, its first token was written, and its text ended; None before.
    cached: tokens of its prompt that were not read again.
    counts: what it has cost so far.
    """

    batch: RowBatch
    answer: AnswerText
    send: Sender
    deadline: float
    arrived: float
    shares: bool = True
    begun: float | None = None
    first: float | None = None
    ended: float | None = None
    cached: int = 0
    cancelled: bool = False
    counts: Counts = field(default_factory=Counts)
    row: Row = field(init=False)

    def __post_init__(self) -> None:
        (self.row,) = self.batch.rows
        self.prompt = np.array(self.row.text.tokens, np.int64)

    @property
    def prompt_tokens(self) -> int:
        return self.row.text.prompt_length

    @property
    def unread_tokens(self) -> int:
        """Of the prompt, as long as it is being read."""
        return len(self.batch.unread.tokens[0])

    @property
    def new_tokens(self) -> int:
        return len(self.row.text.tokens) - self.row.text.prompt_length

    def take_log_probs(self) -> LogProbs:
        """Those of the tokens since the last call."""
        new, self.row.log_probs = self.row.log_probs, []
        return list(zip(new, self.answer.offsets[self.new_tokens - len(new) :], strict=True)) if new else ()


class Scheduler:
    """The thread and its queue.

    block: tokens of prompts that are read between two passes; as many as take `BLOCK_SECONDS`, up to ``max_block``.
    history: where texts go when they end, but for what an earlier one begins with; the drafter drafts from it.
    """

    def __init__(self, limits: Limits, metrics: ServerMetrics, history: TextHistory | None = None) -> None:
        self.limits, self.metrics, self.history = limits, metrics, history
        self.block, self.max_block = MIN_BLOCK, PREFILL_CHUNK
        self.prefixes = PrefixStore(limits.prefix_memory)
        metrics.prefix_memory.set_function(lambda: self.prefixes.memory)
        self._changed = threading.Condition()
        self._preparing = 0  # places of requests that are not submitted yet
        self._waiting: list[Job] = []
        self._reading: list[Job] = []  # prompts that are partly read
        self._live: list[Job] = []
        self._blocks = 0
        self._batch: RowBatch | None = None
        self._closed = False
        self._numbers = itertools.count()  # of rows
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self._closed

    def check_room(self, answers: int = 1) -> None:
        """RequestError where a request would be refused now: the server closes, or the queue is full."""
        if not self.alive:
            raise RequestError(503, CLOSING, "closing")
        taken = self._preparing + len(self._waiting) + len(self._running)
        if taken + answers > self.limits.rows + self.limits.queue:
            raise RequestError(429, "expected room in the queue, got none; try again later", "queue_full")

    @contextmanager
    def place(self, answers: int = 1) -> Iterator[None]:
        """A place in the queue for each answer that is being prepared; RequestError where there is none."""
        with self._changed:
            self.check_room(answers)
            self._preparing += answers
        try:
            yield
        finally:
            with self._changed:
                self._preparing -= answers

    def submit(self, *jobs: Job) -> None:
        """Put a request's answers, which have a `place`, into the queue; RequestError if the server closes."""
        with self._changed:
            if not self.alive:
                raise RequestError(503, CLOSING, "closing")
            self._waiting.extend(jobs)
            self._changed.notify()

    def cancel(self, *jobs: Job) -> None:
        """End a request's answers at the next pass, without another word to its client."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and end those in flight after so many seconds."""
        with self._changed:
            self._closed = True
            for job in (*self._waiting, *self._running):
                job.deadline = min(job.deadline, time.monotonic() + seconds)
            self._changed.notify()

    def close(self) -> None:
        """End all requests now, and the thread with them."""
        self.drain(0)
        self._thread.join()

    @property
    def _running(self) -> list[Job]:
        return [*self._live, *self._reading]

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._turn():
                    self.metrics.waiting.set(len(self._waiting))
                    self.metrics.running.set(len(self._running))
        except Exception:
            log.exception("the scheduler's thread ends")
        finally:
            with self._changed:
                self._closed = True
                left = [*self._waiting, *self._running]
                self._waiting.clear()
            for job in left:
                self._end(job, ERROR)

    def _turn(self) -> bool:
        """Whatever is due between two passes, and the next one; False once the server is closed and nothing is left."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            if not (self._waiting or self._running):
                return False
            ended = self._remove_ended()
        for job, reason in ended:
            self._end(job, reason)
        self._read_prompts()
        self._pass()
        return True

    def _remove_ended(self) -> list[tuple[Job, str]]:
        """Take out cancelled requests and those whose time is over, and say why."""
        now = time.monotonic()
        over = {
            job: CANCELLED if job.cancelled else TIME
            for job in (*self._waiting, *self._running)
            if job.cancelled or job.deadline <= now
        }
        for job in over:
            if job in self._reading:
                job.batch.keep([])
        self._waiting, self._reading, self._live = (
            [job for job in jobs if job not in over] for jobs in (self._waiting, self._reading, self._live)
        )
        gone = {job.row for job in over}
        if self._batch is not None:
            self._batch.keep([i for i, row in enumerate(self._batch.rows) if row not in gone])
        return list(over.items())

    def _read_prompts(self) -> None:
        """Read up to a block of tokens of the prompts that are next, and let the rows that were read join."""
        begin, left = time.monotonic(), self.block
        while left > 0 and (job := self._next_to_read(left == self.block)) is not None:
            try:
                if job.begun is None:
                    self._begin(job)
                before = job.unread_tokens
                done = not job.batch.unread.read_ahead(left)
            except Exception:
                log.exception("a prompt could not be read")
                self._reading.remove(job)
                self._end(job, ERROR)
                continue
            left -= before - job.unread_tokens + done  # the pass reads the last token
            if not done:
                continue
            self._reading.remove(job)
            if self._batch is None or not self._batch.rows:
                self._batch = job.batch
            else:
                self._batch.join(job.batch)
            self._live = [*self._live, job]
        if left <= 0:
            self.adapt_block(self.block - left, time.monotonic() - begin)

    def _begin(self, job: Job) -> None:
        """Give a request its row's number and, of its prompt, what other texts begin with."""
        job.begun, job.row.index, job.batch.leaves = time.monotonic(), next(self._numbers), self._leaves
        if job.shares and (found := self.prefixes.begin(job.prompt, self._read_texts())) is not None:
            verifier, job.cached = found
            job.batch.unread = PendingTokens(verifier, job.batch.unread.tokens, job.cached)

    def _leaves(self, row: Row, verifier: Verifier, number: int) -> None:
        """Keep what a row that leaves has read."""
        if isinstance(verifier, EngineVerifier):
            self.prefixes.add(row.text.tokens[: -row.text.unread], verifier, number)

    def _read_texts(self) -> list[ReadText]:
        """What rows have read of their prompts."""
        rows = [(job, job.batch.unread.verifier, 0) for job in self._reading]
        if self._batch is not None:
            rows += [(job, self._batch.unread.verifier, i) for i, job in enumerate(self._live)]
        return [
            ReadText(job.prompt[: verifier.caches[i].length], verifier, i)
            for job, verifier, i in rows
            if isinstance(verifier, EngineVerifier)
        ]

    def adapt_block(self, tokens: int, seconds: float) -> None:
        """Choose the next block's tokens, after a block of so many that took so long."""
        fitting = int(tokens * BLOCK_SECONDS / max(seconds, 1e-6))
        self.block = max(MIN_BLOCK, min(self.max_block, fitting))

    def _next_to_read(self, opens_block: bool) -> Job | None:
        """The request whose prompt is read next; None: none waits, or there is no row for it."""
        with self._changed:
            joins = all(isinstance(job.batch.unread.verifier, EngineVerifier) for job in self._waiting)
            has_room = len(self._running) < (self.limits.rows if joins else 1)
            candidates = [*self._reading, *(self._waiting if has_room else [])]
            if not candidates:
                return None
            self._blocks += opens_block
            if opens_block and self._blocks % FIRST_COME == 0:
                job = min(candidates, key=lambda job: job.arrived)
            else:
                job = min(candidates, key=self._to_read)
            if job in self._waiting:
                self._waiting.remove(job)
                self._reading.append(job)
            return job

    def _to_read(self, job: Job) -> int:
        """Tokens of a prompt that have to be read."""
        waits = job.begun is None and job.shares
        return job.unread_tokens - (self.prefixes.shared(job.prompt, self._read_texts()) if waits else 0)

    def _pass(self) -> None:
        """One pass over the live rows, and its news to their clients."""
        batch, jobs = self._batch, self._live
        if batch is None or not batch.rows:
            return
        passes = batch.num_passes
        try:
            steps = {step.row: step for step in batch.step()}
        except Exception:
            log.exception("a pass failed; its requests end")
            self._batch, self._live = None, []
            for job in jobs:
                self._end(job, ERROR)
            return
        self.metrics.passes.inc(batch.num_passes - passes)
        for job in jobs:
            self._count(job, steps[job.row.index])
            text = job.row.text
            job.answer.add_up_to(text.new_tokens)
            if not text.finished:
                new, log_probs = job.answer.take(), job.take_log_probs()
                if new or log_probs:
                    job.send(Progress(new, counts=job.counts, log_probs=log_probs))
                continue
            failed = isinstance(text.automaton, GuardedAutomaton) and text.automaton.failure is not None
            self._end(job, ERROR if failed else LENGTH if text.cut else STOP)
        self._live = [job for job in jobs if not job.row.text.finished]

    def _count(self, job: Job, step: Step) -> None:
        if not job.counts.tokens:
            job.first = time.monotonic()
            self.metrics.first.observe(job.first - job.arrived)
            self.metrics.prompt_tokens.inc(job.prompt_tokens)
            self.metrics.cached_tokens.inc(job.cached)
        accepted = min(len(step.accepted), len(step.committed))
        job.counts += Counts(len(step.committed), step.prefill, not step.prefill, len(step.tree), accepted)
        self.metrics.calls.inc(not step.prefill)
        self.metrics.drafted.inc(len(step.tree))
        self.metrics.accepted.inc(accepted)
        self.metrics.new_tokens.inc(len(step.committed))

    def _end(self, job: Job, reason: str) -> None:
        """Send the rest of an answer."""
        if self.history is not None and job.begun is not None:
            self.history.add(job.row.text.tokens[job.cached :])
        job.ended = time.monotonic()
        self.metrics.finished.labels(reason).inc()
        self.metrics.seconds.observe(job.ended - job.arrived)
        automaton = job.row.text.automaton
        failure = automaton.failure if isinstance(automaton, GuardedAutomaton) else None
        job.send(Progress(job.answer.take_rest(), reason, failure, job.counts, job.take_log_probs()))
