"""`load`: a directory, a file, a name or nothing gives all that a decode needs; what cannot be had is refused."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fst
from latticebpd import BlockwiseLM, Loaded, NoDrafter, load
from latticebpd.drafters import HeadLattices, LatticeDrafter, bundled
from latticebpd.drafters.cost_aware import CostAwareDrafter
from latticebpd.drafters.drafter import State
from latticebpd.drafters.heads.head_networks import HEAD_KINDS, FeedForwardHeads, Heads
from latticebpd.drafters.heads.torch_heads import TorchHeads
from latticebpd.drafters.strategies import BestTree
from latticebpd.models.catalogue import GGUF_NAME, model_folder
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.load_target import load_stock
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import TreeSize, calibration_path, stored_calibration
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer
from tests.helpers.block_drafters import ENGINE_SHAPE, tiny_target
from tests.helpers.drafters import WEIGHTS
from tests.helpers.engine_models import stock
from tests.helpers.gguf_files import LETTERS, bundled_with_gguf, written
from tests.helpers.tiny_families import VOCABULARY
from tests.helpers.tokenizers import letters, saved_with_letters

TEXT = "The history of the city"


@pytest.fixture(scope="module")
def toy() -> Loaded:
    return load()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model as `save_pretrained` writes it, with its tokenizer and nothing else."""
    return saved_with_letters(tmp_path / "own")


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The bundled model with its n-gram model beside it."""
    folder = tmp_path / "whole"
    shutil.copytree(bundled.MODEL, folder)
    shutil.copyfile(bundled.LM, folder / "lm.fst")
    shutil.copyfile(f"{bundled.LM}.alpha.json", folder / "lm.fst.alpha.json")
    return folder


def test_the_bundled_models_parts_are_there_with_the_weight_of_the_default_system(toy: Loaded) -> None:
    assert isinstance(toy.target, EngineModel)
    assert isinstance(toy.source, HeadLattices)
    assert as_scorer(toy.lm, system="16-tree").alpha == 0.75
    default = toy.drafter()
    assert isinstance(default, LatticeDrafter)
    assert isinstance(default.strategy, BestTree)
    assert isinstance(default.strategy.scorer, CalibratedScorer)
    assert default.strategy.scorer.calibration == stored_calibration(bundled.LM)
    assert isinstance(toy.drafter("16-best"), LatticeDrafter)


def test_default_trees_over_rounded_weights_are_cut_to_what_pays(toy: Loaded) -> None:
    assert toy.costs is None
    rounded = load(weights="int8")
    default = rounded.drafter()
    assert isinstance(default, CostAwareDrafter)
    assert default.costs is rounded.costs
    assert rounded.costs is not None
    assert rounded.costs.packed
    assert rounded.costs.drafting[0] > 0
    for named in (rounded.drafter("16-calibrated"), rounded.drafter(num_nodes=16)):
        assert isinstance(named, LatticeDrafter)
        assert isinstance(named.strategy, BestTree)
    assert len(rounded.draft(TEXT)) == 16
    greedy = rounded.generate(TEXT, NoDrafter(), max_new_tokens=24)
    assert rounded.generate(TEXT, max_new_tokens=24).sequences.tolist() == greedy.sequences.tolist()


def test_a_gguf_file_without_heads_drafts_trees_of_text_and_ngram_model_cut_by_costs_that_are_measured_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICEBPD_CACHE", str(tmp_path / "cache"))
    written(file := tmp_path / "model.gguf", tiny_target(vocab_size=261, **ENGINE_SHAPE), {}, tokenizer=LETTERS)
    first, again = load(file), load(file)
    default = first.drafter()
    assert isinstance(default, CostAwareDrafter)
    assert first.costs is not None
    assert first.costs == again.costs
    assert first.costs.drafting[0] > 0
    ids = [5, 6, 7, 8] * 4
    greedy = first.generate(ids, NoDrafter(), max_new_tokens=24)
    assert first.generate(ids, max_new_tokens=24).sequences.tolist() == greedy.sequences.tolist()
    trees = first.drafter(num_nodes=16)
    assert isinstance(trees, LatticeDrafter)
    assert not trees.needs_hidden
    assert len(trees.propose([State(0, ids, 4, None, 8)])[0]) == 16

    following = np.array([[token, token + 1] for token in range(9, 99)], np.int32)
    ngrams = [np.arange(261, dtype=np.int32)[:, None], following]
    table = fst.NgramTable(ngrams, [np.full(261, -6.0), np.full(90, -0.05)], [np.full(261, -3.0), np.zeros(90)])
    fst.NgramModel.from_table(table).save(tmp_path / "lm.fst")
    with_ngrams = load(file, lm=tmp_path / "lm.fst")
    (tree,) = with_ngrams.drafter(num_nodes=4).propose([State(0, [3, 20], 1, None, 8)])
    assert tree.tokens[tree.parents == -1].tolist() == [21]  # which the text has never had
    assert with_ngrams.generate(ids, max_new_tokens=24).sequences.tolist() == greedy.sequences.tolist()
    with pytest.raises(ValueError, match="expected greedy, N-calibrated or N-copies for a model without heads"):
        with_ngrams.drafter("16-best")


def test_trees_that_are_cut_ask_heads_for_the_slots_that_pay_off(tmp_path: Path) -> None:
    """Once the costs are measured: here every size needs one slot. Texts stay."""
    lm = tmp_path / "lm.fst"
    shutil.copyfile(bundled.LM, lm)
    known = calibrated_scorer(bundled.LM).calibration
    replace(known, trees=(TreeSize(2, 2.0, 1), TreeSize(64, 4.0, 1))).save(calibration_path(lm))
    loaded = load(lm=lm, weights="int8")
    default = loaded.drafter()
    assert isinstance(default, CostAwareDrafter)
    assert (known.slots, default.drafter.source.num_slots) == (8, 8)
    greedy = loaded.generate(TEXT, NoDrafter(), max_new_tokens=24)
    assert loaded.generate(TEXT, default, max_new_tokens=24).sequences.tolist() == greedy.sequences.tolist()
    assert default.drafter.source.num_slots == 1
    assert loaded.drafter("16-calibrated").source.num_slots == 8


def test_whatever_lies_beside_a_model_comes_with_it(whole: Path) -> None:
    loaded = load(whole)
    assert loaded.lm == whole / "lm.fst"
    assert as_scorer(loaded.lm, system="16-tree").alpha == 0.75
    WEIGHTS.save(calibration_path(whole / "lm.fst"))
    calibrated = load(str(whole))
    assert calibrated_scorer(calibrated.lm).calibration == WEIGHTS
    assert len(calibrated.draft(TEXT)) == 16
    assert len(calibrated.draft(TEXT, calibrated.drafter(num_nodes=5))) == 5


def test_language_model_may_lie_elsewhere_but_must_exist(own: Path) -> None:
    assert load(own, lm=bundled.LM).lm == bundled.LM
    with pytest.raises(
        ValueError, match=r"missing\.fst: expected an n-gram model or a neural rescorer, found no such file"
    ):
        load(own, lm="missing.fst")


def test_heads_of_another_model_are_refused_and_not_replaced_by_its_own(whole: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(whole, other)
    with pytest.raises(ValueError, match="found a model with heads; give it as --model"):
        load(whole, drafter=other)
    assert load(whole, drafter=whole).draft(TEXT) == load(whole).draft(TEXT)


def test_names_of_the_catalogue_and_unknown_ones_mean_what_they_mean_on_the_command_line(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATTICEBPD_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="get it with `latticebpd models get smollm2-135m`"):
        load("smollm2-135m")
    shutil.copytree(whole, model_folder("smollm2-135m"))
    assert load("smollm2-135m").lm == model_folder("smollm2-135m") / "lm.fst"
    shutil.copyfile(calibration_path(bundled.LM), model_folder("smollm2-135m") / "lm.fst.calibration.json")
    first, again = (load("smollm2-135m", weights="int8").costs for _ in range(2))
    assert first is not again
    assert first == again  # measured once a day
    with pytest.raises(ValueError, match="expected the directory of a model"):
        load("./no-such-folder")


def test_the_bundled_model_has_a_name_unless_a_directory_is_called_so(
    toy: Loaded, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = load("bundled")
    assert (named.name, named.path, named.folder, named.lm) == (toy.name, toy.path, toy.folder, toy.lm)
    assert load_stock("bundled").num_parameters() == load_stock(bundled.MODEL).num_parameters()
    whole.rename(tmp_path / "bundled")
    monkeypatch.chdir(tmp_path)
    assert load("bundled").lm == Path("bundled/lm.fst")


def test_gguf_file_is_a_model_too(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ValueError, match="expected GGUF version 2 or 3, little endian, got 0"):
        load(gguf)


@pytest.mark.parametrize("dtype", ["float16", "torch.float16", torch.float16])
def test_another_type_is_computed_by_pytorch(dtype: Any, toy: Loaded) -> None:
    loaded = load(dtype=dtype)
    assert isinstance(loaded.target, TransformersModel)
    assert (loaded.weights, loaded.target.dtype) == ("torch", torch.float16)
    text = loaded.generate(TEXT, max_new_tokens=8).tokens
    assert text.shape == (1, len(toy.encode(TEXT)) + 8)


def test_the_processor_and_float32_are_what_the_engine_computes() -> None:
    for device in ("cpu", torch.device("cpu")):
        assert load(device=device).weights == load(device=device, dtype="float32").weights == "float32"
        loaded = load(device=device, weights="torch")
        assert isinstance(loaded.target, TransformersModel)
        assert (loaded.target.device, loaded.target.dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": "int8", "dtype": "bfloat16"},
            "expected float32 on the CPU with weights='int8', got device cpu and dtype bfloat16; use weights='torch'",
        ),
        (
            {"weights": "float32", "device": "meta"},
            "expected float32 on the CPU with weights='float32', got device meta and dtype float32; "
            "use weights='torch'",
        ),
        ({"weights": "nonsense"}, "expected weights among float32, int8, gguf, torch, got 'nonsense'"),
        ({"weights": "file"}, "expected weights among float32, int8, gguf, torch, got 'file'"),
        ({"weights": "gguf"}, "expected a GGUF file for weights='gguf', got none; use 'int8' or 'float32'"),
        ({"dtype": "int8"}, "expected a dtype such as float32, bfloat16 or float16, got 'int8'"),
        ({"dtype": "nonsense"}, "expected a dtype such as float32, bfloat16 or float16, got 'nonsense'"),
    ],
)
def test_weights_and_types_that_there_are_not_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="expected") as error:
        load(**options)
    assert str(error.value) == message


def heads_of(kind: str) -> Heads:
    torch.manual_seed(1)
    heads = HEAD_KINDS[kind](32, 4, VOCABULARY if kind == "medusa" else 16)
    for weight in heads.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return heads


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_heads_without_kernels_are_computed_by_pytorch_with_their_model(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    BlockwiseLM(stock(), heads_of(kind)).save_pretrained(folder)
    letters().save_pretrained(folder)
    loaded = load(folder)
    has_kernels = isinstance(heads_of(kind), FeedForwardHeads)
    assert loaded.weights == ("float32" if has_kernels else "torch")
    assert isinstance(loaded.source, HeadLattices)
    assert isinstance(loaded.source.heads, TorchHeads) != has_kernels
    greedy = load(folder, weights="torch").generate("abcabc", NoDrafter(), max_new_tokens=20).tokens.tolist()
    assert loaded.generate("abcabc", loaded.drafter("8-tree:0-gram"), max_new_tokens=20).tokens.tolist() == greedy
    for weights in ("float32", "int8"):
        if has_kernels:
            assert load(folder, weights=weights).weights == weights
            continue
        with pytest.raises(ValueError, match="expected weights='torch'") as error:
            load(folder, weights=weights)
        assert str(error.value).startswith(f"{folder}: ")
        assert f"got weights='{weights}'" in str(error.value)
        assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("device", ["gpu", "cuda:99", 3.5])
def test_a_device_that_is_not_there_is_refused_in_one_line(device: Any) -> None:
    with pytest.raises(ValueError, match="expected a device such as cpu or cuda that PyTorch has here, got") as error:
        load(device=device)
    assert len(str(error.value).splitlines()) == 1


def replaced(file: Path) -> None:
    """By a file of the same size and time, as `mv` would."""
    before = file.stat()
    (other := file.with_suffix(".new")).write_bytes(bytes(before.st_size))
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(file)


def overwritten(file: Path) -> None:
    """Its last bytes, in place."""
    with open(file, "r+b") as written:
        written.seek(-4, os.SEEK_END)
        written.write(b"\1\2\3\4")


@pytest.mark.parametrize("change", [replaced, overwritten])
@pytest.mark.parametrize("form", ["folder", "file"])
def test_a_gguf_file_that_changes_after_it_was_loaded_is_refused(
    form: str, change: Callable[[Path], None], tmp_path: Path
) -> None:
    """Its weights would be read with another file's tokenizer."""
    folder = bundled_with_gguf(tmp_path / "model")
    file = folder / GGUF_NAME
    loaded = load(folder if form == "folder" else file)
    assert loaded.weights == "gguf"
    assert loaded.target.fingerprint
    other = load(folder if form == "folder" else file)
    change(file)
    calls = (
        lambda: loaded.generate([1, 2, 3], NoDrafter(), max_new_tokens=2),
        lambda: other.tokenizer,
        lambda: other.target.fingerprint,
        lambda: other.target.embeddings.input_embeddings(np.array([1])),
    )
    for call in calls:
        with pytest.raises(ValueError, match=f"{GGUF_NAME}: expected the file that was loaded, got one"):
            call()


def test_a_gguf_file_that_is_deleted_lives_on_in_the_model(tmp_path: Path) -> None:
    folder = bundled_with_gguf(tmp_path / "model")
    loaded = load(folder)
    expected = loaded.generate(TEXT, max_new_tokens=6).tokens
    (folder / GGUF_NAME).unlink()
    assert (loaded.generate(TEXT, max_new_tokens=6).tokens == expected).all()


@pytest.mark.parametrize("weights", ["gguf", "float32", "int8", "torch"])
def test_a_loaded_model_is_copied_and_pickled(weights: str, tmp_path: Path) -> None:
    """A copy shares the engine's weights; a pickled model is loaded again by its name."""
    loaded = replace(load(bundled_with_gguf(tmp_path / "model"), weights=weights), chat=False)
    expected = loaded.generate(TEXT, max_new_tokens=6).tokens
    pickled = pickle.dumps(loaded)
    for other in (copy.copy(loaded), copy.deepcopy(loaded), pickle.loads(pickled)):
        assert (other.weights, other.chat) == (weights, False)
        assert (other.generate(TEXT, max_new_tokens=6).tokens == expected).all()
    on_engine = weights != "torch"
    assert (copy.deepcopy(loaded).target is loaded.target) == on_engine
    assert (len(pickled) < (tmp_path / "model" / "model.safetensors").stat().st_size / 4) == on_engine


def test_an_engines_copy_of_a_model_in_memory_is_not_pickled() -> None:
    model = engine_copy(stock())
    assert copy.deepcopy(model) is model
    with pytest.raises(ValueError, match="expected a model that was loaded by a name to pickle, got the engine's copy"):
        pickle.dumps(model)
