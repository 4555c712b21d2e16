"""The weight of a language model: swept (Kim 2024, appendix E, table 8), and tuned on held-out examples (appendix D).

Every system has a weight of its own, under which its decodes of the examples take the fewest calls. The records are
stored with the model (``latticebpd.scoring.weights``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fst.processors import ignore
from latticebpd.drafters.system_names import strategy_named
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring.comparison import describe
from latticebpd.measuring.examples import Paths, draw_examples, lattices_fingerprint, numbered
from latticebpd.measuring.lattice_files import blocks, first_and_all
from latticebpd.measuring.mergeable_counts import block_efficiency
from latticebpd.measuring.replay import DecodeReplay, outcome
from latticebpd.measuring.signature import Signature
from latticebpd.scoring.rescoring import LanguageModel, check_vocabulary
from latticebpd.scoring.weights import DECODE, POSITION, Tuning, edge

ALPHAS = (0.1, 0.5, 0.75, 0.9, 1.0, 1.1, 1.5, 2.0, 5.0, 10.0)
"""The paper's grid."""
PIECE = 64
"""Lattices rescored at every weight before the next ones, so that a neural rescorer's cache serves all weights."""
WIDENINGS = 4
"""Times that a grid grows beyond a best weight at its edge: by twice and four times it, or a half and a quarter."""


@dataclass(frozen=True, eq=False)
class AlphaSweep:
    """One system at several weights, on the same lattices.

    alphas: rising. counts: ``[alphas, slots + 1]`` positions by accepted drafted tokens.
    decode_totals: ``[alphas, 3]`` tokens, calls, fewest calls of decodes; zero where texts are not known.
    """

    system: str
    alphas: tuple[float, ...]
    counts: np.ndarray
    decode_totals: np.ndarray
    signature: Signature

    @property
    def by(self) -> str:
        """``decode``, or ``position`` where texts are not known."""
        return DECODE if self.decode_totals[0, 1] else POSITION

    @property
    def block_efficiency(self) -> np.ndarray:
        """``[alphas]`` tokens per call of decodes, or by position where texts are not known."""
        return block_efficiency(self.by, self.counts, self.decode_totals)

    @property
    def best(self) -> float:
        """The weight of the greatest block efficiency; of equal ones the smallest."""
        return self.alphas[int(np.argmax(self.block_efficiency))]

    def __add__(self, other: AlphaSweep) -> AlphaSweep:
        """The weights of both, on the same lattices."""
        every = (*self.alphas, *other.alphas)
        alphas, order = tuple(sorted(every)), np.argsort(every, kind="stable")
        counts = np.concatenate([self.counts, other.counts])[order]
        totals = np.concatenate([self.decode_totals, other.decode_totals])[order]
        return replace(self, alphas=alphas, counts=counts, decode_totals=totals)


def sweep_alpha(
    blocks: Iterable[LatticeSet], system: str, lm: LanguageModel, alphas: Sequence[float] = ALPHAS
) -> AlphaSweep:
    """Run a system at every weight >= 0, in one pass over the lattices, which no result at the best weight may be of.

    system: as ``latticebpd.drafters.system_names`` has it.
    """
    if not alphas or not min(alphas) >= 0:
        raise ValueError(f"expected weights >= 0, got {list(alphas)}")
    alphas = sorted(set(alphas))
    strategies = [strategy_named(system, lm, alpha) for alpha in alphas]
    first, blocks = first_and_all(block for block in blocks if len(block))
    signature = Signature.of(first, lm=describe(lm), alpha=",".join(f"{alpha:g}" for alpha in alphas))
    slots = first.tokens.shape[1]
    counts, decode_totals = np.zeros((len(alphas), slots + 1), np.int64), np.zeros((len(alphas), 3), np.int64)
    replay = DecodeReplay(decode_totals)
    for block in blocks:
        signature.check(block)
        lengths = np.stack([outcome(strategy, block).lengths for strategy in strategies], axis=1)
        for row in range(len(alphas)):
            counts[row] += np.bincount(lengths[:, row], minlength=slots + 1)
        if block.sequence is not None:
            replay.add(block.sequence, lengths)
    return AlphaSweep(system, tuple(alphas), counts, decode_totals, signature)


def tune(
    paths: Paths,
    lm: LanguageModel,
    system: str = "64-tree",
    alphas: Sequence[float] = ALPHAS,
    examples: int = 100,
    seed: int = 0,
    on_piece: Callable[[int], object] = ignore,
) -> tuple[Tuning, AlphaSweep]:
    """The weight under which ``system`` needs the fewest calls to decode random examples; of equal ones the least.

    Where texts are not known, it is the best one by position. The record says whether it is at the grid's edge even
    after ``WIDENINGS``.

    paths: lattice files, or directories of them. examples: how many, at most. on_piece: called with the number of
    lattices done. Raises ValueError for no lattice, a model of another vocabulary, or files of which only some number
    their texts.
    """
    unit, drawn = draw_examples(paths, examples, seed)

    def pieces() -> Iterator[LatticeSet]:
        for block, numbers in numbered(blocks(paths), unit):
            check_vocabulary(lm, block.fingerprint, block.vocab_size, "the lattices' model")
            used = np.flatnonzero(np.isin(numbers, drawn))
            for begin in range(0, len(used), PIECE):
                yield (piece := block.take(used[begin : begin + PIECE]))
                on_piece(len(piece))

    swept = sweep_alpha(pieces(), system, lm, alphas)
    for _ in range(WIDENINGS):
        side = edge(swept.alphas, swept.block_efficiency.tolist())
        if not side:
            break
        beyond = [swept.best * factor for factor in ((2, 4) if side > 0 else (0.25, 0.5))]
        swept += sweep_alpha(pieces(), system, lm, beyond)
    efficiency = tuple(round(float(value), 6) for value in swept.block_efficiency)
    fingerprint = lattices_fingerprint(paths)
    return Tuning(swept.best, system, swept.alphas, efficiency, unit, drawn, seed, fingerprint, swept.by), swept
