"""BlockwiseLM: heads beside an untouched base model, saved and loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from latticebpd import BlockHeads, BlockwiseLM
from tests.conftest import tiny_model


def test_saved_model_round_trips_and_its_base_opens_with_transformers(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    again = BlockwiseLM.from_pretrained(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = torch.tensor([[1, 2, 3]])
    with torch.inference_mode():
        torch.testing.assert_close(again.base(tokens).logits, model.base(tokens).logits)
        torch.testing.assert_close(stock(tokens).logits, model.base(tokens).logits)
        hidden = torch.randn(4, 16)
        logits = again.head_logits(hidden)
        torch.testing.assert_close(logits, model.head_logits(hidden))
    assert logits.shape == (4, again.num_heads - 1, again.vocab_size)


def test_half_precision_file_is_half_the_size_and_loads_as_float32(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "full")
    model.save_pretrained(tmp_path / "half", dtype=torch.float16)
    assert (tmp_path / "half/heads.safetensors").stat().st_size < 0.6 * (tmp_path / "full/heads.safetensors").stat().st_size
    half = BlockwiseLM.from_pretrained(tmp_path / "half")
    assert half.base.dtype == half.heads.up.dtype == torch.float32
    torch.testing.assert_close(half.heads.up, model.heads.up, atol=1e-3, rtol=1e-3)


def test_new_heads_start_as_copies_of_the_base_model() -> None:
    heads = BlockHeads(hidden_size=6, num_heads=4, intermediate_size=3)
    hidden = torch.randn(2, 6)
    torch.testing.assert_close(heads(hidden), hidden[:, None].expand(2, 3, 6))


def test_grouped_forward_equals_each_head_alone(model: BlockwiseLM) -> None:
    hidden = torch.randn(model.num_heads - 1, 5, 16)
    everything = model.heads(hidden)
    for head in range(model.num_heads - 1):
        torch.testing.assert_close(model.heads.forward_grouped(hidden)[head], everything[head, :, head])


def test_heads_of_another_width_are_refused() -> None:
    with pytest.raises(ValueError, match=r"heads of hidden size 16 .* got 8"):
        BlockwiseLM(tiny_model().base, BlockHeads(8, 3, 4))


@pytest.mark.parametrize("name", ["config.json", "heads.json", "heads.safetensors", "model.safetensors"])
def test_missing_or_damaged_file_is_a_value_error(model: BlockwiseLM, tmp_path: Path, name: str) -> None:
    model.save_pretrained(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=str(tmp_path)):
        BlockwiseLM.from_pretrained(tmp_path)
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=str(tmp_path)):
        BlockwiseLM.from_pretrained(tmp_path)


def test_heads_that_do_not_fit_the_base_are_refused(model: BlockwiseLM, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "heads.json").read_text())
    (tmp_path / "heads.json").write_text(json.dumps(config | {"vocab_size": 99}))
    with pytest.raises(ValueError, match=r"base model of 99 tokens .* got 23"):
        BlockwiseLM.from_pretrained(tmp_path)
    (tmp_path / "heads.json").write_text(json.dumps(config | {"num_heads": 7}))
    with pytest.raises(ValueError, match=r"heads\.safetensors does not fit heads\.json"):
        BlockwiseLM.from_pretrained(tmp_path)
