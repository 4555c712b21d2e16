"""What a stock model is: the one adapter of the causal LMs and encoder–decoders of ``transformers``.

A ``BaseModel`` answers what the rest of latticebpd has to know of a model: whether it encodes a source, how many tokens
it knows, what texts begin and end with, and how final hidden states become logits. Nobody else reads configurations for
that.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

Linear: TypeAlias = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""Product of an input with a weight, and what is added to it, as ``F.linear``."""


@dataclass(frozen=True, eq=False)
class Projection:
    """How a base model turns a final hidden state into logits: ``embedding(scale * hidden) + bias``.

    embedding: the model's output embedding.
    scale: 1, but for those of T5's family that tie their embeddings.
    bias: ``[vocab]``, of encoder–decoders such as BART and Marian.
    """

    embedding: nn.Module
    scale: float = 1.0
    bias: Tensor | None = None

    def __call__(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[..., vocab]``, computed and returned in the embedding's type."""
        hidden = hidden.to(self.embedding.weight.dtype)  # type: ignore[arg-type]
        logits: Tensor = self.embedding(hidden if self.scale == 1.0 else hidden * self.scale)
        return self.biased(logits)

    def best(self, hidden: Tensor) -> Tensor:
        """``[..., hidden]`` -> ``[...]`` the token of the highest logit, of equal ones the lowest."""
        argmax: Callable[[Tensor], Tensor] | None = getattr(self.embedding, "argmax", None)
        if argmax is None or self.bias is not None:
            return self(hidden).argmax(dim=-1)
        return argmax(hidden if self.scale == 1.0 else hidden * self.scale)

    def biased(self, logits: Tensor) -> Tensor:
        """The bias added to logits, ``[..., vocab]``, that come from elsewhere."""
        return logits if self.bias is None else logits + self.bias

    def over(self, tokens: Tensor | slice, linear: Linear | None = None) -> Projection:
        """The same onto some of the tokens alone, ``[n]`` ids: logits are ``[..., n]``, in their order.

        linear: computes the product, in place of the way in which all tokens' is.
        """
        rows = _Rows(self.embedding, tokens, linear)
        return Projection(rows, self.scale, None if self.bias is None else self.bias[rows.tokens])

    @property
    def has_cpu_kernels(self) -> bool:
        """Whether CPU kernels compute it: a few rows cost hardly more than one, and results are batch-invariant."""
        return hasattr(self.embedding, "packed")

    @property
    def linear(self) -> tuple[Tensor, Tensor | None] | None:
        """Weight ``[vocab, hidden]`` and bias ``[vocab]``, where logits are nothing but their product with the hidden
        state."""
        weight: Any = getattr(self.embedding, "weight", None)
        bias: Any = getattr(self.embedding, "bias", None)
        return (weight, bias) if isinstance(weight, Tensor) and self.scale == 1.0 and self.bias is None else None


class _Rows(nn.Module):
    """Some rows of an output embedding."""

    def __init__(self, embedding: nn.Module, tokens: Tensor | slice, linear: Linear | None) -> None:
        super().__init__()
        weight: Any = embedding.weight
        bias: Any = getattr(embedding, "bias", None)
        packed: Any = getattr(embedding, "packed", None)  # with CPU kernels
        self.tokens = tokens.to(weight.device) if isinstance(tokens, Tensor) else tokens
        self.weight, self.bias = weight[self.tokens], None if bias is None else bias[self.tokens]
        self.linear = linear or (F.linear if packed is None else type(packed)())

    def forward(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.linear(hidden, self.weight, self.bias)
        return logits


class HoldsBase(Protocol):
    """A module around a stock model: ``BlockwiseLM`` and ``NonAutoregressiveModel``."""

    base: PreTrainedModel


Model: TypeAlias = "BaseModel | HoldsBase | PreTrainedModel"


@dataclass(frozen=True)
class _Output:
    """What reading a few tokens has told of a model in one type: its projection's scale, and whether logits are just
    that projection."""

    scale: float
    exact: bool
    dtype: torch.dtype


_outputs: weakref.WeakKeyDictionary[PreTrainedModel, _Output] = weakref.WeakKeyDictionary()


class BaseModel:
    """A stock causal LM or encoder–decoder.

    Args:
        model: the model as ``transformers`` has it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model: Any = model

    @classmethod
    def of(cls, model: Model) -> BaseModel:
        """The adapter of a stock model, or of the one inside a module that is built around one.

        Raises:
            ValueError: it is neither.
        """
        if isinstance(model, BaseModel):
            return model
        stock = model if isinstance(model, PreTrainedModel) else getattr(model, "base", model)
        if not isinstance(stock, nn.Module) or not hasattr(stock, "config"):
            raise ValueError(f"expected a model of transformers or a BlockwiseLM, got {type(model).__name__}")
        return cls(stock)  # type: ignore[arg-type]

    @property
    def config(self) -> Any:
        """The configuration of what reads and writes texts, which in models of several kinds of input is a part of the
        whole."""
        return self.model.config.get_text_config()

    @property
    def device(self) -> torch.device:
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def is_encoder_decoder(self) -> bool:
        """Whether it is an encoder–decoder."""
        return bool(self.model.config.is_encoder_decoder)

    @property
    def decoder(self) -> Any:
        """The module that reads the text and gives final hidden states."""
        if self.is_encoder_decoder:
            return self.model.get_decoder()
        own = self.model.base_model
        return own if own is not self.model else getattr(own, "model", own)  # Llama 4 calls it otherwise than it says

    @property
    def encoder(self) -> Any:
        """The module that reads an encoder–decoder's source."""
        return self.model.get_encoder()

    @property
    def vocab_size(self) -> int:
        """Tokens that it writes; those that an encoder reads may be others."""
        return (
            len(self.model.get_output_embeddings().weight) if self.is_encoder_decoder else int(self.config.vocab_size)
        )

    @property
    def source_vocab_size(self) -> int:
        """Tokens that it reads as a prompt or, if it encodes, as a source."""
        return int(
            self.model.get_input_embeddings().num_embeddings if self.is_encoder_decoder else self.config.vocab_size
        )

    @property
    def max_positions(self) -> int | None:
        """The longest text that it can read; None where there is no limit."""
        limit = getattr(self.config, "max_position_embeddings", None) or _table(self.decoder)
        return int(limit) if limit and limit > 0 else None

    @property
    def source_positions(self) -> int | None:
        """The longest source that it can encode; None where there is no limit."""
        return _table(self.encoder)

    @property
    def rope_boundary(self) -> int | None:
        """The length beyond which all of a text is read with other rotary factors (LongRoPE, as in Phi-3); None for
        most models."""
        rope = getattr(self.config, "rope_parameters", None) or getattr(self.config, "rope_scaling", None) or {}
        kinds = [rope, *(each for each in rope.values() if isinstance(each, dict))]
        longer = [each for each in kinds if each.get("rope_type", each.get("type")) == "longrope"]
        if not longer:
            return None
        own = getattr(self.config, "original_max_position_embeddings", None)
        return own or longer[0].get("original_max_position_embeddings") or self.max_positions

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def _generation(self) -> Any:
        return (
            self.model.generation_config
            if getattr(self.model, "generation_config", None) is not None
            else self.model.config
        )

    @property
    def start_id(self) -> int:
        """The token that an encoder–decoder's text begins with.

        Raises:
            ValueError: its generation config names none, or one for each row of a batch.
        """
        for name in ("decoder_start_token_id", "bos_token_id"):
            token = getattr(self._generation, name, None)
            if isinstance(token, int):
                return token
            if token is not None:
                raise ValueError(
                    f"expected one {name} in the generation config, got {token}; a decode alone takes one for each row"
                )
        raise ValueError("expected a model whose generation config has a decoder_start_token_id, got none; set it")

    @property
    def pad_id(self) -> int | None:
        """The padding token, if it has one."""
        token = getattr(self._generation, "pad_token_id", None)
        return None if token is None else int(token)

    @property
    def eos_ids(self) -> list[int]:
        """The tokens that end its text, in its own order; none for some models."""
        chosen = getattr(self._generation, "eos_token_id", None)
        if chosen is None:
            return []
        return [chosen] if isinstance(chosen, int) else list(chosen)

    def text(self, tokens: Tensor) -> dict[str, Tensor]:
        """The decoder's arguments for texts, ``[rows, n]``, read from their beginning: positions count from 0, as in
        ``generate()``.

        Some models (RoBERTa's family) count otherwise where none are given.
        """
        if self.is_encoder_decoder or not self.takes("position_ids"):
            return {"input_ids": tokens}
        return {
            "input_ids": tokens,
            "position_ids": torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens),
        }

    def check_sources(self, longest: int) -> None:
        """Refuse sources of more columns than the encoder has positions, padding included, since an encoder counts that
        as well.

        Raises:
            ValueError: it would die on them.
        """
        if self.source_positions is not None and longest > self.source_positions:
            raise ValueError(
                f"expected sources of at most {self.source_positions} tokens (the encoder's positions), got {longest};"
                " cut them"
            )

    def check_rope_limit(self, shortest: int, longest: int) -> None:
        """Refuse texts that grow over the ``rope_boundary``, or lie on both sides of it.

        Args:
            shortest: the fewest tokens that a pass reads a text with; longest: the most that a text may have.

        Raises:
            ValueError: a later pass would have to read such a text anew, with other factors.
        """
        boundary = self.rope_boundary
        if boundary is not None and shortest <= boundary < longest:
            raise ValueError(
                f"expected texts of at most {boundary} tokens, or prompts of {boundary + 2} or more "
                f"({self.model.config.model_type}'s LongRoPE reads longer texts with other factors), "
                f"got texts of {shortest + 1} to {longest}; decode up to {boundary} tokens, then go on from there"
            )

    def takes(self, argument: str) -> bool:
        """Whether the whole model's ``forward`` has an argument of this name."""
        return argument in inspect.signature(self.model.forward).parameters

    @property
    def projection(self) -> Projection:
        """From final hidden states, or a head's states, to logits.

        What decoder-only models do behind their output embedding (cap logits, say) is left out: it changes no order of
        tokens.
        """
        return self.scaled(self._output().scale if self.is_encoder_decoder else 1.0)

    @property
    def exact_projection(self) -> Projection | None:
        """The projection, where the model's own logits are just that, bit for bit; None where it does something else to
        them."""
        return self.projection if self._output().exact else None

    def scaled(self, scale: float) -> Projection:
        """The projection, where its scale is known."""
        bias = getattr(self.model, "final_logits_bias", None)
        return Projection(self.model.get_output_embeddings(), scale, None if bias is None else bias.view(-1))

    def _output(self) -> _Output:
        """Found out once for every model and type: in T5's family it depends on model, configuration and version."""
        known = _outputs.get(self.model)
        if known is None or known.dtype != self.dtype:
            known = _outputs[self.model] = self._probe_projection()
        return known

    @torch.no_grad()
    def _probe_projection(self) -> _Output:
        vocabulary = min(self.vocab_size, self.source_vocab_size)
        tokens = torch.arange(vocabulary, device=self.device)[:: max(1, vocabulary // 8)][
            None, :8
        ]  # one may have a state of zeros
        training = self.model.training
        self.model.eval()  # dropout would make any two passes differ
        if self.is_encoder_decoder:
            encoded = self.encoder(input_ids=tokens).last_hidden_state
            logits = self.model(input_ids=tokens, decoder_input_ids=tokens, use_cache=False).logits
            read = self.decoder(input_ids=tokens, encoder_hidden_states=encoded, use_cache=False)
        else:
            logits = self.model(input_ids=tokens, use_cache=False).logits
            read = self.decoder(input_ids=tokens, use_cache=False)
        self.model.train(training)
        hidden = getattr(read, "last_hidden_state", None)
        if hidden is None:  # the model is not made of a part that gives states and an output embedding
            return _Output(1.0, False, self.dtype)
        known = [
            _Output(scale, False, self.dtype)
            for scale in (1.0, float(hidden.shape[-1]) ** -0.5)[: 1 + self.is_encoder_decoder]
        ]
        try:
            made = [self.scaled(each.scale)(hidden) for each in known]
        except RuntimeError:  # the output embedding is not the next thing behind these states
            return known[0]
        gaps = [float((each - logits).abs().max()) if each.shape == logits.shape else float("inf") for each in made]
        best = gaps.index(min(gaps))
        return replace(known[best], exact=gaps[best] == 0 and made[best].dtype == logits.dtype)


def _table(part: Any) -> int | None:
    """How many positions an encoder or decoder has an embedding for; None where it needs none."""
    table = getattr(part, "embed_positions", None)
    return table.num_embeddings - getattr(table, "offset", 0) if isinstance(table, nn.Embedding) else None
