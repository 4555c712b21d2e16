"""How many tokens a second and a call Qwen2.5-Coder writes, by what it drafts from, and whether the texts are equal.

    python -m benchmarks.qwen.speed humaneval.jsonl --model qwen2.5-coder-0.5b -o results/humaneval-0.5b.csv
    python -m benchmarks.qwen.speed question.jsonl --model qwen2.5-coder-0.5b -o results/spec-bench-0.5b.csv
    python -m benchmarks.qwen.speed infilling.jsonl --model qwen2.5-coder-0.5b -o results/infilling-0.5b.csv
    python -m benchmarks.qwen.speed -o results/humaneval-0.5b.csv --table       # of what was measured before

The systems answer question by question, each in a random order. Times are the engine's own process's: by the clock, and
of processors; prompts are in them. Infilling tasks are asked by the model's tokens for a prefix and a suffix, those of
one line, which end with it, and of a random span by turns, one function after another.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import (
    columns,
    err,
    grouped,
    in_turn,
    interval,
    options,
    read_csv,
    read_lines,
    run,
    set_up,
    signature,
    stamped,
    table,
    with_interval,
    write_csv,
    write_json,
)  # fmt: skip
from latticebpd import Drafter, Loaded, load
from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.models.catalogue import ASSETS, CATALOGUE, GGUF_NAME, resolved
from latticebpd.serving.infill_prompts import InfillPrompts

GREEDY, TEXT, NGRAM, DEFAULT = "greedy", "text", "text and n-gram model", "default"
SYSTEMS = (GREEDY, "2-copies", "16-copies", TEXT, NGRAM, DEFAULT)
SINGLE_LINE = "SingleLineInfilling"
COMPLETE = "Complete this function:\n\n```python\n{}```"
HEAD = ("drafts from", "tokens/s", "times greedy (95 %)", "by processor time", "tokens a call", "drafted a call")
Row = dict[str, Any]


def text_hash(text: str) -> str:
    """What rows of all libraries have of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Question(NamedTuple):
    """A text, and for infilling what follows the gap after it."""

    name: str
    kind: str
    text: str
    after: str | None = None

    @property
    def is_line(self) -> bool:
        """Whether the answer ends with its line."""
        return self.kind == SINGLE_LINE


def question_of(record: Row) -> Question:
    """HumanEval's are asked for a complete function or for what a gap had, Spec-Bench's first turns."""
    if "suffix" in record:
        kind = record["task_id"].partition("/")[0]
        return Question(record["task_id"], kind, record["prompt"], record["suffix"])
    if "prompt" in record:
        return Question(record["task_id"], "humaneval", COMPLETE.format(record["prompt"]))
    return Question(str(record["question_id"]), record["category"], record["turns"][0])


def read_tasks(path: Path) -> list[Row]:
    """The records of a file. Infilling tasks come in the order of first ones of every kind and function."""
    records = read_lines(path)
    if "suffix" not in records[0]:
        return records
    kinds = [record["task_id"].partition("/")[0] for record in records]
    pairs = in_turn(zip(kinds, records, strict=True), lambda pair: (pair[0], pair[1]["entry_point"]))
    return [record for _, record in in_turn(pairs, itemgetter(0))]


def questions(path: Path, most: int | None, left_out: int = 0) -> list[Question]:
    """Questions of a file, after so many that are left out: those that others have read."""
    return [question_of(record) for record in read_tasks(path)[left_out:][:most]]


def prompt_of(loaded: Loaded, question: Question) -> tuple[list[int], list[int]]:
    """Token ids of a question, and the tokens that end its answer."""
    if question.after is None:
        return loaded.encode(question.text), list(loaded.prompts.eos_ids or loaded.target.eos_ids)
    infill = InfillPrompts(loaded)
    infill.check()
    spelled = model_tokens(loaded.tokenizer, loaded.target.vocab_size).spelled if question.is_line else ()
    lines = [token for token, text in enumerate(spelled) if text and b"\n" in text]
    return infill.between(question.text, question.after), [*infill.end_ids, *lines]


def loaded_by_system(model: str, systems: Sequence[str]) -> dict[str, Loaded]:
    """The model with what each of our systems drafts from; other systems have all that there is."""
    loaded = {DEFAULT: load(model)}
    file, ngram = loaded[DEFAULT].folder / GGUF_NAME, ASSETS / CATALOGUE[model].assets[0] / "lm.fst"
    loaded |= {name: load(file, lm) for name, lm in ((TEXT, None), (NGRAM, ngram)) if name in systems}
    for each in loaded.values():
        _ = each.costs  # measured once a day, before any question
    return loaded


def drafter(loaded: dict[str, Loaded], system: str) -> tuple[Loaded, Drafter]:
    model = loaded.get(system, loaded[DEFAULT])
    return model, model.drafter(None if system in loaded else system)


def measure(
    model: str, asked: Sequence[Question], systems: Sequence[str], new_tokens: int, temperature: float
) -> list[Row]:
    """A row for each question and system; ValueError where the systems' greedy texts differ."""
    loaded, rng, rows = loaded_by_system(model, systems), Random(0), list[Row]()
    for system in systems:  # what is loaded when it is first needed
        target, drafts = drafter(loaded, system)
        target.generate(target.encode("Hello"), drafts, max_new_tokens=8)
    for number, question in enumerate(asked):
        (ids, ends), texts = prompt_of(loaded[DEFAULT], question), dict[str, list[int]]()
        for system in rng.sample(systems, len(systems)):
            target, drafts = drafter(loaded, system)
            sampling = {"temperature": temperature, "seed": number} if temperature else {}
            begun, used = time.perf_counter(), time.process_time()
            out = target.generate(ids, drafts, max_new_tokens=new_tokens, eos_token_id=ends, **sampling)
            seconds, processor = time.perf_counter() - begun, time.process_time() - used
            texts[system] = out.tokens[0, out.prompt_length :].tolist()
            counts = {"tokens": out.num_tokens, "calls": out.num_calls, "drafted": out.verified_tokens}
            about = {"question": question.name, "kind": question.kind, "system": system, "prompt": len(ids)}
            text = text_hash(target.tokenizer.decode(texts[system], skip_special_tokens=True))
            rows.append({**about, **counts, "seconds": seconds, "processor": processor, "text": text})
        if not temperature and any(each != texts[systems[0]] for each in texts.values()):
            raise ValueError(f"{question.name}: expected one text of all systems, got several")
        err.print(f"{number + 1}/{len(asked)} {question.name}", style="dim")
    return rows


def ratio(rows: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]], clock: str) -> str:
    """Tokens a second over those of greedy decoding, with the interval over questions."""
    own, greedy = (columns(each, "tokens", clock) for each in (rows, baseline))

    def measured(drawn: np.ndarray) -> Any:
        (tokens, seconds), (of_greedy, its_seconds) = (each[:, drawn].sum(axis=-1) for each in (own, greedy))
        return (tokens / seconds) / (of_greedy / its_seconds)

    return with_interval(*interval(measured, len(rows)))


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system."""
    by_system, lines = grouped(rows, "system"), []
    for system in sorted(by_system, key=lambda name: (*SYSTEMS, name).index(name)):
        own, greedy = by_system[system], by_system[GREEDY]
        tokens, calls, drafted, seconds = columns(own, "tokens", "calls", "drafted", "seconds").sum(axis=1)
        ratios = [ratio(own, greedy, clock) for clock in ("seconds", "processor")]
        counts = [f"{tokens / calls:.2f}", f"{drafted / calls:.2f}"]
        lines.append([system, f"{tokens / seconds:.1f}", *ratios, *counts])
    return lines


def tables(rows: Sequence[Mapping[str, Any]]) -> None:
    """One table of every kind of question, and one of all."""
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    for kind in [*kinds, *([None] if len(kinds) > 1 else [])]:
        chosen = [row for row in rows if kind in (None, row["kind"])]
        count = len({row["question"] for row in chosen})
        table(f"{kind or 'all'}: {count} questions", HEAD, lines_of(chosen))


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument(
        "questions", type=Path, nargs="?", help="HumanEval, its infilling, or Spec-Bench: JSON lines, or .xz"
    )
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="of the catalogue")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of these, separated by commas")
    parser.add_argument("--most", type=int, help="questions, the first ones")
    parser.add_argument("--left-out", type=int, default=0, help="so many questions before them")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 decodes greedily")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        set_up(args.threads)
        asked, systems = questions(args.questions, args.most, args.left_out), args.systems.split(",")
        rows = measure(args.model, asked, systems, args.new_tokens, args.temperature)
        write_csv(args.output, stamped(rows, Path(resolved(args.model))))
        about = {name: str(getattr(args, name)) for name in ("model", "new_tokens", "temperature", "threads")}
        write_json(args.output.with_suffix(".json"), signature(**about))
    tables(read_csv(args.output))


if __name__ == "__main__":
    run(main)
