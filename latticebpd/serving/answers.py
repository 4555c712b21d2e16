"""The response to a request: one JSON object, or server-sent events while its text grows."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from latticebpd.serving.answer_log_probs import LogProbFormats, LogProbs
from latticebpd.serving.scheduler import ERROR, LENGTH, STOP, TIME, Counts, Job, Progress, Scheduler
from latticebpd.serving.schema import ChatRequest, GenerationRequest, RequestError
from latticebpd.serving.tools import AnswerReader, ToolFormat, message_of

TOOL_CALLS = "tool_calls"
"""The ``finish_reason`` of an answer that calls tools."""
FAILED = "the server failed; its log says how"


class AnswerResponse(Response):
    """A request's answers, as one object or chunk by chunk; their rows are freed when the client goes away."""

    def __init__(
        self,
        scheduler: Scheduler,
        asked: GenerationRequest,
        jobs: Sequence[Job],
        events: asyncio.Queue[tuple[int, Progress]],
        form: ToolFormat | None,
        formats: LogProbFormats,
        **head: Any,
    ) -> None:
        """events: from the scheduler, each with its answer's index.  form: of calls, in chats with tools.  head: what
        every object has, such as the model's name."""
        super().__init__(status_code=499)  # until there is a response: the client went away
        self.scheduler, self.asked, self.jobs, self.events, self.formats = scheduler, asked, jobs, events, formats
        self.readers = [AnswerReader(form) for _ in jobs]
        self.counts = [Counts() for _ in jobs]
        self.is_chat = isinstance(asked, ChatRequest)
        self.shows_usage = asked.stream_options is not None and bool(asked.stream_options.continuous_usage_stats)
        self.head = {**self._own_head(), **head}

    def _own_head(self) -> dict[str, Any]:
        kind = "chat.completion" if self.is_chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self.is_chat and self.asked.stream else kind,
            "created": int(time.time()),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, receive, group.cancel_scope)
                response = await self._response(await self.events.get())
                self.status_code = response.status_code
                if isinstance(response, StreamingResponse):
                    await response.stream_response(send)
                else:
                    await response(scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            self.scheduler.cancel(*self.jobs)
            self.scheduler.metrics.responses.labels(scope["route"].path, self.status_code).inc()

    @staticmethod
    async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
        """Stop the answer when the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _news(self, first: tuple[int, Progress]) -> AsyncIterator[tuple[int, Progress]]:
        """What passes add to answers, each with its index, until all have ended."""
        news, left = first, len(self.jobs)
        while True:
            index, progress = news
            self.counts[index] = progress.counts
            yield news
            left -= progress.reason is not None
            if not left:
                return
            news = await self.events.get()

    def _refused(self, progress: Progress) -> Response | None:
        """In place of an answer that failed or ended before it began."""
        if progress.reason == ERROR:
            return refusal(progress.failure or RequestError(500, FAILED))
        if progress.reason == TIME and not progress.counts.tokens:
            waited = f"no token within {self.scheduler.limits.seconds:g} seconds; try again later"
            return refusal(RequestError(503, f"expected an answer in time, got {waited}", "overloaded"))
        return None

    async def _response(self, first: tuple[int, Progress]) -> Response:
        """The answers, or a refusal where one of them ended before it began."""
        if (refused := self._refused(first[1])) is not None:
            return refused
        if self.asked.stream:
            headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
            return StreamingResponse(self._chunks(first), media_type="text/event-stream", headers=headers)
        parts: list[list[Progress]] = [[] for _ in self.jobs]
        async for index, progress in self._news(first):
            if (refused := self._refused(progress)) is not None:
                return refused
            parts[index].append(progress)
        return JSONResponse(self.whole(parts))

    def whole(self, parts: Sequence[Sequence[Progress]]) -> dict[str, Any]:
        """The answers that have ended.  parts: of each, all of them."""
        choices = [self._ended(index, own) for index, own in enumerate(parts)]
        return {**self.head, "choices": choices, "usage": self.usage}

    def _ended(self, index: int, parts: Sequence[Progress]) -> dict[str, Any]:
        text, log_probs = "".join(part.text for part in parts), [each for part in parts for each in part.log_probs]
        content: dict[str, Any] = {"text": text}
        if self.is_chat:
            content = {"message": message_of(self.readers[index].read(text, ended=True))}
        return self._choice(index, content, log_probs, parts[-1].reason)

    async def _chunks(self, first: tuple[int, Progress]) -> AsyncIterator[str]:
        """The answers as server-sent events."""
        for index in range(len(self.jobs)) if self.is_chat else ():
            yield self._chunk(index, {"delta": {"role": "assistant", "content": ""}})
        async for index, progress in self._news(first):
            nothing: dict[str, Any] = {"delta": {}} if self.is_chat else {"text": ""}
            contents: list[dict[str, Any]] = [{"text": progress.text}] if progress.text else []
            if self.is_chat:
                changes = self.readers[index].read(progress.text, progress.reason is not None)
                contents = [{"delta": change} for change in changes]
            if progress.log_probs and not contents:
                contents = [nothing]
            for number, content in enumerate(contents):
                yield self._chunk(index, content, () if number else progress.log_probs)
            if progress.reason == ERROR:
                yield event((progress.failure or RequestError(500, FAILED)).body)
                return
            if progress.reason is not None:
                yield self._chunk(index, nothing, reason=progress.reason)
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            yield event({**self.head, "choices": [], "usage": self.usage})
        yield "data: [DONE]\n\n"

    def _chunk(self, index: int, content: dict[str, Any], log_probs: LogProbs = (), reason: str | None = None) -> str:
        usage = {"usage": self.usage} if self.shows_usage else {}
        return event({**self.head, "choices": [self._choice(index, content, log_probs, reason)], **usage})

    def _choice(self, index: int, content: dict[str, Any], log_probs: LogProbs, reason: str | None) -> dict[str, Any]:
        """An answer or a chunk of it.  content: its text, message or change.  reason: how it ended, if it did."""
        finish = None if reason is None else STOP if reason == STOP else LENGTH
        reader = self.readers[index]
        if finish == STOP and self.is_chat and reader.calls and reader.complete:
            finish = TOOL_CALLS
        written = None
        if self.asked.log_probs is not None and (log_probs or not self.asked.stream):
            written = self.formats.of_chat(log_probs) if self.is_chat else self.formats.of_completion(log_probs)
        return {"index": index, **content, "logprobs": written, "finish_reason": finish}

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, and how many of them drafts saved: OpenAI's counts, and calls of the model, prefill aside."""
        total, prompt_tokens = sum(self.counts, Counts()), self.jobs[0].prompt_tokens
        rejected = total.drafted - total.accepted
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": total.tokens,
            "total_tokens": prompt_tokens + total.tokens,
            "prompt_tokens_details": {"cached_tokens": self.jobs[0].cached},
            "completion_tokens_details": {
                "accepted_prediction_tokens": total.accepted, "rejected_prediction_tokens": rejected,
            },
            "calls": total.calls,
            "tokens_per_call": (total.tokens - total.prefill) / total.calls if total.calls else None,
        }  # fmt: skip


def event(record: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(record, ensure_ascii=False)}\n\n"


def refusal(error: RequestError) -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(error.status)
    return JSONResponse(error.body, error.status, headers)
