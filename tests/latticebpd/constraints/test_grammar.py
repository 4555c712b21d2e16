"""Grammars as automata over tokens: against llguidance's own parser, the texts that a choice allows, and garbage."""

from __future__ import annotations

import json
import pickle
import random
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from latticebpd import choice, json_object, json_schema, lark, load, regex
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.grammar import GrammarConstraint
from latticebpd.constraints.model_tokens import ModelTokens, model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, after
from tests.helpers.tokenizers import letters

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["river", "city", "rift"]},
        "years": {"type": "array", "items": {"type": "integer", "minimum": 0}, "maxItems": 3},
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "years"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, GrammarConstraint] = {
    "schema": json_schema(SCHEMA),
    "schema, any white space": json_schema(SCHEMA, any_whitespace=True),
    "object": json_object(),
    "regex": regex(r"(the |a )?[a-z]{2,6} of [0-9]{1,4}(th|st)?"),
    "choice": choice(["the city", "the river", 'a "town"\n', "Zürich"]),
    "grammar": lark('start: sum\nsum: NUMBER | sum " + " sum | "(" sum ")"\nNUMBER: /[0-9]{1,3}/'),
}
EOS = 0


@lru_cache
def tokens() -> ModelTokens:
    loaded = load()
    return model_tokens(loaded.tokenizer, loaded.target.vocab_size)


@lru_cache
def oracle_tokenizer() -> LLTokenizer:
    return LLTokenizer(tokens().backend.to_str(), n_vocab=tokens().vocab_size, eos_token=EOS)


def mask_of(constraint: GrammarConstraint, path: list[int]) -> np.ndarray:
    """What llguidance allows after a path, by a parser that reads it from the beginning."""
    matcher = LLMatcher(oracle_tokenizer(), constraint.grammar)
    assert matcher.consume_tokens(path)
    bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
    return bits[: tokens().vocab_size].astype(bool)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_states_allow_what_the_parser_allows_after_their_path(name: str) -> None:
    constraint, draw = CONSTRAINTS[name], random.Random(name)
    every = np.arange(tokens().vocab_size)
    for _ in range(2):
        automaton, path = constraint.automaton(tokens(), [EOS]), list[int]()
        state, seen = automaton.start, {automaton.start}
        while len(path) < 8:
            asks_first = draw.random() < 0.5
            few = np.array(draw.sample(range(tokens().vocab_size), 50))
            before = automaton.successors(state, few) if asks_first else None  # by tokens, then by the mask
            legal = automaton.legal(state)
            np.testing.assert_array_equal(legal, mask_of(constraint, path))
            states = automaton.successors(state, every)
            np.testing.assert_array_equal(states != ILLEGAL, legal)
            assert before is None or (before == states[few]).all()
            assert not seen & {*states[legal].tolist()}
            seen |= {*states[legal].tolist()}
            token = draw.choice(np.flatnonzero(legal).tolist())
            assert after(automaton, state, token) == states[token]
            state = int(states[token])
            if draw.random() < 0.5:
                automaton.release(state)
            if token == EOS:
                automaton.release(state)
                assert not automaton.legal(state).any()
                assert not len(automaton.forced(state))
                assert after(automaton, state, 5) == ILLEGAL
                break
            path.append(token)


@pytest.mark.parametrize("name", CONSTRAINTS)
def test_forced_tokens_spell_the_bytes_that_must_follow_as_the_tokenizer_does(name: str) -> None:
    constraint, draw, forced_ones = CONSTRAINTS[name], random.Random(name), 0
    for _ in range(6):
        automaton, path = constraint.automaton(tokens(), [EOS]), list[int]()
        state = automaton.start
        while len(path) < 20:
            forced = automaton.forced(state).tolist()
            matcher = LLMatcher(oracle_tokenizer(), constraint.grammar)
            matcher.consume_tokens(path)
            assert matcher.compute_ff_bytes().startswith(tokens().bytes_of(forced))
            assert forced or not matcher.compute_ff_bytes()
            end = state
            for token in forced:
                assert (end := after(automaton, end, token)) != ILLEGAL
            forced_ones += len(forced)
            token = forced[0] if forced else draw.choice(np.flatnonzero(automaton.legal(state)).tolist())
            if token == EOS:
                break
            path.append(token)
            state = after(automaton, state, token)
    assert forced_ones or name == "regex"


def test_a_text_that_is_determined_is_forced_to_its_end_as_the_tokenizer_writes_it() -> None:
    automaton = choice(["the history of the city"]).automaton(tokens(), [EOS])
    assert automaton.forced(automaton.start).tolist() == [*tokens().encode("the history of the city"), EOS]


def test_without_an_end_token_a_determined_text_is_forced_without_one() -> None:
    automaton = choice(["the city"]).automaton(tokens(), [])
    forced = automaton.forced(automaton.start).tolist()
    assert forced == tokens().encode("the city")
    state = automaton.start
    for token in forced:
        state = after(automaton, state, token)
    assert not automaton.legal(state).any()


def test_a_choice_allows_the_tokens_that_begin_one_of_its_texts() -> None:
    """By the bytes of every token."""
    texts = ["north of it", "east", "eastern", "sie", "Ünna"]
    automaton = choice(texts).automaton(tokens(), [EOS])
    expected = [
        spelled is not None and spelled != b"" and any(text.encode().startswith(spelled) for text in texts)
        for spelled in tokens().spelled
    ]
    np.testing.assert_array_equal(automaton.legal(automaton.start), expected)
    state = automaton.start
    for token in tokens().encode("east"):
        state = after(automaton, state, token)
    rest = [spelled is not None and spelled != b"" and b"ern".startswith(spelled) for spelled in tokens().spelled]
    rest[EOS] = True
    np.testing.assert_array_equal(automaton.legal(state), rest)


def test_json_is_written_in_one_way_unless_any_is_allowed() -> None:
    def allows(constraint: Constraint, text: str) -> bool:
        automaton = constraint.automaton(tokens(), [EOS])
        state = automaton.start
        return all((state := after(automaton, state, token)) != ILLEGAL for token in [*tokens().encode(text), EOS])

    value = {"name": "Rhine", "kind": "river", "years": [1, 23]}
    spaced = json.dumps(value, indent=1)
    assert allows(json_schema(SCHEMA), json.dumps(value))
    assert not allows(json_schema(SCHEMA), spaced)
    assert allows(json_schema(json.dumps(SCHEMA), any_whitespace=True), spaced)
    assert not allows(json_schema(SCHEMA), json.dumps({**value, "kind": "lake"}))


def test_a_constraint_is_compared_pickled_and_shared_by_what_it_says() -> None:
    one, other = regex("[ab]+"), pickle.loads(pickle.dumps(regex("[ab]+")))
    one.automaton(tokens(), [EOS])
    assert one == other
    assert hash(one) == hash(other)
    assert one != regex("[ab]*")
    assert (other.automaton(tokens(), [EOS]).legal(0) == one.automaton(tokens(), [EOS]).legal(0)).all()


NESTED: dict[str, Any] = {}
for _ in range(10_000):
    NESTED = {"items": NESTED}
UNSUPPORTED: dict[str, tuple[Callable[[], object], str]] = {
    "keyword": (lambda: json_schema({"type": "string", "not": {"const": "a"}}), '"not"'),
    "two keywords": (lambda: json_schema({"properties": {"a": {"if": {}, "then": {}}}}), '"if", "then"'),
    "format": (lambda: json_schema({"type": "string", "format": "topic"}), "topic"),
    "type": (lambda: json_schema({"type": "strin"}), "strin"),
    "no text": (lambda: json_schema({"type": "integer", "minimum": 3, "maximum": 2}), "Unsatisfiable"),
    "other documents": (lambda: json_schema({"$ref": "http://example.com/schema.json"}), "example.com"),
    "no object": (lambda: json_schema("[1]"), "object of JSON"),
    "no JSON": (lambda: json_schema("{"), "object of JSON"),
    "no JSON type": (lambda: json_schema({"const": {1, 2}}), "object of JSON"),
    "depth": (lambda: json_schema(NESTED), "nested too deeply"),
    "depth of a text": (lambda: json_schema('{"items":' * 10_000 + "{}" + "}" * 10_000), "recursion limit"),
    "size": (lambda: json_schema({"enum": [f"{i:06}" for i in range(700_000)]}), "at most 1000000 bytes"),
    "size of an enum": (lambda: json_schema({"enum": [f"{i:x}" for i in range(90_000)]}), "too big"),
    "a failure of its own": (
        lambda: json_schema({"minimum": {"const": "é" * 40, "a": "é" * 40, "$ref": [True]}}),
        "a JSON schema",
    ),
    "look-behind": (lambda: regex("(?<=a)b"), "look-behind"),
    "parenthesis": (lambda: regex("(a"), "unclosed group"),
    "nested groups": (lambda: regex("(" * 10_000 + "a" + ")" * 10_000), "regular expression"),
    "no pattern": (lambda: regex(3), "got int"),  # type: ignore[arg-type]
    "no start": (lambda: lark("a: b"), "no start rule"),
    "nested rules": (lambda: lark("start: " + "(" * 10_000 + '"a"' + ")" * 10_000), "too deeply nested"),
    "one text": (lambda: choice("yes"), "list of at least one text"),
    "no texts": (lambda: choice([]), "list of at least one text"),
    "an empty text": (lambda: choice(["yes", ""]), "none of them empty"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name_in_one_line(name: str) -> None:
    make, words = UNSUPPORTED[name]
    with pytest.raises(ValueError, match=r"^expected ") as refused:
        make()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500


PIECES = st.sampled_from([
    "start: ", "a", "(", ")", "[", "]", "{", "}", "{2,9}", "{,99999}", "*", "+", "?", "|", "\\", "\\d", ".", "^", "$",
    '"', "/", "\n", ":", "x: ", "%json", "%regex", "é", "\x00", "<[1-5]>", "<|endoftext|>", "&", "~", "[^", "]]", "-",
    "(?i)",
])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 99) | st.text(max_size=4) | st.sampled_from(["string", "object", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([
                "type", "properties", "items", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "required",
                "pattern", "minimum", "maxLength", "additionalProperties", "prefixItems", "$defs", "format", "minItems",
            ]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


def made_or_refused(make: Callable[[], GrammarConstraint]) -> None:
    """A constraint of which an automaton can be made and asked, or a ValueError of one line."""
    refused = ""
    try:
        automaton = make().automaton(tokens(), [EOS])
        state = automaton.start
        for _ in range(4):
            legal = np.flatnonzero(automaton.legal(state))
            automaton.forced(state)
            if not len(legal):
                break
            state = after(automaton, state, int(legal[len(legal) // 2]))
    except ValueError as error:
        refused = str(error)
    assert not refused or (refused.startswith("expected ") and "\n" not in refused)


@settings(max_examples=60, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from([regex, lark, json_schema]))
def test_garbage_is_a_constraint_or_a_value_error(text: str, make: Callable[[str], GrammarConstraint]) -> None:
    made_or_refused(lambda: make(text))


@settings(max_examples=60, deadline=None)
@given(VALUES)
def test_random_schemas_are_constraints_or_value_errors(schema: Any) -> None:
    made_or_refused(lambda: json_schema(schema))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ValueError, match=r"llguidance for structured output, found none; pip install .latticebpd\["):
        json_object()


def test_tokens_that_are_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected a tokenizer"):
        _ = model_tokens(letters(), 26).spelled
    with pytest.raises(ValueError, match="pass tokenizer="):
        model_tokens(None, 26)


def test_bytes_of_tokens_are_those_of_the_tokenizer() -> None:
    text = 'naïve Zürich — “quotes” 日本語 😀 {"a": 1}\n'
    assert tokens().bytes_of(tokens().encode(text)).decode() == text
    expected = [oracle_tokenizer().decode_bytes([token]) for token in range(1, tokens().vocab_size)]
    differing = [each for each in zip(tokens().spelled[1:], expected, strict=True) if each[0] != each[1]]
    assert differing in ([], [(b"\xff", b"")])  # with which llguidance marks special tokens


def test_ordinary_tokens_in_angle_brackets_are_text_and_special_ones_are_not() -> None:
    """Whatever llguidance makes of such tokens when it reads a tokenizer by itself."""
    backend = Tokenizer(models.BPE({"<": 0, "c": 1, ">": 2, "a": 3}, []))
    backend.decoder, backend.pre_tokenizer = decoders.ByteLevel(), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.add_special_tokens(["<|end|>", "<s>"])
    backend.add_tokens(["<c>"])
    call, of = backend.token_to_id("<c>"), ModelTokens(backend, 8)
    automaton = regex("(<c>|a)+").automaton(of, [backend.token_to_id("<|end|>")])
    assert np.flatnonzero(automaton.legal(automaton.start)).tolist() == [0, 3, call]
    assert lark('start: "<c>a"').automaton(of, [4]).forced(0).tolist() == [call, 3, 4]
    anything = regex(".*").automaton(of, [4])
    assert np.flatnonzero(anything.legal(0)).tolist() == [0, 1, 2, 3, 4, call]
    state = after(anything, 0, call)
    assert np.flatnonzero(anything.legal(state)).tolist() == [0, 1, 2, 3, 4, call]


def legal_tokens(constraint: GrammarConstraint, of: ModelTokens, end: int, path: list[int]) -> list[list[int]]:
    """What may stand in the place of each token of a path, and after it."""
    automaton = constraint.automaton(of, [end])
    state, legal = automaton.start, list[list[int]]()
    for token in [*path, end]:
        legal.append(np.flatnonzero(automaton.legal(state)).tolist())
        assert token in legal[-1]
        state = after(automaton, state, token)
    return legal


def test_the_name_of_a_special_token_is_text_like_other() -> None:
    text = "a <|endoftext|> of <|endoftext|>"
    path = tokens().encode(text)
    assert EOS not in path
    assert tokens().bytes_of(path).decode() == text
    for legal in legal_tokens(choice([text]), tokens(), EOS, path)[:-1]:
        assert EOS not in legal


def bytes_and_marker(sentence_piece: bool) -> tuple[Tokenizer, int, int]:
    """A tokenizer of bytes; the ids of its end of text and of ``[CALL]``, special tokens."""
    if sentence_piece:
        vocabulary = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}, "▁": 257}
        backend = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
        backend.normalizer = normalizers.Replace(" ", "▁")
        backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        backend = Tokenizer(models.BPE({letter: token for token, letter in enumerate(alphabet)}, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>", "[CALL]"])
    return backend, backend.token_to_id("<end>"), backend.token_to_id("[CALL]")


@pytest.mark.parametrize("sentence_piece", [False, True])
@pytest.mark.parametrize("grammar", ['start: "[CALL]f"', 'start: /x?/ "[CALL]" /[a-z]{1,3}/'])
def test_a_special_token_is_text_where_it_is_asked_for(grammar: str, sentence_piece: bool) -> None:
    backend, end, call = bytes_and_marker(sentence_piece)
    of = ModelTokens(backend, backend.get_vocab_size())
    assert of.writing(["CALL", "x"]) is of
    writing = of.writing(["x[CALL] "])
    assert writing is of.writing(["[CALL]"])
    assert (of.spelled[call], writing.spelled[call]) == (None, b"[CALL]")
    assert call in legal_tokens(lark(grammar), writing, end, writing.encode("[CALL]f"))[0]
    assert writing.encode("[CALL]f")[0] == call
    if not sentence_piece:  # whose text llguidance tokenizes by itself
        for legal in legal_tokens(lark(grammar), of, end, of.encode("[CALL]f")):
            assert call not in legal
