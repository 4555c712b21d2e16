"""Which verifier fits a model, found out by trying.

Tree attention needs a model that takes a four-dimensional mask and can be told positions.  Families differ, and a
model that quietly ignores either would write other text than its own; so the first decode with a model verifies a
small tree over a small ragged batch and compares it with plain causal passes.  The first placement that agrees is
taken and remembered; if none does, or the cache cannot forget rejected tokens, the model is read from the beginning
at every call, which is slow and always right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.cpu.attention import CPU_ATTENTION
from latticebpd.lattices.drafts import DraftTree
from latticebpd.target.forward import EncodedSource, Forward
from latticebpd.target.recompute import RecomputingVerifier
from latticebpd.target.row_cache import RowCache
from latticebpd.target.stock_model import BaseModel, Model
from latticebpd.target.tree_attention import TreeVerifier
from latticebpd.target.tree_positions import ByEmbedding, ByPositionIds, ByRelativeBias, Placement, layers_of
from latticebpd.target.verifier import Verifier

Kind: TypeAlias = Callable[[PreTrainedModel], Placement]


@dataclass(frozen=True)
class _Trial:
    """What came out of trying a model under an attention implementation.

    objection: why nothing here can decode with it; None if something can.
    kind: how it is told positions in tree attention; None if it cannot be.
    """

    implementation: str
    objection: str | None
    kind: Kind | None


_trials: weakref.WeakKeyDictionary[PreTrainedModel, _Trial] = weakref.WeakKeyDictionary()


def verifier_for(
    model: Model, source: EncodedSource | None = None, use_cache: bool = True, layers: Sequence[int] = ()
) -> Verifier:
    """The quickest verifier that is right for the model.

    Args:
        model: a causal LM or an encoder–decoder.
        source: what an encoder–decoder reads.
        use_cache: False reads every text from the beginning at every call.
        layers: those whose states are kept, from 0.

    Raises:
        ValueError: an attention implementation that takes no tree mask, or a model that does not read from left to
            right.
    """
    stock = BaseModel.of(model).model
    implementation = _attention(stock)
    if implementation not in {"sdpa", "eager", CPU_ATTENTION}:
        raise ValueError(
            f"expected SDPA or eager attention, got {implementation!r}, which takes no tree mask; "
            "load the model with attn_implementation='sdpa'"
        )
    if (objection := _trial(stock).objection) is not None:
        raise ValueError(
            f"expected a model that reads texts from left to right, got {stock.config.model_type}, {objection}; only"
            " its own generate() can decode with it"
        )
    placement = tree_placement(stock) if use_cache else None
    return (
        RecomputingVerifier(stock, source, layers)
        if placement is None
        else TreeVerifier(stock, placement, source, layers)
    )


def tree_placement(model: PreTrainedModel) -> Placement | None:
    """How the model is told positions in tree attention; None if it cannot be."""
    kind = _trial(model).kind
    return None if kind is None else kind(model)


def _trial(model: PreTrainedModel) -> _Trial:
    """The model's, remembered."""
    implementation = _attention(model)
    known = _trials.get(model)
    if known is None or known.implementation != implementation:
        objection = _objection(model)
        kind = next((kind for kind in _kinds(model) if _agrees(model, kind)), None) if objection is None else None
        known = _trials[model] = _Trial(implementation, objection, kind)
    return known


def _attention(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _kinds(model: PreTrainedModel) -> tuple[Kind, ...]:
    """The placements that may fit; none if a model does more than attend, because only attention can forget."""
    if not layers_of(model).only_attention:
        return ()
    base = BaseModel.of(model)
    if base.is_encoder_decoder:
        return ByRelativeBias, ByEmbedding
    return (ByPositionIds,) if base.takes("position_ids") else ()


def _agrees(model: PreTrainedModel, kind: Kind) -> bool:
    """Whether tree attention gives what plain causal passes give, on two rows of different lengths and branching
    trees."""
    is_encoder_decoder, vocabulary = BaseModel.of(model).is_encoder_decoder, BaseModel.of(model).vocab_size
    if vocabulary < 4:
        return False
    a, b, c, d = range(vocabulary // 2 - 2, vocabulary // 2 + 2)
    prompts = [[a], [b]] if is_encoder_decoder else [[a, b, c], [b]]
    trees = [
        DraftTree(np.array([a, c, d, b]), np.array([-1, -1, 0, 1])),
        DraftTree(np.array([b, d]), np.array([-1, -1])),
    ]
    source = None
    if is_encoder_decoder:
        tokens = torch.tensor([[a, b], [c, d]], device=model.device)
        source = EncodedSource.encode(model, tokens, torch.ones_like(tokens))
    found = []
    try:
        for verifier in (TreeVerifier(model, kind(model), source), RecomputingVerifier(model, source)):
            verifier.prefill(prompts)
            passes = [verifier.verify([d, a], trees)]
            verifier.keep([[1, 3], []])  # the longer row grows by two drafted tokens, the other by none
            passes.append(verifier.verify([c, b], trees))
            found.append(torch.cat([torch.cat([each.hidden[0], each.hidden[1, :3]]) for each in passes]))
    except Exception:  # the model has no such parts or takes no such arguments: each complains in its own way
        return False
    return _alike(*found)


def _objection(model: PreTrainedModel) -> str | None:
    try:
        causal = _is_causal(model)
    except Exception as error:  # each complains in its own way
        return f"whose parts cannot be called alike ({str(error).splitlines()[0]})"
    return None if causal else "whose logits depend on what follows or on how a text is cut into passes"


@torch.inference_mode()
def _is_causal(model: PreTrainedModel) -> bool:
    """Whether what follows a token is the same with others behind it, and with those before it read earlier and kept in
    a cache."""
    base = BaseModel.of(model)
    middle = base.vocab_size // 2  # special tokens stand at the ends of vocabularies
    tokens = torch.arange(middle, middle + 4, device=base.device)[None] % base.vocab_size
    forward = Forward(
        base, EncodedSource.encode(base, tokens, torch.ones_like(tokens)) if base.is_encoder_decoder else None
    )
    whole = base.text(tokens)
    beginning, rest = ({name: value[:, part] for name, value in whole.items()} for part in (slice(3), slice(3, 4)))
    logits = forward.nodes({**whole, "use_cache": False}).logits_of([0] * 4, range(4))
    if not _alike(forward.nodes({**beginning, "use_cache": False}).logits_of([0] * 3, range(3)), logits[:3]):
        return False
    if not base.takes("past_key_values") or not layers_of(model).only_attention:
        return True
    cache = RowCache(base.is_encoder_decoder).arguments
    try:
        forward.nodes({**beginning, **cache})
        kept = forward.nodes({**rest, **cache}).logits_of([0], [0])
    except Exception:  # it takes no such cache, and will not be given any
        return True
    return _alike(kept, logits[3:])


def _alike(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Up to rounding."""
    tolerance = 0.1 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return bool((found - expected).float().abs().max() <= tolerance * expected.float().abs().max())
