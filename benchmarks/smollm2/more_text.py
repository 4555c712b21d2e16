"""More text of SmolLM2-135M-Instruct's own: many thousand prompts of many kinds, and its greedy answers.

    latticebpd models get smollm2-135m
    python -m benchmarks.smollm2.more_text --data DIR --work WORK            # prompts, missing answers; resumes
    python -m benchmarks.smollm2.more_text --data DIR --work WORK --device cuda   # the same, in bfloat16 on a GPU
    python -m benchmarks.smollm2.more_text --data DIR --work WORK --store    # answers so far -> more-text.npz.xz
    python -m benchmarks.smollm2.more_text --data DIR --work WORK --join     # more-text.npz.xz -> WORK/more.npz
    python -m benchmarks.smollm2.make --data DIR --work WORK --text WORK/more.npz

``more_prompts.json`` beside this file has kinds and templates besides those of ``prompts.json``.  Prompts take text of
the same training parts (`prompts.SOURCES`); one with eight words in a row of an evaluation text (test parts,
Spec-Bench, the study's passages) or of the prompt of a held-out answer is not asked.  The order is random over kinds,
so that any number of first shards is a fair mixture.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import latticebpd, options, read_lines, stage
from benchmarks.smollm2 import make
from benchmarks.smollm2.prompts import SOURCES, TEMPLATES, Kinds, drawn, save_prompts, title_of, words_of
from benchmarks.study.kim_tasks import DOCUMENTS, TASKS, documents, shingles
from fst.files import save_array
from latticebpd.lattices.texts import Texts
from latticebpd.models.chat import ChatTemplate
from lm_training.data.sequences import distilled_directory

SEED = 20261123
COUNT = 48_000
MAX_TOKENS = 300
"""Of a prompt with the chat template."""
WRITING = {
    "cpu": "--weights gguf --shard-prompts 64 --batch-size 32",
    "cuda": "--device cuda --base-dtype bfloat16 --shard-prompts 6144 --batch-size 1536",
}
"""By device."""
STORED = make.HERE / "more-text.npz.xz"
MORE = json.loads((make.HERE / "more_prompts.json").read_text(encoding="utf-8"))
EVALUATION = r"-test|-dev|-val|newstest|lambada|wikitext|spec_bench"
"""Files of DIR that are no source of prompts, unless `SOURCES` names them."""
FIRST_PARTS = range(2)
"""Of documents, those that the study measured when the prompts were drawn: with others the prompts would change."""


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Lists of the same name one after the other, and so the templates; the weights are the other's."""
    both = dict(one)
    for name, value in other.items():
        if isinstance(value, dict):
            both[name] = merged(one[name], value) if name == "templates" else value
        else:
            both[name] = [*one.get(name, ()), *value]
    return both


class MoreKinds(Kinds):
    """Further kinds: unfinished code and dialogues, letters, lists, comparisons, second turns, system prompts."""

    def messages(self, kind: str) -> list[dict[str, str]] | None:
        if kind == "follow_up":
            row = self.squad()
            turns = [f"{row['context']}\n\n{row['question']}" if self.rng.random() < 0.3 else row["question"]]
            turns += [f"{row['answer'][:1].upper()}{row['answer'][1:]}.", self.choose("follow_up")]
            roles = ("user", "assistant", "user")
            return [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
        if kind == "system":
            others = ["qa_closed", "advise_open", "stem_q", "human_q", "maths", "how_to", "docs_question"]
            asked = super().messages(self.rng.choice(others))
            system = {"role": "system", "content": self.choose("system").format(p=self.persons())}
            return None if asked is None else [system, *asked]
        return super().messages(kind)

    def code_continue(self) -> str | None:
        body, _ = self.functions()
        lines = body.split("\n")
        if len(lines) < 7:
            return None
        begun = "\n".join(lines[: self.rng.randint(3, len(lines) - 3)])
        return f"{self.choose('code_continue')}\n\n```python\n{begun}\n```"

    def dialogue_continue(self) -> str | None:
        lines = self.dialogues()["document"].split("\n")
        if len(lines) < 5:
            return None
        text = "\n".join(lines[: self.rng.randint(2, min(8, len(lines) - 2))])
        text = text.replace("#Person1#", self.names()).replace("#Person2#", self.names())
        return f"{self.choose('dialogue_continue')}\n\n{text}"

    def letter(self) -> str:
        kind, reader = self.choose("letter_kinds"), self.choose("recipients")
        return self.choose("letter").format(k=kind, w=reader, q=self.subject())

    def listing(self) -> str:
        number = self.rng.choice([3, 4, 5, 6, 7, 8, 10, 12])
        return self.choose("listing").format(i=number, w=self.choose("list_items"), q=self.subject())

    def compare(self) -> str:
        pool = self.rng.choice([self.topics, self.human, self.stem, self.docs_titles])
        one, other = (f'"{each}"' if each[0].isupper() else each for each in (pool(), pool()))
        return self.choose("compare").format(a=one, b=other)

    def how_to(self) -> str:
        task = self.choose("tasks")
        if self.rng.random() < 0.3:
            task += self.rng.choice([" with little money", " in a hurry", " with a child", " without special tools"])
        return self.choose("how_to").format(task)

    def tools(self) -> str:
        return self.choose("tools").format(w=self.choose("tool_tasks"))

    def mistakes(self) -> str:
        """Words left out, doubled or misspelt."""
        words = self.text(30, 80).split(" ")
        for index in range(len(words)):
            draw = self.rng.random()
            if draw < 0.04:
                words[index] = f"{words[index]} {words[index]}"
            elif draw < 0.08:
                words[index] = ""
            elif draw < 0.16 and len(words[index]) > 3:
                at = self.rng.randrange(len(words[index]) - 1)
                word = words[index]
                words[index] = word[:at] + word[at + 1] + word[at] + word[at + 2 :]
        return f"{self.choose('mistakes')}\n\n{' '.join(filter(None, words)).lower()}"

    def words(self) -> str | None:
        long_words = [word for word in re.findall(r"\b[a-z]{6,12}\b", self.text(30, 60)) if not word.endswith("ing")]
        return self.choose("words").format(self.rng.choice(long_words)) if long_words else None

    def classify(self) -> str:
        return f"{self.choose('classify')}\n\n{self.text(30, 110)}"

    def facts(self) -> str:
        country = self.country_documents()
        lines = [line for line in country["text"].split("\n") if ": " in line and 20 < len(line) < 200]
        chosen = self.rng.sample(lines, min(len(lines), self.rng.randint(3, 7)))
        return "\n".join([self.choose("facts"), "", title_of(country), *chosen])

    def translate(self) -> str | None:
        if self.rng.random() < 0.85:
            return super().translate()
        count = self.rng.randint(1, 2)
        english = " ".join(self.rng.choice([self.tatoeba, self.multi30k])()["en"] for _ in range(count))
        return f"{self.choose('to_other')}{english}"


# ---------------------------------------------------------------- what is not asked
def strings(value: Any) -> Iterator[str]:
    """Every text in a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def evaluation_texts(data: Path) -> Iterator[str]:
    """Test parts, Spec-Bench, and what the study measures."""
    used = set(SOURCES.values())
    for path in sorted(data.rglob("*.jsonl*")):
        if re.search(EVALUATION, str(path.relative_to(data))) and str(path.relative_to(data)) not in used:
            for row in read_lines(path):
                yield from strings(row)
    yield from passages(data)


def passages(data: Path) -> Iterator[str]:
    """Of the study's tasks that continue text; questions and dialogues are in files of their own."""
    items = [part(data) for name in ("lambada", "wikitext") for part in (TASKS[name].tuning, TASKS[name].test)]
    items += [documents(path, FIRST_PARTS, sources, data) for path, sources in DOCUMENTS.values()]
    for each in items:
        yield from (item.prompt for item in each)


def template_shingles() -> set[str]:
    """Of the templates themselves, which held-out prompts may share."""
    pieces = (piece for each in strings([TEMPLATES, MORE]) for piece in re.split("{.*?}", each))
    return set().union(*map(shingles, pieces))


def excluded(data: Path, held_out: Iterable[str]) -> set[str]:
    """Shingles that no prompt may have; held_out: the prompts of held-out answers."""
    own = set().union(*map(shingles, held_out)) - template_shingles()
    return own.union(*map(shingles, evaluation_texts(data)))


def save_more_prompts(data: Path, path: Path, count: int, asked: Path, chat: ChatTemplate) -> None:
    """Write ``count`` conversations; asked: those of ``prompts.py``, which are not asked again."""
    texts = [words_of(row["messages"]) for row in read_lines(asked)]
    known, old, refused = excluded(data, texts[:: make.HELD_OUT]), set(texts), 0

    def suits(messages: list[dict[str, str]]) -> bool:
        nonlocal refused
        text = words_of(messages)
        shared = text in old or not shingles(text).isdisjoint(known)
        refused += shared
        return not shared and len(chat.prompt_of(messages)) <= MAX_TOKENS

    records = drawn(MoreKinds(random.Random(SEED), data, merged(TEMPLATES, MORE)), count, suits)
    save_prompts(path, records)
    print(f"{path}: {refused} refused for eight words of an evaluation text")


def save_unanswered(prompts: list[list[int]], digest: str, known: Path, asked: Path, numbers: Path) -> None:
    """The prompts that ``known``, a file of stored answers, does not answer, and their numbers."""
    answered = make.load_answers(known, prompts, digest)[0].tolist() if known.exists() else []
    missing = sorted(set(range(len(prompts))) - set(answered))
    save_array(numbers, np.array(missing, np.int64))
    rows = [prompts[number] for number in missing]
    Texts.of_rows(rows, list(map(len, rows)), np.uint16).save(asked)


def store(written: Path, numbered: Path, path: Path, prompts: list[list[int]], digest: str) -> None:
    """Add the answers of all shards that there are to those in ``path``, without their prompts.

    numbered: the file of the numbers of the prompts that shards answer, in their order.
    """
    shards = sorted(distilled_directory(written).path.glob("shard-*.npz"))
    if not shards:
        raise ValueError(f"{written}: expected shards of answers, found none; run the command without --store first")
    size = distilled_directory(written).settings()["options"]["shard_prompts"]
    numbers, known = np.load(numbered), [make.load_answers(path, prompts, digest)] if path.exists() else []
    stored = set(known[0][0].tolist()) if known else set()
    for shard in shards:
        texts, first = Texts.load(shard), int(shard.stem[-5:]) * size
        ids = numbers[first : first + len(texts)]
        new = [row for row, number in enumerate(ids.tolist()) if number not in stored]
        known.append((ids[new], texts.chosen(new)))
    texts = Texts.joined([each for _, each in known])
    make.save_answers(path, np.concatenate([ids for ids, _ in known]), texts, digest)
    share = path.stat().st_size / texts.num_labels
    print(f"{path}: {len(texts)} answers, {texts.num_labels} tokens, {share:.2f} bytes a token")


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, required=True, help="folder of the sources")
    parser.add_argument("--work", type=Path, required=True, help="folder of prompts and shards")
    parser.add_argument("--count", type=int, default=COUNT, help="number of prompts")
    parser.add_argument("--device", choices=[*WRITING], default="cpu", help="where answers are written")
    parser.add_argument("--store", action="store_true", help="store the answers so far, without their prompts")
    parser.add_argument("--join", action="store_true", help="prompts and stored answers, as texts to learn from")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    written_on = "written" if args.device == "cpu" else f"written-{args.device}"
    names = ("more-prompts.jsonl", "unanswered.npy", "unanswered.npz", written_on)
    conversations, numbers, asked, written = (args.work / name for name in names)
    before = make.conversations(args.work, args.data)
    stage(conversations, lambda: save_more_prompts(args.data, conversations, args.count, before, make.chat_template()))
    prompts, digest = make.chat_prompts(conversations)
    print(f"{len(prompts)} prompts, {digest}")
    if args.store:
        store(written, numbers, STORED, prompts, digest)
    if args.join:
        make.load_answers(STORED, prompts, digest)[1].save(args.work / "more.npz")
    if not args.store and not args.join:
        stage(asked, lambda: save_unanswered(prompts, digest, STORED, asked, numbers))
        latticebpd("distill", asked, f"--model {make.MODEL} --max-new-tokens 256 {WRITING[args.device]} -o", written)


if __name__ == "__main__":
    main()
