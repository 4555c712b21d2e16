"""JSON schemas, regular expressions, choices and Lark grammars as automata over tokens, by llguidance.

The parser is llguidance's; here are its states. A state is a *matcher*, a copy of which reads one more token in two
microseconds, so that states are made one by one as drafts and texts reach them. Legal are the tokens of the parser's
mask: where the bytes that follow are determined and so is how a tokenizer writes them, only that token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from latticebpd.checks import expect, extra_module
from latticebpd.constraints.model_tokens import ModelTokens, PerModel
from latticebpd.constraints.token_automaton import ILLEGAL

MAX_BYTES = 1_000_000
"""Of a schema or grammar."""
LEXER_STATES = 50_000
"""Of a grammar's regular expressions, of one to two kilobytes each."""
RECENT = 8
"""Tokens before the forced bytes that are written anew with them: a tokenizer's merges reach no further back."""
UNKNOWN = -1
"""In place of a state's only token: not asked for yet."""
_ONE_WAY = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ANY_WAY = {"whitespace_flexible": True, "item_separator": ",", "key_separator": ":"}
_TOKENIZERS = PerModel()
_LOCK = Lock()


@dataclass(frozen=True)
class GrammarConstraint:
    """Texts of a grammar.  kind: what the user wrote, in words.  grammar: as llguidance writes it, JSON.

    ValueError for a grammar that is not supported, has no text or is too large, with what is wrong.
    """

    kind: str
    grammar: str
    _compiled: PerModel = field(default_factory=PerModel, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        matcher = _llguidance().LLMatcher
        expect(len(self.grammar) <= MAX_BYTES, f"{self.kind} of at most {MAX_BYTES} bytes", len(self.grammar))
        with _panics_refused(self.kind):
            is_error, messages = matcher.validate_grammar_with_warnings(self.grammar, limits=_limits())
        if is_error or messages:  # a warning is of something that would be ignored
            raise ValueError(f"expected {self.kind} that can be compiled, got {_line(messages[0])}")

    def automaton(self, tokens: ModelTokens, eos_ids: Sequence[int]) -> GrammarAutomaton:
        with _LOCK:
            if (compiled := self._compiled.get(tokens)) is None:
                with _panics_refused(self.kind):
                    compiled = _llguidance().LLMatcher(_tokenizer(tokens), self.grammar, limits=_limits())
                self._compiled[tokens] = compiled
            return GrammarAutomaton(compiled.deep_copy(), tokens, eos_ids, self.kind)


def json_schema(schema: Mapping[str, Any] | str, any_whitespace: bool = False) -> GrammarConstraint:
    """JSON of a schema, an object or its text.

    any_whitespace: allow any white space between JSON's tokens; by default there is one way to write a value, ``", "``
        between items, ``": "`` after keys and no other white space, so that most of it is drafted without a guess.
        Properties come in the schema's order.
    ValueError for keywords that cannot be honoured, by name.
    """
    kind = "a JSON schema"
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema)
        expect(len(text) <= MAX_BYTES, f"{kind} of at most {MAX_BYTES} bytes", len(text))
        overrides = {**(_ANY_WAY if any_whitespace else _ONE_WAY), "lenient": False}
        with _panics_refused(kind):
            grammar = _llguidance().LLMatcher.grammar_from_json_schema(text, overrides=overrides)
    except RecursionError:
        raise ValueError(f"expected {kind}, got one that is nested too deeply") from None
    except (TypeError, ValueError) as error:
        if str(error).startswith("expected"):
            raise
        raise ValueError(f"expected {kind}, an object of JSON, got {_line(error)}") from error
    return GrammarConstraint(kind, grammar)


def json_in_lark(schema: Mapping[str, Any]) -> str:
    """A JSON schema within a rule of `lark`, written in one way as by `json_schema`."""
    return "%json " + json.dumps({**schema, "x-guidance": {**_ONE_WAY, "lenient": False}})


def json_object(any_whitespace: bool = False) -> GrammarConstraint:
    """Any JSON object; ``any_whitespace`` as for :func:`json_schema`."""
    return json_schema({"type": "object"}, any_whitespace)


def regex(pattern: str) -> GrammarConstraint:
    """Texts that a regular expression matches from end to end, in Rust's syntax; ValueError for one that is not
    regular, as with a look-behind or a back-reference."""
    expect(isinstance(pattern, str), "a regular expression", type(pattern).__name__)
    return GrammarConstraint("a regular expression", _llguidance().LLMatcher.grammar_from_regex(pattern))


def choice(texts: Sequence[str]) -> GrammarConstraint:
    """One of several texts."""
    wanted = "a list of at least one text to choose from, none of them empty"
    fits = not isinstance(texts, str) and texts and all(isinstance(text, str) and text for text in texts)
    expect(fits, wanted, repr(texts)[:60])
    return lark("start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in dict.fromkeys(texts)))


def lark(text: str) -> GrammarConstraint:
    """Texts of a context-free grammar in llguidance's variant of Lark's notation, whose first rule is ``start``."""
    expect(isinstance(text, str), "a grammar in Lark's notation", type(text).__name__)
    return GrammarConstraint("a Lark grammar", _llguidance().LLMatcher.grammar_from_lark(text))


def try_bytes(constraint: GrammarConstraint) -> None:
    """Compile a constraint for a tokenizer of single bytes; ValueError where it is too complex from the start."""
    library = _llguidance()
    with _panics_refused(constraint.kind):
        matcher = library.LLMatcher(library.LLTokenizer("byte"), constraint.grammar, limits=_limits())
        matcher.compute_bitmask()
    if matcher.is_error():
        raise ValueError(f"expected {constraint.kind} of limited complexity, got {_line(matcher.get_error())}")


class GrammarAutomaton:
    """A grammar's states for one text; see `TokenAutomaton`. ValueError where the grammar gets too complex on the way.

    matcher: at the text's start, this automaton's own.
    """

    start = 0
    weighted = False

    def __init__(self, matcher: Any, tokens: ModelTokens, eos_ids: Sequence[int], kind: str) -> None:
        self.tokens, self.vocab_size, self.kind = tokens, tokens.vocab_size, kind
        self.eos_ids = np.array(eos_ids, np.int64)
        self._nodes = {self.start: _Node(matcher)}
        self._next = 1
        self._check(matcher)

    def legal(self, state: int) -> np.ndarray:
        node = self._nodes[state]
        if node.legal is None:
            node.legal = self._legal(node)
            node.legal.flags.writeable = False
        return node.legal

    def successors(self, state: int, tokens: np.ndarray) -> np.ndarray:
        node = self._nodes[state]
        return np.array([self._after(node, token) for token in np.asarray(tokens).tolist()], np.int64)

    def costs(self, state: int, tokens: np.ndarray) -> np.ndarray:
        return np.zeros(len(tokens), np.float32)

    def forced(self, state: int) -> np.ndarray:
        node = self._nodes[state]
        if node.forced is None:
            node.forced = np.array([] if node.ended else self._forced(node), np.int64)
        return node.forced

    def release(self, state: int) -> None:
        kept, reached = dict[int, _Node](), [state]
        while reached:
            number = reached.pop()
            kept[number] = self._nodes[number]
            reached += [after for after in kept[number].after.values() if after != ILLEGAL]
        if not kept[state].ended:
            self._matcher(kept[state])
        kept[state].before = None
        self._nodes = kept

    def _legal(self, node: _Node) -> np.ndarray:
        if node.ended or (certain := self._certain(node)) is not None:
            legal = np.zeros(self.vocab_size, bool)
            if not node.ended:
                legal[certain] = True
            return legal
        mask = np.frombuffer(self._matcher(node).compute_bitmask(), np.uint8)
        self._check(self._matcher(node))
        legal = np.unpackbits(mask, count=self.vocab_size, bitorder="little").view(bool)
        legal[_end_of(self.tokens)] = False
        legal[self.eos_ids] = self._matcher(node).is_accepting()
        return legal

    def _matcher(self, node: _Node) -> Any:
        if node.matcher is None:
            assert node.before is not None
            node.matcher = self._matcher(node.before).deep_copy()
            if not node.matcher.consume_token(node.recent[-1]):
                self._check(node.matcher)
        return node.matcher

    def _certain(self, node: _Node) -> int | None:
        """The only token that may follow, where the bytes are determined and their tokenization too."""
        if node.certain == UNKNOWN:
            node.certain = next(iter(self._matcher(node).compute_ff_tokens()), None)
        return node.certain

    def _after(self, node: _Node, token: int) -> int:
        if token in node.after:
            return node.after[token]
        if node.ended:
            return ILLEGAL
        ends = token in self.eos_ids
        if self._certain(node) is not None:
            fits = token == node.certain
        elif ends:
            fits = self._matcher(node).is_accepting()
        elif not 0 <= token < self.vocab_size or token == _end_of(self.tokens):
            fits = False
        elif node.legal is not None:
            fits = bool(node.legal[token])
        else:
            fits = self._matcher(node).validate_tokens([token]) == 1
        if fits:
            self._nodes[self._next] = _Node(None, node, (*node.recent[1 - RECENT :], token), ends)
            self._next += 1
        node.after[token] = self._next - 1 if fits else ILLEGAL
        return node.after[token]

    def _forced(self, node: _Node) -> list[int]:
        matcher = self._matcher(node)
        forced, before = bytes(matcher.compute_ff_bytes()), self.tokens.bytes_of(node.recent)
        ids: list[int] = []
        if forced:
            # The last token may merge with what follows; then it is rejected, at the cost of one node.
            ids = self.tokens.encode_after(before, forced) or [*matcher.compute_ff_tokens()]
        ended = matcher.deep_copy()
        if ended.try_consume_tokens(ids) == len(ids) and ended.is_stopped() and len(self.eos_ids):
            ids.append(int(self.eos_ids[0]))
        return ids

    def _check(self, matcher: Any) -> None:
        if matcher.is_error():
            error = _line(matcher.get_error())
            wanted = "that allows some text" if "NoExtension" in error else "of limited complexity"
            raise ValueError(f"expected {self.kind} {wanted}, got {error}")


@dataclass(eq=False, slots=True)
class _Node:
    """A state.

    matcher: None until it is needed: then that of ``before`` reads the last token.
    recent: the last tokens of the path.
    ended: whether the text has ended.
    after: by token, the next state or ILLEGAL, as far as known.
    legal: ``[vocab_size]`` bool, once asked for.
    """

    matcher: Any
    before: _Node | None = None
    recent: tuple[int, ...] = ()
    ended: bool = False
    after: dict[int, int] = field(default_factory=dict)
    legal: np.ndarray | None = None
    certain: int | None = UNKNOWN
    forced: np.ndarray | None = None


def _llguidance() -> Any:
    return extra_module("llguidance", "grammar", "structured output")


@contextmanager
def _panics_refused(kind: str) -> Iterator[None]:
    """ValueError where llguidance fails on what it is given, with an exception that is no ``Exception``."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        got = f"one that llguidance fails on ({_line(error)})"
        raise ValueError(f"expected {kind} that can be compiled, got {got}") from error


def _limits() -> Any:
    return _llguidance().LLParserLimits(max_lexer_states=LEXER_STATES, verbose_errors=False)


def _tokenizer(tokens: ModelTokens) -> Any:
    if (known := _TOKENIZERS.get(tokens)) is None:
        size = max(tokens.vocab_size, tokens.backend.get_vocab_size())
        try:
            known = _llguidance().LLTokenizer(_Spelled.of(tokens) or _file_of(tokens), n_vocab=size)
        except ValueError as error:
            raise ValueError(
                f"expected a tokenizer of bytes or SentencePiece with a grammar, got {_line(error)}"
            ) from error
        _TOKENIZERS[tokens] = known
    return known


class _Spelled:
    """A byte-level tokenizer as llguidance asks for it. Read from a file, it would take all tokens like ``<tool_call>``
    for special ones, and the names of special ones in a text for these; and it would take twice the time."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: ModelTokens, special: list[int]) -> None:
        self._tokens, self.special_token_ids, self.eos_token_id = tokens, special, special[0]
        self.tokens = [spelled or b"" for spelled in tokens.spelled]
        for token, one in tokens.backend.get_added_tokens_decoder().items():
            if one.special and token < len(self.tokens):
                self.tokens[token] = one.content.encode()

    @classmethod
    def of(cls, tokens: ModelTokens) -> _Spelled | None:
        """None for another tokenizer, or one without special tokens."""
        added = tokens.backend.get_added_tokens_decoder()
        special = sorted(token for token, one in added.items() if one.special and token not in tokens.written)
        return cls(tokens, special) if special and "ByteLevel" in str(tokens.backend.decoder) else None

    def __call__(self, text: str) -> list[int]:
        return self._tokens.encode(text)


def _file_of(tokens: ModelTokens) -> str:
    """A tokenizer as its file would be."""
    file = json.loads(tokens.backend.to_str())
    for each in file["added_tokens"]:
        each["special"] &= each["id"] not in tokens.written
    return json.dumps(file)


def _end_of(tokens: ModelTokens) -> int:
    """What llguidance takes for the end of text; which tokens end a text, the decode says."""
    return int(_TOKENIZERS[tokens].eos_token)


def _line(message: object) -> str:
    return " ".join(str(message).split())[:300]
