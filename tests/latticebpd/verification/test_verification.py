"""Verifiers: every column is what the base model computes for that node's own prefix, batch or no batch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from latticebpd import BlockwiseLM, DraftTree, NoDrafter, ReferenceDrafter, generate
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.forward import EncodedSource
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree_attention import TreeVerifier, visible_keys
from latticebpd.verification.tree_positions import ByPositionIds
from latticebpd.verification.verifier import Verifier
from latticebpd.verification.verifier_choice import _agrees, tree_placement, verifier_for
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.model_families import tiny_of
from tests.helpers.tiny_families import FAMILIES, VOCABULARY, tiny

PATHS = st.lists(st.lists(st.integers(0, 22), min_size=1, max_size=4), min_size=0, max_size=5)
ROWS = st.lists(st.tuples(st.lists(st.integers(3, 22), min_size=1, max_size=5), PATHS), min_size=1, max_size=4)


def tree_verifier(model: PreTrainedModel, source: EncodedSource | None = None) -> TreeVerifier:
    placement = tree_placement(model)
    assert placement is not None
    return TreeVerifier(model, placement, source)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS)
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_tree_columns_equal_separate_forward_passes(
    rows: list[tuple[list[int], list[list[int]]]], implementation: str
) -> None:
    model = tiny_model(3).base
    model.set_attn_implementation(implementation)
    prompts, trees = [prompt for prompt, _ in rows], [DraftTree.from_paths(paths) for _, paths in rows]
    verifier = tree_verifier(model)
    verifier.prefill(prompts)
    verified = verifier.verify([11] * len(rows), trees)
    for row, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
        for node in range(-1, len(tree)):
            prefix = [*prompt, 11, *tree.tokens[tree.path(node)].tolist()]
            with torch.inference_mode():
                reference = model(input_ids=torch.tensor([prefix])).logits[0, -1]
            torch.testing.assert_close(verified.logits_of([row], [node + 1])[0], reference, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "bloom"])
def test_tree_attention_equals_recomputing_over_several_calls(family: str) -> None:
    """Ragged acceptance, a row that ends, and logits as well as hidden states; in float64, where only mistakes can
    differ."""
    model = tiny(family, dtype=torch.float64)
    prompts = [[3], [4], [5]] if model.config.is_encoder_decoder else [[3, 4, 5, 6], [7], [8, 9]]
    source = None
    if model.config.is_encoder_decoder:
        source = EncodedSource.encode(
            model, torch.tensor([[4, 5, 6], [0, 9, 8], [3, 3, 7]]), torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1]])
        )
    verifiers: list[Verifier] = [tree_verifier(model, source), RecomputingVerifier(model, source)]
    trees = [DraftTree.from_paths([[1, 2, 3], [1, 4], [5]]), DraftTree.from_paths([[9, 9, 9, 9]]), DraftTree.empty()]
    first, second = [[verifier.prefill(prompts)] for verifier in verifiers]
    paths: list[list[int]] = [[0, 3], [0, 1, 2], []]
    rows = [0, 1, 2]
    for _ in range(3):
        for passes, verifier in zip((first, second), verifiers, strict=True):
            passes.append(verifier.verify([11, 12, 13][: len(rows)], [trees[row] for row in rows]))
            verifier.keep([paths[row] for row in rows])
        columns = [(position, column) for position, row in enumerate(rows) for column in range(len(trees[row]) + 1)]
        where = tuple(zip(*columns, strict=True))
        torch.testing.assert_close(first[-1].hidden[where], second[-1].hidden[where])
        torch.testing.assert_close(first[-1].logits_of(*map(list, where)), second[-1].logits_of(*map(list, where)))
        if len(rows) == 3:
            rows = [0, 2]
            for verifier in verifiers:
                verifier.select([0, 2])
    torch.testing.assert_close(first[0].logits_of([0, 1, 2], [0, 0, 0]), second[0].logits_of([0, 1, 2], [0, 0, 0]))


def test_states_of_layers_are_those_of_the_kept_branch() -> None:
    """Also where nodes of other branches lie before it in the tree, or nothing is kept."""
    model = tiny("llama", dtype=torch.float64)
    tree = DraftTree.from_paths([[1, 2], [3, 4, 5], [6]])
    deepest = int(tree.depths.argmax())
    for path in (tree.path(deepest), tree.path(deepest)[:1], []):
        verifier = RecomputingVerifier(model, layers=(0, 1))
        verifier.prefill([[7, 8, 9]])
        verifier.verify([11], [tree])
        verifier.keep([path])
        text = [7, 8, 9, 11, *tree.tokens[path].tolist()]
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
        states = verifier.layer_states(0)
        assert states is not None
        torch.testing.assert_close(states, torch.cat([hidden[1][0], hidden[2][0]], dim=-1))


def test_cache_after_keep_holds_the_accepted_path_only(model: BlockwiseLM) -> None:
    verifier = tree_verifier(model.base)
    verifier.prefill([[5, 8, 2]])
    verifier.verify([11], [DraftTree(np.array([1, 2, 3, 4, 6]), np.array([-1, -1, 1, 1, 3]))])
    verifier.keep([[1, 3, 4]])
    assert verifier.cache.lengths == [7]
    assert verifier.cache.text.get_seq_length() == 7
    after = verifier.verify([9], [DraftTree.empty()]).logits_of([0], [0])[0]
    with torch.inference_mode():
        reference = model.base(input_ids=torch.tensor([[5, 8, 2, 11, 2, 4, 6, 9]])).logits[0, -1]
    torch.testing.assert_close(after, reference, atol=2e-4, rtol=1e-4)


def test_memory_follows_the_longest_text_not_the_number_of_calls(model: BlockwiseLM) -> None:
    verifier = tree_verifier(model.base)
    verifier.prefill([[5, 8, 2], [4]])
    tree = DraftTree.from_paths([[a, b] for a in range(5) for b in range(5)])
    for call in range(20):
        verifier.verify([1, 2], [tree, tree])
        verifier.keep([[0], []])
        assert verifier.cache.text.get_seq_length() == verifier.cache.longest == 3 + 2 * (call + 1)
        layers = verifier.cache.text.layers
        assert (
            sum(layer.keys.nelement() for layer in layers) == len(layers) * 2 * 8 * verifier.cache.longest
        )  # 2 rows, 1 head of size 8
        room = max(layer.buffers[0].shape[2] for layer in layers)
        assert room <= 1.5 * (verifier.cache.longest + 31)  # 30 drafted tokens and the next one


def test_forgotten_pass_leaves_no_trace(model: BlockwiseLM) -> None:
    verifier = tree_verifier(model.base)
    verifier.prefill([[5, 8, 2], [4]])
    trees = [DraftTree.from_paths([[3, 4], [5]]), DraftTree.from_paths([[6]])]
    before = verifier.verify([1, 2], trees).hidden
    verifier.cut([3, 1])
    torch.testing.assert_close(verifier.verify([1, 2], trees).hidden, before)


@pytest.mark.parametrize("family", FAMILIES)
def test_last_hidden_state_is_what_the_logits_are_made_of(family: str) -> None:
    """Logits of single nodes equal those that the model itself makes at every node."""
    model = tiny(family, dtype=torch.float64)
    source = None
    if model.config.is_encoder_decoder:
        source = EncodedSource.encode(model, torch.tensor([[4, 5, 6]]), torch.ones(1, 3, dtype=torch.long))
    verifier = verifier_for(model, source)
    verifier.prefill([[1]])
    lazy = verifier.verify([5], [DraftTree.from_paths([[6, 7]])]).logits_of([0, 0, 0], [0, 1, 2])
    assert TransformersModel.of(model).exact_projection is not None
    forward: Any = verifier.forward
    with torch.inference_mode():
        _, full, _ = forward._full({"input_ids": torch.tensor([[1, 5, 6, 7]]), "use_cache": False})
    torch.testing.assert_close(lazy, full[0, 1:])


def test_model_that_caps_its_logits_is_left_to_do_so() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, intermediate_size=16, num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8, final_logit_softcapping=0.1, layer_types=["full_attention"] * 2, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    verifier = tree_verifier(model)
    verifier.prefill([[1, 2, 3]])
    logits = verifier.verify([4], [DraftTree.from_paths([[5]])]).logits_of([0, 0], [0, 1])
    with torch.inference_mode():
        torch.testing.assert_close(
            logits, model(input_ids=torch.tensor([[1, 2, 3, 4, 5]])).logits[0, -2:], atol=1e-5, rtol=1e-5
        )


def test_mask_of_a_chain_is_the_causal_mask() -> None:
    visible = visible_keys([DraftTree.from_paths([[4, 4, 4]])], [2])
    assert visible[0].astype(int).tolist() == [[1] * (3 + row) + [0] * (3 - row) for row in range(4)]


def test_row_sees_neither_the_padding_of_its_text_nor_other_branches() -> None:
    visible = visible_keys([DraftTree.from_paths([[4], [5]]), DraftTree.from_paths([[6]])], [3, 1])
    assert visible[0].astype(int).tolist() == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]]
    assert visible[1, :2].astype(int).tolist() == [[1, 0, 0, 1, 0, 0], [1, 0, 0, 1, 1, 0]]
    assert visible[1, 2].any()  # a column that the row does not have must see something, or its softmax is NaN


@pytest.mark.parametrize(
    ("family", "placement"),
    [("llama", "ByPositionIds"), ("gpt2", "ByPositionIds"), ("opt", "ByPositionIds"), ("t5", "ByRelativeBias"),
     ("marian", "ByEmbedding"), ("bart", "ByEmbedding"), ("bloom", "NoneType")],
)  # fmt: skip
def test_trial_finds_how_each_family_is_told_positions(family: str, placement: str) -> None:
    assert type(tree_placement(tiny(family))).__name__ == placement


def test_trial_notices_a_placement_that_is_wrong() -> None:
    class Shifted(ByPositionIds):
        def arguments(self, tokens: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor) -> dict[str, Any]:
            return super().arguments(tokens, positions + 1 - positions[:, :1] % 2, visible)

    model = tiny("gpt2")
    assert _agrees(model, ByPositionIds)
    assert not _agrees(model, Shifted)


def test_trial_reads_beyond_the_sliding_window() -> None:
    class Unlimited(ByPositionIds):
        def __init__(self, model: PreTrainedModel) -> None:
            super().__init__(model)
            self.layers = replace(self.layers, window=None)

    model = tiny_of("mistral", sliding_window=48, max_position_embeddings=256)
    assert _agrees(model, ByPositionIds)
    assert not _agrees(model, Unlimited)


def test_window_that_no_layer_types_declares_is_recomputed() -> None:
    """GPT-Neo's, which its layers count by index in the cache, beyond any trial."""
    model = tiny_of("gpt_neo", window_size=64, max_position_embeddings=128)
    prompts = torch.randint(3, VOCABULARY, (2, 60))
    prompts[1, :20] = 0
    mask = (prompts != 0).long()
    reference = model.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=24)
    assert isinstance(verifier_for(model), RecomputingVerifier)
    drafter = ReferenceDrafter(reference[:, 60:].tolist(), 7)
    assert (
        generate(model, prompts, drafter, max_new_tokens=24, attention_mask=mask).sequences.tolist()
        == reference.tolist()
    )


def test_attention_without_masks_is_refused_with_the_remedy() -> None:
    model = tiny_model().base
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        ValueError, match=r"expected SDPA or eager attention, got 'flash_attention_2'.*attn_implementation='sdpa'"
    ):
        verifier_for(model)


SHAPE: dict[str, Any] = {
    "vocab_size": 23, "hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 1, "initializer_range": 0.6, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def windowed(kind: str) -> PreTrainedModel:
    """Models whose layers look back four tokens: all of them, or every other one."""
    from transformers import (
        Gemma2Config,
        Gemma2ForCausalLM,
        MistralConfig,
        MistralForCausalLM,
        Qwen2Config,
        Qwen2ForCausalLM,
    )

    torch.manual_seed(0)
    if kind == "mistral":
        return MistralForCausalLM(MistralConfig(sliding_window=4, **SHAPE)).eval()
    if kind == "qwen2":
        return Qwen2ForCausalLM(
            Qwen2Config(use_sliding_window=True, sliding_window=4, max_window_layers=1, **SHAPE)
        ).eval()
    return Gemma2ForCausalLM(Gemma2Config(head_dim=8, sliding_window=4, attn_implementation="eager", **SHAPE)).eval()


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "gemma2"])
def test_sliding_windows_slide_over_trees_too(kind: str) -> None:
    model = windowed(kind)
    prompts = torch.tensor([[3, 4, 5, 6, 7, 8, 9, 3, 4], [0, 0, 0, 0, 0, 0, 0, 9, 9]])
    mask = (prompts != 0).long()
    reference = model.generate(prompts, attention_mask=mask, do_sample=False, max_new_tokens=24)
    assert isinstance(verifier_for(model), TreeVerifier)
    texts = reference[:, 9:].tolist()
    for block in (0, 2, 7):
        out = generate(
            model,
            prompts,
            ReferenceDrafter(texts, block) if block else NoDrafter(),
            max_new_tokens=24,
            attention_mask=mask,
        )
        assert out.sequences.tolist() == reference.tolist()


def test_layers_that_cannot_forget_are_recomputed() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=2,
        state_size=4,
        initializer_range=0.6,
        eos_token_id=None,
        pad_token_id=0,
        bos_token_id=1,
    )
    model = MambaForCausalLM(config).eval()
    reference = model.generate(torch.tensor([[3, 4, 5]]), do_sample=False, max_new_tokens=12)
    assert isinstance(verifier_for(model), RecomputingVerifier)
    for drafter in (NoDrafter(), ReferenceDrafter(reference[0, 3:].tolist(), 3)):
        assert generate(model, [3, 4, 5], drafter, max_new_tokens=12).sequences.tolist() == reference.tolist()


@pytest.mark.parametrize("family", ["llama", "t5", "bart"])
def test_model_may_change_precision_weights_and_attention_between_decodes(family: str) -> None:
    """What was found out about a model is not taken from weights that it no longer has."""
    model = tiny(family)
    for change in ("none", "float64", "other weights", "eager"):
        if change == "float64":
            model.double()
        elif change == "other weights":
            model.load_state_dict(tiny(family, seed=3, dtype=torch.float64).state_dict())
        elif change == "eager":
            model.set_attn_implementation("eager")
        reference = model.generate(torch.tensor([[4, 5, 6]]), do_sample=False, num_beams=1, max_new_tokens=12)
        text = reference[0, 1 if model.config.is_encoder_decoder else 3 :].tolist()
        out = generate(model, [4, 5, 6], ReferenceDrafter(text, 3), max_new_tokens=12)
        assert out.sequences.tolist() == reference.tolist(), change


def rolled(logits: torch.Tensor) -> torch.Tensor:
    """Where the best token is odd, the next one is."""
    return torch.where(logits.argmax(dim=-1, keepdim=True) % 2 == 1, logits.roll(1, -1), logits)


def hook_model(model: Any) -> None:
    def change(module: Any, given: Any, output: Any) -> None:
        output.logits = rolled(output.logits)

    model.register_forward_hook(change)


def patch_model(model: Any) -> None:
    own = model.forward

    @functools.wraps(own)
    def forward(*args: Any, **kwargs: Any) -> Any:
        output = own(*args, **kwargs)
        output.logits = rolled(output.logits)
        return output

    model.forward = forward


def hook_output_embedding(model: Any) -> None:
    model.get_output_embeddings().register_forward_hook(lambda module, inputs, output: rolled(output))


def patch_output_embedding(model: Any) -> None:
    embedding = model.get_output_embeddings()
    own = embedding.forward
    embedding.forward = lambda hidden: rolled(own(hidden))


def patch_class(model: Any) -> None:
    class Changed(type(model)):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = rolled(output.logits)
            return output

        forward.__signature__ = inspect.signature(type(model).forward)  # type: ignore[attr-defined]

    model.__class__ = Changed


@pytest.mark.parametrize(
    "change", [hook_model, patch_model, hook_output_embedding, patch_output_embedding, patch_class]
)
@pytest.mark.parametrize("family", ["llama", "bart"])
def test_hooks_and_forwards_of_later_are_seen(family: str, change: Callable[[Any], None]) -> None:
    model: Any = tiny(family, seed=3)
    start, texts = 1 if model.config.is_encoder_decoder else 3, []
    for _ in range(2):
        reference = model.generate(torch.tensor([[4, 5, 6]]), do_sample=False, max_new_tokens=16)
        drafter = ReferenceDrafter(reference[:, start:].tolist(), 3)
        output = generate(model, [4, 5, 6], drafter, max_new_tokens=16)
        assert output.sequences.tolist() == reference.tolist()
        texts.append(reference.tolist())
        change(model)
    assert texts[0] != texts[1]
