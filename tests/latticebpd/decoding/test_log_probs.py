"""Log-probabilities of decodes: those of one reading of the finished text, whatever was drafted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd import Exact, NoDrafter, ReferenceDrafter, Sampling, TopK, generate
from latticebpd.decoding.log_probs import TokenLogProb, log_probs_of_paths, of_committed
from latticebpd.verification.finished_texts import read_text
from latticebpd.verification.verifier import Verified
from tests.helpers.drafters import DRAFTERS
from tests.helpers.engine_models import on_engine, with_heads
from tests.helpers.tiny_families import tiny
from tests.helpers.token_automata import TableAutomaton
from tests.helpers.tokenizers import letters

PROMPTS = [[4, 9, 5], [3], [7, 7, 2, 11, 6]]


def expected(model: Any, prompt: list[int], new: list[int]) -> torch.Tensor:
    """``[new tokens, vocab]``: of one pass over the finished text, by PyTorch's own log-softmax."""
    text = [*prompt, *new]
    return read_text(model, text, range(len(prompt) - 1, len(text) - 1)).logits.double().log_softmax(dim=-1)


def check(found: list[TokenLogProb], new: list[int], table: torch.Tensor, top: int) -> None:
    assert [each.token for each in found] == new
    for each, row in zip(found, table, strict=True):
        assert each.log_prob == pytest.approx(float(row[each.token]), abs=1e-5)
        order = sorted(range(len(row)), key=lambda token: (-float(row[token]), token))[:top]
        assert [token for token, _ in each.top] == order
        np.testing.assert_allclose([value for _, value in each.top], row[order], atol=1e-5)


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("top", [0, 3])
def test_they_are_those_of_the_finished_text_and_no_draft_changes_a_bit(name: str, top: int) -> None:
    heads = with_heads(on_engine("int8"))
    model = heads.target
    texts = [generate(model, [prompt], NoDrafter(), max_new_tokens=24).tokens[0].tolist() for prompt in PROMPTS]
    for prompt, text in zip(PROMPTS, texts, strict=True):
        options: dict[str, Any] = {"max_new_tokens": 24, "log_probs": top, "attention_mask": [[1] * len(prompt)]}
        drafted = generate(model, [prompt], DRAFTERS[name](heads, [text[len(prompt) :]]), **options)
        plain = generate(model, [prompt], NoDrafter(), **options)
        assert drafted.log_probs == plain.log_probs
        assert plain.log_probs is not None
        new = plain.tokens[0, len(prompt) :].tolist()
        check(plain.log_probs[0], new, expected(model, prompt, new), top)


def test_a_batch_has_each_rows_own_up_to_its_end() -> None:
    model = on_engine()
    text = generate(model, [PROMPTS[0]], NoDrafter(), max_new_tokens=24).tokens[0, 3:].tolist()
    end = next(token for i, token in enumerate(text) if i >= 3 and token not in text[:i])
    rows = [[0] * (5 - len(prompt)) + prompt for prompt in PROMPTS]
    mask = [[0] * (5 - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS]
    options: dict[str, Any] = {"max_new_tokens": 24, "eos_token_id": end, "log_probs": 2}
    out = generate(model, rows, ReferenceDrafter([text] * 3, 5), attention_mask=mask, **options)
    assert out.log_probs is not None
    assert len(out.log_probs[0]) < 24
    for prompt, found in zip(PROMPTS, out.log_probs, strict=True):
        alone = generate(model, [prompt], NoDrafter(), attention_mask=[[1] * len(prompt)], **options)
        assert alone.log_probs == [found]
        assert [each.token for each in found] == alone.tokens[0, len(prompt) :].tolist()


@pytest.mark.parametrize("rule", [TopK(2), Sampling(0.7, 5, 0.9), Exact()])
def test_sampling_and_lenient_rules_have_the_models_own(rule: Any) -> None:
    """Not those of the filtered distribution."""
    heads = with_heads(on_engine())
    torch.manual_seed(0)
    out = generate(heads.target, [PROMPTS[0]], DRAFTERS["tree"](heads, []), rule, max_new_tokens=24, log_probs=1)
    assert out.log_probs is not None
    new = out.tokens[0, 3:].tolist()
    check(out.log_probs[0], new, expected(heads.target, PROMPTS[0], new), 1)


@pytest.mark.parametrize("family", ["llama", "t5", "bloom"])
def test_models_on_pytorch_have_them_to_a_hundred_thousandth(family: str) -> None:
    model = tiny(family)
    text = generate(model, [PROMPTS[0]], NoDrafter(), max_new_tokens=12).tokens[0].tolist()
    new = text[1:] if family == "t5" else text[3:]
    runs = [
        generate(model, [PROMPTS[0]], drafter, max_new_tokens=12, log_probs=2).log_probs
        for drafter in (NoDrafter(), ReferenceDrafter([new], 4))
    ]
    for one, other in zip(*(run[0] for run in runs if run), strict=True):
        assert one.token == other.token
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-5)
        np.testing.assert_allclose(one.top, other.top, atol=1e-5)
    if family == "llama":
        assert runs[0] is not None
        check(runs[0][0], new, expected(model, PROMPTS[0], new), 2)


def test_nobody_else_gets_them_or_pays_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from latticebpd.decoding import loop

    def refuse(*arguments: Any) -> None:
        raise AssertionError("nobody asked")

    monkeypatch.setattr(loop, "log_probs_of_paths", refuse)
    assert generate(on_engine(), [PROMPTS[0]], NoDrafter(), max_new_tokens=4).log_probs is None
    with pytest.raises(ValueError, match="log_probs >= 0, got -1"):
        generate(on_engine(), [PROMPTS[0]], NoDrafter(), max_new_tokens=4, log_probs=-1)


@dataclass
class Table:
    """A constraint that is a table."""

    arcs: list[dict[int, tuple[int, float]]]

    def automaton(self, tokens: Any, eos_ids: Any) -> TableAutomaton:
        return TableAutomaton(self.arcs, tokens.vocab_size)


CHAIN = [{token: (token, 0.0)} for token in (1, 2, 3)] + [{0: (4, 0.0)}, {}]
CHOICES = [dict.fromkeys(range(1, 9), (1, 0.0)), {3: (2, 0.0), 4: (0, 0.0)}, {9: (3, 0.0)}, {0: (4, 0.0)}, {}]
WEIGHTED = [{5: (1, 0.5), 6: (0, -0.25)}, {7: (0, 1.0), 8: (2, 0.0), 9: (0, 0.0)}, {0: (3, 0.0)}, {}]


@pytest.mark.parametrize("arcs", [CHAIN, CHOICES, WEIGHTED])
def test_a_constraints_are_those_of_its_legal_tokens_and_what_is_determined_is_certain(arcs: Any) -> None:
    model, constraint = on_engine(), Table(arcs)
    options: dict[str, Any] = {"max_new_tokens": 12, "eos_token_id": 0, "constraint": constraint}
    options |= {"tokenizer": letters(), "log_probs": 4}
    plain = generate(model, [PROMPTS[0]], NoDrafter(), **options)
    new = plain.tokens[0, 3:].tolist()
    drafted = generate(model, [PROMPTS[0]], ReferenceDrafter([new], 3), **options)
    assert plain.log_probs == drafted.log_probs
    assert plain.log_probs is not None
    assert [each.token for each in plain.log_probs[0]] == new
    automaton = TableAutomaton(arcs, model.vocab_size)
    table, state = expected(model, PROMPTS[0], new), automaton.start
    for row, each in zip(table, plain.log_probs[0], strict=True):
        legal = torch.from_numpy(automaton.legal(state))
        tokens = legal.nonzero()[:, 0]
        row[tokens] -= torch.from_numpy(automaton.costs(state, tokens.numpy()))
        masked = row.masked_fill(~legal, -math.inf).log_softmax(dim=-1)
        check([each], [each.token], masked[None], min(4, int(legal.sum())))
        if legal.sum() == 1:
            assert (each.log_prob, len(each.top)) == (0.0, 1)
        (state,) = automaton.successors(state, np.array([each.token])).tolist()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_lines_with_ties_costs_and_infinities_are_brute_force(data: st.DataObject) -> None:
    values = st.sampled_from([-math.inf, -2.0, 0.0, 0.5, 0.5, 3.0])
    logits = np.array(data.draw(st.lists(values, min_size=6, max_size=6)), np.float32)
    logits[2] = 1.0
    arcs = {token: (0, float(data.draw(st.sampled_from([0, 0.25, 2])))) for token in (0, 2, 5)}
    top, constrained = data.draw(st.integers(0, 7)), data.draw(st.booleans())
    verified = Verified(None, lambda rows, columns: torch.from_numpy(logits[None].repeat(len(rows), 0)))
    position = (TableAutomaton([arcs], 6), 0) if constrained else None
    ((found,),) = log_probs_of_paths([top], [[]], [[2]], verified, [position])
    scores = [float(score) for score in logits]
    if constrained:
        scores = [score - arcs[token][1] if token in arcs else -math.inf for token, score in enumerate(scores)]
    total = math.log(sum(map(math.exp, scores)))
    ranked = sorted((-score, token) for token, score in enumerate(scores) if score > -math.inf)[:top]
    assert found.log_prob == pytest.approx(scores[2] - total, abs=1e-6)
    assert [token for token, _ in found.top] == [token for _, token in ranked]
    assert [value for _, value in found.top] == pytest.approx([-score - total for score, _ in ranked], abs=1e-6)


def test_what_a_pass_commits_less_or_more_is_cut_or_certain() -> None:
    own = [TokenLogProb(3, -1.0, ((3, -1.0),)), TokenLogProb(4, -2.0, ((5, -0.5),))]
    assert of_committed(own, [3], 1) == own[:1]
    assert of_committed(own, [3, 4, 6, 0], 1) == [
        *own,
        TokenLogProb(6, 0.0, ((6, 0.0),)),
        TokenLogProb(0, 0.0, ((0, 0.0),)),
    ]
    assert of_committed([], [6], 0) == [TokenLogProb(6, 0.0, ())]
