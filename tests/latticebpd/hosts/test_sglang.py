"""`LatticeCorpus` as SGLang's corpus: trees and masks in its form, and its own contract where its files are here."""

from __future__ import annotations

import ast
import inspect
import random
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import State
from latticebpd.drafters import bundled, drafter_named
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.hosts.sglang import REPLACED, VARIABLE, LatticeCorpus, register

TEXT = [1, 2, 3, 4, 5, 1, 2, 3, 9, 1, 2]


def source_of(module: str) -> ast.Module:
    """Of SGLang, read and not imported: that takes CUDA."""
    found = find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        pytest.skip("needs SGLang's files: pip install --no-deps sglang==0.5.23")
    return ast.parse((Path(found.submodule_search_locations[0]) / module).read_text(encoding="utf-8"))


def links(mask: np.ndarray, bs: int, n: int) -> list[list[int]]:
    """Parents by SGLang's rule: the latest ancestor before a node."""
    return [[max((j for j in range(i) if tree[i, j]), default=-1) for i in range(n)] for tree in mask.reshape(bs, n, n)]


def test_trees_are_those_of_the_drafter_below_the_last_token() -> None:
    corpus = LatticeCorpus(draft_token_num=9, max_trie_depth=18, match_type="BFS")
    other = [7, 7, 7, 7]
    tokens, mask = corpus.batch_get(["a", "b"], [TEXT, other], [len(TEXT), 4])
    assert (tokens.shape, tokens.dtype, mask.shape, mask.dtype) == ((18,), np.int64, (2 * 81,), bool)
    for row, text in enumerate((TEXT, other)):
        (tree,) = drafter_named("8-calibrated", EmptyLattices()).propose([State(0, text, 1, None, 8)])
        assert len(tree) == 8
        assert tokens[9 * row : 9 * row + 9].tolist() == [text[-1], *tree.tokens.tolist()]
        assert links(mask, 2, 9)[row] == [-1, *(tree.parents + 1).tolist()]


def test_an_ngram_model_drafts_too_and_missing_nodes_are_the_root_s(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, mask = LatticeCorpus(draft_token_num=6).batch_get(["a"], [[5]], [1])  # nothing can be copied
    assert tokens.tolist() == [5, 0, 0, 0, 0, 0]
    assert links(mask, 1, 6) == [[-1, 0, 0, 0, 0, 0]]
    monkeypatch.setenv(VARIABLE, str(bundled.LM))
    assert any(LatticeCorpus(draft_token_num=6).batch_get(["a"], [[5]], [1])[0][1:])
    assert LatticeCorpus(draft_token_num=1).batch_get(["a"], [[5]], [1])[0].tolist() == [5]
    monkeypatch.setenv(VARIABLE, "no-such.fst")
    with pytest.raises(ValueError, match="expected an n-gram model's file or 'text' in LATTICEBPD_SGLANG, got no-such"):
        LatticeCorpus()


@pytest.mark.parametrize("seed", range(5))
def test_tails_of_growing_texts_are_put_together(seed: int) -> None:
    """Requests come and go, begin anew under their names, and what is known of each text is drafted from as a whole."""
    draws = random.Random(seed)
    corpus, texts, starts = LatticeCorpus(draft_token_num=5), dict[str, list[int]](), dict[str, int]()
    for _ in range(40):
        name = draws.choice("abc")
        if name in texts and draws.random() < 0.1:
            corpus.erase_match_state([name])
            del texts[name]
        if name not in texts or draws.random() < 0.1:  # another text under the name
            texts[name] = [draws.randrange(6) for _ in range(draws.randint(1, 14))]
            corpus.erase_match_state([name])
            starts[name] = max(0, len(texts[name]) - 8)
        text = texts[name]
        text += [draws.randrange(6) for _ in range(draws.randint(0, 4))] if name in corpus._texts else []
        tokens, mask = corpus.batch_get([name], [text[-8:]], [len(text)])
        whole, expected = LatticeCorpus(draft_token_num=5), text[starts[name] :]
        alone = whole.batch_get([name], [expected], [len(expected)])
        np.testing.assert_array_equal(tokens, alone[0])
        np.testing.assert_array_equal(mask, alone[1])
    corpus.reset()
    assert not corpus._texts


def test_a_text_that_is_another_under_a_known_name_is_read_anew() -> None:
    corpus = LatticeCorpus(draft_token_num=5)
    corpus.batch_get(["a"], [[1, 2, 3, 4]], [4])
    tokens, _ = corpus.batch_get(["a"], [[5, 6, 5, 6, 5]], [5])
    assert tokens.tolist()[:2] == [5, 6]
    assert corpus._texts["a"] == (5, [5, 6, 5, 6, 5])


def test_external_corpora_are_refused() -> None:
    corpus = LatticeCorpus()
    with pytest.raises(ValueError, match="expected no external corpus, got books; train an n-gram model from it"):
        corpus.load_external_corpus_named("books", [[1]])
    assert corpus.list_external_corpora() == {}


def test_the_plugin_is_found_and_does_nothing_unless_it_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    register()  # SGLang is not here, and is not looked for
    found = [point for point in entry_points(group="sglang.srt.plugins") if point.name == "latticebpd"]
    assert all(point.value == "latticebpd.hosts.sglang:register" for point in found)


def test_all_that_sglang_calls_is_there() -> None:
    """By its own source: each method of the corpus that its worker calls, with the arguments of its own class."""
    files = ("ngram_worker.py", "cpp_ngram/ngram_corpus.py")
    worker, corpus = (source_of(f"srt/speculative/{file}") for file in files)
    (own,) = (node for node in corpus.body if isinstance(node, ast.ClassDef) and node.name == "NgramCorpus")
    methods = {node.name: node for node in own.body if isinstance(node, ast.FunctionDef)}
    called = {
        node.func.attr
        for node in ast.walk(worker)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "ngram_corpus"
    }
    assert {"batch_get", "batch_put", "synchronize", "erase_match_state", "reset"} <= called <= methods.keys()
    for name in called:
        ours = list(inspect.signature(getattr(LatticeCorpus, name)).parameters)
        assert ours == [each.arg for each in methods[name].args.args], name
    inspect.signature(LatticeCorpus).bind(**dict.fromkeys([each.arg for each in methods["__init__"].args.args[1:]], 4))


def test_sglang_s_registry_puts_it_in_the_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is its own; the module whose class is replaced is a stand-in."""
    names = ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.speculative")
    registry, worker = ModuleType("sglang.srt.plugins.hook_registry"), ModuleType(REPLACED.rpartition(".")[0])
    tree = source_of("srt/plugins/hook_registry.py")
    for name, module in (*((name, ModuleType(name)) for name in names), (registry.__name__, registry)):
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, worker.__name__, worker)
    monkeypatch.setattr(sys.modules["sglang.srt.speculative"], "ngram_worker", worker, raising=False)
    exec(compile(tree, "hook_registry", "exec"), registry.__dict__)
    worker.NgramCorpus = original = type("NgramCorpus", (), {})  # type: ignore[attr-defined]
    monkeypatch.delenv(VARIABLE, raising=False)
    register()
    registry.HookRegistry.apply_hooks()
    assert worker.NgramCorpus is original
    monkeypatch.setenv(VARIABLE, str(bundled.LM))
    register()
    registry.HookRegistry.apply_hooks()
    assert worker.NgramCorpus is LatticeCorpus


def test_sglang_reads_the_trees_as_they_are_meant() -> None:
    """Its own function, of its worker's source, finds each node's first child and next sibling."""
    worker = source_of("srt/speculative/ngram_worker.py")
    (function,) = (n for n in worker.body if isinstance(n, ast.FunctionDef) and n.name == "_derive_tree_links")
    names: dict[str, Any] = {"np": np, "torch": torch}
    exec(compile(ast.Module([function], []), "ngram_worker", "exec"), names)
    tokens, mask = LatticeCorpus(draft_token_num=9).batch_get(["a"], [TEXT], [len(TEXT)])
    children, siblings = (each[0].tolist() for each in names["_derive_tree_links"](mask, 1, 9))
    (tree,) = drafter_named("8-calibrated", EmptyLattices()).propose([State(0, TEXT, 1, None, 8)])
    for node in range(-1, 8):
        found, at = [], children[node + 1]
        while at != -1:
            found.append(at - 1)
            at = siblings[at]
        assert found == tree.children(node).tolist()
    assert tokens[0] == TEXT[-1]
