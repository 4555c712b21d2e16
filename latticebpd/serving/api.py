"""The HTTP endpoints: OpenAI's completions, chats and models, health and metrics."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
import torch
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from transformers import LogitsProcessorList, StoppingCriteriaList

from latticebpd._version import __version__
from latticebpd.checks import expect
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import special_in
from latticebpd.decoding.acceptance import Acceptance, Sampling, bound
from latticebpd.decoding.generation_config import GenerationSettings
from latticebpd.decoding.loop import EXACT, RowBatch
from latticebpd.decoding.session import Session
from latticebpd.drafters.copies.text_history import TextHistory
from latticebpd.drafters.drafter import Drafter
from latticebpd.loading import Loaded
from latticebpd.serving import schema
from latticebpd.serving.answer_log_probs import LogProbFormats
from latticebpd.serving.answer_text import AnswerText
from latticebpd.serving.answers import FAILED, AnswerResponse, refusal
from latticebpd.serving.chat_page import page
from latticebpd.serving.infill import InfillRequest, InfillResponse, InfillText
from latticebpd.serving.infill_prompts import InfillPrompts
from latticebpd.serving.limits import Limits
from latticebpd.serving.metrics import CONTENT_TYPE, ServerMetrics
from latticebpd.serving.penalties import processors_of
from latticebpd.serving.responses import ResponsesRequest, ResponsesResponse
from latticebpd.serving.scheduler import Job, Progress, Scheduler, Sender
from latticebpd.serving.schema import GenerationRequest, RequestError
from latticebpd.serving.structured import constraint_of
from latticebpd.serving.tools import ToolFormat, format_of, turns_as_read

log = logging.getLogger("uvicorn.error")

COMPLETION_TOKENS = 16
"""Default limit of ``/v1/completions``, which is OpenAI's."""


@dataclass(eq=False)
class Service:
    """A model and its endpoints.

    name: of the model, as requests call it.
    temperature: of requests that give none; 0 is greedy.
    api_key: asked for except at ``/``, ``/health`` and ``/metrics``, visible characters of ASCII; None: no key.
    history: where texts go when they end; None: nowhere.
    """

    loaded: Loaded
    drafter: Drafter
    name: str
    limits: Limits = field(default_factory=Limits)
    temperature: float = 0.0
    api_key: str | None = None
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    history: TextHistory | None = None

    def __post_init__(self) -> None:
        check_key(self.api_key)
        expect(
            not self.loaded.target.is_encoder_decoder,
            "a causal language model to serve",
            "an encoder–decoder",
            of=self.name,
        )
        wanted, tokenizer = "a tokenizer of the tokenizers library (tokenizer.json)", self.loaded.tokenizer
        expect(hasattr(tokenizer, "backend_tokenizer"), wanted, type(tokenizer).__name__, of=self.name)
        settings = GenerationSettings(self.loaded.target)
        self.stops = list(settings.stop_strings)
        self.repetition_penalty = float(settings.config.repetition_penalty or 1.0)
        self.formats = LogProbFormats(tokenizer, self.loaded.target.vocab_size)
        self.scheduler = Scheduler(self.limits, self.metrics, self.history)
        self.infills = InfillPrompts(self.loaded)
        _ = self.infills.tokens  # which may read a file
        self.created = int(time.time())
        self.loaded.prompts.document("a")  # the first call changes transformers' tokenizers; later ones share them

    @property
    def app(self) -> Starlette:
        """The ASGI application; it starts and closes the scheduler."""
        routes = [
            Route("/", page),
            Route("/health", self.health),
            Route("/metrics", lambda request: Response(self.metrics.page(), media_type=CONTENT_TYPE)),
            Route("/v1/models", self._answered(self.models)),
            Route("/v1/models/{name:path}", self._answered(self.model)),
            Route("/v1/completions", self._answered(self.completions), methods=["POST"]),
            Route("/v1/chat/completions", self._answered(self.chat_completions), methods=["POST"]),
            Route("/v1/responses", self._answered(self.responses), methods=["POST"]),
            Route("/infill", self._answered(self.infill), methods=["POST"]),
            *(Route(path, self._answered(self.properties)) for path in ("/props", "/v1/props")),
        ]
        handlers: Any = {HTTPException: _http_error}
        return Starlette(routes=routes, exception_handlers=handlers, lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.scheduler.start()
        yield
        await anyio.to_thread.run_sync(self.scheduler.close)

    def _answered(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint, which asks for the key, answers errors in OpenAI's form and is counted."""

        async def answer(request: Request) -> Response:
            try:
                self._check_key(request)
                response = await endpoint(request)
            except RequestError as error:
                response = refusal(error)
            except ClientDisconnect:
                response = Response(status_code=499)  # nobody reads it
            except Exception:
                log.exception("a request failed")
                response = refusal(RequestError(500, FAILED))
            if not isinstance(response, AnswerResponse):
                self.metrics.responses.labels(request.scope["route"].path, response.status_code).inc()
            return response

        return answer

    def _check_key(self, request: Request) -> None:
        """RequestError without the key."""
        if self.api_key is None:
            return
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(key.encode(), self.api_key.encode()):
            raise RequestError(401, "expected this server's key as `Authorization: Bearer KEY`", "invalid_api_key")

    def health(self, request: Request) -> Response:
        """Whether requests are taken."""
        alive = self.scheduler.alive
        return JSONResponse({"status": "ok" if alive else "closing"}, 200 if alive else 503)

    @property
    def _card(self) -> dict[str, Any]:
        capabilities = ["completion", *(["chat"] if self.loaded.in_chat else [])]
        card = {"id": self.name, "object": "model", "created": self.created, "owned_by": "latticebpd"}
        context = self.limits.context
        return {**card, "capabilities": capabilities, "max_model_len": context, "meta": {"n_ctx": context}}

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._card]})

    async def model(self, request: Request) -> Response:
        self._check_model(request.path_params["name"])
        return JSONResponse(self._card)

    def _check_model(self, name: str | None) -> None:
        """RequestError for another model."""
        if name not in (None, self.name):
            raise RequestError(404, f"expected the model {self.name!r}, got {name!r:.60}", "model_not_found", "model")

    async def completions(self, request: Request) -> Response:
        asked = await self._read(request, schema.CompletionRequest)
        prompt: Any = asked.prompt
        if not isinstance(prompt, str) and prompt and not isinstance(prompt[0], int):
            (prompt,) = prompt  # a list of one prompt
        after, is_text = asked.suffix, isinstance(prompt, str)
        if after and not is_text:
            raise RequestError(400, "suffix: expected a prompt that is a text, got token ids", schema.INVALID, "suffix")

        def ids() -> list[int]:
            if after:
                self._fitting(prompt, after)
                return self.infills.between(prompt, after)
            return self.loaded.prompts.document(self._fitting(prompt)) if is_text else prompt

        return await self._submit(
            asked, ids, asked.most(COMPLETION_TOKENS), self._infill_ends("suffix") if after else None
        )

    async def infill(self, request: Request) -> Response:
        asked = await self._read(request, InfillRequest)
        most = asked.most(self.limits.max_tokens)
        room = self.limits.context - min(most, self.limits.max_tokens, self.limits.context // 4)

        def ids() -> list[int]:
            return self.infills.within(*asked.parts(self.limits.prompt_bytes), room)

        return await self._submit(asked, ids, most, self._infill_ends(), kind=InfillResponse)

    def _infill_ends(self, field: str | None = None) -> list[int]:
        """Tokens that end what is filled in; RequestError of a model that cannot.  field: that asks for it."""
        try:
            self.infills.check()
        except ValueError as error:
            raise RequestError(400, str(error), "unsupported_parameter", field) from error
        return self.infills.end_ids

    async def properties(self, request: Request) -> Response:
        """What editors ask of a server, in llama.cpp's form."""
        self._check_model(request.query_params.get("model"))
        settings = {"n_ctx": self.limits.context, "params": {"temperature": self.temperature}}
        template = self.loaded.tokenizer.get_chat_template() if self.loaded.in_chat else ""
        return JSONResponse({
            "default_generation_settings": settings, "total_slots": self.limits.rows, "model_path": self.name,
            "chat_template": template, "modalities": {"vision": False, "audio": False},
            "build_info": f"latticebpd {__version__}",
        })  # fmt: skip

    async def chat_completions(self, request: Request) -> Response:
        asked = await self._read(request, schema.ChatRequest)
        self._check_chats()
        turns = [message.turn for message in asked.messages]
        shown = None if asked.tool_choice == "none" or not asked.tools else [tool.offer for tool in asked.tools]
        form = None
        if shown or asked.has_calls:
            template = self.loaded.tokenizer.get_chat_template(tools=shown)
            form = format_of(template)
            prompts: Any = self.loaded.prompts
            opening = [] if turns[0]["role"] == "system" else prompts.opening
            turns = turns_as_read(template, form, [*opening, *turns], shown)
        ids = partial(self._chat_ids, turns, shown)
        most = asked.most(self.limits.max_tokens)
        return await self._submit(asked, ids, most, self.loaded.prompts.eos_ids, form if shown else None)

    async def responses(self, request: Request) -> Response:
        asked = await self._read(request, ResponsesRequest)
        self._check_chats()
        most, ids = asked.most(self.limits.max_tokens), partial(self._chat_ids, asked.turns)
        return await self._submit(asked, ids, most, self.loaded.prompts.eos_ids, kind=ResponsesResponse)

    def _check_chats(self) -> None:
        """RequestError of a model without a chat template."""
        if not self.loaded.in_chat:
            raise RequestError(400, "expected a model with a chat template, got one without; use /v1/completions")

    def _chat_ids(self, turns: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """The tokens of a conversation with these tools; ValueError for one that is too long or unfit."""
        prompts: Any = self.loaded.prompts
        self._fitting(*(turn["content"] for turn in turns))
        return list(prompts.ids(self._fitting(prompts.prompt_text(turns, tools))))

    def _fitting(self, *texts: str) -> str:
        """Texts in a row; ValueError for those that are too long to be tokenized."""
        text, most = "".join(texts), self.limits.prompt_bytes
        size = len(text.encode())
        expect(size <= most, f"a prompt of up to {most} bytes ({self.limits.context} tokens)", size, "cut it")
        return text

    async def _read(self, request: Request, kind: type[schema.Kind]) -> schema.Kind:
        """A request's body; RequestError for one that is too long, too slow or no such request."""
        self.scheduler.check_room()
        body = bytearray()
        try:
            with anyio.fail_after(self.limits.seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self.limits.body:
                        raise RequestError(413, f"expected a request of up to {self.limits.body} bytes, got more")
        except TimeoutError:
            raise RequestError(408, f"expected the request within {self.limits.seconds:g} seconds") from None
        asked = schema.read_request(kind, bytes(body))
        self._check_model(asked.model)
        return asked

    async def _submit(
        self,
        asked: GenerationRequest,
        encode: Callable[[], list[int]],
        most: int,
        eos_ids: list[int] | None = None,
        form: ToolFormat | None = None,
        kind: type[AnswerResponse] = AnswerResponse,
    ) -> Response:
        """The answer to a request.

        encode: the prompt's tokens.  most: tokens of the answer.  eos_ids: by default the model's.  form: of calls,
        where there are tools.  kind: what it is written as.
        """
        loop, events, arrived = asyncio.get_running_loop(), asyncio.Queue[tuple[int, Progress]](), time.monotonic()
        answers, room = asked.answers, self.limits.rows + self.limits.queue
        if answers > room:
            raise RequestError(400, f"n: expected up to {room} answers, got {answers}", schema.INVALID, "n")

        def send(index: int, progress: Progress) -> None:
            with suppress(RuntimeError):  # the loop is closed, and nobody reads it
                loop.call_soon_threadsafe(events.put_nowait, (index, progress))

        def prepare() -> list[Job]:
            constraint, prompt = constraint_of(asked, form), encode()
            shown = special_in(self.loaded.tokenizer.backend_tokenizer, form.texts) if form else {}
            if asked.log_probs is not None:
                self.formats.prepare()
            return [
                self._job(asked, prompt, most, eos_ids, partial(send, index), arrived, constraint, index, shown)
                for index in range(answers)
            ]

        try:
            with self.scheduler.place(answers):
                jobs = await anyio.to_thread.run_sync(prepare)
                self.scheduler.submit(*jobs)
        except ValueError as error:
            raise RequestError(400, str(error), "invalid_prompt") from error
        fingerprint = f"latticebpd-{__version__}-{self.loaded.weights}"
        head = {"model": self.name, "system_fingerprint": fingerprint}
        return kind(self.scheduler, asked, jobs, events, form, self.formats, **head)

    def _job(
        self,
        asked: GenerationRequest,
        prompt: list[int],
        most: int,
        eos_ids: list[int] | None,
        send: Sender,
        arrived: float,
        constraint: Constraint | None = None,
        index: int = 0,
        shown: Mapping[int, str] | None = None,
    ) -> Job:
        """One of a request's answers, ready to be queued; ValueError for an unusable prompt.  shown: special tokens
        that its text has."""
        room = self.limits.context - len(prompt)
        expect(room >= 1, f"a prompt of fewer than {self.limits.context} tokens", len(prompt), "cut it")
        own = processors_of(asked, len(prompt), self.loaded.target.vocab_size, self.repetition_penalty)
        stops = asked.stops or self.stops
        answer = (
            InfillText(self.loaded.tokenizer, stops, asked)
            if isinstance(asked, InfillRequest)
            else AnswerText(self.loaded.tokenizer, stops, shown)
        )
        answer.stopped = not most  # only the prompt is read
        session = Session.begin(
            self.loaded.target, prompt, attention_mask=[[1] * len(prompt)], eos_token_id=eos_ids, stop_strings=[],
            max_new_tokens=max(1, min(most, self.limits.max_tokens, room)),
            stopping_criteria=StoppingCriteriaList([answer] if answer.ends else []),
            constraint=constraint, tokenizer=self.loaded.tokenizer, logits_processor=LogitsProcessorList(own),
        )  # fmt: skip
        rule = bound(self._rule(asked, index), session.settings)
        batch = RowBatch.begin(session, self.drafter, rule, log_probs=asked.log_probs)
        return Job(batch, answer, send, arrived + self.limits.seconds, arrived, asked.cache_prompt is not False)

    def _rule(self, asked: GenerationRequest, index: int) -> Acceptance:
        """Greedy decoding, or sampling with a source of randomness of the answer's own."""
        temperature = self.temperature if asked.temperature is None else asked.temperature
        if not temperature:
            return EXACT
        generator = torch.Generator(self.loaded.target.device)
        if asked.seed is None:
            generator.seed()
        else:
            generator.manual_seed(asked.seed + index)
        top_p = 1.0 if asked.top_p is None else asked.top_p
        return Sampling(temperature, asked.top_k or 0, top_p, generator, min_p=asked.min_p)


def check_key(key: str | None) -> None:
    """ValueError for a key that no client could send in a header as it is."""
    fits = key is None or all("!" <= each <= "~" for each in key)
    expect(fits, "a key of visible ASCII characters", "others, such as spaces or umlauts", "choose another key")


def _http_error(request: Request, error: Exception) -> Response:
    """Paths and methods that do not exist."""
    assert isinstance(error, HTTPException)
    return JSONResponse(RequestError(error.status_code, f"{request.url.path}: {error.detail}").body, error.status_code)
