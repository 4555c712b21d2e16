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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benchmarks import common
from benchmarks.decodes import RESULTS, STATISTICS, Decoded, System, bleu_of, bleu_statistics, decode
from fst.files import replacing
from fst.fingerprint import vocabulary_fingerprint
from latticebpd import Exact, TopBeta
from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel, check_pair, load_verifier
from lm_training.training.training_plots import PNG

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
RUNS["all changes"] = {**PAPER, **{option: given for change in ADDED for option, given in change.items()}}
BLOCKS = (3, 5, 10, 25)
TABLE, BEAM, GREEDY, LOOSE = "gad-recipe.csv", "beam 5, generate()", "greedy, generate()", "GAD++"
GAD_PLUS = TopBeta(3, 1.0)
MAX_NEW, ROWS = 96, 25
"""New tokens of a sentence; sentences at once, where nothing is timed."""
MADE_WITH = "train validation source target updates teacher_updates verifier_updates written batch_tokens "
MADE_WITH += "block_size shape vocab_size"
MEASURED_WITH = "test limit timed threads clock"
"""The options that the models depend on, and those that only the table does."""


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


@dataclass(frozen=True)
class Setting:
    """Models, and the test set as tokens and text."""

    verifier: Any
    drafter: NonAutoregressiveModel
    tokenizer: Tokenizer
    sources: list[list[int]]
    references: list[str]
    clock: common.Clock

    def gad(self, block: int, rule: Any = None) -> System:
        """Drafts of best tokens."""
        return lambda: LatticeDrafter(MaskLattices(self.drafter, 1, block), Vanilla()), rule or Exact()

    def decoded(self, system: System, sources: slice = slice(None), rows: int = ROWS) -> Decoded:
        """Translations in batches."""
        return decode(self.verifier, self.sources[sources], system, MAX_NEW, rows, self.clock)

    def seconds(self, chosen: Mapping[str, System], timed: int) -> dict[str, list[float]]:
        """Of the first sentences, one by one, systems in turns; the first of them warms up."""
        found: dict[str, list[float]] = {name: [] for name in chosen}
        for number in (0, *range(min(timed, len(self.sources)))):
            for name, system in chosen.items():
                found[name] += self.decoded(system, slice(number, number + 1)).seconds
        return {name: each[1:] for name, each in found.items()}


def read(arguments: argparse.Namespace, drafter: Path) -> Setting:
    verifier, model = load_verifier(arguments.work / "verifier"), NonAutoregressiveModel.from_pretrained(drafter)
    tokenizer = Tokenizer.from_file(str(arguments.work / "verifier" / "tokenizer.json"))
    check_pair(verifier, model, vocabulary_fingerprint(tokenizer.get_vocab()))
    lines = common.read_lines(arguments.test, arguments.limit)
    sources = [encoded.ids for encoded in tokenizer.encode_batch([line[arguments.source] for line in lines])]
    references = [line[arguments.target] for line in lines]
    return Setting(verifier, model, tokenizer, sources, references, common.Clock(arguments.clock, verifier.device))


def check_exact(chosen: Mapping[str, System], found: Mapping[str, Decoded]) -> None:
    """ValueError where exact acceptance wrote another text than `generate()`."""
    for name, system in chosen.items():
        if not isinstance(system, dict) and isinstance(system[1], Exact) and found[name].rows != found[GREEDY].rows:
            different = sum(one != two for one, two in zip(found[name].rows, found[GREEDY].rows, strict=True))
            raise ValueError(f"{name}: expected generate()'s texts, got {different} others")


def measured(setting: Setting, timed: int) -> list[dict[str, Any]]:
    """Of every sentence: what every block size commits in how many calls; of beam search and greedy decoding the text's
    length; milliseconds of the first sentences, systems in turns; where texts differ, what BLEU is made of."""
    sizes = [size for size in BLOCKS if size <= setting.drafter.block_size] or [setting.drafter.block_size]
    chosen: dict[str, System] = {GREEDY: {}, **{str(k): setting.gad(k) for k in sizes}, BEAM: {"num_beams": 5}}
    found = {name: setting.decoded(system) for name, system in chosen.items()}
    check_exact(chosen, found)
    taken = setting.seconds(chosen, timed)
    found[LOOSE] = setting.decoded(setting.gad(sizes[-1], GAD_PLUS))
    rows: list[dict[str, Any]] = []
    for name, each in found.items():
        lengths = [len(row) for row in each.rows]
        texts = [setting.tokenizer.decode(row).strip() for row in each.rows]
        written = bleu_statistics(texts, setting.references) if name in (GREEDY, BEAM, LOOSE) else repeat(())
        counts = zip(each.tokens or lengths, each.calls or lengths, written, strict=False)
        for text, (tokens, calls, statistics) in enumerate(counts):
            own = f"{1e3 * taken[name][text]:.1f}" if name in taken and text < timed else ""
            row = {"system": name, "text": text, "tokens": tokens, "calls": calls, "ms": own}
            rows.append(row | dict(zip_longest(STATISTICS, statistics, fillvalue="")))
    return rows


def result_of(work: Path, name: str) -> Path:
    return work / folder(name) / "measured.json"


def gathered(work: Path, runs: Sequence[str], results: Path) -> None:
    """The rows of all runs in one file."""
    rows = [{"run": name} | row for name in runs for row in common.read_json(result_of(work, name))]
    results.mkdir(parents=True, exist_ok=True)
    common.write_csv(results / TABLE, rows)


def table(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """A line for every run: tokens per call by block size, GAD++'s and its BLEU, time over greedy decoding's by block
    size, over beam search's at best; BLEU of greedy decoding and of beam search in the first two lines."""
    groups: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["run"], row["system"]), []).append(row)
    runs = list(dict.fromkeys(row["run"] for row in rows))
    sizes = sorted({system for _, system in groups if system.isdigit()}, key=int)

    def numbers(run: str, system: str, *names: str) -> list[np.ndarray]:
        return [np.array([float(row[name]) for row in groups[run, system] if row[name]]) for name in names]

    def bleu(run: str, system: str) -> str:
        return f"{bleu_of(np.array(numbers(run, system, *STATISTICS)).sum(axis=1)):.2f}"

    empty = [""] * len(sizes)
    lines = [[name, *empty, "", bleu(runs[0], name), *empty, ""] for name in (GREEDY, BEAM)]
    for run in runs:
        accepted = [common.pooled(*numbers(run, system, "tokens", "calls")) for system in (*sizes, LOOSE)]
        cells = [common.with_interval(*each) for each in accepted]
        seconds = {system: numbers(run, system, "ms")[0].sum() for system in (GREEDY, BEAM, *sizes)}
        over = [f"{seconds[GREEDY] / seconds[size]:.2f}" for size in sizes]
        best = seconds[BEAM] / min(seconds[size] for size in sizes)
        lines.append([run, *cells, bleu(run, LOOSE), *over, f"{best:.2f}"])
    return lines


def show(results: Path) -> None:
    rows = common.read_csv(results / TABLE)
    sizes = sorted({int(row["system"]) for row in rows if row["system"].isdigit()})
    head = ["run", *(f"{k} masks" for k in sizes), "GAD++", "its BLEU", *(f"time, {k}" for k in sizes), "over beam 5"]
    common.table(f"{len({row['text'] for row in rows})} sentences:", head, table(rows))


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
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="wall-clock or CPU time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the counts")
    parser.add_argument("--measure", choices=[*RUNS], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    common.set_up(arguments.threads)
    work, measure = arguments.work, arguments.measure
    if measure is not None:  # in a process of its own
        common.write_json(result_of(work, measure), measured(read(arguments, work / folder(measure)), arguments.timed))
        return
    claim_options(work, arguments, MADE_WITH)
    claim_options(work / "measured", arguments, MEASURED_WITH)
    verifier = taught(arguments)
    for name in arguments.runs:
        run_of(arguments, name, verifier)
        command = [sys.executable, "-m", "benchmarks.gad_recipe", *sys.argv[1:], "--measure", name]
        common.stage(result_of(work, name), lambda command=command: subprocess.run(command, check=True))
    gathered(work, arguments.runs, arguments.results)
    show(arguments.results)


if __name__ == "__main__":
    common.run(main)
