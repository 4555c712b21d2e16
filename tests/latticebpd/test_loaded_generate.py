"""`Loaded.generate` and `draft`: however a prompt is given, the text is that of `generate()`; the rest is refused."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import DraftTree, Exact, Loaded, NoDrafter, Sampling, generate, load
from latticebpd.drafters.bundled import MODEL
from latticebpd.drafters.empty_lattices import EmptyLattices
from latticebpd.drafters.lattice_drafter import LatticeDrafter
from latticebpd.models.load_target import load_stock
from tests.helpers.tokenizers import TEMPLATE, letters, saved_with_letters

TEXT = "The history of the city"
TEXTS = [TEXT, "A river", "The king of the city was the son of a king, and"]


def written(model: Any, loaded: Loaded, text: str, length: int) -> Any:
    """What ``transformers`` writes."""
    ids = torch.tensor([loaded.encode(text)])
    mask = torch.ones_like(ids)
    return model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length).tolist()


@pytest.fixture(scope="module")
def toy() -> Loaded:
    return load()


@pytest.fixture(scope="module", params=["float32", "int8", "torch"])
def each_kind(request: pytest.FixtureRequest) -> Loaded:
    return load(weights=request.param)


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A model as `save_pretrained` writes it, with its tokenizer and nothing else."""
    return saved_with_letters(tmp_path / "own")


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


def test_text_is_greedy_decodings(toy: Loaded) -> None:
    expected = written(load_stock(MODEL), toy, TEXT, 24)
    assert toy.generate(TEXT, max_new_tokens=24).sequences.tolist() == expected
    assert toy.generate(TEXT, NoDrafter(), max_new_tokens=24).sequences.tolist() == expected


def test_draft_is_what_the_first_call_verifies(own: Path) -> None:
    loaded = load(own)
    for text in ("abcdefabcdefab", "ab", "aaaa"):
        trace = loaded.generate(text, max_new_tokens=64, trace=True).trace
        assert trace is not None
        assert loaded.draft(text) == trace[0].tree


def test_translator_drafts_from_its_first_tokens(tmp_path: Path) -> None:
    folder = tmp_path / "translator"
    saved_with_letters(folder, "t5")
    loaded = load(folder)
    expected = written(load_stock(folder), loaded, "abcabc", 20)
    assert loaded.generate("abcabc", max_new_tokens=20).sequences.tolist() == expected
    assert isinstance(loaded.draft("abcabc"), DraftTree)


def test_a_model_of_ones_own_without_heads_drafts_copies(own: Path) -> None:
    loaded = load(own)
    assert loaded.lm is None
    drafter = loaded.drafter()
    assert isinstance(drafter, LatticeDrafter)
    assert isinstance(drafter.source, EmptyLattices)
    tree = loaded.draft("abcdefabcdefab")
    assert len(tree) > 0
    assert set(tree.tokens.tolist()) <= set(range(6))
    expected = written(load_stock(own), loaded, "abcabcab", 40)
    assert loaded.generate("abcabcab", max_new_tokens=40).sequences.tolist() == expected
    assert loaded.draft("a", NoDrafter()) == DraftTree.empty()
    with pytest.raises(ValueError, match="expected greedy, N-calibrated or N-copies for a model without heads"):
        loaded.drafter("16-tree")


def test_chat_models_are_asked_in_their_template(own: Path) -> None:
    tokenizer: Any = letters()
    tokenizer.chat_template = TEMPLATE
    tokenizer.add_special_tokens({"eos_token": "a"})
    tokenizer.save_pretrained(own)
    loaded = load(own)
    assert len(loaded.encode("bc")) != len(loaded.tokenizer("bc")["input_ids"])


@pytest.mark.parametrize("drafts", [True, False])
def test_several_texts_are_written_as_each_alone(each_kind: Loaded, drafts: bool) -> None:
    loaded, drafter = each_kind, each_kind.drafter() if drafts else NoDrafter()
    out = loaded.generate(TEXTS, drafter, max_new_tokens=16)
    assert len({len(loaded.encode(text)) for text in TEXTS}) == len(TEXTS)
    assert out.tokens.shape == (3, max(len(loaded.encode(text)) for text in TEXTS) + 16)
    for row, text in zip(out.tokens, TEXTS, strict=True):
        single = loaded.generate(text, NoDrafter(), max_new_tokens=16)
        assert row[out.prompt_length :].tolist() == single.tokens[0, single.prompt_length :].tolist()


def test_several_sources_are_translated_as_each_alone(tmp_path: Path) -> None:
    saved_with_letters(tmp_path, "t5")
    loaded, sources = load(tmp_path), ["abcabc", "k", "fedcba"]
    out = loaded.generate(sources, max_new_tokens=12)
    for row, source in zip(out.tokens, sources, strict=True):
        assert row.tolist() == loaded.generate(source, max_new_tokens=12).tokens[0].tolist()


def test_a_list_of_one_text_is_that_text(toy: Loaded) -> None:
    expected = toy.generate(TEXT, max_new_tokens=8).tokens.tolist()
    assert toy.generate([TEXT], max_new_tokens=8).tokens.tolist() == expected
    assert toy.generate((TEXT,), max_new_tokens=8).tokens.tolist() == expected


def test_ids_may_be_lists_arrays_and_tensors_of_one_row_or_several(each_kind: Loaded) -> None:
    ids = each_kind.encode(TEXT)
    expected = each_kind.generate(TEXT, max_new_tokens=8).tokens.tolist()
    for kind in (
        ids, tuple(ids), np.array(ids), np.array(ids, np.int32), torch.tensor(ids), [ids], np.array([ids]),
        torch.tensor([ids]),
    ):  # fmt: skip
        assert each_kind.generate(kind, max_new_tokens=8).tokens.tolist() == expected
    twice = each_kind.generate(torch.tensor([ids, ids]), max_new_tokens=8).tokens.tolist()
    assert twice == expected * 2
    padded, mask = [[0, 0, *ids], [5, 6, *ids]], [[0, 0, *[1] * len(ids)], [1] * (len(ids) + 2)]
    out = each_kind.generate(padded, max_new_tokens=8, attention_mask=torch.tensor(mask)).tokens
    assert out[0, 2:].tolist() == expected[0]
    assert out[1].tolist() == each_kind.generate(padded[1], max_new_tokens=8).tokens[0].tolist()


def test_results_are_tensors_of_pytorch_and_arrays_of_the_engine(each_kind: Loaded) -> None:
    out = each_kind.generate(TEXT, max_new_tokens=4)
    assert isinstance(out.sequences, torch.Tensor if each_kind.weights == "torch" else np.ndarray)
    assert isinstance(out.tokens, np.ndarray)
    assert out.tokens.dtype == np.int64


def test_a_seed_makes_a_sampled_text_repeatable(each_kind: Loaded) -> None:
    def text(**options: Any) -> list[int]:
        return each_kind.generate(TEXT, max_new_tokens=24, **options).tokens[0].tolist()

    greedy = text()
    assert text(do_sample=True, seed=5) == text(do_sample=True, seed=5)
    assert len({tuple(text(do_sample=True, seed=seed)) for seed in (5, 6, 7)} | {tuple(greedy)}) == 4
    warm = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
    assert text(**warm, seed=5) == text(do_sample=True, **warm, seed=5)
    rule = Sampling(0.9, 40, 0.95, torch.Generator().manual_seed(5))
    ids = each_kind.encode(TEXT)
    expected = generate(each_kind.target, ids, each_kind.drafter(), rule, 24, attention_mask=[[1] * len(ids)])
    assert text(**warm, seed=5) == expected.tokens[0].tolist()
    torch.manual_seed(1)
    unseeded = [text(do_sample=True) for _ in range(2)]
    assert unseeded[0] != unseeded[1]


def test_temperature_0_and_do_sample_false_are_greedy(toy: Loaded) -> None:
    greedy = toy.generate(TEXT, max_new_tokens=12).tokens.tolist()
    for options in ({"temperature": 0}, {"temperature": 0.0, "seed": 3}, {"do_sample": False}, {"top_p": None}):
        assert toy.generate(TEXT, max_new_tokens=12, **options).tokens.tolist() == greedy
    assert toy.generate(TEXT, max_new_tokens=12, do_sample=False, temperature=0.7).tokens.tolist() == greedy
    assert toy.generate(TEXT, max_new_tokens=12, do_sample=True, top_k=1, seed=0).tokens.tolist() == greedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.9}, "expected do_sample=True or a temperature above 0, got top_p"),
        ({"temperature": 0, "top_k": 5, "min_p": 0.1}, "expected do_sample=True .*, got min_p, top_k"),
        ({"do_sample": True, "acceptance": Exact()}, "expected sampling or an acceptance rule, got both"),
        ({"do_sample": True, "temperature": 0}, "expected a temperature > 0, got 0"),
        ({"temperature": -1.0}, "expected temperature as a number from 0 to .*, got -1.0"),
        ({"do_sample": True, "top_p": -1.0}, "top_p"),
        ({"temperature": "hot"}, "expected temperature as a number from 0 to .*, got 'hot'"),
        ({"do_sample": True, "top_k": 2.5}, "expected top_k as a whole number from .*, got 2.5"),
        ({"do_sample": True, "seed": "x"}, "expected a whole number as seed, got 'x'"),
        ({"max_new_tokens": 2.5}, "expected max_new_tokens as a whole number from 1 to .*, got 2.5"),
        ({"pad_token_id": 2**64}, f"expected pad_token_id as a whole number from .*, got {2**64}"),
        ({"max_new_tokens": 0}, "^expected max_new_tokens as a whole number from 1 to .*, got 0"),
    ],
)
def test_options_that_contradict_each_other_are_refused_by_name(
    toy: Loaded, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        toy.generate(TEXT, **options)
    assert len(str(error.value).splitlines()) == 1


WRONG: dict[str, Any] = {
    "nothing": None, "a number": 5, "bytes": b"abc", "an empty list": [], "an empty text": "", "empty texts": ["", ""],
    "one empty text": [TEXT, ""], "texts and ids": [TEXT, [1]], "lists of texts": [[TEXT]], "ragged ids": [[1, 2], [3]],
    "fractions": [1.5, 2.0], "three dimensions": [[[1]]], "negative ids": [-1], "ids beyond the vocabulary": [10**6],
    "ids of no size": [2**70], "truths": [True, False], "a mapping": {"input_ids": [1]},
    "a tensor of floats": torch.ones(3),
    "an empty row": np.empty((1, 0), np.int64), "a class": Loaded,
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_prompt_is_refused_in_one_line(toy: Loaded, what: str) -> None:
    with pytest.raises(ValueError, match=r"^expected ") as error:
        toy.generate(WRONG[what], max_new_tokens=4)
    assert len(str(error.value).splitlines()) == 1
    assert "got" in str(error.value)
