"""Requests and answers in the form of OpenAI's API.

A field, in messages too, is honoured, has no effect on a text, or is refused by name unless its value is neutral: none
is ignored silently.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

WITHOUT_EFFECT = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "parallel_tool_calls", "prediction", "id_slot", "samplers", "response_fields",
})  # fmt: skip
NEUTRAL: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("n", "best_of"), (1,)),
    **dict.fromkeys(("logprobs", "echo"), (False,)),
    **dict.fromkeys(("tools", "functions"), ([],)),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
}
"""Fields that cannot be honoured -> their values that change nothing, besides null."""
MAX_STOPS, MAX_STOP = 4, 200
MAX_TOOLS = 128
MAX_ANSWERS, MAX_TOP, MAX_BIASES = 8, 20, 1024
"""Of one request: answers, most probable tokens at a position, tokens with a bias."""
MIN_TEMPERATURE = 0.01
"""Below it, but above 0, probabilities overflow."""

INVALID = "invalid_value"
"""The code of an error in a field's value."""

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
    """include_usage: send the usage as a last chunk.  continuous_usage_stats: and in every chunk that so far."""

    without_effect = frozenset({"include_obfuscation"})
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchema(Part):
    """A schema with its name. Every schema is strict: the text is of the schema, or cut off."""

    without_effect = frozenset({"description"})
    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Part):
    """OpenAI's form of a constraint."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("expected json_schema together with the type json_schema, and only there")
        return self


class StructuredOutputs(Part):
    """vLLM's form of a constraint.

    disable_any_whitespace: False lets the model choose the white space of JSON.
    """

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    disable_any_whitespace: bool | None = None


class GenerationRequest(Part):
    """What all kinds of requests have.

    n_predict: llama.cpp's name of ``max_tokens``: 0 reads the prompt only, -1 is the default.
    cache_prompt: False reads the whole prompt, even if an earlier text begins like it.
    """

    without_effect, neutral = WITHOUT_EFFECT, NEUTRAL
    model: str | None = None
    max_tokens: int | None = Field(None, ge=1)
    n_predict: int | None = Field(None, ge=-1)
    cache_prompt: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    logit_bias: dict[TokenId, Annotated[float, Field(ge=-100, le=100)]] | None = Field(None, max_length=MAX_BIASES)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    @property
    def stops(self) -> list[str]:
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def most(self, default: int) -> int:
        """Tokens of the answer."""
        names = ("max_output_tokens", "max_completion_tokens", "max_tokens", "n_predict")
        limits = (getattr(self, name, None) for name in names)
        return next((limit for limit in limits if limit is not None and limit >= 0), default)

    @property
    def log_probs(self) -> int | None:
        """How many of the most probable tokens are asked for at each position; None: no log-probabilities."""
        return None

    @property
    def answers(self) -> int:
        """How many answers are asked for."""
        return 1


class AnswersRequest(GenerationRequest):
    """What may have several answers.  n: how many."""

    n: int | None = Field(None, ge=1, le=MAX_ANSWERS)

    @property
    def answers(self) -> int:
        return self.n or 1


Kind = TypeVar("Kind", bound=GenerationRequest)


class CompletionRequest(AnswersRequest):
    """``/v1/completions``.

    prompt: a text, or its token ids.  suffix: what comes after the completion; of texts only.
    """

    suffix: str | None = None
    prompt: str | list[TokenId] | Annotated[list[str] | list[list[TokenId]], Field(min_length=1, max_length=1)]
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP)

    @property
    def log_probs(self) -> int | None:
        return self.logprobs


class TextPart(Part):
    """A part of a message that has several."""

    type: Literal["text"]
    text: str


class FunctionCall(Part):
    """arguments: the text of a JSON object."""

    name: str
    arguments: str

    @model_validator(mode="after")
    def _is_an_object(self) -> FunctionCall:
        try:
            fits = isinstance(json.loads(self.arguments), dict)
        except (ValueError, RecursionError):
            fits = False
        if not fits:
            raise ValueError("expected arguments that are the text of a JSON object")
        return self


class ToolCall(Part):
    """A call of a function by the model; ``index``, which streams have, says nothing more."""

    without_effect = frozenset({"index"})
    id: str
    type: Literal["function"]
    function: FunctionCall


class Message(Part):
    """One turn of a chat."""

    neutral = {"annotations": ([],), **dict.fromkeys(("refusal", "audio"), ())}
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("expected tool_calls of the assistant only")
        if self.content is None and not self.tool_calls:
            raise ValueError("expected a content")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise ValueError("expected a tool_call_id in every message of the role tool, and only there")
        if self.name is not None and self.role != "tool":
            raise ValueError("expected a name in messages of the role tool only")
        return self

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())

    @property
    def turn(self) -> dict[str, Any]:
        """As chat templates take it."""
        turn: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": self.text}
        if self.tool_calls:
            turn["tool_calls"] = [
                {
                    "id": call.id,
                    "type": call.type,
                    "function": {"name": call.function.name, "arguments": json.loads(call.function.arguments)},
                }
                for call in self.tool_calls
            ]
        own = {"tool_call_id": self.tool_call_id, "name": self.name}
        return turn | {name: value for name, value in own.items() if value is not None}


class Function(Part):
    """parameters: a JSON schema; None: the function has none. Every schema is strict, as that of an answer."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """What the model may call."""

    type: Literal["function"]
    function: Function

    @property
    def offer(self) -> dict[str, Any]:
        """As chat templates take it."""
        return {"type": "function", "function": self.function.model_dump(exclude={"strict"}, exclude_none=True)}


class FunctionName(Part):
    """A function by its name."""

    name: str


class NamedTool(Part):
    """The tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(AnswersRequest):
    """``/v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)

    @property
    def log_probs(self) -> int | None:
        return self.top_logprobs or 0 if self.logprobs else None

    @property
    def offered(self) -> list[Tool]:
        """The tools that the model may call in this answer."""
        if isinstance(self.tool_choice, NamedTool):
            return [tool for tool in self.tools or () if tool.function.name == self.tool_choice.function.name]
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def must_call(self) -> bool:
        return self.tool_choice not in (None, "none", "auto")

    @property
    def has_calls(self) -> bool:
        """Whether the conversation has calls of tools and their results."""
        return any(message.tool_calls or message.role == "tool" for message in self.messages)


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
    if isinstance(request, ChatRequest):
        _check_tools(request)
        if request.top_logprobs and not request.logprobs:
            expected = f"expected logprobs true with it, got {request.logprobs}"
            raise RequestError(400, f"top_logprobs: {expected}", INVALID, "top_logprobs")
    if len(request.stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP for stop in request.stops):
        expected = f"expected up to {MAX_STOPS} stop strings of 1 to {MAX_STOP} characters"
        raise RequestError(400, f"stop: {expected}, got {request.stop!r:.60}", INVALID, "stop")
    if request.temperature is not None and 0 < request.temperature < MIN_TEMPERATURE:
        expected = f"expected a temperature of 0 or at least {MIN_TEMPERATURE}"
        raise RequestError(400, f"{expected}, got {request.temperature}", INVALID, "temperature")
    return request


def _check_tools(request: ChatRequest) -> None:
    """RequestError for a choice of a tool that is not there, tools of one name, or results of no call."""
    names = [tool.function.name for tool in request.tools or ()]
    if len(names) != len(set(names)):
        raise RequestError(400, f"tools: expected functions of different names, got {names!r:.60}", INVALID, "tools")
    if request.must_call and not request.offered:
        got = f"{names!r:.60} for {request.model_dump()['tool_choice']!r:.100}"
        raise RequestError(400, f"tool_choice: expected a tool of tools, got {got}", INVALID, "tool_choice")
    called = set[str]()
    for index, message in enumerate(request.messages):
        if message.role == "assistant":
            called = {call.id for call in message.tool_calls or ()}
        elif message.role == "tool" and message.tool_call_id not in called:
            field = f"messages[{index}].tool_call_id"
            expected = "expected the id of a call of the assistant's message before it"
            raise RequestError(400, f"{field}: {expected}, got {message.tool_call_id!r:.60}", INVALID, field)


def _unsupported(name: str, value: Any, known: bool) -> RequestError:
    if known:
        message = f"{name}: this server cannot honour it, got {value!r:.60}; leave it out"
    else:
        message = f"{name!r}: expected a known field; leave it out"
    return RequestError(400, message, "unsupported_parameter", name)
