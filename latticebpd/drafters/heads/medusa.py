"""Medusa checkpoints (Cai 2024) as block heads on the same base model.

Such a checkpoint is a directory of two files: ``config.json`` with ``medusa_num_heads`` and ``medusa_num_layers``, and
the weights.  Head ``i`` (from 0) reads the base model's final hidden state ``x`` through ``medusa_num_layers`` residual
blocks ``x <- x + silu(A x + b)`` and a vocabulary projection of its own::

    i.j.linear.weight [hidden, hidden], i.j.linear.bias [hidden]    block j of head i
    i.L.weight        [vocab, hidden]                               the projection, L = medusa_num_layers

with or without ``medusa_head.`` before each name. Medusa's own code repeats one block object ``L`` times, so files that
store shared tensors once hold block 0 only; it then stands for the others.

Where the base model's output predicts token t + 1, Medusa's head 0 predicts token t + 2: it is our head 2, so a
checkpoint of n heads makes a block of n + 1.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.checks import expect
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_networks import MedusaHeads
from latticebpd.models.transformers.checkpoints import safetensors_in
from latticebpd.models.transformers.transformers_model import TransformersModel

_NAME = re.compile(r"(?:medusa_head\.)?(\d{1,4})\.(\d{1,4})\.(linear\.weight|linear\.bias|weight)")

Key = tuple[int, int, str]
"""Head, layer, and the name's last part."""


def load_medusa(
    directory: str | os.PathLike[str],
    base: PreTrainedModel,
    num_heads: int | None = None,
    tokenizer_fingerprint: str | None = None,
) -> BlockwiseLM:
    """The heads of a Medusa checkpoint on ``base``; any drafter that takes a ``BlockwiseLM`` takes the result.

    Args:
        directory: the checkpoint; weights in safetensors (any file name).
        base: the model that the heads were trained on, already loaded.
        num_heads: use only the checkpoint's first so many heads; all by default.
        tokenizer_fingerprint: hash of the base model's vocabulary, to be compared with that of n-gram models.

    Raises:
        ValueError: files missing or unreadable, weights pickled, or heads that do not fit the configuration or the
            base.
    """
    directory = Path(directory)
    heads, layers = _shape(directory, num_heads)
    hidden_size, vocab_size = TransformersModel.of(base).hidden_size, TransformersModel.of(base).vocab_size
    expected = {
        "linear.weight": (hidden_size, hidden_size),
        "linear.bias": (hidden_size,),
        "weight": (vocab_size, hidden_size),
    }
    weights: dict[Key, Tensor] = {}
    for key, tensor, file in _tensors(directory, heads):
        _, layer, part = key
        name = ".".join(map(str, key))
        wanted = f"{layers} blocks and a projection per head (medusa_num_layers)"
        expect((part == "weight") == (layer == layers) and layer <= layers, wanted, f"a tensor {name}", of=file)
        wanted = f"shape {list(expected[part])} (the base model's hidden size {hidden_size}, vocabulary {vocab_size})"
        expect(tuple(tensor.shape) == expected[part], wanted, list(tensor.shape), of=f"{file}: {name}")
        expect(key not in weights, "every tensor once", f"{name} twice", of=directory)
        weights[key] = tensor
    _check_complete(weights, heads, layers, directory)  # before memory is taken for as many heads as the file claims
    module = MedusaHeads(hidden_size, heads + 1, vocab_size, layers)
    with torch.no_grad():
        for head in range(heads):
            for layer in range(layers):
                stored = layer if (head, layer, "linear.weight") in weights else 0
                module.weight[head, layer] = weights[head, stored, "linear.weight"]
                module.bias[head, layer] = weights[head, stored, "linear.bias"]
            module.output[head] = weights[head, layers, "weight"]
    return BlockwiseLM(base, module.to(dtype=base.dtype, device=base.device), tokenizer_fingerprint).eval()


def _shape(directory: Path, num_heads: int | None) -> tuple[int, int]:
    """Heads to load, and blocks in each."""
    try:
        config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
        counts = config["medusa_num_heads"], config.get("medusa_num_layers", 1)
    except FileNotFoundError as error:
        wanted = "a Medusa checkpoint (config.json and safetensors)"
        raise ValueError(f"{directory}: expected {wanted}, found no config.json") from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError, RecursionError) as error:
        wanted = "a Medusa configuration with medusa_num_heads"
        raise ValueError(f"{directory / 'config.json'}: expected {wanted}: {error!r}") from error
    fits = all(type(count) is int and count <= 1024 for count in counts) and counts[0] >= 1 and counts[1] >= 0
    expect(fits, "medusa_num_heads from 1 and medusa_num_layers from 0 on", counts, of=directory / "config.json")
    wanted = f"num_heads from 1 to {counts[0]} (medusa_num_heads)"
    expect(num_heads is None or 1 <= num_heads <= counts[0], wanted, num_heads, of=directory)
    return num_heads or counts[0], counts[1]


def _tensors(directory: Path, heads: int) -> Iterator[tuple[Key, Tensor, Path]]:
    """Every tensor of the first ``heads`` heads in the directory's safetensors files, and its file."""
    for file in safetensors_in(directory, "medusa_lm_head.safetensors"):
        try:
            with safe_open(file, framework="pt") as archive:
                for name in archive.keys():  # noqa: SIM118  (no dict)
                    match = _NAME.fullmatch(name)
                    if match is not None and int(match[1]) < heads:
                        yield (int(match[1]), int(match[2]), match[3]), archive.get_tensor(name), file
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{file}: expected a safetensors file: {error}; is the copy complete?") from error


def _check_complete(weights: dict[Key, Tensor], heads: int, layers: int, directory: Path) -> None:
    """Every head has its projection and its blocks: all of them, or only block 0, which is then used by all."""
    for head in range(heads):
        blocks = {layer for kept, layer, part in weights if kept == head and part == "linear.weight"}
        needed = blocks if blocks == {0} and layers else range(layers)
        keys = [(head, layer, part) for layer in needed for part in ("linear.weight", "linear.bias")]
        for key in [*keys, (head, layers, "weight")]:
            if key not in weights:
                got = f"{len({kept for kept, _, _ in weights})} heads and no tensor {'.'.join(map(str, key))}"
                wanted = f"{heads} heads of {layers} blocks (config.json)"
                raise ValueError(f"{directory}: expected {wanted}, found {got}")
