"""Texts into batches: padded rows, and which texts a step's batch holds."""

from __future__ import annotations

import functools

import numpy as np


def padded(rows: list[np.ndarray], fill: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Token ids ``[rows, longest]`` int64, filled up on the right or on the left, and the mask, 1 where they are the
    row's own."""
    width = max(map(len, rows), default=0)
    ids, mask = np.full((len(rows), width), fill, dtype=np.int64), np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place], mask[number, place] = row, 1
    return ids, mask


def rows_of_step(texts: int, batch_size: int, step: int, seed: int, parts: int) -> list[int]:
    """Which of so many texts a step's batch holds: all in random order, once per epoch, in another order in the next.

    Raises:
        ValueError: fewer than the parts that they are to be dealt out to.
    """
    if parts > batch_size:
        raise ValueError(
            f"expected a batch of at least {parts} sequences, one for each part, got {batch_size}; use fewer parts"
        )
    places = range(step * batch_size, (step + 1) * batch_size)
    return [int(_epoch_order(texts, seed, place // texts)[place % texts]) for place in places]


@functools.lru_cache(maxsize=4)
def _epoch_order(texts: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 0]).permutation(texts)
