"""What a request says of its answer's form, as a constraint of its row."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.model_tokens import ModelTokens
from latticebpd.constraints.token_automaton import TokenAutomaton
from latticebpd.constraints.trial import tried
from latticebpd.constraints.triggered import Triggered
from latticebpd.serving import tools
from latticebpd.serving.schema import INVALID, ChatRequest, GenerationRequest, RequestError, Tool
from latticebpd.serving.tools import ToolFormat

log = logging.getLogger("uvicorn.error")

KEPT = 32
"""Constraints that are kept compiled, the last ones asked for."""


def constraint_of(asked: GenerationRequest, form: ToolFormat | None = None) -> Constraint | None:
    """A request's constraint, if any; RequestError, with the field, for one that is not supported, or several.

    form: of calls, where there are tools.
    """
    wanted = list(_wanted(asked))
    if isinstance(asked, ChatRequest) and form is not None:
        wanted.append(("tools", lambda: _calls(asked, form)))
    if len(wanted) > 1:
        fields = " and ".join(field for field, _ in wanted)
        raise RequestError(400, f"{fields}: expected one of them, got {len(wanted)}", INVALID, wanted[1][0])
    for field, build in wanted:
        with_field = _Refusing(field)
        return FieldConstraint(with_field(build), with_field)
    return None


def _wanted(asked: GenerationRequest) -> Iterator[tuple[str, Callable[[], Constraint]]]:
    """Each constraint that a request has, with its field."""
    form, own = asked.response_format, asked.structured_outputs
    if form is not None and form.type == "json_object":
        yield "response_format", lambda: _compiled("json", '{"type": "object"}')
    if form is not None and form.json_schema is not None:
        schema = form.json_schema.schema_
        yield "response_format", lambda: _compiled("json", json.dumps(schema))
    fields: list[tuple[str, str, Any]] = [
        ("guided_json", "json", asked.guided_json), ("guided_regex", "regex", asked.guided_regex),
        ("guided_choice", "choice", asked.guided_choice), ("guided_grammar", "lark", asked.guided_grammar),
    ]  # fmt: skip
    if own is not None:
        kind = "json, any white space" if own.disable_any_whitespace is False else "json"
        fields += [
            ("structured_outputs.json", kind, own.json_),
            ("structured_outputs.json_object", kind, {"type": "object"} if own.json_object else None),
            ("structured_outputs.regex", "regex", own.regex), ("structured_outputs.choice", "choice", own.choice),
            ("structured_outputs.grammar", "lark", own.grammar),
        ]  # fmt: skip
        if all(value is None for name, _, value in fields if name.startswith("structured_outputs")):
            raise RequestError(
                400, "structured_outputs: expected a constraint, got none", INVALID, "structured_outputs"
            )
    for field, kind, value in fields:
        if value is not None:
            text = value if isinstance(value, str) and kind != "choice" else json.dumps(value)
            yield field, partial(_compiled, kind, text)


_compiled = lru_cache(KEPT)(tried)


@lru_cache(KEPT)
def _triggered(triggers: tuple[str, ...], text: str) -> Constraint:
    return Triggered(triggers, tried("lark", text))


@dataclass(frozen=True)
class _Writing:
    """A constraint on texts with special tokens: those that occur in ``texts``."""

    constraint: Constraint
    texts: tuple[str, ...]

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> TokenAutomaton:
        return self.constraint.automaton(tokens.writing(self.texts), eos_ids)


def _calls(asked: ChatRequest, form: ToolFormat) -> Constraint:
    several = asked.parallel_tool_calls is not False
    try:
        text = tools.calls_grammar(asked.offered, form, several, triggered=not asked.must_call)
        calls = _compiled("lark", text) if asked.must_call else _triggered(form.triggers, text)
        return _Writing(calls, form.texts)
    except ValueError:
        for index, tool in enumerate(asked.tools or ()):
            if tool in asked.offered:  # which of them it is
                refusing = _Refusing(f"tools[{index}].function.parameters")
                refusing(partial(_tried_parameters, tool))
        raise


def _tried_parameters(tool: Tool) -> Constraint:
    return tried("json", json.dumps(tools.parameters(tool)))


@dataclass(frozen=True)
class _Refusing:
    """Calls, and turns errors in what the user wrote into refusals that name its field."""

    field: str

    def __call__(self, build: Callable[[], Any]) -> Any:
        try:
            return build()
        except (ValueError, RecursionError) as error:
            raise self.refusal(error) from error

    def refusal(self, error: BaseException) -> RequestError:
        return RequestError(400, f"{self.field}: {error}"[:400], INVALID, self.field)


@dataclass(frozen=True)
class FieldConstraint:
    """A field's constraint; its automaton fails alone, not with the other rows of its pass."""

    constraint: Constraint
    refusing: _Refusing

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> GuardedAutomaton:
        inner = self.refusing(lambda: self.constraint.automaton(tokens, eos_ids))
        self.refusing(lambda: inner.legal(inner.start))  # the first states are made here, not between passes
        return GuardedAutomaton(inner, eos_ids, self.refusing)


class GuardedAutomaton:
    """An automaton whose errors, such as that a grammar gets too complex on the way, end its text.

    failure: what to tell the client; None as long as there is no error. Afterwards every text may only end.
    """

    def __init__(self, inner: TokenAutomaton, eos_ids: Sequence[int], refusing: _Refusing) -> None:
        self.inner, self.refusing = inner, refusing
        self.start, self.vocab_size, self.weighted = inner.start, inner.vocab_size, inner.weighted
        self.failure: RequestError | None = None
        self._only_end = np.zeros(self.vocab_size, bool)
        self._only_end[list(eos_ids) or slice(None)] = True

    def legal(self, state: int) -> np.ndarray:
        return np.asarray(self._guarded(lambda: self.inner.legal(state), self._only_end))

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._guarded(lambda: self.inner.successors(state, tokens), np.full(len(tokens), state)))

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.asarray(self._guarded(lambda: self.inner.costs(state, tokens), np.zeros(len(tokens), np.float32)))

    def forced(self, state: int) -> np.ndarray:
        return np.asarray(self._guarded(lambda: self.inner.forced(state), np.array([], np.int64)))

    def release(self, state: int) -> None:
        self._guarded(lambda: self.inner.release(state), None)

    def _guarded(self, call: Callable[[], Any], otherwise: Any) -> Any:
        if self.failure is not None:
            return otherwise
        try:
            return call()
        except Exception as error:
            if not isinstance(error, ValueError):
                log.exception("a constraint failed")
            self.failure = self.refusing.refusal(error)
            return otherwise
