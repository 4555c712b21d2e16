"""The kernels for few tokens by themselves, on numpy's memory, so that sanitizers can watch them: numbers of double precision, the same
bits in any company, nothing written beside the output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from latticebpd.models import _narrow

KINDS = range(_narrow.kinds())
THREADS = pytest.mark.parametrize("threads", [1, 2])
NONE, CAUSAL, VISIBLE, ADDED = range(4)


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def address(numbers: np.ndarray | None) -> int:
    return 0 if numbers is None else numbers.ctypes.data


def product(kind: int, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, threads: int) -> np.ndarray:
    outputs, inputs = weight.shape
    panels = _narrow.Panels(address(weight), outputs, inputs, address(bias), kind)
    x, y = x.copy(), np.full((len(x) + 1, outputs), 7, np.float32)  # each its own memory
    panels.multiply(address(x), len(x), address(y), threads)
    assert (y[-1] == 7).all(), "written beyond its end"
    return y[:-1]


@THREADS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (33, 31), (64, 32), (100, 97), (576, 192)])
def test_products_are_those_of_double_precision(kind: int, inputs: int, outputs: int, threads: int) -> None:
    rng = np.random.default_rng(inputs)
    for rows in (0, 1, 2, 5, 12, 13, 25, 70):
        x, weight, bias = drawn(rng, rows, inputs), drawn(rng, outputs, inputs), drawn(rng, outputs)
        exact = x.astype(np.float64) @ weight.T.astype(np.float64)
        for added, expected in ((None, exact), (bias, exact + bias)):
            np.testing.assert_allclose(product(kind, x, weight, added, threads), expected, rtol=1e-5, atol=3e-7 * inputs + 1e-6)


@THREADS
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_is_the_same_bits_among_any_others(kind: int, threads: int) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = drawn(rng, 70, 61), drawn(rng, 77, 61), drawn(rng, 77)
    whole = product(kind, x, weight, bias, threads)
    for rows in range(1, 70):
        for begin in (0, (70 - rows) // 2, 70 - rows):
            np.testing.assert_array_equal(product(kind, x[begin : begin + rows], weight, bias, threads), whole[begin : begin + rows])


def attention(
    kind: int, looks: int, query: np.ndarray, key: np.ndarray, value: np.ndarray, mask: np.ndarray | None, threads: int
) -> np.ndarray:
    rows, heads, columns, size = query.shape
    groups, places = key.shape[1:3]
    output = np.full((rows, columns, heads, size), np.nan, np.float32)
    strides = [stride // 4 for each in (query, key, value) for stride in each.strides[:3]]
    strides += [0] * 4 if mask is None else [stride // mask.itemsize for stride in mask.strides]
    given = [address(each) for each in (query, key, value, mask, output)]
    _narrow.attend(given, (rows, heads, groups, columns, places, size), strides, looks, 0.3, threads, kind)
    return output


@THREADS
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("looks", [NONE, CAUSAL, VISIBLE, ADDED])
@pytest.mark.parametrize(
    ("rows", "heads", "columns", "places", "size"), [(1, 2, 1, 1, 16), (2, 6, 5, 37, 48), (1, 2, 33, 33, 80), (3, 14, 17, 64, 16)]
)
def test_attention_is_that_of_double_precision(
    kind: int, looks: int, rows: int, heads: int, columns: int, places: int, size: int, threads: int
) -> None:
    rng = np.random.default_rng(places)
    query = drawn(rng, rows, columns, heads, size).transpose(0, 2, 1, 3)
    key, value = (drawn(rng, rows, 2, places + 3, size)[:, :, :places] for _ in range(2))
    seen = np.ones((1, 1, columns, places), bool)
    mask: np.ndarray | None = None
    if looks == CAUSAL:
        seen = seen & (np.arange(places) <= np.arange(columns)[:, None])
    elif looks == VISIBLE:
        mask = seen = rng.random((rows, heads, columns, places)) > 0.4
        seen[:, :, 0] = False  # a column that looks at nothing gives zeros
    elif looks == ADDED:
        mask = np.where(
            rng.random((rows, heads, columns, places)) > 0.4, drawn(rng, rows, heads, columns, places), np.finfo(np.float32).min
        )
        seen = mask > -1e30
    scores = 0.3 * np.einsum("rhcs,rhps->rhcp", query.astype(np.float64), key.astype(np.float64).repeat(heads // 2, axis=1))
    if looks == ADDED:
        scores = scores + mask
    weights = np.where(seen, np.exp(np.where(seen, scores, 0)), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    expected = np.einsum("rhcp,rhps->rchs", weights, value.astype(np.float64).repeat(heads // 2, axis=1))
    found = attention(kind, looks, query, key, value, mask, threads)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_threads_share_out_work_whatever_fails_and_in_a_forked_child(tmp_path: Path) -> None:
    """The pool alone, in C++: `tests/sanitize.sh` runs the same under ThreadSanitizer."""
    program = tmp_path / "pool"
    subprocess.run(["g++", "-std=c++20", "-O1", "-pthread", Path(__file__).parent / "pool.cpp", "-o", program], check=True)
    subprocess.run([program], check=True, timeout=300)


def test_a_daemon_thread_at_work_does_not_disturb_the_end_of_the_program() -> None:
    program = """
import threading, time
import numpy as np
from latticebpd.models import _narrow
weight, x, y = np.ones((300, 300), np.float32), np.ones((12, 300), np.float32), np.empty((12, 300), np.float32)
panels = _narrow.Panels(weight.ctypes.data, 300, 300)
def work():
    while True:
        panels.multiply(x.ctypes.data, 12, y.ctypes.data, 3)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
