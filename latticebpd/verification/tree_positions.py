"""How the positions of drafted tokens are passed to a model.

A drafted node's position is given by its depth, not by its column in the pass. Models have three kinds of positions:

- ``ByPositionIds``: the model takes ``position_ids`` (rotary and learned positions: Llama, GPT-2, OPT, ...).
- ``ByEmbedding``: the decoder adds an embedding of the index in the cache (BART, Marian, ...). The input embeddings
  are passed instead of the tokens, with the right position's embedding added and that of the index subtracted.
- ``ByRelativeBias``: the first layer derives a bias from the distance in the cache (T5). The additive attention mask
  carries the bias of the true distance less that of the distance in the cache.

The two corrections cancel up to rounding. `latticebpd.verification.verifier_choice` tries which kind fits a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from latticebpd.models.transformers.transformers_model import once_per_model


class PositionScheme(Protocol):
    """Makes the decoder's arguments for one pass.

    max_keys: the limit of the cache's positions and a pass's columns together, drafts included; None for no limit.
    """

    max_keys: int | None = None

    def arguments(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> dict[str, Any]:
        """Arguments that give column ``j`` of a row its position and attention to exactly the visible keys.

        tokens: ``[rows, columns]`` ids; they follow ``cached`` keys of the cache.
        positions: ``[rows, columns]`` in the text.
        visible: ``[rows, columns, cached + columns]`` bool. A row's cache holds its text from index 0 on.
        """


class ByPositionIds(PositionScheme):
    """Positions are an argument.

    Layers with a sliding window get a mask of their own, in which no key is ``window`` or more positions away.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.dtype, self.layers = model.dtype, layers_of(model)

    def arguments(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> dict[str, Any]:
        mask: Any = additive(visible, self.dtype)
        if (window := self.layers.window) is not None:
            near = positions[:, :, None] - key_positions(positions, visible.shape[2])[:, None, :] < window
            windowed = additive(visible & near, self.dtype)
            mask = {"full_attention": mask, "sliding_attention": windowed} if self.layers.some_full else windowed
        return {"input_ids": tokens, "position_ids": positions, "attention_mask": mask}


@once_per_model
def inputs_embeds_scale(model: PreTrainedModel) -> float:
    """The factor that a decoder applies to given embeddings, from a trial.

    `transformers` 5 scales those given to Marian like its own; other versions and models do not.
    """
    decoder: Any = model.get_decoder()
    scale = float(getattr(decoder, "embed_scale", 1.0))
    if scale == 1.0:
        return scale
    training = decoder.training
    decoder.eval()  # dropout would make any two passes differ
    with torch.inference_mode():
        token = decoder.embed_tokens.weight.norm(dim=1).argmax().view(1, 1)  # padding's embedding may be zero
        from_embeddings = decoder(inputs_embeds=decoder.embed_tokens(token), use_cache=False).last_hidden_state
        own = decoder(input_ids=token, use_cache=False).last_hidden_state
    decoder.train(training)
    return scale if torch.equal(from_embeddings, own) else 1.0


class ByEmbedding(PositionScheme):
    """Positions are added to the input embeddings."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.decoder: Any = model.get_decoder()
        self.dtype = model.dtype
        self.scale, self.inputs_embeds_scale = getattr(self.decoder, "embed_scale", 1.0), inputs_embeds_scale(model)
        self.max_keys = int(model.config.max_position_embeddings)

    def arguments(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> dict[str, Any]:
        indices = torch.arange(visible.shape[2], device=tokens.device)[visible.shape[2] - tokens.shape[1] :]
        words = self.decoder.embed_tokens(tokens) * self.scale
        moved = self._embedded(tokens, positions.reshape(-1)).view_as(words) - self._embedded(tokens[:1], indices)
        return {
            "inputs_embeds": (words + moved) / self.inputs_embeds_scale,
            "attention_mask": additive(visible, self.dtype),
        }

    def _embedded(self, tokens: Tensor, positions: Tensor) -> Tensor:
        return self.decoder.embed_positions(tokens, position_ids=positions).reshape(len(positions), -1)


class ByRelativeBias(PositionScheme):
    """Positions are a bias of the first decoder layer, which all layers share, by distance."""

    def __init__(self, model: PreTrainedModel) -> None:
        attention: Any = model.get_decoder().block[0].layer[0].SelfAttention
        self.dtype = model.dtype
        self.farthest = int(attention.relative_attention_max_distance)
        with torch.inference_mode():
            # The last query's row runs from the farthest key to itself; beyond that distance the bias is constant.
            last = attention.compute_bias(self.farthest + 1, self.farthest + 1)[0, :, -1]
        self.bias: Tensor = last.flip(-1)  # [attention heads, farthest + 1], by distance

    def arguments(self, tokens: Tensor, positions: Tensor, visible: Tensor) -> dict[str, Any]:
        keys = visible.shape[2]
        indices = torch.arange(keys, device=tokens.device)
        true = positions[:, :, None] - key_positions(positions, keys)[:, None, :]
        in_cache = (indices[keys - tokens.shape[1] :, None] - indices[None, :])[None]
        correction = self._by_distance(true) - self._by_distance(in_cache)
        mask = correction.masked_fill(~visible[:, None], torch.finfo(self.dtype).min)
        return {"input_ids": tokens, "attention_mask": mask}

    def _by_distance(self, distances: Tensor) -> Tensor:
        """``[rows, columns, keys]`` -> ``[rows, attention heads, columns, keys]``."""
        return self.bias[:, distances.clamp(0, self.farthest)].transpose(0, 1)


def key_positions(positions: Tensor, keys: int) -> Tensor:
    """``[rows, columns]`` positions of a pass -> ``[rows, keys]``: those of the cache's keys, then the pass's own."""
    rows, columns = positions.shape
    return torch.cat([torch.arange(keys - columns, device=positions.device).expand(rows, -1), positions], dim=1)


@dataclass(frozen=True)
class Layers:
    """What a model's decoder layers attend to.

    window: how many positions sliding layers see, their own included; None if no layer slides.
    only_attention: whether there are no layers of any other kind (recurrent, chunked, with a window of their own).
    """

    window: int | None
    some_full: bool
    only_attention: bool


def layers_of(model: PreTrainedModel) -> Layers:
    """From the cache that ``transformers`` makes for the model, and its config."""
    layers: list[Any] = DynamicCache(config=model.config).layers
    windows = [int(layer.sliding_window) if getattr(layer, "is_sliding", False) else None for layer in layers]
    sliding = {window for window in windows if window is not None}
    config = model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or [])
    sizes = [size for name, size in vars(config).items() if name.endswith(("window", "window_size", "window_len"))]
    named = {size for size in sizes if isinstance(size, int) and size > 0}
    # A window that no cache and no `layer_types` declares is applied by the layers themselves, as GPT-Neo's are, by
    # index in the cache. Those of an encoder–decoder are the encoder's.
    declared = bool(kinds) or config.is_encoder_decoder or named <= sliding
    attention = kinds <= {"full_attention", "sliding_attention"} and all(hasattr(layer, "keys") for layer in layers)
    only = attention and declared and len(sliding) <= 1
    return Layers(max(sliding, default=None), not sliding or None in windows, only)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """``[rows, columns, keys]`` bool -> ``[rows, 1, columns, keys]``: 0 for visible keys, else the type's minimum."""
    mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min)[:, None]
