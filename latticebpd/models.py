"""A causal language model with block heads (Stern 2018, section 3; Kim 2024, section 4).

A *blockwise language model* is a stock ``transformers`` causal LM, left as it is, and ``num_heads`` predictions of the
next tokens from one hidden state; ``heads.py`` has the kinds of heads.

On disk it is the directory that ``save_pretrained`` of the base model writes (any ``AutoModelForCausalLM`` opens
it) and two files beside: ``heads.json`` (format, kind, shape, what it belongs to) and ``heads.safetensors``.
Format 1 knew one kind of heads, those that format 2 calls ``feed-forward``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from fst.files import replacing
from latticebpd.heads import HEAD_KINDS, BlockHeads, Heads, MedusaHeads

HEADS_CONFIG = "heads.json"
HEADS_WEIGHTS = "heads.safetensors"
FORMAT_VERSION = 2


class BlockwiseLM(nn.Module):
    """A base model and its block heads.

    Args:
        base: any decoder-only causal LM of ``transformers``.
        heads: heads whose ``hidden_size`` is the base model's.
        tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``), stored and compared on load.
    """

    def __init__(self, base: PreTrainedModel, heads: Heads, tokenizer_fingerprint: str | None = None) -> None:
        super().__init__()
        text_config = base.config.get_text_config()
        if heads.hidden_size != text_config.hidden_size:
            raise ValueError(f"expected heads of hidden size {text_config.hidden_size} (the base model's), got {heads.hidden_size}")
        if isinstance(heads, MedusaHeads) and heads.vocab_size != text_config.vocab_size:
            raise ValueError(f"expected heads of {text_config.vocab_size} tokens (the base model's), got {heads.vocab_size}")
        self.base, self.heads, self.tokenizer_fingerprint = base, heads, tokenizer_fingerprint

    @property
    def num_heads(self) -> int:
        """Predictions per hidden state, head 1 included: the block size."""
        return self.heads.num_heads

    @property
    def vocab_size(self) -> int:
        return int(self.base.config.get_text_config().vocab_size)

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the base model can read; None where nothing is said."""
        return max_positions(self.base)

    def head_logits(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        """``[..., hidden]`` (final, normalised hidden state) -> ``[..., slots, vocab]``: heads 2..slots + 1, by default all."""
        return self.heads.logits(hidden, self.base.get_output_embeddings(), slots)

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        """Write the model; ``dtype`` (float16, bfloat16) stores the weights in half precision.  Files appear whole."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        dtype = dtype or next(self.heads.parameters()).dtype
        # A converted copy keeps tied weights tied, and its config names the stored type.
        base: Any = self.base if dtype == self.base.dtype else copy.deepcopy(self.base)
        base.to(dtype).save_pretrained(directory)
        with replacing(directory / HEADS_WEIGHTS) as temporary:
            save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in self.heads.state_dict().items()}, temporary)
        record = {
            "format_version": FORMAT_VERSION,
            "kind": self.heads.kind,
            **self.heads.settings(),
            "model_type": self.base.config.model_type,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "vocab_size": self.vocab_size,
        }
        with replacing(directory / HEADS_CONFIG) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **kwargs: Any) -> BlockwiseLM:
        """Read what ``save_pretrained`` wrote; further arguments go to ``AutoModelForCausalLM.from_pretrained``.

        Raises:
            ValueError: a file is missing or corrupt, or base model and heads do not belong together.
        """
        directory = Path(directory)
        heads, config = _load_heads(directory)
        model = cls(load_base(directory, dtype, **kwargs), heads.to(dtype), config.get("tokenizer_fingerprint"))
        if model.vocab_size != config["vocab_size"]:
            raise ValueError(f"{directory}: expected a base model of {config['vocab_size']} tokens (the heads'), got {model.vocab_size}")
        if config.get("model_type", model.base.config.model_type) != model.base.config.model_type:
            raise ValueError(
                f"{directory}: expected a base model of type {config['model_type']} (the heads'), got {model.base.config.model_type}"
            )
        model.eval()
        return model


def load_base(model: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **kwargs: Any) -> PreTrainedModel:
    """A decoder-only causal LM from a directory (a blockwise model's too) or a hub's name, ready for inference.

    Raises:
        ValueError: there is no such model, or its files are corrupt.
    """
    kwargs.setdefault("use_safetensors", True)
    name = str(model)
    if not Path(model).is_dir() and (Path(model).is_absolute() or name.startswith(".") or name.count("/") > 1):
        raise ValueError(f"{model}: expected the directory of a causal LM (config.json, model.safetensors) or a hub's name, found neither")
    try:
        base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, **kwargs)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{model}: the base model cannot be read: {error}") from error
    base.eval()
    return base


def max_positions(base: PreTrainedModel) -> int | None:
    """The longest sequence that a model can read; None where its configuration says nothing."""
    limit: int | None = getattr(base.config.get_text_config(), "max_position_embeddings", None)
    return limit


def is_blockwise(model: str | os.PathLike[str]) -> bool:
    """Whether a name is the directory of a blockwise model."""
    return (Path(model) / HEADS_CONFIG).exists()


def new_heads(base: PreTrainedModel, kind: str, num_heads: int, intermediate_size: int | None = None, num_layers: int = 1) -> Heads:
    """Untrained heads that fit ``base`` and begin as copies of its own output.

    Args:
        kind: a name in ``HEAD_KINDS``.
        num_heads: predictions per position, the base model's own included.
        intermediate_size: width of a head's hidden layer (feed-forward, stern); by default the base model's hidden size.
        num_layers: residual blocks per head (medusa).
    """
    hidden_size = int(base.config.get_text_config().hidden_size)
    if kind not in HEAD_KINDS:
        raise ValueError(f"expected heads of a kind among {', '.join(HEAD_KINDS)}, got {kind!r}")
    if kind == MedusaHeads.kind:
        heads = MedusaHeads(hidden_size, num_heads, int(base.config.get_text_config().vocab_size), num_layers)
        heads.copy_output(base.get_output_embeddings())
        return heads.to(base.device, base.dtype)
    return HEAD_KINDS[kind](hidden_size, num_heads, intermediate_size or hidden_size).to(base.device, base.dtype)  # type: ignore[call-arg]


def weights_fingerprint(base: PreTrainedModel) -> str:
    """A hash of a model's weights: the same for the same numbers in the same type, wherever they were loaded from."""
    digest = hashlib.sha256()
    for name, tensor in sorted(base.named_parameters()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return f"sha256:{digest.hexdigest()[:16]}"


def _load_heads(directory: Path) -> tuple[Heads, dict[str, Any]]:
    """The heads of a directory and what ``heads.json`` says; no memory is taken beyond the files' own size."""
    try:
        config: dict[str, Any] = json.loads((directory / HEADS_CONFIG).read_text(encoding="utf-8"))
        version = config["format_version"]
        if version not in (1, FORMAT_VERSION):
            raise ValueError(f"{directory}: expected heads of format 1 to {FORMAT_VERSION}, got {version}; update latticebpd")
        kind = config["kind"] if version > 1 else BlockHeads.kind
        if kind not in HEAD_KINDS:
            raise ValueError(f"{directory}: expected heads of a kind among {', '.join(HEAD_KINDS)}, got {kind!r}; update latticebpd")
        with torch.device("meta"):
            template = HEAD_KINDS[kind](1, 2, 1)  # type: ignore[call-arg]
            names = template.settings()
            wrong = [name for name in (*names, "vocab_size") if type(config[name]) is not int or config[name] < 1]
            if wrong:
                raise ValueError(f"{directory}: expected {wrong[0]} in {HEADS_CONFIG} to be a number >= 1, got {config[wrong[0]]!r}")
            heads = HEAD_KINDS[kind](**{name: config[name] for name in names})
        weights = load_file(directory / HEADS_WEIGHTS)
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory}: expected a blockwise model (config.json, model.safetensors, {HEADS_CONFIG}, {HEADS_WEIGHTS}), "
            f"but {Path(error.filename or '?').name} is missing"
        ) from error
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"{directory}: the block heads cannot be read: {error}; is the copy complete?") from error
    try:
        heads.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        raise ValueError(f"{directory}: {HEADS_WEIGHTS} does not fit {HEADS_CONFIG}: {error}") from error
    return heads, config
