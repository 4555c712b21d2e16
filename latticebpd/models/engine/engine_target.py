"""A causal LM that the CPU engine computes straight from a GGUF file, without PyTorch.

It is built from a ``.gguf`` file, or a folder with one next to the model that ``save_pretrained`` wrote, if the
two agree. Whatever asks for more, such as another architecture, or a generation config that changes greedy texts, is
left to ``transformers``.
"""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from latticebpd.cpu import _engine
from latticebpd.lattices.values import token_ids
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.engine.gguf_engine import transformer_of_weights
from latticebpd.models.gguf.gguf_file import GgufFile, is_gguf
from latticebpd.models.gguf.gguf_weights import GgufWeights

PLAIN = frozenset({
    "_from_model_config", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "use_cache",
    "output_attentions", "output_hidden_states", "do_sample", "temperature", "top_k", "top_p",
})  # fmt: skip
"""Fields of a generation config that change no greedy text but by its end."""
SIZES = {
    "num_hidden_layers": "block_count", "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
}  # fmt: skip
"""Of ``config.json`` -> of the file."""
MODULES = {
    "query": "self_attn.q_proj", "key": "self_attn.k_proj", "value": "self_attn.v_proj", "output": "self_attn.o_proj",
    "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
}  # fmt: skip
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, OSError, SafetensorError)


@dataclass(frozen=True, eq=False)
class EngineTarget:
    """weights: of the file.  eos_ids, pad_id: tokens that end texts, and that fill rows.  max_positions: of the longest
    text."""

    weights: GgufWeights
    eos_ids: list[int]
    pad_id: int | None
    max_positions: int | None
    is_encoder_decoder = False

    @cached_property
    def transformer(self) -> Any:
        """The compiled model; ValueError where the engine cannot compute it."""
        return transformer_of_weights(self.weights)

    @property
    def vocab_size(self) -> int:
        return self.weights.file.tensors["token_embd.weight"].shape[0]

    source_vocab_size = vocab_size

    @property
    def hidden_size(self) -> int:
        return self.weights.file.tensors["token_embd.weight"].shape[1]

    @property
    def num_layers(self) -> int:
        return int(self.weights.file.fields[f"{self.weights.architecture}.block_count"])

    def check_rope_limit(self, shortest: int, longest: int) -> None:
        """Rotary positions are unscaled."""


def target_of(model: Any) -> Any:
    """The target itself, or the ``BaseModel`` of a model of ``transformers``."""
    if isinstance(model, EngineTarget):
        return model
    from latticebpd.models.transformers.transformers_model import BaseModel

    return BaseModel.of(model)


def engine_target(path: Path) -> EngineTarget | None:
    """The target of a ``.gguf`` file or a model's folder, not yet compiled; None where there is none, or
    ``transformers`` has to read it."""
    file = path / GGUF_NAME if path.is_dir() else path
    try:
        if not is_gguf(file):
            return None
        weights = GgufWeights(file, _engine.WeightMemory())
        ends = _ends_of_folder(path, weights) if path.is_dir() else _ends_of_file(weights.file)
        if ends is None:
            return None
        positions = weights.file.fields.get(f"{weights.architecture}.context_length")
        eos_ids, pad_ids = (token_ids(name, ends.get(name)) for name in ("eos_token_id", "pad_token_id"))
        return EngineTarget(weights, eos_ids, next(iter(pad_ids), None), positions)
    except UNREADABLE:  # reading it by transformers says what is wrong
        return None


def _ends_of_file(file: GgufFile) -> dict[str, Any] | None:
    fields = {"eos_token_id": "eos", "pad_token_id": "padding"}
    ends = {name: file.fields.get(f"tokenizer.ggml.{field}_token_id") for name, field in fields.items()}
    return None if ends["eos_token_id"] is None else ends


def _ends_of_folder(folder: Path, weights: GgufWeights) -> dict[str, Any] | None:
    """The generation config of a folder whose model is the file's; None of any other."""
    config, generation = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("config.json", "generation_config.json")
    )
    fields, kind = weights.file.fields, weights.architecture
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = (
        config["model_type"] == kind,
        config["hidden_act"] == "silu",
        not config.get("use_sliding_window") and "quantization_config" not in config,
        rope.get("rope_type", "default") == "default",
        {**rope, **config}["rope_theta"] == fields[f"{kind}.rope.freq_base"],
        np.float32(config["rms_norm_eps"]) == np.float32(fields[f"{kind}.attention.layer_norm_rms_epsilon"]),
        all(config[own] == fields[f"{kind}.{stored}"] for own, stored in SIZES.items()),
        {name for name, value in generation.items() if value is not None} <= PLAIN,
    )
    return generation if all(plain) and _same_weights(folder, weights, config["num_hidden_layers"]) else None


def _same_weights(folder: Path, weights: GgufWeights, layers: int) -> bool:
    """Whether some rows of each matrix of the folder's safetensors files are the GGUF file's, but for rounding."""
    names = {"model.embed_tokens.weight": (-1, "embedding")}
    if "output.weight" in weights.file.tensors:
        names["lm_head.weight"] = (-1, "projection")
    for layer in range(layers):
        names |= {f"model.layers.{layer}.{module}.weight": (layer, name) for name, module in MODULES.items()}
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(file, "numpy")) for file in sorted(folder.glob("model*.safetensors"))]
        owners = {name: file for file in files for name in file.keys()}  # noqa: SIM118  (no dict)
        for name, (layer, own) in names.items():
            matrix = owners[name].get_slice(name)
            for row in weights.some_rows(matrix.get_shape()[0]):
                if not weights.is_row(layer, own, row, matrix[row : row + 1][0]):
                    return False
    return True
