"""Qwen2.5-Coder's prompts and answers: balanced, none of a measured task, and packed answers that `distill` resumes."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.qwen import prompts as qwen
from benchmarks.qwen.answers import corpus, pack, unpack
from benchmarks.qwen.prompts import SPAN, Refused, code_blocks, parts, prompts, spans
from benchmarks.qwen.speed import questions, ratio
from latticebpd.lattices.shards import distilled_directory
from latticebpd.lattices.texts import Texts
from lm_training.data.hidden_states import LAST, load_states, save_states, states_directory
from lm_training.data.sequences import load_distilled
from tests.helpers.prompt_sources import WORDS, save_sources


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """The sources, with functions that have docstrings and a folder of tasks."""
    save_sources(tmp_path)
    rows = []
    for n in range(12):
        body = "\n".join(f"    total += value * {n} + {line}" for line in range(6))
        docstring = f'    """Add {n} times a value.\n\n    Six times."""'
        text = f"def add_{n}(value, total):\n{docstring}\n{body}\n    return total\n"
        rows.append({"id": f"code-{n}", "source": "code", "text": text})
    with lzma.open(tmp_path / "code" / "code-000.jsonl.xz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "coding").mkdir()
    return tmp_path


def refuse(data: Path, text: str) -> None:
    (data / "coding" / "humaneval.jsonl").write_text(json.dumps({"prompt": [text]}) + "\n")


def texts_of(records: list[dict[str, Any]]) -> list[str]:
    return ["\n".join(each["content"] for each in row["messages"]) for row in records]


def test_prompts_are_balanced_and_those_on_code_have_some(described: Path) -> None:
    weights = qwen.OWN["weights"]
    records = prompts(described, sum(weights.values()), WORDS)
    assert Counter(row["kind"] for row in records) == weights
    about = Counter(row["kind"] for row, text in zip(records, texts_of(records), strict=True) if "```" in text)
    assert about.keys() - {"code_write"} == {
        *("explain", "complete", "document", "tests", "refactor", "fill_middle", "find_bug", "convert")
    }
    assert all(number == weights[kind] for kind, number in about.items() if kind != "code_write")
    assert prompts(described, 10, WORDS) == records[:10]
    assert len(set(texts_of(records))) == len(records)


def test_a_prompt_with_fifty_characters_of_a_task_is_not_asked(described: Path) -> None:
    before = texts_of(prompts(described, 60, WORDS))
    chosen = max(before, key=len)
    for length, refused in ((SPAN - 1, False), (SPAN, True)):
        refuse(described, "~" + chosen[100 : 100 + length] + "~")
        after = texts_of(prompts(described, 60, WORDS))
        assert (chosen not in after) == refused
        if not refused:
            assert after == before


def test_spans_are_equal_where_their_characters_are() -> None:
    text = "".join(map(chr, np.random.default_rng(0).integers(97, 100, 3000)))
    texts = [text[n : n + SPAN] for n in range(len(text) - SPAN + 1)]
    hashes = spans(text).tolist()
    assert len(set(hashes)) == len(set(texts))
    assert [spans(each).tolist() for each in texts[:20]] == [[each] for each in hashes[:20]]
    assert not spans("short").size
    assert Refused([text])("€" + text[7 : 7 + SPAN])
    assert not Refused([text])("€" + text[7 : 6 + SPAN])


def test_functions_are_parted_at_their_docstring() -> None:
    assert parts('def f(a,\n      b):\n    """One.\n\n    Two."""\n    return a') == (
        "def f(a,\n      b):",
        '    """One.\n\n    Two."""',
        "    return a",
    )
    assert parts("def f(a):\n    return a") == ("def f(a):", "", "    return a")
    assert parts('def f(a):\n    """Only."""') is None
    assert parts("def f(a: return a") is None
    assert parts("value = 1") is None
    blocks = {"text": "Text\n```rust\na\nb\nc\nd\n```\n\n```yaml\na\nb\nc\nd\n```\n```c\nshort\n```\n"}
    assert list(code_blocks(blocks)) == [("Rust", "a\nb\nc\nd")]


def test_packed_answers_are_resumed_from(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    asked = [rng.integers(0, 151_936, 3 + n % 4).tolist() for n in range(10)]
    answered = [[*row, *rng.integers(0, 151_936, 1 + n % 5).tolist()] for n, row in enumerate(asked)]
    prompts = Texts.of_rows(asked, [*map(len, asked)])
    directory = distilled_directory(tmp_path / "written")
    decisive = {"max_new_tokens": 5, "num_beams": 1, "shard_prompts": 4}
    directory.claim({"options": decisive, "prompts": 10, "prompts_hash": prompts.fingerprint()})
    with pytest.raises(ValueError, match="found none"):
        pack(tmp_path / "written", tmp_path / "answers.npz.xz")

    def shard(number: int) -> Texts:
        rows = range(4 * number, min(10, 4 * number + 4))
        return Texts.of_rows([answered[n] for n in rows], [len(asked[n]) for n in rows])

    for number in (0, 2):
        shard(number).save(directory.file(number))
    pack(tmp_path / "written", tmp_path / "answers.npz.xz")
    again = distilled_directory(tmp_path / "again")
    unpack(tmp_path / "answers.npz.xz", prompts, tmp_path / "again")
    assert again.settings() == directory.settings()
    assert not again.file(1).exists()
    for number in (0, 2):
        assert again.file(number).read_bytes() == directory.file(number).read_bytes()
    # A shard that is there is left as it is, and the missing one completes the directory.
    shard(1).save(again.file(1))
    changed = Texts.of_rows([[*row[:-1], 7] for row in answered[:4]], [*map(len, asked[:4])])
    changed.save(again.file(0))
    unpack(tmp_path / "answers.npz.xz", prompts, tmp_path / "again")
    assert [row for row, _ in load_distilled(tmp_path / "again").items()][:4] == [row for row, _ in changed.items()]
    assert [row for row, _ in load_distilled(tmp_path / "again").items()][4:] == answered[4:]
    with pytest.raises(ValueError, match="expected the answers to these prompts"):
        unpack(tmp_path / "answers.npz.xz", prompts.chosen(range(9)), tmp_path / "other")


@pytest.mark.parametrize("stated", [(), (0, 2), (2,)])
def test_a_corpus_leaves_out_what_may_not_be_used_and_holds_out_every_sixteenth_answer(
    tmp_path: Path, stated: tuple[int, ...]
) -> None:
    """stated: shards with hidden states; heads learn from those only, if there are any."""
    written = tmp_path / "written"
    directory, own = distilled_directory(written), states_directory(written)
    directory.claim({"prompts": 90, "options": {"shard_prompts": 30}})
    own.claim({"num_shards": 3, "model": "sha256:0", "layers": [], "shard_texts": 30})
    for shard in (0, 2):  # the one between is not written yet
        texts = Texts.of_rows([[1, 2, 100 + 30 * shard + number, 99] for number in range(30)], [2] * 30)
        texts.save(directory.file(shard))
        if shard in stated:
            states = [[float(token)] * 4 for row, _ in texts.items() for token in row[1:3]]
            save_states(own.file(shard), texts, {LAST: torch.tensor(states)})
    kinds = ["summ_dialog" if number == 1 else "explain" for number in range(90)]
    corpus(written, kinds, tmp_path)
    kept = [100 + number for number in range(90) if number != 1 and number // 30 in (stated or (0, 2))]
    held_out = kept[::16]
    for name, expected in (("held-out", held_out), ("learn", [each for each in kept if each not in held_out])):
        texts = Texts.load(tmp_path / f"{name}.npz")
        assert [row[2] for row, _ in texts.items()] == expected
        states = load_states(tmp_path / f"{name}.npz", texts)
        assert (states is not None) == bool(stated)
        if states is not None:
            found = [states.of_text(number)[:, 0].tolist() for number in range(len(texts))]
            assert found == [[2, token] for token in expected]
    assert (tmp_path / "more.npz").exists() == (stated == (2,))
    if stated == (2,):
        others = [row[2] for row, _ in Texts.load(tmp_path / "more.npz").items()]
        assert others == [100 + number for number in range(30) if number != 1]
    if stated == (0, 2):
        corpus(written, kinds, tmp_path / "by-shard", held_out=[2])
        for name, shard in (("held-out", 2), ("learn", 0)):
            texts = Texts.load(tmp_path / "by-shard" / f"{name}.npz")
            assert [row[2] for row, _ in texts.items()] == [number for number in kept if (number - 100) // 30 == shard]
            assert load_states(tmp_path / "by-shard" / f"{name}.npz", texts) is not None


def test_questions_of_both_kinds_are_asked_as_they_are_meant(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    records = [
        {"task_id": "HumanEval/1", "prompt": "def f():\n"},
        {"question_id": 7, "category": "qa", "turns": ["What?", "Why?"]},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert questions(file, None) == [
        ("HumanEval/1", "humaneval", "Complete this function:\n\n```python\ndef f():\n```", None),
        ("7", "qa", "What?", None),
    ]


def test_a_ratio_is_that_of_all_tokens_and_all_seconds() -> None:
    own = [{"tokens": 10, "seconds": 1.0}, {"tokens": 30, "seconds": 1.0}]
    greedy = [{"tokens": 10, "seconds": 2.0}, {"tokens": 30, "seconds": 2.0}]
    assert ratio(own, greedy, "seconds") == "2.00 (2.00 to 2.00)"
