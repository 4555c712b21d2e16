"""Shapes of new models: fields of the same names for all families, translated into configs of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar


def size(arguments: str, default: Any = MISSING) -> Any:
    """A field of a shape.  arguments: of the model's config that take its value, separated by spaces."""
    return field(default=default, metadata={"arguments": arguments.split()})


@dataclass(frozen=True)
class NewModelShape:
    """Sizes of a stock model to initialise.

    model_class: of ``transformers``.  constants: further arguments of its config.
    """

    model_class: ClassVar[str]
    constants: ClassVar[Mapping[str, Any]]

    def new_model(self, **tokens: int | None) -> Any:
        """A freshly initialised model; ``tokens`` are arguments of its config such as ``eos_token_id``."""
        import transformers

        kind = getattr(transformers, self.model_class)
        sizes = {name: getattr(self, each.name) for each in fields(self) for name in each.metadata["arguments"]}
        return kind(kind.config_class(**sizes, **self.constants, **tokens))


@dataclass(frozen=True)
class BlockwiseShape(NewModelShape):
    """A decoder-only transformer in Llama's layout, with feed-forward block heads."""

    model_class = "LlamaForCausalLM"
    constants: ClassVar[Mapping[str, Any]] = {"tie_word_embeddings": True}

    vocab_size: int = size("vocab_size", 8192)
    hidden_size: int = size("hidden_size", 256)
    num_layers: int = size("num_hidden_layers", 4)
    attention_heads: int = size("num_attention_heads num_key_value_heads", 4)
    intermediate_size: int = size("intermediate_size", 704)
    num_heads: int = size("", 9)
    head_intermediate_size: int = size("", 160)
    max_positions: int = size("max_position_embeddings", 1024)


@dataclass(frozen=True)
class TranslationShape(NewModelShape):
    """A Marian encoder-decoder of one width, whose encoder, decoder and output share one embedding."""

    model_class = "MarianMTModel"
    constants: ClassVar[Mapping[str, Any]] = {
        "activation_function": "relu",
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": True,
        "tie_word_embeddings": True,
        "forced_eos_token_id": None,
    }

    hidden_size: int = size("d_model", 192)
    encoder_layers: int = size("encoder_layers", 3)
    decoder_layers: int = size("decoder_layers", 3)
    attention_heads: int = size("encoder_attention_heads decoder_attention_heads", 4)
    intermediate_size: int = size("encoder_ffn_dim decoder_ffn_dim", 768)
    max_positions: int = size("max_position_embeddings", 256)
    dropout: float = size("dropout", 0.1)


@dataclass(frozen=True)
class RescorerShape(NewModelShape):
    """A decoder-only transformer in GPT-2's layout, without dropout; input and output share the embedding."""

    model_class = "GPT2LMHeadModel"
    constants: ClassVar[Mapping[str, Any]] = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

    num_layers: int = size("n_layer")
    hidden_size: int = size("n_embd")
    intermediate_size: int = size("n_inner")
    attention_heads: int = size("n_head", 12)
    max_positions: int = size("n_positions", 2048)


TRANSLATORS = {"base": TranslationShape(), "small": TranslationShape(128, 2, 2, 2, 512)}
RESCORERS = {
    "tiny": RescorerShape(2, 128, 512, 4, 1024),
    "small": RescorerShape(4, 192, 768, 6, 1024),
    "32m": RescorerShape(2, 384, 1536),
    "61m": RescorerShape(12, 384, 1536),
    "94m": RescorerShape(6, 768, 3072),
}
"""The last three are Table 6's. The paper's counts are over a vocabulary of about 50,000 tokens; stock GPT-2 of these
shapes has 24, 41 and 83 million parameters over 50,257. ``tiny`` (0.5M parameters without embedding) and ``small`` (2M)
train on two processor cores."""
