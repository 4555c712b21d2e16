"""Neural rescorers, held to enumeration with plain passes of the same model, and decodes to generate()."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma2Config, Gemma2ForCausalLM, PreTrainedModel

from latticebpd import (
    DraftTree,
    NeuralRescorer,
    ParallelNeuralRescorer,
    PathsDrafter,
    SausageLattice,
    TreeDrafter,
    VanillaDrafter,
    draft_tree,
    generate,
    rescore,
)
from latticebpd.scoring.neural.causal_rescorer import CausalRescorer, first_kept
from latticebpd.scoring.neural.prefix_reader import CachedReader, RecomputingReader
from latticebpd.scoring.rescoring import check_vocabulary
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.lattices import top_arcs
from tests.helpers.tiny_families import POSITIONS, VOCABULARY, tiny

DECODERS = ["llama", "gpt2", "opt", "bloom"]
LLAMA = tiny("llama", seed=3)


def random_lattice(rng: np.random.Generator, slots: int, k: int) -> SausageLattice:
    tokens = np.stack([rng.permutation(VOCABULARY)[:k] for _ in range(slots)])
    return SausageLattice(tokens, rng.normal(-2, 1, (slots, k)).astype(np.float32))


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[SausageLattice], list[list[int]]]:
    """Lattices of several shapes, some arcs of which are padding or ruled out, and texts of several lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    lattices, contexts = [], []
    for _ in range(draw(st.integers(1, 4))):
        lattice = random_lattice(rng, draw(st.integers(1, 3)), draw(st.integers(1, 3)))
        tokens, log_probs = lattice.tokens.copy(), lattice.log_probs.copy()
        if lattice.k > 1 and draw(st.booleans()):
            tokens[0, 1] = -1
        if lattice.k > 2:
            log_probs[-1, 2] = -np.inf
        lattices.append(SausageLattice(tokens, log_probs))
        contexts.append(rng.integers(0, VOCABULARY, draw(st.integers(1, 6))).tolist())
    return lattices, contexts


def arcs_of(lattice: SausageLattice) -> list[dict[int, float]]:
    """token -> log-probability, of every slot."""
    return [
        {token: log_prob for token, log_prob in zip(row, weights, strict=True) if token >= 0 and log_prob > -np.inf}
        for row, weights in zip(lattice.tokens.tolist(), lattice.log_probs.astype(float).tolist(), strict=True)
    ]


@torch.inference_mode()
def log_probs_after(model: PreTrainedModel, text: Sequence[int]) -> np.ndarray:
    """``[vocab]``, by one plain pass over the whole text."""
    logits = model(torch.tensor([list(text)])).logits[0, -1].double()
    log_probs: np.ndarray = torch.log_softmax(logits, dim=-1).numpy()
    return log_probs


def enumerated(
    model: PreTrainedModel, lattice: SausageLattice, alpha: float, context: list[int]
) -> list[tuple[float, tuple[int, ...]]]:
    """All paths and their scores, best first."""
    arcs = arcs_of(lattice)
    scored = []
    for path in itertools.product(*arcs):
        said = [log_probs_after(model, [*context, *path[:slot]])[token] for slot, token in enumerate(path)]
        scored.append((sum(arcs[slot][token] + alpha * said[slot] for slot, token in enumerate(path)), path))
    return sorted(scored, key=lambda item: (-item[0], item[1]))


def greedy_path(model: PreTrainedModel, lattice: SausageLattice, alpha: float, context: list[int]) -> list[int]:
    """Algorithm 2 as it is printed, slot after slot."""
    chosen: list[int] = []
    for arcs in arcs_of(lattice):
        said = log_probs_after(model, [*context, *chosen])
        chosen.append(max(arcs, key=lambda token: (arcs[token] + alpha * said[token], -token)))
    return chosen


def prefix_weights(
    model: PreTrainedModel, lattice: SausageLattice, alpha: float, context: list[int]
) -> dict[tuple[int, ...], float]:
    """The log-probability of every prefix of a path."""
    weights: dict[tuple[int, ...], float] = {(): 0.0}
    for slot, arcs in enumerate(arcs_of(lattice)):
        for prefix in [prefix for prefix in weights if len(prefix) == slot]:
            said = log_probs_after(model, [*context, *prefix])
            values = {token: log_prob + alpha * said[token] for token, log_prob in arcs.items()}
            total = np.logaddexp.reduce(list(values.values()))
            weights |= {(*prefix, token): weights[prefix] + value - total for token, value in values.items()}
    del weights[()]
    return weights


def prefixes_of(tree: DraftTree) -> list[tuple[int, ...]]:
    return [tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree))]


@settings(max_examples=8, deadline=None)
@given(batches(), st.sampled_from([0.3, 1.0, 2.5]))
def test_drafts_are_the_best_of_all_paths_where_the_beam_holds_every_prefix(
    batch: tuple[list[SausageLattice], list[list[int]]], alpha: float
) -> None:
    lattices, contexts = batch
    paths = NeuralRescorer(LLAMA, alpha, beams=27).paths(lattices, contexts, 5)
    for lattice, context, drafts in zip(lattices, contexts, paths, strict=True):
        best = enumerated(LLAMA, lattice, alpha, context)[:5]
        assert [tuple(path) for path in drafts.tokens.tolist()] == [path for _, path in best]
        np.testing.assert_allclose(drafts.scores, [score for score, _ in best], atol=1e-4)


@settings(max_examples=8, deadline=None)
@given(batches(), st.integers(1, 40), st.sampled_from([0.0, 0.3, 2.5]))
def test_tree_is_the_most_probable_set_of_prefixes(
    batch: tuple[list[SausageLattice], list[list[int]]], nodes: int, alpha: float
) -> None:
    lattices, contexts = batch
    for lattice, context, tree in zip(
        lattices, contexts, NeuralRescorer(LLAMA, alpha).trees(lattices, contexts, nodes), strict=True
    ):
        weights = prefix_weights(LLAMA, lattice, alpha, context)
        assert tree.log_probs is not None
        np.testing.assert_allclose(tree.log_probs, sorted(weights.values(), reverse=True)[:nodes], atol=1e-4)
        np.testing.assert_allclose(tree.log_probs, [weights[prefix] for prefix in prefixes_of(tree)], atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
def test_one_draft_is_algorithm_2(family: str) -> None:
    model, rng = tiny(family, seed=1), np.random.default_rng(2)
    rescorer = NeuralRescorer(model)
    assert isinstance(rescorer.reader, RecomputingReader if family == "bloom" else CachedReader)
    lattices = [random_lattice(rng, 5, 4) for _ in range(6)]
    contexts = [rng.integers(0, VOCABULARY, length).tolist() for length in (1, 9, 4, 4, 2, 7)]
    best = rescorer.with_alpha(0.8).paths(lattices, contexts, 1)
    for lattice, context, drafts in zip(lattices, contexts, best, strict=True):
        assert drafts.tokens.tolist() == [greedy_path(model, lattice, 0.8, context)]


@pytest.mark.parametrize("family", DECODERS)
def test_cached_and_recomputed_rescoring_agree_while_texts_grow_shrink_and_change_places(family: str) -> None:
    model, rng = tiny(family, seed=1), np.random.default_rng(3)
    cached, recomputing = NeuralRescorer(model, 0.7), NeuralRescorer(model, 0.7, use_cache=False)
    texts = [rng.integers(0, VOCABULARY, length).tolist() for length in (5, 1, 9)]
    for turn in range(6):
        lattices = [random_lattice(rng, 4, 3) for _ in texts]
        one, other = (rescorer.paths(lattices, texts, 1 + turn % 3) for rescorer in (cached, recomputing))
        for mine, theirs in zip(one, other, strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist()
            np.testing.assert_allclose(mine.scores, theirs.scores, atol=1e-4)
        trees, expected = (rescorer.trees(lattices, texts, 9) for rescorer in (cached, recomputing))
        for tree, other_tree in zip(trees, expected, strict=True):
            assert prefixes_of(tree) == prefixes_of(other_tree)
        if turn == 2:
            texts = [texts[2][:4], texts[0], [7], texts[0]]  # cut back, moved, new, doubled
        elif turn == 4:
            texts = texts[1:3]
        texts = [[*text, *rng.integers(0, VOCABULARY, rng.integers(0, 4)).tolist()] for text in texts]


def test_only_new_tokens_and_prefixes_are_read_in_a_decode() -> None:
    model, rescoring = tiny_model(), tiny("gpt2", seed=4)
    rescorer = NeuralRescorer(rescoring)
    read: list[int] = []
    rescoring.transformer.wte.register_forward_hook(lambda module, inputs, output: read.append(output.shape[1]))
    prompt = np.random.default_rng(0).integers(0, VOCABULARY, 30).tolist()
    out = generate(model, prompt, PathsDrafter(model, rescorer, p=2, k=4), max_new_tokens=25, trace=True)
    assert out.trace is not None
    slots = [step.tree.lattice.slots for step in out.trace if step.tree.lattice is not None]
    committed = [len(step.committed) for step in out.trace]
    # The first pass reads the prompt and the prefill's token, every later call's first what was committed; then two
    # beams a slot.
    expected = [[new, *[2] * (count - 1)] for new, count in zip([len(prompt) + 1, *committed], slots, strict=False)]
    assert read == [tokens for call in expected for tokens in call]


def test_model_that_caps_its_logits_and_looks_back_a_little_way_is_rescored_with_as_it_is() -> None:
    """Its logits are not the output embedding's product alone, and half of its layers see no further than eight
    tokens."""
    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, intermediate_size=32, num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8, max_position_embeddings=POSITIONS, sliding_window=8, attn_logit_softcapping=None,
        final_logit_softcapping=2.0,
        initializer_range=0.6, attn_implementation="eager",
    )  # fmt: skip
    model, rng = Gemma2ForCausalLM(config).eval(), np.random.default_rng(15)
    rescorer = NeuralRescorer(model)
    assert isinstance(rescorer.reader, CachedReader)
    context = rng.integers(0, VOCABULARY, 14).tolist()
    for _ in range(3):
        lattice = random_lattice(rng, 3, 3)
        best = enumerated(model, lattice, 1.5, context)
        score_of = {path: score for score, path in best}
        for p in (1, 27):
            drafts = rescore(lattice, rescorer, p=p, alpha=1.5, context=context)
            expected = [path for _, path in best] if p > 1 else [tuple(greedy_path(model, lattice, 1.5, context))]
            assert [tuple(path) for path in drafts.tokens.tolist()] == expected
            np.testing.assert_allclose(drafts.scores, [score_of[path] for path in expected], atol=1e-3)
        weights = prefix_weights(model, lattice, 1.5, context)
        tree = draft_tree(lattice, rescorer, 9, alpha=1.5, context=context)
        np.testing.assert_allclose(tree.log_probs, sorted(weights.values(), reverse=True)[:9], atol=1e-3)
        context += [5, 7]


def test_one_draft_takes_a_pass_for_every_change_of_mind() -> None:
    """Each guess is what is chosen behind the last one; it is right up to its first slot that is not what it was."""
    model, rng = tiny("gpt2", seed=4), np.random.default_rng(14)
    rescorer, passes = NeuralRescorer(model), []
    model.transformer.wte.register_forward_hook(lambda module, inputs, output: passes.append(output.shape[1]))
    seen = set()
    for alpha in [1e-9, 0.3, 1.0] * 4:
        lattice, context = random_lattice(rng, 5, 3), rng.integers(0, VOCABULARY, 9).tolist()
        arcs, guess, settled, rounds = arcs_of(lattice), top_arcs(lattice, 1).tokens[:, 0].tolist(), 0, 0
        while settled < 5:
            said = [log_probs_after(model, [*context, *guess[:slot]]) for slot in range(5)]
            values = [
                {token: arcs[slot][token] + alpha * said[slot][token] for token in arcs[slot]} for slot in range(5)
            ]
            chosen = [max(each, key=lambda token, each=each: each[token]) for each in values]
            settled = min(5, 1 + next((slot for slot in range(5) if chosen[slot] != guess[slot]), 5))
            guess, rounds = chosen, rounds + 1
        passes.clear()
        drafts = rescore(lattice, rescorer, p=1, alpha=alpha, context=context)
        assert len(passes) == 1 + rounds  # a text that is new is read as a prompt first
        assert drafts.tokens.tolist() == [guess] == [greedy_path(model, lattice, alpha, context)]
        seen.add(rounds)
    assert min(seen) == 1 < max(seen) < 5


@pytest.mark.parametrize("kind", [NeuralRescorer, ParallelNeuralRescorer])
def test_batched_rescoring_is_rescoring_one_by_one(kind: type[CausalRescorer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latticebpd.scoring.neural.causal_rescorer.ROWS", 4)
    monkeypatch.setattr("latticebpd.scoring.neural.prefix_reader.PROJECTED", 3)
    rng = np.random.default_rng(5)
    rescorer = kind(tiny("gpt2", seed=4), alpha=0.6)
    lattices = [random_lattice(rng, rng.integers(1, 5), 3) for _ in range(9)]
    contexts = [rng.integers(0, VOCABULARY, rng.integers(1, 8)).tolist() for _ in lattices]
    together, trees = rescorer.paths(lattices, contexts, 4), rescorer.trees(lattices, contexts, 7)
    for lattice, context, drafts, tree in zip(lattices, contexts, together, trees, strict=True):
        single = rescore(lattice, rescorer, 4, context=np.array([-1, *context]))  # padding is no token
        assert single.tokens.tolist() == drafts.tokens.tolist()
        np.testing.assert_allclose(single.scores, drafts.scores, atol=1e-4)
        assert prefixes_of(draft_tree(lattice, rescorer, 7, context=context)) == prefixes_of(tree)
        assert tree.lattice is lattice


@pytest.mark.parametrize("kind", [NeuralRescorer, ParallelNeuralRescorer])
def test_weight_zero_ranks_by_the_lattice_alone(kind: type[CausalRescorer]) -> None:
    lattice, rescorer = random_lattice(np.random.default_rng(6), 4, 3), kind(LLAMA)
    expected = rescore(lattice, None, p=9)
    drafts = rescore(lattice, rescorer, p=9, alpha=0.0, context=[1])
    assert drafts.tokens.tolist() == expected.tokens.tolist()
    np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-6)
    assert drafts.tokens[0].tolist() == top_arcs(lattice, 1).tokens[:, 0].tolist()
    tree = draft_tree(lattice, rescorer, 20, alpha=0.0, context=[1])
    assert prefixes_of(tree) == prefixes_of(draft_tree(lattice, None, 20))


@pytest.mark.parametrize("kind", [NeuralRescorer, ParallelNeuralRescorer])
def test_constants_of_a_slot_change_nothing(kind: type[CausalRescorer]) -> None:
    lattice, rescorer = random_lattice(np.random.default_rng(7), 4, 3), kind(LLAMA, 0.9)
    moved = SausageLattice(lattice.tokens, lattice.log_probs + np.array([[3.0], [-1.0], [0.5], [-7.0]]))
    one, other = (rescore(each, rescorer, p=6, context=[3, 4]) for each in (lattice, moved))
    assert one.tokens.tolist() == other.tokens.tolist()
    np.testing.assert_allclose(one.scores - 4.5, other.scores, atol=1e-4)
    assert prefixes_of(draft_tree(lattice, rescorer, 30, context=[3, 4])) == prefixes_of(
        draft_tree(moved, rescorer, 30, context=[3, 4])
    )


@pytest.mark.parametrize("family", DECODERS)
def test_parallel_rescoring_conditions_on_the_unrescored_draft(family: str) -> None:
    model, rng = tiny(family, seed=1), np.random.default_rng(8)
    rescorer = ParallelNeuralRescorer(model, 0.7)
    lattices, contexts = [random_lattice(rng, slots, 4) for slots in (4, 2, 4)], [[1, 2, 3], [4], [5, 6]]
    for _ in range(2):
        drafts = rescorer.rescored(lattices, contexts)
        for lattice, context, mended in zip(lattices, contexts, drafts, strict=True):
            draft = top_arcs(lattice, 1).tokens[:, 0].tolist()
            said = np.stack(
                [
                    log_probs_after(model, [*context, *draft[:slot]])[lattice.tokens[slot]]
                    for slot in range(lattice.slots)
                ]
            )
            np.testing.assert_allclose(mended.log_probs, lattice.log_probs + 0.7 * said, atol=1e-4)
            best = rescore(lattice, rescorer, p=5, context=context)
            assert best.tokens.tolist() == rescore(mended, None, p=5).tokens.tolist()
            tree = draft_tree(lattice, rescorer, 12, context=context)
            assert prefixes_of(tree) == prefixes_of(draft_tree(mended, None, 12))
        contexts = [[*context, 9, 8] for context in contexts]


def test_parallel_rescoring_keeps_transitions_and_the_other_refuses_them() -> None:
    rng = np.random.default_rng(8)
    plain = random_lattice(rng, 3, 4)
    lattice = SausageLattice(plain.tokens, plain.log_probs, rng.normal(0, 2, (2, 4, 4)))
    parallel = ParallelNeuralRescorer(LLAMA, 0.7)
    (mended,) = parallel.rescored([lattice], [[1, 2]])
    assert np.array_equal(mended.transitions, lattice.transitions)
    assert np.array_equal(mended.log_probs, parallel.rescored([plain], [[1, 2]])[0].log_probs)
    best = rescore(lattice, parallel, p=5, context=[1, 2])
    assert best.tokens.tolist() == rescore(mended, None, p=5).tokens.tolist()
    for draft in (rescore, draft_tree):
        with pytest.raises(ValueError, match="expected lattices without transitions for NeuralRescorer"):
            draft(lattice, NeuralRescorer(LLAMA), context=[1, 2])


@pytest.mark.parametrize("kind", [NeuralRescorer, ParallelNeuralRescorer])
def test_order_of_equally_good_arcs_changes_nothing(kind: type[CausalRescorer]) -> None:
    """Parallel rescoring conditions on the best arcs, of equal ones the lowest token's, wherever it stands."""
    tokens = np.array([[3, 9, 5], [8, 4, 6], [2, 7, 11]])
    one, other = (SausageLattice(rows, np.full((3, 3), -1.0)) for rows in (tokens, tokens[:, ::-1]))
    rescorer = kind(LLAMA, 0.9)
    drafts = [rescore(lattice, rescorer, p=6, context=[3, 4]) for lattice in (one, other)]
    assert drafts[0].tokens.tolist() == drafts[1].tokens.tolist()
    np.testing.assert_allclose(drafts[0].scores, drafts[1].scores, atol=1e-4)


def drafters(model: Any, rescoring: PreTrainedModel) -> dict[str, Any]:
    return {
        "greedy": PathsDrafter(model, NeuralRescorer(rescoring), p=1, k=4),
        "beams": PathsDrafter(model, NeuralRescorer(rescoring, 0.5), p=4, k=3),
        "tree": TreeDrafter(model, NeuralRescorer(rescoring), num_nodes=12, k=5),
        "parallel": PathsDrafter(model, ParallelNeuralRescorer(rescoring), p=2, k=4),
        "parallel tree": TreeDrafter(model, ParallelNeuralRescorer(rescoring), num_nodes=12, k=4),
    }


@pytest.mark.parametrize("name", ["greedy", "beams", "tree", "parallel", "parallel tree"])
@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_decoded_text_is_that_of_generate(family: str, name: str) -> None:
    model = tiny_model(2)
    prompts, mask = [[0, 0, 3], [5, 1, 4]], [[0, 0, 1], [1, 1, 1]]
    expected = model.base.generate(
        torch.tensor(prompts), attention_mask=torch.tensor(mask), do_sample=False, max_new_tokens=16, pad_token_id=0
    )
    out = generate(model, prompts, drafters(model, tiny(family, seed=9))[name], attention_mask=mask, max_new_tokens=16)
    assert torch.equal(out.sequences, expected)


@pytest.mark.parametrize("name", ["greedy", "beams", "tree"])
def test_rescorer_that_knows_the_truth_fills_every_block(name: str) -> None:
    """The base model itself as rescorer, with a weight before which the heads count for nothing."""
    model = tiny_model(1)
    rescorer = NeuralRescorer(model.base, alpha=1e3)
    drafter = {
        "greedy": PathsDrafter(model, rescorer, p=1, k=VOCABULARY),
        "beams": PathsDrafter(model, rescorer, p=3, k=VOCABULARY),
        "tree": TreeDrafter(model, rescorer, num_nodes=8, k=VOCABULARY),
    }[name]
    calls = 4
    out = generate(model, [3, 1], drafter, max_new_tokens=1 + calls * model.num_heads)
    assert out.accept_counts.tolist() == [0] * model.num_heads + [calls]
    assert (
        out.block_efficiency
        == model.num_heads
        > generate(model, [3, 1], VanillaDrafter(model), max_new_tokens=31).block_efficiency
    )


def test_long_context_is_cut_to_the_last_tokens_that_fit() -> None:
    model, rng = tiny("gpt2", seed=1), np.random.default_rng(10)
    rescorer, recomputing = NeuralRescorer(model), NeuralRescorer(model, use_cache=False)
    text = rng.integers(0, VOCABULARY, 3 * POSITIONS).tolist()
    for length in (POSITIONS - 4, POSITIONS - 3, POSITIONS + 1, POSITIONS + 40, 3 * POSITIONS):
        lattice = random_lattice(rng, 4, 3)
        kept = text[:length][first_kept(length, POSITIONS - 4) :]
        assert (POSITIONS - 4) / 2 < len(kept) <= POSITIONS - 4
        drafts = rescore(lattice, rescorer, p=1, context=text[:length])
        assert drafts.tokens.tolist() == [greedy_path(model, lattice, 1.0, kept)]
        np.testing.assert_allclose(
            drafts.scores, rescore(lattice, recomputing, p=1, context=text[:length]).scores, atol=1e-4
        )
    with pytest.raises(ValueError, match=f"more than {POSITIONS} positions"):
        rescore(random_lattice(rng, POSITIONS, 2), rescorer, p=1, context=[1])


def test_growing_text_is_read_anew_only_once_in_half_its_room() -> None:
    starts = [first_kept(length, 20) for length in range(1, 81)]
    assert all(10 < length - start <= 20 or start == 0 for length, start in enumerate(starts, 1))
    assert len(set(starts)) == 1 + 6


def test_empty_context_begins_with_the_models_own_first_token() -> None:
    lattice, rescorer = random_lattice(np.random.default_rng(11), 3, 3), NeuralRescorer(LLAMA)
    assert rescore(lattice, rescorer, p=1).tokens.tolist() == [greedy_path(LLAMA, lattice, 1.0, [1])]
    nameless = NeuralRescorer(tiny_model().base)
    with pytest.raises(ValueError, match="at least one token of context"):
        rescore(lattice, nameless, p=1)


def test_saved_rescorer_comes_back_with_its_weight_and_serves_by_its_path(tmp_path: Path) -> None:
    rescorer = NeuralRescorer(LLAMA, alpha=0.4, tokenizer_fingerprint="sha256:ab")
    rescorer.save_pretrained(tmp_path / "rescorer")
    again = NeuralRescorer.from_pretrained(tmp_path / "rescorer")
    assert (again.alpha, again.tokenizer_fingerprint) == (0.4, "sha256:ab")
    lattice, context = random_lattice(np.random.default_rng(12), 4, 4), [1, 2, 3]
    expected = rescore(lattice, rescorer, p=6, alpha=0.4, context=context)
    for lm in (again, tmp_path / "rescorer", str(tmp_path / "rescorer")):
        drafts = rescore(lattice, lm, p=6, context=context)
        assert drafts.tokens.tolist() == expected.tokens.tolist()
        np.testing.assert_allclose(drafts.scores, expected.scores, atol=1e-6)
    other = rescore(lattice, again, p=6, alpha=2.0, context=context)
    assert other.scores.tolist() != expected.scores.tolist()


def test_directory_of_any_causal_lm_is_a_rescorer_of_weight_one(tmp_path: Path) -> None:
    LLAMA.save_pretrained(tmp_path)
    assert NeuralRescorer.from_pretrained(tmp_path).alpha == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"format_version": 1, "alpha": -1}',
        '{"format_version": 1, "alpha": "x"}',
        '{"format_version": 1, "beta": 1}',
    ],
)
def test_damaged_settings_are_named(tmp_path: Path, text: str) -> None:
    LLAMA.save_pretrained(tmp_path)
    (tmp_path / "rescorer.json").write_text(text)
    with pytest.raises(ValueError, match=r"rescorer\.json: not a rescorer's settings"):
        NeuralRescorer.from_pretrained(tmp_path)


def test_settings_of_a_later_format_are_refused(tmp_path: Path) -> None:
    LLAMA.save_pretrained(tmp_path)
    (tmp_path / "rescorer.json").write_text(json.dumps({"format_version": 3, "alpha": 1.0}))
    with pytest.raises(ValueError, match="format 2, got 3; update latticebpd"):
        NeuralRescorer.from_pretrained(tmp_path)


def test_rescorer_of_another_vocabulary_is_refused() -> None:
    model = tiny_model(vocab_size=19)
    model.tokenizer_fingerprint = "sha256:aa"
    with pytest.raises(ValueError, match="rescorer over the vocabulary of the model"):
        TreeDrafter(model, NeuralRescorer(LLAMA, tokenizer_fingerprint="sha256:bb"))
    with pytest.raises(ValueError, match=f"over 19 tokens .* got one over {VOCABULARY}"):
        PathsDrafter(model, NeuralRescorer(LLAMA))
    check_vocabulary(
        NeuralRescorer(LLAMA, tokenizer_fingerprint="sha256:aa"), "sha256:aa", 30
    )  # one vocabulary, padded differently
    with pytest.raises(ValueError, match=f"token ids below {VOCABULARY}"):
        rescore(random_lattice(np.random.default_rng(0), 2, 2), NeuralRescorer(LLAMA), context=[VOCABULARY])


@pytest.mark.parametrize("family", ["llama", "bloom"])
def test_token_that_the_rescorer_lacks_comes_last(family: str) -> None:
    lattice = SausageLattice([[VOCABULARY + 5, 3], [4, 2]], [[-0.1, -2.0], [-1.0, -1.0]])
    rescorer = NeuralRescorer(tiny(family))
    assert rescore(lattice, rescorer, p=4, context=[1]).tokens[:2, 0].tolist() == [3, 3]
    assert draft_tree(lattice, rescorer, 3, context=[1]).tokens[0] == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": -1.0}, "to 1e.30, got -1"),
        ({"alpha": float("nan")}, "to 1e.30, got nan"),
        ({"beams": 0}, "beams from 1"),
    ],
)
def test_bad_settings_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeuralRescorer(LLAMA, **arguments)


def test_bad_requests_are_refused() -> None:
    lattice, rescorer = random_lattice(np.random.default_rng(0), 2, 2), NeuralRescorer(LLAMA)
    with pytest.raises(ValueError, match="p from 1"):
        rescore(lattice, rescorer, p=0, context=[1])
    with pytest.raises(ValueError, match="num_nodes from 1"):
        draft_tree(lattice, rescorer, 0, context=[1])
    with pytest.raises(ValueError, match=r"alpha from 0 to 1e\+30, got inf"):
        rescore(lattice, rescorer, alpha=float("inf"), context=[1])
    with pytest.raises(ValueError, match="decoder-only causal LM as rescorer, got an encoder-decoder"):
        NeuralRescorer(tiny("t5"))


def test_rescoring_that_was_broken_off_leaves_no_false_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rng = tiny("gpt2", seed=1), np.random.default_rng(13)
    rescorer, fresh = NeuralRescorer(model), NeuralRescorer(model)
    lattices, texts = [random_lattice(rng, 3, 3) for _ in range(2)], [[1, 2, 3, 4], [5, 6, 7, 8]]
    rescorer.paths(lattices, texts, 1)
    longer = [[*text, 9] for text in texts[::-1]]
    with monkeypatch.context() as broken:
        broken.setattr(
            "latticebpd.verification.tree_attention.TreeVerifier.verify", lambda *_: (_ for _ in ()).throw(MemoryError)
        )
        with pytest.raises(MemoryError):
            rescorer.paths(lattices, longer, 1)
    again, expected = rescorer.paths(lattices, longer, 1), fresh.paths(lattices, longer, 1)
    assert [drafts.tokens.tolist() for drafts in again] == [drafts.tokens.tolist() for drafts in expected]
    np.testing.assert_allclose([drafts.scores for drafts in again], [drafts.scores for drafts in expected], atol=1e-4)
