"""Which verifier fits a model, found out by trying.

Tree attention needs a model that takes a four-dimensional mask and can be told positions.  Families differ, and a
model that quietly ignores either would write other text than its own; so the first decode with a model verifies a
small tree over a small ragged batch and compares it with plain causal passes.  The first placement that agrees is
taken and remembered; if none does, or the cache cannot forget rejected tokens, the model is read from the beginning
at every call, which is slow and always right.
"""

from __future__ import annotations

import inspect
import weakref

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.drafts import DraftTree
from latticebpd.verification.base import Verifier
from latticebpd.verification.forward import Source
from latticebpd.verification.placement import ByEmbedding, ByPositionIds, ByRelativeBias, Placement, layers_of
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.tree import TreeVerifier

_known: weakref.WeakKeyDictionary[PreTrainedModel, tuple[str, Placement | None]] = weakref.WeakKeyDictionary()


def verifier_for(model: PreTrainedModel, source: Source | None = None, use_cache: bool = True) -> Verifier:
    """The quickest verifier that is right for the model.

    Args:
        model: a causal LM or an encoder–decoder.
        source: what an encoder–decoder reads.
        use_cache: False reads every text from the beginning at every call.

    Raises:
        ValueError: an attention implementation that takes no tree mask.
    """
    implementation = _attention(model)
    if implementation not in {"sdpa", "eager"}:
        raise ValueError(
            f"expected SDPA or eager attention, got {implementation!r}, which takes no tree mask; "
            "load the model with attn_implementation='sdpa'"
        )
    placement = tree_placement(model) if use_cache else None
    return RecomputingVerifier(model, source) if placement is None else TreeVerifier(model, placement, source)


def tree_placement(model: PreTrainedModel) -> Placement | None:
    """How the model is told positions in tree attention; None if it cannot be."""
    implementation = _attention(model)
    if model not in _known or _known[model][0] != implementation:
        _known[model] = implementation, next((p for p in _placements(model) if _agrees(model, p)), None)
    return _known[model][1]


def _attention(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


def _placements(model: PreTrainedModel) -> list[Placement]:
    """The placements that a model has the parts for; none if it does more than attend, because only attention can forget."""
    if not layers_of(model).only_attention:
        return []
    placements: list[Placement] = []
    if "position_ids" in inspect.signature(model.forward).parameters:
        placements.append(ByPositionIds(model))
    for kind in (ByRelativeBias, ByEmbedding) if model.config.is_encoder_decoder else ():
        try:
            placements.append(kind(model))
        except (AttributeError, IndexError, TypeError):
            continue
    return placements


def _agrees(model: PreTrainedModel, placement: Placement) -> bool:
    """Whether tree attention gives what plain causal passes give, on two rows of different lengths and branching trees."""
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    a, b, c, d = (np.arange(4) * 5 + 3) % vocabulary
    prompts = [[a, b, c], [b]] if not model.config.is_encoder_decoder else [[a], [b]]
    trees = [DraftTree(np.array([a, c, d, b]), np.array([-1, -1, 0, 1])), DraftTree(np.array([b, d]), np.array([-1, -1]))]
    paths = [[1, 3], []]  # the longer row grows by two drafted tokens, the other by none
    tokens = torch.tensor([[a, b], [c, d]], device=model.device)
    source = Source.encode(model, tokens, torch.ones_like(tokens)) if model.config.is_encoder_decoder else None
    found = []
    for verifier in (TreeVerifier(model, placement, source), RecomputingVerifier(model, source)):
        try:
            verifier.prefill([[int(token) for token in prompt] for prompt in prompts])
            passes = [verifier.verify([int(d), int(a)], trees)]
            verifier.keep(paths)
            passes.append(verifier.verify([int(c), int(b)], trees))
        except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError):
            return False  # the model takes no such arguments
        found.append(torch.cat([torch.cat([p.hidden[0], p.hidden[1, :3]]) for p in passes]).float())
    tree, plain = found
    tolerance = 0.1 if model.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return bool((tree - plain).abs().max() <= tolerance * plain.abs().max())
