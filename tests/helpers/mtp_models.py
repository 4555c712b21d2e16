"""Tiny random models with multi-token prediction layers, in the layouts of released checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import modeling_layers

from tests.helpers.model_families import tiny_of
from tests.helpers.tiny_families import VOCABULARY
from tests.helpers.tokenizers import letters

NO_LAYERS = f"transformers {transformers.__version__} builds no MTP layers one by one, as 5.21 and later do"
BUILDS_LAYERS = hasattr(getattr(modeling_layers, "MtpModel", None), "forward_layer")

_LINEAR = {"layer_types": ["linear_attention", "full_attention"]}
FAMILIES: dict[str, dict[str, Any]] = {
    "glm4_moe": {"num_mtp_layers": 3},
    "deepseek_v3": {"num_mtp_layers": 2},
    "mellum": {"num_mtp_layers": 1, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    "qwen3_next": _LINEAR,
    "qwen3_5_text": _LINEAR,
}
"""By the name of ``transformers``: what describes the layers; Qwen's configurations say nothing of MTP."""
SCALE = 0.12
RECURRENT = frozenset({"qwen3_next", "qwen3_5_text"})
_ONE_LEVEL_UP = {
    "eh_proj": "mtp.fc", "enorm": "mtp.pre_fc_norm_embedding", "hnorm": "mtp.pre_fc_norm_hidden",
    "post_norm": "mtp.norm", "mtp_block": "mtp.layers.0",
}  # fmt: skip


def describe(config: Any) -> None:
    """What ``generate(use_mtp=True)`` has to be told of Qwen's models."""
    if not hasattr(config, "num_mtp_layers"):
        config.num_mtp_layers, config.mtp_layer_types = 1, ["full_attention"]


def save_with_mtp(kind: str, folder: Path) -> Path:
    """A random model of a family with MTP layers that are neither useless nor always right; its folder.

    Both mostly pass on the embedding of the last token, the layers with some of the state before it.
    """
    from transformers.modeling_layers import MtpModel

    model: Any = tiny_of(kind, **{"vocab_size": VOCABULARY, **FAMILIES[kind]})
    _draw(model.model.layers)
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    describe(model.config)
    mtp: Any = MtpModel(model, model.config.num_mtp_layers)
    _draw(mtp.layers)
    identity = torch.eye(model.config.hidden_size)
    for layer in mtp.layers:
        layer.eh_proj.weight.data = torch.cat([identity, 0.3 * identity], dim=1)
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in mtp.layers.state_dict().items():
        tensors[_name(kind, name, model.config.num_hidden_layers)] = tensor.contiguous().clone()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def _draw(layers: torch.nn.Module) -> None:
    """Small random weights; also those that ``transformers`` leaves unset until a checkpoint is loaded."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in layers.state_dict().items():
        if "norm" not in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * SCALE)


def _name(kind: str, name: str, layers: int) -> str:
    number, part, rest = re.fullmatch(r"(\d+)\.(\w+)\.(.+)", name).groups()  # type: ignore[union-attr]
    if kind in RECURRENT or kind == "mellum":
        return f"{_ONE_LEVEL_UP[part]}.{rest}"
    part = {"post_norm": "shared_head.norm.", "mtp_block": ""}.get(part, f"{part}.")
    return f"model.layers.{layers + int(number)}.{part}{rest}"
