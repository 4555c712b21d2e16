"""Which verifier fits a model, found out by trying.

Tree attention needs a model that takes a four-dimensional mask and can be told positions.  Families differ, and a
model that quietly ignores either would write other text than its own; so the first decode with a model verifies a
small tree over a small ragged batch and compares it with plain causal passes.  The first placement that agrees is
taken and remembered; if none does, or the cache cannot forget rejected tokens, the model is read from the beginning
at every call, which is slow and always right.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.base import BaseModel, Model
from latticebpd.models.forward import Source
from latticebpd.models.placement import ByEmbedding, ByPositionIds, ByRelativeBias, Placement, layers_of
from latticebpd.verification.base import Verifier
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree import TreeVerifier

Kind: TypeAlias = Callable[[PreTrainedModel], Placement]

_known: weakref.WeakKeyDictionary[PreTrainedModel, tuple[str, Kind | None]] = weakref.WeakKeyDictionary()
"""What each model agreed with, and under which attention implementation."""


def verifier_for(model: Model, source: Source | None = None, use_cache: bool = True) -> Verifier:
    """The quickest verifier that is right for the model.

    Args:
        model: a causal LM or an encoder–decoder.
        source: what an encoder–decoder reads.
        use_cache: False reads every text from the beginning at every call.

    Raises:
        ValueError: an attention implementation that takes no tree mask.
    """
    stock = BaseModel.of(model).model
    implementation = _attention(stock)
    if implementation not in {"sdpa", "eager"}:
        raise ValueError(
            f"expected SDPA or eager attention, got {implementation!r}, which takes no tree mask; "
            "load the model with attn_implementation='sdpa'"
        )
    placement = tree_placement(stock) if use_cache else None
    return RecomputingVerifier(stock, source) if placement is None else TreeVerifier(stock, placement, source)


def tree_placement(model: PreTrainedModel) -> Placement | None:
    """How the model is told positions in tree attention; None if it cannot be."""
    implementation = _attention(model)
    if model not in _known or _known[model][0] != implementation:
        _known[model] = implementation, next((kind for kind in _kinds(model) if _agrees(model, kind)), None)
    kind = _known[model][1]
    return None if kind is None else kind(model)


def _attention(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _kinds(model: PreTrainedModel) -> tuple[Kind, ...]:
    """The placements that may fit; none if a model does more than attend, because only attention can forget."""
    if not layers_of(model).only_attention:
        return ()
    base = BaseModel.of(model)
    if base.encodes:
        return ByRelativeBias, ByEmbedding
    return (ByPositionIds,) if base.takes("position_ids") else ()


def _agrees(model: PreTrainedModel, kind: Kind) -> bool:
    """Whether tree attention gives what plain causal passes give, on two rows of different lengths and branching trees."""
    encodes, vocabulary = BaseModel.of(model).encodes, BaseModel.of(model).vocab_size
    if vocabulary < 4:
        return False
    a, b, c, d = range(vocabulary // 2 - 2, vocabulary // 2 + 2)
    prompts = [[a], [b]] if encodes else [[a, b, c], [b]]
    trees = [DraftTree(np.array([a, c, d, b]), np.array([-1, -1, 0, 1])), DraftTree(np.array([b, d]), np.array([-1, -1]))]
    source = None
    if encodes:
        tokens = torch.tensor([[a, b], [c, d]], device=model.device)
        source = Source.encode(model, tokens, torch.ones_like(tokens))
    found = []
    try:
        for verifier in (TreeVerifier(model, kind(model), source), RecomputingVerifier(model, source)):
            verifier.prefill(prompts)
            passes = [verifier.verify([d, a], trees)]
            verifier.keep([[1, 3], []])  # the longer row grows by two drafted tokens, the other by none
            passes.append(verifier.verify([c, b], trees))
            found.append(torch.cat([torch.cat([each.hidden[0], each.hidden[1, :3]]) for each in passes]).float())
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError):
        return False  # the model has no such parts or takes no such arguments
    tree, plain = found
    tolerance = 0.1 if model.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return bool((tree - plain).abs().max() <= tolerance * plain.abs().max())
