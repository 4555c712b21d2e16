"""Block drafters of decoder-only models: a block of tokens in one pass over the target's own states (DFlash, Chen 2026;
JetSpec; DSpark).

A drafter is a small stack of Qwen3's layers that owns neither embedding nor output projection: both are the target's.
It reads two things. The *context* is one vector for every token that the target has read: the states that some of its
layers handed on, side by side, through ``fc`` and ``hidden_norm``. The *block* is the embeddings of the text's last
token, the *anchor*, which the target has not read yet, and of masks behind it::

    column      context of y_1 .. y_(j-1)     y_j  m_1 .. m_(b-1)
    is          keys and values alone         queries, keys and values
    position    0 .. j-2                      j-1 .. j+b-2

In every layer the block's columns look at the whole context and at the block: all of it, or, with a *causal head*
(JetSpec), up to themselves. Keys and values of the context come from its vectors alone, so they never change and are
kept; the block's are cut off.

A mask's column says the token at its own position (DFlash), or, where a drafter *samples from the anchor* (DSpark),
every column says the token behind its own. So a block of b has b - 1 or b slots; the first is the one right behind the
anchor either way.

Optional parts: a reduced vocabulary, the only tokens that are drafted; DSpark's *Markov head*, a bigram of low rank
whose scores are added to a slot's logits once the token before it is known; DSpark's *confidence head*, how likely a
slot's token is accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from latticebpd.target.stock_model import BaseModel, Model, Projection


class KeyValues(Protocol):
    """Keys and values of every layer: a cache of ``transformers``."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append columns, ``[rows, attention heads, columns, size]``; returns all keys and values of the layer."""


@dataclass(frozen=True, eq=False)
class BlockConfig:
    """What a block drafter is.

    layers: its layers, as ``transformers`` has them; hidden size and vocabulary are the target's.
    block_size: columns of a block, the anchor's included.
    mask_token_id: the token that stands for a mask, of the target's vocabulary.
    target_layer_ids: the target's layers whose states are the context, counted from 0: each the state behind the layer.
    num_target_layers: layers of the target; None where a checkpoint does not say.
    causal_head: whether a block's columns look only up to themselves.
    sample_from_anchor: whether every column says the token behind its own, the anchor's column too.
    draft_vocab_size: tokens of a reduced vocabulary; None drafts all.
    markov_rank: of the Markov head; 0 without.
    confidence: whether there is a confidence head. confidence_with_markov: whether it reads the Markov head's embedding
        too.
    tokenizer_fingerprint: hash of the target's vocabulary (``vocabulary_fingerprint``), where it is known.

    Raises:
        ValueError: numbers that describe no drafter.
    """

    layers: Any
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    num_target_layers: int | None = None
    causal_head: bool = False
    sample_from_anchor: bool = False
    draft_vocab_size: int | None = None
    markov_rank: int = 0
    confidence: bool = False
    confidence_with_markov: bool = False
    tokenizer_fingerprint: str | None = None

    def __post_init__(self) -> None:
        least = 1 if self.sample_from_anchor else 2
        if self.block_size < least:
            raise ValueError(f"expected block_size >= {least}, got {self.block_size}")
        if not 0 <= self.mask_token_id < self.vocab_size:
            raise ValueError(
                f"expected mask_token_id below {self.vocab_size} (the vocabulary), got {self.mask_token_id}"
            )
        if not self.target_layer_ids or min(self.target_layer_ids) < 0:
            raise ValueError(f"expected target_layer_ids >= 0, one or more, got {list(self.target_layer_ids)}")
        if self.num_target_layers is not None and max(self.target_layer_ids) >= self.num_target_layers:
            layers = list(self.target_layer_ids)
            raise ValueError(
                f"expected target_layer_ids below {self.num_target_layers} (num_target_layers), got {layers}"
            )
        if self.draft_vocab_size is not None and not 1 <= self.draft_vocab_size <= self.vocab_size:
            raise ValueError(
                f"expected draft_vocab_size from 1 to {self.vocab_size} (the vocabulary), got {self.draft_vocab_size}"
            )
        if self.markov_rank < 0:
            raise ValueError(f"expected markov_rank >= 0, got {self.markov_rank}")
        if self.confidence_with_markov and not (self.confidence and self.markov_rank):
            raise ValueError(
                "expected a confidence head and a markov_rank > 0 with confidence_with_markov, got one missing"
            )
        if any(kind != "full_attention" for kind in getattr(self.layers, "layer_types", None) or []):
            raise ValueError(f"expected layer_types of full attention, got {self.layers.layer_types}")

    @property
    def hidden_size(self) -> int:
        return int(self.layers.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.layers.vocab_size)

    @property
    def slots(self) -> int:
        """Tokens that a block drafts."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


def default_layer_ids(draft_layers: int, target_layers: int) -> tuple[int, ...]:
    """DFlash's choice of a target's layers for a drafter of so many: the middle one, or evenly from layer 1 to L -
    3."""
    if draft_layers == 1:
        return (target_layers // 2,)
    first, last = 1, max(1, target_layers - 3)
    return tuple(round(first + i * (last - first) / (draft_layers - 1)) for i in range(draft_layers))


def config_for(target: Model, draft_layers: int, block_size: int, mask_token_id: int, **parts: Any) -> BlockConfig:
    """A drafter of the target's width: its hidden size, vocabulary, attention heads and rotary base.

    Args:
        parts: further fields of ``BlockConfig``; ``target_layer_ids`` are DFlash's by default.

    Raises:
        ValueError: the target is an encoder–decoder, or the numbers describe no drafter.
    """
    base = BaseModel.of(target)
    if base.is_encoder_decoder:
        raise ValueError(
            "expected a decoder-only model for a block drafter, got an encoder–decoder; see `latticebpd train drafter`"
        )
    if draft_layers < 1:
        raise ValueError(f"expected draft_layers >= 1, got {draft_layers}")
    own = base.config
    attention_heads = own.num_attention_heads
    rope = getattr(own, "rope_parameters", None) or {}
    qwen3: Any = Qwen3Config
    layers = qwen3(
        vocab_size=base.vocab_size, hidden_size=base.hidden_size, num_hidden_layers=draft_layers,
        intermediate_size=getattr(own, "intermediate_size", None) or 4 * base.hidden_size,
        num_attention_heads=attention_heads,
        num_key_value_heads=getattr(own, "num_key_value_heads", None) or attention_heads,
        head_dim=getattr(own, "head_dim", None) or base.hidden_size // attention_heads,
        max_position_embeddings=base.max_positions or 32768,
        rope_theta=rope.get("rope_theta") or getattr(own, "rope_theta", None) or 10000.0,
        rms_norm_eps=getattr(own, "rms_norm_eps", None) or 1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    parts.setdefault("target_layer_ids", default_layer_ids(draft_layers, own.num_hidden_layers))
    return BlockConfig(layers, block_size, mask_token_id, num_target_layers=own.num_hidden_layers, **parts)


class MarkovHead(nn.Module):
    """Scores of a slot's tokens given the one before, ``markov_w2(markov_w1[previous])`` (DSpark's "vanilla" head)."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)

    def forward(self, previous: Tensor) -> Tensor:
        """``[...]`` ids of the target's vocabulary -> ``[..., draft vocab]``, to be added to logits."""
        scores: Tensor = self.markov_w2(self.markov_w1(previous))
        return scores


class ConfidenceHead(nn.Module):
    """The logit of a slot's token being accepted, ``[..., hidden (+ rank)]`` -> ``[...]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.proj(hidden)
        return logits.squeeze(-1)


class BlockDrafter(nn.Module):
    """A block drafter; its state dict has the names of DFlash's checkpoints, those of a DSpark drafter's heads
    included.

    Args:
        config: what it is.
        draft_tokens: ``[draft_vocab_size]`` the reduced vocabulary, ascending ids of the target's.
        own_head: whether it has an output projection of its own (``lm_head``) onto the tokens that it drafts.

    Raises:
        ValueError: tokens that are no such vocabulary.
    """

    def __init__(
        self, config: BlockConfig, draft_tokens: Tensor | Sequence[int] | None = None, own_head: bool = False
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layers.rms_norm_eps
        self.config = config
        config.layers._attn_implementation = "sdpa"
        self.fc = nn.Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, eps=eps)
        self.layers = nn.ModuleList(
            Qwen3DecoderLayer(config.layers, index) for index in range(config.layers.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(size, eps=eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config.layers)
        drafted = config.draft_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(size, drafted, bias=False) if own_head else None
        self.markov_head = MarkovHead(config.vocab_size, drafted, config.markov_rank) if config.markov_rank else None
        width = size + config.markov_rank * config.confidence_with_markov
        self.confidence_head = ConfidenceHead(width) if config.confidence else None
        tokens = None if draft_tokens is None else torch.as_tensor(draft_tokens, dtype=torch.int64, device="cpu")
        _check_draft_tokens(tokens, config)
        self.draft_tokens: Tensor | None
        self.register_buffer("draft_tokens", tokens, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=getattr(config.layers, "initializer_range", 0.02))
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if self.markov_head is not None:  # a bigram that has learnt nothing says nothing
            nn.init.zeros_(self.markov_head.markov_w2.weight)

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def read(self, states: Tensor, positions: Tensor, cache: KeyValues) -> None:
        """Append the context's keys and values to a cache.

        Args:
            states: ``[rows, n, layers * hidden]``: of each token, what the target's ``target_layer_ids`` handed on,
                side by side.
            positions: ``[rows, n]``.
        """
        context = self.hidden_norm(self.fc(states))
        cos, sin = (part[:, None] for part in self.rotary_emb(context, positions))
        for index, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*context.shape[:2], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(context).view(shape)).transpose(1, 2)
            values = attention.v_proj(context).view(shape).transpose(1, 2)
            cache.update(keys * cos + rotate_half(keys) * sin, values, index)

    def fill(self, block: Tensor, positions: Tensor, visible: Tensor, cache: KeyValues) -> Tensor:
        """``[rows, columns, hidden]`` normalised states of blocks behind the context that a cache holds; it takes up
        the blocks' too.

        Args:
            block: ``[rows, columns, hidden]`` embeddings.
            positions: ``[rows, columns]``.
            visible: ``[rows, columns, context + columns]`` bool: which keys a column looks at.
        """
        rotary = self.rotary_emb(block, positions)
        for layer in self.layers:
            block = layer(
                block, attention_mask=visible[:, None], position_ids=positions, past_key_values=cache, use_cache=True,
                position_embeddings=rotary,
            )  # fmt: skip
        normed: Tensor = self.norm(block)
        return normed

    def forward(
        self, states: Tensor, state_positions: Tensor, block: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """``[rows, columns, hidden]``: both at once, as training needs it: many blocks side by side under one mask.

        Arguments as for :meth:`read` and :meth:`fill`; masks and positions of blocks: :func:`anchored_blocks`.
        """
        cache: Any = DynamicCache()
        self.read(states, state_positions, cache)
        return self.fill(block, positions, visible, cache)

    def said(self, hidden: Tensor) -> Tensor:
        """``[rows, blocks * block_size, hidden]`` -> ``[rows, blocks, slots, hidden]``: the columns that say a slot's
        token."""
        blocks: Tensor = hidden.unflatten(1, (-1, self.config.block_size))
        return blocks[:, :, self.config.block_size - self.config.slots :]

    def output(self, target: Projection) -> Callable[[Tensor], Tensor]:
        """From states to logits, ``[..., hidden]`` -> ``[..., draft vocab]``, without the Markov head's.

        Args:
            target: the target's own projection.
        """
        if self.lm_head is not None:
            return self.lm_head
        return target if self.draft_tokens is None else target.over(self.draft_tokens)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """``[...]`` logits of the slots' tokens being accepted.

        Args:
            hidden: ``[..., hidden]`` states that say the slots; previous: ``[...]`` the token before each slot.
        """
        assert self.confidence_head is not None
        if self.config.confidence_with_markov and self.markov_head is not None:
            hidden = torch.cat([hidden, self.markov_head.markov_w1(previous)], dim=-1)
        logits: Tensor = self.confidence_head(hidden)
        return logits


def anchored_blocks(anchors: Tensor, block_size: int, context: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Positions and mask of blocks side by side: each sees the context before its anchor, and itself.

    Args:
        anchors: ``[rows, blocks]`` positions of the anchors in their texts.
        context: places of the context, place p being a text's position p.
        causal: whether a block's columns look only up to themselves.

    Returns:
        ``[rows, blocks * block_size]`` positions, and ``[rows, blocks * block_size, context + blocks * block_size]``
        bool.
    """
    rows, blocks = anchors.shape
    device, columns = anchors.device, blocks * block_size
    offsets = torch.arange(block_size, device=device)
    positions = (anchors[:, :, None] + offsets).flatten(1)
    behind = anchors.repeat_interleave(block_size, dim=1)[:, :, None] > torch.arange(context, device=device)
    inside = torch.ones(block_size, block_size, dtype=torch.bool, device=device)
    own = torch.block_diag(*[inside.tril() if causal else inside] * blocks).bool() if blocks else inside.new_empty(0, 0)
    return positions, torch.cat([behind, own.expand(rows, columns, columns)], dim=2)


def check_target(drafter: BlockDrafter, target: Model, fingerprint: str | None = None) -> None:
    """Refuse a drafter that is not made for this target.

    Args:
        fingerprint: hash of the target's vocabulary, or None if unknown.

    Raises:
        ValueError: the target is an encoder–decoder, or differs in hidden size, vocabulary or layers.
    """
    base, config = BaseModel.of(target), drafter.config
    if base.is_encoder_decoder:
        raise ValueError(
            "expected a decoder-only target for a block drafter, got an encoder–decoder; see `latticebpd train drafter`"
        )
    layers = int(base.config.num_hidden_layers)
    known = config.tokenizer_fingerprint
    pairs = {
        "hidden_size {}": (base.hidden_size, config.hidden_size),
        "vocab_size {}": (base.vocab_size, config.vocab_size),
        "num_target_layers {}": (layers, config.num_target_layers or layers),
        "the vocabulary {}": (fingerprint, known) if fingerprint and known else (0, 0),
    }
    for what, (wanted, got) in pairs.items():
        if wanted != got:
            raise ValueError(
                f"expected a block drafter with {what.format(wanted)} (the target's), got {got}; train one for this"
                " target"
            )
    if max(config.target_layer_ids) >= layers:
        raise ValueError(
            f"expected target_layer_ids below {layers} (the target's layers), got {list(config.target_layer_ids)}"
        )


def _check_draft_tokens(tokens: Tensor | None, config: BlockConfig) -> None:
    size = config.draft_vocab_size
    if (tokens is None) != (size is None):
        raise ValueError(
            f"expected draft_tokens where there is a draft_vocab_size, and only there, got {size} and {tokens!r:.60}"
        )
    if tokens is None:
        return
    rising = tokens.ndim == 1 and bool((tokens.diff() > 0).all())
    if not rising or len(tokens) != size or int(tokens[0]) < 0 or int(tokens[-1]) >= config.vocab_size:
        raise ValueError(f"expected draft_tokens of {size} ascending ids below {config.vocab_size}, got {tokens!r:.80}")
