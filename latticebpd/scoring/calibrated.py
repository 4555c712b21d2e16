"""Trees under calibrated probabilities: heads, n-gram model and the context, each with a fitted weight.

A log-linear model (`fst.calibrated_tree_batch`), fitted to the target model's continuations (`latticebpd calibrate`),
gives the probability of a token after a path. The n-gram counts of the context adapt to it token by token, and add
*copies*, tokens that the heads did not propose. Without heads the n-gram model adds *proposals*, its likeliest tokens.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

import fst
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import Batch, NgramScorer, Tree, in_batches, padded_histories, trees_of
from latticebpd.scoring.scorer import Constraints, Context

MOST_FURTHER = 64
"""The most slots after a lattice that copies are drafted for."""
MOST_TEXTS = 256
"""Texts whose n-grams are kept; others are read again."""


class GrowingIndex(Protocol):
    """An index of a text that grows with it."""

    def extend(self, tokens: Any) -> None:
        """Append ``[n]`` tokens to the indexed text."""


Index = TypeVar("Index", bound=GrowingIndex)


class TextIndexes(Generic[Index]):
    """Indexes of growing texts: of a text that continues an indexed one only the new tokens are read.

    new: makes an empty index.  most: texts whose indexes are kept, besides those of the last call.
    """

    def __init__(self, new: Callable[[], Index], most: int = MOST_TEXTS) -> None:
        self._known: OrderedDict[int, tuple[np.ndarray, Index]] = OrderedDict()
        self._new, self._most, self._lock, self._next = new, most, threading.Lock(), 0

    def __len__(self) -> int:
        return len(self._known)

    def of(self, texts: Sequence[np.ndarray]) -> list[Index]:
        """An index of each text, ``[tokens]`` int64; two texts never share one."""
        with self._lock:
            taken: set[int] = set()
            indexes = [self._of(text, taken) for text in texts]
            while len(self._known) > max(self._most, len(taken)):
                self._known.popitem(last=False)
            return indexes

    def _of(self, text: np.ndarray, taken: set[int]) -> Index:
        free = (number for number in reversed(self._known) if number not in taken)
        number = next((number for number in free if _starts_with(text, self._known[number][0])), None)
        if number is None:
            number, self._next = self._next, self._next + 1
            self._known[number] = np.zeros(0, np.int64), self._new()
        known, index = self._known[number]
        index.extend(text[len(known) :])
        self._known[number] = text.copy(), index
        self._known.move_to_end(number)
        taken.add(number)
        return index


@dataclass(frozen=True, eq=False)
class CalibratedScorer:
    """Best-first trees under calibrated probabilities.

    ngram: the n-gram model; its weight ``alpha`` ranks paths, while trees use the calibration.
    """

    ngram: NgramScorer
    calibration: Calibration
    takes_constraints: ClassVar[bool] = True
    _texts: TextIndexes[fst.TextIndex] = field(default_factory=partial(TextIndexes, fst.TextIndex), repr=False)

    @property
    def alpha(self) -> float:
        return self.ngram.alpha

    def with_alpha(self, alpha: float) -> CalibratedScorer:
        return CalibratedScorer(self.ngram.with_alpha(alpha), self.calibration, self._texts)

    def paths(
        self,
        lattices: Sequence[SausageLattice],
        contexts: Sequence[Context],
        p: int,
        constraints: Constraints = None,
    ) -> list[Drafts]:
        """The n-gram model's, as without a calibration."""
        return self.ngram.paths(lattices, contexts, p, constraints)

    def trees(
        self,
        lattices: Sequence[SausageLattice],
        contexts: Sequence[Context],
        num_nodes: int,
        constraints: Constraints = None,
    ) -> list[DraftTree]:
        goes_on = self.calibration.further or self.calibration.without_lattices
        further = min(num_nodes, MOST_FURTHER) if goes_on else 0
        trees = in_batches(lattices, contexts, lambda batch: self._search(batch, num_nodes, further), constraints)
        return [DraftTree.trusted(*tree, lattice) for tree, lattice in zip(trees, lattices, strict=True)]

    def _search(self, batch: Batch, num_nodes: int, further: int = 0) -> list[Tree]:
        """Tokens, parents and log-probabilities of each row's tree."""
        tokens, log_probs, transitions, contexts, constraints = batch
        texts = [_text(context) for context in contexts]
        table = self.calibration.table[: -1 if self.calibration.further and not further else None]
        arguments = (tokens, log_probs, self.ngram.lm, self._texts.of(texts), table, num_nodes, padded_histories(texts))
        proposals = self.calibration.proposals
        return trees_of(fst.calibrated_tree_batch(*arguments, None, further, transitions, proposals, constraints))

    def tree_arrays(
        self, lattices: LatticeSet, num_nodes: int, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """``trees`` of stored lattices as arrays: ``[n, nodes]`` tokens and parents, -1 after the last.

        One by one, since each lattice's text is one token longer than that before it. Trees end with the lattice: the
        file does not say how the text continues. ValueError for lattices of another drafter than the calibration's.
        """
        self.calibration.check_drafter(lattices.drafter)
        tokens, parents = np.full((2, len(lattices), num_nodes), -1, np.int32)
        for row in range(len(lattices)):
            at = slice(row, row + 1)
            gains = None if lattices.transitions is None else lattices.transitions[at]
            batch = (lattices.tokens[at], lattices.log_probs[at], gains, [lattices.context[row]], None)
            ((nodes, above, _),) = self._search(batch, num_nodes)
            tokens[row, : len(nodes)], parents[row, : len(nodes)] = nodes, above
        return tokens, parents

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, vocabulary_name: str) -> None:
        """As the n-gram model does."""
        self.ngram.check_vocabulary(fingerprint, vocab_size, vocabulary_name)


def _starts_with(text: np.ndarray, known: np.ndarray) -> bool:
    n = len(known)
    return n <= len(text) and (not n or (known[-1] == text[n - 1] and np.array_equal(known, text[:n])))


def _text(context: Context) -> np.ndarray:
    """A context as ``[tokens]`` int64, without padding."""
    text = np.asarray(context, np.int64)
    return text[text >= 0] if len(text) and text[0] < 0 else text
