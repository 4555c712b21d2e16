"""Medusa checkpoints, written here in their own layout: loaded, aligned, verified, refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from latticebpd import PathsDrafter, TreeDrafter, VanillaDrafter, generate
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.medusa import load_medusa
from tests.helpers.blockwise_models import greedy, tiny_model
from tests.helpers.trigrams import trigram

HIDDEN, VOCAB = 16, 23


def write_checkpoint(
    directory: Path, tensors: dict[str, Tensor], heads: int = 2, layers: int = 1, prefix: str = ""
) -> Path:
    directory.mkdir(exist_ok=True)
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "somewhere/base"}
    (directory / "config.json").write_text(json.dumps(config))
    save_file(
        {prefix + name: tensor.contiguous() for name, tensor in tensors.items()},
        directory / "medusa_lm_head.safetensors",
    )
    return directory


def random_heads(heads: int = 2, layers: int = 1) -> dict[str, Tensor]:
    torch.manual_seed(1)
    tensors = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(HIDDEN, HIDDEN)
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(HIDDEN)
        tensors[f"{head}.{layers}.weight"] = torch.randn(VOCAB, HIDDEN)
    return tensors


def medusa_forward(tensors: dict[str, Tensor], head: int, layers: int, hidden: Tensor) -> Tensor:
    """A head as Medusa's own modules compute it: a Sequential of residual blocks and a Linear without bias."""
    for layer in range(layers):
        linear = torch.nn.Linear(HIDDEN, HIDDEN)
        linear.load_state_dict(
            {"weight": tensors[f"{head}.{layer}.linear.weight"], "bias": tensors[f"{head}.{layer}.linear.bias"]}
        )
        hidden = hidden + torch.nn.SiLU()(linear(hidden))
    return hidden @ tensors[f"{head}.{layers}.weight"].T


def hidden_states(base: torch.nn.Module, text: list[int]) -> Tensor:
    with torch.inference_mode():
        states: Tensor = base(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[-1][0]
    return states


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_heads_compute_what_medusas_modules_compute(tmp_path: Path, layers: int, prefix: str) -> None:
    tensors = random_heads(3, layers)
    model = load_medusa(write_checkpoint(tmp_path / "m", tensors, 3, layers, prefix), tiny_model().base)
    hidden = torch.randn(4, HIDDEN)
    with torch.inference_mode():
        logits = model.head_logits(hidden)
        assert logits.shape == (4, 3, VOCAB)
        assert model.num_heads == 4
        for head in range(3):
            torch.testing.assert_close(logits[:, head], medusa_forward(tensors, head, layers, hidden))


def test_a_block_stored_once_stands_for_all_layers(tmp_path: Path) -> None:
    once = random_heads(2, 1)
    tensors = {(f"{name[0]}.3.weight" if name.endswith("1.weight") else name): tensor for name, tensor in once.items()}
    repeated = dict(tensors)
    for head in range(2):
        for layer in (1, 2):
            for part in ("weight", "bias"):
                repeated[f"{head}.{layer}.linear.{part}"] = once[f"{head}.0.linear.{part}"].clone()
    base = tiny_model().base
    short = load_medusa(write_checkpoint(tmp_path / "short", tensors, 2, 3), base)
    full = load_medusa(write_checkpoint(tmp_path / "full", repeated, 2, 3), base)
    hidden = torch.randn(2, HIDDEN)
    with torch.inference_mode():
        assert torch.equal(short.head_logits(hidden), full.head_logits(hidden))


def knowing_heads(base: torch.nn.Module, text: list[int], prompt: int, heads: int) -> dict[str, Tensor]:
    """Heads that know ``text``: head ``i``, reading the state that predicts token t + 1, gives token t + 2 + i its
    highest logit.

    The residual block is the identity (zero weights and bias, since silu(0) = 0); the projection maps each hidden
    state of the text to its token by the pseudo-inverse, so there may be no more states than hidden units.
    """
    states = hidden_states(base, text)
    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        rows = range(prompt - 1, len(text) - 2 - head)
        wanted = torch.nn.functional.one_hot(torch.tensor([text[t + 2 + head] for t in rows]), VOCAB).float()
        tensors[f"{head}.0.linear.weight"] = torch.zeros(HIDDEN, HIDDEN)
        tensors[f"{head}.0.linear.bias"] = torch.zeros(HIDDEN)
        tensors[f"{head}.1.weight"] = (torch.linalg.pinv(states[list(rows)]) @ wanted).T
    return tensors


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_head_i_predicts_the_token_i_plus_2_ahead_so_right_heads_fill_every_block(tmp_path: Path, heads: int) -> None:
    plain = tiny_model(3)
    prompt = [3, 1, 4]
    text = prompt + greedy(plain, prompt, 13)
    assert len(set(text)) > 3  # a constant text could not tell an offset
    checkpoint = write_checkpoint(tmp_path / "m", knowing_heads(plain.base, text, len(prompt), heads), heads)
    model = load_medusa(checkpoint, plain.base)
    for drafter in (
        VanillaDrafter(model),
        PathsDrafter(model, None, p=2, k=3),
        TreeDrafter(model, None, num_nodes=6, k=2),
    ):
        out = generate(model, prompt, drafter, max_new_tokens=13)
        assert out.sequences[0].tolist() == text
        assert out.num_calls == -(-12 // (heads + 1))


def test_rescored_medusa_drafts_leave_the_text_as_it_is(tmp_path: Path) -> None:
    model = load_medusa(write_checkpoint(tmp_path / "m", random_heads(4), 4), tiny_model(2).base)
    prompt = [3, 1, 4, 1, 5]
    for drafter in (
        VanillaDrafter(model),
        PathsDrafter(model, trigram(), p=4, k=3),
        TreeDrafter(model, trigram(), num_nodes=20, k=5),
    ):
        assert generate(model, prompt, drafter, max_new_tokens=30).sequences[0, 5:].tolist() == greedy(
            model, prompt, 30
        )


def test_fewer_heads_than_the_checkpoint_has_may_be_asked_for(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "m", random_heads(4), 4)
    model = load_medusa(checkpoint, tiny_model().base, num_heads=2)
    assert model.num_heads == 3


def test_loaded_heads_survive_saving_as_a_blockwise_model(tmp_path: Path) -> None:
    model = load_medusa(write_checkpoint(tmp_path / "m", random_heads(2), 2), tiny_model().base)
    model.save_pretrained(tmp_path / "saved")
    again = BlockwiseLM.from_pretrained(tmp_path / "saved")
    hidden = torch.randn(3, HIDDEN)
    with torch.inference_mode():
        assert torch.equal(again.head_logits(hidden), model.head_logits(hidden))


def without(tensors: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("tensors", "heads", "layers", "message"),
    [
        (random_heads(2), 3, 1, r"expected 3 heads of 1 blocks .*, found 2 heads and no tensor 2\.0\.linear\.weight"),
        (without(random_heads(2), "1.1.weight"), 2, 1, r"no tensor 1\.1\.weight"),
        (without(random_heads(2), "0.0.linear.bias"), 2, 1, r"no tensor 0\.0\.linear\.bias"),
        (random_heads(2, 2), 2, 1, r"expected 1 blocks and a projection per head .*, got a tensor 0\.1\.linear"),
        (
            {**random_heads(2), "0.0.linear.weight": torch.zeros(8, 8)},
            2,
            1,
            r"expected shape \[16, 16\] .*hidden size 16.*, got \[8, 8\]",
        ),
        (
            {**random_heads(2), "1.1.weight": torch.zeros(29, 16)},
            2,
            1,
            r"expected shape \[23, 16\] .*vocabulary 23\), got \[29, 16\]",
        ),
        (
            {**random_heads(2), "medusa_head.0.1.weight": torch.zeros(23, 16)},
            2,
            1,
            r"every tensor once, got 0\.1\.weight twice",
        ),
        (random_heads(2), 0, 1, r"medusa_num_heads from 1"),
        (random_heads(2), 2, -1, r"medusa_num_layers from 0"),
        (random_heads(2), True, 1, r"medusa_num_heads from 1"),
    ],
)
def test_heads_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, tensors: dict[str, Tensor], heads: int, layers: int, message: str
) -> None:
    checkpoint = write_checkpoint(tmp_path / "m", tensors, heads, layers)
    with pytest.raises(ValueError, match=message):
        load_medusa(checkpoint, tiny_model().base)


def test_pickled_weights_are_refused_with_a_command_that_converts_them(tmp_path: Path) -> None:
    tensors = random_heads(2)
    checkpoint = write_checkpoint(tmp_path / "m", tensors)
    (checkpoint / "medusa_lm_head.safetensors").unlink()
    torch.save(tensors, checkpoint / "medusa_lm_head.pt")
    with pytest.raises(ValueError, match="got pickled weights; convert them once: python -c") as refusal:
        load_medusa(checkpoint, tiny_model().base)
    exec(str(refusal.value).split('python -c "')[1].removesuffix('"'), {})
    assert load_medusa(checkpoint, tiny_model().base).num_heads == 3


def test_incomplete_directories_and_broken_files_are_refused(tmp_path: Path) -> None:
    base = tiny_model().base
    with pytest.raises(ValueError, match=r"found no config\.json"):
        load_medusa(tmp_path, base)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ValueError, match="Medusa configuration with medusa_num_heads"):
        load_medusa(tmp_path, base)
    (tmp_path / "config.json").write_text('{"medusa_num_heads": 2}')
    with pytest.raises(ValueError, match="found no safetensors"):
        load_medusa(tmp_path, base)
    (tmp_path / "medusa_lm_head.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match="is the copy complete"):
        load_medusa(tmp_path, base)
    write_checkpoint(tmp_path, random_heads(2))
    with pytest.raises(ValueError, match="num_heads from 1 to 2"):
        load_medusa(tmp_path, base, num_heads=3)
