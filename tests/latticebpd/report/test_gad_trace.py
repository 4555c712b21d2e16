"""The trace of drafter and verifier: what it shows is what happened."""

from __future__ import annotations

import pytest
import torch

from latticebpd import DraftTree, State, TopBeta, generate
from latticebpd.drafting.gad import GadTreeDrafter
from latticebpd.models.mask_filling import NonAutoregressiveModel
from latticebpd.report.gad_trace import Example, exchanges, pieces, trace_html, trace_text
from tests.helpers.drafters import ScriptedDrafter
from tests.helpers.translators import MASK, NEW, SOURCES, greedy, verifier_of

SOURCE = SOURCES[0]


def decode(tokens: list[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def test_the_verifiers_line_is_what_it_would_write_behind_each_drafted_place() -> None:
    verifier = verifier_of("bart", 1)
    drafter = GadTreeDrafter(NonAutoregressiveModel.like(verifier, MASK, 6), None, num_nodes=8, k=3)
    out = generate(verifier, torch.tensor([SOURCE]), drafter, max_new_tokens=NEW, trace=True)
    text = out.sequences[0].tolist()
    found = exchanges(verifier, SOURCE, out)
    assert len(found) == out.num_calls
    for exchange in found:
        settled = len(exchange.settled) + 1
        assert [1, *exchange.settled] == text[:settled]
        assert exchange.verified[: exchange.accepted] == exchange.drafted[: exchange.accepted]
        assert (
            exchange.committed == [*exchange.drafted[: exchange.accepted], exchange.verified[exchange.accepted]][: len(exchange.committed)]
        )
        assert exchange.lenient == []
        for place, token in enumerate(exchange.verified):  # the oracle: one step of generate() behind this very prefix
            prefix = torch.tensor([[1, *exchange.settled, *exchange.drafted[:place]]])
            step = verifier.generate(torch.tensor([SOURCE]), decoder_input_ids=prefix, do_sample=False, max_new_tokens=1)
            assert int(step[0, -1]) == token


def scripted(draft: list[int], rule: TopBeta) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    verifier = verifier_of("marian", 2)
    text = greedy(verifier, [SOURCE], 5)[0].tolist()

    def propose(state: State) -> DraftTree:
        done = len(state.tokens)
        right = {0: text[done], 1: text[done + 1]} if done == 2 else {}
        return DraftTree.from_paths([[right.get(token, token) for token in draft][: state.max_depth]])

    out = generate(verifier, torch.tensor([SOURCE]), ScriptedDrafter(propose), rule, max_new_tokens=5, trace=True)
    return pieces(exchanges(verifier, SOURCE, out)[0], decode)


def test_pieces_say_what_became_of_every_token() -> None:
    draft, verdict = scripted([0, 1, 9], TopBeta(1, 0.0))  # two right tokens, a wrong one
    assert [state for _, state in draft] == ["settled", "kept", "kept", "refused"]
    assert [state for _, state in verdict] == ["settled", "kept", "kept", "own", "void"]
    assert draft[-1][0] == " w9"
    assert verdict[3][0] != " w9"
    draft, verdict = scripted([9, 0, 1], TopBeta(1, 0.0))
    assert [state for _, state in draft] == ["settled", "refused", "void", "void"]
    assert [state for _, state in verdict] == ["settled", "own", "void", "void", "void"]
    draft, verdict = scripted([9, 10, 11], TopBeta(23, 99.0))
    assert "lenient" in [state for _, state in draft]
    assert [text for text, state in draft if state == "lenient"] == [text for text, state in verdict if state == "lenient"]


def test_text_and_page_hold_every_exchange_and_nothing_from_elsewhere() -> None:
    verifier = verifier_of("bart", 1)
    drafter = GadTreeDrafter(NonAutoregressiveModel.like(verifier, MASK, 6), None, num_nodes=8, k=3)
    out = generate(verifier, torch.tensor([SOURCE]), drafter, max_new_tokens=NEW, trace=True)
    found = exchanges(verifier, SOURCE, out)
    lines = trace_text(found, decode).splitlines()
    assert [line[0] for line in lines] == ["D", "V"] * len(found)
    assert all(line.count("<") <= 1 for line in lines)
    page = trace_html("A & B", [Example("<1>", "w3 <b>", found)], decode)
    assert page.count("<tr") == 2 * len(found)
    assert "A &amp; B" in page
    assert "w3 &lt;b&gt;" in page
    assert "http" not in page
    assert "<script" not in page


def test_a_decode_without_a_trace_is_refused() -> None:
    verifier = verifier_of("bart", 1)
    out = generate(verifier, torch.tensor([SOURCE]), ScriptedDrafter(lambda state: DraftTree.empty()), max_new_tokens=3)
    with pytest.raises(ValueError, match="expected a decode with a trace"):
        exchanges(verifier, SOURCE, out)
