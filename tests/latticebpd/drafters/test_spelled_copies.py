"""Copies by spelling: against all suffixes of short texts, and what they draft in values of a JSON schema."""

from __future__ import annotations

from functools import lru_cache

from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import DraftTree, Loaded, NoDrafter, State, json_object, json_schema, load, regex
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, after, legal_path
from latticebpd.constraints.triggered import Triggered
from latticebpd.drafters.copies.spelled_copies import LEAST, LONGEST, SpelledCopies, copies

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kind": {"enum": ["river", "city"]}, "year": {"type": "integer"}},
    "required": ["name", "kind", "year"],
    "additionalProperties": False,
}


@lru_cache
def model() -> Loaded:
    return load(weights="int8")


def test_the_rest_of_a_word_and_the_words_of_a_name_are_copied() -> None:
    asked = b"He lives in Los Angeles with Ann-Marie, at 1024 meters. "
    rest, name, end, *_ = copies(asked + b'{"town": "Lo', 12)
    assert (rest, name) == ((b"s", 0.9, False), (b"s Angeles", 0.9 * 0.9, False))
    assert (end[0], end[2]) == (b"s Angeles", True)
    assert next(copies(asked + b'{"n": "Ann', 10)) == (b"-Marie", 0.9, False)
    assert [*copies(asked + b'{"at": 1024', 11)] == [(b"", 0.6, True)]


def test_nothing_is_copied_outside_words_or_where_the_word_is_new() -> None:
    for written in (b'{"town": "', b'{"town": "Zu', b""):
        assert not [*copies(b"He lives in Los Angeles. " + written, len(written))]


@settings(max_examples=200, deadline=None)
@given(st.text("ab A,", max_size=40), st.integers(1, 4))
def test_copies_follow_the_longest_match_and_grow_less_likely(text: str, new: int) -> None:
    spelled = text.encode()
    drafts = [*copies(spelled, min(new, len(spelled)))]
    ends = [(end, size) for size in range(1, min(len(spelled), LONGEST)) for end in range(size, len(spelled))
            if spelled[end - size : end] == spelled[-size:]]  # fmt: skip
    if not drafts:
        return
    longest = max(size for _, size in ends)
    position = max(end for end, size in ends if size == longest)
    for copy, probability, _ in drafts:
        assert spelled[position:].startswith(copy)
        assert probability >= LEAST
    copied = [copy for copy, _, ends in drafts if not ends]
    assert copied == sorted(copied, key=len)
    likelihoods = [probability for _, probability, ends in drafts if not ends]
    assert likelihoods == sorted(likelihoods, reverse=True)


def drafted(prompt: str, written: str) -> tuple[DraftTree, list[str]]:
    """The tree of a value's beginning, and the texts of its paths."""
    of = model()
    tokens = model_tokens(of.tokenizer, of.target.vocab_size)
    automaton = json_schema(SCHEMA).automaton(tokens, of.target.eos_ids)
    begin, new, state = tokens.encode(prompt), tokens.encode(written), automaton.start
    for token in new:
        state = after(automaton, state, token)
    assert state != ILLEGAL
    asked = State(0, [*begin, *new], len(begin), None, 64, automaton=automaton, automaton_state=state, asked=False)
    (tree,) = SpelledCopies(tokens).propose([asked])
    paths = [tree.tokens[tree.path(node)].tolist() for node in range(len(tree))]
    for path in paths:
        end = state
        for token in path:
            assert (end := after(automaton, end, token)) != ILLEGAL
    return tree, [tokens.bytes_of(path).decode() for path in paths]


def test_values_end_as_the_schema_says_and_what_must_follow_is_drafted() -> None:
    tree, texts = drafted("The river is called the Old Rhine, and was named in 1905.", '{"name": "Old Rhi')
    assert "ne" in texts
    assert max(texts, key=len) == 'ne", "kind": "'
    assert tree.log_probs is not None
    for node, parent in enumerate(tree.parents.tolist()):
        assert parent < 0 or tree.log_probs[node] <= tree.log_probs[parent]
    _, texts = drafted("It was founded in 1905. ", '{"name": "It", "kind": "city", "year": 190')
    assert "5}" in texts


def test_no_constraint_no_draft() -> None:
    of = model()
    tokens = model_tokens(of.tokenizer, of.target.vocab_size)
    ids = tokens.encode("the river and the riv")
    assert SpelledCopies(tokens).propose([State(0, ids, 2, None, 9)]) == [DraftTree.empty()]


def test_nothing_is_drafted_in_free_text() -> None:
    """Where the same words are copied within a value."""
    of = model()
    tokens = model_tokens(of.tokenizer, of.target.vocab_size)
    ids, new = tokens.encode("the old Rhine and "), tokens.encode("the old Rhi")
    for constraint, drafts in (
        (regex("(?s:.*)"), False), (Triggered(("<call>",), json_object()), False), (regex("[a-zA-Z ]*"), True),
    ):  # fmt: skip
        automaton = constraint.automaton(tokens, of.target.eos_ids)
        _, reached = legal_path(automaton, automaton.start, new)
        state = State(0, [*ids, *new], len(ids), None, 9, automaton=automaton, automaton_state=reached, asked=False)
        (tree,) = SpelledCopies(tokens).propose([state])
        assert bool(len(tree)) == drafts


def test_default_drafts_are_copies_by_spelling_too_and_change_no_text() -> None:
    of, constraint = model(), json_schema(SCHEMA)
    for prompt in ("The river Aare flows through the town of Bern.", "In 1905 the castle of the old town was built."):
        plain, default = (
            of.generate(prompt, drafter, constraint=constraint, max_new_tokens=48)
            for drafter in (NoDrafter(), of.drafter())
        )
        assert default.tokens.tolist() == plain.tokens.tolist()
        assert default.num_calls < plain.num_calls
