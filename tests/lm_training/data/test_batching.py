"""Batches: every epoch has all texts once, in an order of its own; token ids fit their type and their model."""

from __future__ import annotations

import numpy as np
import pytest

from latticebpd.lattices.texts import Texts
from lm_training.data.batching import require_vocabulary, rows_of_step, token_dtype


def test_every_epoch_has_all_texts_once_in_another_order() -> None:
    turns = [index for step in range(10) for index in rows_of_step(10, 3, step, 0, 1)]
    epochs = [turns[begin : begin + 10] for begin in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert turns[:10] != [index for step in range(4) for index in rows_of_step(10, 3, step, 1, 1)][:10]


def test_a_batch_has_a_sequence_for_each_part() -> None:
    assert len(rows_of_step(10, 3, 0, 0, 3)) == 3
    with pytest.raises(ValueError, match="expected a batch of at least 4 sequences, one for each part, got 3"):
        rows_of_step(10, 3, 0, 0, 4)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1, np.uint16), (65536, np.uint16), (65537, np.uint32)])
def test_every_id_of_a_vocabulary_fits_its_type(vocab_size: int, dtype: type) -> None:
    assert token_dtype(vocab_size) == dtype
    assert int(np.array(vocab_size - 1).astype(dtype)) == vocab_size - 1


def test_tokens_beyond_the_vocabulary_are_refused() -> None:
    texts = Texts.of_rows([[1, 8]], [1])
    require_vocabulary(texts, 9, "a.npz")
    with pytest.raises(ValueError, match=r"expected a\.npz token ids below 8 .*, got 8"):
        require_vocabulary(texts, 8, "a.npz")
