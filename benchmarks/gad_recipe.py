"""GAD by its paper's recipe (Xia 2022, sections 3.1 and 4.1), and what each of our changes adds to it: one resumable
command.

    python -m benchmarks.gad_recipe --train multi30k-train.jsonl --validation multi30k-val.jsonl \
        --test multi30k-test_2016_flickr.jsonl --work WORK --updates 3000

A teacher translates the training sources anew by beam search, 5 beams; the verifier, which is the teacher taught
further, and a drafter that begins with its weights learn from that text.  The drafter of the run `paper` has the
paper's layout (text and masks see each other, every token of a block is a mask's), one prefix of each target an
update, glancing from 0.5 to 0.3, all tokens of a block weighing alike, the teacher's dropout, and nothing changed
midway.  Every other run is the same with one of our changes; the last has them all.  A stage whose result is in WORK
is not done again, and one that was killed goes on.

The table, Markdown on standard output and `table.csv` in WORK, has a line for every run and block size.  *tok.* is
what a call of the verifier commits; *passes* are the verifier's, a sentence, the first among them: it reads the
source and verifies a draft already.  Times are one sentence at a time, systems in turns. Under exact acceptance every
text must equal `generate()`'s; the program stops if one does not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks import common
from benchmarks.bench_gad import BEAM, GAD_PLUS, GREEDY, Setting, check_exact, compared, read
from benchmarks.decodes import System
from fst.files import replacing
from latticebpd import Exact, NoDrafter, TopBeta
from lm_training.training.training_plots import PNG

PAPER = {
    "anchored": "--no-anchored",
    "text": "--bidirectional-text",
    "windows": "--windows 1",
    "decay": "--slot-decay 1.0",
    "reveal": "--reveal 0.5 0.3",
    "dropout": "",
}
CHANGES = {
    "anchored": {"anchored": "--anchored"},
    "slot decay": {"decay": "--slot-decay 0.75"},
    "causal text": {"text": "--causal-text"},
    "causal text, 8 windows": {"text": "--causal-text", "windows": "--windows 8"},  # which share what is read of a text
    "no dropout": {"dropout": "--dropout 0"},
}
RUNS = {"paper": PAPER, **{name: PAPER | change for name, change in CHANGES.items()}}
RUNS["all changes"] = {**PAPER, **{option: given for change in CHANGES.values() for option, given in change.items()}}
BLOCKS = (3, 5, 10, 15, 20, 25)
MADE_WITH = "train validation source target updates teacher_updates verifier_updates written batch_tokens "
MADE_WITH += "block_size shape vocab_size"
MEASURED_WITH = "test limit timed threads clock"
"""The options that the models depend on, and those that only the table does."""
COLUMNS = ("run", "k", "tok.", "passes", "BLEU", "GAD++ tok.", "GAD++ BLEU", "ms", "over greedy", "over beam 5")


def trained(directory: Path, *arguments: object) -> Path:
    """What `latticebpd train` makes; its picture comes last."""
    common.stage(directory / PNG, lambda: common.latticebpd("train", *arguments, "-o", directory))
    return directory


def teacher_updates(arguments: argparse.Namespace) -> int:
    updates: int = arguments.teacher_updates or max(1, arguments.updates * 3 // 5)
    return updates


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
    for name, text in (("written", rewritten), ("written-val", arguments.validation)):
        encoded, corpus = work / f"{name}-sources.npz", work / f"{name}.npy"

        def encode(text: Path = text, encoded: Path = encoded) -> None:
            fields = f"--prompt-template {{{arguments.source}}} --answer-field {arguments.target}"
            common.latticebpd("train", "encode", text, fields, "--tokenizer", teacher / "tokenizer.json", "-o", encoded)

        def distill(encoded: Path = encoded, corpus: Path = corpus) -> None:
            beams = "--num-beams 5 --max-new-tokens 64 --corpus"
            common.latticebpd("distill", encoded, "--model", teacher, "-o", corpus.with_suffix(""), beams, corpus)

        common.stage(encoded, encode)
        common.stage(corpus, distill)
    second = arguments.verifier_updates or max(1, teacher_updates(arguments) * 2 // 9)
    further = f"--steps {second} --learning-rate 1e-3 --muon-learning-rate 2e-3 --batch-tokens {arguments.batch_tokens}"
    return trained(work / "verifier", "translation", *written(work), "--model", teacher, further)


def cut(text: Path, result: Path, lines: int) -> None:
    """The first lines of a file, as another."""
    with replacing(result) as temporary, text.open("rb") as whole, temporary.open("wb") as part:
        part.writelines(islice(whole, lines))


def written(work: Path) -> tuple[object, ...]:
    return work / "written", "--validation", work / "written-val"


def run_of(arguments: argparse.Namespace, name: str, verifier: Path) -> Path:
    """The drafter of a run."""
    size = f"--block-size {arguments.block_size} --steps {arguments.updates} --batch-tokens {arguments.batch_tokens}"
    directory, changes = arguments.work / folder(name), " ".join(RUNS[name].values())
    return trained(directory, "drafter", *written(arguments.work), "--model", verifier, size, changes)


def folder(name: str) -> str:
    return f"drafter-{common.slug(name)}"


def measured(setting: Setting, timed: int) -> list[dict[str, Any]]:
    """A line for beam search, greedy decoding and every block size."""
    sizes = [size for size in BLOCKS if size <= setting.drafter.block_size] or [setting.drafter.block_size]
    gad: dict[str, System] = {str(k): setting.gad(k) for k in sizes}
    chosen: dict[str, System] = {GREEDY: {}, "this loop": (NoDrafter, Exact()), **gad, BEAM: {"num_beams": 5}}
    few = setting.first(timed)
    found = {name: setting.decoded(system) for name, system in chosen.items()}
    check_exact(chosen, found)
    seconds = {name: sum(each.seconds) for name, each in compared(few, chosen, 1).items()}
    lines: list[dict[str, Any]] = []
    for name, each in found.items():
        line: dict[str, Any] = dict.fromkeys(COLUMNS)
        passes = sum(map(len, each.rows)) / len(each.rows)  # one a token
        if name in gad:
            loose, passes = setting.decoded(setting.gad(int(name), TopBeta(*GAD_PLUS[0]))), each.iterations
            line |= {"k": int(name), "tok.": each.tokens_per_call}
            line |= {"GAD++ tok.": loose.tokens_per_call, "GAD++ BLEU": setting.bleu(loose.rows)}
        line |= {"run": name, "passes": passes, "BLEU": setting.bleu(each.rows)}
        line |= {f"over {what}": seconds[of] / seconds[name] for what, of in (("greedy", GREEDY), ("beam 5", BEAM))}
        lines.append(line | {"ms": 1e3 * seconds[name] / len(few.sources)})
    return lines


def result_of(work: Path, name: str) -> Path:
    return work / folder(name) / "measured.json"


def show(work: Path, runs: Sequence[str], about: str) -> None:
    """The table: what needs no drafter once, then every run."""
    rows: list[dict[str, Any]] = []
    for name in runs:
        for line in common.read_json(result_of(work, name)):
            if line["k"] is not None or name == runs[0]:
                run = line["run"] if line["k"] is None else name
                rows.append({column: line[column] for column in COLUMNS} | {"run": run})
    common.table(about, COLUMNS, [[*row.values()] for row in rows])
    common.write_csv(work / "table.csv", rows, digits=17)


def recipe_options(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """What the models are made from and with, what is measured on, and where all results go."""
    for name, what in (("train", "to learn from"), ("validation", "to validate on"), ("test", "to measure on")):
        about = f"JSONL, a sentence and its translation a line, {what}"
        parser.add_argument(f"--{name}", type=Path, required=required, help=about)
    about = "directory of all results; the same command resumes in it"
    parser.add_argument("--work", type=Path, required=required, help=about)
    parser.add_argument("--updates", type=int, default=3000, help="of each drafter")
    parser.add_argument("--teacher-updates", type=int, help="of the teacher (default: 3/5 of a drafter's)")
    about = "of the teacher, further, on its text (default: 2/9 of the teacher's)"
    parser.add_argument("--verifier-updates", type=int, help=about)
    parser.add_argument("--written", type=int, help="number of training sentences to translate anew; the first ones")
    parser.add_argument("--batch-tokens", type=int, default=1600, help="of an update; the paper's are some 128,000")
    parser.add_argument("--block-size", type=int, default=25, help="masks that a drafter learns to fill")
    parser.add_argument("--shape", default="base", help="of all models, as for `latticebpd train translation`")
    parser.add_argument("--vocab-size", type=int, default=4096)
    common.pair_options(parser)
    parser.add_argument("--limit", type=int, help="number of test sentences")


def claim_options(directory: Path, arguments: argparse.Namespace, names: str) -> None:
    """Note options in a directory; ValueError where it was begun with others."""
    common.claim(directory, {name: str(getattr(arguments, name)) for name in names.split()})


def main() -> None:
    parser = common.options(__doc__)
    recipe_options(parser)
    about = f"among: {'; '.join(RUNS)}"
    parser.add_argument("--runs", nargs="+", choices=[*RUNS], default=[*RUNS], metavar="RUN", help=about)
    parser.add_argument("--timed", type=int, default=200, help="number of them that are timed")
    common.clock_options(parser)
    parser.add_argument("--measure", choices=[*RUNS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    common.set_up(arguments.threads)
    work, measure = arguments.work, arguments.measure
    if measure is not None:  # in a process of its own
        vars(arguments).update(pairs=[arguments.test], verifier=work / "verifier", lm=None, alpha=0.0)
        common.write_json(result_of(work, measure), measured(read(arguments, work / folder(measure)), arguments.timed))
        return
    claim_options(work, arguments, MADE_WITH)
    claim_options(work / "measured", arguments, MEASURED_WITH)
    verifier = taught(arguments)
    for name in arguments.runs:
        run_of(arguments, name, verifier)
        command = [sys.executable, "-m", "benchmarks.gad_recipe", *sys.argv[1:], "--measure", name]
        common.stage(result_of(work, name), lambda command=command: subprocess.run(command, check=True))
    sentences = min(arguments.limit or sys.maxsize, len(arguments.test.read_text(encoding="utf-8").splitlines()))
    about = f"{sentences} sentences, {arguments.updates} updates of {arguments.batch_tokens} tokens:"
    show(work, arguments.runs, about)


if __name__ == "__main__":
    common.run(main)
