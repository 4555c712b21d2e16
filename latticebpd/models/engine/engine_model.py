"""The target model on the CPU engine: an immutable copy of a causal LM, arrays in and out, shared by threads.

Its weights are those of a float checkpoint, as they are or quantized to int8, or the blocks of a GGUF file unchanged.
Results are batch-invariant, bit for bit: the same in a draft tree, a prompt or a batch, for any thread count and
instruction set. From a GGUF file neither PyTorch nor ``transformers`` is loaded.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from fst.files import FileStamp
from latticebpd.checks import expect
from latticebpd.cpu import _engine
from latticebpd.lattices.values import check_layers
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.engine.gguf_engine import check_computable, transformer_of_weights
from latticebpd.models.gguf.gguf_file import is_gguf
from latticebpd.models.gguf.gguf_weights import GgufWeights
from latticebpd.models.number_fields import token_ids
from latticebpd.models.weight_kinds import GGUF, INT8

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
BEAMS = {"num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0}
"""Fields of beam search -> their neutral values."""
READ_ERRORS = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, OSError, SafetensorError)
"""What damaged or foreign files raise while they are read."""


class Embeddings(Protocol):
    """Rows of a model's embeddings, ``[n]`` token ids -> ``[n, hidden]`` float32, in no cap or scale of the model's."""

    def input_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """What is read for a token."""

    def output_embeddings(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """What final hidden states are multiplied by for a token's logit."""


@dataclass(frozen=True, eq=False)
class EngineModel:
    """A causal LM as the CPU engine computes it; see `TargetModel`.

    model_type: the family, as ``transformers`` calls it.
    generation: the fields of its generation config that are set.
    compile: makes the compiled model, when it is first needed.
    hash_weights: a hash of the weights' source.
    reload: makes the model again in another process, where it was loaded by a name.
    """

    weights: str
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_parameters: int
    max_positions: int | None
    generation: dict[str, Any]
    embeddings: Embeddings = field(repr=False)
    compile: Callable[[], Any] = field(repr=False)
    hash_weights: Callable[[], str] = field(repr=False)
    reload: Callable[[], Any] | None = field(default=None, repr=False)
    is_encoder_decoder = False
    device, dtype = "cpu", "float32"

    @cached_property
    def transformer(self) -> Any:
        """The compiled model; ValueError for a damaged file."""
        return self.compile()

    def __deepcopy__(self, memo: dict[int, Any]) -> EngineModel:
        """Itself: nothing changes it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its name, not with its weights."""
        wanted, remedy = "a model that was loaded by a name", "pickle the model that was copied, and copy it again"
        expect(self.reload is not None, f"{wanted} to pickle", "the engine's copy of another one", remedy)
        return self.reload, ()

    def without_beams(self) -> EngineModel:
        """The same with a generation config that asks for no beam search, not yet compiled."""
        kept = {name: value for name, value in self.generation.items() if name not in BEAMS}
        return replace(self, generation=kept)

    @property
    def source_vocab_size(self) -> int:
        return self.vocab_size

    @property
    def eos_ids(self) -> list[int]:
        return token_ids("eos_token_id", self.generation.get("eos_token_id"))

    @property
    def pad_id(self) -> int | None:
        return next(iter(token_ids("pad_token_id", self.generation.get("pad_token_id"))), None)

    @cached_property
    def fingerprint(self) -> str:
        return f"{self.hash_weights()} as {INT8}" if self.weights == INT8 else self.hash_weights()

    def check_layers(self, layers: Sequence[int]) -> None:
        check_layers(layers, self.num_layers)

    def check_rope_limit(self, shortest: int, longest: int) -> None:
        """No rotary positions that the engine computes depend on a text's length."""

    def array(self, values: np.ndarray) -> np.ndarray:
        return values


def gguf_of(path: Path) -> Path | None:
    """The GGUF file that a model's path is, or that lies in its folder."""
    file = path / GGUF_NAME if path.is_dir() else path
    return file if is_gguf(file) else None


def gguf_model(path: Path) -> EngineModel | None:
    """The model of a ``.gguf`` file, or of a folder with one next to the model that ``save_pretrained`` wrote, if the
    two agree; None where there is no such file, or only ``transformers`` can read it."""
    try:
        if (file := gguf_of(path)) is None:
            return None
        weights = GgufWeights(file, _engine.WeightMemory())
        check_computable(weights)
        generation = _generation_of_folder(path, weights) if path.is_dir() else _generation_of_file(weights)
        if generation is None:
            return None
        shape = weights.file.tensors["token_embd.weight"].shape
        fields, kind = weights.file.fields, weights.architecture
        parameters = sum(math.prod(tensor.shape) for tensor in weights.file.tensors.values())
        model = EngineModel(
            GGUF, kind, shape[0], shape[1], int(fields[f"{kind}.block_count"]), parameters,
            fields.get(f"{kind}.context_length"), generation, weights,
            lambda: _compiled(weights), lambda: unchanged_hash(weights.file.stamp),
        )  # fmt: skip
        _ = model.eos_ids, model.pad_id  # which may be damaged
        return model
    except READ_ERRORS:  # reading it by transformers says what is wrong
        return None


def _compiled(weights: GgufWeights) -> Any:
    try:
        return transformer_of_weights(weights)
    except ValueError:
        raise
    except READ_ERRORS as error:
        got = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(
            f"{weights.path}: expected the weights of a {weights.architecture} model, got {got}"
        ) from error


def file_hash(files: Sequence[Path]) -> str:
    """A hash of files' contents."""
    digest = hashlib.sha256()
    for file in files:
        with open(file, "rb") as content:
            digest.update(hashlib.file_digest(content, "sha256").digest())
    return f"sha256:{digest.hexdigest()[:16]}"


def unchanged_hash(stamp: FileStamp) -> str:
    """A hash of a loaded file's contents; ValueError where it has changed since."""
    digest = file_hash([stamp.path])
    stamp.check()
    return digest


def _generation_of_file(weights: GgufWeights) -> dict[str, Any] | None:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    ids = {name: weights.file.fields.get(f"tokenizer.ggml.{stored}_token_id") for name, stored in names.items()}
    return None if ids["eos_token_id"] is None else {name: token for name, token in ids.items() if token is not None}


def _generation_of_folder(folder: Path, weights: GgufWeights) -> dict[str, Any] | None:
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
    )
    if not all(plain) or not _same_weights(folder, weights, config["num_hidden_layers"]):
        return None
    return {name: value for name, value in generation.items() if value is not None}


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
