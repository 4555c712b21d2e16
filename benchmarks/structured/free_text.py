"""Free text under a constraint that allows any: tokens a second of the default with and without it.

    python -m benchmarks.structured.free_text bfcl-*.jsonl --model qwen2.5-coder-0.5b -o free-text-0.5b.csv
    python -m benchmarks.structured.free_text -o free-text-0.5b.csv --table

Questions are the Berkeley Function Calling Leaderboard's, without their functions. The systems answer question by
question, in a random order, once the prompt has been read: *greedy* drafts nothing, *no constraint* is the default,
*any text* is the default under a regular expression that any text matches, *trigger* under a constraint that would
begin with a string that no answer has. A run that was killed goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.common import columns, err, grouped, read_csv, resumed, run, set_up, table, write_csv
from benchmarks.qwen.speed import ratio
from benchmarks.structured.tool_calls import call_options, drawn, note
from latticebpd import NoDrafter, TextCache, json_object, load, regex
from latticebpd.constraints.constraint import Constraint
from latticebpd.constraints.triggered import Triggered

GREEDY, FREE = "greedy", "no constraint"
CONSTRAINTS: dict[str, Constraint] = {
    "any text": regex("(?s:.*)"),
    "trigger": Triggered(("<never written>",), json_object()),
}
SYSTEMS = (GREEDY, FREE, *CONSTRAINTS)
HEAD = ("drafts", "tokens/s", "times no constraint (95 %)", "by processor time", "tokens a call", "texts as without")


def measure(model: str, records: Sequence[Any], new_tokens: int, kept: Path) -> list[dict[str, Any]]:
    """A row for each question and system, kept in a file as they are made."""
    loaded, rng = load(model), Random(0)
    drafters = {system: NoDrafter() if system == GREEDY else loaded.drafter() for system in SYSTEMS}
    for system in SYSTEMS:  # what is read, measured and compiled when it is first needed
        loaded.generate("Hello", drafters[system], max_new_tokens=8, constraint=CONSTRAINTS.get(system))

    def answered(record: Any) -> list[dict[str, Any]]:
        prompts: Any = loaded.prompts
        ids, cache = prompts.prompt_of(record["question"][0]), TextCache()
        loaded.generate(ids, NoDrafter(), max_new_tokens=1, text_cache=cache)
        texts, rows = dict[str, list[int]](), list[dict[str, Any]]()
        for system in rng.sample(SYSTEMS, len(SYSTEMS)):
            begun, used = time.perf_counter(), time.process_time()
            out = loaded.generate(
                ids, drafters[system], max_new_tokens=new_tokens, text_cache=cache, constraint=CONSTRAINTS.get(system)
            )
            seconds, processor = time.perf_counter() - begun, time.process_time() - used
            texts[system] = out.tokens[0, out.prompt_length :].tolist()
            calls = out.num_calls + sum(map(bool, out.prefilled))
            rows.append({"question": record["id"], "system": system, "tokens": out.num_tokens, "calls": calls,
                         "drafted": out.verified_tokens, "seconds": seconds, "processor": processor})  # fmt: skip
        err.print(record["id"], style="dim")
        return [{**row, "equal": int(texts[row["system"]] == texts[FREE])} for row in rows]

    return resumed(kept, records, lambda record: str(record["id"]), answered, loaded.folder)


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system."""
    by_system, lines = grouped(rows, "system"), []
    for system in SYSTEMS:
        own, free = by_system[system], by_system[FREE]
        tokens, calls, seconds, equal = columns(own, "tokens", "calls", "seconds", "equal").sum(axis=1)
        ratios = [ratio(own, free, clock) for clock in ("seconds", "processor")]
        lines.append([system, f"{tokens / seconds:.1f}", *ratios, f"{tokens / calls:.2f}", f"{equal:.0f}/{len(own)}"])
    return lines


def main() -> None:
    args = call_options(__doc__).parse_args()
    if not args.table:
        set_up(args.threads)
        records = drawn(args.questions, args.most, args.test)
        kept = args.output.with_suffix(".jsonl")
        write_csv(args.output, measure(args.model, records, args.new_tokens, kept))
        note(args)
    rows = read_csv(args.output)
    table(f"free text: {len({row['question'] for row in rows})} questions", HEAD, lines_of(rows))


if __name__ == "__main__":
    run(main)
