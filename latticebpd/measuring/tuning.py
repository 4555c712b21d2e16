"""The weight of a language model, tuned on examples that reports leave out (Kim 2024, appendix D).

Every system has a weight of its own, under which its decodes of the examples take the fewest calls. The records are
stored with the model (``latticebpd.scoring.weights``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring.examples import Paths, draw_examples, lattices_fingerprint, numbered
from latticebpd.measuring.lattice_files import blocks
from latticebpd.measuring.sweep import ALPHAS, AlphaSweep, sweep_alpha
from latticebpd.scoring.rescoring import LanguageModel, check_vocabulary
from latticebpd.scoring.weights import Tuning, edge

PIECE = 64
"""Lattices rescored at every weight before the next ones, so that a neural rescorer's cache serves all weights."""
WIDENINGS = 4
"""Times that a grid grows beyond a best weight at its edge: by twice and four times it, or a half and a quarter."""


def tune(
    paths: Paths,
    lm: LanguageModel,
    system: str = "64-tree",
    alphas: Sequence[float] = ALPHAS,
    examples: int = 100,
    seed: int = 0,
    on_piece: Callable[[int], None] | None = None,
) -> tuple[Tuning, AlphaSweep]:
    """The weight under which ``system`` needs the fewest calls to decode random examples; of equal ones the least.

    Where texts are not known, the weight with the most accepted tokens, by position. A best weight at the edge widens
    the grid up to ``WIDENINGS`` times; the record says whether it is still at the edge.

    Args:
        paths: lattice files, or directories of them.
        lm: the language model.
        system: as ``latticebpd.drafters.system_names`` has it.
        alphas: weights to try.
        examples: how many, at most.
        on_piece: called with the number of lattices done, for progress.

    Raises:
        ValueError: no lattice, a model of another vocabulary, or files of which only some number their texts.
    """
    unit, drawn = draw_examples(paths, examples, seed)

    def pieces() -> Iterator[LatticeSet]:
        for block, numbers in numbered(blocks(paths), unit):
            check_vocabulary(lm, block.fingerprint, block.vocab_size, "the lattices' model")
            used = np.flatnonzero(np.isin(numbers, drawn))
            for begin in range(0, len(used), PIECE):
                yield (piece := block.take(used[begin : begin + PIECE]))
                if on_piece is not None:
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
