"""Block drafters on disk: a directory of ``config.json`` and safetensors, in one of two layouts.

*DFlash's*, which :func:`save_block_drafter` writes: a Qwen3 config with ``block_size``, ``num_target_layers`` and
``dflash_config {target_layer_ids, mask_token_id, causal_head}``. Parts that DFlash does not have are in
``dflash_config`` too, under the names of ``speculators``: ``sample_from_anchor``, ``draft_vocab_size``,
``markov_rank``, ``enable_confidence_head``, ``confidence_head_with_markov``; so is our ``tokenizer_fingerprint``.

DFlash 2 (``DFlash2DraftModel``) adds ``conv_kernel_size``, ``conv_group_size``, ``selector_rank`` and
``selector_top_k`` to it, LiLiCorr (``LiLiCorrDraftModel``) eight ``lilicorr_`` fields, all required, and perhaps the
two of the convolutions; ``layer_types`` may name ``sliding_attention``, of ``sliding_window`` positions.

*Speculators'*: ``speculators_model_type`` ``dflash``, ``dspark`` or ``dflash2``, the Qwen3 config in
``transformer_layer_config``, the other fields next to it. Its ``aux_hidden_state_layer_ids`` count the layers that have
been run: id k is DFlash's k - 1.

Both keep a reduced vocabulary as ``t2d``, a mask over the target's tokens, and ``d2t``, the offset of each drafted
token's id. Nothing is unpickled, and no code of a checkpoint is run. Shapes are compared before memory is allocated.

Where public sources are unclear, a field is required or rejected. The order of ``output_multiplier`` and
``final_logit_softcapping`` (Muse-Glimmer's drafter) is not confirmed: rejected. Whether layers with a window are causal
differs between implementations: they need ``is_causal``. Speculators are taken to store a ``dflash2`` drafter's tensors
under z-lab's names; other names are rejected.

P-EAGLE drafters are not loaded. In the layout of ``speculators`` a learned vector, ``mask_hidden``, stands for the
target's states of slots that are not written yet, ``mask_token_id`` for their tokens, and a slot attends to the slots
before it; EAGLE-3's network runs it, whose first layer reads two vectors per token.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import Qwen3Config

from fst.files import write_text
from latticebpd.checks import expect
from latticebpd.drafters.block.block_network import BlockConfig, BlockDrafter, is_vocabulary
from latticebpd.drafters.block.lattice_reranker import RerankerConfig
from latticebpd.models.transformers.checkpoints import safetensors_in, save_tensors

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
MOST_LAYERS = 1024
_MAPS = ("t2d", "d2t")
_TARGETS_OWN = ("embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight", "rotary_emb.inv_freq")
"""Tensors of some checkpoints that are the target's, or constants."""
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_SPECULATORS = ("dflash", "dspark", "dflash2")
_NAMED = "dflash, dspark or dflash2"
_KINDS = {"dflash": "DFlashDraftModel", "dflash2": "DFlash2DraftModel", "lilicorr": "LiLiCorrDraftModel"}
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings",
)  # fmt: skip
_CONVOLUTIONS, _SELECTOR = ("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k")
_WINDOW, _WINDOWED = ("layer_types", "sliding_window"), ("full_attention", "sliding_attention")
_PREFIX = "lilicorr_"
_LAYER_FIELDS = (
    *_SIZES, "rms_norm_eps", "hidden_act", "attention_bias", "rope_theta", "rope_scaling", "rope_parameters",
)  # fmt: skip
_NEUTRAL = {  # fields that would change what a drafter computes, and the values with which they do not
    "projector_type": ("dflash", "dflash2", "lilicorr"), "lilicorr_enabled": (True,),
    "markov_head_type": ("vanilla",), "input_embedding_scale": (1,),
    "output_multiplier": (1,), "final_logit_softcapping": (None, 0), "quantization_config": (None,),
}  # fmt: skip


def is_block_drafter(path: str | os.PathLike[str]) -> bool:
    """Whether a directory holds a block drafter in either layout, complete or damaged."""
    try:
        config = json.loads((Path(path) / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(config, dict) and (
        "dflash_config" in config or config.get("speculators_model_type") in _SPECULATORS
    )


def save_block_drafter(drafter: BlockDrafter, directory: str | os.PathLike[str]) -> None:
    """Write a drafter in DFlash's layout; each file is complete or absent."""
    directory = Path(directory)
    config, layers = drafter.config, drafter.config.layers.to_dict()
    kind = "lilicorr" if config.reranker else "dflash2" if config.selector_rank else "dflash"
    record = {name: layers[name] for name in ("model_type", *_LAYER_FIELDS) if name in layers} | {
        "architectures": [_KINDS[kind]],
        "block_size": config.block_size,
        "num_target_layers": config.num_target_layers,
        "dflash_config": {
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
        | {name: getattr(config, name) for name in (*_CONVOLUTIONS, *_SELECTOR) if getattr(config, name)}
        | ({_PREFIX + name: value for name, value in asdict(config.reranker).items()} if config.reranker else {}),
    }
    if kind != "dflash":
        record["dflash_config"]["block_size"] = config.block_size
        record |= {"has_own_lm_head": drafter.lm_head is not None, "is_causal": config.causal_head}
    if config.sliding_layers:
        types = [_WINDOWED[index in config.sliding_layers] for index in range(config.layers.num_hidden_layers)]
        record |= {"layer_types": types, "sliding_window": config.sliding_window, "is_causal": config.causal_head}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    if drafter.draft_tokens is not None:
        tokens = drafter.draft_tokens.cpu()
        tensors["d2t"] = tokens - torch.arange(len(tokens))
        tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, tokens, True)
    save_tensors(directory / WEIGHTS, tensors, {"format": "pt"})
    write_text(directory / CONFIG, json.dumps(record, indent=2, sort_keys=True) + "\n")


def load_block_drafter(directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32) -> BlockDrafter:
    """Read a drafter in either layout, ready for inference; ValueError, which names the field or tensor, for damaged
    files and parts that are not supported."""
    directory = Path(directory)
    config, own_head = _read_config(directory)
    # Next to the weights may be a checkpoint of the training.
    files = sorted(directory.glob("model*.safetensors")) or safetensors_in(directory, WEIGHTS)
    try:
        with ExitStack() as stack:
            archives = [stack.enter_context(safe_open(file, framework="pt")) for file in files]
            return _load(config, archives, dtype, own_head)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{directory}: expected safetensors files: {error}; is the copy complete?") from error
    except ValueError as error:
        raise ValueError(f"{directory}: {error}") from error


def _load(config: BlockConfig, archives: list[Any], dtype: torch.dtype, own_head: bool) -> BlockDrafter:
    archive_of: dict[str, Any] = {}
    for archive in archives:
        for name in archive.keys():  # noqa: SIM118  (no dict)
            expect(name not in archive_of, "every tensor once", f"{name} twice")
            archive_of[name] = archive
    layers, number = config.layers.num_hidden_layers, len(archive_of)
    expect(layers <= number, f"num_hidden_layers up to {number} (the tensors of the files)", layers)
    reranker, mixed = config.reranker, sum(name.startswith("lilicorr.layers.") for name in archive_of)
    fits = reranker is None or reranker.num_layers <= mixed
    expect(fits, f"lilicorr_num_layers up to {mixed} (the tensors of the files)", reranker and reranker.num_layers)
    expect(not own_head or "lm_head.weight" in archive_of, "lm_head.weight with has_own_lm_head", "no such tensor")
    drafter = _empty_drafter(config, {name: file.get_slice(name).get_shape() for name, file in archive_of.items()})
    tensors = {name: file.get_tensor(name) for name, file in archive_of.items() if name not in _TARGETS_OWN}
    if config.draft_vocab_size is not None:
        drafter.draft_tokens = _draft_tokens(tensors, config.draft_vocab_size, config.vocab_size)
    weights = {name: tensor for name, tensor in tensors.items() if name not in _MAPS}
    for name, tensor in weights.items():
        expect(tensor.dtype in _FLOATS, "weights of 32, 16 or bf16 bits", f"{name} of {tensor.dtype}")
    drafter.load_state_dict({name: tensor.to(dtype) for name, tensor in weights.items()}, assign=True)
    return drafter.eval()


def _empty_drafter(config: BlockConfig, shapes: Mapping[str, list[int]]) -> BlockDrafter:
    """The drafter without its weights, if a file's tensors are exactly those that it needs."""
    size = config.draft_vocab_size
    maps = {} if size is None else {"d2t": ([size], "draft_vocab_size"), "t2d": ([config.vocab_size], "vocab_size")}
    for name, (shape, field) in maps.items():
        stored = shapes.get(name, shape)
        expect(stored == shape, f"{name} of shape {shape} ({field})", stored)
    expect(not maps or {*maps} & {*shapes}, f"d2t or t2d with a draft_vocab_size of {size}", "neither")
    try:
        with torch.device("meta"):
            drafter = BlockDrafter(config, None if size is None else range(size), "lm_head.weight" in shapes)
    except Exception as error:  # unknown activations, rotary embeddings and what else a configuration may ask for
        raise ValueError(f"expected layers that transformers can build ({CONFIG}): {error!r}") from error
    expected = {name: list(tensor.shape) for name, tensor in drafter.state_dict().items()}
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            got = f"shape {shapes[name]}" if name in shapes else "no such tensor"
            raise ValueError(f"expected {name} of shape {shape} ({CONFIG}), found {got}")
    drafter.rotary_emb = type(drafter.rotary_emb)(config.layers)  # its constants are in no file
    if unknown := sorted(shapes.keys() - {*expected, *_TARGETS_OWN, *maps}):
        raise ValueError(f"expected the tensors of a block drafter as {CONFIG} describes it, got {unknown[0]} too")
    return drafter


def _draft_tokens(tensors: Mapping[str, Tensor], size: int, vocab_size: int) -> Tensor:
    """The reduced vocabulary, from one map or both."""
    maps = []
    if (mask := tensors.get("t2d")) is not None:
        maps.append(("t2d", mask.to(torch.bool).nonzero()[:, 0]))
    if (offsets := tensors.get("d2t")) is not None:
        expect(not offsets.dtype.is_floating_point, "d2t of integers", offsets.dtype)
        maps.append(("d2t", offsets.long() + torch.arange(size)))
    for name, tokens in maps:
        wanted = f"{name} to name {size} ascending tokens below {vocab_size}"
        expect(is_vocabulary(tokens, size, vocab_size), wanted, tokens)
    expect(torch.equal(maps[0][1], maps[-1][1]), "t2d and d2t to name the same tokens", "others")
    return maps[0][1]


def _read_config(directory: Path) -> tuple[BlockConfig, bool]:
    """The shape, and whether the drafter has an output projection of its own for certain."""
    path, wanted = directory / CONFIG, "a block drafter (config.json and safetensors)"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ValueError(f"{directory}: expected {wanted}, found no config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: expected JSON: {error}; is the copy complete?") from error
    try:
        expect(isinstance(record, dict), "an object", repr(record))
        config = _of_speculators(record) if "speculators_model_type" in record else _of_dflash(record)
        return config, _truth(record, "has_own_lm_head")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _of_dflash(record: dict[str, Any]) -> BlockConfig:
    own = _field(record, "dflash_config", f", or speculators_model_type {_NAMED}", lambda v: isinstance(v, dict))
    fields, named = record | own, record.get("architectures")
    kind = next((kind for kind, model in _KINDS.items() if isinstance(named, list) and model in named), "dflash")
    layer_ids = _ids(fields, "target_layer_ids", 0)
    return _block_config(kind, fields, _layers(fields), layer_ids, fields.get("draft_vocab_size"))


def _of_speculators(record: dict[str, Any]) -> BlockConfig:
    kind = _field(record, "speculators_model_type", f" {_NAMED}", _SPECULATORS.__contains__)
    described = _field(record, "transformer_layer_config", ", an object", lambda v: isinstance(v, dict))
    layers = _layers(described)
    size = layers.hidden_size
    _field(record, "target_hidden_size", f" {size} (hidden_size)", (None, size).__contains__)
    defaults = {"block_size": 8} | {name: described[name] for name in _WINDOW if name in described}
    if kind == "dspark":
        defaults |= {"sample_from_anchor": True, "markov_rank": 256}
        defaults |= {"enable_confidence_head": True, "confidence_head_with_markov": True}
    reduced = record.get("draft_vocab_size", layers.vocab_size if kind == "dflash2" else 32000)
    layer_ids = _ids(record, "aux_hidden_state_layer_ids", 1)
    return _block_config(kind, defaults | record, layers, layer_ids, None if reduced == layers.vocab_size else reduced)


def _block_config(
    kind: str, fields: dict[str, Any], layers: Any, layer_ids: tuple[int, ...], reduced: Any
) -> BlockConfig:
    for name, allowed in _NEUTRAL.items():
        _field(fields, name, f" {allowed[0]!r}, the only supported value", allowed.__contains__, allowed[0])
    if "is_causal" in fields:
        fields = {"causal_head": _truth(fields, "is_causal")} | fields
    required = (*_CONVOLUTIONS, *_SELECTOR) if kind == "dflash2" else ()
    added = [name for name in (*_CONVOLUTIONS, *_SELECTOR) if name in required or fields.get(name) is not None]
    reranks, sliding = kind == "lilicorr" or any(name.startswith(_PREFIX) for name in fields), _sliding(fields, layers)
    return BlockConfig(
        layers,
        block_size=_integer(fields, "block_size"),
        mask_token_id=_integer(fields, "mask_token_id", 0),
        target_layer_ids=layer_ids,
        num_target_layers=None if fields.get("num_target_layers") is None else _integer(fields, "num_target_layers"),
        causal_head=_truth(fields, "causal_head"),
        sample_from_anchor=_truth(fields, "sample_from_anchor"),
        draft_vocab_size=None if reduced is None else _integer({"draft_vocab_size": reduced}, "draft_vocab_size"),
        markov_rank=_integer({"markov_rank": 0} | fields, "markov_rank", 0),
        confidence=_truth(fields, "enable_confidence_head"),
        confidence_with_markov=_truth(fields, "confidence_head_with_markov"),
        tokenizer_fingerprint=_field(fields, "tokenizer_fingerprint", " as text", lambda v: isinstance(v, str | None)),
        reranker=_reranker(fields) if reranks else None,
        sliding_layers=sliding,
        sliding_window=_integer(fields, "sliding_window") if sliding else 0,
        **{name: _integer(fields, name) for name in added},
    )


def _sliding(fields: Mapping[str, Any], layers: Any) -> tuple[int, ...]:
    """The layers with a window. Implementations differ in whether such layers are causal by default, so it is asked
    for."""
    number = layers.num_hidden_layers

    def fits(value: Any) -> bool:
        listed = isinstance(value, list) and len(value) == number
        return not value or (listed and all(kind in _WINDOWED for kind in value))

    kinds = _field(fields, "layer_types", f", {number} of full_attention and sliding_attention", fits) or []
    sliding = tuple(index for index, kind in enumerate(kinds) if kind == "sliding_attention")
    expect(not sliding or "causal_head" in fields, "is_causal with layer_types of sliding_attention", "none")
    return sliding


def _reranker(fields: Mapping[str, Any]) -> RerankerConfig:
    """LiLiCorr's fields, of which none has a default: two of them change no tensor's shape."""

    def number(name: str) -> float:
        return float(_field(fields, name, ", a number", lambda v: type(v) in (int, float) and abs(v) < 1e9))

    fitted: dict[str, Any] = {name: number(_PREFIX + name) for name in ("mlp_ratio", "logit_scale", "vector_eps")}
    sizes = ("candidate_topk", "factor_dim", "num_layers", "num_heads")
    width = _integer(fields, f"{_PREFIX}hidden_size", 0)
    return RerankerConfig(hidden_size=width, **fitted, **{name: _integer(fields, _PREFIX + name) for name in sizes})


def _layers(fields: dict[str, Any]) -> Any:
    """The stock configuration of the layers, from those fields that apply here."""
    kind = fields.get("model_type", "qwen3")
    expect(kind == "qwen3", "layers of model_type qwen3", repr(kind))
    for name in _SIZES:
        if fields.get(name) is not None:
            _integer(fields, name)
    number, head_dim = fields.get("num_hidden_layers") or 1, fields.get("head_dim") or 0
    expect(number <= MOST_LAYERS, f"num_hidden_layers up to {MOST_LAYERS}", number)  # transformers makes lists of them
    expect(head_dim % 2 == 0, "an even head_dim", head_dim)
    _field(fields, "rms_norm_eps", " from 0 to 1", lambda v: type(v) in (int, float) and 0 <= v < 1, 1e-6)
    _truth(fields, "attention_bias")
    try:
        layers: Any = Qwen3Config(**{name: fields[name] for name in _LAYER_FIELDS if name in fields})
    except Exception as error:  # a damaged config.json raises whatever its values lead to
        raise ValueError(f"expected a Qwen3 configuration: {error!r}") from error
    queries, keys = layers.num_attention_heads, layers.num_key_value_heads
    expect(queries % keys == 0, f"num_key_value_heads that divide num_attention_heads ({queries})", keys)
    return layers


def _field(
    fields: Mapping[str, Any], name: str, wanted: str, fits: Callable[[Any], bool], default: object = None
) -> Any:
    """A field's value; ``wanted``: what ``fits`` demands, in words that follow the name."""
    value = fields.get(name, default)
    expect(fits(value), name + wanted, repr(value))
    return value


def _integer(fields: Mapping[str, Any], name: str, least: int = 1) -> int:
    wanted = f", a whole number from {least} on"
    return int(_field(fields, name, wanted, lambda value: type(value) is int and least <= value < 1 << 31))


def _truth(fields: Mapping[str, Any], name: str) -> bool:
    return bool(_field(fields, name, " true or false", lambda value: isinstance(value, bool), False))


def _ids(fields: Mapping[str, Any], name: str, first: int) -> tuple[int, ...]:
    """Layers, counted from ``first`` in the file."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and all(type(each) is int and first <= each < 1 << 20 for each in value)

    value = _field(fields, name, f", a list of layers from {first} on", fits)
    return tuple(each - first for each in value)
