"""Kim 2024's own recipe in small: a model and its heads learn together, and are fine-tuned together on each task.

    python -m benchmarks.study.kim_recipe                            # tables and the figure of the committed counts
    python -m benchmarks.study.kim_recipe --data DIR --work WORK     # the same from scratch; resumes
    python -m benchmarks.study.kim_recipe --data DIR --work WORK --only 9 squad      # up to the counts of one model

The bundled model learns books, documentation, news and code together with 3, 6 and 9 new heads, by the joint loss, and
then each task, by the same loss.  Every model writes greedily after the
prompts of its task; a 4-gram of the first text, and one of the task's, rescore its drafts at weights tuned on other
texts of the task.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import fst
from benchmarks.common import latticebpd, options, read_csv, read_lines, stage, stored, table, write_csv
from benchmarks.decodes import RESULTS
from benchmarks.study import kim, kim_tasks
from benchmarks.study.kim_tables import (
    QUANTITIES,
    TITLES,
    Counts,
    correlation,
    draws,
    entropies,
    gained,
    table_entropy,
    valued,
)
from benchmarks.study.kim_tasks import TASKS, Task
from fst.files import write_text
from latticebpd.drafters import bundled
from latticebpd.drafters.pretrained import load_tokenizer
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.texts import Texts
from latticebpd.measuring.entropy import h_max
from latticebpd.report.theme import MARKERS, SERIES, STYLE
from latticebpd.target.chat import PlainText

HEADS = (3, 6, 9)
SOURCES = ("text/books-001", "text/docs-000", "text/news-000", "code/code-000")
LETTERS, DOCUMENT, HELD_OUT = 4_000_000, 20_000, 40
"""Of each source, and of a document at most; documents of all sources that losses are measured on."""
END, WINDOW = 0, 256
TOKENS, PASSAGE, EXAMPLES, MOST_PROMPT = 300_000, 4000, 4000, 400
"""Of a task's text, and letters of one of its documents, at most; prompts with answers; tokens of a prompt."""
JOINT = "--fine-tune --objective joint --precision bfloat16 --learning-rate 1e-3 --base-learning-rate 5e-4"
FIRST = f"--steps 400 --batch-size 8 --sequence-length {WINDOW} --warmup-steps 20 --validation-every 200"
TASK = "--warm-start --steps 100 --warmup-steps 10 --validation-every 100"
QUESTIONS = {"squad": kim_tasks.SQUAD_TRAIN, "policyqa": kim_tasks.POLICY_DEV}
"""Questions to learn from."""
NAMES = tuple(name for name in TASKS if name != "xquad")
"""XQuAD has SQuAD's text to learn from."""
SYSTEMS = ("1-best", "16-best", "16-tree")
COLUMNS = (*(f"{system}:{lm}" for lm in ("g4", "d4") for system in SYSTEMS), "16-best:0-gram", "16-tree:0-gram")
GAINS = (
    ("1-best:g4", "vanilla"), ("1-best:d4", "vanilla"), ("16-best:g4", "vanilla"), ("16-best:d4", "vanilla"),
    ("16-tree:0-gram", "vanilla"), ("16-tree:g4", "16-tree:0-gram"), ("16-tree:d4", "16-tree:0-gram"),
)  # fmt: skip
"""Systems and what they are compared with; g4: the 4-gram of the first text, d4: of the task's."""


# ---------------------------------------------------------------- texts
def first_corpus(work: Path, data: Path) -> tuple[Path, Path]:
    """Documents that no task holds out, as JSONL: those to learn from, those to validate with."""
    made = work / "first.jsonl", work / "first.held-out.jsonl"

    def make() -> None:
        texts = list[str]()
        for name in SOURCES:
            rows = kim_tasks.mixed(read_lines(data / f"{name}.jsonl.xz"))
            rows = [row for row in rows if "books" in name or kim_tasks.held(row) not in kim_tasks.HELD]
            free = [row["text"][:DOCUMENT] for row in rows]
            texts += free[: 1 + int(np.searchsorted(np.cumsum([*map(len, free)]), LETTERS))]
        order = np.random.default_rng(0).permutation(len(texts)).tolist()
        for path, part in zip(reversed(made), (order[:HELD_OUT], order[HELD_OUT:]), strict=True):
            write_text(path, "".join(f"{json.dumps({'text': texts[number]})}\n" for number in part))

    stage(made[0], make)
    return made


def examples(work: Path, data: Path, task: Task) -> Path:
    """A folder of a task's texts: ``train`` and ``held-out`` to learn from, ``tuning`` and ``test`` as prompts."""
    made, chat = work / "texts" / task.name, PlainText(load_tokenizer(bundled.MODEL))

    def make() -> None:
        if task.kind == "continue":
            tokens = list[int]()
            for text in task.domain(data):
                tokens += [*chat.ids(text[:PASSAGE]), END]
                if len(tokens) >= TOKENS:
                    break
            every = Texts.of_corpus(np.array(tokens[:TOKENS]), WINDOW)
        else:
            train = kim_tasks.dialogues("summ/dialogsum-train.jsonl.xz", data)
            if task.name in QUESTIONS:
                train = kim_tasks.questions(QUESTIONS[task.name], lambda title: True, 99, data)
            pairs = ((chat.prompt([item.prompt]), chat.ids(item.references[0])) for item in train)
            chosen = list(islice((pair for pair in pairs if len(pair[0]) <= MOST_PROMPT), EXAMPLES))
            every = Texts.of_rows([[*one, *other, END] for one, other in chosen], [len(one) for one, _ in chosen])
        learnt = len(every) * 24 // 25
        parts = {"train": every.chosen(range(learnt)), "held-out": every.chosen(range(learnt, len(every)))}
        for name, found, count in (("tuning", task.tuning(data), kim.TUNING), ("test", task.test(data), kim.TEST)):
            rows, _ = kim_tasks.chosen(task, found, count, set(), chat, MOST_PROMPT)
            asked = [row["tokens"][: row["prompt_tokens"]] for row in rows]
            parts[name] = Texts.of_rows(asked, [len(prompt) for prompt in asked])
        made.mkdir(parents=True, exist_ok=True)
        for name, texts in parts.items():
            texts.save(made / f"{name}.npz")
        np.save(made / "corpus.npy", parts["train"].corpus(END, 3))

    stage(made / "corpus.npy", make)
    return made


# ---------------------------------------------------------------- models
def blockwise(work: Path, data: Path, heads: int) -> Path:
    """The bundled model after it has learnt the first text together with so many new heads."""
    made, texts = work / f"{heads}-heads", first_corpus(work, data)
    vocabulary = ("--tokenizer", bundled.TOKENIZER)
    for path in texts:
        ids = path.with_suffix(".npy")
        stage(ids, partial(latticebpd, "train encode", path, *vocabulary, "-o", ids))
    learnt, held_out = (path.with_suffix(".npy") for path in texts)
    about = ("--validation", held_out, "--model", bundled.MODEL, JOINT, FIRST, f"--num-heads {heads} -o", made)
    stage(made / "heads.json", partial(latticebpd, "train heads", learnt, *about))
    return made


def fine_tuned(work: Path, data: Path, heads: int, task: Task) -> Path:
    """The model and its heads after they have learnt a task."""
    made, first, texts = work / f"{heads}-heads-{task.name}", blockwise(work, data, heads), examples(work, data, task)
    batch = f"--batch-size {8 if task.kind == 'continue' else 16}"
    about = ("--validation", texts / "held-out.npz", "--model", first, JOINT, TASK, batch, "-o", made)
    stage(made / "heads.json", lambda: latticebpd("train heads", texts / "train.npz", *about))
    return made


def ngram_models(work: Path, data: Path, task: Task) -> dict[str, fst.NgramModel]:
    """4-grams of the first text, and of the task's."""
    found = {}
    for name, corpus in (("g4", work / "first.npy"), ("d4", examples(work, data, task) / "corpus.npy")):
        made = corpus.with_suffix(".fst")
        about = ("--tokenizer", bundled.TOKENIZER, f"--order 4 --end-of-text {END} -o", made)
        stage(made, partial(latticebpd, "lm train", corpus, *about))
        found[name] = fst.NgramModel.load(made)
    return found


# ---------------------------------------------------------------- counts
def counts_of(work: Path, data: Path, heads: int, task: Task) -> dict[str, list[dict[str, Any]]]:
    """Of every test text the calls of all systems and the mean entropies of heads; of the model its perplexity."""
    model, texts = fine_tuned(work, data, heads, task), examples(work, data, task)
    lattices = {part: model / f"{part}.npz" for part in ("tuning", "test")}
    sizes = f"-k {kim.K} --context {kim.CONTEXT} --max-prompt-tokens {kim.CONTEXT} --max-new-tokens {kim.NEW_TOKENS} -o"
    for path in lattices.values():
        stage(path, partial(latticebpd, "lattices --model", model, "--prompts", texts / path.name, sizes, path))
    tuned = kim.tuned_models([lattices["tuning"]], ngram_models(work, data, task), dict.fromkeys(("g4", "d4"), SYSTEMS))
    test = LatticeSet.load(lattices["test"])
    rows = [
        {"heads": heads} | one | {f"h{head}": "" for head in range(1, 10)} | other
        for one, other in zip(
            kim.compared(task.name, test, tuned, COLUMNS)[0], kim.entropies(task.name, test)[0], strict=True
        )
    ]
    log = [row for row in read_lines(model / "training-log.jsonl") if "validation" in row]
    about = {"heads": heads, "task": task.name, "perplexity": log[-1]["validation"]["base_perplexity"]}
    return {"texts": rows, "models": [about]}


# ---------------------------------------------------------------- tables
@dataclass(frozen=True, eq=False)
class RecipeCounts(Counts):
    """The counts of the models with so many heads."""

    heads: int = HEADS[-1]

    def rows(self, name: str) -> list[dict[str, str]]:
        path = self.folder / ("kim-recipe-models.csv" if name == "models" else "kim-recipe.csv")
        return [row for row in read_csv(path) if row["heads"] == str(self.heads)]


def efficiency_lines(every: Mapping[int, RecipeCounts]) -> list[list[str]]:
    """By task: perplexity, block efficiency and the oracle's of the models with 3, 6 and 9 heads."""
    tasks = every[HEADS[-1]].tasks
    perplexities = [{row["task"]: row["perplexity"] for row in counts.rows("models")} for counts in every.values()]
    return [
        [
            TITLES[task],
            *(f"{float(each[task]):.1f}" for each in perplexities),
            *(valued(counts.efficiency(task, system)) for system in ("vanilla", "oracle") for counts in every.values()),
        ]
        for task in tasks
    ]


def gain_lines(counts: Counts) -> list[list[str]]:
    """By task, and over the texts of all: what rescoring, and trees, gain, in %."""
    return [[TITLES[task], *(gained(counts.gain(task, *pair)) for pair in GAINS)] for task in (*counts.tasks, "all")]


def correlation_lines(counts: Counts) -> list[list[str]]:
    """Pearson's r across tasks."""
    means, efficiencies = entropies(counts)
    lines = [
        [
            f"{name}; block efficiency",
            correlation(zip(([measure(task) for task in each] for each in means), efficiencies, strict=True)),
        ]
        for name, measure in QUANTITIES.items()
    ]
    for pair in GAINS:
        sums = [
            [counts.column(name, task)[drawn].sum(axis=1) for name in ("vanilla", *pair)]
            for task, drawn in draws(counts)
        ]
        _, own, other = np.array(sums).transpose(1, 2, 0)
        lines.append(
            [f"block efficiency; gain of {named(pair)}", correlation(zip(efficiencies, other / own, strict=True))]
        )
    return lines


def named(pair: tuple[str, str]) -> str:
    """A gain, as tables have it."""
    return f"{pair[0]} over {pair[1]}"


@rc_context(STYLE)
def figure(counts: Counts) -> Figure:
    """What rescoring gains, and h_max, against block efficiency, task by task."""
    drawn = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    means, efficiencies = (each[0] for each in entropies(counts))
    for number, pair in enumerate(GAINS[:4]):
        middle, low, high = np.array([counts.gain(task, *pair) for task in counts.tasks]).T
        color = SERIES[number].light
        left.errorbar(
            efficiencies, middle, (middle - low, high - middle), fmt=MARKERS[number], color=color, label=named(pair)
        )
    left.set(xlabel="block efficiency", ylabel="gain, %")
    left.legend(fontsize=7)
    peaks = [h_max(each)[0] for each in means]
    right.plot(peaks, efficiencies, MARKERS[0], color=SERIES[0].light, linestyle="")
    for peak, efficiency, task in zip(peaks, efficiencies, counts.tasks, strict=True):
        right.annotate(TITLES[task], (peak, efficiency), xytext=(4, 3), textcoords="offset points", fontsize=7)
    right.set(xlabel="h_max", ylabel="block efficiency", xlim=(0.5, 10.5))
    return drawn


def show(folder: Path) -> None:
    every = {heads: RecipeCounts(folder, NAMES, heads) for heads in HEADS}
    counts = every[HEADS[-1]]
    head = [f"{what}, h={heads}" for what in ("perplexity", "block efficiency", "oracle") for heads in HEADS]
    table("Table 1 and 10 in small", ("task", *head), efficiency_lines(every))
    table("gains with 9 heads, %", ("task", *map(named, GAINS)), gain_lines(counts))
    print(f"\nentropies, nats\n\n{table_entropy(counts)}")
    table("", (f"across {len(counts.tasks)} tasks", "r"), correlation_lines(counts))
    figure(counts).savefig(folder / "kim-recipe.png", dpi=150)


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--data", type=Path, help="folder of the data that kim_tasks.py names")
    parser.add_argument("--work", type=Path, help="folder of all stages' results")
    parser.add_argument("--only", nargs=2, metavar=("HEADS", "TASK"), help="count one model, and write no results")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of counts and figure")
    given = parser.parse_args()
    if (given.data is None) != (given.work is None):
        parser.error("expected --data and --work, or neither for the tables of existing counts")
    if given.work is not None:
        asked = [(int(given.only[0]), given.only[1])] if given.only else product(HEADS, NAMES)
        parts = [
            stored(
                given.work / "counts" / f"{heads}-{name}.json",
                partial(counts_of, given.work, given.data, heads, TASKS[name]),
            )
            for heads, name in asked
        ]
        if given.only:
            return
        for name, kind in (("kim-recipe", "texts"), ("kim-recipe-models", "models")):
            write_csv(given.results / f"{name}.csv", [row for part in parts for row in part[kind]], digits=6)
    show(given.results)


if __name__ == "__main__":
    main()
