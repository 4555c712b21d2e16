"""GAD by its paper's recipe (Xia 2022, sections 3.1 and 4.1), and what each of our changes adds to it: one resumable
command.

    python -m benchmarks.gad_recipe --train multi30k-train.jsonl --validation multi30k-val.jsonl \
        --test multi30k-test_2016_flickr.jsonl --work WORK --updates 3000

A teacher translates the training sources anew by beam search, 5 beams; the verifier, which is the teacher taught
further, and a drafter that begins with its weights learn from that text.  The drafter of the run `paper` has the
paper's layout (text and masks see each other, every token of a block is a mask's), one prefix of each target an
update, glancing from 0.5 to 0.3, all tokens of a block weighing alike, the teacher's dropout, label smoothing of 0.1,
Adam, and nothing changed midway.  Every other run is the same with one change; the last has all of ours.  A stage whose
result is in WORK is not done again, and one that was killed goes on.

The counts of every sentence go to ``results/gad-recipe.csv``, and the table is made from them: tokens that a call of
the verifier commits, the first among them, which reads the source and verifies a draft already.  Times are one sentence
at a time, systems in turns.  Under exact acceptance every text must equal `generate()`'s; the program stops if one does
not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks import common
from benchmarks.decodes import RESULTS, STATISTICS, Decoded, System, bleu_of, bleu_statistics, decode, in_turns
from fst.files import replacing
from latticebpd import Exact, TopBeta, load
from latticebpd.models.weight_kinds import TORCH

PAPER = {
    "anchored": "--no-anchored",
    "text": "--bidirectional-text",
    "windows": "--windows 1",
    "decay": "--slot-decay 1.0",
    "reveal": "--reveal 0.5 0.3",
    "dropout": "",
    "smoothing": "--label-smoothing 0.1",
    "optimizer": "--learning-rate 5e-4 --muon-learning-rate 0",
    "start": "",
    "layers": "",
}
"""Table 10's, but for the sizes of model and update, Adam's second decay (0.98 for 0.999) and the schedule."""
CHANGES = {
    "from scratch": {"start": "--from-scratch"},
    "Adam at 2e-3": {"optimizer": "--learning-rate 2e-3 --muon-learning-rate 0"},
    "6 decoder layers": {"layers": "--decoder-layers 6"},
    "our optimizer": {"optimizer": "", "smoothing": ""},
    "anchored": {"anchored": "--anchored"},
    "slot decay": {"decay": "--slot-decay 0.75"},
    "causal text": {"text": "--causal-text"},
    "causal text, 8 windows": {"text": "--causal-text", "windows": "--windows 8"},  # which share what is read of a text
    "no dropout": {"dropout": "--dropout 0"},
}
RUNS = {"paper": PAPER, **{name: PAPER | change for name, change in CHANGES.items()}}
OTHERS = ("from scratch", "Adam at 2e-3", "6 decoder layers")  # no part of all changes
ADDED = [change for name, change in CHANGES.items() if name not in OTHERS]
RUNS["all changes"] = {**PAPER, **{option: value for change in ADDED for option, value in change.items()}}
BLOCKS = (3, 5, 10, 25)
RESULT = "measured.json"
TABLE, BEAM, GREEDY, LOOSE = "gad-recipe.csv", "beam 5, generate()", "greedy, generate()", "GAD++"
GAD_PLUS = TopBeta(3, 1.0)
MAX_NEW, ROWS = 96, 25
"""New tokens of a sentence; sentences at once, where nothing is timed."""
MADE_WITH = "train validation source target updates teacher_updates verifier_updates written batch_tokens "
MADE_WITH += "block_size shape vocab_size"
TRAINED = "trained.json"
"""In a finished run's directory."""
MEASURED_WITH = "test limit timed threads clock"
"""The options that the models depend on, and those that only the table does."""


def trained(directory: Path, *arguments: object) -> Path:
    """What `latticebpd train` makes; a note of the command comes last."""

    def train() -> None:
        common.latticebpd("train", *arguments, "-o", directory)
        common.write_json(directory / TRAINED, [str(each) for each in arguments])

    common.stage(directory / TRAINED, train)
    return directory


def teacher_updates(arguments: argparse.Namespace) -> int:
    return arguments.teacher_updates or max(1, arguments.updates * 3 // 5)


def teacher_of(arguments: argparse.Namespace) -> Path:
    size = f"--steps {teacher_updates(arguments)} --batch-tokens {arguments.batch_tokens}"
    new = f"--shape {arguments.shape} --vocab-size {arguments.vocab_size} {size}"
    fields = f"--source {arguments.source} --target {arguments.target} {new}"
    directory, held_out = arguments.work / "teacher", arguments.validation
    return trained(directory, "translation", arguments.train, "--validation", held_out, fields)


def taught(arguments: argparse.Namespace) -> Path:
    """Teacher, its text, verifier."""
    work, teacher = arguments.work, teacher_of(arguments)
    rewritten = arguments.train if arguments.written is None else work / "rewritten.jsonl"
    if rewritten != arguments.train:
        common.stage(rewritten, lambda: cut(arguments.train, rewritten, arguments.written))
    translate(arguments, teacher, rewritten, work / "written")
    translate(arguments, teacher, arguments.validation, work / "written-val")
    second = arguments.verifier_updates or max(1, teacher_updates(arguments) * 2 // 9)
    further = f"--steps {second} --learning-rate 1e-3 --muon-learning-rate 2e-3 --batch-tokens {arguments.batch_tokens}"
    return trained(work / "verifier", "translation", *written(work), "--model", teacher, further)


def translate(arguments: argparse.Namespace, teacher: Path, text: Path, result: Path) -> None:
    """A text's sources with the teacher's translations."""
    encoded = result.with_name(f"{result.name}-sources.npz")
    fields = f"--prompt-template {{{arguments.source}}} --answer-field {arguments.target} --tokenizer"
    tokenizer, beams = teacher / "tokenizer.json", "--num-beams 5 --max-new-tokens 64"
    common.stage(encoded, lambda: common.latticebpd("train encode", text, fields, tokenizer, "-o", encoded))
    common.latticebpd("distill", encoded, "--model", teacher, "-o", result, beams)  # goes on from what is there


def cut(text: Path, result: Path, lines: int) -> None:
    """The first lines of a file, as another."""
    with replacing(result) as temporary, text.open("rb") as source, temporary.open("wb") as part:
        part.writelines(islice(source, lines))


def written(work: Path) -> tuple[object, ...]:
    return work / "written", "--validation", work / "written-val"


def run_of(arguments: argparse.Namespace, name: str, verifier: Path) -> Path:
    """The drafter of a run."""
    size = f"--block-size {arguments.block_size} --steps {arguments.updates} --batch-tokens {arguments.batch_tokens}"
    directory, changes = arguments.work / folder(name), " ".join(RUNS[name].values())
    return trained(directory, "masks", *written(arguments.work), "--model", verifier, size, changes)


def folder(name: str) -> str:
    return f"drafter-{common.slug(name)}"


def read(
    arguments: argparse.Namespace, tokenizer: Tokenizer, path: Path, limit: int | None
) -> tuple[list[list[int]], list[str]]:
    """Sources as tokens, references as text."""
    lines = common.read_lines(path, limit)
    sources = [encoded.ids for encoded in tokenizer.encode_batch([line[arguments.source] for line in lines])]
    return sources, [line[arguments.target] for line in lines]


def check_exact(chosen: Mapping[str, System], decodes: Mapping[str, Decoded]) -> None:
    """ValueError where exact acceptance wrote another text than `generate()`."""
    for name, system in chosen.items():
        if not isinstance(system, dict) and isinstance(system[1], Exact) and decodes[name].rows != decodes[GREEDY].rows:
            different = sum(one != two for one, two in zip(decodes[name].rows, decodes[GREEDY].rows, strict=True))
            raise ValueError(f"{name}: expected generate()'s texts, got {different} others")


def measured(arguments: argparse.Namespace, run: str) -> list[dict[str, Any]]:
    """Of every sentence: what every block size commits in how many calls; of beam search and greedy decoding the text's
    length; milliseconds of the first sentences, systems in turns; where texts differ, what BLEU is made of."""
    work, timed = arguments.work, arguments.timed
    loaded = load(work / "verifier", drafter=work / folder(run), weights=TORCH)
    verifier, most = loaded.target, loaded.lattice_source().num_slots
    tokenizer = Tokenizer.from_file(str(work / "verifier" / "tokenizer.json"))
    sources, references = read(arguments, tokenizer, arguments.test, arguments.limit)
    clock = time.process_time if arguments.clock == "cpu" else time.perf_counter

    def gad(block: int, rule: Any) -> System:
        return partial(loaded.drafter, "vanilla", k=1, slots=block), rule

    def decoded(system: System) -> Decoded:
        return decode(verifier, sources, system, MAX_NEW, ROWS, clock)

    sizes = [size for size in BLOCKS if size <= most] or [most]
    chosen: dict[str, System] = {GREEDY: {}, **{str(k): gad(k, Exact()) for k in sizes}, BEAM: {"num_beams": 5}}
    decodes = {name: decoded(system) for name, system in chosen.items()}
    check_exact(chosen, decodes)
    taken = in_turns({name: (verifier, system) for name, system in chosen.items()}, sources[:timed], MAX_NEW, clock)
    decodes[LOOSE] = decoded(gad(sizes[-1], GAD_PLUS))
    rows: list[dict[str, Any]] = []
    for name, each in decodes.items():
        lengths = [len(row) for row in each.rows]
        texts = [tokenizer.decode(row).strip() for row in each.rows]
        written = bleu_statistics(texts, references) if name in (GREEDY, BEAM, LOOSE) else repeat(())
        counts = zip(each.tokens or lengths, each.calls or lengths, written, strict=False)
        for text, (tokens, calls, statistics) in enumerate(counts):
            own = f"{1e3 * taken[name][text].seconds[0]:.1f}" if name in taken and text < timed else ""
            row = {"system": name, "text": text, "tokens": tokens, "calls": calls, "ms": own}
            rows.append(row | dict(zip_longest(STATISTICS, statistics, fillvalue="")))
    return rows


def table(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A line for every run: tokens per call by block size, GAD++'s and its BLEU, time over greedy decoding's by block
    size, over beam search's at best; BLEU of greedy decoding and of beam search in the first two lines."""
    runs = {run: common.grouped(own, "system") for run, own in common.grouped(rows, "run").items()}
    sizes, first = sizes_of(rows), next(iter(runs.values()))

    def bleu(own: Sequence[Mapping[str, str]]) -> str:
        return f"{bleu_of(common.columns(own, *STATISTICS).sum(axis=1)):.2f}"

    empty = [""] * len(sizes)
    lines = [[name, *empty, "", bleu(first[name]), *empty, ""] for name in (GREEDY, BEAM)]
    for run, systems in runs.items():
        accepted = [common.pooled(*common.columns(systems[each], "tokens", "calls")) for each in (*sizes, LOOSE)]
        seconds = {name: np.nansum(common.columns(each, "ms")) for name, each in systems.items()}
        over = [f"{seconds[GREEDY] / seconds[size]:.2f}" for size in sizes]
        best = seconds[BEAM] / min(seconds[size] for size in sizes)
        cells = [common.with_interval(*each) for each in accepted]
        lines.append([run, *cells, bleu(systems[LOOSE]), *over, f"{best:.2f}"])
    return lines


def sizes_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Block sizes that were measured, rising."""
    return sorted({row["system"] for row in rows if row["system"].isdigit()}, key=int)


def show(results: Path) -> None:
    rows = common.read_csv(results / TABLE)
    sizes = sizes_of(rows)
    head = ["run", *(f"{k} masks" for k in sizes), "GAD++", "its BLEU", *(f"time, {k}" for k in sizes), "over beam 5"]
    common.table(f"{len({row['text'] for row in rows})} sentences:", head, table(rows))


def translator_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """What teacher and verifier are made from and with, what is measured on, and where all results go."""
    for name, what in (("train", "to learn from"), ("validation", "to validate on"), ("test", "to measure on")):
        about = f"JSONL, a sentence and its translation a line, {what}"
        parser.add_argument(f"--{name}", type=Path, required=required, help=about)
    about = "directory of all results; the same command resumes in it"
    parser.add_argument("--work", type=Path, required=required, help=about)
    parser.add_argument("--teacher-updates", type=int, help="of the teacher (default: 3/5 of a drafter's)")
    parser.add_argument("--verifier-updates", type=int, help="of the teacher, further, on its text (default: 2/9)")
    parser.add_argument("--written", type=int, help="number of training sentences to translate anew; the first ones")
    parser.add_argument("--batch-tokens", type=int, default=1600, help="of an update; the paper's are some 128,000")
    parser.add_argument("--shape", default="base", help="of all models, as for `latticebpd train translation`")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--source", default="en", help="field of the sentences")
    parser.add_argument("--target", default="de", help="field of their translations")
    parser.add_argument("--limit", type=int, help="number of test sentences")


def drafter_options(parser: argparse.ArgumentParser, runs: Sequence[str]) -> None:
    """How drafters are made, and which: ``runs`` by default."""
    parser.add_argument("--updates", type=int, default=3000, help="of each drafter")
    parser.add_argument("--block-size", type=int, default=25, help="masks that a drafter learns to fill")
    about = f"drafters, among: {'; '.join(RUNS)}"
    parser.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*runs], metavar="RUN", help=about)


def main() -> None:
    parser = common.options(__doc__)
    translator_options(parser)
    drafter_options(parser, [*RUNS])
    parser.add_argument("--timed", type=int, default=200, help="number of them that are timed")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="wall-clock or CPU time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the counts")
    parser.add_argument("--measure", choices=[*RUNS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    common.set_up(arguments.threads)
    work, measure = arguments.work, arguments.measure
    if measure is not None:  # in a process of its own
        common.write_json(work / folder(measure) / RESULT, measured(arguments, measure))
        return
    common.claim(work, arguments, MADE_WITH)
    common.claim(work / "measured", arguments, MEASURED_WITH)
    verifier, rows = taught(arguments), list[dict[str, Any]]()
    for name in arguments.runs:
        result = run_of(arguments, name, verifier) / RESULT
        command = [sys.executable, "-m", "benchmarks.gad_recipe", *sys.argv[1:], "--measure", name]
        common.stage(result, lambda command=command: subprocess.run(command, check=True))
        rows += [{"run": name} | row for row in common.read_json(result)]
    common.write_csv(arguments.results / TABLE, rows)
    show(arguments.results)


if __name__ == "__main__":
    common.run(main)
