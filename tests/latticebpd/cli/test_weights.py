"""``--weights``: what computes a model; commands that a kind of target cannot serve say so by name, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from latticebpd import Loaded, load
from latticebpd.drafters.bundled import LM
from latticebpd.drafters.heads.blockwise import BlockwiseLM, new_heads
from tests.helpers.blockwise_models import tiny_model
from tests.helpers.commands import Run
from tests.helpers.gguf_files import bundled_with_gguf
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import letters

COMMANDS: dict[str, tuple[object, ...]] = {
    "generate": ("generate", "abc", "--max-new-tokens", 4),
    "lattices": ("lattices", "-o", "never.npz"),
    "profile": ("profile", "--columns", "1"),
    "demo": ("demo", "--prompts", 1),
    "chat": ("chat",),
    "serve": ("serve",),
}
"""Those that take ``--weights``."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models that the engine does not compute, or not with all weights."""
    root = tmp_path_factory.mktemp("models")
    base = tiny_model().base
    models: dict[str, Any] = {
        "family": tiny("gpt2"), "sizes": base, "heads": BlockwiseLM(base, new_heads(base, "stern", 3)),
    }  # fmt: skip
    for name, model in models.items():
        model.save_pretrained(root / name)
        letters().save_pretrained(root / name)
    return {name: root / name for name in models} | {"both": bundled_with_gguf(root / "both")}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_the_engine_does_not_compute_is_refused_by_name(
    run: Run, folders: dict[str, Path], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, weights, message in (
        ("family", "int8", "GPT2LMHeadModel is none of its families; use weights='torch'"),
        ("sizes", "float32", "its heads and hidden layers have 8 and 32 numbers, no multiples of 16"),
        ("heads", "int8", "expected weights='torch' for a drafter that only drafts for models on PyTorch"),
        ("both", "int3", "expected weights among float32, int8, gguf, torch, got 'int3'"),
    ):
        status, out, err = run(*COMMANDS[command], "--model", folders[name], "--weights", weights)
        assert (status, out) == (2, ""), err
        assert message in " ".join(err.split())
        assert err.strip().splitlines()[-1].startswith("latticebpd: error: ")
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_gguf_file_is_told_what_to_use(run: Run) -> None:
    status, _, err = run("generate", "abc", "--weights", "gguf")
    assert status == 2
    assert "expected a GGUF file for weights='gguf', got none; use 'int8' or 'float32'" in " ".join(err.split())


@pytest.mark.parametrize("weights", ["float32", "int8", "gguf", "torch"])
def test_generate_computes_with_the_weights_asked_for(run: Run, folders: dict[str, Path], weights: str) -> None:
    arguments = ("generate", "The history of the city", "--model", folders["both"], "--max-new-tokens", 12)
    status, out, err = run(*arguments, "--weights", weights, "--json")
    assert status == 0, err
    loaded = load(folders["both"], weights=weights)
    ids = loaded.encode("The history of the city")
    expected = loaded.generate(ids, loaded.drafter("greedy"), max_new_tokens=12)
    assert json.loads(out)["text"] == loaded.decode(expected.tokens[0, len(ids) :])
    assert f"weights: {weights}" in run(*arguments, "--weights", weights)[2]


def test_jacobi_and_ddg_load_on_pytorch_whatever_lies_beside_the_model(
    run: Run, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their texts are those of ``generate()``; the heads and the n-gram model make their initial values."""
    from latticebpd import loading

    asked: list[str] = []
    make = loading.load

    def watched(*arguments: Any, **options: Any) -> Loaded:
        asked.append((loaded := make(*arguments, **options)).weights)
        return loaded

    monkeypatch.setattr(loading, "load", watched)
    (tmp_path / "texts.txt").write_text("The history of the city\n")
    options = (tmp_path / "texts.txt", "--model", folders["both"], "--max-new-tokens", 8, "--initial", "heads")
    status, out, err = run("jacobi", *options, "--lm", LM, "--json")
    assert status == 0, err
    assert json.loads(out)["differing_texts"] == 0
    status, _, err = run("ddg", *options, "--lm", LM, "--output", tmp_path / "ddg.html")
    assert status == 0, err
    assert asked == ["torch", "torch"]
