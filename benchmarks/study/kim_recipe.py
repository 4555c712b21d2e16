"""Kim 2024's own recipe in small: a model and its heads learn together, and are fine-tuned together on each task.

    python -m benchmarks.study.kim_recipe                            # tables and the figure of the committed counts
    python -m benchmarks.study.kim_recipe --data DIR --work WORK     # the same from scratch; resumes

SmolLM2-135M-Instruct learns each task together with 3, 6 and 9 heads, by the joint loss; the heads begin as the
package's.  *Own* heads learn a task by themselves, from what the frozen model writes after prompts of its training
part.  Every model writes greedily after the prompts of its task, those of `kim.py`; a 4-gram of general text, and one
of the task's, rescore its drafts at weights tuned on other texts of the task.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

import fst
from benchmarks.common import grouped, latticebpd, options, read_csv, read_lines, run, stage, stored, table, write_csv
from benchmarks.decodes import RESULTS, fewer_heads
from benchmarks.smollm2.make import END, LATER, MODEL
from benchmarks.study import kim, kim_tables, kim_tasks
from benchmarks.study.kim_tasks import Task
from latticebpd import BlockwiseLM, LatticeSet
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.lattices.texts import Texts
from latticebpd.models.catalogue import resolved
from latticebpd.models.chat import ChatTemplate
from latticebpd.report.theme import MARKERS, SERIES, STYLE
from lm_training.data.sequences import load_distilled

HEADS, OWN, OWN_NAMES = (3, 6, 9), "own", ("squad", "dialogsum", "code")
NAMES = ("lambada", "squad", "policyqa", "dialogsum", "code", "news")
LEARNT = {
    "squad": partial(kim_tasks.questions, kim_tasks.SQUAD_TRAIN, lambda title: True, 99),
    "policyqa": partial(kim_tasks.questions, kim_tasks.POLICY_DEV, lambda title: True, 99),
    "dialogsum": partial(kim_tasks.dialogues, "summ/dialogsum-train.jsonl.xz"),
}
"""Prompts and answers to learn from; other tasks learn the text of their kind."""
WINDOW, TOKENS, PASSAGE, EXAMPLES, ASKED = 192, 300_000, 4000, 4000, 40
"""Tokens of a text that is cut into windows; of a task's text, and letters of one of its documents, at most; prompts
with answers, at most; held-out prompts whose answers weights are tuned on, since these are short."""
JOINT = "--warm-start --fine-tune --objective joint --precision bfloat16 --learning-rate 1e-3 --base-learning-rate 1e-4"
UPDATES = "--steps 40 --batch-size 8 --warmup-steps 4 --validation-every 40 --checkpoint-every 10 --serving-prompts 0"
WEIGHT = "0.1"
"""Of each head's loss. With 1, the paper's, 40 updates leave DialogSum's summaries as runs of the speakers' names."""
PROMPTS, HELD_OUT, OTHER_PARTS = 1200, 64, range(max(kim_tasks.HELD) + 1, 25)
"""Of own heads: prompts of a task, at most, and those of them that are held out; parts of documents with no others."""
WRITING = f"--model {MODEL} --max-new-tokens {kim.NEW_TOKENS} --weights gguf --shard-prompts 256 --batch-size 32 -o"
STATES = "--layers 26 --shard-texts 64 --batch-tokens 2048"
LEARNING = (
    f"--warm-start --head-weights 1,{LATER} --learning-rate 3e-4 --steps 120 --batch-size 40 --labels model "
    "--label-temperature 0.5 --weight-decay 0.3 --precision bfloat16 --warmup-steps 10 --validation-every 30 "
    "--checkpoint-every 30 --serving-prompts 0"
)
SYSTEMS = ("1-best", "16-best", "16-tree")
COLUMNS = (*(f"{system}:{lm}" for lm in ("g4", "d4") for system in SYSTEMS), "16-best:0-gram", "16-tree:0-gram")
OWN_SYSTEMS = ("vanilla", "1-best:g4", "16-best:g4", "16-tree:0-gram", "16-tree:g4", "oracle")
GAINS = (
    ("1-best:g4", "vanilla"), ("1-best:d4", "vanilla"), ("16-best:g4", "vanilla"), ("16-best:d4", "vanilla"),
    ("16-tree:0-gram", "vanilla"), ("16-tree:g4", "16-tree:0-gram"), ("16-tree:d4", "16-tree:0-gram"),
)  # fmt: skip
"""Systems and what they are compared with; g4: the general 4-gram, d4: the task's."""


# ---------------------------------------------------------------- texts and models
def save_prompts(work: Path, data: Path, task: Task, folder: Path) -> None:
    """Those of `kim.py`'s tuning and test texts of a task."""
    asked, each = Texts.load(kim.prompts(work, data)).prompts(), kim.TUNING + kim.TEST
    first = list(kim_tasks.TASKS).index(task.name) * each
    folder.mkdir(parents=True, exist_ok=True)
    for name, part in (("tuning", range(kim.TUNING)), ("test", range(kim.TUNING, each))):
        asked.chosen(range(first + part.start, first + part.stop)).save(folder / f"{name}.npz")


def examples(work: Path, data: Path, task: Task) -> Path:
    """A folder of a task's texts: ``train`` and ``held-out`` to learn from, ``tuning`` and ``test`` as prompts."""
    path = work / "texts" / task.name

    def make() -> None:
        chat = ChatTemplate(kim.tokenizer(), None)
        if task.name in LEARNT:
            pairs = ((chat.prompt([item.prompt]), chat.ids(item.references[0])) for item in LEARNT[task.name](data))
            chosen = list(islice((pair for pair in pairs if len(pair[0]) <= kim_tasks.MOST_PROMPT), EXAMPLES))
            every = Texts.of_rows([[*one, *other, END] for one, other in chosen], [len(one) for one, _ in chosen])
        else:
            documents = ([*chat.ids(text[:PASSAGE]), END] for text in task.domain(data))
            tokens = islice(chain.from_iterable(documents), TOKENS)
            every = Texts.of_corpus(np.fromiter(tokens, int), WINDOW)
        learnt = len(every) * 24 // 25
        held_out = every.chosen(range(learnt, len(every)))
        save_prompts(work, data, task, path)
        if task.name in LEARNT:
            held_out.prompts().chosen(range(ASKED)).save(path / "tuning.npz")
        held_out.save(path / "held-out.npz")
        every.chosen(range(learnt)).save(path / "train.npz")

    stage(path / "train.npz", make)
    return path


def first_heads(work: Path, heads: int) -> Path:
    """The model and the first of the package's heads."""
    path = work / f"{heads}-heads"

    def make() -> None:
        package = load_blockwise(MODEL)
        kept = fewer_heads(package.heads, heads)
        BlockwiseLM(package.base, kept, package.tokenizer_fingerprint).save_pretrained(path)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copyfile(Path(resolved(MODEL)) / name, path / name)

    stage(path / "latticebpd/heads.json", make)
    return path


def fine_tuned(work: Path, data: Path, heads: int, task: Task) -> Path:
    """The model and so many heads after they have learnt a task together."""
    directory, texts = work / f"{heads}-heads-{task.name}", examples(work, data, task)
    weights = f"--head-weights {','.join([WEIGHT] * (heads - 1))}"
    about = ("--validation", texts / "held-out.npz", "--model", first_heads(work, heads), JOINT, weights, UPDATES)
    learn = partial(latticebpd, "train heads", texts / "train.npz", *about, "-o", directory)
    stage(directory / "latticebpd/heads.json", learn)
    return directory


def own_text(work: Path, data: Path, task: Task) -> Path:
    """A folder of what the frozen model writes after prompts that share no eight words in a row with a measured one."""
    directory = work / "own" / task.name
    asked, written = directory / "asked.npz", directory / "written"

    def ask() -> None:
        path, sources = kim_tasks.DOCUMENTS.get(task.name, ("", ("",)))
        items = LEARNT.get(task.name, partial(kim_tasks.documents, path, OTHER_PARTS, sources))
        measured = (item.prompt for part in (task.tuning, task.test) for item in part(data))
        known, chat = set[str]().union(*map(kim_tasks.shingles, measured)), ChatTemplate(kim.tokenizer(), None)
        rows, _ = kim_tasks.chosen(task, items(data), PROMPTS, known, chat)
        Texts.of_rows([row["tokens"] for row in rows], [row["prompt_tokens"] for row in rows]).prompts().save(asked)

    def write() -> None:
        latticebpd("distill", stage(asked, ask), WRITING, written)
        every = load_distilled(written)
        every.chosen(range(HELD_OUT)).save(directory / "held-out.npz")
        every.chosen(range(HELD_OUT, len(every))).save(directory / "train.npz")
        save_prompts(work, data, task, directory)

    stage(directory / "train.npz", write)
    return directory


def own_heads(work: Path, data: Path, task: Task) -> Path:
    """The frozen model and the package's heads after these have learnt a task."""
    texts, model = own_text(work, data, task), first_heads(work, HEADS[-1])
    learnt, held_out, directory = texts / "train.npz", texts / "held-out.npz", texts / "heads"

    def make() -> None:
        latticebpd("train hidden", learnt, held_out, "--model", model, STATES)
        latticebpd("train heads", learnt, "--validation", held_out, "--model", model, LEARNING, "-o", directory)

    stage(directory / "latticebpd/heads.json", make)
    return directory


def ngram_models(work: Path, data: Path, task: Task) -> dict[str, fst.NgramModel]:
    """4-grams of general text, and of the task's."""
    general = kim.ngram_model(work, kim.general_corpus(work, data), 4, max_ngrams=kim.GENERAL_NGRAMS)
    domain = kim.ngram_model(work, kim.domain_corpus(work, data, task), 4, min_counts=(1, 1, 1, 2))
    return {"g4": fst.NgramModel.load(general), "d4": fst.NgramModel.load(domain)}


# ---------------------------------------------------------------- counts
def counts_of(work: Path, data: Path, heads: int | str, task: Task) -> dict[str, list[dict[str, Any]]]:
    """Of every test text the calls of all systems and the mean entropies of heads; of the model its perplexity."""
    if isinstance(heads, int):
        model, texts = fine_tuned(work, data, heads, task), examples(work, data, task)
    else:
        model, texts = own_heads(work, data, task), own_text(work, data, task)
    lattices = {part: model / f"{part}.npz" for part in ("tuning", "test")}
    sizes = f"-k {kim.K} --context {kim.CONTEXT} --max-prompt-tokens {kim.CONTEXT} --max-new-tokens {kim.NEW_TOKENS} -o"
    for path in lattices.values():
        asked = ("--prompts", texts / path.name)
        stage(path, partial(latticebpd, "lattices --weights torch --model", model, *asked, sizes, path))
    tuned = kim.tuned_models([lattices["tuning"]], ngram_models(work, data, task), dict.fromkeys(("g4", "d4"), SYSTEMS))
    test = LatticeSet.load(lattices["test"])
    calls, entropies = kim.compared(task.name, test, tuned, COLUMNS)[0], kim.entropies(task.name, test)[0]
    empty = {f"h{head}": "" for head in range(1, 10)}
    rows = [{"heads": heads} | one | empty | other for one, other in zip(calls, entropies, strict=True)]
    *_, last = (row["validation"] for row in read_lines(model / "training-log.jsonl") if "validation" in row)
    return {"texts": rows, "models": [{"heads": heads, "task": task.name, "perplexity": last["base_perplexity"]}]}


# ---------------------------------------------------------------- tables
@dataclass(frozen=True, eq=False)
class RecipeCounts(kim_tables.Counts):
    """The counts of the models with so many heads."""

    heads: int | str = HEADS[-1]

    def rows(self, name: str) -> list[dict[str, str]]:
        path = self.folder / ("kim-recipe-models.csv" if name == "models" else "kim-recipe.csv")
        return [row for row in read_csv(path) if row["heads"] == str(self.heads)]


def counted(folder: Path) -> dict[int, RecipeCounts]:
    """The counts of every number of heads that has some."""
    every = {heads: RecipeCounts(folder, NAMES, heads) for heads in HEADS}
    return {heads: counts for heads, counts in every.items() if counts.calls}


def efficiency_lines(every: Mapping[int, RecipeCounts]) -> list[list[str]]:
    """By task: held-out perplexities, block efficiencies by number of heads and of those they began as, oracles'."""
    largest, lines = every[max(every)], []
    frozen = kim_tables.Counts(largest.folder, NAMES).earlier
    asked = [*((each, "vanilla") for each in (*every.values(), frozen)), (largest, "oracle"), (frozen, "oracle")]
    models = grouped((row for counts in every.values() for row in counts.rows("models")), "task")
    for task in largest.tasks:
        line = [kim_tables.TITLES[task], " / ".join(f"{float(row['perplexity']):.1f}" for row in models[task])]
        lines.append(line + [kim_tables.valued(counts.efficiency(task, system)) for counts, system in asked])
    return lines


def own_counts(folder: Path) -> tuple[kim_tables.Counts, RecipeCounts]:
    """With the package's heads, of the same tasks, and with own heads."""
    return kim_tables.Counts(folder, OWN_NAMES), RecipeCounts(folder, OWN_NAMES, OWN)


def own_lines(folder: Path) -> list[list[str]]:
    """By task and over all: block efficiencies with the package's heads, with own heads, and what these gain."""
    general, own = own_counts(folder)

    def cell(task: str, system: str) -> str:
        (tokens, calls), others = ([each.column(name, task) for name in ("tokens", system)] for each in (own, general))
        gain = kim_tables.gained(kim_tables.percent(kim_tables.pooled(tokens, calls, others)))
        return f"{others[0].sum() / others[1].sum():.2f}, {tokens.sum() / calls.sum():.2f}: {gain}"

    return [[kim_tables.TITLES[task], *(cell(task, each) for each in OWN_SYSTEMS)] for task in (*own.tasks, "all")]


def gain_table(counts: kim_tables.Counts) -> str:
    """By task, and over the texts of all: what rescoring, and trees, gain, in %."""
    head = [*map(" over ".join, GAINS)]
    return counts.table(head, lambda task: (kim_tables.gained(counts.gain(task, *pair)) for pair in GAINS))


@rc_context(STYLE)
def figure(counts: kim_tables.Counts) -> Figure:
    """What rescoring gains, and h_max, against block efficiency, task by task."""
    drawn = Figure(figsize=(8.4, 3.6), layout="constrained")
    left, right = drawn.subplots(1, 2)
    means, efficiencies = (each[0] for each in kim_tables.entropies(counts))
    for number, pair in enumerate(GAINS[:4]):
        middle, low, high = np.array([counts.gain(task, *pair) for task in counts.tasks]).T
        style = {"fmt": MARKERS[number], "color": SERIES[number].light, "label": " over ".join(pair)}
        left.errorbar(efficiencies, middle, (middle - low, high - middle), **style)
    left.set(xlabel="block efficiency", ylabel="gain, %")
    drawn.legend(loc="outside lower center", ncols=4, fontsize=7)
    kim_tables.draw_peaks(right, counts.tasks, means, efficiencies)
    return drawn


def show(folder: Path) -> None:
    every = counted(folder)
    counts = every[HEADS[-1]]
    head = ("task", "perplexities", *(f"h={heads}" for heads in every), "frozen, h=9", "oracle (k=16), h=9", "frozen")
    table("Tables 1 and 10 in small", head, efficiency_lines(every))
    tables = (gain_table(counts), kim_tables.table_entropy(counts), kim_tables.table_correlations(counts))
    print("", "gains with 9 heads, %, entropies, nats, and correlations", *tables, sep="\n\n")
    figure(counts).savefig(folder / "kim-recipe.png", dpi=150)
    table("The package's heads, own heads", ("task", *OWN_SYSTEMS), own_lines(folder))
    print("", "gains with either, %", *map(gain_table, own_counts(folder)), sep="\n\n")


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of counts and figure")
    args = kim.folders(parser)
    if args.work is not None:
        parts = []
        for heads, name in (*product(HEADS, NAMES), *product([OWN], OWN_NAMES)):
            count = partial(counts_of, args.work, args.data, heads, kim_tasks.TASKS[name])
            parts.append(stored(args.work / "counts" / f"{heads}-{name}.json", count))
        for name, kind in (("kim-recipe", "texts"), ("kim-recipe-models", "models")):
            write_csv(args.results / f"{name}.csv", [row for part in parts for row in part[kind]], digits=6)
    show(args.results)


if __name__ == "__main__":
    run(main)
