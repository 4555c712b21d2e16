"""An engine's model straight from a GGUF file: no other copy of the weights is made, and nothing else is loaded."""

from __future__ import annotations

from typing import Any

import numpy as np

from latticebpd.checks import expect
from latticebpd.cpu import _engine
from latticebpd.models.gguf.gguf_weights import NAMES, GgufWeights, dequantized

ARCHITECTURES = frozenset({"llama", "qwen2", "qwen3"})
"""Those whose layers are fully described by the fields that are read here."""
NORMS = {
    "input_norm": "attn_norm", "mlp_norm": "ffn_norm", "query_norm": "attn_q_norm", "key_norm": "attn_k_norm",
}  # fmt: skip


def check_computable(weights: GgufWeights) -> None:
    """ValueError for another architecture, rotary positions of another kind, or sizes or types of weights that the
    engine has not."""
    path, file, kind = weights.path, weights.file, weights.architecture
    expect(kind in ARCHITECTURES, f"an architecture among {', '.join(sorted(ARCHITECTURES))}", repr(kind), of=path)
    plain = file.fields.get(f"{kind}.rope.scaling.type", "none") == "none" and "rope_freqs.weight" not in file.tensors
    expect(plain, "unscaled rotary positions", f"{kind}.rope.scaling", "load it by transformers", of=path)
    queries, hidden = (file.tensors.get(f"blk.0.{name}.weight") for name in ("attn_q", "ffn_up"))
    heads = file.fields.get(f"{kind}.attention.head_count")
    if queries is not None and hidden is not None and type(heads) is int and heads > 0:
        sizes = queries.shape[0] // heads, hidden.shape[0]
        wanted, remedy = "heads and hidden layers whose sizes are multiples of 16", "load it by transformers"
        expect(not any(size % 16 for size in sizes), wanted, " and ".join(map(str, sizes)), remedy, of=path)
    for stored in {int(tensor.type) for tensor in file.tensors.values()}:
        _engine.dequantized(stored, np.empty(0, np.uint8))


def transformer_of_weights(weights: GgufWeights) -> Any:
    """The engine's model of an open file, whose pages are released as they are read; ValueError for a damaged one,
    another architecture, or rotary positions of another kind."""
    path, file, kind = weights.path, weights.file, weights.architecture
    check_computable(weights)

    def number(name: str, default: float | None = None) -> Any:
        value = file.fields.get(f"{kind}.{name}", default)
        fits = isinstance(value, int | float) and value > 0  # the reader has compared it with its range
        expect(fits, f"one number above 0 as the field {kind}.{name}", value, of=path)
        return value

    def vector(name: str) -> list[float]:
        tensor = file.tensors.get(name)
        return [] if tensor is None else dequantized(tensor).reshape(-1).tolist()

    settings = _engine.Settings()
    settings.heads = number("attention.head_count")
    settings.num_kv_heads = number("attention.head_count_kv", settings.heads)
    hidden = number("embedding_length")
    settings.head_size = number("attention.key_length", hidden // settings.heads)
    settings.epsilon = number("attention.layer_norm_rms_epsilon")
    settings.scale = settings.head_size**-0.5
    rotated = number("rope.dimension_count", settings.head_size)
    queries = file.tensors.get("blk.0.attn_q.weight")
    if rotated != settings.head_size or queries is None or queries.shape[0] != settings.heads * rotated:
        raise ValueError(f"{path}: expected heads of rows of blk.0.attn_q.weight, rotated as a whole, got {rotated}")
    exponents = np.arange(0, rotated, 2, dtype=np.float32) / np.float32(rotated)
    # Powers in float64, rounded: PyTorch's, where NumPy's in float32 are often a bit off.
    powers = np.float64(number("rope.freq_base", 10_000.0)) ** exponents.astype(np.float64)
    settings.add_rotation((np.float32(1) / powers.astype(np.float32)).tolist(), 1.0)
    layers = []
    for index in range(min(number("block_count"), len(file.tensors))):
        layer = _engine.Layer()
        for name, stored in NORMS.items():
            setattr(layer, name, vector(f"blk.{index}.{stored}.weight"))
        matrices = [weights.stored(index, name) for name in NAMES]
        for name, matrix in zip(NAMES, matrices, strict=True):
            if bias := vector(weights.name(index, name).replace(".weight", ".bias")):
                order = weights.order(name, matrix.outputs)
                matrix.set_bias([bias[row] for row in order] if len(bias) == len(order) else bias)
        layer.set_matrices(matrices)
        layers.append(layer)
    embedding = weights.stored(-1, "embedding")
    projection = weights.stored(-1, "projection") if "output.weight" in file.tensors else embedding
    return _engine.Transformer(settings, layers, embedding, projection, vector("output_norm.weight"))
