"""Block drafters on disk: a directory of ``config.json`` and safetensors, in one of two layouts.

*DFlash's own*, which :func:`save_block_drafter` writes: a Qwen3 config with ``block_size``, ``num_target_layers`` and
``dflash_config {target_layer_ids, mask_token_id, causal_head}``. What DFlash does not have stands in ``dflash_config``
too, under the names that ``speculators`` gave it: ``sample_from_anchor``, ``draft_vocab_size``, ``markov_rank``,
``enable_confidence_head``, ``confidence_head_with_markov``; so do our ``tokenizer_fingerprint`` and all weights.

*Speculators'*: ``speculators_model_type`` ``dflash`` or ``dspark``, the Qwen3 config in ``transformer_layer_config``,
the other fields beside it. Its ``aux_hidden_state_layer_ids`` count the layers that have been run, so id k is DFlash's
k - 1.

Both keep a reduced vocabulary as ``t2d``, a mask over the target's tokens, and ``d2t``, what is to be added to a
drafted token's number. Nothing is unpickled, and no code beside a checkpoint is run. Shapes are compared before memory
is taken for them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3Config

from fst.files import replacing
from latticebpd.drafters.block.block_network import BlockConfig, BlockDrafter
from latticebpd.target.checkpoints import safetensors_in

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
_ARCHITECTURE = "DFlashDraftModel"
MOST_LAYERS = 1024
_MAPS = ("t2d", "d2t")
_TARGETS_OWN = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")
"""Tensors that some checkpoints carry along, and that are the target's or constants."""

_WHOLE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip
_LAYER_FIELDS = (
    *_WHOLE,
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
)
_NEUTRAL = {  # fields that would change what a drafter computes, and the values with which they do not
    "projector_type": ("dflash",), "markov_head_type": ("vanilla",), "input_embedding_scale": (1,),
    "output_multiplier": (1,),
    "final_logit_softcapping": (None, 0), "quantization_config": (None,), "selector_rank": (None,),
    "conv_kernel_size": (None,),
}  # fmt: skip


def is_block_drafter(directory: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a block drafter, in either layout, whole or damaged."""
    try:
        found = json.loads((Path(directory) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and (
        "dflash_config" in found or found.get("speculators_model_type") in ("dflash", "dspark")
    )


def save_block_drafter(drafter: BlockDrafter, directory: str | os.PathLike[str]) -> None:
    """Write a drafter in DFlash's layout; files appear whole."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    config = drafter.config
    own = {
        "target_layer_ids": list(config.target_layer_ids),
        "mask_token_id": config.mask_token_id,
        "causal_head": config.causal_head,
        "sample_from_anchor": config.sample_from_anchor,
        "draft_vocab_size": config.draft_vocab_size,
        "markov_rank": config.markov_rank,
        "enable_confidence_head": config.confidence,
        "confidence_head_with_markov": config.confidence_with_markov,
        "tokenizer_fingerprint": config.tokenizer_fingerprint,
    }
    layers = config.layers.to_dict()
    record = {name: layers[name] for name in ("model_type", *_LAYER_FIELDS) if name in layers} | {
        "architectures": [_ARCHITECTURE],
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": own,
    }
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    if drafter.draft_tokens is not None:
        tokens = drafter.draft_tokens.cpu()
        tensors["d2t"] = tokens - torch.arange(len(tokens))
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, tokens, True)
    with replacing(directory / WEIGHTS) as temporary:
        save_file(tensors, temporary, {"format": "pt"})
    with replacing(directory / CONFIG) as temporary:
        temporary.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_block_drafter(directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> BlockDrafter:
    """Read a drafter in either layout, ready for inference.

    Raises:
        ValueError: no drafter, damaged files, or one with parts that are not known here; the message names the field or
            tensor.
    """
    directory = Path(directory)
    config = _config(directory)
    # A checkpoint of the training may stand beside the weights.
    files = sorted(directory.glob("model*.safetensors")) or safetensors_in(directory, WEIGHTS)
    tensors: dict[str, Tensor] = {}
    try:
        shapes: dict[str, list[int]] = {}
        for file in files:
            with safe_open(file, framework="pt") as archive:
                for name in archive.keys():  # noqa: SIM118  (no dict)
                    if name in shapes:
                        raise ValueError(f"{directory}: expected every tensor once, got {name} twice")
                    shapes[name] = archive.get_slice(name).get_shape()
        if config.layers.num_hidden_layers > len(shapes):
            layers = config.layers.num_hidden_layers
            raise ValueError(
                f"{directory}: expected num_hidden_layers up to {len(shapes)} (the tensors of the files), got {layers}"
            )
        drafter = _built(config, shapes, directory)
        for file in files:
            with safe_open(file, framework="pt") as archive:
                tensors |= {name: archive.get_tensor(name) for name in archive.keys() if name not in _TARGETS_OWN}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{directory}: expected safetensors files: {error}; is the copy complete?") from error
    weights = {name: tensor for name, tensor in tensors.items() if name not in _MAPS}
    wrong = [f"{name} of {tensor.dtype}" for name, tensor in weights.items() if tensor.dtype not in _FLOATS]
    if wrong:
        raise ValueError(f"{directory}: expected weights of 32, 16 or bf16 bits, got {wrong[0]}")
    if config.draft_vocab_size is not None:
        drafter.draft_tokens = _draft_tokens(tensors, config, directory)
    drafter.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()}, assign=True)
    return drafter.eval()


_FLOATS = (torch.float32, torch.float16, torch.bfloat16)


def _built(config: BlockConfig, shapes: Mapping[str, list[int]], directory: Path) -> BlockDrafter:
    """The drafter without its weights, if a file's tensors are just those that it needs."""
    own_head, size = "lm_head.weight" in shapes, config.draft_vocab_size
    if size is not None and shapes.get("d2t", [size]) != [size]:
        raise ValueError(f"{directory}: expected d2t of shape {[size]} (draft_vocab_size), got {shapes['d2t']}")
    if size is not None and shapes.get("t2d", [config.vocab_size]) != [config.vocab_size]:
        raise ValueError(f"{directory}: expected t2d of shape {[config.vocab_size]} (vocab_size), got {shapes['t2d']}")
    if size is not None and not {*_MAPS} & {*shapes}:
        raise ValueError(f"{directory}: expected d2t or t2d with a draft_vocab_size of {size}, found neither")
    try:
        with torch.device("meta"):
            drafter = BlockDrafter(config, None if size is None else range(size), own_head)
    except (
        Exception
    ) as error:  # unknown activations, kinds of rotary positions and what else configurations may ask for
        raise ValueError(f"{directory / CONFIG}: expected layers that transformers can build: {error!r}") from error
    expected = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items()}
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            found = f"shape {shapes[name]}" if name in shapes else "no such tensor"
            raise ValueError(f"{directory}: expected {name} of shape {shape} ({CONFIG}), found {found}")
    drafter.rotary_emb = type(drafter.rotary_emb)(config.layers)  # its constants are in no file
    known = {*expected, *_TARGETS_OWN, *(_MAPS if size is not None else ())}
    if unknown := sorted(set(shapes) - known):
        raise ValueError(
            f"{directory}: expected the tensors of a block drafter as {CONFIG} describes it, got {unknown[0]} too"
        )
    return drafter


def _draft_tokens(tensors: Mapping[str, Tensor], config: BlockConfig, directory: Path) -> Tensor:
    """The reduced vocabulary, from the maps, as far as they are there."""
    size, found = config.draft_vocab_size, {}
    assert size is not None
    if (mask := tensors.get("t2d")) is not None:
        found["t2d"] = mask.to(torch.bool).nonzero()[:, 0]
    if (offsets := tensors.get("d2t")) is not None:
        if offsets.dtype.is_floating_point:
            raise ValueError(f"{directory}: expected d2t of whole numbers, got {offsets.dtype}")
        found["d2t"] = offsets.long() + torch.arange(size)
    for name, tokens in found.items():
        rising = len(tokens) == size and bool((tokens.diff() > 0).all())
        if not rising or int(tokens[0]) < 0 or int(tokens[-1]) >= config.vocab_size:
            raise ValueError(
                f"{directory}: expected {name} to name {size} ascending tokens below {config.vocab_size}, got"
                f" {tokens!r:.80}"
            )
    first, last = next(iter(found.values())), next(reversed(found.values()))
    if not torch.equal(first, last):
        raise ValueError(f"{directory}: expected t2d and d2t to name the same tokens, got others")
    return first


def _config(directory: Path) -> BlockConfig:
    path = directory / CONFIG
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory}: expected a block drafter (config.json and safetensors), found no config.json"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON: {error}; is the copy complete?") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected an object, got {given!r:.60}")
    try:
        return _of_speculators(given) if "speculators_model_type" in given else _of_dflash(given)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _of_dflash(given: dict[str, Any]) -> BlockConfig:
    own = given.get("dflash_config")
    if not isinstance(own, dict):
        raise ValueError(
            f"expected dflash_config, or speculators_model_type dflash or dspark, got dflash_config {own!r:.60}"
        )
    fields = {**given, **own}
    _refuse_others(fields)
    causal = _truth(fields, "causal_head", _truth(fields, "is_causal", False))
    return _block_config(
        fields, _layers(given), _ids(fields, "target_layer_ids", 0), causal, False, fields.get("draft_vocab_size")
    )


def _of_speculators(given: dict[str, Any]) -> BlockConfig:
    kind = given["speculators_model_type"]
    if kind not in ("dflash", "dspark"):
        raise ValueError(f"expected speculators_model_type dflash or dspark, got {kind!r:.60}")
    _refuse_others(given)
    nested = given.get("transformer_layer_config")
    if not isinstance(nested, dict):
        raise ValueError(f"expected transformer_layer_config, an object, got {nested!r:.60}")
    layers = _layers(nested)
    size = given.get("target_hidden_size")
    if size is not None and size != layers.hidden_size:
        raise ValueError(f"expected target_hidden_size {layers.hidden_size} (hidden_size), got {size!r:.60}")
    dspark = kind == "dspark"
    defaults = {"block_size": 8} | (
        {"markov_rank": 256, "enable_confidence_head": True, "confidence_head_with_markov": True} if dspark else {}
    )
    reduced = given.get("draft_vocab_size", 32000)
    return _block_config(
        defaults | given, layers, _ids(given, "aux_hidden_state_layer_ids", 1), _truth(given, "causal_head", False),
        dspark,
        None if reduced == layers.vocab_size else reduced,
    )  # fmt: skip


def _block_config(
    fields: dict[str, Any], layers: Any, layer_ids: tuple[int, ...], causal: bool, from_anchor: bool, reduced: Any
) -> BlockConfig:
    layer_types = fields.get("transformer_layer_config", fields).get("layer_types") or []
    if not isinstance(layer_types, list) or any(kind != "full_attention" for kind in layer_types):
        raise ValueError(f"expected layer_types of full_attention alone, got {layer_types!r:.80}")
    fingerprint = fields.get("tokenizer_fingerprint")
    if not isinstance(fingerprint, str | None):
        raise ValueError(f"expected tokenizer_fingerprint as text, got {fingerprint!r:.60}")
    return BlockConfig(
        layers,
        block_size=_whole(fields, "block_size"),
        mask_token_id=_whole(fields, "mask_token_id", 0),
        target_layer_ids=layer_ids,
        num_target_layers=None if fields.get("num_target_layers") is None else _whole(fields, "num_target_layers"),
        causal_head=causal,
        sample_from_anchor=_truth(fields, "sample_from_anchor", from_anchor),
        draft_vocab_size=None if reduced is None else _whole({"draft_vocab_size": reduced}, "draft_vocab_size"),
        markov_rank=_whole(fields, "markov_rank", 0) if "markov_rank" in fields else 0,
        confidence=_truth(fields, "enable_confidence_head", False),
        confidence_with_markov=_truth(fields, "confidence_head_with_markov", False),
        tokenizer_fingerprint=fingerprint,
    )


def _layers(given: dict[str, Any]) -> Any:
    """The stock configuration of the layers, from those of its fields that mean something here."""
    kind = given.get("model_type", "qwen3")
    if kind != "qwen3":
        raise ValueError(f"expected layers of model_type qwen3, got {kind!r:.60}")
    for name in _WHOLE:
        if given.get(name) is not None:
            _whole(given, name)
    if (given.get("num_hidden_layers") or 1) > MOST_LAYERS:  # transformers makes lists of them
        raise ValueError(f"expected num_hidden_layers up to {MOST_LAYERS}, got {given['num_hidden_layers']}")
    if (given.get("head_dim") or 0) % 2:
        raise ValueError(f"expected an even head_dim, got {given['head_dim']}")
    eps = given.get("rms_norm_eps", 1e-6)
    if isinstance(eps, bool) or not isinstance(eps, int | float) or not 0 <= eps < 1:
        raise ValueError(f"expected rms_norm_eps from 0 to 1, got {eps!r:.60}")
    _truth(given, "attention_bias", False)
    try:
        layers: Any = Qwen3Config(**{name: given[name] for name in _LAYER_FIELDS if name in given})
    except Exception as error:  # a damaged config.json raises whatever its values lead to
        raise ValueError(f"expected a Qwen3 configuration: {error!r}") from error
    queries, keys = layers.num_attention_heads, layers.num_key_value_heads
    if queries % keys:
        raise ValueError(f"expected num_key_value_heads that divide num_attention_heads ({queries}), got {keys}")
    return layers


def _refuse_others(fields: dict[str, Any]) -> None:
    for name, allowed in _NEUTRAL.items():
        if name in fields and not any(fields[name] == value for value in allowed):
            raise ValueError(
                f"expected {name} {allowed[0]!r}, which is all that is known here, got {fields[name]!r:.60}"
            )


def _whole(fields: Mapping[str, Any], name: str, least: int = 1) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"expected {name}, a whole number from {least} on, got {value!r:.60}")
    return value


def _truth(fields: Mapping[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise ValueError(f"expected {name} true or false, got {value!r:.60}")
    return value


def _ids(fields: Mapping[str, Any], name: str, first: int) -> tuple[int, ...]:
    """Layers, counted from ``first`` in the file."""
    value = fields.get(name)
    if (
        not isinstance(value, list)
        or not value
        or not all(type(each) is int and first <= each < 1 << 20 for each in value)
    ):
        raise ValueError(f"expected {name}, a list of layers from {first} on, got {value!r:.60}")
    return tuple(each - first for each in value)
