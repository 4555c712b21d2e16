"""Lattices are of the target that decodes, whatever computes it: the CPU engine, from float32 weights, int8 or a GGUF
file; or PyTorch."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from latticebpd import LatticeSet, Loaded, generate, load, loading
from latticebpd.drafters import bundled, drafter_named
from latticebpd.drafters.system_names import strategy_named
from latticebpd.lattices.shards import SETTINGS, texts_of
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import compare, tally
from latticebpd.measuring.collect import CollectOptions, collect
from latticebpd.measuring.model_decodes import decode, system_drafters
from latticebpd.measuring.quality import perplexity
from latticebpd.measuring.replay import outcome
from latticebpd.measuring.signature import OWN_TEXT
from latticebpd.models.load_target import load_stock
from tests.helpers.commands import Run
from tests.helpers.gguf_files import bundled_with_gguf

KINDS = ("float32", "int8", "gguf", "torch")
ENGINE = KINDS[:3]
SYSTEMS = ("vanilla", "16-tree", "64-tree:0-gram", "oracle")
K, NEW = 8, 32


@dataclass
class Collected:
    """A target, its lattices, and its texts."""

    loaded: Loaded
    lattices: LatticeSet
    texts: Texts


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with its heads and n-gram model, and a GGUF file of it."""
    return bundled_with_gguf(tmp_path_factory.mktemp("bundled") / "model")


@pytest.fixture(scope="module", params=KINDS)
def collected(folder: Path, request: pytest.FixtureRequest) -> Collected:
    loaded = load(folder, weights=request.param)
    assert loaded.weights == request.param
    prompts = [loaded.encode(prompt.text) for prompt in bundled.load_prompts()[:3]]
    data = Texts.of_rows(prompts, [len(prompt) for prompt in prompts])
    return Collected(loaded, *collect(loaded.lattice_source(), data, CollectOptions(k=K, max_new_tokens=NEW)))


def test_a_replay_makes_the_calls_of_a_decode(collected: Collected, folder: Path) -> None:
    """All but the last one, whose draft a decode cuts at its limit: of a tree, so that more of it lies before."""
    loaded, source = collected.loaded, collected.loaded.lattice_source(K)
    comparison = compare([collected.lattices], SYSTEMS, folder / "lm.fst")
    assert comparison.systems == SYSTEMS
    drafters = system_drafters(source, SYSTEMS, folder / "lm.fst", None)
    decoded = decode(loaded.target, collected.texts.items(), drafters)
    assert decoded.differing.tolist() == [0] * len(SYSTEMS)
    assert decoded.tokens.tolist() == comparison.decode_totals[:, 0].tolist()
    calls = comparison.decode_totals[:, 1]
    assert decoded.calls[[0, -1]].tolist() == calls[[0, -1]].tolist()
    assert ((calls - len(collected.texts) <= decoded.calls) & (decoded.calls <= calls)).all()
    oracle = tally([collected.lattices], [1, K])
    assert oracle.decode_totals[:, 0, 1].tolist() == decoded.calls[[0, -1]].tolist()


@pytest.mark.parametrize("system", ["vanilla", "16-tree", "64-tree:0-gram"])
def test_every_call_of_a_decode_accepts_what_its_replay_does(collected: Collected, folder: Path, system: str) -> None:
    """Of a decode that goes on a little beyond the text, so that it cuts no draft at the text's end."""
    source, lm = collected.loaded.lattice_source(K), folder / "lm.fst"
    accepted = outcome(strategy_named(system, lm, None), collected.lattices, 1).lengths
    drafter, calls = drafter_named(system, source, lm), 0
    for number, (text, length) in enumerate(collected.texts.items()):
        rows = np.flatnonzero(collected.lattices.sequence == number)
        limit = len(text) - length + source.num_slots + 1
        out = generate(collected.loaded.target, text[:length], drafter, max_new_tokens=limit, trace=True)
        position = 0
        for step in out.trace:
            if position >= len(rows):
                break
            assert len(step.accepted) == accepted[rows[position]]
            position, calls = position + len(step.committed), calls + 1
        assert position >= len(rows)
    assert calls > 20


def test_lattices_are_those_that_a_decode_draws(collected: Collected) -> None:
    """On the engine bit for bit, on PyTorch up to the rounding of passes of other widths."""
    exact = collected.loaded.weights in ENGINE
    drafter, drawn = collected.loaded.drafter("16-tree", k=K), 0
    for number, (text, length) in enumerate(collected.texts.items()):
        out = generate(collected.loaded.target, text[:length], drafter, max_new_tokens=NEW, trace=True)
        position = int(np.flatnonzero(collected.lattices.sequence == number)[0])
        for step in out.trace:
            if (own := step.tree.lattice) is not None:
                stored = collected.lattices[position].first_slots(own.slots)
                assert np.array_equal(own.tokens, stored.tokens)
                np.testing.assert_allclose(own.log_probs, stored.log_probs, rtol=0, atol=0.0 if exact else 1e-4)
                drawn += 1
            position += len(step.committed)
    assert drawn > 20


def test_lattices_name_the_target_and_the_heads_that_they_are_of(collected: Collected) -> None:
    source = collected.loaded.source
    assert source is not None
    assert collected.lattices.origin == f"{source.weights_fingerprint}, {OWN_TEXT}"
    assert collected.lattices.fingerprint == source.fingerprint
    assert collected.lattices.vocab_size == collected.loaded.target.vocab_size


def test_the_models_own_text_given_makes_the_same_lattices(collected: Collected) -> None:
    options = CollectOptions(k=K, max_new_tokens=NEW, teacher_force=True)
    forced, _ = collect(collected.loaded.lattice_source(), collected.texts, options)
    whole = (collected.lattices.continuation != -1).all(axis=1)  # which look beyond the text, own continuations differ
    rows = np.flatnonzero(forced.continuation[:, -1] != -1)
    assert len(rows) > NEW
    assert whole.all()
    for name in ("tokens", "continuation", "context"):
        assert np.array_equal(getattr(forced, name)[rows], getattr(collected.lattices, name)[rows])
    np.testing.assert_allclose(forced.entropy, collected.lattices.entropy, atol=1e-4)


def test_perplexity_is_that_of_the_stock_model(collected: Collected) -> None:
    """Of rounded weights it is near it."""
    expected = perplexity(load_stock(bundled.MODEL), collected.texts.items())
    close = 1e-4 if collected.loaded.weights in ("float32", "torch") else 0.05
    assert perplexity(collected.loaded.target, collected.texts.items()) == pytest.approx(expected, rel=close)


@pytest.mark.long
@pytest.mark.parametrize("weights", [None, *KINDS])
def test_every_analysis_runs_on_the_target_that_the_lattices_are_of(
    weights: str | None, folder: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From lattices to decodes and a calibration."""
    asked: list[str] = []
    make = loading.load

    def watched(*arguments: Any, **options: Any) -> Loaded:
        loaded = make(*arguments, **options)
        asked.append(loaded.weights)
        return loaded

    monkeypatch.setattr(loading, "load", watched)
    lm, directory, chosen = (
        tmp_path / "lm.fst",
        tmp_path / "lattices",
        () if weights is None else ("--weights", weights),
    )
    shutil.copy(bundled.LM, lm)
    options = ("-k", K, "--limit", 3, "--max-new-tokens", 20, "--context", 64, "-o", directory)
    status, _, err = run("lattices", "--model", folder, *options, *chosen)
    assert status == 0, err
    status, out, err = run("oracle", directory, "--model", folder, "--json", "-k", f"1,{K}")
    assert (status, "differ" in err) == (0, False), err
    counted = json.loads(out)
    assert [row["differing_texts"] for row in counted["decoded"]] == [0, 0]
    status, out, err = run("compare", directory, "--model", folder, "--lm", lm, "-s", "16-tree", "--json")
    assert (status, "differ" in err) == (0, False), err
    compared = json.loads(out)
    steps = {row["system"]: row["steps"] for row in compared["systems"]}
    calls = {row["system"]: row["calls"] for row in compared["decoded"]}
    assert (calls["vanilla"], calls["oracle"]) == (steps["vanilla"], steps["oracle"])
    assert steps["16-tree"] - 3 <= calls["16-tree"] <= steps["16-tree"]  # cut at the texts' ends
    assert [row["calls"] for row in counted["decoded"]] == [steps["vanilla"], steps["oracle"]]
    status, out, err = run("report", directory, "--model", folder, "-o", tmp_path / "report", "--decode-texts", 2)
    assert (status, "differ" in err) == (0, False), err
    status, out, err = run("calibrate", directory, "--lm", lm, "--examples", 3, "--write", "--json")
    assert status == 0, err
    assert json.loads(out)["k"] == K
    assert asked == [weights or "gguf"] * 4  # of a folder with a GGUF file, its blocks are the default
    assert len(list(texts_of([directory]))) == 3


def test_weights_that_a_directory_does_not_name_rightly_are_refused(folder: Path, run: Run, tmp_path: Path) -> None:
    options = ("-k", 2, "--limit", 1, "--max-new-tokens", 4, "-o", tmp_path / "d", "--weights", "int8")
    assert run("lattices", "--model", folder, *options)[0] == 0
    file = tmp_path / "d" / SETTINGS
    settings = json.loads(file.read_text())
    assert settings["weights"] == "int8"
    for weights, message in ((3, "expected the name of weights, got 3"), ("int3", "expected weights among float32")):
        file.write_text(json.dumps(settings | {"weights": weights}))
        for command in (("oracle",), ("compare",), ("report", "-o", tmp_path / "r")):
            status, _, err = run(command[0], tmp_path / "d", *command[1:], "--model", folder)
            assert status == 2
            assert message in " ".join(err.split())
