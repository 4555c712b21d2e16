"""The adapter agrees with what each family's model does by itself."""

from __future__ import annotations

import pytest
import torch

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.tiny_families import FAMILIES, POSITIONS, VOCABULARY, tiny


@pytest.mark.parametrize("family", FAMILIES)
def test_adapter_tells_what_a_model_is(family: str) -> None:
    model = tiny(family, eos=7)
    base = TransformersModel.of(model)
    assert base.model is model
    assert base.is_encoder_decoder == (family in {"t5", "marian", "bart"})
    assert (base.vocab_size, base.source_vocab_size, base.hidden_size) == (VOCABULARY, VOCABULARY, 16)
    assert base.max_positions == (None if family in {"t5", "bloom"} else POSITIONS)
    assert (base.pad_id, base.eos_ids) == (0, [7])
    if base.is_encoder_decoder:
        assert base.start_id == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_projection_makes_the_models_own_logits(family: str) -> None:
    model = tiny(family)
    base, tokens = TransformersModel.of(model), torch.tensor([[3, 4, 5]])
    projection = base.exact_projection
    assert projection is not None
    with torch.inference_mode():
        if base.is_encoder_decoder:
            source = base.encoder(input_ids=tokens).last_hidden_state
            hidden = base.decoder(input_ids=tokens, encoder_hidden_states=source).last_hidden_state
            logits = base.model(input_ids=tokens, decoder_input_ids=tokens).logits
        else:
            hidden, logits = base.decoder(input_ids=tokens).last_hidden_state, base.model(input_ids=tokens).logits
        assert torch.equal(projection(hidden), logits)
        if projection.linear is not None:
            assert torch.equal(torch.nn.functional.linear(hidden, *projection.linear), logits)
    assert (projection.linear is None) == (projection.scale != 1.0 or projection.bias is not None)


def test_finding_out_leaves_a_model_in_training() -> None:
    model = tiny("bart").train()
    assert TransformersModel.of(model).exact_projection is not None
    assert model.training


def test_projection_follows_a_change_of_type() -> None:
    model = tiny("llama")
    assert TransformersModel.of(model).exact_projection is not None
    half = TransformersModel.of(model.to(torch.bfloat16)).exact_projection
    assert half is not None
    assert half(torch.zeros(1, 16)).dtype == torch.bfloat16


def test_module_around_a_model_is_its_model(model: BlockwiseLM) -> None:
    assert TransformersModel.of(model).model is model.base
    assert TransformersModel.of(TransformersModel.of(model)).model is model.base


@pytest.mark.parametrize("wrong", [None, "model", BlockwiseLM])
def test_what_is_no_model_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a model of transformers or a BlockwiseLM, got"):
        TransformersModel.of(wrong)


def test_encoder_decoder_without_a_start_token_is_refused() -> None:
    model = tiny("t5")
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(ValueError, match="decoder_start_token_id"):
        _ = TransformersModel.of(model).start_id
