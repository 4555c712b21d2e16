"""Tool calls under a JSON schema: tokens a second and a call by what is drafted, whether texts are equal, and accuracy.

    python -m benchmarks.structured.tool_calls bfcl-*.jsonl --model qwen2.5-coder-0.5b -o results/bfcl-0.5b.csv
    python -m benchmarks.structured.tool_calls -o results/bfcl-0.5b.csv --table
    python -m benchmarks.structured.tool_calls bfcl-*.jsonl --parts -o parts-0.5b.csv    # where the default's time goes

Questions are the Berkeley Function Calling Leaderboard's, with the functions in the model's chat template and the call
begun. The schema is that of a call of one of them. The systems answer question by question, in a random order, once the
prompt has been read. A call is right if its function and every argument are among the accepted answers. A run that was
killed goes on.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.common import (
    columns,
    err,
    grouped,
    options,
    read_csv,
    read_lines,
    resumed,
    run,
    set_up,
    signature,
    table,
    write_csv,
    write_json,
)
from benchmarks.qwen.speed import ratio
from benchmarks.structured import parts
from latticebpd import Drafter, Loaded, NoDrafter, TextCache, json_object, json_schema, load
from latticebpd.models.chat_templates import render_chat

GREEDY, FORCED, DEFAULT = "greedy", "forced", "default"
DEVELOPED = 15
"""Questions of each file that drafts were developed on."""
SYSTEMS = (GREEDY, FORCED, "16-copies", DEFAULT)
HEAD = (
    "drafts from",
    "tokens/s",
    "times greedy (95 %)",
    "by processor time",
    "tokens a call",
    "drafted a call",
    "right",
)
TYPES = {"dict": "object", "float": "number", "tuple": "array", "any": None}
"""The leaderboard's names of types -> JSON schema's."""
KEPT = ("type", "properties", "items", "required", "enum", "description")


def standard(schema: Any) -> Any:
    """A schema of the leaderboard as a JSON schema that has no other properties than its own."""
    if not isinstance(schema, Mapping):
        return schema
    kept = {name: value for name, value in schema.items() if name in KEPT}
    kind = kept.pop("type", None)
    kind = TYPES.get(kind, kind) if isinstance(kind, str) else kind
    kept |= {} if kind is None else {"type": kind}
    if "properties" in kept:
        kept["properties"] = {name: standard(each) for name, each in kept["properties"].items()}
    if "items" in kept:
        kept["items"] = standard(kept["items"])
    return kept | ({"additionalProperties": False} if kind == "object" and "properties" in kept else {})


def schema_of(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of a call of one of some functions."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": each["name"]}, "arguments": standard(each["parameters"])},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for each in functions
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def prompt(loaded: Loaded, record: Mapping[str, Any]) -> list[int]:
    """Token ids of a question with its functions and the beginning of a call."""
    tools = [
        {"type": "function", "function": {**each, "parameters": standard(each["parameters"])}}
        for each in record["function"]
    ]
    variables = {**loaded.tokenizer.special_tokens_map, "tools": tools, "add_generation_prompt": True}
    text = render_chat(loaded.tokenizer.get_chat_template(tools=tools), record["question"][0], **variables)
    return loaded.prompts.ids(text + "<tool_call>\n")


def is_right(text: str, accepted: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]) -> bool:
    """Whether a call is one of the accepted ones; "" among a value's accepted ones makes it optional."""
    try:
        call = json.loads(text)
    except ValueError:
        return False
    for answer in accepted:
        if (wanted := answer.get(call["name"])) is not None and call["arguments"].keys() <= wanted.keys():
            values = ((call["arguments"].get(name, ""), each) for name, each in wanted.items())
            if all(value in each for value, each in values):
                return True
    return False


def drafter(loaded: Loaded, system: str) -> Drafter:
    if system in (GREEDY, FORCED):
        return NoDrafter(drafts_forced=system == FORCED)
    return loaded.drafter(None if system == DEFAULT else system)


def measure(
    model: str, records: Sequence[Any], systems: Sequence[str], new_tokens: int, kept: Path
) -> list[dict[str, Any]]:
    """A row for each question and system, kept in a file as they are made; ValueError where the systems' texts
    differ."""
    loaded, rng = load(model), Random(0)
    drafters = {system: drafter(loaded, system) for system in systems}
    for each in drafters.values():
        _ = getattr(each, "costs", None)  # measured now
    loaded.generate("{", NoDrafter(), max_new_tokens=1, constraint=json_object())  # the tokens' bytes are read

    def answered(record: Any) -> list[dict[str, Any]]:
        constraint, ids, cache = json_schema(schema_of(record["function"])), prompt(loaded, record), TextCache()
        loaded.generate(ids, NoDrafter(), max_new_tokens=1, text_cache=cache)
        texts, rows = dict[str, list[int]](), list[dict[str, Any]]()
        for system in rng.sample(systems, len(systems)):
            begun, used = time.perf_counter(), time.process_time()
            out = loaded.generate(
                ids, drafters[system], max_new_tokens=new_tokens, text_cache=cache, constraint=constraint
            )
            seconds, processor = time.perf_counter() - begun, time.process_time() - used
            texts[system] = out.tokens[0, out.prompt_length :].tolist()
            text = loaded.tokenizer.decode(texts[system], skip_special_tokens=True)
            calls = out.num_calls + sum(map(bool, out.prefilled))
            rows.append({"question": record["id"], "system": system, "tokens": out.num_tokens, "calls": calls,
                         "drafted": out.verified_tokens, "right": int(is_right(text, record["possible_answer"])),
                         "seconds": seconds, "processor": processor})  # fmt: skip
        if any(each != texts[systems[0]] for each in texts.values()):
            raise ValueError(f"{record['id']}: expected one text of all systems, got several")
        err.print(record["id"], style="dim")
        return rows

    return resumed(kept, records, lambda record: str(record["id"]), answered, loaded.folder)


def measure_parts(model: str, records: Sequence[Any], new_tokens: int, kept: Path) -> list[dict[str, Any]]:
    """A row for each question, with the seconds of each of the default's parts, kept in a file as they are made."""
    loaded = load(model)
    drafts = loaded.drafter()
    loaded.generate("{", drafts, max_new_tokens=8, constraint=json_object())  # the tokens' bytes are read

    def answered(record: Any) -> list[dict[str, Any]]:
        constraint, ids, cache = json_schema(schema_of(record["function"])), prompt(loaded, record), TextCache()
        loaded.generate(ids, NoDrafter(), max_new_tokens=1, text_cache=cache, constraint=constraint)  # it is compiled
        clock = parts.Clock()
        timed = parts.TimedDrafter(drafts, clock), parts.TimedConstraint(constraint, clock)
        with parts.measuring(clock):
            out = loaded.generate(ids, timed[0], max_new_tokens=new_tokens, text_cache=cache, constraint=timed[1])
        err.print(record["id"], style="dim")
        calls = out.num_calls + sum(map(bool, out.prefilled))
        return [{"question": record["id"], "tokens": out.num_tokens, "calls": calls, **clock.seconds}]

    return resumed(kept, records, lambda record: str(record["id"]), answered, loaded.folder)


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system."""
    by_system, lines = grouped(rows, "system"), []
    for system in sorted(by_system, key=lambda name: (*SYSTEMS, name).index(name)):
        own, greedy = by_system[system], by_system[GREEDY]
        tokens, calls, drafted, seconds, right = columns(own, "tokens", "calls", "drafted", "seconds", "right").sum(
            axis=1
        )
        ratios = [ratio(own, greedy, clock) for clock in ("seconds", "processor")]
        counts = [f"{tokens / calls:.2f}", f"{drafted / calls:.2f}", f"{100 * right / len(own):.0f} %"]
        lines.append([system, f"{tokens / seconds:.1f}", *ratios, *counts])
    return lines


def call_options(doc: str | None) -> argparse.ArgumentParser:
    """Options of a program that asks the questions."""
    parser = options(doc, whole=True)
    parser.add_argument("questions", type=Path, nargs="*", help="of the leaderboard, JSON lines")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="of the catalogue, or a path")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--most", type=int, help="so many questions of each file, drawn at random")
    parser.add_argument("--test", action="store_true", help="of those that nothing was developed on")
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    return parser


def note(args: argparse.Namespace) -> None:
    """What rows depend on, in a file beside them."""
    about = {name: str(getattr(args, name)) for name in ("model", "new_tokens", "threads", "most", "test")}
    write_json(args.output.with_suffix(".json"), signature(**about))


def main() -> None:
    parser = call_options(__doc__)
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of these, separated by commas")
    parser.add_argument("--parts", action="store_true", help="of the default alone: where its time goes")
    args = parser.parse_args()
    if not args.table:
        set_up(args.threads)
        records = drawn(args.questions, args.most, args.test)
        kept = args.output.with_suffix(".jsonl")
        if args.parts:
            rows = measure_parts(args.model, records, args.new_tokens, kept)
        else:
            rows = measure(args.model, records, args.systems.split(","), args.new_tokens, kept)
        write_csv(args.output, rows)
        note(args)
    calls = read_csv(args.output)
    head, lines = (parts.HEAD, parts.lines_of(calls)) if args.parts else (HEAD, lines_of(calls))
    table(f"tool calls: {len({row['question'] for row in calls})} questions", head, lines)


def drawn(paths: Sequence[Path], most: int | None, test: bool = False) -> list[Any]:
    """Questions of some files, at most so many of each, drawn at random.

    test: of those that nothing was developed on, else those that came first: `DEVELOPED` of each file.
    """
    chosen = []
    for own in (read_lines(path) for path in paths):
        seen = {record["id"] for record in Random(0).sample(own, min(DEVELOPED, len(own)))}
        own = [record for record in own if record["id"] not in seen] if test else own
        chosen += own if most is None else Random(0).sample(own, min(most, len(own)))
    return chosen


if __name__ == "__main__":
    run(main)
