"""OpenAI's ``/v1/responses``, as far as it is text: what is asked, and the answer as one object or as events."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from latticebpd.serving.answers import FAILED, AnswerResponse, event
from latticebpd.serving.scheduler import ERROR, STOP, Progress
from latticebpd.serving.schema import GenerationRequest, Part


class ContentPart(Part):
    """A part of a message that has several."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = dict.fromkeys(("annotations", "logprobs"), ([],))
    type: Literal["input_text", "output_text"]
    text: str


class InputMessage(Part):
    """One turn; ``id`` and ``status``, which answers have, say nothing more."""

    without_effect = frozenset({"id", "status"})
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[ContentPart]

    @property
    def turn(self) -> dict[str, Any]:
        """As chat templates take it."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ResponsesRequest(GenerationRequest):
    """``/v1/responses``.  instructions: a system prompt before the input."""

    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {
        **GenerationRequest.neutral,
        "text": ({}, {"format": {"type": "text"}}),
        "truncation": ("disabled",),
        "background": (False,),
        "include": ([],),
        "reasoning": ({},),
        **dict.fromkeys(("previous_response_id", "conversation", "top_logprobs"), ()),
    }
    input: str | list[InputMessage] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)

    @property
    def turns(self) -> list[dict[str, Any]]:
        """The conversation as chat templates take it."""
        before = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        if isinstance(self.input, str):
            return [*before, {"role": "user", "content": self.input}]
        return [*before, *(message.turn for message in self.input)]


class ResponsesResponse(AnswerResponse):
    """The answer in this form."""

    def _own_head(self) -> dict[str, Any]:
        return {"id": f"resp_{uuid.uuid4().hex}", "object": "response", "created_at": int(time.time())}

    def whole(self, parts: Sequence[Sequence[Progress]]) -> dict[str, Any]:
        (own,) = parts
        return self._object("".join(part.text for part in own), own[-1])

    async def _chunks(self, first: tuple[int, Progress]) -> AsyncIterator[str]:
        number, text, at = 0, "", {"item_id": self._item_id, "output_index": 0}
        part = {**at, "content_index": 0}

        def said(kind: str, **fields: Any) -> str:
            nonlocal number
            number += 1
            return f"event: response.{kind}\n" + event(
                {"type": f"response.{kind}", "sequence_number": number - 1, **fields}
            )

        yield said("created", response=self._object("", None))
        yield said("in_progress", response=self._object("", None))
        yield said("output_item.added", output_index=0, item=self._message("", "in_progress"))
        yield said("content_part.added", part=_content(""), **part)
        async for _, progress in self._news(first):
            text += progress.text
            if progress.text:
                yield said("output_text.delta", delta=progress.text, logprobs=[], **part)
            if progress.reason is None:
                continue
            last = self._object(text, progress)
            if progress.reason != ERROR:
                yield said("output_text.done", text=text, logprobs=[], **part)
                yield said("content_part.done", part=_content(text), **part)
                yield said("output_item.done", output_index=0, item=last["output"][0])
            yield said(last["status"], response=last)  # completed, incomplete or failed

    @property
    def _item_id(self) -> str:
        return self.head["id"].replace("resp", "msg")

    def _message(self, text: str, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [_content(text)]
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _object(self, text: str, last: Progress | None) -> dict[str, Any]:
        """The answer.  last: its end; None before."""
        asked = self.asked
        assert isinstance(asked, ResponsesRequest)
        status, error, cut = "in_progress", None, None
        if last is not None:
            status = {ERROR: "failed", STOP: "completed"}.get(last.reason or "", "incomplete")
            cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        if status == "failed":
            message = str(last.failure) if last is not None and last.failure else FAILED
            error = {"code": "server_error", "message": message}
        return {
            **self.head, "status": status, "error": error, "incomplete_details": cut,
            "output": [] if last is None else [self._message(text, "incomplete" if cut else "completed")],
            "instructions": asked.instructions, "max_output_tokens": asked.max_output_tokens,
            "temperature": asked.temperature, "top_p": asked.top_p, "text": {"format": {"type": "text"}},
            "tools": [], "tool_choice": "auto", "parallel_tool_calls": True, "previous_response_id": None,
            "truncation": "disabled", "metadata": {}, "usage": None if last is None else self._usage,
        }  # fmt: skip

    @property
    def _usage(self) -> dict[str, Any]:
        usage = dict(self.usage)
        cached = usage.pop("prompt_tokens_details", {}).get("cached_tokens", 0)
        return {
            "input_tokens": usage.pop("prompt_tokens"), "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": usage.pop("completion_tokens"), "output_tokens_details": {"reasoning_tokens": 0},
            **usage,
        }  # fmt: skip


def _content(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
