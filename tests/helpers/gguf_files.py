"""GGUF files of random models."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers.pre_tokenizers import ByteLevel
from transformers import PreTrainedModel

from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.load_target import load_stock
from tests.helpers.tokenizers import TEMPLATE

MIXED = {
    "attn_q": "F16", "attn_k": "Q5_0", "attn_v": "Q4_1", "ffn_up": "BF16", "ffn_down": "Q5_1", "ffn_gate": "Q4_0",
}  # fmt: skip
FLOATS = {**dict.fromkeys(MIXED, "F16"), "attn_k": "BF16", "attn_output": "F16", "token_embd": "F32", "output": "F32"}
FLOATS |= {"attn_qkv": "F16"}


LETTERS: dict[str, Any] = {
    "ggml.model": "gpt2", "ggml.pre": "gpt-2", "ggml.merges": ["a b"], "ggml.token_type": [2, 3, 3, 3] + [1] * 257,
    "ggml.tokens": ["<unk>", "<s>", "</s>", "<pad>", *sorted(ByteLevel.alphabet()), "ab"], "chat_template": TEMPLATE,
    "ggml.bos_token_id": 1, "ggml.eos_token_id": 2, "ggml.padding_token_id": 3,
}  # fmt: skip
"""Fields of a tokenizer of 261 tokens with a chat template."""


def bundled_with_gguf(folder: Path) -> Path:
    """The bundled model with its heads and n-gram model, and a GGUF file of it, in a new folder."""
    shutil.copytree(MODEL, folder)
    shutil.copy(LM, folder / "lm.fst")
    written(folder / GGUF_NAME, load_stock(MODEL), {}, {"context_length": 1024})
    return folder


def written(
    path: Path,
    model: PreTrainedModel,
    types: dict[str, str],
    fields: dict[str, int] | None = None,
    tokenizer: dict[str, Any] | None = None,
) -> None:
    """A GGUF file of a tiny model, as llama.cpp's converter writes it: queries and keys of Llama are interleaved, norms
    of Gemma hold what is added to 1.

    tokenizer: its fields; by default it has names of tokens only.
    """
    gguf = pytest.importorskip("gguf")
    config: Any = model.config
    kind = str(config.model_type).removesuffix("_text")
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, kind)
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    known = {
        "block_count": config.num_hidden_layers, "context_length": 256, "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size, "attention.head_count": heads,
        "attention.head_count_kv": groups, "vocab_size": config.vocab_size,
    }  # fmt: skip
    if getattr(config, "head_dim", None):
        known["attention.key_length"] = config.head_dim
    for name, number in {**known, **(fields or {})}.items():
        writer.add_uint32(f"{kind}.{name}", number)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    if tokenizer is None:
        writer.add_token_list([f"<{n}>" for n in range(config.vocab_size)])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_pad_token_id(0)
    for field, value in (tokenizer or {}).items():
        kinds = {list: writer.add_array, int: writer.add_uint32, str: writer.add_string}
        kinds[type(value)](f"tokenizer.{field}", value)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        array, part = weight.numpy(), stored.split(".")[-2]
        if kind == "llama" and part in ("attn_q", "attn_k"):
            count = heads if part == "attn_q" else groups
            array = array.reshape(count, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        if kind.startswith("gemma") and "norm" in part:
            array = array + 1
        raw = gguf.GGMLQuantizationType[types.get(part, "Q8_0") if array.ndim == 2 else "F32"]
        writer.add_tensor(stored, gguf.quants.quantize(np.ascontiguousarray(array), raw), raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value_field(name: str, value: bool | float | str | list[str] | list[int]) -> bytes:
    """A field of a value."""
    if isinstance(value, list):
        words = [each for each in value if isinstance(each, str)]
        items = b"".join(map(string, words)) if words else np.array(value, "<i8").tobytes()
        return field(name, 9, array(8 if words else 11, len(value), items))
    if isinstance(value, str):
        return field(name, 8, string(value))
    kind, form = {bool: (7, "?"), float: (12, "d")}.get(type(value), (11, "q") if value < 0 else (10, "Q"))
    return field(name, kind, struct.pack(f"<{form}", value))


def field(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def header(
    name: str = "w", sizes: tuple[int, ...] = (32,), kind: int = 8, offset: int = 0, dimensions: int | None = None
) -> bytes:
    count = len(sizes) if dimensions is None else dimensions
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", count, *sizes, kind, offset)


def content(fields: list[bytes], tensors: list[bytes], data: int = 64, align: int = 32) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)) + b"".join(fields) + b"".join(tensors)
    return head + bytes(-len(head) % align + data)


def array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items
