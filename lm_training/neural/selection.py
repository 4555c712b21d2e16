"""Which heads are scored where.

The full loss of a step averages every head over every position that has a label for it.  Scoring fewer pairs of head and
position is cheaper, above all with large vocabularies; a pair that is scored with probability q counts 1/q times, so the
expected loss and the expected gradient stay those of the full loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Selection(Protocol):
    """Chooses pairs of head and position."""

    def weights(self, labelled: np.ndarray, row: np.random.Generator, step: np.random.Generator) -> np.ndarray:
        """``[heads - 1, positions]`` weights 1/q of one sequence's pairs, 0 where a pair is not scored.

        Args:
            labelled: ``[heads - 1, positions]``, whether the head has a label there; only such pairs may be chosen.
            row: random numbers of this sequence in this step.
            step: random numbers of this step, the same for each of its sequences.
        """


@dataclass(frozen=True)
class EveryHead:
    """All pairs: the joint loss (Kim 2024, section 4)."""

    def weights(self, labelled: np.ndarray, row: np.random.Generator, step: np.random.Generator) -> np.ndarray:
        return labelled.astype(np.float64)


@dataclass(frozen=True)
class OneHeadPerBatch:
    """One head, drawn anew for every update (Stern 2018, section 6)."""

    def weights(self, labelled: np.ndarray, row: np.random.Generator, step: np.random.Generator) -> np.ndarray:
        heads = len(labelled)
        weights = np.zeros(labelled.shape)
        head = step.integers(heads)
        weights[head] = labelled[head] * float(heads)
        return weights


@dataclass(frozen=True)
class OneHeadPerPosition:
    """A share of the positions, each scored by one head that has a label there.

    As cheap as ``OneHeadPerBatch`` at a share of 1, and every update teaches every head.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected a share of positions above 0, at most 1, got {self.share}")

    def weights(self, labelled: np.ndarray, row: np.random.Generator, step: np.random.Generator) -> np.ndarray:
        choices = labelled.sum(axis=0)
        positions = np.flatnonzero((row.random(labelled.shape[1]) < self.share) & (choices > 0))
        turn = row.integers(choices[positions])
        # The heads with a label at each position, in order; `turn` says which of them.
        head = (np.cumsum(labelled[:, positions], axis=0) > turn).argmax(axis=0)
        weights = np.zeros(labelled.shape)
        weights[head, positions] = choices[positions] / self.share
        return weights
