"""Chat prompts for the target model to answer: its own text, from which its heads learn.

Every line is ``{id, kind, messages}``.  The same seed gives the same file, and any prefix of it is balanced over the
kinds. ``prompts.json`` next to this file holds the templates, and how often a kind comes in a round; `Kinds` fills
them with text of open licences from ``DIR`` (`SOURCES`).  Test parts, LAMBADA, WikiText-2 and Spec-Bench are not
read.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.common import read_lines
from fst.files import write_text
from latticebpd.models.chat import ChatTemplate

SEED = 20240611
MAX_TOKENS = 350  # the whole prompt with the chat template
SOURCES = {
    "dialogsum": "summ/dialogsum-train.jsonl.xz",
    "squad": "qa/squad-train.jsonl",
    "policy": "qa/policyqa-dev.jsonl",
    "news": "text/news-000.jsonl.xz",
    "books": "text/books-000.jsonl.xz",
    "docs": "text/docs-000.jsonl.xz",
    "code": "code/code-000.jsonl.xz",
    "tatoeba": "translation/tatoeba-train.jsonl.xz",
    "cppdocs": "translation/cppdocs-train.jsonl.xz",
    "multi30k": "translation/multi30k-train.jsonl",
}
TEMPLATES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
NO_TOPIC = (
    "Summary|Exercises|Review|Question|Objective|Outcomes|Key |Glossary|Introduction|References|Check|"
    "Connection|Learning|Suggested|For Further|Link"
)
PASSAGES = {"summ_text": (60, 230), "cont": (50, 170), "rewrite": (60, 150)}
"""Kinds that are a template and a passage of so many words."""
TITLED = {"docs_question": "docs_titles", "stem_q": "stem", "human_q": "human"}
ON_TOPIC = ("write_open", "advise_open")
Document = dict[str, Any]


def load(data: Path, name: str, step: int = 1) -> list[Document]:
    """Every ``step``-th record of a source."""
    return read_lines(data / SOURCES[name])[::step]


def title_of(document: Document) -> str:
    first = document["text"].split("\n", 1)[0].lstrip("# ").strip().strip("`*_ ")
    return re.sub(r"^PEP \d+ [–-] ", "", first).replace("`", "")


def is_title(text: str) -> bool:
    excluded = re.search(r"[{}<>|\\=_/]|^[-*\d]|Introduction|::", text)
    return 10 <= len(text) <= 90 and 2 <= len(text.split()) <= 12 and not excluded


def headings(document: Document) -> list[str]:
    """The title and the section headings that name a topic."""
    sections = [heading.strip("# ").strip() for heading in re.findall(r"^##+ .+$", document["text"], re.M)]
    return [each for each in [title_of(document), *sections] if is_title(each) and not re.search(NO_TOPIC, each, re.I)]


def is_prose(paragraph: str) -> bool:
    return (
        len(paragraph) > 120
        and paragraph[0].isupper()
        and paragraph[-1] in '.!?”"'
        and not paragraph.startswith(("Figure:", "By the end"))
        and not any(mark in paragraph for mark in ("\n", "```"))
        and paragraph.count("|") < 2
    )


def passage(document: Document, rng: random.Random, least: int, most: int) -> str | None:
    """Whole sentences in a row, ``least`` to ``most`` words, from a random paragraph on; None if there are none."""
    paragraphs = list(filter(is_prose, (paragraph.strip() for paragraph in document["text"].split("\n\n"))))
    if not paragraphs:
        return None
    start, limit = rng.randrange(len(paragraphs)), rng.randint(least + 10, most)
    sentences: list[str] = []
    for paragraph in paragraphs[start : start + 4]:
        for sentence in re.split(r"(?<=[.!?])[\"”]?\s+(?=[A-Z“\"])", paragraph):
            if sum(len(each.split()) for each in sentences) + len(sentence.split()) > limit:
                break
            sentences.append(sentence)
        else:
            if sentences:
                sentences[-1] += "\n\n"
            continue
        break
    text = re.sub(r"(?<!\n) ?\n\n ?", "\n\n", " ".join(sentences)).strip()
    return text if least <= len(text.split()) <= most else None


def functions(document: Document) -> Iterator[tuple[str, str]]:
    """(source, name) of functions and methods of 5 to 28 lines."""
    lines, i = document["text"].split("\n"), 0
    while i < len(lines):
        if not (match := re.match(r"( *)def (\w+)\(", lines[i])):
            i += 1
            continue
        indent, j = len(match[1]), i + 1
        while j < len(lines) and (not lines[j].strip() or len(lines[j]) - len(lines[j].lstrip()) > indent):
            j += 1
        body = "\n".join(line[indent:] for line in lines[i:j]).rstrip()
        if 5 <= body.count("\n") + 1 <= 28 and len(body) < 1000:
            yield body, match[2]
        i = j


def filled(template: str, values: Mapping[str, Any]) -> str:
    """``str.format`` with expressions of the values, such as ``{a + b}``."""
    return re.sub(r"{(.+?)}", lambda match: str(eval(match[1], dict(values))), template)


class Pool:
    """Draws without repetition until the items run out, then starts again in a new order."""

    def __init__(self, items: Iterable[Any], rng: random.Random) -> None:
        self.items, self.rng, self.left = list(items), rng, list[Any]()

    def __call__(self) -> Any:
        if not self.left:
            self.left = self.items[:]
            self.rng.shuffle(self.left)
        return self.left.pop()


class Kinds:
    """What kinds of prompts are filled with; methods are named as kinds in ``prompts.json``, and may return None.

    The order in which a method draws random numbers decides the file: keep it.
    """

    def __init__(self, rng: random.Random, data: Path, templates: Mapping[str, Any] = TEMPLATES) -> None:
        self.rng, self.templates = rng, templates
        news, docs, code = (load(data, name) for name in ("news", "docs", "code"))
        cpp, other = ([each for each in docs if ("cpp-docs" in each["source"]) == wanted] for wanted in (True, False))
        textbooks = [each for each in news if each["source"].startswith(("openstax/", "philschatz/"))]
        stem = ("astronomy", "anatomy-book", "biology-book", "economics-book")
        no_news = ("openstax", "philschatz", "factbook", "nltk", "rust")
        no_guide = ("error-messages", "c-runtime", "/mfc/", "/atl/")
        factbook = [each for each in news if "factbook" in each["source"]]

        def pool(items: Iterable[Any]) -> Pool:
            return Pool(items, rng)

        def titles(documents: Iterable[Document]) -> list[str]:
            return sorted({title for title in map(title_of, documents) if is_title(title)})

        self.news = pool(each for each in news if "factbook" not in each["source"])
        self.docs, self.books = pool(other + cpp[::6]), pool(load(data, "books"))
        self.stem = pool(sorted({h for each in textbooks if each["source"].endswith(stem) for h in headings(each)}))
        arts = [each for each in textbooks if not each["source"].endswith(stem)]
        self.human = pool(sorted({heading for each in arts for heading in headings(each)}))
        self.news_titles = pool(titles(each for each in news if not each["source"].startswith(no_news)))
        guides = titles(each for each in docs if not any(part in each["id"] for part in no_guide))
        no_title = r"Error|Warning|C\d{4}|Class|Feature Name"
        self.docs_titles = pool(each for each in guides if each.count(" ") >= 2 and not re.search(no_title, each))
        names = map(title_of, factbook)
        self.countries = pool(name for name in names if ".json" not in name and "Ocean" not in name)
        self.country_documents = pool(factbook)
        lists = ("topics", "persons", "names", "things")
        self.topics, self.persons, self.names, self.things = (pool(templates[name]) for name in lists)
        self.dialogues, self.squad, self.policy = (pool(load(data, name)) for name in ("dialogsum", "squad", "policy"))
        self.tatoeba, self.cppdocs = pool(load(data, "tatoeba", 3)), pool(load(data, "cppdocs", 5))
        self.multi30k = pool(load(data, "multi30k"))
        known = (each for document in code for each in functions(document))
        self.functions = pool(
            (body, name)
            for body, name in known
            if not name.startswith("__") and (not name.startswith("test_") or len(name) % 5 == 0)
        )

    def choose(self, name: str) -> str:
        """One of the templates, or of the other lists, of this name."""
        return str(self.rng.choice(self.templates["templates"].get(name) or self.templates[name]))

    def topic(self) -> str:
        """Titles mostly: everyday topics and countries would come too often."""
        pools = [self.news_titles, self.docs_titles, self.human, self.stem, self.topics, self.countries]
        return str(self.rng.choices(pools, [5, 2, 4, 2, 6, 1])[0]())

    def subject(self) -> str:
        """A topic as part of a sentence."""
        topic = self.topic()
        return f'"{topic}"' if topic[0].isupper() else topic

    def text(self, least: int = 60, most: int = 230) -> str:
        """A passage of any source."""
        source = self.rng.choice([self.news, self.news, self.docs, self.books])
        while True:
            if text := passage(source(), self.rng, least, most):
                return text

    def summ_dialog(self) -> str:
        dialogue, ask = self.dialogues()["document"], self.choose("summ_dialog")
        if self.rng.random() < 0.5:
            first, second = self.names(), self.names()
            dialogue = dialogue.replace("#Person1#", first).replace("#Person2#", second)
        return f"{ask}\n\n{dialogue}" if self.rng.random() < 0.8 else f"{dialogue}\n\n{ask}"

    def qa_context(self) -> str:
        row = self.rng.choice([self.squad, self.squad, self.policy])()
        return self.choose("qa_context").format(c=row["context"], q=row["question"])

    def qa_rag(self) -> str:
        row, other = self.squad(), self.squad()
        context = row["context"]
        if self.rng.random() < 0.5:
            parts = [context, other["context"]]
            self.rng.shuffle(parts)
            context = "\n\n".join(f"[{i + 1}] {' '.join(part.split()[:90])}" for i, part in enumerate(parts))
        return f"{self.choose('qa_rag')}\n\nContext:\n{context}\n\nQuestion: {row['question']}"

    def qa_closed(self) -> str:
        if self.rng.random() < 0.6:
            return str(self.squad()["question"])
        return self.choose("qa_closed").format(self.countries())

    def ask(self, kind: str) -> str | None:
        """A prompt of a kind: most have a method, some are a template and a passage, a title or a topic."""
        if kind in PASSAGES:
            text = self.text(*PASSAGES[kind])
            return f"{self.choose(kind)}\n\n{text}"
        if kind in ON_TOPIC:
            subject = self.subject()
            return self.choose(kind).format(q=subject)
        if kind in TITLED:
            return self.choose(kind).format(f'"{getattr(self, TITLED[kind])()}"')
        prompt: str | None = getattr(self, kind)()
        return prompt

    def messages(self, kind: str) -> list[dict[str, str]] | None:
        """A conversation of a kind, up to the answer."""
        text = self.ask(kind)
        return None if text is None else [{"role": "user", "content": text}]

    def code_given(self) -> str:
        body, _ = self.functions()
        return f"{self.choose('code_given')}\n\n```python\n{body}\n```"

    def code_write(self) -> str:
        if self.rng.random() < 0.45:
            body, name = self.functions()
            signature = re.search(r"def \w+\([^)]*\)", body)
            return self.choose("code_signature").format(signature[0] if signature else f"def {name}()")
        function, language = self.choose("functions"), self.choose("languages")
        tail = self.choose("code_tails")
        return self.choose("code_write").format(l=language, w=function) + tail

    def translate(self) -> str | None:
        source = self.rng.choices([self.tatoeba, self.cppdocs, self.multi30k], [5, 3, 4])[0]
        count = self.rng.choice([1, 2, 3]) if source is not self.cppdocs else 1
        pairs = [source() for _ in range(count)]
        german, english = (" ".join(pair[language] for pair in pairs) for language in ("de", "en"))
        if not 12 <= len(english) <= 500:
            return None
        name, text = ("from_german", german) if self.rng.random() < 0.62 else ("to_german", english)
        return f"{self.choose(name)}{text}"

    def role_play(self) -> str:
        return self.choose("role_play").format(p=self.persons(), t=self.topic())

    def maths(self) -> str:
        ends = {"a": (3, 40), "b": (2, 12), "c": (2, 20), "d": (2, 9)}
        values: dict[str, Any] = {name: self.rng.randint(*each) for name, each in ends.items()}
        values |= {"n": self.names(), "m": self.names(), "th": self.things(), "th2": self.things()}
        values |= {"percent": self.rng.choice(self.templates["percents"]), "x": self.rng.randint(1, 5)}
        return filled(self.choose("maths"), values) + self.choose("maths_tails")

    def reason(self) -> str:
        values: dict[str, Any] = {name: self.names() for name in ("n", "m", "o", "k")}
        values["t"] = self.choose("odd_ones_out").split(";")
        self.rng.shuffle(values["t"])
        values |= {"i": self.rng.randint(1, 5), "p": self.persons(), "q": self.countries(), "s": self.topics()}
        values |= {"th": self.things(), "state": self.choose("states"), "other": self.persons()}
        values["day"] = self.choose("days")
        return filled(self.choose("reason"), values)

    def extract(self) -> str:
        if self.rng.random() < 0.3:
            country = self.country_documents()
            lines = [line for line in country["text"].split("\n") if ": " in line and 20 < len(line) < 300]
            first = self.rng.randrange(max(1, len(lines) - 8))
            text = "\n".join([title_of(country), *lines[first : first + self.rng.randint(3, 8)]])
        else:
            text = self.text(60, 170) if self.rng.random() < 0.6 else self.squad()["context"]
        return f"{self.choose('extract')}\n\n{text}"


def words_of(messages: list[dict[str, str]]) -> str:
    """What a conversation says."""
    return "\n".join(each["content"] for each in messages)


def prompts(data: Path, count: int, chat: ChatTemplate) -> list[dict[str, Any]]:
    """``count`` prompts of at most ``MAX_TOKENS`` tokens."""
    return drawn(Kinds(random.Random(SEED), data), count, lambda asked: len(chat.prompt_of(asked)) <= MAX_TOKENS)


def drawn(kinds: Kinds, count: int, suits: Callable[[list[dict[str, str]]], bool]) -> list[dict[str, Any]]:
    """``count`` different conversations that suit, in rounds of all kinds as often as their weights say."""
    seen, records = set[str](), list[dict[str, Any]]()
    while len(records) < count:
        order = [kind for kind, weight in kinds.templates["weights"].items() for _ in range(weight)]
        kinds.rng.shuffle(order)
        for kind in order:
            for _ in range(60):
                messages = kinds.messages(kind)
                if messages is None:
                    continue
                text = words_of(messages)
                if text not in seen and suits(messages):
                    seen.add(text)
                    records.append({"id": len(records), "kind": kind, "messages": messages})
                    break
    return records[:count]


def save_prompts(path: Path, records: list[dict[str, Any]]) -> None:
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    print(f"{path}: {len(records)} prompts,", dict(Counter(record["kind"] for record in records)))
