"""A causal language model with block heads (Stern 2018, section 3; Kim 2024, section 4).

A *blockwise language model* is a stock ``transformers`` causal LM, left as it is, and ``num_heads`` predictions
of the next tokens from one hidden state::

    head 1       the base model's own output (identity: exactness never depends on training)
    head i > 1   f_i(x) = x + W_down silu(W_up x), then the base model's output embedding

On disk it is the directory that ``save_pretrained`` of the base model writes (any ``AutoModelForCausalLM`` opens
it) and two files beside: ``heads.json`` (shape, fingerprint of the tokenizer) and ``heads.safetensors``.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from fst.files import replacing

HEADS_CONFIG = "heads.json"
HEADS_WEIGHTS = "heads.safetensors"
FORMAT_VERSION = 1


class BlockHeads(nn.Module):
    """Heads 2..``num_heads``: one-hidden-layer feed-forward networks with a residual connection.

    Args:
        hidden_size: width of the base model's hidden state.
        num_heads: number of predictions, the base model's own included.
        intermediate_size: width of each head's hidden layer.
    """

    def __init__(self, hidden_size: int, num_heads: int, intermediate_size: int) -> None:
        super().__init__()
        if num_heads < 2:
            raise ValueError(f"expected num_heads >= 2 (head 1 is the base model), got {num_heads}")
        self.hidden_size, self.num_heads, self.intermediate_size = hidden_size, num_heads, intermediate_size
        # A zero W_down starts every head as a copy of head 1.
        self.up = nn.Parameter(torch.randn(num_heads - 1, hidden_size, intermediate_size) * hidden_size**-0.5)
        self.down = nn.Parameter(torch.zeros(num_heads - 1, intermediate_size, hidden_size))

    def forward(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., num_heads - 1, hidden]``: every head on every position."""
        grouped = self.forward_grouped(hidden.reshape(1, -1, self.hidden_size).expand(self.num_heads - 1, -1, -1))
        return grouped.transpose(0, 1).reshape(*hidden.shape[:-1], self.num_heads - 1, self.hidden_size)

    def forward_grouped(self, hidden: Tensor) -> Tensor:
        """``[num_heads - 1, n, hidden]`` -> the same shape: group ``i`` goes through head ``i + 2`` only."""
        return hidden + torch.bmm(F.silu(torch.bmm(hidden, self.up)), self.down)


class BlockwiseLM(nn.Module):
    """A base model and its block heads.

    Args:
        base: any decoder-only causal LM of ``transformers``.
        heads: heads whose ``hidden_size`` is the base model's.
        tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``), stored and compared on load.
    """

    def __init__(self, base: PreTrainedModel, heads: BlockHeads, tokenizer_fingerprint: str | None = None) -> None:
        super().__init__()
        hidden_size = base.config.get_text_config().hidden_size
        if heads.hidden_size != hidden_size:
            raise ValueError(f"expected heads of hidden size {hidden_size} (the base model's), got {heads.hidden_size}")
        self.base, self.heads, self.tokenizer_fingerprint = base, heads, tokenizer_fingerprint

    @property
    def num_heads(self) -> int:
        """Predictions per hidden state, head 1 included: the block size."""
        return self.heads.num_heads

    @property
    def vocab_size(self) -> int:
        return int(self.base.config.get_text_config().vocab_size)

    def head_logits(self, hidden: Tensor) -> Tensor:
        """Logits of heads 2..h: ``[..., hidden]`` (final, normalised hidden state) -> ``[..., num_heads - 1, vocab]``."""
        logits: Tensor = self.base.get_output_embeddings()(self.heads(hidden))
        return logits

    def save_pretrained(self, directory: str | os.PathLike[str], dtype: torch.dtype | None = None) -> None:
        """Write the model; ``dtype`` (float16, bfloat16) stores the weights in half precision.  Files appear whole."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        dtype = dtype or self.heads.up.dtype
        # A converted copy keeps tied weights tied, and its config names the stored type.
        base: Any = self.base if dtype == self.base.dtype else copy.deepcopy(self.base)
        base.to(dtype).save_pretrained(directory)
        with replacing(directory / HEADS_WEIGHTS) as temporary:
            save_file({name: tensor.detach().to(dtype).contiguous() for name, tensor in self.heads.state_dict().items()}, temporary)
        record = {
            "format_version": FORMAT_VERSION,
            "hidden_size": self.heads.hidden_size,
            "intermediate_size": self.heads.intermediate_size,
            "num_heads": self.heads.num_heads,
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
        try:
            config = json.loads((directory / HEADS_CONFIG).read_text())
            if config["format_version"] != FORMAT_VERSION:
                raise ValueError(
                    f"{directory}: expected heads of format {FORMAT_VERSION}, got {config['format_version']}; update latticebpd"
                )
            heads = BlockHeads(config["hidden_size"], config["num_heads"], config["intermediate_size"])
            weights = load_file(directory / HEADS_WEIGHTS)
        except FileNotFoundError as error:
            raise ValueError(
                f"{directory}: expected a blockwise model (config.json, model.safetensors, {HEADS_CONFIG}, {HEADS_WEIGHTS}), "
                f"but {Path(error.filename or '?').name} is missing"
            ) from error
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, SafetensorError) as error:
            raise ValueError(f"{directory}: the block heads cannot be read: {error}; is the copy complete?") from error
        try:
            heads.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{directory}: {HEADS_WEIGHTS} does not fit {HEADS_CONFIG}: {error}") from error
        kwargs.setdefault("use_safetensors", True)
        try:
            base = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, **kwargs)
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{directory}: the base model cannot be read: {error}") from error
        model = cls(base, heads.to(dtype), config.get("tokenizer_fingerprint"))
        if model.vocab_size != config["vocab_size"]:
            raise ValueError(f"{directory}: expected a base model of {config['vocab_size']} tokens (the heads'), got {model.vocab_size}")
        model.eval()
        return model
