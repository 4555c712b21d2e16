"""Which verifier fits a model, determined by a trial.

Families differ in what masks and positions they take, and a model that ignores either would write other text than its
own. So the first decode with a model verifies small trees over a ragged batch of random texts and compares them with
plain causal passes. The texts are longer than sliding windows of up to ``LONG`` tokens; wider ones would cost more, and
their masks are the same. If no placement agrees, or the cache cannot drop rejected tokens, the model reads its text
from the beginning at every call, which is slow and always right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers import PreTrainedModel

from latticebpd.checks import expect
from latticebpd.lattices.drafts import DraftTree
from latticebpd.models.transformers.transformers_model import Model, TransformersModel, once_per_model
from latticebpd.verification.forward import EncodedSource, Forward
from latticebpd.verification.recompute import RecomputingVerifier
from latticebpd.verification.row_cache import RowCache
from latticebpd.verification.tree_attention import TreeVerifier
from latticebpd.verification.tree_positions import ByEmbedding, ByPositionIds, ByRelativeBias, PositionScheme, layers_of
from latticebpd.verification.verifier import Verifier

Kind: TypeAlias = Callable[[PreTrainedModel], PositionScheme]
LONG = 256
"""The widest sliding window that the trial's texts exceed."""


def verifier_for(
    model: Model, source: EncodedSource | None = None, use_cache: bool = True, layers: Sequence[int] = ()
) -> Verifier:
    """The fastest verifier that is correct for the model; ValueError if it takes no tree masks or is not causal.

    source: of an encoder–decoder.  use_cache: False reads every text from the beginning at every call.
    layers: those whose states are kept, from 0.
    """
    stock = TransformersModel.of(model).model
    implementation = _attention(stock)
    got, remedy = f"{implementation!r}, which takes no tree mask", "load the model with attn_implementation='sdpa'"
    expect(implementation in {"sdpa", "eager"}, "SDPA or eager attention", got, remedy)
    if (objection := _objection(stock, implementation)) is not None:
        raise ValueError(
            f"expected a model that reads texts from left to right, got {stock.config.model_type}, {objection}; only"
            " its own generate() can decode with it"
        )
    placement = tree_placement(stock) if use_cache else None
    if placement is None:
        return RecomputingVerifier(stock, source, layers)
    return TreeVerifier(stock, placement, source, layers)


def tree_placement(model: PreTrainedModel) -> PositionScheme | None:
    """How tree attention passes positions to the model; None if it cannot."""
    implementation = _attention(model)
    kind = None if _objection(model, implementation) else _kind(model, implementation)
    return None if kind is None else kind(model)


def _attention(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_attn_implementation", "eager"))


@once_per_model
def _kind(model: PreTrainedModel, implementation: str) -> Kind | None:
    """The placement that agrees; none for a model that does more than attend, since only attention can forget."""
    base, kinds = TransformersModel.of(model), list[Kind]()
    if layers_of(model).only_attention and base.is_encoder_decoder:
        kinds = [ByRelativeBias, ByEmbedding]
    elif layers_of(model).only_attention and base.takes("position_ids"):
        kinds = [ByPositionIds]
    return next((kind for kind in kinds if _agrees(model, kind)), None)


def _agrees(model: PreTrainedModel, kind: Kind) -> bool:
    """Whether tree attention equals plain causal passes, on rows of different lengths and branching trees."""
    base = TransformersModel.of(model)
    middle = base.vocab_size // 2
    if middle < 2:
        return False
    a, b, c, d = range(middle - 2, middle + 2)
    texts = _random_texts(model, rows=3)
    prompts = [text[: len(text) // part].tolist() for text, part in zip(texts, (1, 2, len(texts[0])), strict=True)]
    branching = DraftTree(np.array([a, c, d, b]), np.array([-1, -1, 0, 1]))
    trees = [branching, DraftTree.from_paths([[b], [d]]), branching]
    source = EncodedSource.encode(base, texts, torch.ones_like(texts)) if base.is_encoder_decoder else None
    outputs = []
    try:
        for verifier in (TreeVerifier(model, kind(model), source), RecomputingVerifier(model, source)):
            states = [verifier.prefill(prompts).hidden.flatten(0, 1)]
            for next_tokens, paths in (([d, a, b], [[1, 3], [], [0]]), ([c, b, a], [[], [], []])):
                hidden = verifier.verify(next_tokens, trees).hidden
                states += [row[: len(tree) + 1] for row, tree in zip(hidden, trees, strict=True)]
                verifier.keep(paths)  # after the first call, the rows grow by two drafted tokens, none and one
            outputs.append(torch.cat(states))
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
    base, tokens = TransformersModel.of(model), _random_texts(model, rows=3)
    rows, length = tokens.shape
    tokens[0, length // 2] = (base.pad_id or 0) % base.vocab_size  # some models count positions by token id
    source = EncodedSource.encode(base, tokens, torch.ones_like(tokens)) if base.is_encoder_decoder else None
    forward, text, cut = Forward(base, source), base.text(tokens), max(1, length - 3)
    beginning, rest = (
        {name: value[:, part] for name, value in text.items()} for part in (slice(cut), slice(cut, None))
    )

    def logits(arguments: dict[str, Any], columns: int) -> torch.Tensor:
        read = forward.nodes(arguments).logits_of(np.repeat(range(rows), columns).tolist(), [*range(columns)] * rows)
        return read.view(rows, columns, -1)

    full = logits({**text, "use_cache": False}, length)
    if not _close(logits({**beginning, "use_cache": False}, cut), full[:, :cut]):
        return False
    if not base.takes(base.cache_argument) or not layers_of(model).only_attention:
        return True
    cache = RowCache(base.is_encoder_decoder).arguments(base.cache_argument)
    try:
        forward.nodes({**beginning, **cache})
        kept = logits({**rest, **cache}, length - cut)
    except Exception:  # the model does not accept such a cache, so it will get none
        return True
    return _close(kept, full[:, cut:])


def _random_texts(model: PreTrainedModel, rows: int) -> torch.Tensor:
    """``[rows, n]`` ids, always the same ones."""
    base, window = TransformersModel.of(model), layers_of(model).window or 0
    length = 12 if window > LONG else window + 12
    if base.max_positions is not None:  # the trial's trees take 8 more
        length = max(2, min(length, base.max_positions - 8))
    # From the middle, since special tokens are at the ends of vocabularies
    spread = max(1, base.vocab_size // 4)
    drawn = torch.randint(-spread, spread, (rows, length), generator=torch.Generator().manual_seed(0))
    return ((base.vocab_size // 2 + drawn) % base.vocab_size).to(base.device)


def _close(values: torch.Tensor, expected: torch.Tensor) -> bool:
    """Equal up to rounding."""
    tolerance = 0.1 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-3
    return bool((values - expected).float().abs().max() <= tolerance * expected.float().abs().max())
