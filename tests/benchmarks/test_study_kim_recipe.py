"""Kim's recipe in small: what a task's models learn from and are asked, and which rows the tables are made of."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from latticebpd.lattices.texts import Texts

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


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    found = importlib.import_module("benchmarks.study.kim_recipe")
    monkeypatch.setattr(found.kim, "TUNING", 2)
    monkeypatch.setattr(found.kim, "TEST", 3)
    return found


def passages(seed: int) -> Iterator[str]:
    rng = np.random.default_rng(seed)
    for _ in range(20):
        yield " ".join(rng.choice(WORDS, 300)).capitalize() + "."


def test_a_passage_task_learns_windows_of_its_domain_and_continues_other_texts(
    recipe: ModuleType, tmp_path: Path
) -> None:
    tasks = recipe.kim_tasks

    def items(seed: int, data: Path) -> Iterator[object]:
        return (tasks.Item(text, (), str(number)) for number, text in enumerate(passages(seed)))

    task = tasks.Task(
        "news", "news", "continue", lambda data: items(1, data), lambda data: items(2, data), lambda data: passages(3)
    )
    made = recipe.examples(tmp_path, tmp_path, task)
    parts = {name: Texts.load(made / f"{name}.npz") for name in ("train", "held-out", "tuning", "test")}
    assert {*parts["train"].lengths.tolist()} == {recipe.WINDOW}
    assert (len(parts["tuning"]), len(parts["test"])) == (2, 3)
    assert parts["test"].lengths.tolist() == [tasks.PROMPT_TOKENS] * 3
    tokenizer = recipe.load_tokenizer(recipe.bundled.MODEL)
    learnt = tokenizer.decode(np.load(made / "corpus.npy").tolist())
    assert next(passages(3))[:100] in learnt
    assert next(passages(2))[:100] not in learnt
    assert tokenizer.decode(parts["test"][0].tolist()) == next(passages(2))[: len(tokenizer.decode(parts["test"][0]))]


def test_a_question_task_learns_answers_and_is_asked_others(
    recipe: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = recipe.kim_tasks

    def asked(seed: int) -> list[object]:
        texts = [text.split(".")[0][:200] for text in passages(seed)]
        return [
            tasks.Item(tasks.QUESTION.format(context=text, question="Why?"), (text.split()[3],), text) for text in texts
        ]

    monkeypatch.setattr(tasks, "questions", lambda *_: iter(asked(3)))
    task = tasks.Task(
        "squad", "SQuAD", "answer", lambda _: iter(asked(1)), lambda _: iter(asked(2)), lambda _: iter(())
    )
    made = recipe.examples(tmp_path, tmp_path, task)
    train, test = Texts.load(made / "train.npz"), Texts.load(made / "test.npz")
    tokenizer, item = recipe.load_tokenizer(recipe.bundled.MODEL), asked(3)[0]
    text, prompt = next(train.items())
    assert tokenizer.decode(text[:prompt]) == f"{item.prompt}\n\n"  # type: ignore[attr-defined]
    assert tokenizer.decode(text[prompt:-1]) == item.references[0]  # type: ignore[attr-defined]
    assert text[-1] == recipe.END
    assert tokenizer.decode(test[0].tolist()) == f"{asked(2)[0].prompt}\n\n"  # type: ignore[attr-defined]


def test_rows_are_those_of_the_models_with_so_many_heads(recipe: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "kim-recipe.csv").write_text(
        "heads,task,text,tokens,vanilla\n3,news,0,10,8\n3,news,1,10,10\n9,news,0,12,4\n9,squad,0,2,2\n"
    )
    counts = {heads: recipe.RecipeCounts(tmp_path, recipe.NAMES, heads) for heads in (3, 9)}
    assert counts[3].tasks == ["news"]
    assert counts[9].tasks == ["squad", "news"]
    assert counts[3].efficiency("news", "vanilla")[0] == 20 / 18
    assert counts[9].efficiency("news", "vanilla")[0] == 3.0
