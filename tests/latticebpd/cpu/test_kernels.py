"""The CPU kernels by themselves, on numpy's memory, so that sanitizers can watch them: close to double precision, and
nothing is written beyond the output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latticebpd.cpu import _engine, array_kernels
from latticebpd.cpu.array_kernels import Int8HeadKernels

ISAS = range(_engine.isas())
THREADS = pytest.mark.parametrize("threads", [1, 2])


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def address(numbers: np.ndarray) -> int:
    return numbers.ctypes.data


def int8_product(x: np.ndarray, weight: np.ndarray, threads: int = 1) -> np.ndarray:
    x, y = x.copy(), np.full((len(x) + 1, len(weight)), 7, np.float32)
    _engine.Int8Weights(address(weight), *weight.shape).multiply(address(x), len(x), address(y), threads)
    assert (y[-1] == 7).all(), "written beyond its end"
    return y[:-1]


@THREADS
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (33, 31), (64, 32), (100, 97), (576, 193)])
def test_products_are_those_of_an_engines_8_bit_matrix_of_whole_groups(inputs: int, outputs: int, threads: int) -> None:
    rng = np.random.default_rng(inputs)
    weight = drawn(rng, outputs, inputs) * np.exp(drawn(rng, outputs, 1))
    wider = np.zeros((outputs, -(-inputs // 32) * 32), np.float32)
    wider[:, :inputs] = weight
    matrix = _engine.Matrix.of_numbers(_engine.WeightMemory(), wider, True)
    for rows in (0, 1, 2, 5, 12, 13, 25, 70):
        x, filled = drawn(rng, rows, inputs) * np.exp(drawn(rng, rows, 1)), np.zeros((rows, wider.shape[1]), np.float32)
        filled[:, :inputs] = x
        found = int8_product(x, weight, threads)
        np.testing.assert_array_equal(found, matrix.multiply(filled))
        exact, sizes = x.astype(np.float64) @ weight.T.astype(np.float64), np.abs(x) @ np.abs(weight).T
        largest = np.abs(x).max(1, initial=0)[:, None] * np.abs(weight).sum(1)
        largest += np.abs(x).sum(1)[:, None] * np.abs(weight).max(1)
        assert (np.abs(found - exact) <= largest / 250 + sizes / 1000).all()


@pytest.mark.parametrize("inputs", [1, 515, 516, 517, 5000])
def test_the_largest_sums_do_not_overflow(inputs: int) -> None:
    signs = np.array([[1], [-1]], np.float32) * np.ones((2, inputs), np.float32)
    np.testing.assert_allclose(int8_product(signs, signs), [[inputs, -inputs], [-inputs, inputs]], rtol=1e-3)


def test_zeros_nan_and_infinity_stay_in_their_rows() -> None:
    x, weight = np.ones((5, 8), np.float32), np.ones((3, 8), np.float32)
    x[0], x[1, 3], x[2, 3], x[3], weight[1] = 0, np.nan, -np.inf, 1e-45, 0
    found = int8_product(x, weight)
    assert found[0].tolist() == [0, 0, 0]
    assert np.isnan(found[[1, 2]]).all()
    np.testing.assert_allclose(found[[3, 4]], [[0, 0, 0], [8, 0, 8]], rtol=1e-3, atol=1e-30)


@THREADS
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 5, 255, 256, 257, 700, 5000])
def test_the_top_k_are_those_of_a_stable_sort_and_log_sums_close_to_double_precision(
    isa: int, count: int, threads: int
) -> None:
    rng = np.random.default_rng(count)
    for x in (
        drawn(rng, 19, count) * 8,
        rng.integers(0, 4, (19, count)).astype(np.float32),
        np.zeros((2, count), np.float32),
    ):
        x[0, : count // 2] = -np.inf
        for k in {1, min(count, 64), count}:
            found, ends = top_k(isa, x, k, threads), x.astype(np.float64)
            order = np.argsort(-x, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(found[1], order)
            np.testing.assert_array_equal(found[0], np.take_along_axis(x, order, axis=1))
            np.testing.assert_allclose(
                found[2], np.log(np.exp(ends - ends.max(1, keepdims=True)).sum(1)) + ends.max(1), atol=5e-6
            )


@pytest.mark.parametrize("isa", ISAS)
def test_rows_with_nan_or_infinity_have_no_top_k(isa: int) -> None:
    for count in (7, 300):
        x = np.ones((4, count), np.float32)
        x[0, 3], x[1, 3], x[2] = np.nan, np.inf, -np.inf
        values, indices, log_sums = top_k(isa, x, 2, 1)
        assert np.isnan(values[:3]).all()
        assert not np.isfinite(log_sums[:3]).any()
        assert indices[3].tolist() == [0, 1]


def top_k(isa: int, x: np.ndarray, k: int, threads: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, rows = x.copy(), len(x)
    values, indices, log_sums = (
        np.full((rows + 1, k), 7, np.float32),
        np.full((rows + 1, k), 7, np.int32),
        np.full(rows + 1, 7, np.float32),
    )
    _engine.top_k(address(x), rows, x.shape[1], k, address(values), address(indices), address(log_sums), threads, isa)
    assert all((each[-1] == 7).all() for each in (values, indices, log_sums)), "written beyond its end"
    return values[:-1], indices[:-1], log_sums[:-1]


def head_lattices(rng: np.random.Generator, width: int) -> tuple[Int8HeadKernels, Any, Any, list[np.ndarray], Any]:
    """Heads that read 96 inputs, a projection to 700 tokens, numbered backwards, and transitions."""
    heads = Int8HeadKernels(rng.normal(0, 0.1, (3, 96, 20)), rng.normal(0, 0.1, (3, 20, 48)))
    weights, ties = drawn(rng, 700, 48) / 7, [drawn(rng, 2, width, 48) / 7, drawn(rng, width, 48)]
    projection = _engine.Int8Weights(address(weights), *weights.shape)
    return heads, projection, weights, ties, _engine.HeadLattices(heads.kernels, projection, range(700, 0, -1), *ties)


def normalised(vectors: np.ndarray) -> np.ndarray:
    means = (vectors.astype(np.float64) ** 2).mean(-1, keepdims=True)
    return vectors / np.sqrt(means + _engine.EPSILON).astype(vectors.dtype)


@THREADS
def test_one_call_makes_the_lattices_of_heads(threads: int) -> None:
    """The bits of their states, the projection and the best tokens one after another."""
    rng = np.random.default_rng(0)
    heads, projection, _, _, kernels = head_lattices(rng, 0)
    for rows, slots in ((1, 3), (5, 2), (2, 1)):
        inputs = drawn(rng, rows, 96)
        read = np.hstack([inputs[:, :48], normalised(inputs[:, 48:])])
        states, logits = heads.states(read, slots), np.empty((rows, slots, 700), np.float32)
        projection.multiply(address(states), rows * slots, address(logits), threads)
        tokens, log_probs = kernels.lattices(inputs, slots, 9, False, threads)
        for row, (wanted, expected) in enumerate(array_kernels.top_k(logits, 9)):
            np.testing.assert_array_equal(tokens[row], 700 - wanted)
            np.testing.assert_array_equal(log_probs[row], expected)
    with pytest.raises(ValueError, match="expected finite states, which heads read"):
        kernels.lattices(np.full((1, 96), np.nan, np.float32), 2, 9, False, threads)
    with pytest.raises(ValueError, match=r"expected states \[rows, 96\]"):
        kernels.lattices(np.zeros((1, 48), np.float32), 2, 9, False, threads)


@THREADS
@pytest.mark.parametrize("width", [1, 16, 40])
def test_transitions_of_heads_are_close_to_their_formula(width: int, threads: int) -> None:
    """In double precision, and the same whatever was computed before."""
    rng = np.random.default_rng(width)
    heads, _, weights, (up, down), kernels = head_lattices(rng, width)
    inputs = drawn(rng, 4, 96)
    plain, log_probs = kernels.lattices(inputs, 3, 9, False, threads)
    tokens, arcs, gains = kernels.lattices(inputs, 3, 9, True, threads)
    np.testing.assert_array_equal(tokens, plain)
    embeddings = weights.astype(np.float64)[700 - tokens]
    states = heads.states(np.hstack([inputs[:, :48], normalised(inputs[:, 48:])]), 3)
    inner = (states[:, 1:] @ up[0].T)[:, :, None] + normalised(embeddings[:, :-1]) @ up[1].T
    inner /= 1 + np.exp(-inner)
    pairs = inner @ (embeddings[:, 1:] @ down.T).swapaxes(-1, -2) + log_probs[:, 1:, None]
    expected = array_kernels.chain_weights(log_probs, log_probs[:, 0], pairs)
    for ours, wanted in zip((arcs, gains), expected, strict=True):
        assert np.linalg.norm(ours - wanted) < 0.02 * np.linalg.norm(wanted)
    for row in range(4):
        single = kernels.lattices(inputs[[row]], 3, 9, True, threads)
        for ours, wanted in zip(single, (tokens, arcs, gains), strict=True):
            np.testing.assert_array_equal(ours[0], wanted[row])


def test_threads_share_tasks_whatever_fails_and_in_a_forked_child(tmp_path: Path) -> None:
    """The pool alone, in C++: `tests/sanitize.sh` runs the same under ThreadSanitizer."""
    program = tmp_path / "pool"
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-pthread", Path(__file__).parent / "pool.cpp", "-o", program], check=True
    )
    subprocess.run([program], check=True, timeout=300)


def test_a_busy_daemon_thread_does_not_disturb_the_end_of_the_program() -> None:
    program = """
import threading, time
import numpy as np
from latticebpd.cpu import _engine
weight, x, y = np.ones((300, 300), np.float32), np.ones((12, 300), np.float32), np.empty((12, 300), np.float32)
matrix = _engine.Int8Weights(weight.ctypes.data, 300, 300)
def work():
    while True:
        matrix.multiply(x.ctypes.data, 12, y.ctypes.data, 3)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
