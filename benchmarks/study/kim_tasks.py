"""Nine tasks for Kim's tables: prompts with their references, and text of the same kind for in-domain n-gram models.

Every task has *test* texts, from which all numbers come, and *tuning* texts, to which weights are fitted.  They are
of different articles, websites or documents, and of parts of the data that nothing was trained on: `own_prompts` are
those behind whose answers the heads learnt, and a text is refused if it has eight words in a row from any of them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.common import read_lines
from latticebpd.models.chat import PlainText

TUNING_PARTS, TEST_PARTS, HELD = range(1), range(1, 4), range(4)
"""Of 25 parts of documents those with texts to tune and to test; n-gram models may not read them."""
SHINGLE = 8
"""Words in a row that no text may share with what the heads were trained on."""
PROMPT_TOKENS = 96
"""Of a passage that is to be continued; as many tokens behind them are the reference."""
MOST_PROMPT = 240
"""Tokens of a question's or a summary's prompt, at most; longer ones are passed over."""
QUESTION = "Answer the question in a few words of the text.\n\nText: {context}\n\nQuestion: {question}"
SUMMARY = "Here is a dialogue:\n\n{document}\n\nWrite a short summary!"


@dataclass(frozen=True)
class Item:
    """prompt: a passage's beginning or a user's turn. references: what should follow. source: for messages."""

    prompt: str
    references: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Task:
    """A task.

    kind: ``continue`` (plain text, measured by perplexity), ``answer`` (exact match, F1) or ``summarise`` (ROUGE-L).
    tuning, test: the sources of its items, of which the first so many are taken; domain: text of its kind.
    """

    name: str
    title: str
    kind: str
    tuning: Callable[[Path], Iterator[Item]]
    test: Callable[[Path], Iterator[Item]]
    domain: Callable[[Path], Iterator[str]]


def mixed(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """In an order that depends on nothing but their ids."""
    return sorted(rows, key=lambda row: hashlib.sha256(str(row["id"]).encode()).digest())


def untokenised(text: str) -> str:
    """Words apart by spaces, as WikiText-2 and LAMBADA's plain files have them -> as people write."""
    text = re.sub(r" @([-,.])@ ", r"\1", text.replace("``", '"').replace("''", '"'))
    text = re.sub(r'" ([^"]*) "', r'"\1"', text)
    text = re.sub(r" (n't|'(?:s|m|d|re|ve|ll))\b", r"\1", text)
    text = re.sub(r" ([.,;:?!)\]%])", r"\1", text)
    return re.sub(r"([(\[$]) ", r"\1", text)


def cased(text: str) -> str:
    """Lower-case text with capitals where sentences begin, and I."""
    text = re.sub(r"\bi\b", "I", text)
    return re.sub(r"(^|[.?!]\"? \"?)([a-z])", lambda match: match[1] + match[2].upper(), text)


# ---------------------------------------------------------------- sources
def lambada(part: slice, data: Path) -> Iterator[Item]:
    for row in read_lines(data / "lambada/lambada-test.jsonl")[part]:
        yield Item(row["text"], (), row["id"])


def wikitext(part: str, articles: slice, each: int, data: Path) -> Iterator[Item]:
    """Every article's ``each`` longest runs of whole sentences without unknown words; headings left out."""
    for row in read_lines(data / f"wikitext2/wikitext2-{part}.jsonl")[articles]:
        paragraphs = [paragraph for paragraph in row["text"].split("\n") if not paragraph.startswith(" =")]
        runs = [run.strip() for paragraph in paragraphs for run in re.split(r"[^.]*<unk>[^.]*\.?", paragraph)]
        for number, run in enumerate(sorted(runs, key=lambda run: -len(run.split()))[:each]):
            if len(run.split()) >= 45:
                yield Item(untokenised(run), (), f"{row['id']}#{number}")


def questions(path: str, titles: Callable[[str], bool], each: int, data: Path) -> Iterator[Item]:
    """``each`` questions of every paragraph."""
    seen: dict[str, int] = {}
    for row in mixed(read_lines(data / path)):
        seen[row["context"]] = seen.get(row["context"], 0) + 1
        if titles(row["title"]) and seen[row["context"]] <= each:
            yield Item(QUESTION.format(**row), tuple(row["answers"]), row["id"])


def dialogues(path: str, data: Path) -> Iterator[Item]:
    for row in mixed(read_lines(data / path)):
        yield Item(SUMMARY.format(**row), tuple(row["summaries"]), row["id"])


def held(row: dict[str, Any]) -> int:
    """0: tuning documents, one in 25; 1 to 3: test documents; every other number: text that n-gram models may read."""
    return int.from_bytes(hashlib.sha256(str(row["id"]).encode()).digest()[:4]) % 25


def documents(path: str, parts: range, sources: tuple[str, ...], data: Path) -> Iterator[Item]:
    """A passage from the middle of every document of the parts."""
    for row in mixed(read_lines(data / path)):
        if held(row) in parts and row["source"].startswith(sources):
            text = row["text"]
            begin = text.find("\n", len(text) // 3) + 1
            yield Item(text[begin : begin + 2000].strip("\n"), (), row["id"])


def others(path: str, sources: tuple[str, ...], data: Path) -> Iterator[str]:
    """The documents of no part that is held out."""
    for row in mixed(read_lines(data / path)):
        if held(row) not in HELD and row["source"].startswith(sources):
            yield row["text"]


def answered(path: str, data: Path) -> Iterator[str]:
    """Every paragraph once, and every question with its answer."""
    seen = set()
    for row in read_lines(data / path):
        if row["context"] not in seen:
            seen.add(row["context"])
            yield row["context"]
        yield f"{row['question']} {row['answer']}"


def summarised(data: Path) -> Iterator[str]:
    for row in read_lines(data / "summ/dialogsum-train.jsonl.xz"):
        yield row["summary"]
        yield row["document"]


def lambada_books(data: Path) -> Iterator[str]:
    return (cased(untokenised(row["text"])) for row in read_lines(data / "lambada/lambada-dev-plain.jsonl"))


def wikitext_articles(data: Path) -> Iterator[str]:
    return (untokenised(row["text"]) for row in read_lines(data / "wikitext2/wikitext2-valid.jsonl")[:44])


def plain(name: str, title: str) -> Task:
    """Documents to be continued."""
    path, sources = DOCUMENTS[name]
    tuning, test = (partial(documents, path, parts, sources) for parts in (TUNING_PARTS, TEST_PARTS))
    return Task(name, title, "continue", tuning, test, partial(others, path, sources))


def answers(name: str, title: str, files: tuple[str, str], is_tuning: Any, is_test: Any, each: tuple[int, int]) -> Task:
    """Questions about paragraphs; ``files``: of the questions, and of text for in-domain models."""
    tuning, test = partial(questions, files[0], is_tuning, each[0]), partial(questions, files[0], is_test, each[1])
    return Task(name, title, "answer", tuning, test, partial(answered, files[1]))


NEWS = ("GSA/digitalgov.gov", "rust-lang/blog", "18F/", "amir-zeldes/gum")
DOCUMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "code": ("code/code-000.jsonl.xz", ("",)),
    "docs": ("text/docs-000.jsonl.xz", ("",)),
    "news": ("text/news-000.jsonl.xz", NEWS),
}
"""File and sources."""
SQUAD, XQUAD, POLICY = "qa/squad-dev.jsonl", "qa/xquad-en-test.jsonl", "qa/policyqa-test.jsonl"
SQUAD_TRAIN, POLICY_DEV = "qa/squad-train.jsonl", "qa/policyqa-dev.jsonl"
TEST_ARTICLES = ("Nikola_Tesla", "Harvard_University", "Intergovernmental_Panel_on_Climate_Change")
TUNED_SITES = ("neworleansonline.com", "zacks.com")
TUNED_ARTICLE = "Civil_disobedience"
ARTICLES: Any = (TUNED_ARTICLE.__eq__, TEST_ARTICLES.__contains__)
OTHERS: Any = (TUNED_ARTICLE.__eq__, lambda title: title != TUNED_ARTICLE and title not in TEST_ARTICLES)
SITES: Any = (TUNED_SITES.__contains__, lambda title: title not in TUNED_SITES)
LAMBADA = (partial(lambada, slice(0, None, 60)), partial(lambada, slice(7, None, 20)), lambada_books)
WIKITEXT = (
    partial(wikitext, "valid", slice(44, None), 2),
    partial(wikitext, "test", slice(None), 6),
    wikitext_articles,
)
DIALOGSUM = (*(partial(dialogues, f"summ/dialogsum-{part}.jsonl") for part in ("dev", "test")), summarised)
ALL_TASKS = (
    Task("lambada", "LAMBADA", "continue", *LAMBADA),
    Task("wikitext", "WikiText-2", "continue", *WIKITEXT),
    answers("squad", "SQuAD", (SQUAD, SQUAD_TRAIN), *ARTICLES, (1, 2)),
    answers("xquad", "XQuAD-en", (XQUAD, SQUAD_TRAIN), *OTHERS, (3, 2)),
    answers("policyqa", "PolicyQA", (POLICY, POLICY_DEV), *SITES, (1, 1)),
    Task("dialogsum", "DialogSum", "summarise", *DIALOGSUM),
    plain("code", "Python code"),
    plain("docs", "documentation"),
    plain("news", "news"),
)
TASKS = {task.name: task for task in ALL_TASKS}


# ---------------------------------------------------------------- prompts
def shingles(text: str) -> set[str]:
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[begin : begin + SHINGLE]) for begin in range(len(words) - SHINGLE + 1)}


def own_prompts(path: Path) -> set[str]:
    """All runs of eight words of the prompts behind whose answers the heads were trained (``smollm2/prompts.py``)."""
    contents = (message["content"] for row in read_lines(path) for message in row["messages"])
    return set().union(*map(shingles, contents))


INSTRUCTIONS = {kind: shingles(form) for kind, form in (("answer", QUESTION), ("summarise", SUMMARY))}


def chosen(
    task: Task, items: Iterator[Item], count: int, known: set[str], chat: PlainText, most_prompt: int = MOST_PROMPT
) -> tuple[list[dict[str, Any]], int]:
    """The first ``count`` texts: ``tokens`` with ``prompt_tokens`` of prompt, references and source; and how many
    were refused.  Prompts of more than ``most_prompt`` tokens are passed over.

    What a passage is continued with is in its tokens and its reference alike; a question's tokens are its prompt.
    """
    records: list[dict[str, Any]] = []
    refused = 0
    for item in items:
        if len(records) == count:
            break
        if (shingles(item.prompt) - INSTRUCTIONS.get(task.kind, set())) & known:
            refused += 1
            continue
        if task.kind == "continue":
            tokens = chat.ids(item.prompt)[: 2 * PROMPT_TOKENS]
            prompt_tokens = min(PROMPT_TOKENS, len(tokens) // 2)
            if len(tokens) < PROMPT_TOKENS // 2 or "<|" in item.prompt:
                continue
        else:
            tokens = chat.prompt([item.prompt])
            prompt_tokens = len(tokens)
            if len(tokens) > most_prompt:
                continue
        about = {"references": item.references, "source": item.source}
        records.append({"tokens": tokens, "prompt_tokens": prompt_tokens, **about})
    return records, refused
