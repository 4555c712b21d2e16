"""The CPU kernels by themselves, on numpy's memory, so that sanitizers can watch them: close to double precision."""

from __future__ import annotations

import platform
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latticebpd.cpu import _engine

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ISAS = range(_engine.isas())
THREADS = pytest.mark.parametrize("threads", [1, 2])


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def int8_product(x: np.ndarray, weight: np.ndarray, threads: int = 1) -> np.ndarray:
    return _engine.Int8Weights(weight).multiply(x, threads)


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
        product = int8_product(x, weight, threads)
        np.testing.assert_array_equal(product, matrix.multiply(filled))
        exact, sizes = x.astype(np.float64) @ weight.T.astype(np.float64), np.abs(x) @ np.abs(weight).T
        largest = np.abs(x).max(1, initial=0)[:, None] * np.abs(weight).sum(1)
        largest += np.abs(x).sum(1)[:, None] * np.abs(weight).max(1)
        assert (np.abs(product - exact) <= largest / 250 + sizes / 1000).all()


@pytest.mark.parametrize("inputs", [1, 515, 516, 517, 5000])
def test_the_largest_sums_do_not_overflow(inputs: int) -> None:
    signs = np.array([[1], [-1]], np.float32) * np.ones((2, inputs), np.float32)
    np.testing.assert_allclose(int8_product(signs, signs), [[inputs, -inputs], [-inputs, inputs]], rtol=1e-3)


def test_zeros_nan_and_infinity_stay_in_their_rows() -> None:
    x, weight = np.ones((5, 8), np.float32), np.ones((3, 8), np.float32)
    x[0], x[1, 3], x[2, 3], x[3], weight[1] = 0, np.nan, -np.inf, 1e-45, 0
    product = int8_product(x, weight)
    assert product[0].tolist() == [0, 0, 0]
    assert np.isnan(product[[1, 2]]).all()
    np.testing.assert_allclose(product[[3, 4]], [[0, 0, 0], [8, 0, 8]], rtol=1e-3, atol=1e-30)


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
            top, ends = _engine.top_k(x, k, threads, isa), x.astype(np.float64)
            order = np.argsort(-x, axis=1, kind="stable")[:, :k]
            np.testing.assert_array_equal(top[1], order)
            np.testing.assert_array_equal(top[0], np.take_along_axis(x, order, axis=1))
            np.testing.assert_allclose(
                top[2], np.log(np.exp(ends - ends.max(1, keepdims=True)).sum(1)) + ends.max(1), atol=5e-6
            )


@pytest.mark.parametrize("isa", ISAS)
def test_rows_with_nan_or_infinity_have_no_top_k(isa: int) -> None:
    for count in (7, 300):
        x = np.ones((4, count), np.float32)
        x[0, 3], x[1, 3], x[2] = np.nan, np.inf, -np.inf
        values, indices, log_sums = _engine.top_k(x, 2, 1, isa)
        assert np.isnan(values[:3]).all()
        assert not np.isfinite(log_sums[:3]).any()
        assert indices[3].tolist() == [0, 1]


def test_arrays_of_other_shapes_are_refused() -> None:
    """And none is read or written beyond its end."""
    x, matrix = np.ones((2, 8), np.float32), _engine.Int8Weights(np.ones((3, 9), np.float32))
    with pytest.raises(ValueError, match=r"expected states \[rows, 9\]"):
        matrix.multiply(x, 1)
    with pytest.raises(ValueError, match=r"expected weights \[outputs, inputs\]"):
        _engine.Int8Weights(x[0])
    up, down = np.ones((2, 4, 12), np.float32), np.ones((2, 6, 4), np.float32)
    heads = _engine.Int8Heads(up, down)
    x = np.ones((2, 12), np.float32)
    assert heads.states(x, 2, 1).shape == (2, 2, 6)
    with pytest.raises(ValueError, match="expected at most 2 heads, got 3"):
        heads.states(x, 3, 1)
    with pytest.raises(ValueError, match=r"expected states \[rows, 12\]"):
        heads.states(x[:, 1:], 2, 1)
    for other in (up[:1], up[:, 1:], up[..., 7:], up[0]):
        with pytest.raises(ValueError, match=r"expected up \[heads, inner, inputs\] and down"):
            _engine.Int8Heads(other, down)
    ties = np.ones((2, 5, 6), np.float32), np.ones((5, 6), np.float32)
    projection = _engine.Int8Weights(np.ones((3, 6), np.float32))
    lattices = _engine.HeadLattices(heads, projection, range(3), *ties)
    for slots, k in ((0, 1), (3, 1), (1, 0), (1, 4)):
        with pytest.raises(ValueError, match="expected 1 to 2 slots and 1 to 3 arcs"):
            lattices.lattices(x, slots, k, False, 1)
    plain = _engine.HeadLattices(heads, projection, range(3), np.zeros((2, 0, 6)), np.zeros((0, 6)))
    with pytest.raises(ValueError, match="expected heads with transitions"):
        plain.lattices(x, 2, 1, True, 1)
    with pytest.raises(ValueError, match="expected an id of each of the projection's tokens"):
        _engine.HeadLattices(heads, projection, range(2), *ties)
    with pytest.raises(ValueError, match="expected heads of the projection's size"):
        _engine.HeadLattices(_engine.Int8Heads(up, down[:, :4]), projection, range(3), *ties)
    with pytest.raises(ValueError, match=r"expected transitions up \[2, width, size\]"):
        _engine.HeadLattices(heads, projection, range(3), ties[0][:, 1:], ties[1])
    for array, k in ((x, 0), (x, 13), (x[0], 1), (x[None], 1)):
        with pytest.raises(ValueError, match="expected k > 0 and rows of at least k numbers"):
            _engine.top_k(array, k, 1)
    for threads in (0, 2**31, 2**62):
        with pytest.raises(ValueError, match=rf"expected a number of threads from 1 to 2\^31 - 1, got {threads}"):
            matrix.multiply(np.ones((2, 9), np.float32), threads)
    with pytest.raises(ValueError, match=f"expected the number of an instruction set below {len(ISAS)}, got 7"):
        _engine.top_k(x, 1, 1, 7)


def test_vectors_are_moved_within_their_buffer_only() -> None:
    """A buffer is an array, whose shape bounds the moves."""
    buffer = np.arange(2 * 3 * 4 * 5, dtype=np.uint8).reshape(2, 3, 4, 5)
    moved = buffer.copy()
    _engine.move(moved, [(1, 0, 3), (1, 3, 0), (0, 2, 1)])
    expected = buffer.copy()
    expected[1, :, 3], expected[1, :, 0], expected[0, :, 1] = buffer[1, :, 0], buffer[1, :, 3], buffer[0, :, 2]
    np.testing.assert_array_equal(moved, expected)
    for move in ((2, 0, 0), (0, 4, 0), (0, 0, 4), (2**63, 0, 0)):
        with pytest.raises(ValueError, match=r"expected moves within 2 rows and 4 positions, got one in row \d+ from"):
            _engine.move(moved, [move])
    with pytest.raises(ValueError, match=r"expected bytes \[rows, heads, positions, size\], got 3 axes"):
        _engine.move(moved[0], [(0, 0, 0)])
    for other in (moved[:, :, ::2], moved.astype(np.float32), 8):
        with pytest.raises(TypeError):
            _engine.move(other, [(0, 0, 0)])
    moved.setflags(write=False)
    with pytest.raises(ValueError, match="not writeable"):
        _engine.move(moved, [(0, 0, 0)])


def head_lattices(rng: np.random.Generator, width: int) -> tuple[Any, Any, Any, list[np.ndarray], Any]:
    """Heads that read 96 inputs, a projection to 700 tokens, numbered backwards, and transitions."""
    heads = _engine.Int8Heads(*(rng.normal(0, 0.1, shape).swapaxes(1, 2) for shape in ((3, 96, 20), (3, 20, 48))))
    weights, ties = drawn(rng, 700, 48) / 7, [drawn(rng, 2, width, 48) / 7, drawn(rng, width, 48)]
    projection = _engine.Int8Weights(weights)
    return heads, projection, weights, ties, _engine.HeadLattices(heads, projection, range(700, 0, -1), *ties)


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
        states = heads.states(read, slots, threads)
        logits = projection.multiply(states.reshape(-1, 48), threads)
        tokens, log_probs = kernels.lattices(inputs, slots, 9, False, threads)
        values, wanted, totals = _engine.top_k(logits, 9, threads)
        np.testing.assert_array_equal(tokens, 700 - wanted.reshape(tokens.shape))
        np.testing.assert_array_equal(log_probs, (values - totals[:, None]).reshape(tokens.shape))
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
    states = heads.states(np.hstack([inputs[:, :48], normalised(inputs[:, 48:])]), 3, threads)
    inner = (states[:, 1:] @ up[0].T)[:, :, None] + normalised(embeddings[:, :-1]) @ up[1].T
    inner /= 1 + np.exp(-inner)
    pairs = inner @ (embeddings[:, 1:] @ down.T).swapaxes(-1, -2) + log_probs[:, 1:, None]
    expected = _engine.chain_weights(log_probs, log_probs[:, 0], pairs)
    for ours, wanted in zip((arcs, gains), expected, strict=True):
        assert np.linalg.norm(ours - wanted) < 0.02 * np.linalg.norm(wanted)
    for row in range(4):
        single = kernels.lattices(inputs[[row]], 3, 9, True, threads)
        for ours, wanted in zip(single, (tokens, arcs, gains), strict=True):
            np.testing.assert_array_equal(ours[0], wanted[row])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors' files have no instructions of their own")
@pytest.mark.parametrize("name", PROJECT["tool"]["latticebpd"]["instructions"])
def test_a_file_with_instructions_of_its_own_shares_no_function(name: str, tmp_path: Path) -> None:
    """Of copies in several files the linker takes any: an older processor would run what it lacks. Without optimization
    a compiler inlines only what it must."""
    source, compiled = ROOT / "latticebpd/cpu/_engine" / name, tmp_path / "operations.o"
    instructions = PROJECT["tool"]["latticebpd"]["instructions"][name]
    flags = ["-std=c++20", "-O0", "-Wno-psabi", *instructions, f"-I{ROOT / 'fst/include'}"]
    subprocess.run(["g++", *flags, "-c", source, "-o", compiled], check=True)
    symbols = subprocess.check_output(["nm", "-C", "--defined-only", "--extern-only", compiled], text=True)
    functions = [line for line in symbols.splitlines() if line.split()[1] not in "VD"]
    assert functions == []
    assert "_operations" in symbols


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
matrix, x = _engine.Int8Weights(np.ones((300, 300))), np.ones((12, 300), np.float32)
def work():
    while True:
        matrix.multiply(x, 3)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
