"""Dequantized weights: the bits that the `gguf` package computes, for random blocks of every type."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize

from latticebpd.models.gguf.gguf_file import BLOCKS, GgmlType, GgufTensor
from latticebpd.models.gguf.gguf_weights import dequantized

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


@pytest.mark.parametrize("name", KINDS)
def test_random_blocks_have_the_bits_of_the_gguf_package(name: str) -> None:
    kind = GgmlType[name]
    elements, size = BLOCKS[kind]
    data = np.random.default_rng(int(kind)).integers(0, 256, (300, 3 * size), np.uint8)
    data.setflags(write=False)
    values = dequantized(GgufTensor("w", kind, (300, 3 * elements), data.reshape(-1)))
    with np.errstate(all="ignore"):
        expected = dequantize(data, gguf.GGMLQuantizationType[name])
    assert values.dtype == np.float32
    assert values.shape == expected.shape == (300, 3 * elements)
    finite = np.isfinite(expected)
    assert finite.mean() > 0.5
    assert np.array_equal(values[finite].view(np.uint32), expected[finite].view(np.uint32))
    assert np.array_equal(values, expected, equal_nan=True)


@pytest.mark.filterwarnings("error")
def test_infinite_scales_warn_nobody() -> None:
    block = np.frombuffer(np.float16("inf").tobytes() + bytes(32), np.uint8)
    assert np.isnan(dequantized(GgufTensor("w", GgmlType.Q8_0, (32,), block))).all()


def test_a_type_without_a_formula_is_refused() -> None:
    with pytest.raises(ValueError, match=r"w \(Q2_K\): expected weights as F32, F16, .*Q6_K"):
        dequantized(GgufTensor("w", GgmlType.Q2_K, (256,), np.zeros(84, np.uint8)))
