"""CONTRIBUTING's examples: each is as short as it says, goes where it says, and does what it is for."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fst.table import EOS
from latticebpd import BlockwiseLM, SausageLattice, TreeDrafter, VanillaDrafter, draft_tree, generate, load, rescore
from latticebpd.decoding import rule_names
from latticebpd.drafters import registry
from latticebpd.drafters.heads import head_files
from latticebpd.drafters.heads.blockwise import new_heads
from latticebpd.drafters.heads.head_networks import HEAD_KINDS
from latticebpd.models.load_target import load_stock
from lm_training.ngram.building import Recipe
from lm_training.ngram.smoothing import SMOOTHINGS
from tests.helpers import drafters, tiny_families
from tests.helpers.backoff_reference import assert_proper, zipf_text
from tests.helpers.blockwise_models import greedy, tiny_model
from tests.helpers.sentence_models import estimate
from tests.helpers.tokenizers import letters

ROOT = Path(__file__).parents[2]
PROMPT = [3, 1, 4]
SECTIONS = dict(
    re.findall(
        r"^### (.+?)\n(.*?)(?=^### |\Z)",
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"),
        re.MULTILINE | re.DOTALL,
    )
)


def example(section: str) -> dict[str, Any]:
    """What a section's code defines."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(code, names)
    return names


def line(section: str, names: dict[str, Any]) -> Any:
    """What the one line of a section, an entry of a dictionary, says; the name and the value."""
    (entry,) = re.findall(r"`(r?\"[^`]+,)`", SECTIONS[section])
    ((key, value),) = eval(f"{{{entry}}}", names).items()
    return key, value


@pytest.mark.parametrize("section", SECTIONS)
def test_examples_are_short_and_go_where_they_say(section: str) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", SECTIONS[section], re.MULTILINE | re.DOTALL)
    assert len([row for row in code.splitlines() if row.strip() and "import" not in row and '"""' not in row]) <= 14
    file = re.search(r"The file: `([^`]+)`", SECTIONS[section])
    assert file is not None
    assert (ROOT / file[1]).parent.is_dir()
    for folder, name in re.findall(r"`(\w+)` of\s+`([^`]+\.py)`", SECTIONS[section]):
        assert re.search(rf"^{folder}\b", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE), (folder, name)


def test_a_drafter_of_ones_own_is_lossless() -> None:
    name, make = line("A drafter", example("A drafter"))
    assert name not in drafters.DRAFTERS
    model = tiny_model()
    out = generate(model, PROMPT, make(model, []), max_new_tokens=20)
    assert out.sequences[0, len(PROMPT) :].tolist() == greedy(model, PROMPT, 20)
    assert out.verified_tokens > out.num_calls


def test_a_drafter_family_is_one_folder_and_one_entry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = example("A drafter family")
    monkeypatch.setitem(sys.modules, "latticebpd.drafters.own_family", SimpleNamespace(**names))
    target, assistant = tmp_path / "target", tmp_path / "assistant"
    for seed, folder in ((3, target), (4, assistant)):
        tiny_families.tiny("llama", seed).save_pretrained(folder)
        letters().save_pretrained(folder)
    monkeypatch.setattr(registry, "FAMILIES", registry.FAMILIES[:-1])
    with pytest.raises(ValueError, match="expected a drafter"):
        load(target, drafter=assistant)
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, "own_family"))
    loaded = load(target, drafter=assistant)
    out = loaded.generate("abcabc", max_new_tokens=20)
    assert out.verified_tokens > 0
    ids, options = torch.tensor([loaded.encode("abcabc")]), {"do_sample": False, "max_new_tokens": 20}
    greedily = load_stock(target).generate(ids, attention_mask=torch.ones_like(ids), **options)
    assert out.tokens.tolist() == greedily.tolist()
    folder = ROOT / "latticebpd/drafters/assistant"
    assert sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.glob("*.py")) <= 250
    naming = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "latticebpd").rglob("*.py")
        if path.parent != folder and "assistant_family" in path.read_text(encoding="utf-8")
    ]
    assert naming == ["latticebpd/drafters/registry.py"]


def test_an_acceptance_rule_of_ones_own_has_a_name_and_keeps_what_it_should(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rule_names._FORMS, *line("An acceptance rule", example("An acceptance rule")))
    model = tiny_model()
    with torch.no_grad():
        model.base.lm_head.weight.mul_(0.1)  # less sure of itself, so that others than the best are likely too
    exact = generate(model, PROMPT, TreeDrafter(model, None, num_nodes=16), max_new_tokens=40)
    out = generate(
        model,
        PROMPT,
        TreeDrafter(model, None, num_nodes=16),
        rule_names.parse_rule("likely:0.04"),
        max_new_tokens=40,
        trace=True,
    )
    assert out.num_calls < exact.num_calls
    assert out.trace is not None
    probabilities = model.base(input_ids=out.sequences).logits[0].detach().softmax(dim=-1)
    length = len(PROMPT) + 1
    for step in out.trace:
        for position in range(len(step.accepted)):
            best = float(probabilities[length + position - 1].max())
            assert float(probabilities[length + position - 1, step.committed[position]]) >= min(0.04, best)
        length += len(step.committed)


def test_a_scorer_of_ones_own_ranks_and_drafts() -> None:
    names = example("A scorer") | {"TreeDrafter": TreeDrafter}
    scorer = names["RecencyScorer"](2.0)
    lattice = SausageLattice([[5, 6], [7, 8]], [[-0.5, -1.0], [-0.5, -1.0]])
    assert rescore(lattice, scorer, p=1, context=[6, 3]).tokens.tolist() == [[6, 7]]
    assert rescore(lattice, scorer, p=1, alpha=0.1, context=[6, 3]).tokens.tolist() == [[5, 7]]
    assert draft_tree(lattice, scorer, num_nodes=1, context=[6, 3]).tokens.tolist() == [6]
    model = tiny_model()
    _, make = line("A scorer", names)
    out = generate(model, PROMPT, make(model, []), max_new_tokens=20)
    assert out.sequences[0, len(PROMPT) :].tolist() == greedy(model, PROMPT, 20)


def test_a_smoothing_of_ones_own_is_proper_and_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    name, smoothing = line("A smoothing method", example("A smoothing method"))
    table = estimate(zipf_text(800), 3, smoothing, (1,), end_of_text=None)
    assert_proper(table)
    assert EOS not in table.ngrams[0]
    with pytest.raises(ValueError, match="expected a smoothing method"):
        Recipe(smoothing=name)
    monkeypatch.setitem(SMOOTHINGS, name, smoothing)
    assert Recipe(smoothing=name).method is smoothing


def test_heads_of_a_kind_of_ones_own_are_made_saved_loaded_and_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = example("A kind of heads")
    kind = names["ScalingHeads"]
    monkeypatch.setitem(HEAD_KINDS, kind.kind, kind)
    monkeypatch.setitem(head_files.SIZES, *line("A kind of heads", names))
    base = tiny_model().base
    heads = new_heads(base, kind.kind, 4)
    torch.nn.init.normal_(heads.scale)
    model = BlockwiseLM(base, heads).eval()
    model.save_pretrained(tmp_path)
    loaded = BlockwiseLM.from_pretrained(tmp_path)
    assert type(loaded.heads) is kind
    hidden = torch.randn(2, 16)
    assert torch.equal(loaded.head_logits(hidden), model.head_logits(hidden))
    out = generate(loaded, PROMPT, VanillaDrafter(loaded), max_new_tokens=20)
    assert out.sequences[0, len(PROMPT) :].tolist() == greedy(model, PROMPT, 20)
    assert len(out.accept_counts) == 5  # three drafted tokens and the model's own


def test_a_family_of_ones_own_is_held_to_generate(monkeypatch: pytest.MonkeyPatch) -> None:
    name, make = line("A model family", example("A model family"))
    monkeypatch.setitem(tiny_families.FAMILIES, name, make)
    model = tiny_families.tiny(name, 3)
    ids = torch.tensor([[7, 3, 11]])
    text = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
    for make_drafter in (drafters.DRAFTERS["all right"], drafters.DRAFTERS["copies"]):
        out = generate(model, ids, make_drafter(None, text[:, 3:].tolist()), max_new_tokens=12)
        assert np.array_equal(out.sequences, text)
