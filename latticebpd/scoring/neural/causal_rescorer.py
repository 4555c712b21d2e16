"""What neural rescorers share: a model, the texts that it reads, and files.

On disk a rescorer is the directory that ``save_pretrained`` of the model writes, with its settings
(``latticebpd.scoring.weights``). The directory of any causal LM is accepted too, at weight 1.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from transformers import PreTrainedModel

from fst.files import PathLike
from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.console import load_tokenizer
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.models.transformers.checkpoints import load_base
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.neural.prefix_reader import reader_for
from latticebpd.scoring.ngram import RETRAIN, check_fingerprints
from latticebpd.scoring.scorer import Context
from latticebpd.scoring.weights import RescorerSettings

ROWS = 64
"""Lattices that are rescored together: enough to keep a processor busy, few enough for their caches in memory."""


class CausalRescorer:
    """Base of the neural rescorers, which add ``paths`` and ``trees`` of ``latticebpd.scoring.scorer.Scorer``.

    model: a decoder-only causal LM, put into evaluation mode; ValueError for an encoder-decoder.
    tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``); else only vocabulary sizes are compared.
    use_cache: False reads every text from its beginning for every slot: slow, the same result; for comparison.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        alpha: float = 1.0,
        *,
        tokenizer_fingerprint: str | None = None,
        use_cache: bool = True,
    ) -> None:
        self.base = TransformersModel.of(model)
        got = f"an encoder-decoder ({model.config.model_type})"
        expect(not self.base.is_encoder_decoder, "a decoder-only causal LM as rescorer", got)
        self.model = model.eval()
        self.settings = RescorerSettings(alpha, tokenizer_fingerprint)
        self.vocab_size = self.base.vocab_size
        self.reader = reader_for(model, use_cache)

    @property
    def alpha(self) -> float:
        """Its default weight."""
        return self.settings.alpha

    def with_alpha(self, alpha: float) -> Self:
        """The same model at another weight; its cached texts are shared."""
        rescorer = copy.copy(self)
        rescorer.settings = replace(self.settings, alpha=alpha)
        return rescorer

    @property
    def tokenizer_fingerprint(self) -> str | None:
        return self.settings.tokenizer_fingerprint

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, vocabulary_name: str) -> None:
        """Refuse to rescore for a model of another vocabulary; None is unknown."""
        check_fingerprints("a rescorer", self.tokenizer_fingerprint, fingerprint, vocabulary_name)
        known = fingerprint and self.tokenizer_fingerprint  # models of one family may pad one vocabulary differently
        wanted = f"a rescorer over {vocab_size} tokens (the vocabulary of {vocabulary_name})"
        expect(known or vocab_size in (None, self.vocab_size), wanted, f"one over {self.vocab_size}", RETRAIN)

    def save_pretrained(self, directory: PathLike) -> None:
        """Write the model and its settings."""
        self.model.save_pretrained(directory)
        self.settings.save(directory)

    @classmethod
    def from_pretrained(cls, directory: PathLike, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Self:
        """Read what ``save_pretrained`` wrote, or any causal LM's directory; kwargs: for ``transformers``."""
        file = Path(directory) / "tokenizer.json"
        if (settings := RescorerSettings.stored(directory)) is None:
            fingerprint = vocabulary_fingerprint(load_tokenizer(file).get_vocab()) if file.is_file() else None
            settings = RescorerSettings(tokenizer_fingerprint=fingerprint)
        rescorer = cls(load_base(directory, dtype, **kwargs))
        rescorer.settings = settings
        return rescorer

    def _groups(
        self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]
    ) -> Iterator[tuple[Sequence[SausageLattice], list[np.ndarray]]]:
        """At most ``ROWS`` lattices at a time, and the texts before them."""
        for begin in range(0, len(lattices), ROWS):
            part = slice(begin, begin + ROWS)
            yield lattices[part], [self._text(*each) for each in zip(contexts[part], lattices[part], strict=True)]

    def _text(self, context: Context, lattice: SausageLattice) -> np.ndarray:
        """``[n]``, n >= 1: what the model reads before the lattice."""
        text = np.asarray(context, dtype=np.int64)
        text = text[text >= 0]
        if not len(text):  # these models predict nothing before their first token
            bos = self.base.config.bos_token_id
            text = np.array([bos] if bos is not None else self.base.eos_ids[:1], dtype=np.int64)
        expect(len(text), "at least one token of context", "none", "the rescorer has no bos or eos token")
        wanted, largest = f"token ids below {self.vocab_size} (the rescorer's vocabulary)", int(text.max())
        expect(largest < self.vocab_size, f"a context of {wanted}", largest, "is it of another tokenizer?")
        limit = self.base.max_positions
        if limit is None:
            return text
        wanted = f"more than {lattice.slots} positions (the lattice's slots)"
        expect(limit > lattice.slots, f"a rescorer of {wanted}", f"one of {limit}")
        return text[first_kept(len(text), limit - lattice.slots) :]


def first_kept(length: int, room: int) -> int:
    """The first token that is read of a text of ``length`` tokens, at most ``room`` of which are read.

    Between half of ``room`` and all of it is read: the beginning moves in leaps, so that between two leaps a growing
    text is not read again.
    """
    leap = max(1, room // 2)
    return -(-max(0, length - room) // leap) * leap
