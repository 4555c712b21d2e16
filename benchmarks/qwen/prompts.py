"""Chat prompts for Qwen2.5-Coder-Instruct to answer: three in five about code.

    python -m benchmarks.qwen.prompts --data DIR --model MODEL.gguf -o prompts.npz

The same seed gives the same prompts, and any prefix of them is balanced over the kinds. ``prompts.json`` beside this
file holds templates and weights besides those of SmolLM2's prompts, whose kinds and sources these extend. Dev and test
parts are not read; a prompt that shares 50 characters with a task that measures models (``TASKS``) is not asked.
"""

from __future__ import annotations

import ast
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import options, read_lines, run
from benchmarks.smollm2.more_text import MORE, MoreKinds, merged, strings
from benchmarks.smollm2.prompts import TEMPLATES, Document, Pool, drawn, passage, save_prompts, title_of, words_of
from latticebpd import load
from latticebpd.lattices.texts import Texts
from latticebpd.models.chat import ChatTemplate

SEED = 20261129
COUNT = 6000
MAX_TOKENS = 400
"""Of a prompt with the chat template."""
SPAN = 50
"""Characters in a row that no prompt shares with a task."""
TASKS = ("coding", "tools", "schemas", "spec_bench")
"""Folders of tasks that measure models."""
OWN = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
LANGUAGES = {
    "cpp": "C++",
    "powershell": "PowerShell",
    "rust": "Rust",
    "js": "JavaScript",
    "C": "C",
    "c": "C",
    "csharp": "C#",
    "python": "Python",
    "bash": "Bash",
    "jsx": "JavaScript",
}
"""Of code in documentation, by the name after its fence."""
PYTHON = 0.7
"""Share of Python functions where any language would do."""
MISTAKES = [
    (" == ", " != "),
    (" < ", " <= "),
    (" > ", " < "),
    (" <= ", " < "),
    (" + ", " - "),
    (" += ", " = "),
    (" and ", " or "),
    (" not in ", " in "),
    (" is not None", " is None"),
    ("[0]", "[1]"),
    ("[1:]", "[:1]"),
    ("True", "False"),
    ("if not ", "if "),
    ("len(", "max("),
    ("self.", ""),
]
"""What a bug changes, and to what."""


def code_blocks(document: Document) -> Iterator[tuple[str, str]]:
    """(language, code) of a document's fenced blocks of 4 to 28 lines."""
    for name, code in re.findall(r"^```+ *(\w+)[^\n]*\n(.*?)\n```", document["text"], re.M | re.S):
        if name in LANGUAGES and 4 <= code.count("\n") + 1 <= 28 and len(code) < 1000:
            yield LANGUAGES[name], code


def parts(body: str) -> tuple[str, str, str] | None:
    """A Python function's signature, docstring and statements, as lines; None if it is not one or lacks statements."""
    try:
        (node,) = ast.parse(body).body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    lines, first = body.split("\n"), node.body[0]
    begin = first.lineno - 1
    end = begin if ast.get_docstring(node) is None else first.end_lineno
    if end is None or begin == 0 or end >= len(lines):
        return None
    return "\n".join(lines[:begin]), "\n".join(lines[begin:end]), "\n".join(lines[end:])


def fenced(language: str, code: str) -> str:
    return f"```{language.lower().replace('c#', 'csharp').replace('c++', 'cpp')}\n{code}\n```"


class CodeKinds(MoreKinds):
    """Kinds about code. The order in which a method draws random numbers decides the prompts: keep it."""

    def __init__(self, rng: random.Random, data: Path) -> None:
        super().__init__(rng, data, merged(merged(TEMPLATES, MORE), OWN))
        described = ((body, parts(body)) for body, _ in self.functions.items)
        self.described = Pool([found for _, found in described if found is not None and found[1]], rng)
        blocks: dict[str, list[str]] = {}
        for document in self.docs.items:
            for language, code in code_blocks(document):
                blocks.setdefault(language, []).append(code)
        self.blocks = {language: Pool(codes, rng) for language, codes in sorted(blocks.items())}

    def code(self) -> tuple[str, str]:
        """A language, and code in it."""
        if not self.blocks or self.rng.random() < PYTHON:
            return "Python", self.functions()[0]
        language = self.rng.choice(list(self.blocks))
        return language, self.blocks[language]()

    def about_code(self, kind: str, code: str) -> str:
        """A template of a kind, with a Python function."""
        return f"{self.choose(kind)}\n\n{fenced('Python', code)}"

    def explain(self) -> str:
        language, code = self.code()
        return f"{self.choose('explain').format(l=language)}\n\n{fenced(language, code)}"

    def complete(self) -> str:
        signature, docstring, _ = self.described()
        return self.about_code("complete", f"{signature}\n{docstring}")

    def document(self) -> str:
        signature, _, statements = self.described()
        return self.about_code("document", f"{signature}\n{statements}")

    def tests(self) -> str:
        return self.about_code("tests", self.functions()[0])

    def refactor(self) -> str:
        return self.about_code("refactor", self.functions()[0])

    def fill_middle(self) -> str:
        lines, marker = self.functions()[0].split("\n"), self.choose("markers")
        first = self.rng.randint(1, len(lines) - 2)
        last = self.rng.randint(first, min(len(lines) - 2, first + len(lines) // 3))
        gap = lines[first]
        lines[first : last + 1] = [gap[: len(gap) - len(gap.lstrip())] + marker.strip("`")]
        code = fenced("Python", "\n".join(lines))
        return f"{self.choose('fill_middle').format(m=marker)}\n\n{code}"

    def find_bug(self) -> str | None:
        body, _ = self.functions()
        found = [(match.start(), *each) for each in MISTAKES for match in re.finditer(re.escape(each[0]), body)]
        if not found:
            return None
        at, right, wrong = self.rng.choice(found)
        return self.about_code("find_bug", body[:at] + wrong + body[at + len(right) :])

    def convert(self) -> str:
        language, code = self.code()
        other = self.rng.choice([each for each in self.templates["targets"] if each != language])
        return f"{self.choose('convert').format(l=language, o=other)}\n\n{fenced(language, code)}"

    def api_question(self) -> str | None:
        document = self.docs()
        if (text := passage(document, self.rng, 50, 180)) is None:
            return None
        return f"{self.choose('api_question').format(t=title_of(document))}\n\n{text}"

    def qa_context(self) -> str:
        row = self.squad()
        return self.choose("qa_context").format(c=row["context"], q=row["question"])

    def translate(self) -> str | None:
        source = self.rng.choice([self.tatoeba, self.tatoeba, self.cppdocs])
        pairs = [source() for _ in range(self.rng.choice([1, 2, 3]) if source is self.tatoeba else 1)]
        german, english = (" ".join(pair[language] for pair in pairs) for language in ("de", "en"))
        if not 12 <= len(english) <= 500:
            return None
        name, text = ("from_german", german) if self.rng.random() < 0.5 else ("to_german", english)
        return f"{self.choose(name)}{text}"


STEP = np.uint64(0x9E3779B97F4A7C15)


def spans(text: str) -> np.ndarray:
    """``[n]`` hashes of all runs of `SPAN` characters: the same runs have the same one."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32).astype(np.uint64)
    hashes = np.zeros(max(0, len(points) - SPAN + 1), np.uint64)
    for offset in range(SPAN if len(hashes) else 0):  # arithmetic modulo 2 ** 64
        hashes = hashes * STEP + points[offset : offset + len(hashes)]
        hashes ^= hashes >> np.uint64(29)
    return hashes


class Refused:
    """The runs of characters of ``texts``, which no prompt may have."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.known = np.unique(np.concatenate([np.empty(0, np.uint64), *map(spans, texts)]))

    def __call__(self, text: str) -> bool:
        """Whether a text shares a run with them."""
        own = spans(text)
        places = np.searchsorted(self.known, own)
        found = places < len(self.known)
        return bool((self.known[places[found]] == own[found]).any())


def task_texts(data: Path) -> Iterator[str]:
    """All that tasks say, as text and as JSON."""
    for path in sorted(path for folder in TASKS for path in (data / folder).glob("*.jsonl*")):
        for row in read_lines(path):
            yield json.dumps(row, ensure_ascii=False)
            yield from strings(row)


def prompts(data: Path, count: int, chat: ChatTemplate) -> list[dict[str, Any]]:
    """``count`` conversations ``{id, kind, messages}`` of at most `MAX_TOKENS` tokens."""
    refused, number = Refused(task_texts(data)), 0

    def suits(messages: list[dict[str, str]]) -> bool:
        nonlocal number
        shared = refused(words_of(messages))
        number += shared
        return not shared and len(chat.prompt_of(messages)) <= MAX_TOKENS

    records = drawn(CodeKinds(random.Random(SEED), data), count, suits)
    assert not any(refused(words_of(row["messages"])) for row in records)
    print(f"{number} refused for {SPAN} characters of a task")
    return records


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--model", required=True, help="the model, for its tokenizer and chat template")
    parser.add_argument("--count", type=int, default=COUNT, help="number of prompts")
    parser.add_argument("-o", "--output", type=Path, required=True, help="prompts for `latticebpd distill` (.npz)")
    args = parser.parse_args()
    loaded = load(args.model)
    chat = ChatTemplate(loaded.tokenizer, loaded.target)
    records = prompts(args.data, args.count, chat)
    save_prompts(args.output.with_suffix(".jsonl"), records)
    rows = [chat.prompt_of(row["messages"]) for row in records]
    texts = Texts.of_rows(rows, [*map(len, rows)])
    texts.save(args.output)
    print(f"{args.output}: {len(texts)} prompts, {len(texts.tokens)} tokens, {texts.fingerprint()}")


if __name__ == "__main__":
    run(main)
