"""Decodes with a model: what a replay of lattices predicts, done.

Walking through the lattices of a text predicts the calls of a decode.  Where the model itself is at hand the decode can
be made; it also shows whether the text is still the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.decoding.loop import generate
from latticebpd.drafting import Drafter, NoDrafter, OracleDrafter, VanillaDrafter
from latticebpd.models.base import BaseModel
from latticebpd.models.blockwise import BlockwiseLM

Factory = Callable[[Sequence[int]], Drafter]
"""From the base model's own continuation of a prompt, which only an oracle looks at, to a drafter."""


@dataclass(frozen=True, eq=False)
class Decoded:
    """Decodes of the same prompts by several drafters.

    names: of the drafters.
    counts: ``[drafters, slots + 2]`` calls by tokens committed, 0..slots + 1.
    verified: ``[drafters]`` drafted tokens in all passes.
    texts: how many prompts.  differing: ``[drafters]`` texts that are not the given ones: the lattices are another model's,
        or were made in another precision.
    """

    names: tuple[str, ...]
    counts: np.ndarray
    verified: np.ndarray
    texts: int
    differing: np.ndarray

    @property
    def calls(self) -> np.ndarray:
        """``[drafters]``"""
        calls: np.ndarray = self.counts.sum(axis=1)
        return calls

    @property
    def tokens(self) -> np.ndarray:
        """``[drafters]`` tokens that calls committed; the prefill's are in no count."""
        tokens: np.ndarray = self.counts @ np.arange(self.counts.shape[1])
        return tokens

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[drafters]`` tokens a call; NaN where the prefill alone sufficed."""
        efficiency: np.ndarray = np.divide(self.tokens, self.calls, out=np.full(len(self.calls), np.nan), where=self.calls > 0)
        return efficiency


def decode(
    model: BlockwiseLM,
    texts: Iterable[tuple[Sequence[int], int]],
    drafters: Mapping[str, Factory],
    on_decode: Callable[[], None] | None = None,
    given_text: bool = False,
) -> Decoded:
    """Write the texts again with every drafter.

    Args:
        texts: tokens, prompt included, and length of the prompt, as ``latticebpd.lattices.shards.texts_of`` yields them; the model's own
            greedy texts.
        drafters: by name.
        on_decode: called after each decode, for progress.
        given_text: the texts are a data set's instead; of each, the model first writes as much by itself.

    Raises:
        ValueError: no text.
    """
    counts = np.zeros((len(drafters), model.num_heads + 1), np.int64)
    verified, differing = np.zeros(len(drafters), np.int64), np.zeros(len(drafters), np.int64)
    number, encodes = 0, BaseModel.of(model).encodes
    for text, prompt_length in texts:
        begin = 1 if encodes else prompt_length  # an encoder–decoder's output begins with its start token instead of the prompt
        prompt, continuation = list(text[:prompt_length]), list(text[prompt_length:])
        number += 1
        if given_text:
            continuation = generate(model, prompt, NoDrafter(), max_new_tokens=len(continuation)).sequences[0, begin:].tolist()
        for row, drafter_of in enumerate(drafters.values()):
            out = generate(model, prompt, drafter_of(continuation), max_new_tokens=len(continuation))
            counts[row, : len(out.accept_counts)] += out.accept_counts
            verified[row] += out.verified_tokens
            differing[row] += out.sequences[0, begin:].tolist() != continuation
            if on_decode is not None:
                on_decode()
    if not number:
        raise ValueError("expected at least one text, got none")
    return Decoded(tuple(drafters), counts, verified, number, differing)


def oracle_drafters(model: BlockwiseLM, ks: Sequence[int]) -> dict[str, Factory]:
    """The oracle over each slot's k best arcs, for every k; k = 1 is vanilla."""

    def factory(k: int) -> Factory:
        return lambda continuation: VanillaDrafter(model) if k == 1 else OracleDrafter(model, continuation, k=k)

    return {f"k={k}": factory(k) for k in ks}
