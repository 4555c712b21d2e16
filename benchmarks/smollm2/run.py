"""Spec-Bench on a real pretrained model: tokens per call and per second of every system, beside what a user would pick instead.

    latticebpd models get smollm2-135m
    python -m benchmarks.smollm2.run question.jsonl -o results.csv --limit 10 --threads 2
    python -m benchmarks.smollm2.run question.jsonl -o results.csv --table       # of what is there already
    python -m benchmarks.smollm2.run question.jsonl -o batches.csv --batch 4 --longest 200 --costs costs.json

Systems take turns on each question, or batch of questions, in an order that rotates, so that a drift of the machine's speed meets all
alike; every decode is one line of the CSV file, and the same command goes on where it was stopped.  Batches of each size, like kernels,
need a file of their own.  A decode with a text that is not ``generate()``'s, token for token, is counted in the last column.
Intervals: 95 %, questions, or batches of them, drawn anew, 2,000 times.
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
from rich.console import Console
from rich.table import Table

from benchmarks.smollm2.intervals import interval
from latticebpd import BlockLattices, BlockwiseLM, generate, load_block_drafter, use_cpu_kernels
from latticebpd.drafters import HeadLattices, LatticeSource, drafter_named
from latticebpd.drafters.cost_curve import CostCurve
from latticebpd.drafters.default_systems import lattice_shape
from latticebpd.drafters.lattice_drafter import HindsightDrafter
from latticebpd.drafters.pretrained import lm_beside, load_model, load_stock, load_tokenizer
from latticebpd.measuring.spec_bench import Question, read_questions
from latticebpd.target.chat import prompt_format
from latticebpd.target.stock_model import BaseModel

STOCK = ("generate()", "generate(prompt lookup)", "generate(assistant)")
"""`transformers`' own; the last with ``--assistant``."""
BY_COST = " by cost"
SYSTEMS = (
    "greedy", "vanilla", "16-best:0-gram", "16-best", "16-tree:0-gram", "16-tree", "64-tree", "16-copies", "copies+16-tree",
    "8-calibrated", "12-calibrated", "16-calibrated", "64-calibrated", "oracle",
)  # fmt: skip
"""By default; with ``--costs`` also ``64-calibrated by cost``."""
out = Console(highlight=False)


@dataclass(frozen=True)
class Decode:
    """One system's answers to a batch of questions, which the first one's number and category name.

    tokens: new ones, the prefills' included.  calls: forward passes after the prefill, each counted for every row that it served.
    equal: whether all texts are ``generate()``'s.
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
        if not path.exists():
            return []
        with open(path, newline="", encoding="utf-8") as file:
            return [
                cls(**{each.name: _KINDS[each.type](row[each.name]) for each in fields(cls)})
                for row in csv.DictReader(file)
            ]

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

    def __init__(
        self,
        name: str,
        lm: Path | None,
        k: int,
        max_new_tokens: int,
        narrowed: bool,
        costs: CostCurve | None,
        device: str = "cpu",
        drafter: Path | None = None,
        assistant: Path | None = None,
    ) -> None:
        self.served = load_model(name)
        if narrowed:
            use_cpu_kernels(self.served)
        self.served.to(device)  # type: ignore[arg-type]
        self.base = BaseModel.of(self.served)
        self.format = prompt_format(load_tokenizer(name), self.served)
        self.lm = lm or lm_beside(name)
        self.k, self.max_new_tokens, self.costs = k, max_new_tokens, costs
        self.blocks = None if drafter is None else load_block_drafter(drafter)
        if self.blocks is not None:
            self.blocks = (use_cpu_kernels(self.blocks) if narrowed else self.blocks).to(device)
        self.assistant = None if assistant is None else load_stock(assistant).to(device)  # type: ignore[arg-type]
        self.calls = 0
        self.base.model.register_forward_pre_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.calls += 1

    def prompt(self, question: Question) -> list[int]:
        return self.format.prompt(question.turns[:1])

    def decode(
        self, system: str, questions: Sequence[Question], references: Sequence[Sequence[int]] | None
    ) -> tuple[Decode, list[list[int]]]:
        """The system's answers to the questions' first turns, together; ``references`` are ``generate()``'s."""
        prompts = [self.prompt(question) for question in questions]
        width = max(map(len, prompts))
        ids, mask = torch.zeros(2, len(prompts), width, dtype=torch.long, device=self.base.device)
        for row, prompt in enumerate(prompts):  # padding stands on the left, as `generate()` wants it
            ids[row, width - len(prompt) :], mask[row, width - len(prompt) :] = torch.tensor(prompt), 1
        ends = {} if self.format.eos_ids is None else {"eos_token_id": self.format.eos_ids}
        drafter = None if system in STOCK else self._drafter(system, references[0] if references else [])
        started = time.perf_counter()
        if drafter is None:
            drafts: dict[str, dict[str, Any]] = {
                STOCK[1]: {"prompt_lookup_num_tokens": 10},
                STOCK[2]: {"assistant_model": self.assistant},
            }
            self.calls = 0
            sequences = self.base.model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=self.max_new_tokens,
                **ends,
                **drafts.get(system, {}),
            )
        else:
            found = generate(self.served, ids, drafter, attention_mask=mask, max_new_tokens=self.max_new_tokens, **ends)
            sequences = found.sequences
        texts = [self._written(row[width:]) for row in sequences.tolist()]
        seconds = time.perf_counter() - started
        count = sum(map(len, texts))
        if drafter is not None:
            calls, verified = found.num_calls, found.verified_tokens
        else:  # a row without drafts takes a pass for each of its tokens
            calls, verified = (self.calls - 1 if len(texts) == 1 else count - len(texts)), 0
        equal = int(references is None or texts == references)
        first = questions[0]
        return Decode(
            first.question_id, first.category, system, round(seconds, 4), count, calls, verified, equal
        ), texts

    def _written(self, tokens: list[int]) -> list[int]:
        """A row of new tokens up to its end; what follows is padding."""
        ends = self.base.eos_ids if self.format.eos_ids is None else self.format.eos_ids
        return tokens[: next((place + 1 for place, token in enumerate(tokens) if token in ends), len(tokens))]

    def _drafter(self, system: str, reference: Sequence[int]) -> Any:
        lm, name = None if self.lm is None else str(self.lm), system.removesuffix(BY_COST)
        shape = lattice_shape(self.k, None, name, lm)
        source: LatticeSource | None = None
        if self.blocks is not None:
            source = BlockLattices(self.blocks, self.served, *shape)
        elif isinstance(self.served, BlockwiseLM):
            source = HeadLattices(self.served, *shape)
        if system == "oracle":
            if source is None:
                raise ValueError("expected a model with heads, or --drafter-model, for the oracle, got neither")
            return HindsightDrafter(source, reference)
        return drafter_named(name, source, lm, costs=self.costs if name != system else None)


def batches(questions: Iterable[Question], size: int) -> list[list[Question]]:
    """Batches of the same size, in order; what is left over is not asked."""
    asked = list(questions)
    return [asked[begin : begin + size] for begin in range(0, len(asked) - size + 1, size)]


def rotated(systems: Sequence[str], number: int) -> list[str]:
    """The systems in this batch's order; ``generate()`` comes first, since its texts are the others' yardstick."""
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


def table(decodes: Iterable[Decode], title: str, batch: int = 1) -> Table:
    """Every system on the questions, or batches of them, that all have answered."""
    by_system: dict[str, dict[int, Decode]] = {}
    for decode in decodes:
        by_system.setdefault(decode.system, {})[decode.question] = decode
    questions = sorted(set.intersection(*(set(answers) for answers in by_system.values())))
    greedy = sum(by_system[STOCK[0]][question].seconds for question in questions)
    made = Table(
        "system", title=f"{title}, {len(questions)} {'questions' if batch == 1 else f'batches of {batch}'}", box=None
    )
    for heading in ("tokens/call", "95 %", "verified/call", "tokens/s", "vs. generate()", "other texts"):
        made.add_column(heading, justify="right")
    for system, answers in by_system.items():
        rows = [answers[question] for question in questions]
        tokens, calls = np.array([row.tokens - batch for row in rows]), np.array([row.calls for row in rows])
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
    parser.add_argument(
        "-o", "--output", type=Path, required=True, help="CSV file of all decodes; goes on where it ends"
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--lm", type=Path, help="n-gram model; that beside the model by default")
    parser.add_argument(
        "--drafter-model", type=Path, help="draft with this block drafter instead of heads; needs a file of its own"
    )
    parser.add_argument(
        "--assistant", type=Path, help="also `generate(assistant_model=...)`: a directory of `train rescorer`, say"
    )
    parser.add_argument("-k", type=int, default=64, help="arcs per slot")
    parser.add_argument("--limit", type=int, default=10, help="questions of each category")
    parser.add_argument("--batch", type=int, default=1, help="questions that are answered together")
    parser.add_argument("--longest", type=int, help="leave out questions of more tokens")
    parser.add_argument("--device", default="cpu", help="such as cuda")
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="names, separated by commas")
    parser.add_argument("--costs", type=Path, help="of `latticebpd profile`: adds 64-calibrated trees cut to what pays")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--narrow", action="store_true", help="all systems on the kernels for few tokens; needs a file of its own"
    )
    parser.add_argument(
        "--table", action="store_true", help="print the tables of what has been decoded, and decode nothing"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    costs = None if arguments.costs is None else CostCurve.load(arguments.costs)
    done = Decode.read(arguments.output)
    if not arguments.table:
        bench = Bench(
            arguments.model, arguments.lm, arguments.k, arguments.max_new_tokens, arguments.narrow, costs, arguments.device,
            arguments.drafter_model, arguments.assistant,
        )  # fmt: skip
        systems = [
            *STOCK[: 2 if arguments.assistant is None else 3],
            *arguments.systems.split(","),
            *([f"64-calibrated{BY_COST}"] if costs is not None else []),
        ]
        if arguments.batch > 1:  # which takes single texts alone, as does the oracle
            systems = [system for system in systems if system not in (*STOCK[1:], "oracle")]
        known = {(decode.question, decode.system) for decode in done}
        longest = arguments.longest
        fitting = [
            each
            for each in read_questions(arguments.questions)
            if longest is None or len(bench.prompt(each)) <= longest
        ]
        asked = batches(chosen(fitting, arguments.limit), arguments.batch)
        for system in systems:
            bench.decode(system, asked[0], None)  # warms up
        for number, questions in enumerate(asked):
            first = questions[0]
            if all((first.question_id, system) in known for system in systems):
                continue
            references: list[list[int]] | None = None
            for system in rotated(systems, number):
                decode, texts = bench.decode(system, questions, references)
                references = texts if references is None else references
                if (first.question_id, system) not in known:
                    decode.append(arguments.output)
            out.print(f"{number + 1}/{len(asked)} {first.category}", style="dim")
        done = Decode.read(arguments.output)
    tasks = [] if arguments.batch > 1 else [Question(0, decode.category, [""]).task for decode in done]
    for task in dict.fromkeys(["", *tasks]):
        own = [decode for decode in done if not task or Question(0, decode.category, [""]).task == task]
        out.print(table(own, task or "all tasks", arguments.batch))
    kernels = "narrow" if arguments.narrow else "PyTorch's"
    out.print(
        f"{arguments.model} | batch {arguments.batch} | k {arguments.k} | {arguments.max_new_tokens} tokens | kernels {kernels} | "
        f"threads {arguments.threads} | cpus {os.cpu_count()} | "
        f"{platform.processor() or platform.machine()} | torch {torch.__version__} | transformers {transformers.__version__}",
        style="dim",
    )


if __name__ == "__main__":
    main()
