"""Which predictions are scored where, and what each one's loss counts.

A model predicts ``h`` tokens from each hidden state: head 1 is the base model, heads 2..h are the others. ``L_p`` is
the mean cross-entropy of prediction ``p`` over all of a step's labels for it, and the loss of a step is ``sum over p of
c_p L_p``::

    joint      c_p = w_p, every prediction at every position                    (Kim 2024, appendix: lambda_h = w_h = 1)
    batch      c_p = w_p / k: the mean over the k predictions, of which one update (Stern 2018, section 6: the sub-loss)
               scores one, drawn evenly
    position   c_1 = w_1, and c_p = w_p / (w_2 + ... + w_h) for the heads            (ours)

A base model that is not taught is none of the predictions. Scoring fewer pairs of prediction and position is cheaper,
above all with large vocabularies; a pair that is scored with probability q counts 1/q times, so the expected loss and
the expected gradient stay those of the full sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Selection(Protocol):
    """Chooses pairs of prediction and position."""

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """``[predictions]``: what the mean loss of each counts.

        Args:
            weights: ``[predictions]`` >= 0; 0 is not taught.
        """

    def weights(
        self, labelled: np.ndarray, taught: np.ndarray, row: np.random.Generator, step: np.random.Generator
    ) -> np.ndarray:
        """``[predictions, positions]`` weights 1/q of one text's pairs, 0 where a pair is not scored.

        Args:
            labelled: ``[predictions, positions]``, whether there is a label; only such pairs may be chosen.
            taught: ``[predictions]``, those that may be chosen.
            row: random numbers of this text in this step.
            step: random numbers of this step, the same for each of its texts.
        """


@dataclass(frozen=True)
class EveryHead:
    """All pairs: the joint loss."""

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        return weights

    def weights(
        self, labelled: np.ndarray, taught: np.ndarray, row: np.random.Generator, step: np.random.Generator
    ) -> np.ndarray:
        chosen: np.ndarray = (labelled & taught[:, None]).astype(np.float64)
        return chosen


@dataclass(frozen=True)
class OneHeadPerBatch:
    """One prediction, drawn anew for every update."""

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        mean: np.ndarray = weights / max(1, np.count_nonzero(weights))
        return mean

    def weights(
        self, labelled: np.ndarray, taught: np.ndarray, row: np.random.Generator, step: np.random.Generator
    ) -> np.ndarray:
        choices = np.flatnonzero(taught)
        weights = np.zeros(labelled.shape)
        drawn = choices[step.integers(len(choices))]
        weights[drawn] = labelled[drawn] * float(len(choices))
        return weights


@dataclass(frozen=True)
class OneHeadPerPosition:
    """A share of the positions, each scored by one head that has a label there; the base model, where taught, at every
    one.

    As cheap as ``OneHeadPerBatch`` at a share of 1, and every update teaches every head.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"expected a share of positions above 0, at most 1, got {self.share}")

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        heads: np.ndarray = weights[1:] / (weights[1:].sum() or 1.0)
        return np.concatenate([weights[:1], heads])

    def weights(
        self, labelled: np.ndarray, taught: np.ndarray, row: np.random.Generator, step: np.random.Generator
    ) -> np.ndarray:
        heads = labelled[1:]
        choices = heads.sum(axis=0)
        positions = np.flatnonzero((row.random(heads.shape[1]) < self.share) & (choices > 0))
        turn = row.integers(choices[positions])
        # The heads with a label at each position, in order; `turn` says which of them.
        head = (np.cumsum(heads[:, positions], axis=0) > turn).argmax(axis=0)
        weights = np.zeros(labelled.shape)
        weights[0] = labelled[0] * taught[0]
        weights[1 + head, positions] = choices[positions] / self.share
        return weights


OBJECTIVES: dict[str, Selection] = {"position": OneHeadPerPosition(), "batch": OneHeadPerBatch(), "joint": EveryHead()}
"""By name."""
