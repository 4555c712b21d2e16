"""Checkpoints of block drafters, written here in both layouts: loaded, compared, damaged, refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from latticebpd.drafters.block.block_checkpoints import is_block_drafter, load_block_drafter, save_block_drafter
from latticebpd.drafters.block.block_network import BlockDrafter, anchored_blocks
from latticebpd.drafters.block.lattice_reranker import RerankerConfig
from tests.helpers.block_drafters import MASK, VOCAB, tiny_drafter, tiny_target

QWEN3 = {
    "model_type": "qwen3", "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 2, "intermediate_size": 32,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "rope_scaling": None, "attention_bias": False, "hidden_act": "silu", "use_cache": True,
    "dtype": "bfloat16",
}  # fmt: skip
REDUCED = [1, 4, 9, 10, 28]
Change = Callable[[dict[str, Any], dict[str, Tensor]], object]


def zlab(drafter: BlockDrafter, **changes: Any) -> dict[str, Any]:
    """DFlash's config.json of a drafter without further heads."""
    own = {"target_layer_ids": [1, 2], "mask_token_id": MASK} | (
        {"causal_head": True} if drafter.config.causal_head else {}
    )
    return {
        **QWEN3,
        "architectures": ["DFlashDraftModel"],
        "block_size": 4,
        "num_target_layers": 5,
        "dflash_config": own,
        **changes,
    }


def speculators(kind: str, **changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["DFlashSpeculator"], "speculators_model_type": kind, "speculators_version": "0.4.0",
        "transformer_layer_config": QWEN3, "draft_vocab_size": VOCAB, "block_size": 4,
        "aux_hidden_state_layer_ids": [2, 3],
        "mask_token_id": MASK, "target_hidden_size": None,
        "speculators_config": {"algorithm": kind, "verifier": {"name_or_path": "somewhere/base"}},
    }  # fmt: skip
    return config | changes


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, directory / "model.safetensors")
    return directory


def maps(tokens: list[int]) -> dict[str, Tensor]:
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[tokens] = True
    return {"t2d": t2d, "d2t": torch.tensor(tokens) - torch.arange(len(tokens))}


def assert_same(one: BlockDrafter, other: BlockDrafter) -> None:
    """In all that they compute."""
    positions, visible = anchored_blocks(torch.tensor([[3, 5]]), 4, 6, one.config.causal_head)
    torch.manual_seed(0)
    inputs = torch.randn(1, 6, 48), torch.arange(6)[None], torch.randn(1, 8, 24), positions, visible
    with torch.inference_mode():
        assert torch.equal(one(*inputs), other(*inputs))
    assert {name: tensor.tolist() for name, tensor in one.state_dict().items()} == {
        name: tensor.tolist() for name, tensor in other.state_dict().items()
    }
    for name in ("block_size", "slots", "mask_token_id", "target_layer_ids",
    "causal_head", "sample_from_anchor", "draft_vocab_size",
                 "markov_rank", "confidence", "confidence_with_markov", "conv_kernel_size", "conv_group_size",
                 "selector_rank", "selector_top_k", "reranker", "sliding_layers", "sliding_window"):  # fmt: skip
        assert getattr(one.config, name) == getattr(other.config, name), name
    assert (one.draft_tokens is None) == (other.draft_tokens is None)
    assert one.draft_tokens is None or one.draft_tokens.tolist() == other.draft_tokens.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"causal_head": True, "own_head": True},
        {
            "sample_from_anchor": True,
            "markov_rank": 3,
            "confidence": True,
            "confidence_with_markov": True,
            "draft_tokens": REDUCED,
        },
        {
            "conv_kernel_size": 2,
            "conv_group_size": 8,
            "selector_rank": 5,
            "selector_top_k": 4,
            "draft_tokens": REDUCED,
            "sliding_layers": (0,),
            "sliding_window": 9,
        },
        {"reranker": RerankerConfig(3, 16, 7, 2, 4, 1.5, 6.0, 1e-4), "own_head": True},
    ],
)
def test_what_is_saved_is_what_is_loaded(tmp_path: Path, parts: dict[str, Any]) -> None:
    drafter = tiny_drafter(tiny_target(), tokenizer_fingerprint="sha256:0", **parts)
    save_block_drafter(drafter, tmp_path)
    assert is_block_drafter(tmp_path)
    loaded = load_block_drafter(tmp_path)
    assert_same(loaded, drafter)
    assert (loaded.config.tokenizer_fingerprint, loaded.config.num_target_layers) == ("sha256:0", 5)
    assert not loaded.training
    assert (
        load_block_drafter(tmp_path, torch.bfloat16).rotary_emb.inv_freq.dtype == torch.float32
    )  # in half, positions would be rounded


@pytest.mark.parametrize("causal", [False, True])
def test_dflashs_own_layout(tmp_path: Path, causal: bool) -> None:
    drafter = tiny_drafter(tiny_target(), causal_head=causal)
    assert_same(load_block_drafter(write(tmp_path, zlab(drafter), drafter.state_dict())), drafter)


def test_newer_names_of_dflashs_layout(tmp_path: Path) -> None:
    drafter = tiny_drafter(tiny_target(), causal_head=True)
    config = zlab(
        drafter, is_causal=True, dflash_config={"target_layer_ids": [1, 2], "mask_token_id": MASK, "block_size": 4}
    )
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    del config["rope_scaling"], config["block_size"]
    assert_same(load_block_drafter(write(tmp_path, config, drafter.state_dict())), drafter)


@pytest.mark.parametrize("tokens", [None, REDUCED])
def test_speculators_dflash(tmp_path: Path, tokens: list[int] | None) -> None:
    drafter = tiny_drafter(tiny_target(), draft_tokens=tokens, own_head=tokens is not None)
    tensors = drafter.state_dict() | ({} if tokens is None else maps(tokens))
    tensors |= {
        "embed_tokens.weight": torch.randn(VOCAB, 24),
        "verifier_norm.weight": torch.ones(24),
    }  # the target's own, carried along
    config = speculators("dflash", draft_vocab_size=VOCAB if tokens is None else len(tokens))
    assert_same(load_block_drafter(write(tmp_path, config, tensors)), drafter)


def test_speculators_dspark(tmp_path: Path) -> None:
    """What its config leaves out has the defaults of DSpark: all columns say tokens, both heads are there."""
    drafter = tiny_drafter(
        tiny_target(),
        sample_from_anchor=True,
        markov_rank=3,
        confidence=True,
        confidence_with_markov=True,
        draft_tokens=REDUCED,
    )
    config = speculators("dspark", draft_vocab_size=len(REDUCED), markov_rank=3)
    assert_same(load_block_drafter(write(tmp_path, config, drafter.state_dict() | maps(REDUCED))), drafter)


def dflash2(**changes: Any) -> dict[str, Any]:
    """DFlash 2's config.json, as published ones are: a block's size among its own fields, windows."""
    own = {"target_layer_ids": [1, 2], "mask_token_id": MASK, "block_size": 4, "conv_kernel_size": 2,
           "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 4}  # fmt: skip
    windows = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3, "is_causal": False}
    return QWEN3 | windows | {"architectures": ["DFlash2DraftModel"], "dflash_config": own, **changes}


def lilicorr(drafter: BlockDrafter, **changes: Any) -> dict[str, Any]:
    own = {"lilicorr_candidate_topk": 3, "lilicorr_hidden_size": 16, "lilicorr_factor_dim": 7, "lilicorr_num_layers": 2,
           "lilicorr_num_heads": 4, "lilicorr_mlp_ratio": 1.5, "lilicorr_logit_scale": 6.0,
           "lilicorr_vector_eps": 1e-4}  # fmt: skip
    config = zlab(drafter, architectures=["LiLiCorrDraftModel"], has_own_lm_head=False)
    config["dflash_config"] |= own | changes
    return config


SELECTOR = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 5, "selector_top_k": 4}
RERANKER = {"reranker": RerankerConfig(3, 16, 7, 2, 4, 1.5, 6.0, 1e-4)}
WINDOW = {"sliding_layers": (1,), "sliding_window": 3}


def test_dflash2s_own_layout(tmp_path: Path) -> None:
    drafter = tiny_drafter(tiny_target(), **SELECTOR, **WINDOW)
    shapes = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items()}
    added = {f"layers.{layer}.{side}_conv.base_kernel": [2, 2, 24] for layer in (0, 1) for side in ("attention", "mlp")}
    added |= {name.replace("base_kernel", "kernel_projection.weight"): [12, 24] for name in added}
    codebooks = {f"candidate_selector.{side}_codebook": [VOCAB, 5] for side in ("predecessor", "successor")}
    added |= codebooks | {"candidate_selector.hidden_projection.weight": [5, 24]}
    plain = {name: list(tensor.shape) for name, tensor in tiny_drafter(tiny_target()).state_dict().items()}
    assert shapes == plain | added
    assert_same(load_block_drafter(write(tmp_path / "zlab", dflash2(), drafter.state_dict())), drafter)
    described = QWEN3 | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 3}
    config = speculators("dflash2", **SELECTOR, transformer_layer_config=described, is_causal=False)
    del config["draft_vocab_size"]  # the whole vocabulary
    assert_same(load_block_drafter(write(tmp_path / "speculators", config, drafter.state_dict())), drafter)


def test_lilicorrs_own_layout(tmp_path: Path) -> None:
    drafter = tiny_drafter(tiny_target(), **RERANKER)
    shapes = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items() if name.startswith("lilicorr.")}
    linear = {"token_proj": [16, 24], "pass_hidden_proj": [16, 24], "feature_mlp.1": [16, 5], "feature_mlp.3": [16, 16],
              "context_proj": [16, 24], "factor_input_proj": [16, 48], "out_head": [7, 16], "in_head": [7, 16],
              "anchor_out_head": [7, 16]}  # fmt: skip
    expected = {"feature_mlp.0.weight": [5], "feature_mlp.0.bias": [5], "slot_embedding": [1, 1, 3, 1, 16],
                "rank_embedding": [1, 1, 1, 3, 16], "relative_slot_bias": [4, 7], "same_slot_bias": [4],
                "output_norm.weight": [16], "anchor_norm.weight": [16]}  # fmt: skip
    for layer in ("layers.0", "layers.1"):
        linear |= {f"{layer}.attn.out_proj": [16, 16], f"{layer}.mlp.0": [24, 16], f"{layer}.mlp.2": [16, 24]}
        expected |= {f"{layer}.attn.in_proj_weight": [48, 16], f"{layer}.attn.in_proj_bias": [48]}
        expected |= {f"{layer}.attn_norm.weight": [16], f"{layer}.mlp_norm.weight": [16]}
    expected |= {f"{name}.weight": shape for name, shape in linear.items()}
    expected |= {f"{name}.bias": shape[:1] for name, shape in linear.items()}
    assert shapes == {f"lilicorr.{name}": shape for name, shape in expected.items()}
    assert_same(load_block_drafter(write(tmp_path / "plain", lilicorr(drafter), drafter.state_dict())), drafter)
    convolved = tiny_drafter(tiny_target(), own_head=True, conv_kernel_size=2, conv_group_size=8, **RERANKER)
    config = lilicorr(drafter, conv_kernel_size=2, conv_group_size=8) | {"has_own_lm_head": True}
    assert_same(load_block_drafter(write(tmp_path / "convolved", config, convolved.state_dict())), convolved)
    wide = tiny_drafter(tiny_target(), reranker=RerankerConfig(3, 0, 7, 1, 4, 1.5, 6.0, 1e-4))
    assert "lilicorr.token_proj.weight" not in wide.state_dict()
    config = lilicorr(drafter, lilicorr_hidden_size=24, lilicorr_num_layers=1)
    with torch.inference_mode():
        same = load_block_drafter(write(tmp_path / "wide", config, wide.state_dict()))
        points = torch.randn(2, 3, 3, 24), torch.randn(2, 3, 3), torch.randn(2, 3, 24), torch.randn(2, 24)
        assert torch.equal(same.lilicorr(*points)[1], wide.lilicorr(*points)[1])  # type: ignore[misc]


def own(name: str, value: Any = None) -> Change:
    """A field of ``dflash_config`` with another value, or without one."""
    return lambda config, tensors: config["dflash_config"].update({name: value})


def top(name: str, value: Any = None) -> Change:
    return lambda config, tensors: config.update({name: value})


def renamed(name: str, other: str) -> Change:
    return lambda config, tensors: tensors.update({other: tensors.pop(name)})


CODEBOOK, BIAS = "candidate_selector.successor_codebook", "lilicorr.in_head.bias"
DFLASH2_REFUSED: list[tuple[Change, str]] = [
    (own("selector_rank"), "expected selector_rank, a whole number from 1 on, got None"),
    (own("conv_kernel_size", 0), "expected conv_kernel_size, a whole number from 1 on, got 0"),
    (own("conv_group_size", 7), "expected conv_group_size dividing 24, got 7"),
    (own("conv_kernel_size", 5), r"expected conv_kernel_size up to 4 \(block_size\), got 5"),
    (own("selector_top_k", 99), f"expected at most {VOCAB} candidates per slot"),
    (own("selector_rank", 6), r"expected candidate_selector.predecessor_codebook of shape \[31, 6\]"),
    (renamed(CODEBOOK, f"{CODEBOOK}.weight"), f"expected {CODEBOOK} of shape .* found no such tensor"),
    (top("sliding_window"), "expected sliding_window, a whole number from 1 on, got None"),
    (lambda config, tensors: config.pop("is_causal"), "expected is_causal with layer_types of sliding_attention"),
    (top("layer_types", ["sliding_attention"]), "expected layer_types, 2 of full_attention and sliding_attention"),
    (top("sample_from_anchor", True), "expected sample_from_anchor false with a candidate selector"),
    (top("markov_rank", 3), "expected one of markov_rank, selector_rank and lilicorr_candidate_topk"),
    (own("final_logit_softcapping", 20.0), "expected final_logit_softcapping None"),
]
LILICORR_REFUSED: list[tuple[Change, str]] = [
    (own("lilicorr_logit_scale"), "expected lilicorr_logit_scale, a number, got None"),
    (own("lilicorr_logit_scale", float("inf")), "expected lilicorr_logit_scale, a number, got inf"),
    (own("lilicorr_vector_eps", 0.5), "expected lilicorr_vector_eps from 0 to 0.5, got 0.5"),
    (own("lilicorr_num_heads", 5), r"expected lilicorr_hidden_size in 5 parts \(lilicorr_num_heads\), got 16"),
    (own("lilicorr_num_layers", 10**6), "expected lilicorr_num_layers up to 20"),
    (own("lilicorr_hidden_size", 1 << 20), "expected lilicorr.* of shape"),
    (own("lilicorr_enabled", False), "expected lilicorr_enabled True"),
    (top("block_size", 5), r"expected lilicorr.slot_embedding of shape \[1, 1, 4"),
    (
        top("dflash_config", {"target_layer_ids": [1, 2], "mask_token_id": MASK}),
        "expected lilicorr_mlp_ratio, a number",
    ),
    (top("has_own_lm_head", True), "expected lm_head.weight with has_own_lm_head"),
    (lambda config, tensors: tensors.pop(BIAS), f"expected {BIAS} of shape .* found no such tensor"),
    (lambda config, tensors: tensors.update({"lilicorr.gate": torch.ones(1)}), "got lilicorr.gate too"),
]


@pytest.mark.parametrize(("change", "message"), DFLASH2_REFUSED)
def test_selectors_that_do_not_fit_are_refused_by_name(tmp_path: Path, change: Change, message: str) -> None:
    drafter = tiny_drafter(tiny_target(), **SELECTOR, **WINDOW)
    refused_in_a_line(tmp_path, dflash2(), drafter, change, message)


@pytest.mark.parametrize(("change", "message"), LILICORR_REFUSED)
def test_rerankers_that_do_not_fit_are_refused_by_name(tmp_path: Path, change: Change, message: str) -> None:
    drafter = tiny_drafter(tiny_target(), **RERANKER)
    refused_in_a_line(tmp_path, lilicorr(drafter), drafter, change, message)


def refused_in_a_line(
    directory: Path, config: dict[str, Any], drafter: BlockDrafter, change: Change, message: str
) -> None:
    tensors = dict(drafter.state_dict())
    change(config, tensors)
    with pytest.raises(ValueError, match=message) as refused:
        load_block_drafter(write(directory, config, tensors))
    assert "\n" not in str(refused.value)


def test_one_map_is_enough_and_shards_are_read(tmp_path: Path) -> None:
    drafter = tiny_drafter(tiny_target(), draft_tokens=REDUCED)
    tensors, both = drafter.state_dict(), maps(REDUCED)
    config = zlab(drafter)
    config["dflash_config"]["draft_vocab_size"] = len(REDUCED)
    for name, tensor in both.items():
        assert_same(load_block_drafter(write(tmp_path / name, config, tensors | {name: tensor})), drafter)
    first = dict(list(tensors.items())[:5])
    write(tmp_path / "shards", config, {name: tensor for name, tensor in tensors.items() if name not in first})
    save_file(first | both, tmp_path / "shards" / "model-00002.safetensors")
    assert_same(load_block_drafter(tmp_path / "shards"), drafter)


REFUSED: dict[str, tuple[Change, str]] = {
    "neither layout": (lambda c, t: c.pop("dflash_config"), "expected dflash_config, or speculators_model_type"),
    "no mask": (
        lambda c, t: c["dflash_config"].pop("mask_token_id"),
        "expected mask_token_id, a whole number from 0 on, got None",
    ),
    "mask outside": (
        lambda c, t: c["dflash_config"].update(mask_token_id=VOCAB),
        f"expected mask_token_id below {VOCAB}",
    ),
    "no layers named": (
        lambda c, t: c["dflash_config"].pop("target_layer_ids"),
        "expected target_layer_ids, a list of layers from 0 on",
    ),
    "layers beyond": (
        lambda c, t: c["dflash_config"].update(target_layer_ids=[1, 5]),
        "expected target_layer_ids below 5",
    ),
    "block of one": (lambda c, t: c.update(block_size=1), "expected block_size >= 2, got 1"),
    "block of half": (lambda c, t: c.update(block_size=4.5), "expected block_size, a whole number from 1 on, got 4.5"),
    "another model": (lambda c, t: c.update(model_type="llama"), "expected layers of model_type qwen3, got 'llama'"),
    "sliding window": (
        lambda c, t: c.update(layer_types=["full_attention", "sliding_attention"]),
        "expected is_causal with layer_types of sliding_attention, got none",
    ),
    "domino": (lambda c, t: c.update(projector_type="domino"), "expected projector_type 'dflash'"),
    "gated bigram": (lambda c, t: c.update(markov_head_type="gated"), "expected markov_head_type 'vanilla'"),
    "capped logits": (
        lambda c, t: c["dflash_config"].update(final_logit_softcapping=30.0),
        "expected final_logit_softcapping None",
    ),
    "scaled embeddings": (
        lambda c, t: c["dflash_config"].update(input_embedding_scale=8.0),
        "expected input_embedding_scale 1",
    ),
    "quantized": (
        lambda c, t: c.update(quantization_config={"quant_method": "fp8"}),
        "expected quantization_config None",
    ),
    "truth in words": (
        lambda c, t: c["dflash_config"].update(causal_head="yes"),
        "expected causal_head true or false, got 'yes'",
    ),
    "odd heads": (lambda c, t: c.update(head_dim=5), "expected an even head_dim, got 5"),
    "uneven groups": (
        lambda c, t: c.update(num_key_value_heads=3),
        r"expected num_key_value_heads that divide num_attention_heads \(4\)",
    ),
    "epsilon": (lambda c, t: c.update(rms_norm_eps="small"), "expected rms_norm_eps from 0 to 1, got 'small'"),
    "activation": (lambda c, t: c.update(hidden_act="swoosh"), "expected layers that transformers can build"),
    "more layers": (
        lambda c, t: c.update(num_hidden_layers=3),
        r"expected layers\.2\.\S+ of shape .* found no such tensor",
    ),
    "endless layers": (
        lambda c, t: c.update(num_hidden_layers=10**9),
        "expected num_hidden_layers up to 1024, got 1000000000",
    ),
    "a wider model": (
        lambda c, t: c.update(hidden_size=48),
        r"expected fc.weight of shape \[48, 96\] \(config.json\), found shape \[24, 48\]",
    ),
    "a tensor missing": (
        lambda c, t: t.pop("hidden_norm.weight"),
        r"expected hidden_norm.weight of shape \[24\] .*found no such tensor",
    ),
    "a tensor too many": (
        lambda c, t: t.update({"layers.0.mlp_conv.base": torch.ones(2)}),
        "got layers.0.mlp_conv.base too",
    ),
    "integers": (
        lambda c, t: t.update({"norm.weight": torch.ones(24, dtype=torch.int32)}),
        "expected weights of .* got norm.weight",
    ),
    "maps without": (lambda c, t: t.update(maps(REDUCED)), "got d2t too"),
    "no maps": (
        lambda c, t: c["dflash_config"].update(draft_vocab_size=5),
        "expected d2t or t2d with a draft_vocab_size of 5, got neither",
    ),
    "a map of others": (
        lambda c, t: (c["dflash_config"].update(draft_vocab_size=4), t.update(maps(REDUCED))),
        r"expected (t2d|d2t)",
    ),
    "maps that differ": (
        lambda c, t: (
            c["dflash_config"].update(draft_vocab_size=5),
            t.update(maps(REDUCED)),
            t.update(d2t=maps([1, 4, 9, 10, 29])["d2t"]),
        ),
        "expected t2d and d2t to name the same tokens",
    ),
    "a map that falls": (
        lambda c, t: (c["dflash_config"].update(draft_vocab_size=2), t.update(d2t=torch.tensor([4, 0]))),
        "expected d2t to name 2 ascending tokens",
    ),
    "hundreds of layers": (lambda c, t: c.update(num_hidden_layers=1000), "expected num_hidden_layers up to 25"),
    "a rank without its head": (lambda c, t: c.update(markov_rank=3), "expected markov_head.markov_w1.weight of shape"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, name: str) -> None:
    change, message = REFUSED[name]
    drafter = tiny_drafter(tiny_target())
    config, tensors = zlab(drafter), dict(drafter.state_dict())
    change(config, tensors)
    with pytest.raises(ValueError, match=message):
        load_block_drafter(write(tmp_path, config, tensors))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"speculators_model_type": "eagle3"},
            "speculators_model_type dflash, dspark or dflash2, got 'eagle3'",
        ),
        ({"transformer_layer_config": None}, "expected transformer_layer_config, an object, got None"),
        ({"aux_hidden_state_layer_ids": [0, 2]}, "expected aux_hidden_state_layer_ids, a list of layers from 1 on"),
        ({"target_hidden_size": 48}, r"expected target_hidden_size 24 \(hidden_size\), got 48"),
        ({"draft_vocab_size": 0}, "expected draft_vocab_size, a whole number from 1 on, got 0"),
    ],
)
def test_fields_of_speculators_are_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    drafter = tiny_drafter(tiny_target())
    with pytest.raises(ValueError, match=message):
        load_block_drafter(write(tmp_path, speculators("dflash", **changes), drafter.state_dict()))


def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    write(tmp_path, zlab(tiny_drafter(tiny_target())), {})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"expected model\.safetensors, found no safetensors file"):
        load_block_drafter(tmp_path)
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match="expected safetensors, got pickled weights; convert them once: python -c"):
        load_block_drafter(tmp_path)


def test_other_directories_are_no_block_drafters(tmp_path: Path) -> None:
    assert not is_block_drafter(tmp_path)
    tiny_target().save_pretrained(tmp_path)
    assert not is_block_drafter(tmp_path)
    with pytest.raises(ValueError, match="expected dflash_config"):
        load_block_drafter(tmp_path)
    (tmp_path / "config.json").write_text("[1, 2")
    assert not is_block_drafter(tmp_path)
    with pytest.raises(ValueError, match="expected JSON"):
        load_block_drafter(tmp_path)


@pytest.fixture(scope="module", params=["bigram", "selector", "reranker"])
def good(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    directory = tmp_path_factory.mktemp("good")
    parts: dict[str, dict[str, Any]] = {
        "bigram": {"markov_rank": 3, "confidence": True}, "selector": SELECTOR | WINDOW, "reranker": RERANKER,
    }  # fmt: skip
    drafter = tiny_drafter(tiny_target(), draft_tokens=REDUCED, **parts[request.param])
    save_block_drafter(drafter, directory)
    return directory


def loads_or_refuses(directory: Path) -> None:
    try:
        load_block_drafter(directory)
    except ValueError as error:
        if str(directory) not in str(error):
            raise


DAMAGE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@DAMAGE
@given(data=st.data())
def test_damaged_bytes_load_or_are_refused(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    target = tmp_path / "damaged"
    shutil.copytree(good, target, dirs_exist_ok=True)
    file = target / data.draw(st.sampled_from(["config.json", "model.safetensors"]))
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content), 4000) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content)
    loads_or_refuses(target)


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-3, 40), max_size=3),
    st.dictionaries(st.sampled_from(["rope_type", "rope_theta", "a"]), st.integers(-1, 9), max_size=2),
)  # fmt: skip


@DAMAGE
@given(data=st.data())
def test_fields_of_any_value_load_or_are_refused(good: Path, tmp_path: Path, data: st.DataObject) -> None:
    target = tmp_path / "changed"
    shutil.copytree(good, target, dirs_exist_ok=True)
    config = json.loads((good / "config.json").read_text())
    where = config["dflash_config"] if data.draw(st.booleans()) else config
    where[data.draw(st.sampled_from(sorted(where)))] = data.draw(JUNK)
    (target / "config.json").write_text(json.dumps(config))
    loads_or_refuses(target)


def test_damage_of_shapes_is_refused_before_memory_is_taken(good: Path, tmp_path: Path) -> None:
    shutil.copytree(good, tmp_path / "huge")
    config = json.loads((good / "config.json").read_text()) | {
        "hidden_size": 1 << 28,
        "vocab_size": 1 << 29,
        "head_dim": 1 << 30,
    }
    (tmp_path / "huge" / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="of shape"):
        load_block_drafter(tmp_path / "huge")
