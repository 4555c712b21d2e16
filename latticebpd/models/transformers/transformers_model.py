"""The target model on PyTorch: any causal LM or encoder–decoder of ``transformers``, on any device.

A ``TransformersModel`` answers what the rest of latticebpd needs to know about a stock model: whether it encodes a
source, how large its vocabulary is, what texts begin and end with, and how final hidden states become logits. No other
module reads configurations for that.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel

from latticebpd.checks import expect
from latticebpd.lattices.values import check_layers, first_number
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.number_fields import token_ids
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.weight_kinds import TORCH

T = TypeVar("T")
Linear: TypeAlias = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""Input, weight and bias -> output, as ``F.linear``."""


def once_per_model(probe: Callable[..., T]) -> Callable[..., T]:
    """Cache a function of a model and further hashable arguments, for as long as the model lives and keeps its modules'
    ``forward`` and the hooks that would be bypassed."""
    known: weakref.WeakKeyDictionary[PreTrainedModel, dict[Any, T]] = weakref.WeakKeyDictionary()

    @functools.wraps(probe)
    def cached(model: PreTrainedModel, *arguments: Any) -> T:
        results = known.setdefault(model, {})
        key = frozenset(map(_forward, model.modules())), _bypassed(model), arguments
        if key not in results:
            results[key] = probe(model, *arguments)
        return results[key]

    return cached


def _forward(module: nn.Module) -> object:
    """What computes its outputs: its class, or a ``forward`` of its own."""
    own = vars(module).get("forward")
    return type(module) if own is None else weakref.ref(own)


def _bypassed(model: PreTrainedModel) -> frozenset[object]:
    """Hooks, by number, and ``forward`` functions of modules that `Forward` does not call: the model itself, and all
    that is not in its encoder, its decoder or its output embedding."""
    base = TransformersModel(model)
    parts = [base.decoder, model.get_output_embeddings(), *([base.encoder] if base.is_encoder_decoder else [])]
    modules = set(model.modules()).difference(*(part.modules() for part in parts if part is not None))
    hooks = {hook for each in modules for hook in (*each._forward_hooks, *each._forward_pre_hooks)}
    return frozenset(hooks | {_forward(each) for each in modules if "forward" in vars(each)})


@dataclass(frozen=True, eq=False)
class Projection:
    """From final hidden states to logits: ``embedding(scale * hidden) + bias``.

    scale: 1, except for models of T5's family with tied embeddings.
    bias: ``[vocab]``, of encoder–decoders such as BART and Marian.
    """

    embedding: nn.Module
    scale: float = 1.0
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., vocab]``, computed and returned in the embedding's type."""
        weight: Any = self.embedding.weight  # of quantized layers a function, or integers
        if isinstance(weight, Tensor) and weight.is_floating_point():
            hidden = hidden.to(weight.dtype)
        return self.biased(self.embedding(hidden if self.scale == 1.0 else hidden * self.scale))

    def biased(self, logits: Tensor) -> Tensor:
        """The bias added to logits, ``[..., vocab]``, computed elsewhere."""
        return logits if self.bias is None else logits + self.bias

    def over(self, tokens: Tensor | slice, linear: Linear | None = None) -> Projection:
        """The projection onto some tokens, ``[n]`` ids: logits are ``[..., n]``, in their order.

        linear: computes the product, by default as for all tokens.
        """
        rows = _Rows(self.embedding, tokens, linear)
        return Projection(rows, self.scale, None if self.bias is None else self.bias[rows.tokens])

    @property
    def linear(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight ``[vocab, hidden]`` and bias ``[vocab]``, if logits are exactly their product with hidden states."""
        weight: Any = getattr(self.embedding, "weight", None)
        bias: Any = getattr(self.embedding, "bias", None)
        return (weight, bias) if isinstance(weight, Tensor) and self.scale == 1.0 and self.bias is None else None


class _Rows(nn.Module):
    """Some rows of an output embedding."""

    def __init__(self, embedding: nn.Module, tokens: Tensor | slice, linear: Linear | None) -> None:
        super().__init__()
        weight: Any = embedding.weight
        bias: Any = getattr(embedding, "bias", None)
        self.tokens = tokens.to(weight.device) if isinstance(tokens, Tensor) else tokens
        self.weight, self.bias = weight[self.tokens], None if bias is None else bias[self.tokens]
        self.linear = linear or F.linear

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden, self.weight, self.bias)


def rope_kinds(config: Any) -> list[dict[str, Any]]:
    """What a configuration says of rotary positions: as a whole, and for each kind of layers."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [rope, *(each for each in rope.values() if isinstance(each, dict))]


class ModelWrapper(Protocol):
    """A module around a stock model: ``BlockwiseLM`` and ``NonAutoregressiveModel``."""

    base: PreTrainedModel


Model: TypeAlias = "TransformersModel | ModelWrapper | PreTrainedModel"


class TransformersModel:
    """A stock causal LM or encoder–decoder, ``model`` as ``transformers`` has it; see `TargetModel`."""

    weights = TORCH

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model

    @classmethod
    def of(cls, model: object) -> TransformersModel:
        """The adapter of a stock model, or of the one inside a module around it; ValueError for anything else, also for
        a model on the engine."""
        if isinstance(model, TransformersModel):
            return model
        stock = model if isinstance(model, PreTrainedModel) else getattr(model, "base", model)
        if not isinstance(stock, nn.Module) or not hasattr(stock, "config"):
            on_engine = "; load it with weights='torch'" if isinstance(model, EngineModel) else ""
            got = f"{type(model).__name__}{on_engine}"
            raise ValueError(f"expected a model of transformers or a BlockwiseLM, got {got}")
        return cls(stock)  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        """The configuration of the part that reads and writes texts, also of multimodal models."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        return torch.device(self.model.device)

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def is_encoder_decoder(self) -> bool:
        return bool(self.model.config.is_encoder_decoder)

    @property
    def decoder(self) -> Any:
        """The module that reads the text and returns final hidden states."""
        if self.is_encoder_decoder:
            return self.model.get_decoder()
        own = self.model.base_model
        return own if own is not self.model else getattr(own, "model", own)  # Llama 4's base_model_prefix is wrong

    @property
    def encoder(self) -> Any:
        """The module that reads an encoder–decoder's source."""
        return self.model.get_encoder()

    @property
    def vocab_size(self) -> int:
        """Tokens that it writes; an encoder may read others."""
        return len(self.model.get_output_embeddings().weight) if self.is_encoder_decoder else self.config.vocab_size

    @property
    def source_vocab_size(self) -> int:
        """Tokens that it reads as a prompt or source."""
        embeddings = self.model.get_input_embeddings() if self.is_encoder_decoder else None
        return int(self.config.vocab_size if embeddings is None else embeddings.num_embeddings)

    @property
    def max_positions(self) -> int | None:
        """The longest text that it can read; None for no limit."""
        limit = getattr(self.config, "max_position_embeddings", None) or _position_table(self.decoder)
        return int(limit) if limit and limit > 0 else None

    @property
    def source_positions(self) -> int | None:
        """The longest source that it can encode; None for no limit."""
        return _position_table(self.encoder)

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def num_layers(self) -> int:
        """Layers, of an encoder–decoder those of the decoder."""
        names = ["num_decoder_layers", "decoder_layers"] if self.is_encoder_decoder else []
        return first_number(self.config, *names, "num_hidden_layers") or 0

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    def check_layers(self, layers: Sequence[int]) -> None:
        check_layers(layers, self.num_layers)

    @property
    def generation(self) -> dict[str, Any]:
        """The fields of its generation config that are set."""
        config = getattr(self.model, "generation_config", None) or GenerationConfig.from_model_config(self.model.config)
        return {name: value for name, value in config.to_diff_dict().items() if value is not None}

    @property
    def fingerprint(self) -> str:
        return weights_fingerprint(self.model)

    def array(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values)

    def _special(self, name: str) -> Any:
        generation = getattr(self.model, "generation_config", None)
        return getattr(self.model.config if generation is None else generation, name, None)

    @property
    def start_id(self) -> int:
        """The token that an encoder–decoder's text begins with; ValueError unless the generation config has one."""
        for name in ("decoder_start_token_id", "bos_token_id"):
            token = self._special(name)
            if isinstance(token, int):
                return token
            expect(token is None, f"one {name} in the generation config", token, "set one for all rows")
        raise ValueError("expected a model whose generation config has a decoder_start_token_id, got none; set it")

    @property
    def pad_id(self) -> int | None:
        """The padding token, if it has one."""
        return next(iter(token_ids("pad_token_id", self._special("pad_token_id"))), None)

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end its text, in its own order; none for some models."""
        return token_ids("eos_token_id", self._special("eos_token_id"))

    def text(self, tokens: Tensor) -> dict[str, Tensor]:
        """The decoder's arguments for texts, ``[rows, n]``: positions from 0, as in ``generate()``."""
        if not self.is_encoder_decoder and self.takes("position_ids"):
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            return {"input_ids": tokens, "position_ids": positions}
        table: Any = getattr(self.decoder, "embed_positions", None)
        if not hasattr(table, "create_position_ids_from_inputs_embeds") or not (tokens == table.padding_idx).any():
            return {"input_ids": tokens}
        # M2M-100 does not count padding tokens, which have no position; read one by one, later tokens do count them
        words = self.decoder.embed_tokens(tokens)
        return {"inputs_embeds": words - (tokens == table.padding_idx)[..., None] * table(None, words)}

    def padded_text(self, texts: list[list[int]]) -> dict[str, Tensor]:
        """The same for texts of several lengths, padded on the right, where causal attention does not see it."""
        width = max(map(len, texts))
        rows = [[*text, *[text[-1]] * (width - len(text))] for text in texts]
        return self.text(torch.tensor(rows, device=self.device))

    def check_sources(self, longest: int) -> None:
        """ValueError for sources of more columns, padding included, than the encoder has positions."""
        limit = self.source_positions
        wanted = f"sources of at most {limit} tokens (the encoder's positions)"
        expect(limit is None or longest <= limit, wanted, longest, "cut them")

    def check_rope_limit(self, shortest: int, longest: int) -> None:
        """ValueError for texts that grow across the length above which the rotary factors of all positions change
        (LongRoPE, as in Phi-3): a later pass would need new ones.

        shortest: the fewest tokens that a pass reads a text with.  longest: the most that a text may have.
        """
        longer = [each for each in rope_kinds(self.config) if each.get("rope_type", each.get("type")) == "longrope"]
        if not longer:
            return
        own = getattr(self.config, "original_max_position_embeddings", None)
        boundary = own or longer[0].get("original_max_position_embeddings") or self.max_positions
        if boundary is not None and shortest <= boundary < longest:
            raise ValueError(
                f"expected texts of at most {boundary} tokens, or prompts of {boundary + 2} or more "
                f"({self.model.config.model_type}'s LongRoPE reads longer texts with other factors), "
                f"got texts of {shortest + 1} to {longest}; decode up to {boundary} tokens, then go on from there"
            )

    @property
    def cache_argument(self) -> str:
        """The name of the model's argument for keys and values."""
        return cache_argument(type(self.model).forward)

    def takes(self, argument: str) -> bool:
        """Whether the model's ``forward`` has an argument of this name."""
        return argument in inspect.signature(self.model.forward).parameters

    @property
    def projection(self) -> Projection:
        """From final hidden states, or a head's states, to logits, before a decoder-only model caps them, say."""
        return self.scaled(_probed_projection(self.model, self.dtype)[0] if self.is_encoder_decoder else 1.0)

    @property
    def exact_projection(self) -> Projection | None:
        """The projection, if the model's own logits are exactly that, bit for bit, else None."""
        return self.projection if _probed_projection(self.model, self.dtype)[1] else None

    def scaled(self, scale: float) -> Projection:
        """The projection of a known scale."""
        bias = getattr(self.model, "final_logits_bias", None)
        return Projection(self.model.get_output_embeddings(), scale, None if bias is None else bias.view(-1))


@functools.cache
def cache_argument(forward: Callable[..., Any]) -> str:
    """The name of a ``forward``'s argument for keys and values: ``cache`` from ``transformers`` 5.24 on."""
    return "cache" if "cache" in inspect.signature(forward).parameters else "past_key_values"


@once_per_model
@torch.no_grad()
def _probed_projection(model: PreTrainedModel, dtype: torch.dtype) -> tuple[float, bool]:
    """Scale of the projection, and whether it is exact: in T5's family they depend on configuration and version.

    It is not where what would change the logits is not called.
    """
    base = TransformersModel(model)
    vocabulary = min(base.vocab_size, base.source_vocab_size)
    tokens = torch.arange(0, vocabulary, max(1, vocabulary // 8), device=base.device)[None, :8]
    training = model.training
    model.eval()  # dropout would make any two passes differ
    if base.is_encoder_decoder:
        encoded = base.encoder(input_ids=tokens).last_hidden_state
        logits = base.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
        read = base.decoder(input_ids=tokens, encoder_hidden_states=encoded, use_cache=False)
    else:
        logits = base.model(input_ids=tokens, use_cache=False).logits
        read = base.decoder(input_ids=tokens, use_cache=False)
    model.train(training)
    hidden = getattr(read, "last_hidden_state", None)
    if hidden is None:  # the model is not a part that returns states and an output embedding
        return 1.0, False
    scales = (1.0, float(hidden.shape[-1]) ** -0.5)[: 1 + base.is_encoder_decoder]
    try:
        computed = [base.scaled(scale)(hidden) for scale in scales]
    except RuntimeError:  # the output embedding does not follow these states directly
        return 1.0, False
    gaps = [float((each - logits).abs().max()) if each.shape == logits.shape else float("inf") for each in computed]
    best = gaps.index(min(gaps))
    return scales[best], not _bypassed(model) and gaps[best] == 0 and computed[best].dtype == logits.dtype


def _position_table(part: Any) -> int | None:
    """How many positions an encoder or decoder has embeddings for; None if it uses none."""
    table = getattr(part, "embed_positions", None)
    return table.num_embeddings - getattr(table, "offset", 0) if isinstance(table, nn.Embedding) else None
