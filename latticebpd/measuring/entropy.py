"""How sure each head is: entropies of the heads' distributions (Kim 2024, section 6.2, figure 3).

Lattice files with ``entropy`` hold exact values of all heads. Others hold the top k only. The rest of the probability
is then anywhere among the other tokens, none of which is likelier than the k-th. This bounds each entropy:

    least    the rest on as few tokens as possible, each as likely as the k-th
    most     the rest spread evenly over all other tokens of the vocabulary

``h_max`` is the last head up to which the mean entropy never falls. From bounds it is known only within limits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from latticebpd.checks import expect
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING
from latticebpd.measuring.lattice_files import first_and_all
from latticebpd.measuring.oracle_tally import lengths_of, ranks
from latticebpd.measuring.replay import DecodeReplay
from latticebpd.measuring.signature import Signature, counted_by

BIN = 0.25
"""Width of the histograms' bins, nats."""
MOST_NATS = 16.0
SURPLUS = 1e-3
"""Rounding error allowed in the sum of a slot's probabilities."""


def entropy_bounds(lattices: LatticeSet, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """``[n, slots]`` least and most entropy, nats, of distributions whose most probable tokens the arcs are; ValueError
    for weights that are no log-probabilities (a slot's sum exceeds 1), or a vocabulary smaller than a slot."""
    is_arc = (lattices.tokens != PADDING) & (lattices.log_probs > -np.inf)
    log_p = np.where(is_arc, lattices.log_probs, 0.0).astype(np.float64)
    p = np.where(is_arc, np.exp(log_p), 0.0)
    mass = p.sum(axis=2)
    if mass.max(initial=0) > 1 + SURPLUS:
        row, slot = map(int, np.unravel_index(mass.argmax(), mass.shape))
        got = f"{mass[row, slot]:.4g} in lattice {row}, slot {slot}; logits have no entropy"
        raise ValueError(f"expected natural log-probabilities, whose probabilities sum to at most 1, got {got}")
    others = vocab_size - is_arc.sum(axis=2)
    wanted = f"a vocabulary of at least {lattices.tokens.shape[2]} tokens (one slot's)"
    expect(others.min(initial=0) >= 0, wanted, vocab_size)
    kept = -(p * log_p).sum(axis=2)
    least_arc = np.where(is_arc, p, np.inf).min(axis=2)
    # Without other tokens the rest is rounding error.
    rest = np.where(others > 0, np.clip(1 - mass, 0, others * least_arc), 0)
    full = np.floor(rest / least_arc)
    low = kept - full * _p_log_p(least_arc) - _p_log_p(rest - full * least_arc)
    return low, np.maximum(low, kept - others * _p_log_p(rest / np.maximum(others, 1)))


def _p_log_p(p: np.ndarray) -> np.ndarray:
    return p * np.log(np.where(p > 0, p, 1))


def h_max(low: np.ndarray, high: np.ndarray | None = None) -> tuple[int, int]:
    """Least and greatest possible ``max{k : H[i] <= H[i + 1] for all i < k}``, heads counted from 1.

    low, high: ``[heads]`` bounds of the mean entropies; a single array is exact.
    """
    expect(len(low), "the mean entropy of at least one head")
    high = low if high is None else high
    surely, perhaps = high[:-1] <= low[1:], low[:-1] <= high[1:]
    least, most = (int(np.logical_and.accumulate(rises).sum()) + 1 for rises in (surely, perhaps))
    return least, most


@dataclass(frozen=True, eq=False)
class HeadEntropy:
    """Entropies of heads over a data set: over the steps of vanilla drafts, calls or positions.

    heads: their numbers, from 1; only heads 2.. where the files hold only the top k.
    histogram: ``[heads, bins]`` steps by entropy, bins of ``BIN`` nats from 0; of bounds, by their middle.
    low, high: ``[heads]`` mean entropy, nats; equal where it is exact.
    text_means: ``[texts, heads]`` mean entropy of each text (the middle of bounds), text_efficiency: ``[texts]`` its
        tokens per call of vanilla drafts; empty where texts are not known.
    """

    heads: tuple[int, ...]
    histogram: np.ndarray
    low: np.ndarray
    high: np.ndarray
    text_means: np.ndarray
    text_efficiency: np.ndarray
    signature: Signature

    @property
    def exact(self) -> bool:
        return bool((self.low == self.high).all())

    @property
    def h_max(self) -> tuple[int, int]:
        """Least and greatest possible number of the last head up to which the mean entropy never falls."""
        low, high = h_max(self.low, self.high)
        return low + self.heads[0] - 1, high + self.heads[0] - 1

    def text_h_max(self, first: int = 1) -> np.ndarray:
        """``[texts]`` h_max of every text by its own means, counted from head ``first``.

        Heads trained on the base model's own text are far surer than head 1, the base model itself. Then every h_max
        is 1, and only counting from head 2 distinguishes texts.
        """
        begin = max(0, first - self.heads[0])
        return np.array([h_max(mean[begin:])[0] + self.heads[begin] - 1 for mean in self.text_means], np.int64)


def head_entropy(blocks: Iterable[LatticeSet], vocab_size: int | None = None, by: str | None = None) -> HeadEntropy:
    """Entropies of every head, in one pass.

    vocab_size: for files that hold only the top k. by: as for `counted_by`. Raises ValueError for no lattice, or files
    without entropies and no vocabulary.
    """
    first, blocks = first_and_all(block for block in blocks if len(block))
    signature, exact = Signature.of(first, by=counted_by(by, first)), first.entropy is not None
    size = first.tokens.shape[1] + exact
    histogram, sums, count = np.zeros((size, round(MOST_NATS / BIN)), np.int64), np.zeros((2, size)), 0
    texts: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(size + 2))  # sums of entropies, tokens, calls
    replay = DecodeReplay(np.zeros(3, np.int64))
    for block in blocks:
        signature.check(block)
        expect((block.entropy is not None) == exact, "entropies in all files or in none", "both kinds")
        if block.entropy is not None:
            low = high = block.entropy.astype(np.float64)
        elif vocab_size is not None:
            low, high = entropy_bounds(block, vocab_size)
        else:
            written = "as `latticebpd lattices` writes them"
            raise ValueError(f"expected lattices with entropies, {written}, or a vocabulary's size; got neither")
        stepped, tokens = replay.steps(signature.by, block, lengths_of(ranks(block), 1))
        middle = (low + high) / 2
        bins = np.minimum((middle / BIN).astype(np.int64), histogram.shape[1] - 1)
        for head in range(size):
            histogram[head] += np.bincount(bins[stepped, head], minlength=histogram.shape[1])
        sums += np.stack([low[stepped].sum(axis=0), high[stepped].sum(axis=0)])
        count += int(stepped.sum())
        if block.sequence is not None:
            values = np.column_stack([np.where(stepped[:, None], middle, 0), tokens, stepped])
            for number in dict.fromkeys(block.sequence.tolist()):
                texts[number] += values[block.sequence == number].sum(axis=0)
    heads = tuple(range(2 - exact, 2 - exact + size))
    by_text = np.array([*texts.values()]).reshape(-1, size + 2)
    means, efficiency = by_text[:, :size] / by_text[:, -1:], by_text[:, -2] / by_text[:, -1]
    low, high = sums / count
    return HeadEntropy(heads, histogram, low, high, means, efficiency, signature)


@dataclass(frozen=True)
class Regression:
    """Least squares, ``y = slope * x + intercept``, and Pearson's correlation; NaN where x or y is constant."""

    slope: float
    intercept: float
    r: float


def regress(x: np.ndarray, y: np.ndarray) -> Regression:
    """Of ``y [n]`` on ``x [n]``, at least two; of block efficiency on h_max the paper has R = 0.77 (Kim 2024)."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    fits = x.ndim == 1 and x.shape == y.shape and len(x) >= 2
    expect(fits, "two lists of one length, at least 2", f"{x.shape} and {y.shape}")
    dx, dy = x - x.mean(), y - y.mean()
    sxx, syy, sxy = (dx @ dx).item(), (dy @ dy).item(), (dx @ dy).item()
    slope = sxy / sxx if sxx > 0 else np.nan
    r = sxy / (sxx * syy) ** 0.5 if sxx > 0 and syy > 0 else np.nan
    return Regression(slope, float(y.mean() - slope * x.mean()), r)
