"""Decodes under acceptors of pynini: texts of the language, the same whatever is drafted, in fewer passes."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pynini
import pytest

from latticebpd import Loaded, NoDrafter, fst_constraint, load

DATE = re.compile(r'\{"date": "\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"\}')


def dates() -> pynini.Fst:
    digit = pynini.union(*"0123456789")
    month = pynini.union(*(f"{number:02d}" for number in range(1, 13)))
    day = pynini.union(*(f"{number:02d}" for number in range(1, 32)))
    return '{"date": "' + digit**4 + "-" + month + "-" + day + pynini.accep('"}')


@lru_cache
def loaded() -> Loaded:
    return load()


def decode(constraint: object, drafter: object = None, prompt: str = "The city was founded") -> tuple[str, int]:
    """The text, and how many passes it took."""
    options = {} if drafter is None else {"drafter": drafter}
    out = loaded().generate(prompt, constraint=constraint, max_new_tokens=60, **options)  # type: ignore[arg-type]
    return loaded().tokenizer.decode(out.tokens[0, out.prompt_length :], skip_special_tokens=True), out.num_passes


@pytest.mark.parametrize("prompt", ["The city was founded", "In 1867", "A river"])
def test_the_text_is_of_the_language_and_the_same_without_drafts(prompt: str) -> None:
    constraint = fst_constraint(dates())
    drafted, passes = decode(constraint, prompt=prompt)
    plain, alone = decode(constraint, NoDrafter(), prompt)
    assert DATE.fullmatch(drafted)
    assert drafted == plain
    assert passes < alone


@pytest.mark.parametrize("word", [" river", " city", " Zurich"])
def test_a_boosted_word_is_chosen(word: str) -> None:
    """Costs are subtracted from the logits of legal tokens."""
    words = pynini.union(
        *(pynini.accep("", weight=-40 * (each == word)) + each for each in (" river", " city", " Zurich"))
    )
    assert decode(fst_constraint(words))[0] == word


def test_letters_of_several_bytes_are_written_whole() -> None:
    text, _ = decode(fst_constraint(pynini.union("Zürich", "Genève", "東京")))
    assert text in ("Zürich", "Genève", "東京")


def test_rows_share_states_and_may_be_free() -> None:
    constraint = fst_constraint(dates())
    out = loaded().generate(
        ["A city", "A river", "The town"], constraint=[constraint, None, constraint], max_new_tokens=40
    )
    texts = [
        loaded().tokenizer.decode(row[row >= 0][out.prompt_length :], skip_special_tokens=True)
        for row in np.asarray(out.tokens)
    ]
    assert DATE.search(texts[0])
    assert DATE.search(texts[2])
    assert not DATE.search(texts[1])
