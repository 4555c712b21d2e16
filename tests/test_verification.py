"""Tree attention: every row is what the base model computes for that node's own prefix."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from latticebpd import BlockwiseLM, DraftTree
from latticebpd.verification import Exact, Verified, Verifier, tree_attention_mask
from tests.conftest import tiny_model


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(paths=st.lists(st.lists(st.integers(0, 22), min_size=1, max_size=4), min_size=1, max_size=6))
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_tree_rows_equal_separate_forward_passes(paths: list[list[int]], implementation: str) -> None:
    model = tiny_model(3).base
    model.set_attn_implementation(implementation)
    prompt, next_token = [5, 8, 2], 11
    tree = DraftTree.from_paths(paths)
    verifier = Verifier(model)
    verifier.prefill(prompt)
    verified = verifier.verify(next_token, tree)
    for node in range(-1, len(tree)):
        prefix = [*prompt, next_token, *tree.tokens[tree.path(node)].tolist()]
        with torch.inference_mode():
            reference = model(input_ids=torch.tensor([prefix])).logits[0, -1]
        torch.testing.assert_close(verified.logits_of([node + 1])[0], reference, atol=2e-4, rtol=1e-4)


def test_cache_after_keep_holds_the_accepted_path_only(model: BlockwiseLM) -> None:
    verifier = Verifier(model.base)
    verifier.prefill([5, 8, 2])
    tree = DraftTree(np.array([1, 2, 3, 4, 6]), np.array([-1, -1, 1, 1, 3]))
    verifier.verify(11, tree)
    verifier.keep([1, 3, 4])
    assert verifier.length == 7
    after = verifier.verify(9, DraftTree.empty()).logits_of([0])[0]
    with torch.inference_mode():
        reference = model.base(input_ids=torch.tensor([[5, 8, 2, 11, 2, 4, 6, 9]])).logits[0, -1]
    torch.testing.assert_close(after, reference, atol=2e-4, rtol=1e-4)


def test_last_hidden_state_is_what_the_output_embedding_reads(model: BlockwiseLM) -> None:
    verified = Verifier(model.base).prefill([5, 8, 2])
    with torch.inference_mode():
        torch.testing.assert_close(model.base.get_output_embeddings()(verified.hidden), verified.logits_of([0]))


def test_model_that_caps_its_logits_is_left_to_do_so() -> None:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=23, hidden_size=16, num_hidden_layers=2, intermediate_size=16, num_attention_heads=2, num_key_value_heads=2,
        head_dim=8, final_logit_softcapping=0.1, layer_types=["full_attention"] * 2, attn_implementation="eager",
    )  # fmt: skip
    model = Gemma2ForCausalLM(config).eval()
    verifier = Verifier(model)
    verifier.prefill([1, 2, 3])
    logits = verifier.verify(4, DraftTree.from_paths([[5]])).logits_of([0, 1])
    with torch.inference_mode():
        torch.testing.assert_close(logits, model(input_ids=torch.tensor([[1, 2, 3, 4, 5]])).logits[0, -2:], atol=1e-5, rtol=1e-5)


def test_mask_of_a_chain_is_the_causal_mask() -> None:
    mask = tree_attention_mask(DraftTree.from_paths([[4, 4, 4]]), 2, torch.float32, torch.device("cpu"))
    assert (mask[0, 0] == 0).int().tolist() == [[1] * (3 + row) + [0] * (3 - row) for row in range(4)]


def test_verifier_rejects_at_first_mismatch() -> None:
    tree = DraftTree(np.array([1, 2, 0, 2]), np.array([-1, 0, -1, 2]))
    choices = [1, 0, 2, 2, 2]  # after the root 1; after node 0 (token 1): 0, but the draft says 2
    path, next_token = Exact().accept(tree, Verified(torch.zeros(5, 1), lambda rows: torch.eye(3)[choices][rows]))
    assert (path, next_token) == ([0], 0)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_greedy_token_is_the_same_row_by_row_and_all_at_once(device: str) -> None:
    """Only the device of the hidden states decides; `meta` stands for an accelerator."""
    logits = torch.tensor([[0.0, 2.0, 2.0], [3.0, 1.0, 0.0]])
    verified = Verified(torch.zeros(2, 1, device=device), lambda rows: logits[rows])
    assert [verified.greedy_token(row) for row in (0, 1, 0)] == [1, 0, 1]


def test_attention_without_masks_is_refused_with_the_remedy() -> None:
    model = tiny_model().base
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match=r"expected SDPA or eager attention, got 'flash_attention_2'.*attn_implementation='sdpa'"):
        Verifier(model)


def test_sliding_window_is_refused() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        vocab_size=23,
        hidden_size=16,
        num_hidden_layers=1,
        intermediate_size=16,
        num_attention_heads=2,
        num_key_value_heads=2,
        sliding_window=4,
    )
    with pytest.raises(ValueError, match="full attention in every layer"):
        Verifier(MistralForCausalLM(config)).prefill([1, 2, 3])
