"""The bundled model: weights are tuned by decoding passages that are not its prompts, system by system."""

from __future__ import annotations

import json
import lzma
import shutil
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.bundled import make
from latticebpd.drafters.bundled import LM, MODEL, TOKENIZER, load_prompts
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.measuring import blocks
from latticebpd.measuring.examples import lattices_fingerprint
from latticebpd.scoring.rescoring import as_scorer, calibrated_scorer
from latticebpd.scoring.weights import stored_tunings
from tests.helpers.lattices import run_system


@pytest.mark.long
def test_weights_and_a_calibration_are_fitted_to_what_the_model_writes(tmp_path: Path) -> None:
    tokenizer, lm = Tokenizer.from_file(str(TOKENIZER)), tmp_path / "lm.fst"
    shutil.copyfile(LM, lm)
    prompts = load_prompts()[:3]
    make.fit(lm, MODEL, tokenizer, prompts, tmp_path)
    written = [tmp_path / "lattices"]
    tunings, calibration = stored_tunings(lm), calibrated_scorer(lm).calibration
    assert [tuning.system for tuning in tunings] == list(make.TUNED)
    for tuning in tunings:
        assert (tuning.by, tuning.unit, tuning.examples) == ("decode", "text", (0, 1, 2))
        assert tuning.lattices == calibration.lattices == lattices_fingerprint(written)
        assert as_scorer(lm, system=tuning.system).alpha == tuning.alpha
    assert (calibration.k, calibration.unit, calibration.examples) == (make.ARCS, "text", (0, 1, 2))
    lattices = LatticeSet.joined(list(blocks(written)))
    begins = [tokenizer.encode(prompt.text).ids for prompt in prompts]
    assert lattices.sequence is not None
    for row, number in enumerate(lattices.sequence.tolist()):  # the text so far is a feature: all of it is there
        assert lattices.context_of(row)[: len(begins[number])] == begins[number]
    assert run_system("16-calibrated", lattices, lm).lengths.mean() > run_system("16-tree", lattices, LM).lengths.mean()


def test_the_bundles_own_weights_are_tuned_for_its_systems_and_none_stands_at_an_edge() -> None:
    tunings = {tuning.system: tuning for tuning in stored_tunings(LM)}
    assert set(tunings) == set(make.TUNED)
    assert all(tuning.by == "decode" and not tuning.at_edge for tuning in tunings.values())
    for tuning in tunings.values():
        assert max(tuning.block_efficiency) == tuning.block_efficiency[tuning.alphas.index(tuning.alpha)]


def test_no_prompt_is_among_the_passages_for_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts are of sources that may be shipped; passages for tuning of any."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    (tmp_path / "text").mkdir()
    sources = ["ethereum/EIPs", "python/peps", "rust-lang/book"]
    with lzma.open(tmp_path / "text" / "a.jsonl.xz", "wt") as file:
        for number in range(30):
            text = (
                f"document {number} begins\n\n" + f"and says {number} things about the city and its history.\n\n" * 40
            )
            file.write(json.dumps({"id": f"d{number}", "source": sources[number % 3], "text": text}) + "\n")
    monkeypatch.setattr(make, "is_held_out", lambda document: True)
    tuning, prompts = make.held_out_passages(tmp_path, tokenizer)
    assert len(prompts) == make.SIZES["prompts"]
    assert {prompt.source for prompt in prompts} == set(sources[:2])
    assert {prompt.id for prompt in prompts} | {passage.id for passage in tuning} == {
        f"d{number}" for number in range(30)
    }
    assert not {prompt.id for prompt in prompts} & {passage.id for passage in tuning}
