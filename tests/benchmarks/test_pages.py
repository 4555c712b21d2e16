"""Every page's tables of measurements are made again from committed rows, cell by cell, here or by the test that is
named; the others hold no measurement of their own."""

from __future__ import annotations

import itertools
import json
import lzma
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import (
    bench_jacobi,
    bench_lm_training,
    bench_precision,
    bench_rescoring,
    bench_word_lattices,
    gad_recipe,
    pictures,
)
from benchmarks.common import grouped, pooled, read_csv, spread
from benchmarks.hosts import vllm
from benchmarks.qwen import peers
from benchmarks.qwen.pass_at_1 import lines_of as pass_lines
from benchmarks.qwen.speed import lines_of as speed_lines
from benchmarks.serving import editor
from benchmarks.smollm2 import amounts, beams, drafters, trees
from benchmarks.structured.forced import lines_of as forced_lines
from benchmarks.structured.free_text import lines_of as free_lines
from benchmarks.structured.parts import lines_of as part_lines
from benchmarks.structured.peers import lines_of as call_peer_lines
from benchmarks.structured.schemas import instance_lines, text_lines
from benchmarks.structured.tool_calls import lines_of as call_lines
from benchmarks.study import kim_recipe, kim_tables, stern, superresolution
from tests.helpers.markdown_tables import markdown_tables

ROOT = Path(__file__).parents[2]
SMOLLM2, STUDY, ENGINE, QWEN, STRUCTURED, HOSTS, SERVING = (
    ROOT / "benchmarks" / name / "results"
    for name in ("smollm2", "study", "engine", "qwen", "structured", "hosts", "serving")
)
RESULTS = ROOT / "benchmarks" / "results"
DEMO = ROOT / "benchmarks" / "bundled" / "results" / "demo.csv"
Cells = list[list[str | None]]
"""A table without its head; None where a cell is not of committed rows, such as a paper's number."""
TASKS = ("mt_bench", *("translation", "summarization", "qa", "math_reasoning", "rag"))


def shown(value: float, low: float, high: float, places: int = 2) -> str:
    return f"{value:.{places}f} ({low:.{places}f}–{high:.{places}f})"


# ---------------------------------------------------------------- SmolLM2: counts text by text
@cache
def replays(name: str = "trees.csv") -> dict[tuple[str, str], np.ndarray]:
    """``[texts, (tokens, calls, verified)]`` by texts and system."""
    counts = trees.counts_of(read_csv(SMOLLM2 / name), "texts", "system")
    return {key: np.array([each[text] for text in sorted(each)]) for key, each in counts.items()}


def efficiency(counts: np.ndarray) -> float:
    return float(counts[:, 0].sum() / counts[:, 1].sum())


SYSTEMS = {
    "static tree by mean accuracies of ranks": "static {}",
    "tree, no language model": "{}-tree:0-gram",
    "tree, 4-gram, one weight": "{}-tree",
    "the same, 16 arcs per slot": "{}-tree, k = 16",
    "copies": "{}-copies",
    "copies + tree, 4-gram": "copies+{}-tree",
    "calibrated: heads alone": "{} heads alone",
    "+ n-gram model": "{} + n-gram model",
    "+ its orders": "{} + its orders",
    "+ the text so far": "{} + the text so far",
    "+ copies": "{} calibrated, heads' slots",
    "+ copies after the last slot: all": "{} + copies: calibrated",
    "all less the n-gram model": "{} less n-gram model",
    "all less its orders": "{} less its orders",
    "all less heads": "{} less heads",
    "all less weights of matches": "{} less weights of matches",
    "all less these and probabilities": "{} less both",
    "all, 16 arcs per slot": "{} calibrated, k = 16",
}
"""Of the page's rows, as ``trees.csv`` calls them."""


def tree_parts() -> Cells:
    def cell(system: str) -> str:
        asked, held = (efficiency(replays()[of, system]) for of in ("spec-bench", "held-out"))
        return f"{asked:.3f} ({held:.3f})"

    return [[name, *(cell(form.format(size)) for size in trees.SIZES)] for name, form in SYSTEMS.items()]


QWEN_SYSTEMS = ("tree, no language model", "tree, 4-gram, one weight", "copies", "copies + tree, 4-gram")
QWEN_SYSTEMS += ("calibrated: heads alone", "+ n-gram model", "+ the text so far")
QWEN_SYSTEMS += ("+ copies after the last slot: all", "all less the n-gram model", "all less heads")
QWEN_GAINS = {
    "4-gram, on sixteen paths": ("16-best", "16-best:0-gram"),
    "4-gram, on trees of 16 nodes, one weight": ("16-tree", "16-tree:0-gram"),
    "4-gram, in calibrated trees of 16": (f"16 {trees.ALL}", "16 less n-gram model"),
    "heads, in calibrated trees of 16": (f"16 {trees.ALL}", "16 less heads"),
    "calibration, over copies + tree of 16": (f"16 {trees.ALL}", "copies+16-tree"),
    "calibration, over one weight and no text, 16 nodes": (f"16 {trees.ALL}", "16-tree"),
}


@cache
def qwen_replays(size: str) -> dict[str, np.ndarray]:
    counts = trees.counts_of(read_csv(QWEN / f"trees-{size}.csv"), "system")
    return {name: np.array([each[text] for text in sorted(each)]) for (name,), each in counts.items()}


def qwen_tree_parts() -> Cells:
    def cell(system: str) -> str:
        one, other = (efficiency(qwen_replays(size)[system]) for size in ("0.5b", "1.5b"))
        return f"{one:.2f} ({other:.2f})"

    return [[name, *(cell(SYSTEMS[name].format(size)) for size in trees.SIZES)] for name in QWEN_SYSTEMS]


def qwen_tree_gains() -> Cells:
    rows = [[qwen_replays(size)[name] for size in ("0.5b", "1.5b") for name in pair] for pair in QWEN_GAINS.values()]
    return [[name, trees.gain(*row[:2]), trees.gain(*row[2:])] for name, row in zip(QWEN_GAINS, rows, strict=True)]


def tree_tasks() -> Cells:
    """Ten questions of each category, in the file's order: MT-Bench's eight categories come first."""
    parts = np.split(np.arange(130), [80, 90, 100, 110, 120])
    names = ("vanilla", "16-best", "16-tree", "16-copies", "copies+16-tree", *(f"{n} {trees.ALL}" for n in (16, 64)))
    systems = [replays()["spec-bench", name] for name in (*names, "oracle")]
    return [[None, *(f"{efficiency(each[part]):.2f}" for each in systems)] for part in parts]


FORWARD, CONDITIONED = amounts.HEADS.values()
COMPARED = [*amounts.COMPARED], [*amounts.COMPARED.values()]
WALKED = ("walk", "16 tree", "16 tree, 4-gram", "16 drafter calibrated", "16 calibrated, no text", "16 calibrated")
GAINED = [f"{one} over {other}" for one, other in amounts.STEPS.values()]


@cache
def drafted(name: str = "drafters.csv") -> drafters.Counts:
    return drafters.counted(read_csv(SMOLLM2 / name))


def by_amount(lines_of: Callable[[drafters.Counts, amounts.Names], list[list[str]]], order: Sequence[str]) -> Cells:
    """The named lines of the heads of both kinds, one after the other."""
    lines = (
        {line[0]: line[1:] for line in lines_of(drafted("amounts.csv"), names)} for names in (FORWARD, CONDITIONED)
    )
    return [[None, None, *each[name]] for each in lines for name in order]


def unnamed(lines: Sequence[Sequence[str]], names: int = 1) -> Cells:
    """Lines whose first cells the page words otherwise."""
    return [[None] * names + [*line[names:]] for line in lines]


def by_strength(counts: drafters.Counts, names: amounts.Names) -> Cells:
    """Tokens per call of a walk and of trees of 16 nodes; what search, the 4-gram in two ways and the text gain."""
    rows, steps = Cells(), [*amounts.STEPS.values()][:4]
    for name in names:
        per_call = (f"{efficiency(counts[name, each]):.3f}" for each in (WALKED[0], WALKED[1], *WALKED[4:]))
        rows.append([None, *per_call, *(trees.gain(counts[name, one], counts[name, other]) for one, other in steps)])
    return rows


TAUGHT = (drafters.TIED, *drafters.LEARNED)


def percents(one: str, other: str) -> list[str]:
    """What a system gains over another on each of the learned lattices."""
    pairs = ((efficiency(drafted()[name, each]) for each in (one, other)) for name in TAUGHT)
    return [f"{100 * (own / base - 1):.1f}".replace("-", "−") for own, base in pairs]


def equal_budgets() -> Cells:
    """Walks of eight tokens and exact trees of as many, and what trees gain over walks and over beams of 16 to 128."""
    per_call = ([f"{efficiency(drafted()[name, each]):.3f}" for name in TAUGHT] for each in ("walk", "8 tree"))
    beams = (percents(f"{size} tree", f"{size} beam") for size in (16, 64, 128))
    return [[None, *row] for row in zip(*per_call, percents("8 tree", "walk"), *beams, strict=True)]


def drafting_times() -> Cells:
    """Times of answers and of drafting, then of the search."""
    greedy, *lines = drafters.clock_lines(read_csv(SMOLLM2 / "drafters.speed.csv"))
    searched = drafters.search_lines(read_csv(SMOLLM2 / "drafters.search.csv"))
    joined = [[*line, *times[1:]] for line, times in zip(lines, searched, strict=True)]
    return unnamed([[greedy[0], greedy[1], *[""] * 6], *joined])


def heads(rows: Sequence[dict[str, str]]) -> list[str]:
    """Of heads 2 to 4 nats a label, and how often the label is first, and among the first 16."""
    shares = ([100 * float(row[name]) for name in ("top-1", "top-16")] for row in rows[:3])
    return [f"{float(row['nats']):.2f}, {a:.1f} / {b:.1f}" for row, (a, b) in zip(rows, shares, strict=False)]


def losses() -> Cells:
    """By loss: updates, tokens per call, and the heads."""
    lines = Cells()
    for (start, _), rows in grouped(read_csv(SMOLLM2 / "losses.csv"), "start", "loss").items():
        lines.append([start, None, rows[0]["updates"], f"{float(rows[0]['tokens per call']):.3f}", *heads(rows)])
    return lines


def on_a_gpu() -> Cells:
    """By run: nats a label of all heads, and the heads."""
    lines = Cells()
    for (start, tokens, _, decay), rows in grouped(
        read_csv(SMOLLM2 / "gpu.csv"), "heads", "tokens", "updates", "decay"
    ).items():
        lines.append([start, f"{int(tokens):,}", None, decay, f"{float(rows[0]['all']):.2f}", *heads(rows)])
    return lines


# ---------------------------------------------------------------- the engine beside its peers
def passes(name: str) -> Cells:
    """Medians of wall-clock and processor time, systems by name."""
    groups: dict[str, dict[int, list[tuple[float, float]]]] = {}
    for row in read_csv(ENGINE / name):
        times = (float(row["wall_ms"]), float(row["cpu_ms"]))
        groups.setdefault(row["system"], {}).setdefault(int(row["tokens"]), []).append(times)
    return [
        [each, *("{:.1f} ({:.1f})".format(*np.median(times, axis=0)) for _, times in sorted(groups[each].items()))]
        for each in sorted(groups)
    ]


MEASURED = ("tokens", "wall_ms", "same", "mib", "start")


@cache
def decodes(name: str, threads: str = "1") -> dict[tuple[str, str], Mapping[str, np.ndarray]]:
    """What was measured of every answer, and its task, by system and drafts."""
    by_system: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in sorted(read_csv(ENGINE / name), key=lambda row: int(row["question"])):
        if row["threads"] == threads:
            by_system.setdefault((row["system"], row["drafts"]), []).append(row)
    return {
        key: {column: np.array([float(row.get(column) or 0) for row in rows]) for column in MEASURED}
        | {"task": np.array([row["category"] if row["category"] in TASKS else TASKS[0] for row in rows])}
        for key, rows in by_system.items()
    }


def speed(answers: Mapping[str, np.ndarray], some: Any = ...) -> float:
    return float(1e3 * answers["tokens"][some].sum() / answers["wall_ms"][some].sum())


def answers(file: str = "answers.csv", peers: int | None = None) -> Cells:
    """Tokens a second with intervals over questions, and over the engine's greedy decoding; how many texts are those
    without drafts; memory and seconds to the first token.  peers: the first so many of `PEERS`; None: all."""
    own, rows = decodes(file), Cells()
    greedy = own[OWN[0]]
    for key in (*PEERS[:peers], *OWN):
        tokens, times = (own[key][name] for name in ("tokens", "wall_ms"))
        value, *ends = pooled(tokens, times, (greedy["tokens"], greedy["wall_ms"]))
        over = "1" if key == OWN[0] else f"{1 + value:.2f} ({1 + ends[0]:.2f}–{1 + ends[1]:.2f})"
        same = f"{own[key]['same'].sum():.0f} of {len(tokens)}" if key[1] else ""
        rest = (same, f"{own[key]['mib'].max():.0f}", f"{own[key]['start'][0]:.2f}")
        rows.append([None, shown(*pooled(tokens * 1e3, times), places=1), over, *rest])
    assert len(rows) == len(own)
    return rows


def other_processors() -> Cells:
    """Tokens a second on Zen 5, and over greedy decoding there; on Zen 3 with one thread and with two."""
    zen5 = dict(zip([*PEERS[:2], *OWN], answers("answers-zen5.csv", peers=2), strict=True))
    one, two, rows = decodes("answers-avx2.csv"), decodes("answers-avx2.csv", "2"), Cells()
    for key in [*PEERS, *PYTORCH, *OWN]:
        speeds = (shown(*pooled(1e3 * each[key]["tokens"], each[key]["wall_ms"]), places=1) if key in each else ""
                  for each in (one, two))  # fmt: skip
        rows.append([None, *zen5.get(key, [None, "", ""])[1:3], *speeds])
    assert len(rows) == len(one)
    return rows


def readme_calls() -> Cells:
    """Of the page of tool calls, in whole numbers."""
    (peer,) = call_peer_lines(read_csv(STRUCTURED / "peers-llama.csv"))
    greedy, *_, default = call_lines(read_csv(STRUCTURED / "bfcl-0.5b.csv"))
    own = [[None, f"{float(line[1]):.0f}", line[4]] for line in (greedy, default)]
    return [[None, f"{float(peer[2]):.0f}", ""], *own]


def qwen_answers() -> Cells:
    rows: Cells = []
    for size in ("0.5B", "1.5B"):
        packed = ROOT / f"benchmarks/qwen/answers/{size.lower()}.npz.xz"
        with np.load(BytesIO(lzma.decompress(packed.read_bytes()))) as file:
            lengths = file["lengths"]
        rows.append([size, f"{len(lengths):,}", f"{lengths.sum():,}", None])
    return rows


def qwen_heads() -> Cells:
    """Their shapes and sizes; the logs of their training were not kept."""
    folders = [ROOT / f"latticebpd/assets/qwen2.5-coder-{size}/latticebpd" for size in ("0.5b", "1.5b")]
    made = [json.loads((folder / "heads.json").read_text(encoding="utf-8")) for folder in folders]
    sizes = [f"{(folder / 'heads.safetensors').stat().st_size / 1e6:.1f} MB" for folder in folders]
    shapes = [f"{each['num_heads'] - 1}, {each['intermediate_size']}" for each in made]
    unknown = [None, None, None]
    return [
        [None, *shapes], [None, *(str(each["transition_size"]) for each in made)], unknown, [None, *sizes],
        *[unknown] * 5,
    ]  # fmt: skip


def pass_at_1() -> Cells:
    """Of each model's answers: systems, and how many functions are right."""
    sizes = {"0.5B": "pass-0.5b.csv", "1.5B": "pass-1.5b.csv"}
    return [[size, *line] for size, name in sizes.items() for line in pass_lines(read_csv(QWEN / name))]


def two_threads() -> Cells:
    """Tokens a second of both models with two threads, on the questions that llama.cpp has answered too."""
    columns = []
    for size in ("0.5b", "1.5b"):
        own, peer = (read_csv(QWEN / f"{name}-{size}-2.csv") for name in ("humaneval", "llama"))
        both = {row["question"] for row in own} & {row["question"] for row in peer}
        columns.append(pictures.speeds_of(*([row for row in rows if row["question"] in both] for rows in (own, peer))))
    return [[None, *(f"{value:.1f}" for value in row)] for row in zip(*columns, strict=True)]


def by_kind() -> Cells:
    """Times greedy by Spec-Bench's kinds of questions, for both models."""
    ratios = []
    for size in ("0.5b", "1.5b"):
        kinds = grouped(read_csv(QWEN / f"spec-bench-{size}.csv"), "kind")
        ratios.append({kind: float(speed_lines(rows)[-1][2].split()[0]) for kind, rows in kinds.items()})
    return [[kind, *(f"{each[kind]:.2f}" for each in ratios)] for kind in ratios[0]]


def sampled(results: Path, *models: str) -> Cells:
    """A line for each model and temperature."""
    lines: Cells = []
    for model, temperature in itertools.product(models, ("0.7", "1")):
        greedy, default = speed_lines(read_csv(results / f"sampled-{model}-{temperature}.csv"))
        lines.append([None, temperature, greedy[1], default[1], default[2], default[4]])
    return lines


def servers(rows: Path) -> Cells:
    return [
        [row["server"], row["clients"], f"{float(row['tokens']) / float(row['seconds']):.1f}",
         f"{float(row['first']):.2f}", f"{row['same']} of {row['answers']}"]
        for row in read_csv(rows)
    ]  # fmt: skip


def harness() -> Cells:
    """Processor seconds of all answers; speed-up over the first system; scores; answers that are the first system's."""
    by_system: dict[str, list[dict[str, str]]] = {}
    for row in read_csv(ENGINE / "harness.csv"):
        by_system.setdefault(row["system"], []).append(row)
    seconds = {name: sum(float(row["cpu_ms"]) for row in rows) / 1e3 for name, rows in by_system.items()}
    stock = seconds["transformers"]
    return [
        [None, f"{seconds[name]:.0f}", f"{stock / seconds[name]:.1f}×", f"{float(rows[0]['math_reasoning']):.3f}",
         f"{float(rows[0]['translation']):.1f}", f"{sum(int(row['same']) for row in rows)} of {len(rows)}"]
        for name, rows in by_system.items()
    ]  # fmt: skip


def tasks() -> Cells:
    counts = decodes("answers.csv")
    return [
        [None, *(f"{speed(counts[key], counts[key]['task'] == task):.0f}" for task in TASKS)]
        for key in (PEERS[0], *OWN)
    ]


def perplexities() -> Cells:
    """Of the same windows, float32 first."""
    nats: dict[str, list[float]] = {}
    for row in read_csv(ENGINE / "perplexity.csv"):
        nats.setdefault(row["system"], []).append(float(row["nats"]))
    values = {name: f"{np.exp(np.mean(each)):.2f}" for name, each in nats.items()}
    return [[weights, *(values.get(f"{library} {weights}", "") for library in LIBRARIES)] for weights in WEIGHTS]


LIBRARIES, WEIGHTS = ("latticebpd", "llama.cpp", "OpenVINO", "PyTorch"), ("float32", "Q8_0", "int8", "Q4_1", "Q4_0")
PEERS = (("llama.cpp Q4_0", ""), ("llama.cpp Q4_1", ""), ("OpenVINO int8", ""), ("OpenVINO int8", "prompt lookup"))
PYTORCH = tuple(
    ("PyTorch float32", drafts) for drafts in ("", "prompt lookup 3", "prompt lookup 5", "prompt lookup 10")
)
ANSWERS = ("", *(f"{size}-calibrated" for size in (2, 4, 16)), "default", "16-copies", "copies+16-tree")
OWN = [("latticebpd Q4_1", drafts) for drafts in ANSWERS]


def demo() -> Cells:
    rows = [(row["system"], *(int(row[name]) for name in ("tokens", "calls", "verified"))) for row in read_csv(DEMO)]
    return [
        [name, f"{tokens / calls:.3f}", f"{verified / calls:.1f}", str(calls)] for name, tokens, calls, verified in rows
    ]


# ---------------------------------------------------------------- the study
@cache
def translated() -> dict[tuple[str, int, str], dict[str, Any]]:
    return stern.measures(read_csv(STUDY / "stern.csv"))


def both(setting: str, k: int, rule: str) -> str:
    """BLEU / mean accepted block size."""
    row = translated().get((setting, k, rule))
    return "" if row is None else f"{row['BLEU']:.2f} / {row['accepted']:.2f}"


def stern_table() -> Cells:
    settings = ("regular", "distilled", "fine-tuned", "both", "both, ours")
    rules = {1: "greedy"}
    return [
        [str(k), *(both(each, k, rules.get(k, "exact")) for each in settings), *[None] * 4] for k in (1, 2, 4, 6, 8, 10)
    ]


def stern_rules() -> Cells:
    rules = ("exact", "top-2", "top-3", "at least 2", "at least 3")
    settings = [("fine-tuned", 2), ("fine-tuned", 4), ("fine-tuned", 10), ("both", 2), ("both", 4), ("both", 10)]
    settings += [("both, ours", 4), ("both, ours", 10)]
    return [[f"{each}, k = {k}", *(both(each, k, rule) for rule in rules)] for each, k in settings]


def stern_trees() -> Cells:
    kinds = [f"{nodes}-node tree, {kind}" for nodes in (8, 16) for kind in ("0-gram", "4-gram", "calibrated")]
    rows = Cells()
    for setting in ("distilled", "both", "both, ours"):
        own = [translated()[setting, 10, rule] for rule in ("exact", *kinds)]
        rows.append([f"{setting}, BLEU {own[0]['BLEU']:.2f}", *(spread(row, "accepted") for row in own)])
    return rows


def images(what: str, ks: Sequence[int], places: int = 2) -> Cells:
    measured = superresolution.measures(read_csv(STUDY / "superresolution.csv"))
    columns = [(base, rule) for base in ("frozen", "fine-tuned") for rule in ("exact", "distance 1", "distance 2")]
    return [[None, *(spread(measured[base, str(k), rule], what, places) for base, rule in columns)] for k in ks]


def rescorers() -> Cells:
    """Gains over vanilla drafts, on the texts of all tasks."""
    _, *rows = next(markdown_tables(kim_tables.table_rescorers(kim_tables.Counts(STUDY))))
    return [[None, *rows[-1][2:7]]]


def recipe_gains() -> Cells:
    """Of the models with nine heads."""
    _, *rows = next(markdown_tables(kim_recipe.gain_table(kim_recipe.counted(STUDY)[9])))
    return [*rows]


Table = Callable[[], Cells] | str
"""What makes it again; or the test that does, or `WORDS`."""
WORDS = "no measurement"


def rows_of(name: str, lines_of: Callable[[Sequence[Mapping[str, str]]], Any]) -> Table:
    """A table of the rows that the page's command writes."""
    return lambda: lines_of(read_csv(RESULTS / name))


def searches(number: int) -> Table:
    return rows_of("rescoring.csv", lambda rows: bench_rescoring.tables(rows)[number][1])


PAGES: dict[str, list[Table]] = {
    "README.md": [WORDS, pictures.lines_of_speeds, readme_calls],
    "benchmarks/README.md": [WORDS] * 6,  # quotes the other pages
    "benchmarks/bundled/make.md": [demo],
    "benchmarks/engine/engine.md": [lambda: passes("passes.csv"), perplexities, WORDS],
    "benchmarks/engine/machines.md": [
        lambda: passes("passes-zen5.csv"),
        lambda: passes("passes-avx2.csv"),
        lambda: passes("passes-random.csv"),
    ],
    "benchmarks/engine/servers.md": [
        lambda: servers(SERVING / "throughput.csv"),
        lambda: servers(ENGINE / "throughput.csv"),
    ],
    "benchmarks/engine/harness.md": [harness],
    "benchmarks/gad_recipe.md": [
        lambda: gad_recipe.table(read_csv(STUDY / "gad-recipe.csv")),
        lambda: gad_recipe.table(read_csv(STUDY / "gad-recipe-windows.csv")),
    ],
    "benchmarks/jacobi.md": [rows_of("jacobi.csv", bench_jacobi.lines_of)],
    "benchmarks/lm_training.md": [rows_of("lm_training.csv", bench_lm_training.lines_of)],
    "benchmarks/precision.md": [
        rows_of(f"{name}.csv", bench_precision.lines_of) for name in ("precision", "precision-zen3")
    ],
    "benchmarks/qwen/speed.md": [
        lambda: speed_lines(read_csv(QWEN / "beside-0.5b.csv")),
        lambda: peers.lines_of(read_csv(QWEN / "llama-server-0.5b.csv")),
        lambda: speed_lines(read_csv(QWEN / "beside-1.5b.csv")),
        lambda: peers.lines_of(read_csv(QWEN / "llama-server-1.5b.csv")),
        two_threads,
        lambda: speed_lines(read_csv(QWEN / "humaneval-0.5b.csv")),
        lambda: speed_lines(read_csv(QWEN / "humaneval-1.5b.csv")),
    ],
    "benchmarks/qwen/texts.md": [
        lambda: speed_lines(read_csv(QWEN / "spec-bench-0.5b.csv")),
        lambda: speed_lines(read_csv(QWEN / "spec-bench-1.5b.csv")),
        by_kind,
        lambda: speed_lines(read_csv(QWEN / "infilling-0.5b.csv")),
        lambda: sampled(QWEN, "0.5b", "1.5b"),
    ],
    "benchmarks/qwen/make.md": [qwen_answers, qwen_heads],
    "benchmarks/qwen/trees.md": [qwen_tree_parts, qwen_tree_gains],
    "benchmarks/qwen/quality.md": [pass_at_1],
    "benchmarks/qwen/smaller_model.md": [lambda: peers.lines_of(read_csv(QWEN / "llama-1.5b.csv"))],
    "benchmarks/rescoring.md": [searches(0), searches(1), searches(2)],
    "benchmarks/hosts/vllm.md": [
        lambda: vllm.lines_of(read_csv(HOSTS / "smollm2-one.csv")),
        lambda: [line for name in ("smollm2", "bundled") for line in vllm.lines_of(read_csv(HOSTS / f"{name}.csv"))],
        lambda: unnamed([line[1:4] for line in vllm.lines_of(read_csv(HOSTS / "smollm2-random.csv"))]),
    ],
    "benchmarks/serving/editor.md": [
        lambda: editor.lines_of(read_csv(SERVING / "editor-0.5b.csv")),
        lambda: editor.lines_of(read_csv(SERVING / "editor-1.5b.csv")),
    ],
    "benchmarks/structured/schemas.md": [
        lambda: instance_lines(read_csv(STRUCTURED / "instances.csv")),
        lambda: text_lines(read_csv(STRUCTURED / "schemas-bundled.csv")),
        lambda: text_lines(read_csv(STRUCTURED / "schemas-0.5b.csv")),
        lambda: forced_lines(read_csv(STRUCTURED / "forced.csv")),
    ],
    "benchmarks/structured/tool_calls.md": [
        lambda: call_lines(read_csv(STRUCTURED / "bfcl-0.5b.csv")),
        lambda: call_lines(read_csv(STRUCTURED / "bfcl-0.5b-150.csv")),
        lambda: call_lines(read_csv(STRUCTURED / "bfcl-1.5b.csv")),
        lambda: call_lines(read_csv(STRUCTURED / "bfcl-0.5b-parts.csv")),
        lambda: part_lines(read_csv(STRUCTURED / "parts-0.5b.csv")),
        lambda: free_lines(read_csv(STRUCTURED / "free-text-0.5b.csv")),
        lambda: call_peer_lines(read_csv(STRUCTURED / "peers-llama.csv")),
        lambda: call_peer_lines(read_csv(STRUCTURED / "peers-xgrammar.csv")),
    ],
    "benchmarks/smollm2/amounts.md": [
        lambda: by_amount(lambda counts, names: amounts.system_lines(counts, names, WALKED), WALKED),
        lambda: by_amount(amounts.gain_lines, GAINED),
        lambda: by_strength(drafted("amounts.csv"), amounts.OF_ONE_TEXT),
    ],
    "benchmarks/smollm2/drafters.md": [lambda: by_strength(drafted(), drafters.LADDER)],
    "benchmarks/smollm2/learned_lattices.md": [
        equal_budgets,
        lambda: beams.lines_of(read_csv(SMOLLM2 / "beams.csv")),
        lambda: unnamed(drafters.learned_lines(drafted())),
        drafting_times,
    ],
    "benchmarks/smollm2/make.md": [losses, on_a_gpu],
    "benchmarks/smollm2/run.md": [
        answers,
        tasks,
        lambda: speed_lines(read_csv(SMOLLM2 / "test.csv")),
        lambda: speed_lines(read_csv(SMOLLM2 / "unread.csv")),
        lambda: peers.lines_of(read_csv(SMOLLM2 / "llama-server-q4_0.csv")),
        lambda: sampled(SMOLLM2, "135m"),
        other_processors,
    ],
    "benchmarks/smollm2/trees.md": [tree_parts, tree_tasks],
    "benchmarks/study/README.md": [rescorers],
    "benchmarks/study/kim.md": ["test_study_kim.py"] * 3 + [WORDS],
    "benchmarks/study/kim_failures.md": ["test_study_kim.py"] * 3,
    "benchmarks/study/kim_models.md": ["test_study_kim.py"] * 2,
    "benchmarks/study/kim_recipe.md": [
        lambda: [*kim_recipe.efficiency_lines(kim_recipe.counted(STUDY))],
        recipe_gains,
        lambda: [*kim_recipe.own_lines(STUDY)],
        WORDS,
    ],
    "benchmarks/study/stern.md": [
        stern_table,
        stern_trees,
        stern_rules,
    ],
    "benchmarks/study/superresolution.md": [
        lambda: [*images("accepted", (2, 4, 6, 8, 10)), [None] * 7],
        lambda: [*images("MAE", (10,)), *images("PSNR", (10,), 1)],
    ],
    "benchmarks/study/together.md": ["test_study_together.py", WORDS],
    "benchmarks/word_lattices.md": [rows_of("word_lattices.csv", bench_word_lattices.lines_of)],
}
"""Every table of every page: what makes it again from committed rows, the test that does, or `WORDS`."""


def found_tables(page: str) -> list[list[list[str]]]:
    return list(markdown_tables((ROOT / page).read_text(encoding="utf-8")))


def numbered() -> Iterator[Any]:
    for page, tables in PAGES.items():
        for number, table in enumerate(tables):
            if callable(table):
                yield pytest.param(page, number, table, id=f"{page}, table {number + 1}")


def test_every_table_of_every_page_is_listed() -> None:
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "benchmarks").rglob("*.md")} | {"README.md"}
    assert {page: len(found_tables(page)) for page in pages if found_tables(page)} == {
        page: len(tables) for page, tables in PAGES.items()
    }


@pytest.mark.long
@pytest.mark.parametrize(("page", "number", "table"), list(numbered()))
def test_a_table_is_that_of_the_committed_rows(page: str, number: int, table: Callable[[], Cells]) -> None:
    _, *rows = found_tables(page)[number]
    expected = table()
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        cells = row + [""] * (len(wanted) - len(row))
        assert [cell if known is None else known for cell, known in zip(cells, wanted, strict=True)] == cells


@pytest.mark.parametrize(
    ("name", "threads"), [("answers", "1"), ("answers-zen5", "1"), ("answers-avx2", "1"), ("answers-avx2", "2")]
)
def test_drafts_of_the_engine_change_no_text(name: str, threads: str) -> None:
    counts = decodes(f"{name}.csv", threads)
    assert all(counts[key]["same"].all() for key in OWN)


def test_gains_that_the_page_of_trees_quotes_are_those_of_the_rows() -> None:
    counts, gains = replays(), set()
    for of in ("spec-bench", "held-out"):
        for one, two in trees.PAIRS:
            own, other = counts[of, one], counts[of, two]
            ends = pooled(own[:, 0], own[:, 1], (other[:, 0], other[:, 1]))
            gains.add(tuple(f"{100 * each:.1f}" for each in ends))
    page = (ROOT / "benchmarks/smollm2/trees.md").read_text(encoding="utf-8")
    words = " ".join(page[: page.index("## How many arcs and slots?")].split())
    quoted = re.findall(r"(\d+\.\d)(?: %)? \((\d+\.\d) to (\d+\.\d)\)", words)
    assert len(quoted) >= 9
    assert set(quoted) <= gains


@cache
def gains_of_drafters() -> set[tuple[str, ...]]:
    """All gains, with the ends of their intervals, that the rows of the pages of drafters give."""
    every = (*drafters.LADDER, *drafters.LATTICES)
    lines = [line for size in (16, 64) for line in drafters.gain_lines(drafted(), size, every)]
    own = drafted("amounts.csv")
    lines += [*drafters.learned_lines(drafted()), *amounts.text_lines(own)]
    for names in (FORWARD, CONDITIONED, amounts.OF_ONE_TEXT, amounts.BY_UPDATES, *amounts.BY_LAYERS.values()):
        lines += amounts.gain_lines(own, names)
    longer = [*amounts.LONGER.values()], [*amounts.LONGER]
    for names, others in ((CONDITIONED, FORWARD), COMPARED, longer):
        lines += amounts.drafter_lines(own, names, others, (*amounts.SYSTEMS, *amounts.SLOTS))
    return {tuple(re.findall(r"\d+\.\d", cell)) for line in lines for cell in line[1:]}


@pytest.mark.long
@pytest.mark.parametrize(("page", "least"), [("amounts", 4), ("drafters", 2), ("learned_lattices", 6)])
def test_gains_that_the_pages_of_drafters_quote_are_those_of_the_rows(page: str, least: int) -> None:
    text = (ROOT / f"benchmarks/smollm2/{page}.md").read_text(encoding="utf-8")
    quoted = set(re.findall(r"(\d+\.\d) % \((\d+\.\d) to (\d+\.\d)\)", " ".join(text.split())))
    assert len(quoted) >= least
    assert quoted <= gains_of_drafters()


@pytest.mark.long
def test_gains_that_the_page_of_kims_recipe_quotes_are_those_of_the_rows() -> None:
    counts = (kim_recipe.counted(STUDY)[9], *kim_recipe.own_counts(STUDY))
    gains = " ".join([*map(kim_recipe.gain_table, counts), str(kim_recipe.own_lines(STUDY))])
    page = (ROOT / "benchmarks/study/kim_recipe.md").read_text(encoding="utf-8").replace("−", "-")
    quoted = re.findall(r"(-?\d+\.\d) % \((-?\d+\.\d) to (-?\d+\.\d)\)", " ".join(page.split()))
    assert len(quoted) >= 5
    assert {*quoted} <= {*re.findall(r"(-?\d+\.\d) \(\+?(-?\d+\.\d) to \+?(-?\d+\.\d)\)", gains)}


@pytest.mark.parametrize("page", ["stern", "superresolution"])
def test_the_greatest_speed_is_the_one_quoted(page: str) -> None:
    best = max(read_csv(STUDY / f"{page}-speed.csv"), key=lambda row: float(row["speedup"]))
    assert spread(best, "speedup") in (ROOT / f"benchmarks/study/{page}.md").read_text(encoding="utf-8")


@pytest.mark.long
def test_gains_at_equal_budgets_are_those_that_pages_quote() -> None:
    """With calibrated probabilities exact trees are ahead of beams of as many nodes at every size."""
    page = " ".join((ROOT / "benchmarks/smollm2/learned_lattices.md").read_text(encoding="utf-8").split())
    index = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    walks = percents("8 tree", "walk")
    assert "+{} to +{} %".format(*sorted(walks, key=float)[::3]) in index
    assert "{} to {} %".format(*sorted(walks, key=float)[::3]) in page
    for size in drafters.SIZES:
        calibrated = sorted(map(float, percents(f"{size} drafter calibrated", f"{size} beam")))
        assert calibrated[0] > 0
        if size >= 64:
            assert f"{calibrated[0]} to {calibrated[-1]} %" in page


@pytest.mark.long
def test_the_chosen_token_is_worth_three_to_eight_times_the_text_on_trees_with_the_4_gram() -> None:
    """Conditioned heads of little text, and the text by which feed-forward ones draft as much, between two amounts by
    its logarithm."""
    for system in (f"{size} {kind}" for size in (16, 64) for kind in ("tree, 4-gram", "calibrated, no text")):
        forward, own = (
            np.array([efficiency(drafted("amounts.csv")[name, system]) for name in names])
            for names in (FORWARD, CONDITIONED)
        )
        known = np.log([float(name.removesuffix("k")) for name in FORWARD])
        worth = np.exp(np.interp(own[:2], forward, known) - known[:2])
        assert (own[:2] < forward[-1]).all()
        assert (worth.round() >= 3).all()
        assert (worth.round() <= 8).all()


def test_the_median_gain_of_calibrated_trees_is_the_one_quoted() -> None:
    tree, calibrated = (replays()["spec-bench", name] for name in ("16-tree", f"16 {trees.ALL}"))
    gains = tree[:, 1] / calibrated[:, 1] - 1  # both write the same tokens
    assert (tree[:, 0] == calibrated[:, 0]).all()
    rest = np.argsort(-gains)[10:]
    words = [
        f"{100 * gain:.0f} %" for gain in (np.median(gains), efficiency(calibrated[rest]) / efficiency(tree[rest]) - 1)
    ]
    page = " ".join((ROOT / "benchmarks/smollm2/trees.md").read_text(encoding="utf-8").split())
    assert (
        f"the median question gains {words[0]}; without the ten that gain most, the other 120 together gain {words[1]}"
        in page
    )


@pytest.mark.parametrize(("name", "draw"), [("speed.svg", pictures.bars), ("decodes.svg", pictures.decodes)])
def test_the_readme_s_pictures_are_those_of_the_rows(name: str, draw: Callable[[], str]) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == draw()


def test_a_figure_has_what_each_step_gains_by_how_far_drafters_walk() -> None:
    counts = drafted("amounts.csv") | drafted()
    drawn, families = amounts.figure(counts), [*amounts.FAMILIES.values()]
    own = len(families) - 2  # drafters of the other page have no 4-gram of the same text
    assert [len(axes.lines) for axes in drawn.axes] == [len(families)] * 4 + [own] * 2
    assert [text.get_text() for text in drawn.axes[0].get_legend().get_texts()] == [*amounts.FAMILIES]
    for axes, (one, other) in zip(drawn.axes, amounts.STEPS.values(), strict=True):
        for line, names in zip(axes.lines, families, strict=False):
            per_call = [[counts[name, each][:, :2].sum(axis=0) for each in ("walk", one, other)] for name in names]
            walks, ones, others = (np.array(each)[:, 0] / np.array(each)[:, 1] for each in zip(*per_call, strict=True))
            np.testing.assert_allclose(line.get_xydata(), np.stack([walks, 100 * (ones / others - 1)], axis=1))


@pytest.mark.slow
def test_the_demo_counts_what_its_rows_have() -> None:
    command = [sys.executable, "-m", "latticebpd", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    systems = {system["name"]: system for system in json.loads(done.stdout)["systems"]}
    for row in read_csv(DEMO):
        own = systems[row["system"]]
        assert own["tokens"] == int(row["tokens"])
        # Heads run on PyTorch, whose last bits another processor rounds otherwise; texts do not depend on them
        assert own["calls"] == pytest.approx(int(row["calls"]), abs=3)
        assert own["verified_tokens_per_call"] * own["calls"] == pytest.approx(int(row["verified"]), rel=0.05)


def test_a_changed_cell_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "benchmarks/smollm2/trees.md").read_text(encoding="utf-8")
    changed = page.replace("1.892 (1.990)", "1.712 (1.990)")
    assert changed != page
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: changed)
    with pytest.raises(AssertionError):
        test_a_table_is_that_of_the_committed_rows("benchmarks/smollm2/trees.md", 0, tree_parts)
