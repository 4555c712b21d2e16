"""Initial values: a block's tokens before its first pass (Santilli 2023, section 3.3).

An *initialisation* is called at the start of every block with the row's :class:`State`, as a drafter is; its
``max_depth`` is the block's width. It returns at most that many values; padding fills the rest. Initial values change
the number of passes, never the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

import fst
from latticebpd.decoding.loop import propose
from latticebpd.drafters.drafter import Drafter, State
from latticebpd.lattices.drafts import ROOT, DraftTree


class Initial(Protocol):
    """Initial values for blocks.

    after_first_token: whether it needs a row's first token, which then is a block of its own.
    """

    after_first_token: ClassVar[bool] = False

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        """At most ``max_depth`` token ids for each block."""

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        """Called after every pass with the tokens that have settled in each unfinished row."""
        return


class Padding(Initial):
    """Only padding: the paper's choice."""

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        return [[] for _ in blocks]


@dataclass(frozen=True)
class RandomTokens(Initial):
    """Tokens drawn uniformly below ``vocab_size``; they depend on row and position only, not on blocks or batch."""

    vocab_size: int
    seed: int = 0

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        rows = ((block, np.random.default_rng((self.seed, block.row))) for block in blocks)
        return [
            _part(block, row.integers(self.vocab_size, size=_start(block) + block.max_depth).tolist())
            for block, row in rows
        ]


class SourceCopy(Initial):
    """The source's token at the same position; for a model without a source, the prompt's."""

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        return [_part(block, block.source or block.tokens[: block.prompt_length]) for block in blocks]


@dataclass(frozen=True)
class PreviousOutput(Initial):
    """The token at the same position of an earlier output: of another model, or for an earlier version of the input.

    texts: for every row, its tokens without the prompt.
    """

    texts: Sequence[Sequence[int]]

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        if blocks and max(block.row for block in blocks) >= len(self.texts):
            got = f"{len(self.texts)}; an empty list stands for none"
            raise ValueError(f"expected an earlier output for every row, got {got}")
        return [_part(block, self.texts[block.row]) for block in blocks]


class NgramContinuation(Initial):
    """Greedy decoding by an n-gram model over the same token ids; ties go to the lower id."""

    def __init__(self, lm: fst.NgramModel) -> None:
        self.lm = lm
        self._tokens = np.arange(lm.vocab_size, dtype=np.int32)[None]
        self._equal = np.zeros_like(self._tokens, dtype=np.float32)

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        texts = [list(block.tokens) for block in blocks]
        for tokens, block in zip(texts, blocks, strict=True):
            for _ in range(block.max_depth):
                best, _ = fst.nbest_paths(self._tokens, self._equal, self.lm, p=1, context=tokens)
                tokens.append(int(best[0, 0]))
        return [tokens[len(block.tokens) :] for tokens, block in zip(texts, blocks, strict=True)]


class DraftedInitial:
    """A drafter's best draft: block heads' lattices, rescored or not, or copies (not in the paper).

    Of a tree with log-probabilities the most probable of its deepest paths is taken, else the first of them.
    """

    after_first_token: ClassVar[bool] = True

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def values(self, blocks: Sequence[State]) -> list[list[int]]:
        trees = propose(self.drafter, blocks)
        return [_deepest_path(tree.pruned(block.max_depth)) for tree, block in zip(trees, blocks, strict=True)]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        self.drafter.observe(rows, tokens)


def _start(block: State) -> int:
    """The block's first position, counted from the first new token."""
    return len(block.tokens) - block.prompt_length


def _part(block: State, text: Sequence[int]) -> list[int]:
    """The tokens of a text at the block's positions."""
    return list(text[_start(block) :][: block.max_depth])


def _deepest_path(tree: DraftTree) -> list[int]:
    node = ROOT
    if len(tree):
        deepest = np.flatnonzero(tree.depths == tree.depths.max())
        node = int(deepest[0 if tree.log_probs is None else np.argmax(tree.log_probs[deepest])])
    return tree.tokens[tree.path(node)].tolist()
