"""Varied prompts for a chat model to answer: what SmolLM2's own text, from which its heads learn, is written for.

    python benchmarks/smollm2/prompts.py --data DIR -o prompts.jsonl [--count 6000]

Every line is ``{id, kind, messages}``; the same seed gives the same file, and any beginning of it is balanced over the kinds.
``DIR`` holds text of open licences, see SOURCES; nothing is read of a test part, LAMBADA, WikiText-2 or Spec-Bench.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
from collections import Counter
from pathlib import Path

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


def load(data, name, step=1):
    """Every ``step``-th record of a source."""
    path = data / SOURCES[name]
    with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else open(path, encoding="utf-8") as file:
        return [json.loads(line) for number, line in enumerate(file) if number % step == 0]


# ---------------------------------------------------------------- raw material
def title_of(doc):
    first = doc["text"].split("\n", 1)[0].lstrip("# ").strip().strip("`*_ ")
    first = re.sub(r"^PEP \d+ [–-] ", "", first)
    return first.replace("`", "")


def good_title(t):
    return 10 <= len(t) <= 90 and 2 <= len(t.split()) <= 12 and not re.search(r"[{}<>|\\=_/]|^[-*\d]|Introduction|::", t)


def passages(doc, rng, lo=60, hi=250, clean=True):
    """One run of whole sentences of lo..hi words from a random spot of a document."""
    paragraphs = [p.strip() for p in doc["text"].split("\n\n")]
    paragraphs = [
        p
        for p in paragraphs
        if len(p) > 120
        and p[0].isupper()
        and p[-1] in '.!?”"'
        and "\n" not in p
        and not p.startswith(("Figure:", "By the end"))
        and "```" not in p
        and p.count("|") < 2
    ]
    if not paragraphs:
        return None
    start = rng.randrange(len(paragraphs))
    want = rng.randint(lo + 10, hi)
    taken = []
    for p in paragraphs[start : start + 4]:
        for s in re.split(r"(?<=[.!?])[\"”]?\s+(?=[A-Z“\"])", p):
            n = len(s.split())
            if sum(len(x.split()) for x in taken) + n > want:
                break
            taken.append(s)
        else:
            if taken:
                taken[-1] += "\n\n"
            continue
        break
    text = re.sub(r"(?<!\n) ?\n\n ?", "\n\n", " ".join(taken)).strip()
    return text if lo <= len(text.split()) <= hi else None


def functions(doc):
    """(source, name) of top-level functions and methods of 5-28 lines."""
    lines = doc["text"].split("\n")
    i = 0
    while i < len(lines):
        m = re.match(r"( *)def (\w+)\(", lines[i])
        if not m:
            i += 1
            continue
        pad, j = len(m[1]), i + 1
        while j < len(lines) and (not lines[j].strip() or len(lines[j]) - len(lines[j].lstrip()) > pad):
            j += 1
        body = "\n".join(x[pad:] for x in lines[i:j]).rstrip()
        if 5 <= body.count("\n") + 1 <= 28 and len(body) < 1000:
            yield body, m[2]
        i = j


class Pool:
    """Draws without repeats until the items run out, then starts over in a new order."""

    def __init__(self, items, rng):
        self.items, self.rng, self.left = list(items), rng, []

    def __call__(self):
        if not self.left:
            self.left = self.items[:]
            self.rng.shuffle(self.left)
        return self.left.pop()


def make_kinds(rng, data):
    """The kinds of prompts, each a function that makes one or None, and how many places each has in a round."""
    choose = rng.choice

    def pool(items):
        return Pool(items, rng)

    news, docs, code = load(data, "news"), load(data, "docs"), load(data, "code")
    books = load(data, "books")
    text_news = pool([d for d in news if "factbook" not in d["source"]])
    text_docs = pool([d for d in docs if "cpp-docs" not in d["source"]] + [d for d in docs if "cpp-docs" in d["source"]][::6])
    text_books = pool(books)
    textbook = [d for d in news if d["source"].startswith(("openstax/", "philschatz/"))]
    stem_books = ("astronomy", "anatomy-book", "biology-book", "economics-book")

    def is_stem(d):
        return d["source"].endswith(stem_books)

    def headings(d):
        hs = [title_of(d)] + [h.strip("# ").strip() for h in re.findall(r"^##+ .+$", d["text"], re.M)]
        bad = r"Summary|Exercises|Review|Question|Objective|Outcomes|Key |Glossary|Introduction|References|Check|Connection|Learning|Suggested|For Further|Link"  # noqa: E501
        return [h for h in hs if good_title(h) and not re.search(bad, h, re.I)]

    def uniq(xs):
        return sorted(set(xs))

    stem = pool(uniq(h for d in textbook if is_stem(d) for h in headings(d)))
    human = pool(uniq(h for d in textbook if not is_stem(d) for h in headings(d)))
    news_titles = pool(
        uniq(
            t
            for d in news
            if not d["source"].startswith(("openstax", "philschatz", "factbook", "nltk", "rust"))
            for t in [title_of(d)]
            if good_title(t)
        )
    )
    docs_titles = pool(
        uniq(
            t
            for d in docs
            if "error-messages" not in d["id"] and "c-runtime" not in d["id"] and "/mfc/" not in d["id"] and "/atl/" not in d["id"]
            for t in [title_of(d)]
            if good_title(t) and t.count(" ") >= 2 and not re.search(r"Error|Warning|C\d{4}|Class|Feature Name", t)
        )
    )
    countries = pool(
        [t for d in news if "factbook" in d["source"] for t in [title_of(d)] if ".json" not in t and not re.search("Ocean", t)]
    )
    country_docs = pool([d for d in news if "factbook" in d["source"]])
    common = pool(
        [
            "remote work",
            "school uniforms",
            "electric cars",
            "learning to cook",
            "a trip to the mountains",
            "public libraries",
            "social media",
            "growing vegetables on a balcony",
            "artificial intelligence in medicine",
            "keeping a diary",
            "renewable energy",
            "chess",
            "space travel",
            "a lost dog",
            "city bicycles",
            "healthy breakfasts",
            "saving money",
            "learning a language",
            "the first day at a new job",
            "plastic waste",
            "a family reunion",
            "winter sports",
            "music lessons for children",
            "a broken phone",
            "the history of tea",
            "small museums",
            "public transport",
            "sleep",
            "volunteering",
            "online courses",
            "a birthday party",
            "moving to a new town",
            "video games",
            "good neighbours",
            "coffee",
            "the ocean",
            "a rainy holiday",
            "running a marathon",
            "old photographs",
            "bees",
            "time management",
            "a difficult customer",
            "open-source software",
            "a lighthouse keeper",
            "the last train home",
            "friendship",
            "home insulation",
            "a school play",
            "robots in the kitchen",
            "deserts",
            "job interviews",
            "fast fashion",
            "a community garden",
            "pets in the office",
            "night shifts",
            "tourism in small towns",
            "vaccination",
            "a talking cat",
            "handwritten letters",
            "a secret door",
            "the four-day week",
            "water shortages",
            "board games",
            "street food",
            "migration of birds",
        ]
    )

    # two thirds everyday topics and country names would repeat too often, so mostly titles
    def topic():
        return rng.choices([news_titles, docs_titles, human, stem, common, countries], [5, 2, 4, 2, 6, 1])[0]()

    persons = pool(
        [
            "a pirate captain",
            "a patient kindergarten teacher",
            "a medieval blacksmith",
            "a sports commentator",
            "a wise old doctor",
            "a detective",
            "a travel guide",
            "a robot who has just woken up",
            "a strict editor",
            "Albert Einstein",
            "William Shakespeare",
            "a weather presenter",
            "a start-up founder",
            "a museum curator",
            "a farmer",
            "a chef",
            "a historian",
            "a science-fiction author",
            "a nurse",
            "a lawyer",
            "a gardener",
            "Marie Curie",
            "a ship's engineer",
            "a librarian",
            "a football coach",
            "a philosopher",
            "a shy ghost",
            "a news anchor",
        ]
    )
    names = pool(
        [
            "Anna",
            "Tom",
            "Maria",
            "Ben",
            "Lucy",
            "Omar",
            "Kim",
            "Peter",
            "Sofia",
            "Jack",
            "Nina",
            "Paul",
            "Ella",
            "Raj",
            "Grace",
            "Leo",
            "Hannah",
            "Victor",
            "Mei",
            "Carlos",
            "Ruth",
            "Ivan",
            "Zoe",
            "Sam",
        ]
    )
    things = pool(
        [
            "apples",
            "pencils",
            "books",
            "stickers",
            "cookies",
            "marbles",
            "tickets",
            "cards",
            "eggs",
            "oranges",
            "bottles",
            "chairs",
            "stamps",
            "coins",
            "flowers",
            "shirts",
            "balloons",
            "toys",
        ]
    )

    dialog = pool(load(data, "dialogsum"))
    squad, policy = pool(load(data, "squad")), pool(load(data, "policy"))
    tato, cpp, m30k = pool(load(data, "tatoeba", 3)), pool(load(data, "cppdocs", 5)), pool(load(data, "multi30k"))

    fn_all = [(b, n, d) for d in code for b, n in functions(d) if not n.startswith("test_") or len(n) % 5 == 0]
    fns = pool([x for x in fn_all if not x[1].startswith("__")])

    # ------------------------------------------------------------ one function a kind
    def passage(src, lo=60, hi=230):
        while True:
            t = passages(src(), rng, lo, hi)
            if t:
                return t

    def any_text():
        return choose([text_news, text_news, text_docs, text_books])

    def summ_dialog():
        d = dialog()["document"]
        ask = choose(
            [
                "Summarize the following dialogue:",
                "Summarize this conversation in one or two sentences.",
                "What is the conversation below about? Give a short summary.",
                "Write a brief summary of the dialogue.",
                "Summarize:",
                "Read the dialogue and tell me who wants what.",
                "Please give me the main points of this conversation as a list.",
            ]
        )
        if rng.random() < 0.5:
            a, b = names(), names()
            d = d.replace("#Person1#", a).replace("#Person2#", b)
        return f"{ask}\n\n{d}" if rng.random() < 0.8 else f"{d}\n\n{ask}"

    def qa_context():
        d = choose([squad, squad, policy])()
        style = rng.randrange(4)
        c, q = d["context"], d["question"]
        return [
            f"{c}\n\nQuestion: {q}",
            f"Answer the question using the passage.\n\nPassage: {c}\n\nQuestion: {q}\nAnswer:",
            f"Read the text and answer the question in a full sentence.\n\n{c}\n\n{q}",
            f"{q}\n\nUse this text: {c}",
        ][style]

    def qa_rag():
        d, e = squad(), squad()
        c = d["context"]
        if rng.random() < 0.5:
            parts = [c, e["context"]]
            rng.shuffle(parts)
            c = "\n\n".join(f"[{i + 1}] {' '.join(p.split()[:90])}" for i, p in enumerate(parts))
        ask = choose(
            [
                "Answer the question based on the given documents. If you do not know, say so.",
                "Use the following pieces of context to answer the question at the end.",
                "Give a detailed answer to the question. Quote from the passage where it helps.",
                "You are given search results. Write a helpful answer to the user's question and explain it.",
            ]
        )
        return f"{ask}\n\nContext:\n{c}\n\nQuestion: {d['question']}"

    def qa_closed():
        return (
            squad()["question"]
            if rng.random() < 0.6
            else choose(
                [
                    "What is the capital of {}, and what is it known for?",
                    "Where is {} and what are its neighbours?",
                    "Give me five facts about {}.",
                    "What languages are spoken in {}?",
                ]
            ).format(countries())
        )

    def cont():
        t = passage(any_text(), 50, 170)
        return (
            choose(
                [
                    "Continue the following text:",
                    "Continue this text in the same style.",
                    "Write the next two paragraphs of this text:",
                    "What happens next? Continue:",
                ]
            )
            + "\n\n"
            + t
        )

    def summ_text():
        t = passage(any_text())
        return (
            choose(
                [
                    "Summarize the following text:",
                    "Summarize this in two sentences.",
                    "What are the key points of this passage?",
                    "Give a one-paragraph summary of this article:",
                    "TL;DR of this text, please:",
                    "Summarize the text in three bullet points.",
                ]
            )
            + "\n\n"
            + t
        )

    def rewrite():
        t = passage(any_text(), 60, 150)
        return (
            choose(
                [
                    "Rewrite this text in simpler words:",
                    "Rewrite the passage in a more formal tone.",
                    "Explain this text to a ten-year-old:",
                    "Paraphrase the following:",
                    "Fix grammar and style, keep the meaning:",
                    "Rewrite this as a short email to a colleague:",
                    "Shorten this text by about half:",
                    "Rewrite this text in the past tense:",
                ]
            )
            + "\n\n"
            + t
        )

    def code_given():
        body, _name, _ = fns()
        ask = choose(
            [
                "Explain what this Python function does:",
                "Add a docstring and comments to this function:",
                "Find possible bugs in this code and fix them:",
                "Rewrite this function so that it is easier to read:",
                "Write unit tests for the following function:",
                "Explain this code line by line:",
                "Add type hints to this function:",
                "Complete or improve this code:",
            ]
        )
        return f"{ask}\n\n```python\n{body}\n```"

    def code_write():
        if rng.random() < 0.45:
            body, name, _d = fns()
            sig = re.search(r"def \w+\([^)]*\)", body)
            sig = sig[0] if sig else f"def {name}()"
            return choose(
                [
                    "Write a Python function with this signature and explain it briefly: `{}`",
                    "Implement the following Python function.\n\n```python\n{}:\n```",
                ]
            ).format(sig)
        what = choose(
            [
                "reverses the words of a sentence",
                "checks whether a number is prime",
                "merges two sorted lists",
                "counts the words in a text file",
                "finds the longest common prefix of a list of strings",
                "converts Roman numerals to integers",
                "computes the n-th Fibonacci number",
                "removes duplicates from a list while keeping the order",
                "validates an email address",
                "sorts a list of dictionaries by a key",
                "finds all anagrams in a list of words",
                "parses a CSV line with quotes",
                "computes the median of a list",
                "flattens a nested list",
                "checks whether brackets are balanced",
                "implements a stack with push and pop",
                "performs a binary search",
                "converts Celsius to Fahrenheit",
                "finds the two numbers that add up to a target",
                "generates a random password",
                "counts the vowels in a string",
                "transposes a matrix",
                "groups words by their first letter",
                "rotates a list by k places",
                "implements a simple cache with a size limit",
                "reads a JSON file and prints its keys",
                "computes the greatest common divisor",
                "draws a triangle of stars",
                "encodes a string with run-length encoding",
                "finds the second largest number",
                "downloads a web page and counts the links",
                "tells whether a year is a leap year",
                "multiplies two matrices",
                "formats a number of seconds as hours and minutes",
                "implements quicksort",
            ]
        )
        lang = choose(["Python"] * 5 + ["C++", "JavaScript", "Java", "Rust", "PowerShell", "C"])
        tail = choose(
            [
                "",
                "",
                " Explain how it works.",
                " Include an example of its use.",
                " Also write two tests.",
                " Handle wrong input.",
                " Keep it short.",
            ]
        )
        return (
            choose(
                ["Write a {l} function that {w}.", "How do I write a function in {l} that {w}?", "Write a {l} program that {w}."]
            ).format(l=lang, w=what)
            + tail
        )

    def docs_question():
        return choose(
            [
                "Explain {}.",
                "What is {} and when would I use it?",
                "Write a short tutorial about {}.",
                "How does {} work? Give an example.",
                "What are common mistakes with {}?",
            ]
        ).format(f'"{docs_titles()}"')

    def translate():
        src = rng.choices([tato, cpp, m30k], [5, 3, 4])[0]
        n = rng.choice([1, 2, 3]) if src is not cpp else 1
        pairs = [src() for _ in range(n)]
        de, en = " ".join(p["de"] for p in pairs), " ".join(p["en"] for p in pairs)
        if len(en) > 500 or len(en) < 12:
            return None
        return (
            choose(["Translate German to English: ", "Translate this German text to English:\n\n", "What does this mean in English? "]) + de
            if rng.random() < 0.62
            else choose(["Translate English to German: ", "Translate the following into German:\n\n", "How do you say this in German? "])
            + en
        )

    def write_open():
        t = topic()
        q = f'"{t}"' if t[0].isupper() else t
        return choose(
            [
                f"Write an essay about {q}.",
                f"Write a short blog post about {q}.",
                f"Write a short story about {q}.",
                f"Write a poem about {q}.",
                f"Write an email to a friend about {q}.",
                f"Write a formal letter to the city council about {q}.",
                f"Write a persuasive speech on {q}.",
                f"Write a news article with the headline {q}.",
                f"Write a product description for something related to {q}.",
                f"Write an introduction to a talk on {q}.",
                f"Write a dialogue between two friends about {q}.",
                f"Write a script for a one-minute video about {q}.",
                f"Write a limerick and a haiku on {q}.",
                f"Write three social media posts about {q}.",
                f"Compose an engaging travel blog post that mentions {q}.",
            ]
        )

    def advise_open():
        t = topic()
        q = f'"{t}"' if t[0].isupper() else t
        return choose(
            [
                f"What are the pros and cons of {q}?",
                f"Make a step-by-step plan for a project on {q}.",
                f"Give me ten ideas for {q}.",
                f"Compare two different views on {q}.",
                f"Make a table comparing aspects of {q}.",
                f"How would you explain {q} to a beginner?",
                f"What questions should I ask an expert about {q}?",
                f"Create a one-week schedule for learning about {q}.",
                f"List five common myths about {q} and correct them.",
                f"Help me prepare a presentation on {q}: give an outline.",
                f"Write a quiz with five questions and answers on {q}.",
                f"I am worried about {q}. What should I do?",
                f"Suggest a title, a subtitle and an opening sentence for an article on {q}.",
            ]
        )

    def role_play():
        return choose(
            [
                "Pretend you are {p}. Tell me about {t}.",
                "You are {p}. A visitor asks you about {t}. Answer in character.",
                "Act as {p} and give me your opinion on {t}.",
                "Imagine you are {p}. Write a diary entry about {t}.",
                "Speak like {p} and explain {t} in a few sentences.",
            ]
        ).format(p=persons(), t=topic())

    def stem_q():
        return choose(
            [
                "Explain {}.",
                "What is meant by {} in science?",
                "Describe {} and give an example.",
                "Why is {} important? Explain the main ideas.",
                "Write study notes on {}.",
                "Explain {} step by step for a high-school student.",
                "What are the causes and effects involved in {}?",
                "Give a definition of {} and list its key features.",
            ]
        ).format(f'"{stem()}"')

    def human_q():
        return choose(
            [
                "Discuss {}.",
                "What is the significance of {}?",
                "Explain the main ideas behind {} in a few paragraphs.",
                "How has {} shaped modern society?",
                "Compare different perspectives on {}.",
                "Write a short lecture on {}.",
                "What were the causes and consequences of {}?",
                "Give three examples that illustrate {}.",
            ]
        ).format(f'"{human()}"')

    def maths():
        a, b, c, d = rng.randint(3, 40), rng.randint(2, 12), rng.randint(2, 20), rng.randint(2, 9)
        n, m, th, th2 = names(), names(), things(), things()
        q = choose(
            [
                f"{n} has {a + b * c} {th}. {n} gives {b} {th} to each of {c} friends. How many {th} are left?",
                f"{n} buys {b} boxes of {th} with {c} {th} in each box and {a} more {th}. How many {th} does {n} have now?",
                f"A train travels at {a + 40} km per hour for {d} hours. How far does it go, and how long would it take at {a + 60} km per hour?",  # noqa: E501
                f"{n} earns ${a} an hour and works {d} hours a day, {b % 6 + 1} days a week. How much does {n} earn in {c} weeks?",
                f"A shop sells {th} for ${d} each and {th2} for ${b} each. {n} buys {c} {th} and {a} {th2} and pays with $500. How much change does {n} get?",  # noqa: E501
                f"{n} is {a + 20} years old and {m} is {d} years younger. What will the sum of their ages be in {b} years?",
                f"A rectangle is {a} m long and {b} m wide. What are its area and its perimeter?",
                f"{n} reads {a} pages on Monday, twice as many on Tuesday and {c} fewer than on Tuesday on Wednesday. How many pages are that in all?",  # noqa: E501
                f"A class of {a + 12} students shares {(a + 12) * d + b} {th} equally. How many does each student get and how many are left over?",  # noqa: E501
                f"The price of a coat is ${a * 10}. It is reduced by {choose([10, 15, 20, 25, 30, 50])}%. What is the new price?",
                f"Solve for x: {b}x + {c} = {b * d + c}.",
                f"What is {a * 7} + {b * 13} - {c}?",
                f"Compute {a} * {c} and explain how.",
                f"If {d} workers build a wall in {b * 2} days, how long do {d * 2} workers need?",
                f"The average of {a}, {c}, {b} and x is {a + d}. What is x?",
                f"{n} fills a tank of {a * b} litres with a hose that gives {b} litres a minute, while {d % 2 + 1} litres a minute leak out. After how many minutes is the tank full?",  # noqa: E501
                f"A bag holds {b} red, {c} blue and {d} green balls. What is the probability of drawing a blue one?",
                f"If f(x) = {d}x^2 - {b}x + {c}, what is f({rng.randint(1, 5)})?",
            ]
        )
        return q + choose(["", "", " Think step by step.", " Show your work.", " Explain your answer."])

    def reason():
        n, m, o, k = names(), names(), names(), names()
        t = choose(
            [
                "apple;banana;carrot;cherry",
                "dog;cat;oak;horse",
                "Paris;Berlin;Spain;Rome",
                "hammer;saw;nail;cloud",
                "Mars;Venus;Moon;Jupiter",
                "violin;flute;piano;painter",
                "red;blue;heavy;green",
                "river;lake;sea;road",
            ]
        ).split(";")
        rng.shuffle(t)
        i, p, q, s = rng.randint(1, 5), persons(), countries(), common()
        return choose(
            [
                f"{n} is taller than {m}. {m} is taller than {o}. {k} is shorter than {o}. Who is the tallest and who is the shortest?",
                f"Which of these does not belong with the others, and why? {', '.join(t)}",
                f"{n} walked {i} km north, then {i + 2} km east, then {i} km south. Where is {n} now relative to the start?",
                f"{n} finished the race before {m} but after {o}. {k} finished last. In which order did they arrive?",
                f"What comes next in the sequence {i}, {i * 2}, {i * 4}, {i * 8}? Explain the rule.",
                f"What comes next: {i}, {i + 3}, {i + 6}, {i + 9}, ...? Explain.",
                f"All {things()} in the box are {choose(['red', 'old', 'broken'])}. {n} takes something out of the box that is not. What can you conclude?",  # noqa: E501
                f"If it rains, {n} stays at home. {n} is not at home. Did it rain? Explain your reasoning.",
                f"{n} says that {s} will be forgotten in fifty years. Give arguments for and against, and come to a conclusion.",
                f"Why might {p} and {persons()} disagree about {s}? Reason step by step.",
                f"What would happen if nobody in {q} cared about {s} any more?",
                f"{n}'s mother has four children: {m}, {o}, {k} and one more. What is the name of the fourth child?",
                f"Is the following argument valid? All {p.split(' ', 1)[-1]}s like {s}. {n} likes {s}. Therefore {n} is one of them.",
                f"You have {i + 2} litres in one jug and an empty jug of {i + 5} litres. How can you use them to plan for {s}?",
                f"Yesterday was two days after {choose(['Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday', 'Sunday'])}. What day is tomorrow?",  # noqa: E501
            ]
        )

    def extract():
        if rng.random() < 0.3:
            d = country_docs()
            lines = [x for x in d["text"].split("\n") if ": " in x and 20 < len(x) < 300]
            k = rng.randrange(max(1, len(lines) - 8))
            t = "\n".join([title_of(d), *lines[k : k + rng.randint(3, 8)]])
        else:
            t = passage(any_text(), 60, 170) if rng.random() < 0.6 else squad()["context"]
        return (
            choose(
                [
                    "Extract all names of people, places and organisations from the text as JSON.",
                    "List all dates and numbers in this text with what they refer to.",
                    "Extract the main facts as a JSON object with short keys.",
                    "Make a bullet list of the claims in this text.",
                    "Make a table with two columns (term, meaning) from this text.",
                    "List the key terms of this passage.",
                    "Give me five keywords and a title for this text.",
                    "Classify the topic and the tone of this text and give a reason.",
                    "Write three questions that this text answers, with the answers.",
                ]
            )
            + "\n\n"
            + t
        )

    # weight = places of a kind in each round of the interleaving
    return [
        (summ_dialog, 2),
        (summ_text, 2),
        (qa_context, 2),
        (qa_rag, 2),
        (qa_closed, 1),
        (cont, 2),
        (rewrite, 2),
        (code_given, 2),
        (code_write, 2),
        (docs_question, 1),
        (translate, 3),
        (write_open, 3),
        (advise_open, 2),
        (role_play, 1),
        (stem_q, 2),
        (human_q, 2),
        (maths, 3),
        (reason, 2),
        (extract, 2),
    ]


def prompts(data: Path, count: int, length) -> list[dict]:
    """``count`` prompts of at most ``MAX_TOKENS`` tokens; ``length`` counts those of a conversation."""
    rng = random.Random(SEED)
    kinds = make_kinds(rng, data)
    seen: set[str] = set()
    made: list[dict] = []
    while len(made) < count:
        order = [make for make, weight in kinds for _ in range(weight)]
        rng.shuffle(order)
        for make in order:
            for _ in range(60):
                text = make()
                if text is None or text in seen:
                    continue
                messages = [{"role": "user", "content": text}]
                if length(messages) <= MAX_TOKENS:
                    break
            else:
                continue
            seen.add(text)
            made.append({"id": len(made), "kind": make.__name__, "messages": messages})
    return made[:count]


def main() -> None:
    from latticebpd.models.chat import ChatTemplate
    from latticebpd.models.pretrained import load_stock, load_tokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--model", default="smollm2-135m", help="whose chat template the prompts are counted in")
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    chat = ChatTemplate(load_tokenizer(arguments.model), load_stock(arguments.model))
    made = prompts(arguments.data, arguments.count, lambda messages: len(chat.prompt_of(messages)))
    arguments.output.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in made), encoding="utf-8")
    print(f"{arguments.output}: {len(made)} prompts,", dict(Counter(record["kind"] for record in made)))


if __name__ == "__main__":
    main()
