"""The response to a request: one JSON object, or server-sent events while its text grows."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from latticebpd.serving.scheduler import ERROR, LENGTH, STOP, TIME, Job, Progress, Scheduler
from latticebpd.serving.schema import ChatRequest, GenerationRequest, RequestError
from latticebpd.serving.tools import AnswerReader, message_of

TOOL_CALLS = "tool_calls"
"""The ``finish_reason`` of an answer that calls tools."""
FAILED = "the server failed; its log says how"


class AnswerResponse(Response):
    """A request's answer, as one object or chunk by chunk; its row is freed when the client goes away."""

    def __init__(
        self,
        scheduler: Scheduler,
        asked: GenerationRequest,
        job: Job,
        events: asyncio.Queue[Progress],
        reader: AnswerReader,
        **head: Any,
    ) -> None:
        """events: from the scheduler.  reader: of chats.  head: what every object has, such as the model's name."""
        super().__init__(status_code=499)  # until there is a response: the client went away
        self.scheduler, self.asked, self.job, self.events, self.reader = scheduler, asked, job, events, reader
        self.is_chat = isinstance(asked, ChatRequest)
        kind = "chat.completion" if self.is_chat else "text_completion"
        self.head = {
            "id": f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}",
            "object": f"{kind}.chunk" if self.is_chat and asked.stream else kind,
            "created": int(time.time()),
            **head,
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
            self.scheduler.cancel(self.job)
            self.scheduler.metrics.responses.labels(scope["route"].path, self.status_code).inc()

    @staticmethod
    async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
        """Stop the answer when the client goes away."""
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _response(self, first: Progress) -> Response:
        """The answer, or a refusal where the request ended before it began."""
        if first.reason == TIME and not self.job.new_tokens:
            waited = f"no token within {self.scheduler.limits.seconds:g} seconds; try again later"
            return refusal(RequestError(503, f"expected an answer in time, got {waited}", "overloaded"))
        if self.asked.stream and first.reason != ERROR:
            headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}
            return StreamingResponse(self._chunks(first), media_type="text/event-stream", headers=headers)
        parts, last = [first.text], first
        while last.reason is None:
            last = await self.events.get()
            parts.append(last.text)
        if last.reason == ERROR:
            return refusal(last.failure or RequestError(500, FAILED))
        return JSONResponse(self.whole("".join(parts), last.reason))

    def whole(self, text: str, reason: str) -> dict[str, Any]:
        """An answer that has ended."""
        message = message_of(self.reader.read(text, ended=True))
        return {**self._object(text, message, reason), "usage": self.usage}

    async def _chunks(self, progress: Progress) -> AsyncIterator[str]:
        """The answer as server-sent events."""
        if self.is_chat:
            yield event(self._object("", {"role": "assistant", "content": ""}))
        while True:
            if self.is_chat:
                for change in self.reader.read(progress.text, progress.reason is not None):
                    yield event(self._object("", change))
            elif progress.text:
                yield event(self._object(progress.text, {}))
            if progress.reason is not None:
                break
            progress = await self.events.get()
        if progress.reason == ERROR:
            yield event((progress.failure or RequestError(500, FAILED)).body)
            return
        yield event(self._object("", {}, progress.reason))
        if self.asked.stream_options is not None and self.asked.stream_options.include_usage:
            yield event({**self.head, "choices": [], "usage": self.usage})
        yield "data: [DONE]\n\n"

    def _object(self, text: str, message: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        """An answer or a chunk of it: of a completion the text, of a chat the message."""
        content = {"delta" if self.asked.stream else "message": message} if self.is_chat else {"text": text}
        finish = None if reason is None else STOP if reason == STOP else LENGTH
        if finish == STOP and self.is_chat and self.reader.calls and self.reader.complete:
            finish = TOOL_CALLS
        return {**self.head, "choices": [{"index": 0, **content, "logprobs": None, "finish_reason": finish}]}

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, and how many of them drafts saved: OpenAI's counts, and calls of the model, prefill aside."""
        job = self.job
        details = {"accepted_prediction_tokens": job.accepted, "rejected_prediction_tokens": job.drafted - job.accepted}
        return {
            "prompt_tokens": job.prompt_tokens,
            "completion_tokens": job.new_tokens,
            "total_tokens": job.prompt_tokens + job.new_tokens,
            "prompt_tokens_details": {"cached_tokens": job.cached},
            "completion_tokens_details": details,
            "calls": job.calls,
            "tokens_per_call": (job.new_tokens - job.prefill) / job.calls if job.calls else None,
        }


def event(record: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"data: {json.dumps(record, ensure_ascii=False)}\n\n"


def refusal(error: RequestError) -> Response:
    headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}.get(error.status)
    return JSONResponse(error.body, error.status, headers)
