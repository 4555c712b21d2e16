"""Spec-Bench on a real pretrained model: tokens per call and per second of every system, beside what a user would pick instead.

    latticebpd models get smollm2-135m
    python benchmarks/smollm2/run.py question.jsonl -o results.csv --limit 10 --threads 2
    python benchmarks/smollm2/run.py question.jsonl -o results.csv --table       # of what is there already

Systems take turns on each question, in an order that rotates, so that a drift of the machine's speed meets all alike; every
decode is one line of the CSV file, and the same command goes on where it was stopped.  A system whose text is not
``generate()``'s, token for token, is counted in the last column.  Intervals: 95 %, questions drawn anew, 2,000 times.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from intervals import interval
from rich.console import Console
from rich.table import Table

from latticebpd import BlockwiseLM, OracleDrafter, generate, narrow
from latticebpd.analysis.spec_bench import Question, read_questions
from latticebpd.drafting import Heads, drafter_named
from latticebpd.drafting.costs import CostCurve
from latticebpd.models.base import BaseModel
from latticebpd.models.chat import prompt_format
from latticebpd.models.pretrained import lm_beside, load_model, load_tokenizer

STOCK = ("generate()", "generate(prompt lookup)")
BY_COST = " by cost"
SYSTEMS = (
    "greedy", "vanilla", "16-best:0-gram", "16-best", "16-tree:0-gram", "16-tree", "64-tree", "16-copies", "copies+16-tree",
    "8-calibrated", "12-calibrated", "16-calibrated", "64-calibrated", "oracle",
)  # fmt: skip
"""By default; with ``--costs`` also ``64-calibrated by cost``."""
out = Console(highlight=False)


@dataclass(frozen=True)
class Decode:
    """One system's answer to one question.  tokens: new ones, the prefill's included; calls: forward passes after the prefill."""

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
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return [cls(**{each.name: _KINDS[each.type](row[each.name]) for each in fields(cls)}) for row in csv.DictReader(file)]

    def append(self, path: Path) -> None:
        new = not path.exists()
        with open(path, "a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [each.name for each in fields(self)])
            if new:
                writer.writeheader()
            writer.writerow(vars(self))


_KINDS: dict[Any, Callable[[str], Any]] = {"int": int, "float": float, "str": str}


class Bench:
    """A model, its n-gram model, and the systems that answer with it."""

    def __init__(self, name: str, lm: Path | None, k: int, max_new_tokens: int, narrowed: bool, costs: CostCurve | None) -> None:
        self.served = load_model(name)
        if narrowed:
            narrow(self.served)
        self.base = BaseModel.of(self.served)
        self.format = prompt_format(load_tokenizer(name), self.served)
        self.lm = lm or lm_beside(name)
        self.k, self.max_new_tokens, self.costs = k, max_new_tokens, costs
        self.calls = 0
        self.base.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def decode(self, system: str, question: Question, reference: list[int] | None) -> tuple[Decode, list[int]]:
        """The system's answer to a question's first turn; ``reference`` is ``generate()``'s."""
        ids = torch.tensor([self.format.prompt(question.turns[:1])])
        mask, ends = torch.ones_like(ids), {} if self.format.eos_ids is None else {"eos_token_id": self.format.eos_ids}
        started = time.perf_counter()
        if system in STOCK:
            lookup = {"prompt_lookup_num_tokens": 10} if system == STOCK[1] else {}
            self.calls = 0
            sequence = self.base.model.generate(
                ids, attention_mask=mask, do_sample=False, max_new_tokens=self.max_new_tokens, **ends, **lookup
            )
            calls, verified = self.calls - 1, 0
        else:
            drafter = self._drafter(system, reference or [])
            found = generate(self.served, ids, drafter, attention_mask=mask, max_new_tokens=self.max_new_tokens, **ends)
            sequence, calls, verified = found.sequences, found.num_calls, found.verified_tokens
        seconds = time.perf_counter() - started
        text = sequence[0, ids.shape[1] :].tolist()
        equal = int(reference is None or text == reference)
        return Decode(question.question_id, question.category, system, round(seconds, 4), len(text), calls, verified, equal), text

    def _drafter(self, system: str, reference: list[int]) -> Any:
        if system == "oracle":
            return OracleDrafter(self._blockwise(), reference, k=self.k)
        source = Heads(self.served, self.k) if isinstance(self.served, BlockwiseLM) else None
        name = system.removesuffix(BY_COST)
        return drafter_named(name, source, None if self.lm is None else str(self.lm), costs=self.costs if name != system else None)

    def _blockwise(self) -> BlockwiseLM:
        if not isinstance(self.served, BlockwiseLM):
            raise ValueError("expected a model with heads for the oracle, got one without")
        return self.served


def rotated(systems: Sequence[str], number: int) -> list[str]:
    """The systems in this question's order; ``generate()`` comes first, since its text is the others' yardstick."""
    others = [system for system in systems if system != STOCK[0]]
    turn = number % len(others)
    return [STOCK[0], *others[turn:], *others[:turn]]


def chosen(path: Path, limit: int) -> Iterator[Question]:
    """The first ``limit`` questions of every category, category by category in turn."""
    by_category: dict[str, list[Question]] = {}
    for question in read_questions(path):
        by_category.setdefault(question.category, []).append(question)
    for rank in range(limit):
        yield from (questions[rank] for questions in by_category.values() if rank < len(questions))


def table(decodes: Iterable[Decode], title: str) -> Table:
    """Every system on the questions that all have answered."""
    by_system: dict[str, dict[int, Decode]] = {}
    for decode in decodes:
        by_system.setdefault(decode.system, {})[decode.question] = decode
    questions = sorted(set.intersection(*(set(answers) for answers in by_system.values())))
    greedy = sum(by_system[STOCK[0]][question].seconds for question in questions)
    made = Table("system", title=f"{title}, {len(questions)} questions", box=None)
    for heading in ("tokens/call", "95 %", "verified/call", "tokens/s", "vs. generate()", "other texts"):
        made.add_column(heading, justify="right")
    for system, answers in by_system.items():
        rows = [answers[question] for question in questions]
        tokens, calls = np.array([row.tokens - 1 for row in rows]), np.array([row.calls for row in rows])
        seconds = sum(row.seconds for row in rows)
        efficiency, low, high = interval(tokens, calls)
        made.add_row(
            system, f"{efficiency:.3f}", f"{low:.2f}–{high:.2f}",
            f"{sum(row.verified for row in rows) / calls.sum():.1f}",
            f"{sum(row.tokens for row in rows) / seconds:.1f}", f"{greedy / seconds:.2f}×", str(sum(1 - row.equal for row in rows)),
        )  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of all decodes; goes on where it ends")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lm", type=Path, help="n-gram model; that beside the model by default")
    parser.add_argument("-k", type=int, default=64, help="arcs per slot")
    parser.add_argument("--limit", type=int, default=10, help="questions of each category")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="names, separated by commas")
    parser.add_argument("--costs", type=Path, help="of `latticebpd profile`: adds 64-calibrated trees cut to what pays")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--narrow", action="store_true", help="all systems on the kernels for few tokens; needs a file of its own")
    parser.add_argument("--table", action="store_true", help="print the tables of what has been decoded, and decode nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    costs = None if arguments.costs is None else CostCurve.load(arguments.costs)
    done = Decode.read(arguments.output)
    if not arguments.table:
        bench = Bench(arguments.model, arguments.lm, arguments.k, arguments.max_new_tokens, arguments.narrow, costs)
        systems = [*STOCK, *arguments.systems.split(","), *([f"64-calibrated{BY_COST}"] if costs is not None else [])]
        known = {(decode.question, decode.system) for decode in done}
        questions = list(chosen(arguments.questions, arguments.limit))
        for system in systems:
            bench.decode(system, questions[0], None)  # warms up
        for number, question in enumerate(questions):
            if all((question.question_id, system) in known for system in systems):
                continue
            reference: list[int] | None = None
            for system in rotated(systems, number):
                decode, text = bench.decode(system, question, reference)
                reference = text if reference is None else reference
                if (question.question_id, system) not in known:
                    decode.append(arguments.output)
            out.print(f"{number + 1}/{len(questions)} {question.category}", style="dim")
        done = Decode.read(arguments.output)
    for task in dict.fromkeys(["", *(Question(0, decode.category, [""]).task for decode in done)]):
        own = [decode for decode in done if not task or Question(0, decode.category, [""]).task == task]
        out.print(table(own, task or "all tasks"))
    kernels = "narrow" if arguments.narrow else "PyTorch's"
    out.print(
        f"{arguments.model} | k {arguments.k} | {arguments.max_new_tokens} tokens | kernels {kernels} | "
        f"threads {arguments.threads} | cpus {os.cpu_count()} | "
        f"{platform.processor() or platform.machine()} | torch {torch.__version__} | transformers {transformers.__version__}",
        style="dim",
    )


if __name__ == "__main__":
    main()
