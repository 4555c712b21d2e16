"""One front door: a directory, a file, a name or nothing gives all that a decode needs, and something useful drafts."""

from __future__ import annotations

import shutil
from dataclasses import FrozenInstanceError, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from latticebpd import BlockwiseLM, DraftTree, Loaded, NoDrafter, PromptNgramDrafter, load
from latticebpd.drafters import LatticeDrafter, bundled
from latticebpd.drafters.paying_drafts import PayingDrafter
from latticebpd.drafters.strategies import BestTree
from latticebpd.models.catalogue import model_folder
from latticebpd.scoring.calibrated import CalibratedScorer
from latticebpd.scoring.calibration import TreeSize, calibration_path, stored_calibration
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer
from tests.helpers.drafters import WEIGHTS
from tests.helpers.tiny_families import tiny
from tests.helpers.tokenizers import TEMPLATE, letters

TEXT = "The history of the city"


@pytest.fixture(scope="module")
def toy() -> Loaded:
    return load()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model as `save_pretrained` writes it, with its tokenizer and nothing else."""
    folder = tmp_path / "own"
    tiny("llama", seed=3).save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The bundled model with its n-gram model beside it."""
    folder = tmp_path / "whole"
    shutil.copytree(bundled.MODEL, folder)
    shutil.copyfile(bundled.LM, folder / "lm.fst")
    shutil.copyfile(f"{bundled.LM}.alpha.json", folder / "lm.fst.alpha.json")
    return folder


def test_three_lines_give_the_bundled_models_first_draft(toy: Loaded) -> None:
    tree = toy.draft(TEXT)
    assert len(tree) == 16
    text = toy.encode(TEXT) + toy.generate(TEXT, max_new_tokens=9).sequences[0, len(toy.encode(TEXT)) :].tolist()
    right = next(step for step in toy.generate(TEXT, max_new_tokens=9, trace=True).trace or [])
    assert (tree.tokens.tolist(), tree.parents.tolist()) != ([], [])
    assert set(right.committed[:-1]) <= set(tree.tokens.tolist())
    assert toy.decode(text).startswith(TEXT)
    with pytest.raises(FrozenInstanceError):
        toy.lm = None  # type: ignore[misc]


def test_the_bundled_models_parts_are_there_with_the_weight_of_the_default_system(toy: Loaded) -> None:
    assert isinstance(toy.model, BlockwiseLM)
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
    assert isinstance(default, PayingDrafter)
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


def test_trees_that_are_cut_ask_heads_for_the_slots_that_pay_off(tmp_path: Path) -> None:
    """Once the costs are measured: here every size needs one slot. Texts stay."""
    lm = tmp_path / "lm.fst"
    shutil.copyfile(bundled.LM, lm)
    known = calibrated_scorer(bundled.LM).calibration
    replace(known, trees=(TreeSize(2, 2.0, 1), TreeSize(64, 4.0, 1))).save(calibration_path(lm))
    loaded = load(lm=lm, weights="int8")
    default = loaded.drafter()
    assert isinstance(default, PayingDrafter)
    assert (known.slots, default.drafter.source.num_slots) == (8, 8)
    greedy = loaded.generate(TEXT, NoDrafter(), max_new_tokens=24)
    assert loaded.generate(TEXT, default, max_new_tokens=24).sequences.tolist() == greedy.sequences.tolist()
    assert default.drafter.source.num_slots == 1
    assert loaded.drafter("16-calibrated").source.num_slots == 8


def test_text_is_greedy_decodings(toy: Loaded) -> None:
    ids = torch.tensor([toy.encode(TEXT)])
    expected = toy.base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
    assert toy.generate(TEXT, max_new_tokens=24).sequences.tolist() == expected.tolist()
    assert toy.generate(TEXT, NoDrafter(), max_new_tokens=24).sequences.tolist() == expected.tolist()


def test_a_model_of_ones_own_without_heads_drafts_copies(own: Path) -> None:
    loaded = load(own)
    assert loaded.lm is None
    assert isinstance(loaded.drafter(), PromptNgramDrafter)
    tree = loaded.draft("abcdefabcdefab")
    assert len(tree) > 0
    assert set(tree.tokens.tolist()) <= set(range(6))
    ids = torch.tensor([loaded.encode("abcabcab")])
    expected = loaded.base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=40)
    out = loaded.generate("abcabcab", max_new_tokens=40)
    assert out.sequences.tolist() == expected.tolist()
    assert loaded.draft("a", NoDrafter()) == DraftTree.empty()
    with pytest.raises(ValueError, match="expected greedy or N-copies for a model without heads"):
        loaded.drafter("16-tree")


def test_draft_is_what_the_first_call_verifies(own: Path) -> None:
    loaded = load(own)
    for text in ("abcdefabcdefab", "ab", "aaaa"):
        trace = loaded.generate(text, max_new_tokens=64, trace=True).trace
        assert trace is not None
        assert loaded.draft(text) == trace[0].tree


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


def test_chat_models_are_asked_in_their_template(own: Path) -> None:
    tokenizer: Any = letters()
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_special_tokens({"eos_token": "a"})
    tokenizer.save_pretrained(own)
    loaded = load(own)
    assert len(loaded.encode("bc")) != len(loaded.tokenizer("bc")["input_ids"])


def test_translator_drafts_from_its_first_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "translator"
    tiny("t5", seed=3).save_pretrained(folder)
    letters().save_pretrained(folder)
    loaded = load(folder)
    ids = torch.tensor([loaded.encode("abcabc")])
    expected = loaded.base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=20)
    assert loaded.generate("abcabc", max_new_tokens=20).sequences.tolist() == expected.tolist()
    assert isinstance(loaded.draft("abcabc"), DraftTree)


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


def test_gguf_file_is_a_model_too(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ValueError, match="expected a GGUF file of a causal LM"):
        load(gguf)
