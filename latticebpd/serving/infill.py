"""llama.cpp's ``/infill``, for editors: what is asked, where a text ends, and the answer."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar

from pydantic import Field

from latticebpd.serving.answer_text import AnswerText
from latticebpd.serving.answers import FAILED, AnswerResponse, event
from latticebpd.serving.scheduler import ERROR, STOP, Job, Progress
from latticebpd.serving.schema import GenerationRequest, Part, RequestError

_LINE = re.compile(r"\n([ \t]*)(?=[^ \t])")
"""A line's indentation, once more of it is known."""


class ExtraFile(Part):
    """A part of another file; ``time``: when the editor saw it."""

    without_effect = frozenset({"time"})
    text: str
    filename: str | None = None


class InfillRequest(GenerationRequest):
    """What is asked.

    prompt: what comes after ``input_prefix``, the line up to the cursor.
    n_indent: a later line with fewer blanks at its beginning ends the text.
    t_max_predict_ms: from the first token on, after which the next end of a line ends the text; no limit if 0 or less.
    response_fields: the answer's fields that are wanted, such as ``timings/prompt_ms``; by default all.
    """

    without_effect: ClassVar[frozenset[str]] = GenerationRequest.without_effect | {"n_cmpl", "t_max_prompt_ms"}
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {**GenerationRequest.neutral, "lora": ([],)}
    input_prefix: str
    input_suffix: str
    input_extra: list[ExtraFile] | None = None
    prompt: str | None = None
    n_indent: int | None = Field(None, ge=0)
    t_max_predict_ms: float | None = None
    response_fields: list[str] | None = None

    def parts(self, most: int) -> tuple[list[str], str, list[tuple[str, str]]]:
        """What comes before the text and after it, and other files' names and texts, of up to ``most`` characters each;
        the last files, where all are longer."""
        files = [(each.filename or "tmp", each.text) for each in self.input_extra or ()]
        while sum(len(name) + len(text) for name, text in files) > most:
            del files[0]
        return [self.input_prefix[-most:], (self.prompt or "")[-most:]], self.input_suffix[:most], files


class InfillText(AnswerText):
    """Ends at the limits of indentation and time as well.

    limited: whether it has ended at one of them.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], asked: InfillRequest) -> None:
        super().__init__(tokenizer, stops)
        self.indent, self.seconds = asked.n_indent or 0, (asked.t_max_predict_ms or 0) / 1e3
        self.limited = False
        self._begun: float | None = None

    @property
    def ends(self) -> bool:
        return super().ends or self.indent > 0 or self.seconds > 0

    def _append(self, characters: str) -> None:
        if self.stopped:
            return
        begin, self._begun = max(self.text.rfind("\n"), 0), self._begun or time.monotonic()
        super()._append(characters)
        lines = (line for line in _LINE.finditer(self.text, begin) if len(line[1]) < self.indent)
        if (line := next(lines, None)) is not None:
            self.text, self.stop, self.stopped, self.limited = self.text[: line.end()], "", True, True
        elif not self.stopped and "\n" in characters and 0 < self.seconds < time.monotonic() - self._begun:
            self.stopped = self.limited = True


class InfillResponse(AnswerResponse):
    """The answer in llama.cpp's form."""

    def whole(self, parts: Sequence[Sequence[Progress]]) -> dict[str, Any]:
        assert isinstance(self.asked, InfillRequest)
        (own,) = parts
        wanted, record = self.asked.response_fields, self._record("".join(part.text for part in own), own[-1].reason)
        return selected(record, wanted) if wanted else record

    async def _chunks(self, first: tuple[int, Progress]) -> AsyncIterator[str]:
        async for _, progress in self._news(first):
            if progress.reason == ERROR:
                yield event((progress.failure or RequestError(500, FAILED)).body)
                return
            if progress.text:
                yield event({"index": 0, "content": progress.text, "stop": False, **self._counts})
            if progress.reason is not None:
                yield event(self.whole([[Progress("", progress.reason)]]))

    @property
    def _counts(self) -> dict[str, int]:
        (job,) = self.jobs
        return {"tokens_predicted": self.counts[0].tokens, "tokens_evaluated": job.prompt_tokens}

    def _record(self, text: str, reason: str | None) -> dict[str, Any]:
        (job,), context = self.jobs, self.scheduler.limits.context
        answer = job.answer
        assert isinstance(answer, InfillText)
        limited = reason != STOP or answer.limited or not self.asked.most(1)
        ended = "word" if answer.stop else "limit" if limited else "eos"
        return {
            "index": 0, "content": text, "stop": True, "model": self.head["model"], **self._counts,
            "generation_settings": {"n_ctx": context}, "has_new_line": "\n" in answer.text, "stop_type": ended,
            "stopping_word": answer.stop, "truncated": job.prompt_tokens + job.new_tokens >= context,
            "tokens_cached": len(job.row.text.tokens) - job.row.text.unread, "timings": timings(job),
        }  # fmt: skip


def timings(job: Job) -> dict[str, Any]:
    """What a request cost: tokens and milliseconds of its prompt, as far as it was read, and of its text."""
    begun, first, ended = job.begun or job.arrived, job.first or 0.0, job.ended or 0.0
    counts: dict[str, Any] = {"cache_n": job.cached}
    parts = (("prompt", job.prompt_tokens - job.cached, first - begun), ("predicted", job.new_tokens, ended - first))
    for name, count, seconds in parts:
        milliseconds = 1e3 * seconds
        counts |= {
            f"{name}_n": count, f"{name}_ms": milliseconds, f"{name}_per_token_ms": milliseconds / max(count, 1),
            f"{name}_per_second": count / max(seconds, 1e-9),
        }  # fmt: skip
    return counts | {"draft_n": job.counts.drafted, "draft_n_accepted": job.counts.accepted}


def selected(record: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """The values at paths such as ``timings/prompt_ms``, by their paths; others are left out."""
    values: dict[str, Any] = {}
    for path in paths:
        value: Any = record
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        values |= {} if value is None else {path: value}
    return values
