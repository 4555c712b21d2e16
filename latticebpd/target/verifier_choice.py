"""Which verifier fits a model, determined by a trial.

Families differ in what masks and positions they take, and a model that ignores either would write other text than its
own. So the first decode with a model verifies a small tree over a ragged batch and compares it with plain causal
passes. If no placement agrees, or the cache cannot drop rejected tokens, the model reads its text from the beginning at
every call, which is slow and always right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.cpu.attention import CPU_ATTENTION
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.engine import engine_of
from latticebpd.target.engine_verifier import EngineVerifier
from latticebpd.target.forward import EncodedSource, Forward
from latticebpd.target.recompute import RecomputingVerifier
from latticebpd.target.row_cache import RowCache
from latticebpd.target.stock_model import BaseModel, Model, once_per_model
from latticebpd.target.tree_attention import TreeVerifier
from latticebpd.target.tree_positions import ByEmbedding, ByPositionIds, ByRelativeBias, Placement, layers_of
from latticebpd.target.verifier import Verifier

Kind: TypeAlias = Callable[[PreTrainedModel], Placement]


def verifier_for(
    model: Model, source: EncodedSource | None = None, use_cache: bool = True, layers: Sequence[int] = ()
) -> Verifier:
    """The fastest verifier that is correct for the model; ValueError if it takes no tree masks or is not causal.

    source: of an encoder–decoder.  use_cache: False reads every text from the beginning at every call.
    layers: those whose states are kept, from 0.
    """
    stock = BaseModel.of(model).model
    if use_cache and source is None and (engine := engine_of(stock)) is not None:
        return EngineVerifier(engine, layers)
    implementation = _attention(stock)
    if implementation not in {"sdpa", "eager", CPU_ATTENTION}:
        raise ValueError(
            f"expected SDPA or eager attention, got {implementation!r}, which takes no tree mask; "
            "load the model with attn_implementation='sdpa'"
        )
    if (objection := _objection(stock, implementation)) is not None:
        raise ValueError(
            f"expected a model that reads texts from left to right, got {stock.config.model_type}, {objection}; only"
            " its own generate() can decode with it"
        )
    placement = tree_placement(stock) if use_cache else None
    if placement is None:
        return RecomputingVerifier(stock, source, layers)
    return TreeVerifier(stock, placement, source, layers)


def tree_placement(model: PreTrainedModel) -> Placement | None:
    """How the model is given positions in tree attention; None if it cannot be."""
    implementation = _attention(model)
    kind = None if _objection(model, implementation) else _kind(model, implementation)
    return None if kind is None else kind(model)


def _attention(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


@once_per_model
def _kind(model: PreTrainedModel, implementation: str) -> Kind | None:
    """The placement that agrees; none for a model that does more than attend, since only attention can forget."""
    base, kinds = BaseModel.of(model), list[Kind]()
    if layers_of(model).only_attention and base.is_encoder_decoder:
        kinds = [ByRelativeBias, ByEmbedding]
    elif layers_of(model).only_attention and base.takes("position_ids"):
        kinds = [ByPositionIds]
    return next((kind for kind in kinds if _agrees(model, kind)), None)


def _agrees(model: PreTrainedModel, kind: Kind) -> bool:
    """Whether tree attention equals plain causal passes, on two rows of different lengths and branching trees."""
    is_encoder_decoder, vocabulary = BaseModel.of(model).is_encoder_decoder, BaseModel.of(model).vocab_size
    if vocabulary < 4:
        return False
    a, b, c, d = range(vocabulary // 2 - 2, vocabulary // 2 + 2)
    prompts = [[a], [b]] if is_encoder_decoder else [[a, b, c], [b]]
    trees = [DraftTree(np.array([a, c, d, b]), np.array([-1, -1, 0, 1])), DraftTree.from_paths([[b], [d]])]
    source = None
    if is_encoder_decoder:
        tokens = torch.tensor([[a, b], [c, d]], device=model.device)
        source = EncodedSource.encode(model, tokens, torch.ones_like(tokens))
    outputs = []
    try:
        for verifier in (TreeVerifier(model, kind(model), source), RecomputingVerifier(model, source)):
            verifier.prefill(prompts)
            passes = [verifier.verify([d, a], trees)]
            verifier.keep([[1, 3], []])  # the longer row grows by two drafted tokens, the other by none
            passes.append(verifier.verify([c, b], trees))
            outputs.append(torch.cat([torch.cat([each.hidden[0], each.hidden[1, :3]]) for each in passes]))
    except Exception:  # the model lacks the parts or arguments: each raises its own kind of error
        return False
    return _close(*outputs)


@once_per_model
def _objection(model: PreTrainedModel, implementation: str) -> str | None:
    """Why no verifier can decode with the model; None if one can."""
    try:
        causal = _is_causal(model)
    except Exception as error:  # each model raises its own kind of error
        return f"whose parts cannot be called alike ({str(error).splitlines()[0]})"
    return None if causal else "whose logits depend on what follows or on how a text is cut into passes"


@torch.inference_mode()
def _is_causal(model: PreTrainedModel) -> bool:
    """Whether a token's logits do not depend on later tokens, nor on earlier ones coming from a cache."""
    base = BaseModel.of(model)
    middle = base.vocab_size // 2  # special tokens are at the ends of vocabularies
    tokens = torch.arange(middle, middle + 4, device=base.device)[None] % base.vocab_size
    source = EncodedSource.encode(base, tokens, torch.ones_like(tokens)) if base.is_encoder_decoder else None
    forward, text = Forward(base, source), base.text(tokens)
    beginning, rest = ({name: value[:, part] for name, value in text.items()} for part in (slice(3), slice(3, 4)))
    logits = forward.nodes({**text, "use_cache": False}).logits_of([0] * 4, range(4))
    if not _close(forward.nodes({**beginning, "use_cache": False}).logits_of([0] * 3, range(3)), logits[:3]):
        return False
    if not base.takes("past_key_values") or not layers_of(model).only_attention:
        return True
    cache = RowCache(base.is_encoder_decoder).arguments
    try:
        forward.nodes({**beginning, **cache})
        kept = forward.nodes({**rest, **cache}).logits_of([0], [0])
    except Exception:  # the model does not take such a cache, and will not be given one
        return True
    return _close(kept, logits[3:])


def _close(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal up to rounding."""
    tolerance = 0.1 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return bool((values - expected).float().abs().max() <= tolerance * expected.float().abs().max())
