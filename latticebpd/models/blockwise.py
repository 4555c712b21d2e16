"""A language model with block heads (Stern 2018, section 3; Kim 2024, section 4).

A *blockwise language model* is a stock causal LM or encoder-decoder of ``transformers``, left as it is, and ``num_heads``
predictions of the next tokens from one hidden state, an encoder-decoder's from its decoder's; ``heads.py`` has the kinds
of heads.

On disk it is the directory that ``save_pretrained`` of the base model writes (``transformers``' own classes open it)
and two files beside: ``heads.json`` (format, kind, shape, what it belongs to) and ``heads.safetensors``.
Format 1 knew one kind of heads, those that format 2 calls ``feed-forward``.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedModel

from fst.files import replacing
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.models.base import BaseModel, Projection
from latticebpd.models.heads import HEAD_KINDS, BlockHeads, Heads, MedusaHeads
from latticebpd.models.loading import load_base

HEADS_CONFIG = "heads.json"
HEADS_WEIGHTS = "heads.safetensors"
FORMAT_VERSION = 2


class BlockwiseLM(nn.Module):
    """A base model and its block heads.

    Args:
        base: any causal LM or encoder-decoder of ``transformers``.
        heads: heads whose ``hidden_size`` is the base model's.
        tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``), stored and compared on load.
    """

    def __init__(self, base: PreTrainedModel, heads: Heads, tokenizer_fingerprint: str | None = None) -> None:
        super().__init__()
        stock = BaseModel.of(base)
        if heads.hidden_size != stock.hidden_size:
            raise ValueError(f"expected heads of hidden size {stock.hidden_size} (the base model's), got {heads.hidden_size}")
        if isinstance(heads, MedusaHeads) and heads.vocab_size != stock.vocab_size:
            raise ValueError(f"expected heads of {stock.vocab_size} tokens (the base model's), got {heads.vocab_size}")
        self.base, self.heads, self.tokenizer_fingerprint = base, heads, tokenizer_fingerprint
        self._scale = stock.projection.scale  # found out here and now: training may shard the model

    @property
    def num_heads(self) -> int:
        """Predictions per hidden state, head 1 included: the block size."""
        return self.heads.num_heads

    @property
    def vocab_size(self) -> int:
        """Tokens that the model writes."""
        return BaseModel.of(self.base).vocab_size

    @property
    def projection(self) -> Projection:
        """From the base model's final hidden states, or a head's states, to logits."""
        return BaseModel.of(self.base).scaled(self._scale)

    def head_logits(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        """``[..., hidden]`` (final, normalised hidden state) -> ``[..., slots, vocab]``: heads 2..slots + 1, by default all."""
        return self.heads.logits(hidden.to(self.heads.dtype), self.projection, slots)

    def save_pretrained(
        self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None, weights: dict[str, Tensor] | None = None
    ) -> None:
        """Write the model; files appear whole.

        Args:
            dtype: type of the stored weights, such as ``torch.float16``; by default base model and heads keep their own.
            weights: whole weights and buffers by name, where the model's own are dealt out over processes.
        """
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        # A converted copy keeps tied weights tied, and its config names the stored type.
        base: Any = self.base if dtype in (None, self.base.dtype) else torch.nn.Module.to(copy.deepcopy(self.base), dtype)
        state = self.state_dict() if weights is None else weights
        own = None if weights is None else {name.removeprefix("base."): state[name] for name in state if name.startswith("base.")}
        base.save_pretrained(directory, state_dict=own)
        heads = {name.removeprefix("heads."): state[name].detach() for name in state if name.startswith("heads.")}
        with replacing(directory / HEADS_WEIGHTS) as temporary:
            save_file({name: tensor.to(dtype or tensor.dtype).contiguous() for name, tensor in heads.items()}, temporary)
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
        """Read what ``save_pretrained`` wrote; further arguments go to the base model's ``from_pretrained``.

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
        _check_vocabulary(directory, model.tokenizer_fingerprint)
        model.eval()
        return model


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
    stock = BaseModel.of(base)
    hidden_size = stock.hidden_size
    if kind not in HEAD_KINDS:
        raise ValueError(f"expected heads of a kind among {', '.join(HEAD_KINDS)}, got {kind!r}")
    if kind == MedusaHeads.kind:
        heads = MedusaHeads(hidden_size, num_heads, stock.vocab_size, num_layers)
        heads.copy_output(stock.projection)
        return heads.to(base.device, base.dtype)
    return HEAD_KINDS[kind](hidden_size, num_heads, intermediate_size or hidden_size).to(base.device, base.dtype)  # type: ignore[call-arg]


def _check_vocabulary(directory: Path, fingerprint: str | None) -> None:
    """ValueError where a tokenizer stands beside the model that is not the one its heads were trained with."""
    path = directory / "tokenizer.json"
    if fingerprint is None or not path.exists():
        return
    try:
        found = vocabulary_fingerprint(Tokenizer.from_file(str(path)).get_vocab())
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path}: expected a tokenizer.json as the tokenizers library writes it: {error}") from error
    if found != fingerprint:
        raise ValueError(f"{path}: expected the vocabulary of the model's heads ({fingerprint}), got {found}; copy their tokenizer here")


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
