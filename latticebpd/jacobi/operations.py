"""Floating-point operations of a decode, from the model's shape: the cost that Santilli 2023 (table 3) divides by speed.

Counted are multiplications and additions of matrix products, one operation each: 2 for every weight and token, and 4
for every query, key and attention width. Norms, activations and embeddings are left out, as in the paper's calculator.
Cross-attention costs its keys and values once for each source token, the products once for each token that the decoder
reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from latticebpd.target.stock_model import BaseModel

CROSS_KEYS_AND_VALUES = ("encoder_attn.k_proj", "encoder_attn.v_proj", "EncDecAttention.k", "EncDecAttention.v")


@dataclass(frozen=True)
class ModelFlops:
    """Numbers of weights by their inputs, and the sizes of attention; without an encoder those of encoder, source and
    cross-attention are 0.

    encoder_weights: of the encoder's matrices.
    source_weights: of the decoder's matrices that read the source.
    decoder_weights: of its other matrices.
    output_weights: of the projection to the vocabulary.
    encoder_attention, decoder_attention, cross_attention: layers times width.
    """

    encoder_weights: int
    source_weights: int
    decoder_weights: int
    output_weights: int
    encoder_attention: int
    decoder_attention: int
    cross_attention: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelFlops:
        """From the modules of a causal LM or an encoder-decoder."""
        base = BaseModel.of(model)
        both = base.is_encoder_decoder
        # The text config of an encoder-decoder has one side only, under common names.
        config: Any = model.config if both else base.config
        encoder = _weights(base.encoder) if both else {}
        decoder = _weights(base.decoder)
        source = sum(count for name, count in decoder.items() if name.endswith(CROSS_KEYS_AND_VALUES))
        heads = _first(config, "decoder_attention_heads", "num_attention_heads")
        width = heads * (_first(config, "head_dim", "d_kv") or config.hidden_size // heads)
        layers = _first(config, "decoder_layers", "num_decoder_layers", "num_hidden_layers")
        encoder_layers = _first(config, "encoder_layers", "num_hidden_layers") if both else 0
        output = model.get_output_embeddings()
        return cls(
            encoder_weights=sum(encoder.values()),
            source_weights=source,
            decoder_weights=sum(decoder.values()) - source,
            output_weights=int(output.weight.numel()),
            encoder_attention=encoder_layers * width,
            decoder_attention=layers * width,
            cross_attention=layers * width if both else 0,
        )

    def flops(self, source: int, columns: int, pairs: int, predicted: int) -> int:
        """Operations of decoding one text.

        Args:
            source: tokens that the encoder reads.
            columns: tokens that the decoder reads, over all passes.
            pairs: keys that those tokens attend to in self-attention, summed over tokens.
            predicted: tokens whose states are projected to the vocabulary.
        """
        weights = (self.encoder_weights + self.source_weights) * source
        weights += self.decoder_weights * columns + self.output_weights * predicted
        attention = self.encoder_attention * source**2 + self.cross_attention * columns * source
        return 2 * weights + 4 * (attention + self.decoder_attention * pairs)

    def greedy_flops(self, source: int, prompt: int, new: int) -> int:
        """Operations of greedy decoding with a cache: ``prompt`` tokens in one pass, then ``new`` one by one."""
        pairs = prompt**2 + sum(prompt + i for i in range(1, new))
        return self.flops(source, prompt + new - 1, pairs, new)


def _first(config: Any, *names: str) -> int:
    """The config's value under the first of the names that it has; 0 without any."""
    return next((int(value) for name in names if (value := getattr(config, name, None)) is not None), 0)


def _weights(module: nn.Module) -> dict[str, int]:
    return {name: each.weight.numel() for name, each in module.named_modules() if isinstance(each, nn.Linear | Conv1D)}
