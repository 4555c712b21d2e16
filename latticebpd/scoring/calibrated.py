"""Trees under calibrated probabilities: heads, n-gram model and the text so far, each for what it is worth.

The probability of a token behind a path is that of a log-linear model (`fst.calibrated_tree_batch`), fitted to what the
base model went on with (`latticebpd calibrate`). The n-gram counts of the text so far adapt to it token by token, and
bring in *copies*, tokens that the heads did not propose.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

import fst
from latticebpd.lattices.drafts import Drafts, DraftTree
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.scoring.calibration import Calibration
from latticebpd.scoring.ngram import NgramScorer, batches_of_one_shape, padded_histories
from latticebpd.scoring.scorer import Context

MOST_FURTHER = 64
"""Slots behind a lattice that copies are drafted for, at most."""
MOST_TEXTS = 256
"""Texts whose n-grams are kept; one that comes back later is read anew."""


class TextIndexes:
    """Indexes of growing texts: whoever asks for a text that continues one asked for before has only the new tokens
    read."""

    def __init__(self, most: int = MOST_TEXTS) -> None:
        self._known: OrderedDict[int, tuple[np.ndarray, fst.TextIndex]] = OrderedDict()
        self._most, self._lock, self._next = most, threading.Lock(), 0

    def of(self, texts: Sequence[np.ndarray]) -> list[fst.TextIndex]:
        """An index of each text, ``[tokens]`` int64; two texts never share one."""
        with self._lock:
            taken: set[int] = set()
            return [self._of(text, taken) for text in texts]

    def _of(self, text: np.ndarray, taken: set[int]) -> fst.TextIndex:
        found = next(
            (
                number
                for number in reversed(self._known)
                if number not in taken and _continues(text, self._known[number][0])
            ),
            None,
        )
        if found is None:
            found, self._next = self._next, self._next + 1
            self._known[found] = np.zeros(0, np.int64), fst.TextIndex()
        known, index = self._known[found]
        index.extend(text[len(known) :])
        self._known[found] = text.copy(), index
        self._known.move_to_end(found)
        taken.add(found)
        while len(self._known) > max(self._most, len(taken)):
            self._known.popitem(last=False)
        return index


@dataclass(frozen=True, eq=False)
class CalibratedScorer:
    """Best-first trees under calibrated probabilities.

    ngram: the n-gram model; its weight ``alpha`` ranks paths, while trees go by the calibration.
    calibration: the weights.
    """

    ngram: NgramScorer
    calibration: Calibration
    _texts: TextIndexes = field(default_factory=TextIndexes, repr=False)

    @property
    def alpha(self) -> float:
        return self.ngram.alpha

    def with_alpha(self, alpha: float) -> CalibratedScorer:
        return CalibratedScorer(self.ngram.with_alpha(alpha), self.calibration, self._texts)

    def paths(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], p: int) -> list[Drafts]:
        """The n-gram model's, as without a calibration."""
        return self.ngram.paths(lattices, contexts, p)

    def trees(self, lattices: Sequence[SausageLattice], contexts: Sequence[Context], num_nodes: int) -> list[DraftTree]:
        found: dict[int, DraftTree] = {}
        further = min(num_nodes - 1, MOST_FURTHER) if self.calibration.further else 0
        for rows, tokens, log_probs, transitions in batches_of_one_shape(lattices):
            texts = [_text(contexts[row]) for row in rows]
            trees = self._search(tokens, log_probs, transitions, texts, num_nodes, further)
            for row, tree in zip(rows, trees, strict=True):
                found[row] = DraftTree(*tree, lattices[row])
        return [found[row] for row in range(len(lattices))]

    def _search(
        self,
        tokens: np.ndarray,
        log_probs: np.ndarray,
        transitions: np.ndarray | None,
        texts: Sequence[np.ndarray],
        num_nodes: int,
        further: int = 0,
    ) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        table = self.calibration.table[: -1 if self.calibration.further and not further else None]
        indexes, histories = self._texts.of(texts), padded_histories(texts)
        nodes, parents, scores, counts = fst.calibrated_tree_batch(
            tokens,
            log_probs,
            self.ngram.lm,
            indexes,
            table,
            num_nodes,
            histories,
            further=further,
            transitions=transitions,
        )
        return [(nodes[i, :count], parents[i, :count], scores[i, :count]) for i, count in enumerate(counts.tolist())]

    def tree_arrays(
        self, lattices: LatticeSet, num_nodes: int, threads: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """``trees`` of stored lattices as arrays: ``[n, nodes]`` tokens and parents, -1 behind the last.

        One by one: each stands one token further in its text than the one before. They end with the lattice, for what
        is stored with it does not tell how its text goes on behind it.
        """
        shape = (len(lattices), num_nodes)
        tokens, parents = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
        for row in range(len(lattices)):
            text = _text(lattices.context[row])
            at = slice(row, row + 1)
            transitions = None if lattices.transitions is None else lattices.transitions[at]
            nodes, above, _ = self._search(lattices.tokens[at], lattices.log_probs[at], transitions, [text], num_nodes)[
                0
            ]
            tokens[row, : len(nodes)], parents[row, : len(nodes)] = nodes, above
        return tokens, parents

    def check_vocabulary(self, fingerprint: str | None, vocab_size: int | None, owner: str) -> None:
        """As the n-gram model does."""
        self.ngram.check_vocabulary(fingerprint, vocab_size, owner)


def _continues(text: np.ndarray, known: np.ndarray) -> bool:
    n = len(known)
    return n <= len(text) and (not n or (known[-1] == text[n - 1] and np.array_equal(known, text[:n])))


def _text(context: Context) -> np.ndarray:
    """A context as ``[tokens]`` int64, padding left out."""
    text = np.asarray(context, np.int64)
    return text[text >= 0] if len(text) and text[0] < 0 else text
