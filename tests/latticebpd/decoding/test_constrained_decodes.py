"""Decodes under constraints: the text of ``transformers`` with the same grammar as a logits processor, whatever is
drafted; samples of the masked distribution; texts that are what the constraint says."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from transformers import LogitsProcessor, LogitsProcessorList

from latticebpd import (
    DraftTree,
    Exact,
    Loaded,
    NoDrafter,
    ReferenceDrafter,
    Sampling,
    State,
    TopK,
    choice,
    custom_generate,
    generate,
    json_object,
    json_schema,
    lark,
    load,
    regex,
)
from latticebpd.constraints.grammar import GrammarConstraint
from latticebpd.constraints.token_automaton import ILLEGAL, after
from latticebpd.drafters.bundled import MODEL
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.drafters.strategies import BestTree
from latticebpd.lattices.drafts import Drafts
from latticebpd.models.load_target import load_stock
from latticebpd.scoring.ngram import NgramScorer
from latticebpd.verification.engine_verifier import EngineVerifier

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "kind": {"enum": ["river", "city", "town"]},
        "years": {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 2999},
            "minItems": 1,
            "maxItems": 3,
        },
        "old": {"type": "boolean"},
    },
    "required": ["name", "kind", "years", "old"],
    "additionalProperties": False,
}
CONSTRAINTS = {
    "schema": json_schema(SCHEMA),
    "any white space": json_schema(SCHEMA, any_whitespace=True),
    "object": json_object(),
    "regex": regex(r"[A-Z][a-z]+ was (born|built) in [0-9]{4}\."),
    "choice": choice(["the city", "the river", "the old town of the city"]),
    "grammar": lark('start: word (" " word)* "."\nword: "the" | "river" | "city" | "of" | "is"'),
}
PROMPTS = ["The history of the city", "The river", "In the north of the town is a castle."]
EOS = 0


@lru_cache
def loaded(weights: str) -> Loaded:
    return load(weights=weights)


class Grammar(LogitsProcessor):
    """llguidance's masks, by a parser that reads the new tokens from the beginning."""

    def __init__(self, constraint: GrammarConstraint, prompt_length: int) -> None:
        self.grammar, self.prompt_length = constraint.grammar, prompt_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = LLMatcher(oracle_tokenizer(), self.grammar)
        assert matcher.consume_tokens(input_ids[0, self.prompt_length :].tolist())
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        return scores.masked_fill(torch.from_numpy(bits[: scores.shape[1]] == 0), -float("inf"))


@lru_cache
def oracle_tokenizer() -> LLTokenizer:
    of = loaded("float32")
    return LLTokenizer(of.tokenizer.backend_tokenizer.to_str(), n_vocab=of.target.vocab_size, eos_token=EOS)


@lru_cache
def stock_model() -> Any:
    return load_stock(MODEL)


@lru_cache
def expected_text(name: str, prompt: str) -> list[int]:
    """By ``generate()`` of ``transformers``."""
    ids = torch.tensor([loaded("float32").encode(prompt)])
    processors = LogitsProcessorList([Grammar(CONSTRAINTS[name], ids.shape[1])])
    out = stock_model().generate(ids, do_sample=False, max_new_tokens=32, logits_processor=processors)
    return list(out[0, ids.shape[1] :].tolist())


def texts_of(out: Any) -> list[list[int]]:
    """Each row's new tokens, up to its end."""
    rows = out.tokens[:, out.prompt_length :].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row for row in rows]


@pytest.mark.parametrize("weights", ["float32", "torch"])
@pytest.mark.parametrize("system", [None, "8-copies", "16-best", "vanilla", "copies+8-tree", "greedy"])
def test_drafts_change_nothing_in_a_batch_and_the_text_is_that_of_transformers(
    weights: str, system: str | None
) -> None:
    of = loaded(weights)
    for first in range(0, len(CONSTRAINTS), 3):
        names = [*CONSTRAINTS][first : first + 3]
        drafter = of.drafter(system)
        out = of.generate(PROMPTS, drafter, constraint=[CONSTRAINTS[name] for name in names], max_new_tokens=32)
        assert texts_of(out) == [expected_text(name, prompt) for name, prompt in zip(names, PROMPTS, strict=True)]
        assert out.cut == tuple(EOS not in text for text in texts_of(out))


@pytest.mark.parametrize("system", [None, "8-copies", "vanilla"])
def test_quantized_weights_write_the_same_text_with_drafts_and_without(system: str | None) -> None:
    of = loaded("int8")
    for constraint in CONSTRAINTS.values():
        plain, drafted = (
            of.generate(PROMPTS[1], drafter, constraint=constraint, max_new_tokens=32)
            for drafter in (NoDrafter(), of.drafter(system))
        )
        assert texts_of(plain) == texts_of(drafted)
        assert drafted.num_calls <= plain.num_calls


def test_one_constraint_holds_for_all_rows_and_none_for_some() -> None:
    of = loaded("float32")
    out = of.generate(PROMPTS, constraint=CONSTRAINTS["schema"], max_new_tokens=32)
    assert texts_of(out) == [expected_text("schema", prompt) for prompt in PROMPTS]
    mixed = of.generate(PROMPTS[:2], constraint=[None, CONSTRAINTS["choice"]], max_new_tokens=12)
    alone = of.generate(PROMPTS[0], max_new_tokens=12)
    assert texts_of(mixed) == [*texts_of(alone), expected_text("choice", PROMPTS[1])]


def test_threads_share_a_constraint() -> None:
    of = loaded("float32")

    def decoded(prompt: str) -> list[list[int]]:
        return texts_of(of.generate(prompt, of.drafter(), constraint=CONSTRAINTS["schema"], max_new_tokens=32))

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(decoded, PROMPTS * 2)] == [[expected_text("schema", prompt)] for prompt in PROMPTS * 2]


def test_what_must_follow_is_drafted_and_costs_few_calls() -> None:
    of, text = loaded("float32"), '{"name": "the river of the city", "kind": "river"}'
    constraint = choice([text])
    plain = of.generate(PROMPTS[0], NoDrafter(), constraint=constraint, trace=True)
    assert (plain.num_calls, plain.prefilled) == (0, (plain.num_tokens,))
    assert of.decode(texts_of(plain)[0][:-1]) == text
    assert [len(block) for block in plain.blocks()] == [plain.num_tokens]
    forced = of.generate(PROMPTS[0], NoDrafter(drafts_forced=True), constraint=CONSTRAINTS["schema"], trace=True)
    greedy = of.generate(PROMPTS[0], NoDrafter(), constraint=CONSTRAINTS["schema"], trace=True)
    assert texts_of(forced) == texts_of(greedy) == [[*chain(*forced.blocks())]] == [[*chain(*greedy.blocks())]]
    assert forced.num_calls < greedy.num_calls / 1.5
    assert not greedy.verified_tokens


def test_the_first_pass_drafts_what_must_follow_and_the_drafter_is_asked_first_after_it() -> None:
    of, seen = loaded("float32"), list[State]()

    class Watching:
        def propose(self, states: list[State]) -> list[DraftTree]:
            seen.extend(states)
            return [DraftTree.empty()] * len(states)

        def observe(self, rows: list[int], tokens: list[list[int]]) -> None: ...

    out = of.generate(PROMPTS[0], Watching(), constraint=CONSTRAINTS["schema"], max_new_tokens=32)
    assert texts_of(out) == [expected_text("schema", PROMPTS[0])]
    assert out.prefilled == (0,)
    assert len(seen[0].tokens) > seen[0].prompt_length + 1
    assert [state.is_first for state in seen] == [True] + [False] * (len(seen) - 1)


def test_drafts_of_a_scorer_that_takes_no_constraints_are_cut_to_legal_ones() -> None:
    class Plain:
        alpha = 0.0

        def with_alpha(self, alpha: float) -> Plain:
            return self

        def paths(self, lattices: Any, contexts: Any, p: int) -> list[Drafts]:
            return NgramScorer(None).paths(lattices, contexts, p)

        def trees(self, lattices: Any, contexts: Any, num_nodes: int) -> list[DraftTree]:
            return NgramScorer(None).trees(lattices, contexts, num_nodes)

    of = loaded("float32")
    drafter = LatticeDrafter(of.lattice_source(), BestTree(Plain(), 16))
    out = of.generate(PROMPTS[0], drafter, constraint=CONSTRAINTS["grammar"], max_new_tokens=32)
    assert texts_of(out) == [expected_text("grammar", PROMPTS[0])]


def test_generate_of_transformers_takes_a_constraint() -> None:
    of = loaded("torch")
    decoding = custom_generate(of.drafter("8-copies"), constraint=CONSTRAINTS["schema"], tokenizer=of.tokenizer)
    ids = torch.tensor([of.encode(PROMPTS[0])])
    out = stock_model().generate(ids, do_sample=False, max_new_tokens=32, custom_generate=decoding)
    assert out[0, ids.shape[1] :].tolist() == expected_text("schema", PROMPTS[0])


@pytest.mark.parametrize("weights", ["float32", "torch"])
@pytest.mark.parametrize("rule", [Exact(), Sampling(temperature=0.01), TopK(2)])
def test_a_draft_is_accepted_through_its_end(weights: str, rule: Any) -> None:
    of = loaded(weights)
    for name in ("schema", "regex", "choice"):
        expected = expected_text(name, PROMPTS[0])
        drafter = ReferenceDrafter(expected, 40)
        out = of.generate(PROMPTS[0], drafter, acceptance=rule, constraint=CONSTRAINTS[name], max_new_tokens=32)
        assert texts_of(out) == [expected]
        assert out.num_calls <= 1


class Illegal:
    """Drafts tokens of which the constraint allows none or some."""

    needs_hidden = False

    def propose(self, states: list[State]) -> list[DraftTree]:
        self.seen = [(state.automaton, state.automaton_state) for state in states]
        return [DraftTree.from_paths([[5, 6], [7], *([token, 9, 9] for token in range(300, 330))])] * len(states)

    def observe(self, rows: list[int], tokens: list[list[int]]) -> None: ...


def test_no_illegal_draft_is_verified() -> None:
    of, drafter = loaded("float32"), Illegal()
    out = of.generate(PROMPTS[0], drafter, constraint=CONSTRAINTS["grammar"], max_new_tokens=24, trace=True)
    assert texts_of(out) == [expected_text("grammar", PROMPTS[0])[:24]]
    tokens = model_tokens_of(of)
    verified = 0
    blocks, steps = out.blocks(), out.trace or []
    for i, step in enumerate(steps, len(blocks) - len(steps)):
        automaton = CONSTRAINTS["grammar"].automaton(tokens, [EOS])
        state = automaton.start
        for token in chain(*blocks[:i]):
            state = after(automaton, state, token)
        for node in range(len(step.tree)):
            end = state
            for token in step.tree.tokens[step.tree.path(node)].tolist():
                end = after(automaton, end, token)
            assert end != ILLEGAL
            verified += 1
    assert verified == out.verified_tokens


def model_tokens_of(of: Loaded) -> Any:
    from latticebpd.constraints.model_tokens import model_tokens

    return model_tokens(of.tokenizer, of.target.vocab_size)


@pytest.mark.parametrize("name", ["schema", "choice", "regex", "grammar"])
def test_a_pass_computes_logits_only_where_there_is_a_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, asked = loaded("float32"), list[int]()
    verified = EngineVerifier._verified

    def counted(*arguments: Any) -> Any:
        made = verified(*arguments)
        some = made.some_logits_of

        def some_logits_of(rows: Any, columns: Any, tokens: Any) -> Any:
            asked.extend(map(len, tokens))
            return some(rows, columns, tokens)

        object.__setattr__(made, "some_logits_of", some_logits_of)
        return made

    monkeypatch.setattr(EngineVerifier, "_verified", counted)
    out = of.generate(PROMPTS[0], constraint=CONSTRAINTS[name], max_new_tokens=32)
    assert texts_of(out) == [expected_text(name, PROMPTS[0])]
    assert asked
    assert min(asked) > 1
    assert len(asked) < out.num_tokens


@lru_cache
def exact_distribution(constraint: GrammarConstraint, prompt: str, temperature: float) -> dict[tuple[int, ...], float]:
    """Of all texts, by logits of the stock model and llguidance's masks."""
    ids, result = loaded("float32").encode(prompt), dict[tuple[int, ...], float]()

    def extend(text: list[int], probability: float) -> None:
        if text and text[-1] == EOS:
            result[tuple(text)] = probability
            return
        with torch.inference_mode():
            logits = stock_model()(torch.tensor([ids + text])).logits[0, -1:] / temperature
        probabilities = Grammar(constraint, len(ids))(torch.tensor([ids + text]), logits)[0].softmax(dim=-1)
        for token in probabilities.nonzero()[:, 0].tolist():
            extend([*text, token], probability * float(probabilities[token]))

    extend([], 1.0)
    assert abs(sum(result.values()) - 1) < 1e-5
    return result


@pytest.mark.parametrize(("weights", "system"), [("float32", None), ("float32", "greedy"), ("torch", "8-copies")])
def test_samples_are_of_the_masked_distribution(weights: str, system: str | None) -> None:
    of, constraint, total = loaded(weights), choice(["the city", "the river", "a town", "a", "the old city"]), 240
    exact = exact_distribution(constraint, PROMPTS[0], 2.0)
    rule = Sampling(temperature=2.0, top_k=0, generator=torch.Generator().manual_seed(7))
    seen = dict.fromkeys(exact, 0)
    drafter = of.drafter(system)
    for _ in range(total // 40):
        out = of.generate([PROMPTS[0]] * 40, drafter, constraint=constraint, acceptance=rule, max_new_tokens=16)
        for text in texts_of(out):
            seen[tuple(text)] += 1
    frequent = [text for text in exact if exact[text] * total >= 5]
    rest = 1 - sum(exact[text] for text in frequent)
    chi_square = sum((seen[text] - exact[text] * total) ** 2 / (exact[text] * total) for text in frequent)
    assert len(frequent) >= 3
    others = total - sum(seen[text] for text in frequent)
    assert others < rest * total + 6 * (rest * total + 1) ** 0.5
    cells = len(frequent)
    # Beyond this bound with probability below 1e-4 (normal approximation of chi-square by Wilson and Hilferty).
    assert chi_square < cells * (1 - 2 / (9 * cells) + 3.8 * (2 / (9 * cells)) ** 0.5) ** 3


@pytest.mark.parametrize("seed", range(4))
def test_every_complete_text_is_what_the_constraint_says(seed: int) -> None:
    of = loaded("int8")
    options: dict[str, Any] = {"do_sample": True, "seed": seed, "temperature": 1.5, "top_k": 0, "max_new_tokens": 90}
    out = of.generate(PROMPTS[seed % 3], constraint=CONSTRAINTS["schema"], **options)
    text = of.tokenizer.decode(texts_of(out)[0], skip_special_tokens=True)
    assert not out.cut[0]
    value = json.loads(text)
    jsonschema.validate(value, SCHEMA)
    assert re.sub(r"\\/", "/", text)[0] == "{"
    out = of.generate(PROMPTS[seed % 3], constraint=CONSTRAINTS["regex"], **options)
    text = of.tokenizer.decode(texts_of(out)[0], skip_special_tokens=True)
    assert out.cut[0] or re.fullmatch(r"[A-Z][a-z]+ was (born|built) in [0-9]{4}\.", text)


def test_a_text_that_the_limit_cuts_says_so() -> None:
    out = loaded("float32").generate(PROMPTS, constraint=CONSTRAINTS["schema"], max_new_tokens=5)
    assert out.cut == (True,) * 3
    assert texts_of(out) == [expected_text("schema", prompt)[:5] for prompt in PROMPTS]


def test_lenient_rules_take_legal_tokens_only() -> None:
    of = loaded("float32")
    out = of.generate(PROMPTS, of.drafter("16-tree"), acceptance=TopK(50), constraint=CONSTRAINTS["schema"])
    for text in texts_of(out):
        jsonschema.validate(json.loads(of.tokenizer.decode(text, skip_special_tokens=True)), SCHEMA)


class Banned(LogitsProcessor):
    """Rules out everything."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -float("inf"))


def test_a_constraint_comes_before_processors() -> None:
    of = loaded("float32")
    ids = of.encode(PROMPTS[0])
    options: dict[str, Any] = {"constraint": CONSTRAINTS["choice"], "tokenizer": of.tokenizer}
    out = generate(of.target, ids, NoDrafter(), logits_processor=LogitsProcessorList([Banned()]), **options)
    assert texts_of(out) == [expected_text("choice", PROMPTS[0])]
    doubled = LogitsProcessorList([lambda ids, scores: 2 * scores])
    out = generate(of.target, ids, of.drafter(), logits_processor=doubled, **options)
    assert texts_of(out) == [expected_text("choice", PROMPTS[0])]


class Stubborn(Exact):
    """Always takes one token."""

    def choose(self, logits: Any, drafted: Any, depths: Any) -> list[int]:
        return [7] * len(depths)


def test_what_cannot_be_decoded_is_refused_in_one_line() -> None:
    of = loaded("float32")
    ids, one = of.encode(PROMPTS[0]), CONSTRAINTS["schema"]
    for options, words in (
        ({"constraint": one}, "pass tokenizer="),
        ({"constraint": "yes|no", "tokenizer": of.tokenizer}, "one constraint for all rows"),
        (
            {"constraint": {"type": "object"}, "tokenizer": of.tokenizer},
            r"json_schema\(...\) or regex\(...\), got dict",
        ),
        ({"constraint": [one, one], "tokenizer": of.tokenizer}, "for each of 1, got 2"),
        ({"constraint": regex(r"[^\s\S]"), "tokenizer": of.tokenizer}, "allows some text"),
        (
            {"constraint": CONSTRAINTS["object"], "tokenizer": of.tokenizer, "acceptance": Stubborn()},
            "a token that the constraint allows, got 7",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            generate(of.target, ids, of.drafter("8-copies"), **options)  # type: ignore[arg-type]
