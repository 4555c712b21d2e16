"""Kim's recipe in small: what a task's models learn from and are asked, and which rows the tables are made of."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from latticebpd.drafters import bundled
from latticebpd.lattices.texts import Texts
from latticebpd.models.load_target import load_tokenizer

WORDS = (
    "a",
    "man",
    "wrote",
    "many",
    "letters",
    "to",
    "the",
    "old",
    "town",
    "and",
    "nobody",
    "knew",
    "why",
    "he",
    "did",
)
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """With the bundled model's tokenizer, and prompts of two tuning and three test texts a task."""
    module = importlib.import_module("benchmarks.study.kim_recipe")
    tokenizer: Any = load_tokenizer(bundled.MODEL)
    tokenizer.chat_template = TEMPLATE
    monkeypatch.setattr(module.kim, "TUNING", 2)
    monkeypatch.setattr(module.kim, "TEST", 3)
    monkeypatch.setattr(module, "ASKED", 2)
    monkeypatch.setattr(module.kim, "tokenizer", lambda: tokenizer)
    asked = [[number, number + 1, 7, 7] for number in range(5 * len(module.kim_tasks.TASKS))]
    Texts.of_rows(asked, [3] * len(asked)).save(tmp_path / "prompts.npz")
    monkeypatch.setattr(module.kim, "prompts", lambda work, data: tmp_path / "prompts.npz")
    return module


def passages(seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        yield " ".join(rng.choice(WORDS, 300)).capitalize() + "."


def task(recipe: ModuleType, name: str, kind: str) -> Any:
    return recipe.Task(name, name, kind, None, None, lambda data: passages(3))


def test_a_task_of_passages_learns_windows_of_its_text(recipe: ModuleType, tmp_path: Path) -> None:
    folder = recipe.examples(tmp_path, tmp_path, task(recipe, "news", "continue"))
    parts = {name: Texts.load(folder / f"{name}.npz") for name in ("train", "held-out", "tuning", "test")}
    assert {*parts["train"].lengths.tolist(), *parts["held-out"].lengths.tolist()} == {recipe.WINDOW}
    assert (
        recipe.kim.tokenizer().decode(parts["train"][0].tolist())
        == next(passages(3))[: len(recipe.kim.tokenizer().decode(parts["train"][0].tolist()))]
    )
    first = 5 * list(recipe.kim_tasks.TASKS).index("news")
    assert [text.tolist() for text in map(parts["tuning"].__getitem__, range(2))] == [
        [first, first + 1, 7],
        [first + 1, first + 2, 7],
    ]
    assert parts["test"][0].tolist() == [first + 2, first + 3, 7]
    assert len(parts["test"]) == 3


def test_a_task_of_questions_learns_answers_after_the_chat_template(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [recipe.kim_tasks.Item(f"Who wrote letter {number}?", (f"Man {number}",), "") for number in range(100)]
    items.append(recipe.kim_tasks.Item("too long " * 400, ("never",), ""))
    monkeypatch.setitem(recipe.LEARNT, "squad", lambda data: iter(items))
    folder, tokenizer = recipe.examples(tmp_path, tmp_path, task(recipe, "squad", "answer")), recipe.kim.tokenizer()
    texts = [*Texts.load(folder / "train.npz").items(), *Texts.load(folder / "held-out.npz").items()]
    assert len(texts) == 100
    text, prompt = texts[0]
    assert tokenizer.decode(text[:prompt]) == "<user>Who wrote letter 0?\n<assistant>"
    assert tokenizer.decode(text[prompt:-1]) == "Man 0"
    assert text[-1] == recipe.END
    held_out = Texts.load(folder / "held-out.npz").prompts()
    assert Texts.load(folder / "tuning.npz")[1].tolist() == held_out[1].tolist()  # no test text is tuned on


def test_own_heads_learn_what_the_model_writes_after_prompts_that_are_not_measured(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = "Who wrote the many letters to the old town?"
    texts = [f"Who wrote letter {number} to the town?" for number in range(6)]
    learnt = [recipe.kim_tasks.Item(text, (), "") for text in (*texts[:3], f"Well: {measured}", *texts[3:])]
    monkeypatch.setitem(recipe.LEARNT, "squad", lambda data: iter(learnt))
    monkeypatch.setattr(recipe, "HELD_OUT", 2)
    monkeypatch.setattr(recipe, "PROMPTS", 5)
    called = []
    monkeypatch.setattr(recipe, "latticebpd", lambda *arguments: called.append(arguments))

    def written(folder: Path) -> Texts:
        asked = Texts.load(folder.parent / "asked.npz")
        return Texts.of_rows([[*text, 7, 7] for text, _ in asked.items()], asked.lengths)

    monkeypatch.setattr(recipe, "load_distilled", written)
    test = [recipe.kim_tasks.Item(measured, (), "")]
    of = recipe.Task("squad", "squad", "answer", lambda data: iter(()), lambda data: iter(test), None)
    folder, decode = recipe.own_text(tmp_path, tmp_path, of), recipe.kim.tokenizer().decode
    every = [*Texts.load(folder / "held-out.npz").items(), *Texts.load(folder / "train.npz").items()]
    assert [decode(text[:prompt]) for text, prompt in every] == [f"<user>{text}\n<assistant>" for text in texts[:5]]
    assert all(text[prompt:] == [7, 7] for text, prompt in every)
    assert len(Texts.load(folder / "held-out.npz")) == 2
    assert len(Texts.load(folder / "test.npz")) == 3  # of kim.py
    assert [each[0] for each in called] == ["distill"]
    recipe.own_text(tmp_path, tmp_path, of)
    assert len(called) == 1  # what is written is not written again


def test_gains_of_own_heads_are_paired_with_the_package_s(recipe: ModuleType, tmp_path: Path) -> None:
    head = "task,text,tokens," + ",".join(recipe.OWN_SYSTEMS)
    for name, first, calls in (("kim-calls", "", (10, 20)), ("kim-recipe", "own,", (8, 20))):
        rows = [f"{first}code,{text},20" + f",{each}" * 6 for text, each in enumerate(calls)]
        (tmp_path / f"{name}.csv").write_text("\n".join([f"{'heads,' * bool(first)}{head}", *rows]) + "\n")
    lines = recipe.own_lines(tmp_path)
    assert [line[0] for line in lines] == ["Python code", "all"]
    assert {cell.partition(" (")[0] for line in lines for cell in line[1:]} == {"1.33, 1.43: +7.1"}


def test_rows_are_those_of_the_models_with_so_many_heads(recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "kim-recipe.csv").write_text(
        "heads,task,text,tokens,vanilla\n3,news,0,10,8\n3,news,1,10,10\n9,news,0,12,4\n9,squad,0,2,2\n"
    )
    counts = {heads: recipe.RecipeCounts(tmp_path, recipe.NAMES, heads) for heads in (3, 9)}
    assert counts[3].tasks == ["news"]
    assert counts[9].tasks == ["squad", "news"]
    assert counts[3].efficiency("news", "vanilla")[0] == 20 / 18
    assert counts[9].efficiency("news", "vanilla")[0] == 3.0
