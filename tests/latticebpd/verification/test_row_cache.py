"""The row cache holds what lists would hold, and copies nothing while there is room."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from latticebpd.verification.row_cache import GrowingLayer, RowCache


@torch.inference_mode()
def append(cache: RowCache, tokens: list[list[int]]) -> None:
    """A pass whose keys are the tokens and whose values are their negatives; two attention heads of size one, two
    layers, and the tokens again as vectors."""
    states = torch.tensor(tokens, dtype=torch.float32)[:, None, :, None].expand(-1, 2, -1, 1)
    for layer in range(2):
        keys, values = cache.text.update(states, -states, layer)
        assert torch.equal(keys, -values)
        assert torch.equal(keys[:, :, -states.shape[2] :], states)
    cache.append(states[:, 0])


def texts(cache: RowCache) -> list[list[float]]:
    """What every layer and head, and the vectors, hold of each row."""
    held = [layer.keys[:, head, :, 0] for layer in cache.text.layers for head in range(2)]
    assert all(torch.equal(each, held[0]) for each in held)
    rows = [held[0][row, :length].tolist() for row, length in enumerate(cache.lengths)]
    vectors = [cache.vectors(row) for row in range(len(rows))]
    assert [each[:, 0].tolist() for each in vectors if each is not None] == rows
    return rows


@pytest.mark.parametrize("seed", range(20))
def test_rows_hold_what_lists_would(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cache, expected = RowCache(is_encoder_decoder=False), [[] for _ in range(4)]  # type: list[list[int]]
    cache.lengths = [0] * 4
    for _ in range(12):
        rows, columns = len(expected), int(rng.integers(1, 7))
        tokens = rng.integers(1, 1000, size=(rows, columns)).tolist()
        append(cache, tokens)
        kept = [rng.permutation(columns)[: rng.integers(0, columns + 1)].tolist() for _ in range(rows)]
        cache.keep(kept)
        expected = [[*text, *(new[at] for at in own)] for text, new, own in zip(expected, tokens, kept, strict=True)]
        assert texts(cache) == expected
        assert cache.text.get_seq_length() == cache.longest
        if rng.random() < 0.3:  # a pass that is undone
            append(cache, tokens)
            cache.cut()
            assert texts(cache) == expected
        if rng.random() < 0.3:
            chosen = rng.integers(rows, size=int(rng.integers(1, 6))).tolist()
            cache.select(chosen)
            expected = [expected[row] for row in chosen]
            assert texts(cache) == expected
        if rng.random() < 0.3:
            lengths = [int(rng.integers(len(text) + 1)) for text in expected]
            cache.cut(lengths)
            expected = [text[:length] for text, length in zip(expected, lengths, strict=True)]
            assert texts(cache) == expected


def test_pass_copies_nothing_while_there_is_room() -> None:
    layer, moves = GrowingLayer(), 0
    for _ in range(1000):
        before = [buffer.data_ptr() for buffer in layer.buffers]
        layer.update(torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 8))  # keys and values may differ in size
        moves += before != [buffer.data_ptr() for buffer in layer.buffers]
    assert layer.keys.shape == (2, 1, 1000, 4)
    assert layer.values.shape == (2, 1, 1000, 8)
    assert moves < 20
