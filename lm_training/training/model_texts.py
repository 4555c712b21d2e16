"""Texts as a model reads them."""

from __future__ import annotations

from dataclasses import dataclass

from latticebpd.lattices.texts import Texts
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.data.batching import require_vocabulary


@dataclass(frozen=True, eq=False)
class ModelTexts:
    """Texts as a model reads them.

    texts: what the decoder reads and continues; an encoder-decoder's begin with its start token.
    sources: what the encoder reads, one for each text; None for a causal LM.
    """

    texts: Texts
    sources: Texts | None

    @classmethod
    def of(cls, model: AnyModel, data: Texts, name: str) -> ModelTexts:
        """Prompts and continuations for a model; ValueError if its vocabulary or positions do not suffice."""
        target = target_model(model)
        read, checks = cls(data, None), []
        if isinstance(target, TransformersModel) and target.is_encoder_decoder:
            sources = data.prompts()
            read = cls(data.answers(target.start_id), sources)
            checks.append((sources, target.source_vocab_size, target.source_positions))
        checks.append((read.texts, target.vocab_size, target.max_positions))
        for part, ids, limit in checks:
            require_vocabulary(part, ids, name)
            longest = int(part.lengths.max(initial=0))
            if limit is not None and longest > limit:
                most = f"at most {limit} tokens (the model's positions)"
                raise ValueError(f"expected {name} sequences of {most}, got one of {longest}")
        return read
