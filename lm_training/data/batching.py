"""Which texts a step's batch holds, and checks of their token ids."""

from __future__ import annotations

import functools

import numpy as np

from latticebpd.checks import expect
from latticebpd.lattices.texts import Texts


def token_dtype(vocab_size: int) -> np.dtype:
    """In which token ids are stored: uint16 if the vocabulary allows, else uint32."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


def require_vocabulary(texts: Texts, vocab_size: int, name: str) -> None:
    """ValueError for tokens outside of a model's vocabulary."""
    highest = int(texts.tokens.max(initial=0))
    wanted = f"{name} token ids below {vocab_size} (the model's vocabulary)"
    expect(highest < vocab_size, wanted, highest, "was the text encoded with another tokenizer?")


def rows_of_step(texts: int, batch_size: int, step: int, seed: int, parts: int) -> list[int]:
    """Indices of a step's texts: every epoch has all once, in another order; ValueError for more parts than texts."""
    wanted = f"a batch of at least {parts} sequences, one for each part"
    expect(parts <= batch_size, wanted, batch_size, "use fewer parts")
    turns = range(step * batch_size, (step + 1) * batch_size)
    return [int(_epoch_order(texts, seed, turn // texts)[turn % texts]) for turn in turns]


@functools.lru_cache(maxsize=4)
def _epoch_order(texts: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 0]).permutation(texts)
