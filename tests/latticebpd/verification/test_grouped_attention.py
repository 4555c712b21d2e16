"""Attention to grouped keys without copies: the texts and logits of stock attention."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.verification import grouped_attention
from latticebpd.verification.grouped_attention import NAME


def llama(groups: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    ends = {"bos_token_id": 1, "eos_token_id": 3, "pad_token_id": 0}
    heads = {"num_attention_heads": 6, "num_key_value_heads": groups}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=200, max_position_embeddings=64, **sizes, **heads, **ends)).eval()
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("groups", [2, 6])
def test_texts_are_those_of_stock_attention(groups: int, cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = llama(groups), torch.randint(4, 200, (5, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    for row in range(5):
        mask[row, : 2 * row] = ids[row, : 2 * row] = 0
    options = {"do_sample": False, "max_new_tokens": 12, "attention_mask": mask, "output_logits": True}
    expected = model.generate(ids, **options, return_dict_in_generate=True)
    copied = list[bool]()
    stock = grouped_attention.sdpa_attention_forward

    def counted(module: object, query: torch.Tensor, *arguments: object, **more: object) -> object:
        copied.append(query.shape[2] == 1)
        return stock(module, query, *arguments, **more)

    monkeypatch.setattr(grouped_attention, "sdpa_attention_forward", counted)
    kept = {} if cache == "dynamic" else {"cache_implementation": "static", "disable_compile": True}
    with grouped_attention.grouped_attention(model):
        assert model.config._attn_implementation == NAME
        read = model.generate(ids, **options, **kept, return_dict_in_generate=True)
    assert model.config._attn_implementation == "sdpa"
    assert torch.equal(read.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(read.logits), torch.stack(expected.logits), atol=1e-4, rtol=1e-4)
    assert any(copied) == (groups == 6)  # single tokens are stock attention's where no heads share keys


def test_other_attention_stays() -> None:
    model = llama(2)
    model.set_attn_implementation("eager")
    with grouped_attention.grouped_attention(model):
        assert model.config._attn_implementation == "eager"
