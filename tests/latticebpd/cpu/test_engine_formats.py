"""The engine's matrices: GGUF's blocks without the loss of a bit, and products within what rounding explains."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latticebpd.cpu import _engine
from latticebpd.models.gguf.gguf_file import BLOCKS, GgmlType, GgufTensor
from latticebpd.models.gguf.gguf_weights import dequantized

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def blocks_of(kind: str, outputs: int, inputs: int, seed: int = 0) -> np.ndarray:
    """Random blocks of a type, ``[outputs, bytes]``; their float16 numbers are small."""
    rng = np.random.default_rng(seed)
    if kind in ("F32", "F16", "BF16"):
        numbers = rng.standard_normal((outputs, inputs)).astype(np.float32)
        if kind == "BF16":
            return np.ascontiguousarray(numbers.view(np.uint8).reshape(outputs, inputs, 4)[:, :, 2:]).reshape(
                outputs, -1
            )
        return numbers.astype(np.float16 if kind == "F16" else np.float32).view(np.uint8).reshape(outputs, -1)
    elements, size = BLOCKS[GgmlType[kind]]
    blocks = rng.integers(0, 256, (outputs * inputs // elements, size), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = (rng.standard_normal((len(blocks), 1)) * 0.01).astype(np.float16).view(np.uint8)
    return blocks.reshape(outputs, -1)


def weights_of(kind: str, blocks: np.ndarray, outputs: int, inputs: int) -> np.ndarray:
    return dequantized(GgufTensor("w", GgmlType[kind], (outputs, inputs), blocks))


def matrix_of(kind: str, blocks: np.ndarray, outputs: int, inputs: int, order: Any = ()) -> _engine.Matrix:
    return _engine.Matrix.of_blocks(
        _engine.WeightMemory(), int(GgmlType[kind]), blocks.reshape(-1), outputs, inputs, list(order)
    )


def rounding_error(x: np.ndarray) -> np.ndarray:
    """``[rows, inputs]`` the largest error of each activation: half a scale, which all but the largest number's four
    neighbours decide, of a group of 32."""
    groups = np.abs(x).reshape(len(x), -1, 8, 4).max(-1)
    largest = groups.max(-1)
    rest = np.sort(groups, -1)[..., -2]
    scale = np.maximum(rest, largest / 128) / 127
    return np.repeat(scale * 0.51, 32, axis=-1).reshape(x.shape)


@pytest.mark.parametrize(("outputs", "inputs"), [(16, 256), (5, 256), (33, 512), (48, 768)])
@pytest.mark.parametrize("kind", TYPES)
def test_blocks_lose_nothing_and_products_are_what_rounding_explains(kind: str, outputs: int, inputs: int) -> None:
    blocks = blocks_of(kind, outputs, inputs)
    weights = weights_of(kind, blocks, outputs, inputs)
    matrix = matrix_of(kind, blocks, outputs, inputs)
    assert all((matrix.row(output) == weights[output]).all() for output in range(outputs))
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((11, inputs)) * rng.lognormal(0, 2, (11, inputs))).astype(np.float32)
    exact = x.astype(np.float64) @ weights.T.astype(np.float64)
    bound = 1e-5 * (np.abs(x).astype(np.float64) @ np.abs(weights).T)
    if kind in HALVES:
        bound += rounding_error(x) @ np.abs(weights.astype(np.float64)).T
    products = [matrix.multiply(x, 1, isa) for isa in range(_engine.isas())]
    assert (np.abs(products[0] - exact) <= bound).all()
    for other in [*products, matrix.multiply(x, 3), np.concatenate([matrix.multiply(row[None]) for row in x])]:
        assert (other == products[0]).all()


@pytest.mark.parametrize("kind", [kind for kind in TYPES if not kind.endswith("K")])
def test_one_group_is_enough(kind: str) -> None:
    blocks = blocks_of(kind, 3, 32)
    weights, matrix = weights_of(kind, blocks, 3, 32), matrix_of(kind, blocks, 3, 32)
    assert all((matrix.row(output) == weights[output]).all() for output in range(3))
    x = np.zeros((32, 32), np.float32)
    np.fill_diagonal(x, 2.0**-9)  # alone in its group, a number is rounded by nothing
    for isa in range(_engine.isas()):
        np.testing.assert_allclose(matrix.multiply(x, 1, isa), x @ weights.T, rtol=3e-4, atol=1e-12)


@pytest.mark.parametrize("weight", [-128, -127, 127])
def test_the_largest_8_bit_weights_times_the_largest_numbers_do_not_overflow(weight: int) -> None:
    blocks = np.zeros((16, 34), np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    blocks[:, 2:] = np.int8(weight).view(np.uint8)
    matrix = matrix_of("Q8_0", blocks, 16, 32)
    for x in (np.ones((3, 32), np.float32), -np.ones((3, 32), np.float32)):
        for isa in range(_engine.isas()):
            np.testing.assert_allclose(matrix.multiply(x, 1, isa), 32 * weight * x[:, :16], rtol=1e-6)


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_of_numbers_has_its_bits_in_any_company(kind: str) -> None:
    matrix = matrix_of(kind, blocks_of(kind, 37, 256), 37, 256)
    x = np.random.default_rng(6).standard_normal((70, 256)).astype(np.float32)
    for isa in range(_engine.isas()):
        single = np.concatenate([matrix.multiply(row[None], 1, isa) for row in x])
        for rows in (*range(2, 16), 24, 63, 64, 65, 70):
            assert (matrix.multiply(x[-rows:], 1 + rows % 3, isa) == single[-rows:]).all(), (isa, rows)
        assert (matrix.multiply(x) == single).all()


@pytest.mark.parametrize("kind", ["Q8_0", "Q6_K"])
@pytest.mark.parametrize("inputs", [16_384, 65_536])
def test_long_rows_are_taken_in_blocks_of_fewer(kind: str, inputs: int) -> None:
    matrix = matrix_of(kind, blocks_of(kind, 33, inputs), 33, inputs)
    x = np.random.default_rng(8).standard_normal((27, inputs)).astype(np.float32)
    for isa in range(_engine.isas()):
        single = np.concatenate([matrix.multiply(row[None], 1, isa) for row in x])
        for rows in (12, 13, 20, 27):
            assert (matrix.multiply(x[-rows:], 1 + rows % 2, isa) == single[-rows:]).all(), (isa, rows)


@pytest.mark.parametrize("kind", TYPES)
def test_small_whole_activations_lose_nothing(kind: str) -> None:
    blocks = blocks_of(kind, 20, 256)
    rng, own = np.random.default_rng(7), blocks.reshape(-1, BLOCKS[GgmlType[kind]][1])
    for at in HALVES.get(kind, []):  # scales that are powers of two, and small, so that float32 holds every sum
        own[:, at : at + 2] = (2.0 ** rng.integers(-1, 1, (len(own), 1))).astype(np.float16).view(np.uint8)
    if kind == "Q6_K":
        own[:, 192:208] = rng.integers(-3, 4, (len(own), 16)).astype(np.int8).view(np.uint8)
    elif kind in ("Q4_K", "Q5_K"):
        own[:, 4:16] &= 3
    if kind not in HALVES:
        blocks = rng.integers(-8, 9, (20, 256)).astype(np.float32)
        blocks = {
            "F32": blocks.view(np.uint8), "F16": blocks.astype(np.float16).view(np.uint8),
            "BF16": np.ascontiguousarray(blocks.view(np.uint16)[:, 1::2]).view(np.uint8),
        }[kind]  # fmt: skip
    weights = weights_of(kind, blocks, 20, 256).astype(np.float64)
    x = np.random.default_rng(2).integers(-63, 64, (7, 256)).astype(np.float32)
    x[:, ::32], x[:, 17::32] = 127.0, -127.0  # so that scales are 1: one of them decides, whatever the other is
    x[6, 40] = 127.0 * 128  # the largest number is as exact, and costs the others nothing
    for scale in (1.0, 2.0**-40, 2.0**40):
        got = matrix_of(kind, blocks, 20, 256).multiply(x * np.float32(scale))
        assert (got == x.astype(np.float64) @ weights.T * scale).all()


def test_every_number_of_half_precision_is_read() -> None:
    """Subnormal, infinite and no numbers too, as weights and as scales. (A zero product may lose its sign, since
    a minimum of 0 is added.)"""
    halves = np.arange(65_536, dtype=np.uint16)
    as_weights = matrix_of("F16", halves.view(np.uint8), 64, 1024)
    rows = np.stack([as_weights.row(i) for i in range(64)]).reshape(-1)
    np.testing.assert_array_equal(rows.view(np.uint32), halves.view(np.float16).astype(np.float32).view(np.uint32))
    blocks = np.ones((65_536, 34), np.uint8)
    blocks[:, :2] = halves[:, None].view(np.uint8)
    as_scales, weights = matrix_of("Q8_0", blocks, 2048, 1024), weights_of("Q8_0", blocks, 2048, 1024)
    np.testing.assert_array_equal([as_scales.row(i) for i in range(2048)], weights)
    x = np.ones((1, 32), np.float32)
    column = matrix_of("Q8_0", blocks, 65_536, 32)
    with np.errstate(all="ignore"):
        for isa in range(_engine.isas()):
            np.testing.assert_allclose(column.multiply(x, 1, isa)[0], weights.reshape(-1, 32)[:, 0] * 32, rtol=1e-6)


def test_rows_come_in_the_order_that_is_asked_for() -> None:
    blocks = blocks_of("Q4_1", 24, 64)
    order = np.random.default_rng(3).permutation(24)
    matrix, weights = matrix_of("Q4_1", blocks, 24, 64, order), weights_of("Q4_1", blocks, 24, 64)
    assert all((matrix.row(output) == weights[row]).all() for output, row in enumerate(order))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=32, max_size=32), st.integers(0, 5))
def test_every_activation_is_within_half_a_scale(numbers: list[float], repeats: int) -> None:
    """Products with a multiple of the identity show what activations became; largest numbers may be tied."""
    x = np.array(numbers, np.float32)[None]
    x[0, : 5 * repeats : 5] = np.abs(x).max()
    identity = _engine.Matrix.of_numbers(_engine.WeightMemory(), np.eye(32, dtype=np.float32), True)
    ones = np.array([identity.row(i)[i] for i in range(32)])  # 1, rounded to float16 times 127
    became = identity.multiply(x)[0] / ones
    assert (np.abs(became - x[0]) <= rounding_error(x)[0] + 1e-6 * np.abs(x[0]) + 1e-25).all()


def test_numbers_that_are_not_finite_stay_in_their_rows() -> None:
    matrix = matrix_of("Q8_0", blocks_of("Q8_0", 16, 64), 16, 64)
    x = np.ones((4, 64), np.float32)
    x[1, 3], x[2, 40] = np.nan, np.inf
    for isa in range(_engine.isas()):
        y = matrix.multiply(x, 1, isa)
        assert (y[3] == y[0]).all()
        assert np.isfinite(y[0]).all()
        assert not np.isfinite(y[1]).any()
        assert not np.isfinite(y[2]).any()
    zero = matrix.multiply(np.zeros((1, 64), np.float32))
    assert (zero == 0).all()


@pytest.mark.parametrize("size", [1e-30, 1e-38, 1e30, 1e36])
def test_tiny_and_huge_numbers(size: float) -> None:
    blocks = blocks_of("Q4_0", 16, 32)
    weights = weights_of("Q4_0", blocks, 16, 32)
    x = (np.random.default_rng(4).standard_normal((3, 32)) * size).astype(np.float32)
    got = matrix_of("Q4_0", blocks, 16, 32).multiply(x)
    bound = (rounding_error(x).astype(np.float64) + 1e-5 * np.abs(x)) @ np.abs(weights).T + 1e-29
    assert (np.abs(got - x.astype(np.float64) @ weights.T) <= bound).all()


def test_float32_weights_become_8_bits_as_q8_0() -> None:
    gguf = pytest.importorskip("gguf")
    numbers = (np.random.default_rng(5).standard_normal((20, 96)) * 3).astype(np.float32)
    blocks = gguf.quants.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    ours = _engine.Matrix.of_numbers(_engine.WeightMemory(), numbers, True)
    theirs = matrix_of("Q8_0", blocks, 20, 96)
    apart = [int((ours.row(i) != theirs.row(i)).sum()) for i in range(20)]
    assert sum(apart) <= 4  # halves are rounded to even numbers here, away from zero there
