"""The CPU kernels by themselves, on numpy's memory, so that sanitizers can watch them: close to double precision,
batch-invariant, and nothing is written beyond the output."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from latticebpd.cpu import _kernels

ISAS = range(_kernels.isas())
INT8_ISAS = range(_kernels.int8_isas())
THREADS = pytest.mark.parametrize("threads", [1, 2])
NONE, CAUSAL, VISIBLE, ADDED = range(4)


def drawn(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def address(numbers: np.ndarray | None) -> int:
    return 0 if numbers is None else numbers.ctypes.data


def product(isa: int, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, threads: int) -> np.ndarray:
    outputs, inputs = weight.shape
    panels = _kernels.Panels(address(weight), outputs, inputs, address(bias), isa)
    x, y = x.copy(), np.full((len(x) + 1, outputs), 7, np.float32)  # each its own memory
    panels.multiply(address(x), len(x), address(y), threads)
    assert (y[-1] == 7).all(), "written beyond its end"
    return y[:-1]


@THREADS
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (33, 31), (64, 32), (100, 97), (576, 192)])
def test_products_are_close_to_double_precision(isa: int, inputs: int, outputs: int, threads: int) -> None:
    rng = np.random.default_rng(inputs)
    for rows in (0, 1, 2, 5, 12, 13, 25, 70):
        x, weight, bias = drawn(rng, rows, inputs), drawn(rng, outputs, inputs), drawn(rng, outputs)
        exact = x.astype(np.float64) @ weight.T.astype(np.float64)
        for added, expected in ((None, exact), (bias, exact + bias)):
            np.testing.assert_allclose(
                product(isa, x, weight, added, threads), expected, rtol=1e-5, atol=3e-7 * inputs + 1e-6
            )


@THREADS
@pytest.mark.parametrize("isa", ISAS)
def test_products_are_batch_invariant(isa: int, threads: int) -> None:
    rng = np.random.default_rng(0)
    x, weight, bias = drawn(rng, 70, 61), drawn(rng, 77, 61), drawn(rng, 77)
    whole = product(isa, x, weight, bias, threads)
    for rows in range(1, 70):
        for begin in (0, (70 - rows) // 2, 70 - rows):
            np.testing.assert_array_equal(
                product(isa, x[begin : begin + rows], weight, bias, threads), whole[begin : begin + rows]
            )


def int8_product(isa: int, x: np.ndarray, weight: np.ndarray, threads: int = 1) -> np.ndarray:
    outputs, inputs = weight.shape
    x, y = x.copy(), np.full((len(x) + 1, outputs), 7, np.float32)
    _kernels.Int8Weights(address(weight), outputs, inputs, isa).multiply(address(x), len(x), address(y), threads)
    assert (y[-1] == 7).all(), "written beyond its end"
    return y[:-1]


def quantized(numbers: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows as integers up to ``most``, and their scales."""
    largest = np.abs(numbers).max(axis=1, keepdims=True)
    return np.rint(numbers * (np.float32(most) / largest)).astype(np.int64), largest / np.float32(most)


@THREADS
@pytest.mark.parametrize("isa", INT8_ISAS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (33, 31), (64, 32), (100, 97), (576, 193)])
def test_int8_products_are_integer_sums_the_same_bits_on_every_processor(
    isa: int, inputs: int, outputs: int, threads: int
) -> None:
    rng = np.random.default_rng(inputs)
    weight = drawn(rng, outputs, inputs) * np.exp(drawn(rng, outputs, 1))
    most = min(32767, (2**31 - 1) // (127 * inputs) - 1)
    for rows in (0, 1, 2, 5, 12, 13, 25, 70):
        x = drawn(rng, rows, inputs) * np.exp(drawn(rng, rows, 1))
        found = int8_product(isa, x, weight, threads)
        (w, s), (z, t) = quantized(weight, 127), quantized(x, most)
        np.testing.assert_array_equal(found, (z @ w.T).astype(np.float32) * (s.T * t))
        bound = s.T / 2 * np.abs(x).sum(1)[:, None] + t / 2 * np.abs(weight).sum(1) + s.T * t / 4 * inputs
        assert (np.abs(found - x.astype(np.float64) @ weight.T.astype(np.float64)) <= bound * 1.001).all()
        for begin in range(0, rows, 9):
            np.testing.assert_array_equal(
                int8_product(isa, x[begin : begin + 9], weight, threads), found[begin : begin + 9]
            )


@pytest.mark.parametrize("isa", INT8_ISAS)
@pytest.mark.parametrize("inputs", [1, 515, 516, 517, 5000])
def test_the_largest_sums_do_not_overflow(isa: int, inputs: int) -> None:
    signs = np.array([[1], [-1]], np.float32) * np.ones((2, inputs), np.float32)
    np.testing.assert_allclose(int8_product(isa, signs, signs), [[inputs, -inputs], [-inputs, inputs]], rtol=1e-6)


@pytest.mark.parametrize("isa", INT8_ISAS)
def test_zeros_nan_and_infinity_stay_in_their_rows(isa: int) -> None:
    x, weight = np.ones((5, 8), np.float32), np.ones((3, 8), np.float32)
    x[0], x[1, 3], x[2, 3], x[3], weight[1] = 0, np.nan, -np.inf, 1e-45, 0
    found = int8_product(isa, x, weight)
    assert found[0].tolist() == [0, 0, 0]
    assert np.isnan(found[[1, 2]]).all()
    np.testing.assert_allclose(found[[3, 4]], [[0, 0, 0], [8, 0, 8]], atol=1e-30)


def quantized_argmax(
    isa: int, int8_isa: int, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None, threads: int
) -> np.ndarray:
    outputs, inputs = weight.shape
    x, found = x.copy(), np.full(len(x) + 1, -7, np.int64)
    panels = _kernels.Panels(address(weight), outputs, inputs, address(bias), isa)
    argmax = _kernels.QuantizedArgmax(panels, address(weight), outputs, inputs, address(bias), isa, int8_isa)
    del panels  # which it keeps
    argmax.argmax(address(x), len(x), address(found), threads)
    assert found[-1] == -7, "written beyond its end"
    return found[:-1]


@THREADS
@pytest.mark.parametrize("int8_isa", INT8_ISAS)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 5), (33, 512), (64, 1100), (96, 5000)])
def test_the_argmax_is_that_of_the_float32_product(
    isa: int, int8_isa: int, inputs: int, outputs: int, threads: int
) -> None:
    """Also among outputs that differ by less than rounding, by the last bit, or not at all: then it is the first."""
    rng = np.random.default_rng(outputs)
    x, weight, bias = drawn(rng, 11, inputs), drawn(rng, outputs, inputs), drawn(rng, outputs)
    near = weight.copy()
    near[1::2] = near[: len(near[1::2]) * 2 : 2] * (
        1 + np.float32(2**-23) * rng.integers(-2, 3, (len(near[1::2]), 1)).astype(np.float32)
    )
    large = np.abs(weight)
    for given in (
        weight,
        near,
        np.repeat(weight[:1], outputs, axis=0),
        large * rng.choice([1e-9, 1, 1e9], (outputs, 1)).astype(np.float32),
    ):
        for added in (None, bias, np.float32(1e6) * bias):
            for rows in (x, x[:1] * np.float32(1e-12), x * 0):
                expected = product(isa, rows, given, added, threads).argmax(axis=1)
                np.testing.assert_array_equal(quantized_argmax(isa, int8_isa, rows, given, added, threads), expected)


def test_nan_and_too_large_numbers_are_left_to_the_float32_product() -> None:
    rng = np.random.default_rng(0)
    x, weight = drawn(rng, 6, 40), drawn(rng, 90, 40)
    expected = product(0, x, weight, None, 1).argmax(axis=1)
    x[1, 3], x[2, 5], x[3], x[4] = np.nan, np.inf, x[3] * np.float32(1e37), x[4] * np.float32(1e-37)
    np.testing.assert_array_equal(
        quantized_argmax(0, 0, x, weight, None, 1), [expected[0], -1, -1, -1, -1, expected[5]]
    )
    for wrong in (np.nan, np.inf, 3e38):
        weight[7, 2] = wrong
        assert (quantized_argmax(0, 0, x, weight, None, 1) == -1).all()
    assert (quantized_argmax(0, 0, x, drawn(rng, 90, 40), np.full(90, np.nan, np.float32), 1) == -1).all()


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
    _kernels.top_k(address(x), rows, x.shape[1], k, address(values), address(indices), address(log_sums), threads, isa)
    assert all((each[-1] == 7).all() for each in (values, indices, log_sums)), "written beyond its end"
    return values[:-1], indices[:-1], log_sums[:-1]


def attention(
    isa: int,
    mask_kind: int,
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    mask: np.ndarray | None,
    threads: int,
) -> np.ndarray:
    rows, heads, columns, size = query.shape
    groups, keys = key.shape[1:3]
    output = np.full((rows, columns, heads, size), np.nan, np.float32)
    strides = [stride // 4 for each in (query, key, value) for stride in each.strides[:3]]
    strides += [0] * 4 if mask is None else [stride // mask.itemsize for stride in mask.strides]
    given = [address(each) for each in (query, key, value, mask, output)]
    _kernels.attend(given, (rows, heads, groups, columns, keys, size), strides, mask_kind, 0.3, threads, isa)
    return output


@THREADS
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("mask_kind", [NONE, CAUSAL, VISIBLE, ADDED])
@pytest.mark.parametrize(
    ("rows", "heads", "columns", "keys", "size"),
    [(1, 2, 1, 1, 16), (2, 6, 5, 37, 48), (1, 2, 33, 33, 80), (3, 14, 17, 64, 16)],
)
def test_attention_is_close_to_double_precision(
    isa: int, mask_kind: int, rows: int, heads: int, columns: int, keys: int, size: int, threads: int
) -> None:
    rng = np.random.default_rng(keys)
    query = drawn(rng, rows, columns, heads, size).transpose(0, 2, 1, 3)
    key, value = (drawn(rng, rows, 2, keys + 3, size)[:, :, :keys] for _ in range(2))
    seen = np.ones((1, 1, columns, keys), bool)
    mask: np.ndarray | None = None
    if mask_kind == CAUSAL:
        seen = seen & (np.arange(keys) <= np.arange(columns)[:, None])
    elif mask_kind == VISIBLE:
        mask = seen = rng.random((rows, heads, columns, keys)) > 0.4
        seen[:, :, 0] = False  # a column that sees no key gives zeros
    elif mask_kind == ADDED:
        mask = np.where(
            rng.random((rows, heads, columns, keys)) > 0.4,
            drawn(rng, rows, heads, columns, keys),
            np.finfo(np.float32).min,
        )
        seen = mask > -1e30
    scores = 0.3 * np.einsum(
        "rhcs,rhps->rhcp", query.astype(np.float64), key.astype(np.float64).repeat(heads // 2, axis=1)
    )
    if mask_kind == ADDED:
        scores = scores + mask
    weights = np.where(seen, np.exp(np.where(seen, scores, 0)), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    expected = np.einsum("rhcp,rhps->rchs", weights, value.astype(np.float64).repeat(heads // 2, axis=1))
    found = attention(isa, mask_kind, query, key, value, mask, threads)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


SIZE, HEADS, GROUPS, HEAD, INNER = 48, 3, 1, 32, 80


class Llama:
    """A decoder layer's weights, the kernels' outputs, and the same in double precision."""

    def __init__(self, isa: int, biased: bool) -> None:
        rng = np.random.default_rng(0)
        width, values = HEADS * HEAD, GROUPS * HEAD
        shapes = [
            (width, SIZE),
            (values, SIZE),
            (values, SIZE),
            (SIZE, width),
            (INNER, SIZE),
            (INNER, SIZE),
            (SIZE, INNER),
        ]
        self.weights = [drawn(rng, *shape) / 4 for shape in shapes]
        self.biases = [drawn(rng, shape[0]) if biased else None for shape in shapes]
        self.norms = [drawn(rng, SIZE), drawn(rng, SIZE)]
        matrices = [
            (address(weight), len(weight), address(bias))
            for weight, bias in zip(self.weights, self.biases, strict=True)
        ]
        norms = (address(self.norms[0]), address(self.norms[1]))
        self.layer = _kernels.LlamaLayer(matrices, norms, (SIZE, HEADS, GROUPS, HEAD, INNER), (1e-5, 1e-3), isa)

    def before(self, x: np.ndarray, cosines: np.ndarray, sines: np.ndarray, threads: int) -> np.ndarray:
        x, to = x.copy(), np.full((len(x) + 1, HEADS + 2 * GROUPS, HEAD), 7, np.float32)
        self.layer.before_attention(
            address(x), len(x), address(cosines), address(sines), len(cosines), address(to), threads
        )
        assert (to[-1] == 7).all(), "written beyond its end"
        return to[:-1]

    def after(self, x: np.ndarray, attended: np.ndarray, threads: int) -> np.ndarray:
        x, attended, to = x.copy(), attended.copy(), np.full((len(x) + 1, SIZE), 7, np.float32)
        self.layer.after_attention(address(x), address(attended), len(x), address(to), threads)
        assert (to[-1] == 7).all(), "written beyond its end"
        return to[:-1]

    def _product(self, number: int, x: np.ndarray) -> np.ndarray:
        bias = self.biases[number]
        return x @ self.weights[number].T.astype(np.float64) + (0 if bias is None else bias)

    def _normal(self, x: np.ndarray, number: int, epsilon: float) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * self.norms[number]

    def exactly_before(self, x: np.ndarray, cosines: np.ndarray, sines: np.ndarray) -> np.ndarray:
        normal = self._normal(x.astype(np.float64), 0, 1e-5)
        query, key, value = (self._product(i, normal).reshape(len(x), -1, HEAD) for i in range(3))
        cosine, sine = (np.resize(each, (len(x), HEAD))[:, None].astype(np.float64) for each in (cosines, sines))

        def rotated(given: np.ndarray) -> np.ndarray:
            return given * cosine + np.concatenate([-given[..., HEAD // 2 :], given[..., : HEAD // 2]], axis=-1) * sine

        return np.concatenate([rotated(query), rotated(key), value], axis=1)

    def exactly_after(self, x: np.ndarray, attended: np.ndarray) -> np.ndarray:
        middle = x + self._product(3, attended.astype(np.float64).reshape(len(x), -1))
        normal = self._normal(middle, 1, 1e-3)
        gate = self._product(4, normal)
        return middle + self._product(6, gate / (1 + np.exp(-np.maximum(gate, -700))) * self._product(5, normal))


@THREADS
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("biased", [False, True])
def test_a_layer_is_close_to_double_precision_and_batch_invariant(isa: int, biased: bool, threads: int) -> None:
    rng, llama = np.random.default_rng(1), Llama(isa, biased)
    x, attended, cosines, sines = (
        drawn(rng, 39, SIZE),
        drawn(rng, 39, HEADS, HEAD),
        drawn(rng, 39, HEAD),
        drawn(rng, 39, HEAD),
    )
    before, after = llama.before(x, cosines, sines, threads), llama.after(x, attended, threads)
    np.testing.assert_allclose(before, llama.exactly_before(x, cosines, sines), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(after, llama.exactly_after(x, attended), rtol=1e-4, atol=1e-3)
    for begin, end in ((0, 1), (5, 6), (38, 39), (3, 12), (20, 39)):
        part = slice(begin, end)
        np.testing.assert_array_equal(llama.before(x[part], cosines[part], sines[part], threads), before[part])
        np.testing.assert_array_equal(llama.after(x[part], attended[part], threads), after[part])
    shared = llama.before(x, cosines[:13], sines[:13], threads)  # three texts at the same positions
    np.testing.assert_array_equal(
        shared, llama.before(x, *(np.tile(each[:13], (3, 1)) for each in (cosines, sines)), threads)
    )


@pytest.mark.parametrize("isa", ISAS)
def test_gates_far_from_zero_are_open_or_shut(isa: int) -> None:
    llama = Llama(isa, True)
    assert llama.biases[4] is not None
    for gate in (-1e4, -90.0, 90.0, 1e4):
        llama.biases[4][:] = gate
        matrices = [
            (address(weight), len(weight), address(bias))
            for weight, bias in zip(llama.weights, llama.biases, strict=True)
        ]
        norms = (address(llama.norms[0]), address(llama.norms[1]))
        llama.layer = _kernels.LlamaLayer(matrices, norms, (SIZE, HEADS, GROUPS, HEAD, INNER), (1e-5, 1e-3), isa)
        x, attended = np.ones((2, SIZE), np.float32), np.ones((2, HEADS, HEAD), np.float32)
        np.testing.assert_allclose(
            llama.after(x, attended, 1), llama.exactly_after(x, attended), rtol=1e-4, atol=abs(gate) * 1e-4
        )


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
from latticebpd.cpu import _kernels
weight, x, y = np.ones((300, 300), np.float32), np.ones((12, 300), np.float32), np.empty((12, 300), np.float32)
panels = _kernels.Panels(weight.ctypes.data, 300, 300)
def work():
    while True:
        panels.multiply(x.ctypes.data, 12, y.ctypes.data, 3)
threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (ended.returncode, ended.stderr) == (0, "")
