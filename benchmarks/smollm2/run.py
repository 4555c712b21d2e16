"""Spec-Bench on a real pretrained model: tokens per call and per second of every system, and of what a user would
pick instead.

    latticebpd models get smollm2-135m
    python -m benchmarks.smollm2.run question.jsonl -o results.csv --limit 10 --threads 2
    python -m benchmarks.smollm2.run question.jsonl -o results.csv --table       # of what is there already
    python -m benchmarks.smollm2.run question.jsonl -o batches.csv --batch 4 --longest 200 --costs costs.json

Systems take turns on each question, or batch of questions, in an order that rotates, so that a drift of the machine's
speed meets all alike; every decode is one line of the CSV file, and the same command resumes where it was stopped.
Batches of each size, like kernels, need a file of their own.  A decode with a text that is not ``generate()``'s,
token for token, is counted in the last column. Intervals: 95 %, questions, or batches of them, drawn anew, 2,000
times.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import err, options, pooled, read_csv, run, set_up, signature
from benchmarks.common import table as print_table
from latticebpd import generate, load
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.lattice_drafter import HindsightDrafter
from latticebpd.drafters.pretrained import load_stock
from latticebpd.measuring.spec_bench import Question, read_questions
from latticebpd.target.stock_model import BaseModel
from latticebpd.target.weight_kinds import TORCH, WEIGHTS

STOCK = ("generate()", "generate(prompt lookup)", "generate(assistant)")
"""`transformers`' own; the last with ``--assistant``."""
BY_COST = " by cost"
SYSTEMS = (
    "greedy,vanilla,16-best:0-gram,16-best,16-tree:0-gram,16-tree,64-tree,16-copies,copies+16-tree,"
    "8-calibrated,12-calibrated,16-calibrated,64-calibrated,oracle"
)
"""By default; with ``--costs`` also ``64-calibrated by cost``."""
HEAD = ("system", "tokens/call", "95 %", "verified/call", "tokens/s", "vs. generate()", "other texts")
KINDS: dict[Any, Any] = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Decode:
    """One system's answers to a batch of questions; ``question`` and ``category`` are the first one's.

    tokens: new ones, the prefills' included.  calls: forward passes after the prefill, each counted for every row
    that it served.  equal: whether all texts are ``generate()``'s.
    """

    question: int
    category: str
    system: str
    seconds: float
    tokens: int
    calls: int
    verified: int
    equal: int

    @classmethod
    def read(cls, path: Path) -> list[Decode]:
        kinds = {each.name: KINDS[each.type] for each in fields(cls)}
        rows = read_csv(path) if path.exists() else []
        return [cls(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]

    def append(self, path: Path) -> None:
        new = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [each.name for each in fields(self)])
            if new:
                writer.writeheader()
            writer.writerow(vars(self))


class Bench:
    """A model, its n-gram model, and the systems that answer with it."""

    def __init__(self, given: argparse.Namespace, costs: CostCurve | None) -> None:
        self.loaded = load(given.model, given.lm, drafter=given.drafter_model, weights=given.weights)
        self.given, self.costs = given, costs
        for module in (self.loaded.model, getattr(self.loaded.source, "drafter", None)):
            if module is not None:
                module.to(given.device)
        self.base = BaseModel.of(self.loaded.model)
        self.format = self.loaded.prompts
        self.stock: dict[str, dict[str, Any]] = {STOCK[0]: {}, STOCK[1]: {"prompt_lookup_num_tokens": 10}}
        if given.assistant is not None:
            assistant: Any = load_stock(given.assistant)
            self.stock[STOCK[2]] = {"assistant_model": assistant.to(given.device)}

    def prompt(self, question: Question) -> list[int]:
        return self.format.prompt(question.turns[:1])

    def decode(
        self, system: str, questions: Sequence[Question], references: Sequence[Sequence[int]] | None
    ) -> tuple[Decode, list[list[int]]]:
        """The system's answers to the questions' first turns, together; ``references`` are ``generate()``'s."""
        prompts, new_tokens = [self.prompt(question) for question in questions], self.given.max_new_tokens
        width = max(map(len, prompts))
        ids, mask = torch.zeros(2, len(prompts), width, dtype=torch.long, device=self.base.device)
        for row, prompt in enumerate(prompts):  # padding is on the left, as `generate()` expects it
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        common: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": new_tokens}
        if self.format.eos_ids is not None:
            common["eos_token_id"] = self.format.eos_ids
        drafter = None if system in STOCK else self._drafter(system, references[0] if references else [])
        passes: list[None] = []
        started = time.perf_counter()
        if drafter is None:
            hook = self.base.decoder.register_forward_pre_hook(lambda *_: passes.append(None))
            sequences = self.base.model.generate(ids, do_sample=False, **common, **self.stock[system])
            hook.remove()  # an engine refuses a model with hooks
        else:
            found = generate(self.loaded.model, ids, drafter, **common)
            sequences = found.sequences
        texts = [self._written(row[width:]) for row in sequences.tolist()]
        seconds, count = round(time.perf_counter() - started, 4), sum(map(len, texts))
        if drafter is not None:
            calls, verified = found.num_calls, found.verified_tokens
        else:  # a row without drafts takes a pass for each of its tokens
            calls, verified = (len(passes) - 1 if len(texts) == 1 else count - len(texts)), 0
        equal, first = int(references is None or texts == references), questions[0]
        return Decode(first.question_id, first.category, system, seconds, count, calls, verified, equal), texts

    def _written(self, tokens: list[int]) -> list[int]:
        """A row of new tokens up to its end; what follows is padding."""
        ends = self.base.eos_ids if self.format.eos_ids is None else self.format.eos_ids
        return tokens[: next((index + 1 for index, token in enumerate(tokens) if token in ends), len(tokens))]

    def _drafter(self, system: str, reference: Sequence[int]) -> Any:
        name = system.removesuffix(BY_COST)
        if system == "oracle":
            return HindsightDrafter(self.loaded.lattice_source(self.given.k or 16), reference)
        return self.loaded.drafter(name, k=self.given.k, costs=self.costs if name != system else None)


def batches(questions: Iterable[Question], size: int) -> list[list[Question]]:
    """Batches of the same size, in order; what is left over is not asked."""
    asked = list(questions)
    return [asked[begin : begin + size] for begin in range(0, len(asked) - size + 1, size)]


def rotated(systems: Sequence[str], number: int) -> list[str]:
    """The systems in this batch's order; ``generate()`` comes first, since its texts are the reference."""
    others = [system for system in systems if system != STOCK[0]]
    turn = number % len(others)
    return [STOCK[0], *others[turn:], *others[:turn]]


def chosen(everything: Iterable[Question], limit: int) -> Iterator[Question]:
    """The first ``limit`` questions of every category, category by category in turn."""
    by_category: dict[str, list[Question]] = {}
    for question in everything:
        by_category.setdefault(question.category, []).append(question)
    for rank in range(limit):
        yield from (questions[rank] for questions in by_category.values() if rank < len(questions))


def table(decodes: Iterable[Decode], title: str, batch: int = 1) -> None:
    """Every system on the questions, or batches of them, that all have answered."""
    by_system: dict[str, dict[int, Decode]] = {}
    for decode in decodes:
        by_system.setdefault(decode.system, {})[decode.question] = decode
    questions = sorted(set.intersection(*map(set, by_system.values())))
    greedy, rows = sum(by_system[STOCK[0]][question].seconds for question in questions), []
    for system, answers in by_system.items():
        counts = [
            (row.tokens, row.calls, row.verified, row.equal, row.seconds) for row in map(answers.get, questions) if row
        ]
        tokens, calls, verified, equal, seconds = np.array(counts).T
        efficiency, low, high = pooled(tokens - batch, calls)
        speed, gain = f"{tokens.sum() / seconds.sum():.1f}", f"{greedy / seconds.sum():.2f}×"
        share, others = f"{verified.sum() / calls.sum():.1f}", f"{len(equal) - equal.sum():.0f}"
        rows.append([system, f"{efficiency:.3f}", f"{low:.2f}–{high:.2f}", share, speed, gain, others])
    what = "questions" if batch == 1 else f"batches of {batch}"
    print_table(f"{title}, {len(questions)} {what}", HEAD, rows)


def measure(given: argparse.Namespace) -> None:
    """Decode what is not in the output file yet."""
    costs = None if given.costs is None else CostCurve.load(given.costs)
    bench, known = Bench(given, costs), {(decode.question, decode.system) for decode in Decode.read(given.output)}
    systems = [*bench.stock, *given.systems.split(","), *([f"64-calibrated{BY_COST}"] if costs is not None else [])]
    if given.batch > 1:  # these take single texts alone
        systems = [system for system in systems if system not in (*STOCK[1:], "oracle")]
    fits = lambda each: given.longest is None or len(bench.prompt(each)) <= given.longest  # noqa: E731
    asked = batches(chosen(filter(fits, read_questions(given.questions)), given.limit), given.batch)
    for system in systems:
        bench.decode(system, asked[0], None)  # warms up
    for number, questions in enumerate(asked):
        first, references = questions[0], None
        if all((first.question_id, system) in known for system in systems):
            continue
        for system in rotated(systems, number):
            decode, texts = bench.decode(system, questions, references)
            references = references or texts
            if (first.question_id, system) not in known:
                decode.append(given.output)
        err.print(f"{number + 1}/{len(asked)} {first.category}", style="dim")


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("questions", type=Path, help="Spec-Bench's question.jsonl")
    about = "CSV file of all decodes; resumed where it ends"
    parser.add_argument("-o", "--output", type=Path, required=True, help=about)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lm", type=Path, help="n-gram model; that of the model by default")
    about = "draft with this block drafter instead of heads; needs a file of its own"
    parser.add_argument("--drafter-model", type=Path, help=about)
    about = "also `generate(assistant_model=...)`: a directory of `train rescorer`, say"
    parser.add_argument("--assistant", type=Path, help=about)
    parser.add_argument("-k", type=int, default=64, help="arcs per slot")
    parser.add_argument("--limit", type=int, default=10, help="questions of each category")
    parser.add_argument("--batch", type=int, default=1, help="questions that are answered together")
    parser.add_argument("--longest", type=int, help="leave out questions of more tokens")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--systems", default=SYSTEMS, help="names, separated by commas")
    about = "of `latticebpd profile`: adds 64-calibrated trees cut to what pays off"
    parser.add_argument("--costs", type=Path, help=about)
    parser.add_argument("--threads", type=int, default=2)
    about = "what our systems compute passes from, as `latticebpd generate` takes it; needs a file of its own"
    parser.add_argument("--weights", default=TORCH, choices=WEIGHTS, help=about)
    about = "print the tables of what has been decoded, and decode nothing"
    parser.add_argument("--table", action="store_true", help=about)
    given = parser.parse_args()
    set_up(given.threads)
    if not given.table:
        measure(given)
    done, tasks = Decode.read(given.output), [""]
    task_of = {decode.category: Question(0, decode.category, [""]).task for decode in done}
    tasks += task_of.values() if given.batch == 1 else []
    for task in dict.fromkeys(tasks):
        own = (decode for decode in done if not task or task_of[decode.category] == task)
        table(own, task or "all tasks", given.batch)
    print()
    signature(model=given.model, batch=given.batch, k=given.k, weights=given.weights)


if __name__ == "__main__":
    run(main)
