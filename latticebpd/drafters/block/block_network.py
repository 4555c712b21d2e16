"""Block drafters of decoder-only models: a block of tokens in one pass over the target's hidden states (DFlash, Chen
2026; JetSpec; DSpark).

A drafter is a small stack of Qwen3's layers that uses the target's embedding and output projection. It reads two
things. The *context* is one vector for each token that the target has read: the hidden states after selected layers of
the target, concatenated, through ``fc`` and ``hidden_norm``. The *block* is the embeddings of the text's last token,
the *anchor*, which the target has not read yet, and of masks after it::

    column      context of y_1 .. y_(j-1)     y_j  m_1 .. m_(b-1)
    gives       only keys and values          queries, keys and values
    position    0 .. j-2                      j-1 .. j+b-2

In every layer the block's columns see the whole context and the block: all of it or, with a *causal head* (JetSpec),
keys with index <= query index. The context's keys and values depend on its vectors only, so they are cached; the
block's are cut off.

A mask's column predicts the token at its own position (DFlash); in a drafter that *samples from the anchor* (DSpark),
every column predicts the next token. So a block of b has b - 1 or b slots; the first one follows the anchor either way.

Optional parts: a reduced vocabulary, the only tokens that are drafted; DSpark's *Markov head*, a bigram of low rank
whose scores are added to a slot's logits given the token before; DSpark's *confidence head*, the probability that a
slot's token is accepted; DFlash 2's *convolutions* in every layer and its *candidate selector*; LiLiCorr's *reranker*;
layers that see a *window* of the keys only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm, Qwen3RotaryEmbedding, rotate_half

from latticebpd.checks import expect, expect_equal
from latticebpd.cpu.int8_layers import Int8Linear, use_int8_layers
from latticebpd.drafters.block.candidate_selector import CandidateSelector
from latticebpd.drafters.block.grouped_convolutions import ConvolvedLayer, GroupedConvolution
from latticebpd.drafters.block.lattice_reranker import LatticeReranker, RerankerConfig
from latticebpd.models.target_model import AnyModel, TargetModel, target_model
from latticebpd.models.transformers.transformers_model import Model, Projection, TransformersModel, cache_argument


@dataclass(frozen=True, eq=False)
class BlockConfig:
    """The shape of a block drafter; ValueError for values that describe none.

    layers: its layers' configuration; hidden size and vocabulary are the target's.
    block_size: columns of a block, the anchor's included.
    mask_token_id: the token of the target's vocabulary that stands for a mask.
    target_layer_ids: the target's layers, from 0, after which hidden states are taken as context.
    num_target_layers: layers of the target; None if a checkpoint does not say.
    causal_head: whether a block's columns see keys with index <= query index only.
    sample_from_anchor: whether every column, the anchor's too, predicts the next token.
    draft_vocab_size: tokens of a reduced vocabulary; None drafts all.
    markov_rank: of the Markov head; 0 without.
    confidence: whether there is a confidence head. confidence_with_markov: whether it reads the Markov embedding too.
    tokenizer_fingerprint: hash of the target's vocabulary (``vocabulary_fingerprint``), if known.
    conv_kernel_size, conv_group_size: taps, and channels of a group, of the layers' convolutions; 0: none.
    selector_rank, selector_top_k: of the candidate selector, and candidates of a slot that it was trained on; 0: none.
    reranker: of LiLiCorr's reranker; None: without.
    sliding_layers: which layers see only keys of the last ``sliding_window`` positions, a column's own included.
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
    conv_kernel_size: int = 0
    conv_group_size: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    reranker: RerankerConfig | None = None
    sliding_layers: tuple[int, ...] = ()
    sliding_window: int = 0

    def __post_init__(self) -> None:
        layers, limit = list(self.target_layer_ids), self.num_target_layers
        vocab, drafted = self.vocab_size, self.draft_vocab_size
        least = 1 if self.sample_from_anchor else 2
        expect(self.block_size >= least, f"block_size >= {least}", self.block_size)
        expect(0 <= self.mask_token_id < vocab, f"mask_token_id below {vocab} (the vocabulary)", self.mask_token_id)
        expect(layers and min(layers) >= 0, "target_layer_ids >= 0, one or more", layers)
        expect(limit is None or max(layers) < limit, f"target_layer_ids below {limit} (num_target_layers)", layers)
        fits = drafted is None or 1 <= drafted <= vocab
        expect(fits, f"draft_vocab_size from 1 to {vocab} (the vocabulary)", drafted)
        expect(self.markov_rank >= 0, "markov_rank >= 0", self.markov_rank)
        fits = not self.confidence_with_markov or (self.confidence and self.markov_rank > 0)
        expect(fits, "a confidence head and a markov_rank > 0 with confidence_with_markov", "one missing")
        types = getattr(self.layers, "layer_types", None) or []
        expect(all(kind == "full_attention" for kind in types), "layers of full attention", types)
        expect(not self.sliding_layers or self.sliding_window >= 1, "a sliding_window >= 1", self.sliding_window)
        self._check_additions()

    def _check_additions(self) -> None:
        taps, group, rank, top = self.conv_kernel_size, self.conv_group_size, self.selector_rank, self.selector_top_k
        expect((taps > 0) == (group > 0), "conv_kernel_size and conv_group_size, or neither", f"{taps} and {group}")
        expect(taps <= self.block_size, f"conv_kernel_size up to {self.block_size} (block_size)", taps)
        expect(group == 0 or self.hidden_size % group == 0, f"conv_group_size dividing {self.hidden_size}", group)
        expect((rank > 0) == (top > 0), "selector_rank and selector_top_k, or neither", f"{rank} and {top}")
        expect(rank == 0 or taps > 0, "conv_kernel_size and conv_group_size with a selector_rank", "none")
        ties = [self.markov_rank > 0, rank > 0, self.reranker is not None]
        expect(sum(ties) <= 1, "one of markov_rank, selector_rank and lilicorr_candidate_topk", "several")
        if rank or self.reranker is not None:
            name = "a candidate selector" if rank else "a reranker"
            expect(not self.sample_from_anchor, f"sample_from_anchor false with {name}", True)
            expect(not self.confidence, f"no confidence head with {name}", "one")
            known, most = self.draft_vocab_size or self.vocab_size, self.max_candidates
            expect(most <= known, f"at most {known} candidates per slot (the tokens that are drafted)", most)
        if self.reranker is not None:
            width, parts = self.reranker.hidden_size or self.hidden_size, self.reranker.num_heads
            expect(width % parts == 0, f"lilicorr_num_heads dividing {width} (its width)", parts)

    @property
    def hidden_size(self) -> int:
        return int(self.layers.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.layers.vocab_size)

    @property
    def max_candidates(self) -> int:
        """Candidates per slot that a selector or reranker was trained on; 0 without."""
        return self.selector_top_k if self.reranker is None else self.reranker.candidate_topk

    @property
    def slots(self) -> int:
        """Tokens that a block drafts."""
        return self.block_size if self.sample_from_anchor else self.block_size - 1


def default_layer_ids(draft_layers: int, target_layers: int) -> tuple[int, ...]:
    """DFlash's choice of the target's layers: the middle one for one draft layer, else evenly from layer 1 to L - 3."""
    if draft_layers == 1:
        return (target_layers // 2,)
    return tuple(round(1 + i * max(0, target_layers - 4) / (draft_layers - 1)) for i in range(draft_layers))


def config_for(target: Model, draft_layers: int, block_size: int, mask_token_id: int, **parts: Any) -> BlockConfig:
    """The configuration of a drafter with the target's hidden size, vocabulary, attention heads and rotary base.

    parts: further fields of ``BlockConfig``; ``target_layer_ids`` are DFlash's by default. Raises ValueError where the
    target is an encoder–decoder, or the values describe no drafter.
    """
    base = TransformersModel.of(target)
    _expect_decoder_only(base, "model")
    expect(draft_layers >= 1, "draft_layers >= 1", draft_layers)
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


def _expect_decoder_only(base: TargetModel, role: str) -> None:
    wanted, remedy = f"a decoder-only {role} for a block drafter", "see `latticebpd train masks`"
    expect(not base.is_encoder_decoder, wanted, "an encoder–decoder", remedy)


class MarkovHead(nn.Module):
    """Scores of a slot's tokens given the one before, ``markov_w2(markov_w1[previous])`` (DSpark's "vanilla" head)."""

    def __init__(self, vocab_size: int, draft_vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, draft_vocab_size, bias=False)

    def forward(self, previous: Tensor) -> Tensor:
        """``[...]`` ids of the target's vocabulary -> ``[..., draft vocab]``, to be added to logits."""
        return self.markov_w2(self.markov_w1(previous))


class ConfidenceHead(nn.Module):
    """The logit of a slot's token being accepted, ``[..., hidden (+ rank)]`` -> ``[...]``."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.proj(hidden)
        return logits.squeeze(-1)


class BlockDrafter(nn.Module):
    """A block drafter; its state dict has the names of DFlash's and DSpark's checkpoints.

    draft_tokens: ``[draft_vocab_size]`` the reduced vocabulary, ascending ids of the target's; else ValueError.
    own_head: whether it has an output projection of its own (``lm_head``) onto the tokens that it drafts.
    """

    def __init__(
        self, config: BlockConfig, draft_tokens: Tensor | Sequence[int] | None = None, own_head: bool = False
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.layers.rms_norm_eps
        self.config, self.rounded = config, False
        config.layers._attn_implementation = "sdpa"
        self.fc = nn.Linear(len(config.target_layer_ids) * size, size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(size, eps=eps)
        convolutions = (config.conv_kernel_size, config.conv_group_size, config.block_size)
        self.layers = nn.ModuleList(
            ConvolvedLayer(config.layers, index, convolutions)
            if config.conv_kernel_size
            else Qwen3DecoderLayer(config.layers, index)
            for index in range(config.layers.num_hidden_layers)
        )
        self.norm = Qwen3RMSNorm(size, eps=eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config.layers)
        drafted = config.draft_vocab_size or config.vocab_size
        self.lm_head = nn.Linear(size, drafted, bias=False) if own_head else None
        self.markov_head = MarkovHead(config.vocab_size, drafted, config.markov_rank) if config.markov_rank else None
        rank = config.selector_rank
        self.candidate_selector = CandidateSelector(config.vocab_size, size, rank) if rank else None
        reranker = config.reranker
        self.lilicorr = None if reranker is None else LatticeReranker(reranker, size, config.slots, eps)
        width = size + config.markov_rank * config.confidence_with_markov
        self.confidence_head = ConfidenceHead(width) if config.confidence else None
        tokens = None if draft_tokens is None else torch.as_tensor(draft_tokens, dtype=torch.int64, device="cpu")
        wanted, reduced = "draft_tokens where there is a draft_vocab_size, and only there", config.draft_vocab_size
        expect((tokens is None) == (reduced is None), wanted, f"{reduced} and {tokens!r:.60}")
        wanted = f"draft_tokens of {reduced} ascending ids below {config.vocab_size}"
        expect(tokens is None or is_vocabulary(tokens, drafted, config.vocab_size), wanted, tokens)
        self.draft_tokens: Tensor | None
        self.register_buffer("draft_tokens", tokens, persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=getattr(config.layers, "initializer_range", 0.02))
                if getattr(module, "bias", None) is not None:
                    nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        if self.markov_head is not None:  # an untrained bigram adds nothing
            nn.init.zeros_(self.markov_head.markov_w2.weight)
        for module in self.modules():  # nor does an untrained convolution
            if isinstance(module, GroupedConvolution):
                nn.init.zeros_(module.kernel_projection.weight)

    @property
    def device(self) -> torch.device:
        return self.fc.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def ties_slots(self) -> bool:
        """Whether a head scores a slot's tokens given those of the slot before."""
        return not (self.markov_head is None and self.candidate_selector is None and self.lilicorr is None)

    def context(self, states: Tensor) -> Tensor:
        """``[..., layers * hidden]`` of the target -> ``[..., hidden]`` context vectors."""
        return self.hidden_norm(self.fc(states))

    def read(self, states: Tensor, positions: Tensor, cache: Cache) -> None:
        """Append the context's keys and values to a cache.

        states: ``[rows, n, layers * hidden]`` hidden states after the ``target_layer_ids``, concatenated.
        positions: ``[rows, n]``.
        """
        context = self.context(states)
        cos, sin = (part[:, None] for part in self.rotary_emb(context, positions))
        for index, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            shape = (*context.shape[:2], -1, attention.head_dim)
            keys = attention.k_norm(attention.k_proj(context).view(shape)).transpose(1, 2)
            values = attention.v_proj(context).view(shape).transpose(1, 2)
            cache.update(keys * cos + rotate_half(keys) * sin, values, index)

    def fill(self, block: Tensor, positions: Tensor, visible: Tensor, cache: Cache) -> Tensor:
        """``[rows, columns, hidden]`` normalised states of blocks, which are appended to the context in a cache.

        block: ``[rows, columns, hidden]`` embeddings.
        positions: ``[rows, columns]``.
        visible: ``[rows, columns, context + columns]`` bool: which keys a column sees.
        """
        rotary, windowed = self.rotary_emb(block, positions), visible
        if self.config.sliding_layers:
            context = torch.arange(visible.shape[2] - positions.shape[1], device=visible.device)
            keys = torch.cat([context.expand(len(positions), -1), positions], dim=1)
            windowed = visible & (keys[:, None] > positions[..., None] - self.config.sliding_window)
        for index, layer in enumerate(self.layers):
            seen = windowed if index in self.config.sliding_layers else visible
            block = layer(
                block, attention_mask=seen[:, None], position_ids=positions, position_embeddings=rotary,
                **{cache_argument(Qwen3DecoderLayer.forward): cache}, use_cache=True,
            )  # fmt: skip
        return self.norm(block)

    def forward(
        self, states: Tensor, state_positions: Tensor, block: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """``[rows, columns, hidden]``: `read` and `fill` at once, for training, of blocks side by side under one mask.

        Masks and positions of blocks: :func:`anchored_blocks`.
        """
        cache = DynamicCache()
        self.read(states, state_positions, cache)
        return self.fill(block, positions, visible, cache)

    def slot_states(self, hidden: Tensor) -> Tensor:
        """``[rows, blocks * block_size, hidden]`` -> ``[rows, blocks, slots, hidden]``: columns that predict a slot."""
        blocks: Tensor = hidden.unflatten(1, (-1, self.config.block_size))
        return blocks[:, :, self.config.block_size - self.config.slots :]

    def output(self, target: Projection) -> Callable[[Tensor], Tensor]:
        """From states to logits, ``[..., hidden]`` -> ``[..., draft vocab]``, without the Markov head's; ``target`` is
        the target's own projection."""
        if self.lm_head is not None:
            return self.lm_head
        tokens = slice(None) if self.draft_tokens is None else self.draft_tokens
        if self.rounded:
            return target.over(tokens, Int8Linear())
        return target if self.draft_tokens is None else target.over(tokens)

    def use_int8(self) -> None:
        """Compute with int8 weights, the target's projection, too."""
        self.rounded = True
        use_int8_layers(self)

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """``[...]`` logits of acceptance, from slot states ``[..., hidden]`` and the tokens before them ``[...]``."""
        assert self.confidence_head is not None
        if self.config.confidence_with_markov and self.markov_head is not None:
            hidden = torch.cat([hidden, self.markov_head.markov_w1(previous)], dim=-1)
        return self.confidence_head(hidden)


def anchored_blocks(anchors: Tensor, block_size: int, context: int, causal: bool) -> tuple[Tensor, Tensor]:
    """Positions and mask of blocks side by side: each sees the context before its anchor, and itself.

    anchors: ``[rows, blocks]`` positions of the anchors in their texts.
    context: columns of the context; column p is a text's position p.
    causal: whether a block's columns see keys with index <= query index only.
    Returns positions ``[rows, n]`` and the mask ``[rows, n, context + n]`` bool, n = blocks * block_size.
    """
    rows, blocks = anchors.shape
    device, columns = anchors.device, blocks * block_size
    positions = (anchors[:, :, None] + torch.arange(block_size, device=device)).flatten(1)
    before = anchors.repeat_interleave(block_size, dim=1)[:, :, None] > torch.arange(context, device=device)
    inside = torch.ones(block_size, block_size, dtype=torch.bool, device=device)
    own = torch.block_diag(*[inside.tril() if causal else inside] * blocks).bool() if blocks else inside.new_empty(0, 0)
    return positions, torch.cat([before, own.expand(rows, columns, columns)], dim=2)


def check_target(drafter: BlockDrafter, target: AnyModel, fingerprint: str | None = None) -> None:
    """ValueError for an encoder–decoder, or a target of another hidden size, vocabulary or depth than the drafter's.

    fingerprint: hash of the target's vocabulary, if known.
    """
    base, config = target_model(target), drafter.config
    _expect_decoder_only(base, "target")
    layers, known = base.num_layers, config.tokenizer_fingerprint
    pairs = {
        "hidden_size {}": (base.hidden_size, config.hidden_size),
        "vocab_size {}": (base.vocab_size, config.vocab_size),
        "num_target_layers {}": (layers, config.num_target_layers or layers),
        "the vocabulary {}": (fingerprint, known) if fingerprint and known else (0, 0),
    }
    expect_equal("a block drafter", "target", pairs)
    chosen = list(config.target_layer_ids)
    expect(max(chosen) < layers, f"target_layer_ids below {layers} (the target's layers)", chosen)


def is_vocabulary(tokens: Tensor, size: int, vocab_size: int) -> bool:
    """Whether ``tokens`` are ``[size]`` ascending ids below ``vocab_size``."""
    ascending = tokens.ndim == 1 and len(tokens) == size and bool((tokens.diff() > 0).all())
    return ascending and int(tokens[0]) >= 0 and int(tokens[-1]) < vocab_size
