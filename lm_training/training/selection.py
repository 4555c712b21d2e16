"""Which predictions are scored at which positions, and what each prediction's loss counts.

A model predicts ``h`` tokens from each hidden state: head 1 is the base model, heads 2..h are the others. ``L_p`` is
the mean cross-entropy of prediction ``p`` over all of a step's labels for it. The loss of a step is ``sum over p of
c_p L_p``::

    joint      c_p = w_p, every prediction at every position                    (Kim 2024, appendix: lambda_h = w_h = 1)
    batch      c_p = w_p / k, one of k predictions per update, drawn evenly     (Stern 2018, section 6: the sub-loss)
    position   c_1 = w_1, and c_p = w_p / (w_2 + ... + w_h) for the heads       (ours)

``position`` draws a head as often as its weight says. As a mere factor of the loss, a weight would change little:
heads share no parameters, and Adam divides by the gradient's size. More pairs make a head's gradient less noisy.

A frozen base model has no prediction. A pair of prediction and position that is scored with probability q counts 1/q
times, so the expected loss and gradient are those of the full sum. Scoring fewer pairs is cheaper, most of all with
large vocabularies.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from latticebpd.checks import expect


def _check_share(share: float) -> None:
    expect(0 < share <= 1, "a share of positions above 0, at most 1", share)


class Selection:
    """Chooses pairs of prediction and position."""

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        """``[predictions]`` ``c_p`` of the weights ``w_p`` >= 0; a weight of 0 marks an untrained prediction."""
        return weights

    def weights(self, labelled: np.ndarray, importance: np.ndarray, row: Generator, step: Generator) -> np.ndarray:
        """``[predictions, positions]`` weights 1/q of one text's pairs, 0 for pairs that are not scored.

        labelled: ``[predictions, positions]`` whether the pair has a label; other pairs are never scored.
        importance: ``[predictions]`` the weights ``w_p``.
        row: random numbers of this text in this step.
        step: random numbers of this step, the same for all its texts.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class EveryHead(Selection):
    """The joint loss: every prediction at a share of the positions."""

    share: float = 1.0

    def __post_init__(self) -> None:
        _check_share(self.share)

    def weights(self, labelled: np.ndarray, importance: np.ndarray, row: Generator, step: Generator) -> np.ndarray:
        chosen = labelled & (importance > 0)[:, None]
        if self.share < 1:
            chosen &= row.random(labelled.shape[1]) < self.share
        return chosen / self.share


class OneHeadPerBatch(Selection):
    """One prediction, drawn anew for every update."""

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        return weights / max(1, np.count_nonzero(weights))

    def weights(self, labelled: np.ndarray, importance: np.ndarray, row: Generator, step: Generator) -> np.ndarray:
        choices = np.flatnonzero(importance)
        weights = np.zeros(labelled.shape)
        drawn = choices[step.integers(len(choices))]
        weights[drawn] = labelled[drawn] * float(len(choices))
        return weights


@dataclass(frozen=True)
class OneHeadPerPosition(Selection):
    """A share of the positions, each scored by one head that has a label there; a trained base model at every position.

    As cheap as ``OneHeadPerBatch`` at a share of 1, but every update trains every head.  A head is drawn with a
    probability in proportion to its weight.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        _check_share(self.share)

    def coefficients(self, weights: np.ndarray) -> np.ndarray:
        return np.concatenate([weights[:1], weights[1:] / (weights[1:].sum() or 1.0)])

    def weights(self, labelled: np.ndarray, importance: np.ndarray, row: Generator, step: Generator) -> np.ndarray:
        shares = labelled[1:] * importance[1:, None]
        ends = np.cumsum(shares, axis=0)
        positions = np.flatnonzero((row.random(labelled.shape[1]) < self.share) & (ends[-1] > 0))
        total = ends[-1, positions]
        drawn = row.random(len(positions)) * total
        head = (ends[:, positions] > drawn).argmax(axis=0)
        weights = np.zeros(labelled.shape)
        weights[0] = labelled[0] & (importance[0] > 0)
        weights[1 + head, positions] = total / shares[head, positions] / self.share
        return weights


OBJECTIVES: dict[str, Selection] = {"position": OneHeadPerPosition(), "batch": OneHeadPerBatch(), "joint": EveryHead()}
