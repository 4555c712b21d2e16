"""How many functions of HumanEval, or of its infilling tasks, a model's first answer gets right: pass@1.

    python -m benchmarks.qwen.pass_at_1 humaneval.jsonl --model qwen2.5-coder-0.5b -o results/pass-0.5b.csv
    python -m benchmarks.qwen.pass_at_1 -o results/pass-0.5b.csv --table        # of what was measured before

Prompts are those of `speed.py`, answers greedy ones. An answer's code is its first fenced block with the function, or
else its first block, or all of it. Its imports, definitions and constants follow what the prompt has before the
function. It passes if the task's own tests do, in a process that may do little (`sandbox.py`). The first ``--greedy``
questions are also answered without drafts. A run that was killed goes on.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    columns,
    err,
    grouped,
    interval,
    options,
    read_csv,
    resumed,
    run,
    set_up,
    signature,
    table,
    with_interval,
    write_csv,
    write_json,
)
from benchmarks.qwen.sandbox import PASSED, outcome
from benchmarks.qwen.speed import (
    DEFAULT,
    GREEDY,
    Row,
    drafter,
    loaded_by_system,
    prompt_of,
    question_of,
    read_tasks,
    text_hash,
)

HEAD = ("drafts from", "questions", "passed", "pass@1, % (95 %)", "tokens an answer", "texts equal to greedy ones")
BLOCK = re.compile(r"^[ \t]*```[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
BEGIN = re.compile(r"^(?:def |class |@|import |from [\w.]+ import )", re.M)
KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
CONSTANTS = (ast.Assign, ast.AnnAssign)


def defined(function: str) -> re.Pattern[str]:
    """Where a function's definition begins."""
    return re.compile(rf"^[ \t]*(?:async )?def {re.escape(function)}\b", re.M)


def code_of(text: str, function: str) -> str:
    """An answer's block with the function, or else its first block, which may lack an end; without blocks what begins
    with the first line that looks like Python's, or all of it."""
    blocks = BLOCK.findall(text)
    if not blocks:
        return text[found.start() :] if (found := BEGIN.search(text)) else text
    return next(filter(defined(function).search, blocks), blocks[0])


def names(tree: ast.AST, function: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == function for node in ast.walk(tree))


def definitions(code: str, function: str) -> str | None:
    """What a code imports and defines, up to the last line from which on Python cannot read it; None without the
    function. Calls, such as examples, are left out, and constants that name the function."""
    lines = textwrap.dedent(code).split("\n")
    for end in range(len(lines), 0, -1):
        try:
            with warnings.catch_warnings(action="ignore"):
                tree = ast.parse("\n".join(lines[:end]))
        except (SyntaxError, ValueError):
            continue
        tree.body = [
            node
            for node in tree.body
            if isinstance(node, KEPT) or (isinstance(node, CONSTANTS) and not names(node, function))
        ]
        own = ast.unparse(tree)
        return own if defined(function).search(own) else None
    return None


def program(task: Mapping[str, Any], text: str) -> str:
    """An answer with the task's tests, and a call of them."""
    before, function = task["prompt"], task["entry_point"]
    tests = f"{task['test']}\ncheck({function})\n"
    if "suffix" in task:
        filled = text.partition("\n")[0] + "\n" if question_of(task).is_line else text
        return f"{before}{filled}{task['suffix']}\n{tests}"
    code = code_of(text, function)
    if (own := definitions(code, function)) is not None:
        begin = [found.start() for found in defined(function).finditer(before)][-1]
        return f"{before[:begin]}\n{own}\n{tests}"
    return f"{before}{textwrap.indent(textwrap.dedent(code), '    ')}\n{tests}"


def check_solutions(tasks: Sequence[Row]) -> None:
    """ValueError where a task's own solution does not pass: nothing could be measured there."""
    for task in tasks:
        own = f"{task['prompt']}{task['canonical_solution']}{task.get('suffix', '')}"
        ended = outcome(f"{own}\n{task['test']}\ncheck({task['entry_point']})\n")
        if ended != PASSED:
            raise ValueError(f"{task['task_id']}: expected its own solution to pass, got {ended}")


def answers(model: str, tasks: Sequence[Row], greedy: int, new_tokens: int, kept: Path) -> list[Row]:
    """The texts of the default system for all tasks, and without drafts for the first ``greedy``; kept in a file."""
    items = [*((DEFAULT, task) for task in tasks), *((GREEDY, task) for task in tasks[:greedy])]
    loaded = loaded_by_system(model, [DEFAULT])

    def answer(item: tuple[str, Row]) -> list[Row]:
        system, task = item
        target, drafts = drafter(loaded, system)
        ids, ends = prompt_of(target, question_of(task))
        out = target.generate(ids, drafts, max_new_tokens=new_tokens, eos_token_id=ends)
        tokens = out.tokens[0, out.prompt_length :].tolist()
        text = target.tokenizer.decode(tokens, skip_special_tokens=True)
        err.print(f"{system}: {task['task_id']}", style="dim")
        return [{"question": task["task_id"], "system": system, "tokens": out.num_tokens, "answer": text}]

    def name(item: tuple[str, Row]) -> str:
        return f"{model}, {new_tokens} tokens, {item[0]}: {item[1]['task_id']}"

    return resumed(kept, items, name, answer, loaded[DEFAULT].folder)


def judged(rows: Sequence[Row], tasks: Sequence[Row]) -> list[Row]:
    """Answers as rows: whether they pass, how they end otherwise, and a hash in place of the text."""
    by_name, ends, done = {task["task_id"]: task for task in tasks}, dict[tuple[str, str], str](), list[Row]()
    for row in rows:
        text, question = row["answer"], row["question"]
        if (question, text) not in ends:
            ends[question, text] = outcome(program(by_name[question], text))
        ended = ends[question, text]
        short = {"text": text_hash(text)}
        rest = {name: value for name, value in row.items() if name != "answer"}
        origin = {"made by": rest.pop("made by")}
        done.append(rest | {"passed": int(ended == PASSED), "ended": ended} | short | origin)
    return done


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system: how many answers pass, and the share with its interval over questions."""
    lines = list[list[str]]()
    by_system = grouped(rows, "system")
    greedy = {row["question"]: row["text"] for row in by_system.get(GREEDY, ())}
    for system, own in by_system.items():
        passed, tokens = columns(own, "passed", "tokens")

        def share(drawn: np.ndarray, passed: np.ndarray = passed) -> Any:
            return 100 * passed[drawn].mean(axis=-1)

        both = [row for row in own if row["question"] in greedy]
        same = sum(row["text"] == greedy[row["question"]] for row in both)
        counts = [f"{len(own)}", f"{passed.sum():.0f}", with_interval(*interval(share, len(own)), places=1)]
        lines.append([system, *counts, f"{tokens.mean():.0f}", f"{same} of {len(both)}" if both else ""])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("tasks", type=Path, nargs="?", help="HumanEval or its infilling: JSON lines, or .xz")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="of the catalogue")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--most", type=int, help="questions, the first ones")
    parser.add_argument("--greedy", type=int, default=20, help="questions that are answered without drafts too")
    parser.add_argument("--new-tokens", type=int, default=512)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        set_up(args.threads)
        tasks = read_tasks(args.tasks)[: args.most]
        check_solutions(tasks)
        kept = args.output.with_suffix(".jsonl")
        write_csv(args.output, judged(answers(args.model, tasks, args.greedy, args.new_tokens, kept), tasks))
        about = {name: str(getattr(args, name)) for name in ("model", "new_tokens", "threads")}
        write_json(args.output.with_suffix(".json"), signature(**about))
    table("", HEAD, lines_of(read_csv(args.output)))


if __name__ == "__main__":
    run(main)
