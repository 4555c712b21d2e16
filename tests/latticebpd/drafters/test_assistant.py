"""A small causal LM as drafter: a family in one folder and one line of the registry works wherever families do."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd import DraftTree, Loaded, load
from latticebpd.drafters import State, drafter_named, prefix_lattices
from latticebpd.drafters.assistant import assistant_family
from latticebpd.drafters.assistant.assistant_family import AssistantLattices
from latticebpd.drafters.registry import FAMILIES, family_of
from latticebpd.models.load_target import load_stock
from latticebpd.scoring.neural.prefix_reader import CachedReader, EngineReader
from tests.helpers.commands import Run
from tests.helpers.tiny_families import VOCABULARY, tiny
from tests.helpers.tokenizers import letters
from tests.helpers.trigrams import trigram

SYSTEMS = ("vanilla", "chain", "4-best:0-gram", "12-tree:0-gram", "12-tree", "4-best", "copies+12-tree", "greedy")
TEXT = "abcabcab"


def saved(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    letters().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target, and an assistant that is neither it nor unlike it: the same weights, disturbed."""
    root = tmp_path_factory.mktemp("pair")
    target, assistant = tiny("llama", seed=3), tiny("llama", seed=3)
    with torch.no_grad():
        for parameter in assistant.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05 * parameter.std())
    return saved(target, root / "target"), saved(assistant, root / "assistant")


@pytest.fixture(scope="module")
def loaded(folders: tuple[Path, Path]) -> Loaded:
    return load(folders[0], drafter=folders[1])


def moment(tokens: list[int], max_depth: int = 9, row: int = 0) -> State:
    return State(row, tokens, 1, None, max_depth)


def greedy(loaded: Loaded) -> Any:
    """What ``generate()`` of the stock model writes after the text, the text included."""
    ids, model = torch.tensor([loaded.encode(TEXT)]), load_stock(loaded.folder)
    return model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=30)  # type: ignore[operator]


def probability(model: Any, tokens: list[int], following: tuple[int, ...]) -> float:
    """ln p(following | tokens), read in one plain pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*tokens, *following]])).logits[0].log_softmax(-1)
    return sum(float(logits[len(tokens) - 1 + i, token]) for i, token in enumerate(following))


def test_registry_finds_it_last_of_all_families(folders: tuple[Path, Path]) -> None:
    assert FAMILIES[-1] == "assistant.assistant_family"
    assert family_of(folders[1]) is assistant_family


@pytest.mark.parametrize("system", SYSTEMS)
def test_text_is_the_targets_greedy_text(loaded: Loaded, system: str) -> None:
    expected = greedy(loaded)
    drafter = drafter_named(system, loaded.lattice_source(k=5), trigram())
    out = loaded.generate(TEXT, drafter, max_new_tokens=30)
    assert out.sequences.tolist() == expected.tolist()
    assert system == "greedy" or out.num_calls < out.num_tokens


def test_default_system_is_a_tree_of_its_lattices(loaded: Loaded) -> None:
    assert loaded.default_system() == "16-tree"
    assert loaded.generate(TEXT, max_new_tokens=20).num_calls < 15


def test_expanded_paths_have_the_assistants_own_probability(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all prefixes of one token expanded, every path of two; brute force over the vocabulary."""
    source: Any = loaded.source
    model, text = source.assistant.model, [3, 1, 4]
    monkeypatch.setattr(prefix_lattices, "WIDTH", VOCABULARY)
    every = AssistantLattices(model, loaded.target, VOCABULARY, 2)
    (lattice,) = every.lattices([moment(text)])
    assert lattice is not None
    assert lattice.transitions is not None
    for i, j in itertools.product(range(VOCABULARY), repeat=2):
        path = (int(lattice.tokens[0, i]), int(lattice.tokens[1, j]))
        score = lattice.log_probs[0, i] + lattice.log_probs[1, j] + lattice.transitions[0, i, j]
        assert float(score) == pytest.approx(probability(model, text, path), abs=2e-4)
    best = sorted(
        ((probability(model, text, path), path) for path in itertools.product(range(VOCABULARY), repeat=2)),
        key=lambda each: (-each[0], each[1]),
    )
    drafts = drafter_named("3-best:0-gram", every).propose([moment(text)])[0]
    assert drafts == DraftTree.from_paths([path for _, path in best[:3]])


def test_rows_do_not_depend_on_each_other_and_the_cache_follows_growing_texts(loaded: Loaded) -> None:
    texts = [[3, 1, 4], [2, 7, 1, 8, 2], [5]]
    source = loaded.lattice_source(k=4, slots=5)
    for _ in range(3):
        together = source.lattices([moment(text, row=row) for row, text in enumerate(texts)])
        for text, lattice in zip(texts, together, strict=True):
            (single,) = loaded.lattice_source(k=4, slots=5).lattices([moment(text)])
            assert single is not None
            assert lattice is not None
            np.testing.assert_array_equal(single.tokens, lattice.tokens)
            np.testing.assert_allclose(single.log_probs, lattice.log_probs, atol=1e-4)
            np.testing.assert_allclose(single.transitions, lattice.transitions, atol=1e-4)  # type: ignore[arg-type]
        texts = [[*text, text[0], 6] for text in texts]
    short = source.lattices([moment([3, 1], max_depth=2), moment([3, 1, 4], max_depth=1)])
    assert [lattice.slots for lattice in short if lattice is not None] == [2, 1]


def test_lattices_of_a_text_are_those_of_its_decode(loaded: Loaded) -> None:
    text, source = [3, 1, 4, 1, 5, 9, 2, 6], loaded.lattice_source(k=4, slots=3)
    lattices = [lattice for part, _ in source.lattices_of_text(text, range(2, 6)) for lattice in part]
    for position, lattice in zip(range(2, 6), lattices, strict=True):
        (expected,) = source.lattices([moment(text[: position + 2])])
        assert expected is not None
        np.testing.assert_array_equal(lattice.tokens, expected.tokens)
        np.testing.assert_allclose(lattice.log_probs, expected.log_probs, atol=1e-4)


def test_it_runs_on_an_engine_where_its_target_does(tmp_path: Path) -> None:
    """Its weights are quantized to int8: drafts need not be exact, and the text is the target's."""
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(
        vocab_size=VOCABULARY, intermediate_size=96, num_hidden_layers=2, initializer_range=0.3, **sizes
    )
    folders = []
    for seed in range(2):
        torch.manual_seed(seed)
        folders.append(saved(LlamaForCausalLM(config), tmp_path / str(seed)))
    plain, fast = (load(folders[0], drafter=folders[1], weights=weights) for weights in ("torch", None))
    assert fast.weights == "float32"
    sources: list[Any] = [each.lattice_source(k=VOCABULARY, slots=3) for each in (plain, fast)]
    assert [type(each.reader) for each in sources] == [CachedReader, EngineReader]
    assert [each.assistant.weights for each in sources] == ["torch", "int8"]
    texts = [[3, 1, 4], [2, 7, 1, 8, 2]]
    for _ in range(2):
        states = [moment(text, row=row) for row, text in enumerate(texts)]
        for one, other in zip(*(each.lattices(states) for each in sources), strict=True):
            np.testing.assert_allclose(dense(other), dense(one), atol=0.1)
        texts = [[*text, 5, 6] for text in texts]
    assert fast.generate(TEXT, max_new_tokens=30).sequences.tolist() == greedy(fast).tolist()


def dense(lattice: Any) -> np.ndarray:
    """Probabilities by token, ``[slots, vocab]``, of a lattice with all tokens."""
    return np.exp(np.take_along_axis(lattice.log_probs, np.argsort(lattice.tokens, axis=1), axis=1))


@pytest.mark.long
def test_every_command_takes_it(folders: tuple[Path, Path], tmp_path: Path, run: Run) -> None:
    """From lattices to a calibrated tree: generate, lattices, oracle, compare and calibrate."""
    target, assistant = folders
    beside = ("--model", target, "--drafter-model", assistant)
    texts = ["abcab", "fedcba", "aabbcc", "badcfe", "gfedab", "cabbac"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    status, _, err = run(
        "lattices", *beside, "--prompts", tmp_path / "texts.jsonl", "-o", tmp_path / "lattices", "--k", 4,
        "--context", 64, "--max-new-tokens", 20,
    )  # fmt: skip
    assert status == 0, err
    lm = tmp_path / "lm.fst"
    trigram().save(lm)
    for command in ("oracle", "compare"):
        status, out, err = run(command, tmp_path / "lattices", *beside, "--json")
        assert status == 0, err
        assert json.loads(out)
    status, out, err = run("calibrate", tmp_path / "lattices", "--lm", lm, "--examples", 6, "--write", "--json")
    assert status == 0, err
    status, out, err = run("generate", TEXT, *beside, "--lm", lm, "--max-new-tokens", 20, "--json")
    assert status == 0, err
    record = json.loads(out)
    expected = load(target)
    assert record["text"] == expected.decode(expected.generate(TEXT, max_new_tokens=20).sequences[0, len(TEXT) :])
    assert record["calls"] < record["tokens"]
    assert load(target, lm, drafter=assistant).default_system() == "16-calibrated"


def test_assistant_must_fit_its_target(folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, _ = folders
    with pytest.raises(ValueError, match="got an encoder–decoder as drafter"):
        load(target, drafter=saved(tiny("t5", seed=1), tmp_path / "t5"))
    tokenizer: Any = letters()
    tokenizer.add_tokens(["zz"])
    other = saved(tiny("llama", seed=1), tmp_path / "other")
    tokenizer.save_pretrained(other)
    with pytest.raises(ValueError, match="expected an assistant over the target's vocabulary"):
        load(target, drafter=other)
    with pytest.raises(ValueError, match=r"nowhere: expected a drafter .* found none"):
        load(target, drafter=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="expected 1 to 23 arcs per slot"):
        load(target, drafter=target).lattice_source(k=99)
