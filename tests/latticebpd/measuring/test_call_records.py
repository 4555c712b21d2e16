"""Decodes call by call: what is told of each place is what the model itself says there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from latticebpd import (
    BlockwiseLM,
    DraftTree,
    MixtureDrafter,
    PromptNgramDrafter,
    SausageLattice,
    State,
    TopBeta,
    TreeDrafter,
    VanillaDrafter,
    generate,
)  # fmt: skip
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel
from latticebpd.measuring.call_records import Call, End, read_calls, scorer_of
from latticebpd.scoring.posteriors import arc_posteriors
from tests.helpers.blockwise_models import greedy
from tests.helpers.drafters import ScriptedDrafter, gad_tree_drafter
from tests.helpers.translators import MASK, NEW, SOURCES, verifier_of
from tests.helpers.trigrams import trigram

PROMPT = [3, 1, 4]


def test_the_models_choice_is_what_it_would_write_behind_each_place() -> None:
    verifier, source = verifier_of("bart", 1), SOURCES[0]
    drafter = gad_tree_drafter(NonAutoregressiveModel.like(verifier, MASK, 6), None, num_nodes=8, k=3)
    out = generate(verifier, torch.tensor([source]), drafter, TopBeta(3, 2.0), max_new_tokens=NEW, trace=True)
    text = out.sequences[0].tolist()
    calls = read_calls(verifier, source, out)
    assert len(calls) == out.num_calls
    checked = 0
    for call in calls:
        for position, position_record in enumerate(call.positions[: len(call.step.committed)]):
            prefix = text[: 1 + call.start + position]
            assert position_record.choice is not None
            assert position_record.written == text[len(prefix)]
            step = verifier.generate(
                torch.tensor([source]), decoder_input_ids=torch.tensor([prefix]), do_sample=False, max_new_tokens=1
            )
            assert (
                int(step[0, -1]) == position_record.choice.best
            )  # the oracle: one step of generate() behind this very prefix
            assert (position_record.choice.rank == 0) == (position_record.choice.best == position_record.written)
            assert position_record.state in (
                ("lenient",) if position_record.choice.rank else ("kept", "refused", "own")
            )
            checked += 1
        assert all(position_record.state == "void" for position_record in call.positions[len(call.step.committed) :])
    assert out.prefilled == (False,)
    assert checked == len(text) - 1


def calls_of(model: BlockwiseLM, tree_of: object, rule: TopBeta | None = None, **options: object) -> list[Call]:
    """The calls of a decode whose drafts are ``tree_of(the text's next tokens)``."""
    text = greedy(model, PROMPT)

    def propose(state: State) -> DraftTree:
        return tree_of(text[len(state.tokens) - len(PROMPT) :])

    out = generate(
        model,
        PROMPT,
        ScriptedDrafter(propose),
        *([rule] if rule else []),
        **{"max_new_tokens": 3, "trace": True, **options},
    )
    return read_calls(model, PROMPT, out)


def other(token: int) -> int:
    return (token + 1) % 23


def test_each_cause_of_an_end_is_told_apart(model: BlockwiseLM) -> None:
    def one_slot(*tokens: int) -> SausageLattice:
        return SausageLattice([list(tokens)], [[-1.0] * len(tokens)])

    trees = {
        End.ALL_KEPT: lambda text: DraftTree.from_paths([text[:1]]),
        End.OTHERS: lambda text: DraftTree.from_paths([[other(text[0])]]),
        End.NO_DRAFT: lambda text: DraftTree.empty(),
        End.MISRANKED: lambda text: DraftTree.from_paths([[other(text[0])]], one_slot(other(text[0]), text[0])),
        End.NOT_IN_LATTICE: lambda text: DraftTree.from_paths([[other(text[0])]], one_slot(other(text[0]))),
        End.BUDGET: lambda text: DraftTree.from_paths(
            [text[:1]], SausageLattice([[text[0]], [text[1]]], [[0.0], [0.0]])
        ),
    }
    for end, tree_of in trees.items():
        call = calls_of(model, tree_of, max_new_tokens=5)[0]
        assert call.end is end
        assert (call.after is None) == (end in (End.ALL_KEPT, End.OTHERS, End.NO_DRAFT))
    ended = calls_of(
        model, lambda text: DraftTree.from_paths([text[:3]]), max_new_tokens=9, eos_token_id=greedy(model, PROMPT)[2]
    )
    assert ended[-1].end is End.END_OF_TEXT
    assert [position.state for position in calls_of(model, trees[End.OTHERS])[0].positions] == ["refused", "void"]
    assert [position.state for position in calls_of(model, trees[End.ALL_KEPT])[0].positions] == ["kept", "own"]


def test_weights_after_rescoring_are_those_of_the_calls_own_text(model: BlockwiseLM) -> None:
    lm = trigram()
    drafter = TreeDrafter(model, lm, num_nodes=12, alpha=0.7, k=4)
    out = generate(model, PROMPT, drafter, max_new_tokens=20, trace=True)
    assert scorer_of(MixtureDrafter(PromptNgramDrafter(), drafter)) is scorer_of(drafter)
    assert scorer_of(CostAwareDrafter(drafter, CostCurve((1,), (1,), ((1.0,),)))) is scorer_of(drafter)
    assert scorer_of(VanillaDrafter(model)) is None
    calls = read_calls(model, PROMPT, out, scorer_of(drafter))
    assert len(calls) > 2
    for call in calls:
        lattice = call.step.tree.lattice
        assert lattice is not None
        assert call.after is not None
        context = out.sequences[0, : len(PROMPT) + call.start].tolist()
        # What a tree's first nodes weigh is the product's first slot, each arc alone: with one slot both are the same.
        first = SausageLattice(lattice.tokens[:1], lattice.log_probs[:1])
        weights = [
            float(lattice.log_probs[0, i]) + 0.7 * lm.log_prob(int(token), context)
            for i, token in enumerate(lattice.tokens[0])
        ]
        assert arc_posteriors(first, lm, 0.7, context)[0] == pytest.approx(weights - np.logaddexp.reduce(weights))
        assert np.exp(call.after).sum(axis=1) == pytest.approx(1)
        assert call.after == pytest.approx(arc_posteriors(lattice, lm, 0.7, context))


def test_a_decode_without_a_trace_is_refused(model: BlockwiseLM) -> None:
    out = generate(model, PROMPT, VanillaDrafter(model), max_new_tokens=5)
    with pytest.raises(ValueError, match="expected a decode with a trace"):
        read_calls(model, PROMPT, out)
