"""What neural rescorers share: a model, the texts that it reads, and files.

On disk a rescorer is the directory that ``save_pretrained`` of the model writes, and its settings
(``latticebpd.scoring.weights``).  The directory of any causal LM serves too, with weight 1.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from fst.fingerprint import vocabulary_fingerprint
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.neural.prefix_reader import reader_for
from latticebpd.scoring.scorer import Context
from latticebpd.scoring.weights import RescorerSettings
from latticebpd.target.checkpoints import load_base
from latticebpd.target.stock_model import BaseModel

ROWS = 64
"""Lattices that are rescored together: what keeps a processor busy without filling its memory with caches."""

Self = TypeVar("Self", bound="CausalRescorer")


class CausalRescorer:
    """What both rescorers share: a model, the texts that it reads, and files.

    Args:
        model: a decoder-only causal LM.  It is put into evaluation mode.
        alpha: its weight wherever none is given.
        tokenizer_fingerprint: hash of the vocabulary (``vocabulary_fingerprint``); unknown, the vocabulary's size alone
            is compared.
        use_cache: False reads every text from its beginning for every slot: slow, the same result; for comparison.

    Raises:
        ValueError: an encoder-decoder, or a weight that is none.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        alpha: float = 1.0,
        *,
        tokenizer_fingerprint: str | None = None,
        use_cache: bool = True,
    ) -> None:
        base = BaseModel.of(model)
        if base.is_encoder_decoder:
            raise ValueError(
                f"expected a decoder-only causal LM as rescorer, got an encoder-decoder ({model.config.model_type})"
            )
        self.model = model.eval()
        self.settings = RescorerSettings(alpha, tokenizer_fingerprint)
        self.vocab_size = base.vocab_size
        self.reader = reader_for(model, use_cache)

    @property
    def alpha(self) -> float:
        """Its weight wherever none is given."""
        return self.settings.alpha

    def with_alpha(self: Self, alpha: float) -> Self:
        """The same model at another weight; what it has read is shared."""
        found = copy.copy(self)
        found.settings = replace(self.settings, alpha=alpha)
        return found

    @property
    def tokenizer_fingerprint(self) -> str | None:
        return self.settings.tokenizer_fingerprint

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        """The ``p`` best drafts of every lattice; lattices may differ in shape."""
        raise NotImplementedError

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        """The best prefix tree of every lattice."""
        raise NotImplementedError

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, owner: str) -> None:
        """Refuse to rescore for a model of another vocabulary; what is None is unknown."""
        if fingerprint and self.tokenizer_fingerprint and fingerprint != self.tokenizer_fingerprint:
            raise ValueError(
                f"expected a rescorer over the vocabulary of {owner} ({fingerprint}), got one over"
                f" {self.tokenizer_fingerprint}; train one on text encoded with the same tokenizer"
            )
        known = fingerprint and self.tokenizer_fingerprint  # models of one family may pad one vocabulary differently
        if vocab_size is not None and vocab_size != self.vocab_size and not known:
            raise ValueError(
                f"expected a rescorer over {vocab_size} tokens (the vocabulary of {owner}), got one over"
                f" {self.vocab_size}; train one with the same tokenizer"
            )

    def save_pretrained(self, directory: str | os.PathLike[str]) -> None:
        """Write the model and its settings."""
        self.model.save_pretrained(directory)
        self.settings.save(directory)

    @classmethod
    def from_pretrained(
        cls: type[Self], directory: str | os.PathLike[str], dtype: torch.dtype = torch.float32, **kwargs: Any
    ) -> Self:
        """Read what ``save_pretrained`` wrote, or any causal LM's directory; further arguments go to ``transformers``.

        Raises:
            ValueError: a file is missing or damaged.
        """
        directory = Path(directory)
        settings = (
            RescorerSettings.load(directory)
            if RescorerSettings.stored(directory)
            else RescorerSettings(1.0, _fingerprint_in(directory))
        )
        rescorer = cls(load_base(directory, dtype, **kwargs))
        rescorer.settings = settings
        return rescorer

    def _groups(
        self, lattices: Sequence[SausageLattice], contexts: Sequence[Context]
    ) -> Iterator[tuple[list[SausageLattice], list[np.ndarray]]]:
        """At most ``ROWS`` lattices at a time, and the texts before them."""
        for begin in range(0, len(lattices), ROWS):
            own = list(lattices[begin : begin + ROWS])
            texts = [
                self._text(context, lattice)
                for context, lattice in zip(contexts[begin : begin + ROWS], own, strict=True)
            ]
            yield own, texts

    def _text(self, context: Context, lattice: SausageLattice) -> np.ndarray:
        """``[n]``, n >= 1: what the model reads before the lattice."""
        text = np.asarray(context, dtype=np.int64)
        text = text[text >= 0]
        if not len(text):
            text = self._beginning()
        if int(text.max()) >= self.vocab_size:
            raise ValueError(
                f"expected a context of token ids below {self.vocab_size} (the rescorer's vocabulary), got"
                f" {int(text.max())}; is it of another tokenizer?"
            )
        limit = BaseModel.of(self.model).max_positions
        if limit is None:
            return text
        if limit <= lattice.slots:
            raise ValueError(
                f"expected a rescorer of more than {lattice.slots} positions (the lattice's slots), got one of {limit}"
            )
        return text[first_kept(len(text), limit - lattice.slots) :]

    def _beginning(self) -> np.ndarray:
        """What an empty context is read as: these models say nothing before their first token."""
        base = BaseModel.of(self.model)
        tokens = base.eos_ids if base.config.bos_token_id is None else [base.config.bos_token_id]
        if not tokens:
            raise ValueError(
                "expected at least one token of context, got none, and the rescorer has no token that begins texts"
            )
        return np.array(tokens[:1], dtype=np.int64)


def first_kept(length: int, room: int) -> int:
    """The first token that is read of a text with more than ``room`` tokens.

    The last ones are, between half of ``room`` and all of it: the beginning moves by leaps, so that between two leaps a
    growing text is read on and not anew.
    """
    leap = max(1, room // 2)
    return -(-max(0, length - room) // leap) * leap


def _fingerprint_in(directory: Path) -> str | None:
    """The fingerprint of the directory's tokenizer, if it has one."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        return None
    try:
        return vocabulary_fingerprint(Tokenizer.from_file(str(path)).get_vocab())
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path}: expected a tokenizer.json as the tokenizers library writes it: {error}") from error
