"""Requests and answers in the form of OpenAI's API.

A field, in messages too, is honoured, has no effect on a text, or is refused by name unless its value is neutral: none
is ignored silently.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "prediction",
})  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("presence_penalty", "frequency_penalty"), (0, 0.0)),
    **dict.fromkeys(("logprobs", "echo"), (False,)),
    **dict.fromkeys(("tools", "functions"), ([],)),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
}
"""Fields that cannot be honoured -> their values that change nothing, besides null."""
MAX_STOPS, MAX_STOP = 4, 200
MIN_TEMPERATURE = 0.01
"""Below it, but above 0, probabilities overflow."""

TokenId = Annotated[int, Field(ge=0, lt=2**31)]


class RequestError(Exception):
    """A request that is refused, as OpenAI's errors are written.

    status: of HTTP. code: for programs. param: the field that is wrong.
    """

    def __init__(self, status: int, message: str, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status)
        kind = kind or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class Part(BaseModel):
    """A JSON object of a request.

    without_effect: fields that are not declared, and have no effect on a text.
    neutral: further ones that cannot be honoured -> their values that change nothing, besides null.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)
    without_effect: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[dict[str, tuple[Any, ...]]] = {}

    def check_extras(self, prefix: str = "") -> None:
        """RequestError for a field that cannot be honoured, here or in a part of this part.

        prefix: of the names of fields, such as ``messages[0].``.
        """
        for name, value in (self.model_extra or {}).items():
            neutral = self.neutral.get(name, ())
            if name in self.without_effect or value is None:
                continue
            if not any(type(value) is type(each) and value == each for each in neutral):
                raise _unsupported(f"{prefix}{name:.60}", value, known=name in self.neutral)
        for name in type(self).model_fields:
            value = getattr(self, name)
            for index, part in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(part, Part):
                    part.check_extras(f"{prefix}{name}[{index}]." if isinstance(value, list) else f"{prefix}{name}.")


class StreamOptions(Part):
    """include_usage: send the usage as a last chunk."""

    without_effect = frozenset({"include_obfuscation"})
    include_usage: bool | None = None


class GenerationRequest(Part):
    """What both kinds of requests have."""

    without_effect, neutral = WITHOUT_EFFECT, NEUTRAL
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


Kind = TypeVar("Kind", bound=GenerationRequest)


class CompletionRequest(GenerationRequest):
    """``/v1/completions``; prompt: a text, or its token ids."""

    prompt: str | list[TokenId] | Annotated[list[str] | list[list[TokenId]], Field(min_length=1, max_length=1)]


class TextPart(Part):
    """A part of a message that has several."""

    type: Literal["text"]
    text: str


class Message(Part):
    """One turn of a chat."""

    neutral = {**dict.fromkeys(("tool_calls", "annotations"), ([],)), **dict.fromkeys(("name", "refusal", "audio"), ())}
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    @property
    def turn(self) -> dict[str, str]:
        """As chat templates take it."""
        content = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": content}


class ChatRequest(GenerationRequest):
    """``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)


def read_request(kind: type[Kind], body: bytes) -> Kind:
    """The request in a body; RequestError, status 400, for anything else."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        param = str(first["loc"][0]) if first["loc"] else None
        got = "" if param is None or first["type"] == "missing" else f", got {first['input']!r:.60}"
        raise RequestError(400, f"{param or 'body'}: {first['msg']}{got}", first["type"], param) from error
    request.check_extras()
    if len(request.stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP for stop in request.stops):
        expected = f"expected up to {MAX_STOPS} stop strings of 1 to {MAX_STOP} characters"
        raise RequestError(400, f"stop: {expected}, got {request.stop!r:.60}", "invalid_value", "stop")
    if request.temperature is not None and 0 < request.temperature < MIN_TEMPERATURE:
        expected = f"expected a temperature of 0 or at least {MIN_TEMPERATURE}"
        raise RequestError(400, f"{expected}, got {request.temperature}", "invalid_value", "temperature")
    return request


def _unsupported(name: str, value: Any, known: bool) -> RequestError:
    if known:
        message = f"{name}: this server cannot honour it, got {value!r:.60}; leave it out"
    else:
        message = f"{name!r}: expected a known field; leave it out"
    return RequestError(400, message, "unsupported_parameter", name)
