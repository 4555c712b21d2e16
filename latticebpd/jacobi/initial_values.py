"""Initial values: what stands in a block before its first pass (Santilli 2023, section 3.3).

An *initialisation* is asked at the start of every block.  It gives as many values as it has, up to the block's width;
places that it leaves open hold padding.  It decides how many passes a decode takes and never what it writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from torch import Tensor

import fst
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import ROOT, DraftTree


@dataclass(frozen=True, eq=False)
class Block:
    """Unknowns that are about to be solved together.

    row: index in the batch.
    tokens: the prompt without padding and every settled token; of an encoder-decoder, the decoder's text.
    prompt_length: how many of them are the prompt.
    width: >= 1, number of unknowns.
    source: an encoder-decoder's source tokens, else empty.
    hidden: ``[hidden]``, the final hidden state that predicted the last token; None while no token is settled.
    """

    row: int
    tokens: Sequence[int]
    prompt_length: int
    width: int
    source: Sequence[int]
    hidden: Tensor | None

    @property
    def place(self) -> int:
        """Where the block begins: the number of tokens settled so far."""
        return len(self.tokens) - self.prompt_length


class Initial(Protocol):
    """Initial values for blocks.

    after_first_token: whether it must see a row's first token before it can say anything. That token then is a block of
        its own.
    """

    after_first_token: ClassVar[bool]

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        """At most ``width`` token ids for each block."""

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Hear, after every pass, which tokens have settled in each unfinished row."""


class _Constant:
    """An initialisation that learns nothing on the way."""

    after_first_token: ClassVar[bool] = False

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        pass


class Padding(_Constant):
    """Nothing but padding: the paper's choice."""

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        return [[] for _ in blocks]


@dataclass(frozen=True)
class RandomTokens(_Constant):
    """Tokens drawn uniformly; a row's value at a place is the same whatever the blocks and the batch's other rows.

    vocab_size: ids are drawn below it.
    """

    vocab_size: int
    seed: int = 0

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        return [self._row(block.row, block.place + block.width)[block.place :] for block in blocks]

    def _row(self, row: int, length: int) -> list[int]:
        drawn: list[int] = np.random.default_rng((self.seed, row)).integers(self.vocab_size, size=length).tolist()
        return drawn


class SourceCopy(_Constant):
    """The source's token at the same place; of a model without a source, the prompt's."""

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        return [
            list((block.source or block.tokens[: block.prompt_length])[block.place :][: block.width])
            for block in blocks
        ]


@dataclass(frozen=True)
class PreviousOutput(_Constant):
    """The token at the same place of an output known from before: that of another model, or of an earlier version of
    the input.

    texts: for every row, its tokens without the prompt.
    """

    texts: Sequence[Sequence[int]]

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        if blocks and max(block.row for block in blocks) >= len(self.texts):
            raise ValueError(
                f"expected an earlier output for every row, got {len(self.texts)}; an empty list stands for none"
            )
        return [list(self.texts[block.row][block.place :][: block.width]) for block in blocks]


class NgramContinuation(_Constant):
    """What an n-gram model would write: its most probable token, again and again.

    Args:
        lm: over the model's own token ids; ties go to the lower id.
    """

    def __init__(self, lm: fst.NgramModel) -> None:
        self.lm = lm
        self._tokens = np.arange(lm.vocab_size, dtype=np.int32)[None]
        self._equal = np.zeros_like(self._tokens, dtype=np.float32)

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        return [self._continued(list(block.tokens), block.width) for block in blocks]

    def _continued(self, tokens: list[int], width: int) -> list[int]:
        before = len(tokens)
        for _ in range(width):
            best, _ = fst.nbest_paths(self._tokens, self._equal, self.lm, p=1, context=tokens)
            tokens.append(int(best[0, 0]))
        return tokens[before:]


class DraftedInitial:
    """A drafter's best draft: block heads' lattices, rescored or not, or copies (our own step beyond the paper).

    Of a tree with log-probabilities the most probable of its deepest paths is taken, else the first of them.

    Args:
        drafter: any drafter; it sees the rows as it does in ``latticebpd.generate``.
    """

    after_first_token: ClassVar[bool] = True

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def values(self, blocks: Sequence[Block]) -> list[list[int]]:
        states = []
        for block in blocks:
            assert block.hidden is not None, "a drafter is asked after the first token"
            states.append(State(block.row, block.tokens, block.prompt_length, block.hidden, block.width, block.source))
        trees = self.drafter.propose(states)
        if len(trees) != len(states):
            raise ValueError(
                f"expected one tree for each of {len(states)} states, got {len(trees)} from"
                f" {type(self.drafter).__name__}"
            )
        return [_deepest_path(tree.pruned(block.width)) for tree, block in zip(trees, blocks, strict=True)]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.drafter.observe(rows, tokens)


def _deepest_path(tree: DraftTree) -> list[int]:
    node = ROOT
    if len(tree):
        deepest = np.flatnonzero(tree.depths == tree.depths.max())
        node = int(deepest[0 if tree.log_probs is None else np.argmax(tree.log_probs[deepest])])
    path: list[int] = tree.tokens[tree.path(node)].tolist()
    return path
