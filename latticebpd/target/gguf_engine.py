"""An engine's model straight from a GGUF file: no other copy of the weights is made, and nothing else is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from latticebpd.cpu import _engine
from latticebpd.target.gguf_blocks import dequantized
from latticebpd.target.gguf_weights import GgufWeights

ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Those whose layers are fully described by the fields that are read here."""
NORMS = {
    "input_norm": "attn_norm", "mlp_norm": "ffn_norm", "query_norm": "attn_q_norm", "key_norm": "attn_k_norm",
}  # fmt: skip
MATRICES = ("query", "key", "value", "output", "gate", "up", "down")


def transformer_of_gguf(path: Path, isa: int = 0) -> Any:
    """The engine's model of a file.

    Raises:
        ValueError: a damaged file, another architecture, or rotary positions of another kind.
    """
    weights = GgufWeights(path, _engine.WeightMemory())
    file, kind = weights.file, str(weights.file.fields.get("general.architecture"))
    if kind not in ARCHITECTURES:
        raise ValueError(f"{path}: expected an architecture among {', '.join(sorted(ARCHITECTURES))}, got {kind!r}")
    if file.fields.get(f"{kind}.rope.scaling.type", "none") != "none" or "rope_freqs.weight" in file.tensors:
        raise ValueError(
            f"{path}: expected unscaled rotary positions, got {kind}.rope.scaling; load it by transformers"
        )

    def number(name: str, default: float | None = None) -> Any:
        value = file.fields.get(f"{kind}.{name}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{path}: expected the field {kind}.{name} to be a number above 0, got {value!r}")
        return value

    def vector(name: str) -> list[float]:
        tensor = file.tensors.get(name)
        return [] if tensor is None else dequantized(tensor).reshape(-1).tolist()

    settings = _engine.Settings()
    settings.heads = int(number("attention.head_count"))
    settings.groups = int(number("attention.head_count_kv", settings.heads))
    hidden = int(number("embedding_length"))
    settings.head_size = int(number("attention.key_length", hidden // settings.heads))
    settings.epsilon = number("attention.layer_norm_rms_epsilon")
    settings.scale = settings.head_size**-0.5
    rotated = int(number("rope.dimension_count", settings.head_size))
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    frequencies = np.float32(1) / np.float32(number("rope.freq_base", 10_000.0)) ** exponents
    settings.add_rotation(frequencies.tolist(), 1.0)
    layers = []
    for index in range(min(int(number("block_count")), len(file.tensors))):
        layer = _engine.Layer()
        for name, stored in NORMS.items():
            setattr(layer, name, vector(f"blk.{index}.{stored}.weight"))
        matrices = [weights.stored(index, name) for name in MATRICES]
        for name, matrix in zip(MATRICES, matrices, strict=True):
            if bias := vector(weights.name(index, name).replace(".weight", ".bias")):
                matrix.set_bias(bias)
        layer.set_matrices(matrices)
        layers.append(layer)
    embedding = weights.stored(-1, "embedding")
    projection = weights.stored(-1, "projection") if "output.weight" in file.tensors else embedding
    return _engine.Transformer(settings, layers, embedding, projection, vector("output_norm.weight"), isa)
