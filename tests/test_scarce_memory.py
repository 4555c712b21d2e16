"""Core and engine where memory or threads run out: a MemoryError, and after it the bits that there would have been.

Every allocation of a call fails once, in a child process of its own, which then makes the call again.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

HERE = Path(__file__)
THREADS = 3
SPARED = {"text": 64, "int8 products": 64, "matrix": 64}
"""By call, the bytes below which no allocation fails: to note objects that a call makes, pybind11 allocates so little,
and ends the process where it cannot."""


def bits(results: Any) -> bytes:
    """A digest of arrays in tuples."""
    if isinstance(results, tuple):
        return hashlib.sha256(b"".join(map(bits, results))).digest()
    return hashlib.sha256(np.ascontiguousarray(results).tobytes()).digest()


def searches() -> dict[str, Callable[[], Any]]:
    """The core's calls."""
    import fst
    from fst import _core
    from tests.helpers.random_tables import VOCAB

    rng = np.random.default_rng(0)
    tokens = np.argsort(rng.random((6, 4, VOCAB)), axis=2)[:, :, :3].astype(np.int32)
    log_probs = np.log(rng.dirichlet(np.ones(3), (6, 4)))
    transitions = rng.standard_normal((6, 3, 3, 3)).astype(np.float32)
    ngrams = [np.arange(VOCAB, dtype=np.int32)[:, None], np.array([[0, 1], [1, 2]], np.int32)]
    scores = [np.linspace(-1, -2, VOCAB), np.array([-0.5, -0.25])]
    table = fst.NgramTable(ngrams, scores, [np.full(VOCAB, -0.25) * (np.arange(VOCAB) < 2), np.zeros(2)])
    model = fst.NgramModel.from_table(table)
    contexts = np.zeros((6, 1), np.int64)
    offsets, targets = np.array([0, 2, 4, 5]), np.array([1, 2, 2, 2, -1], np.int32)
    arcs = (offsets, np.array([1, 2, 3, 4, -1], np.int32), np.log(np.array([0.5, 0.5, 0.25, 0.75, 1])), targets)
    text = fst.TextIndex()
    text.extend([0, 1, 2, 0, 1])
    words, weights = rng.integers(0, VOCAB, 120), rng.standard_normal((4, _core.NUM_FEATURES))

    def grown() -> Any:
        """What a text counts where it repeats itself, however often memory ran out while it grew."""
        index = fst.TextIndex()
        for number, token in enumerate(words):
            while len(index) <= number:
                try:
                    index.extend([token])
                except MemoryError:
                    continue
        index.extend(words[:50])
        trees = []
        for token in words[50:65]:
            index.extend([token])
            trees.append(fst.calibrated_tree_batch(tokens[:1], log_probs[:1], model, [index], weights))
        return tuple(trees)

    sausages = (tokens, log_probs, transitions)
    return {
        "nbest": lambda: _core.nbest(sausages, model.core, 5, 0.5, contexts, THREADS, None),
        "tree": lambda: _core.tree(sausages, model.core, 9, 0.5, contexts, THREADS, None),
        "posteriors": lambda: _core.posteriors((tokens[0], log_probs[0], None), model.core, 0.5, contexts[0]),
        "calibrated": lambda: fst.calibrated_tree_batch(tokens, log_probs, model, [text] * 6, weights),
        "text": grown,
        "lattice_nbest": lambda: _core.lattice_nbest(arcs, model.core, 3, 0.5, contexts[0]),
        "lattice_posteriors": lambda: _core.lattice_posteriors(arcs, model.core, 0.5, contexts[0]),
        "determinize": lambda: _core.determinize(arcs),
    }


def kernels() -> dict[str, Callable[[], Any]]:
    """The engine's calls."""
    from latticebpd.cpu import _engine

    rng = np.random.default_rng(0)

    def drawn(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32) / 7

    x, memory = drawn(70, 96), _engine.WeightMemory()
    matrices = {shape: _engine.Matrix.of_numbers(memory, drawn(*shape), True) for shape in [(64, 96), (96, 64)]}
    embedding = _engine.Matrix.of_numbers(memory, drawn(300, 96), True)
    layer, settings = _engine.Layer(), _engine.Settings()
    layer.input_norm = layer.mlp_norm = [1.0] * 96
    layer.set_matrices([matrices[64, 96]] * 3 + [matrices[96, 64]] + [matrices[64, 96]] * 2 + [matrices[96, 64]])
    settings.heads = settings.num_kv_heads = 2
    settings.head_size = 32
    settings.add_rotation([0.5] * 16, 1.0)
    model = _engine.Transformer(settings, [layer], embedding, embedding, [1.0] * 96)
    cache = _engine.Cache(model)
    tokens, parents = np.arange(40) * 7, np.arange(-1, 39)
    text = _engine.Cache(model)
    model.read([text], [40], tokens, parents, [], 1)
    text.keep(range(40))
    up, down, pairs = (drawn(*shape) for shape in ((3, 20, 96), (3, 48, 20), (2, 8, 48)))
    heads, projection = _engine.Int8Heads(up, down), _engine.Int8Weights(drawn(700, 48))
    lattices = _engine.HeadLattices(heads, projection, range(700), pairs, drawn(8, 48))

    def products() -> Any:
        """Of many columns, then of fewer, whose memory is that of the many."""
        try:
            return matrices[64, 96].multiply(x, 1), matrices[64, 96].multiply(x[:3], 1)
        except MemoryError:
            matrices[64, 96].multiply(x[:60], 1)
            raise

    def passes() -> Any:
        """A text that grows beyond its cache's room; after a failure it has the tokens that it had."""
        cache.cut(0)
        states = []
        for begin, end in ((0, 7), (7, 40)):
            with pytest.raises(ValueError, match="expected tokens below 300"):
                model.read([cache], [2], np.array([1, 300]), np.array([-1, 0]), [], 1)
            with pytest.raises(ValueError, match="expected ascending columns"):
                cache.keep([0])
            states += model.read([cache], [end - begin], tokens[begin:end], parents[: end - begin], [0], 1)
            cache.keep(range(end - begin))
        return tuple(states)

    return {
        "products": products,
        "int8 products": lambda: _engine.Int8Weights(x).multiply(x, 1),
        "matrix": lambda: _engine.Matrix.of_numbers(_engine.WeightMemory(), x, True).row(69),
        "passes": passes,
        "copies": lambda: np.array([text.first(20).memory]),
        "logits": lambda: model.logits(x, 1),
        "best": lambda: model.best(x[:4], 1),
        "logits of a few": lambda: model.logits_of(x[:2], np.array([3, 7, 40, 41]), [3, 1], 1),
        "top_k": lambda: _engine.top_k(x.reshape(2, -1), 9, 1),
        "states": lambda: heads.states(x, 3, 1),
        "lattices": lambda: lattices.lattices(x[:2], 3, 5, True, 1),
        "threads": lambda: matrices[64, 96].multiply(x, THREADS),
    }


def outcome(library: Any, call: Callable[[], Any], number: int, spared: int = 0) -> tuple[str, bytes]:
    """Of a child whose allocation `number` failed: if the call "failed" or "went through", and the bits of the next."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            library.fail_allocation(number, spared)
            first = None
            try:
                first = call()
                how = "failed" if library.has_failed() and number >= 0 else "went through"
            except MemoryError:
                how = "failed"
            library.fail_allocation(-1, 0)
            again = bits(call())
            assert first is None or bits(first) == again  # it did without what failed
            os.write(writing, how.encode().ljust(20) + again)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert len(answer) == 52, f"allocation {number}: ended with status {status}"
    return answer[:20].decode().strip(), answer[20:]


def fail_every_allocation(library: Any, calls: dict[str, Callable[[], Any]]) -> None:
    for name, call in calls.items():
        number, (how, expected) = 0, outcome(library, call, -1)
        assert how == "went through", name
        while True:
            how, got = outcome(library, call, number, SPARED.get(name, 0))
            assert got == expected, (name, number)
            if how == "went through":
                break
            number += 1
        assert number > 0, name


def without_threads(library: Any, calls: dict[str, Callable[[], Any]]) -> None:
    """Calls of several threads, first with them, then in a child that gets none."""
    for name in ("nbest", "tree", "threads"):
        if name in calls:
            expected = outcome(library, calls[name], -1)
            child = os.fork()
            if child == 0:
                library.refuse_threads()
                os._exit(0 if bits(calls[name]()) == expected[1] else 1)
            assert os.waitpid(child, 0)[1] == 0, name


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scarce") / "scarce_memory.so"
    source = HERE.parent / "helpers" / "scarce_memory.cpp"
    subprocess.run(["g++", "-std=c++20", "-O1", "-shared", "-fPIC", source, "-ldl", "-o", path], check=True)
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="preloads a library as Linux does")
@pytest.mark.parametrize("calls", ["searches", "kernels"])
@pytest.mark.parametrize("scarce", ["fail_every_allocation", "without_threads"])
def test_calls_where_memory_or_threads_run_out(scarce: str, calls: str, library: Path) -> None:
    preloaded = " ".join([str(library), os.environ.get("LD_PRELOAD", "")]).strip()
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    program = f"import ctypes; from tests.test_scarce_memory import {scarce}, {calls}; "
    program += f"{scarce}(ctypes.CDLL({str(library)!r}), {calls}())"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"LD_PRELOAD": preloaded, "ASAN_OPTIONS": sanitizer},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
