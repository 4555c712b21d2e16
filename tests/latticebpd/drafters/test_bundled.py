"""The bundle itself: sizes, licences, and what the demo promises."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fst import NgramModel
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import Loaded, load
from latticebpd.drafters import bundled
from latticebpd.drafters.bundled import load_prompts
from latticebpd.drafters.lattice_drafter import OracleDrafter
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.texts import Texts
from latticebpd.measuring import lengths_of, ranks
from latticebpd.measuring.collect import CollectOptions, collect
from tests.helpers.lattices import run_system, top_arcs


@pytest.fixture(scope="module")
def bundle() -> Loaded:
    return load()


@pytest.fixture(scope="module")
def lattices(bundle: Loaded) -> LatticeSet:
    prompts = [bundle.encode(prompt.text) for prompt in load_prompts()[:3]]
    data = Texts.of_rows(prompts, [*map(len, prompts)])
    return collect(bundle.lattice_source(), data, CollectOptions(max_new_tokens=40))[0]


def test_bundle_keeps_its_size_limits() -> None:
    weights = sum(path.stat().st_size for path in bundled.MODEL.glob("*.safetensors"))
    assert weights <= 12_000_000
    assert bundled.LM.stat().st_size <= 2_000_000


def test_parts_of_the_bundle_belong_together(bundle: Loaded) -> None:
    fingerprint = vocabulary_fingerprint(bundle.tokenizer.get_vocab())
    source: Any = bundle.source
    assert source.fingerprint == NgramModel.load(bundled.LM).fingerprint == fingerprint
    assert bundle.target.vocab_size == source.vocab_size == len(bundle.tokenizer) == 8192
    assert source.heads.num_heads == 9
    assert NgramModel.load(bundled.LM).order == 4


def test_every_source_of_a_prompt_is_credited(bundle: Loaded) -> None:
    credits = (bundled.ASSETS / "README.md").read_text()
    for prompt in load_prompts():
        assert prompt.source in credits
        assert prompt.licence


@pytest.mark.parametrize("name", ["vanilla", "1-best", "16-best:0-gram", "16-best", "64-tree"])
def test_oracle_accepts_at_least_as_much_at_every_position(bundle: Loaded, lattices: LatticeSet, name: str) -> None:
    lengths = run_system(name, lattices, bundle.lm).lengths
    oracle = lengths_of(ranks(lattices), 16)
    assert (oracle >= lengths).all()
    assert oracle.sum() > lengths.sum()


def test_oracle_of_one_arc_is_vanilla_and_grows_with_k(bundle: Loaded, lattices: LatticeSet) -> None:
    np.testing.assert_array_equal(lengths_of(ranks(lattices), 1), run_system("vanilla", lattices, None).lengths)
    by_k = [lengths_of(ranks(lattices), k) for k in (1, 2, 4, 8, 16)]
    for fewer, more in pairwise(by_k):
        assert (fewer <= more).all()


def test_collected_lattice_is_the_one_the_loop_drafts_from(bundle: Loaded, lattices: LatticeSet) -> None:
    """Teacher forcing and decoding see the same heads: the label positions agree."""
    from latticebpd import generate

    prompt = bundle.encode(load_prompts()[0].text)
    drafter = OracleDrafter(bundle.lattice_source(), [])
    reference = generate(bundle.target, prompt, drafter, max_new_tokens=40, trace=True)
    assert reference.trace is not None
    first = lattices[0]
    assert lattices.context_of(0)[-1] == reference.sequences[0, len(prompt)]
    assert lattices.continuation[0].tolist() == reference.sequences[0, len(prompt) + 1 : len(prompt) + 9].tolist()
    assert reference.trace[0].tree.tokens.tolist() == top_arcs(first, 1).tokens[:, 0].tolist()


def test_prompts_are_held_out_documents(bundle: Loaded) -> None:
    from lm_training.data.corpus import is_held_out

    assert all(is_held_out(prompt.id) for prompt in load_prompts())
    assert len({prompt.id for prompt in load_prompts()}) == len(load_prompts()) >= 8


def test_assets_are_all_packaged() -> None:
    import configparser

    config = configparser.ConfigParser()
    config.read(Path(bundled.__file__).parents[2] / "setup.cfg")
    patterns = [part.strip() for part in config["options.package_data"]["latticebpd"].split(",")]
    packaged = {path for pattern in patterns for path in bundled.ASSETS.parent.glob(pattern) if path.is_file()}
    assert {path for path in bundled.ASSETS.rglob("*") if path.is_file()} <= packaged
