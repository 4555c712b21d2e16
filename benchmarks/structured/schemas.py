"""Texts of many JSON schemas: whether each parses and validates, tokens a call, and how labelled instances are judged.

    python -m benchmarks.structured.schemas maskbench.jsonl.xz --model smollm2-135m -o results/schemas-smollm2.csv
    python -m benchmarks.structured.schemas maskbench.jsonl.xz --judge -o results/instances.csv
    python -m benchmarks.structured.schemas -o results/schemas-smollm2.csv --table

Texts: schemas are drawn at random from those that are supported; the model is shown the schema, cut to a thousand
characters, and answers by each system. ``jsonschema`` validates what is not cut off by the length limit.

Instances (``--judge``): of every schema that is supported, each labelled instance is read token by token by the
constraint's automaton, and by llguidance's own matcher with llguidance's own tokenizer; labels are the data's. Schemas
allow any white space here, and instances are written without any. A run that was killed goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import llguidance

from benchmarks.common import (
    columns,
    grouped,
    options,
    pooled,
    read_csv,
    read_lines,
    resumed,
    run,
    set_up,
    signature,
    table,
    with_interval,
    write_csv,
    write_json,
)
from benchmarks.qwen.speed import text_hash
from benchmarks.structured.tool_calls import DEFAULT, FORCED, GREEDY, drafter
from latticebpd import Loaded, NoDrafter, TextCache, json_schema, load
from latticebpd.checks import expect
from latticebpd.constraints.model_tokens import ModelTokens, model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, after

SYSTEMS = (GREEDY, FORCED, DEFAULT)
TEXT_HEAD = ("drafts from", "schemas", "complete texts", "of these valid", "tokens a call (95 %)", "drafted a call")
INSTANCE_HEAD = ("schemas of", "schemas", "refused", "instances", "judged as llguidance does", "judged as labelled")
SHOWN = 1000
"""Characters of a schema in the prompt."""
Row = dict[str, Any]


def is_supported(schema: Any) -> bool:
    try:
        json_schema(schema)
    except ValueError:
        return False
    return True


def is_valid(schema: Any, text: str) -> bool:
    """Whether a text parses and validates."""
    kind = jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator)
    try:
        return bool(kind(schema).is_valid(json.loads(text)))
    except ValueError:
        return False


def written(loaded: Loaded, record: Mapping[str, Any], system: str, length: int, cache: TextCache) -> Row:
    """The row of a schema and system.  cache: of all texts, so that a schema's prompt is read once."""
    asked = f"Answer with one short object in JSON, of this schema:\n{json.dumps(record['schema'])[:SHOWN]}"
    ids, constraint = loaded.encode(asked), json_schema(record["schema"])
    loaded.generate(ids, NoDrafter(), max_new_tokens=1, text_cache=cache)
    drafts = drafter(loaded, system)
    out = loaded.generate(ids, drafts, max_new_tokens=length, text_cache=cache, constraint=constraint)
    text = loaded.tokenizer.decode(out.tokens[0, out.prompt_length :], skip_special_tokens=True)
    complete = not out.cut[0]
    return {"schema": record["id"], "group": record["group"], "system": system, "tokens": out.num_tokens,
            "calls": out.num_calls + sum(map(bool, out.prefilled)), "drafted": out.verified_tokens,
            "complete": int(complete), "valid": int(complete and is_valid(record["schema"], text)),
            "text": text_hash(text)}  # fmt: skip


def judged(record: Mapping[str, Any], tokens: ModelTokens, eos: int, matcher_of: Any) -> Row:
    """A schema's row."""
    row = {"schema": record["id"], "group": record["group"], "refused": 1, "instances": len(record["tests"])}
    row |= {"agree": 0, "labelled": 0}
    try:
        constraint = json_schema(record["schema"], any_whitespace=True)
    except ValueError:
        return row
    for test in record["tests"]:
        text = tokens.encode(json.dumps(test["data"], ensure_ascii=False, separators=(",", ":")))
        automaton = constraint.automaton(tokens, [eos])
        state = automaton.start
        for token in [*text, eos]:
            if state != ILLEGAL:
                state = after(automaton, state, token)
        matcher = matcher_of(constraint.grammar)
        theirs = matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting()
        row["agree"] += (state != ILLEGAL) == theirs
        row["labelled"] += (state != ILLEGAL) == test["valid"]
    return row | {"refused": 0}


def judge(loaded: Loaded, records: Sequence[Any], kept: Path) -> list[Row]:
    """A row for each schema."""
    tokens = model_tokens(loaded.tokenizer, loaded.target.vocab_size)
    eos = (loaded.prompts.eos_ids or loaded.target.eos_ids)[0]
    theirs = llguidance.LLTokenizer(tokens.backend.to_str(), n_vocab=tokens.vocab_size)

    def of(record: Any) -> list[Row]:
        return [judged(record, tokens, eos, lambda grammar: llguidance.LLMatcher(theirs, grammar))]

    return resumed(kept, records, lambda record: str(record["id"]), of, loaded.folder)


def write(loaded: Loaded, records: list[Any], kept: Path, systems: Sequence[str], most: int, length: int) -> list[Row]:
    """A row for each schema and system; ValueError where a schema's texts differ."""
    cache = TextCache()
    Random(0).shuffle(records)
    drawn = [record for record in records if is_supported(record["schema"])][:most]
    pairs = [(record, system) for record in drawn for system in systems]

    def of(pair: tuple[Any, str]) -> list[Row]:
        return [written(loaded, *pair, length, cache)]

    rows = resumed(kept, pairs, lambda pair: f"{pair[0]['id']} {pair[1]}", of, loaded.folder)
    for schema, own in grouped(rows, "schema").items():
        expect(len({row["text"] for row in own}) == 1, "one text of all systems", "several", of=schema)
    return rows


def text_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system, and one of the default for each group."""
    lines, by_group = [], grouped((row for row in rows if row["system"] == DEFAULT), "group")
    of_groups = {f"{DEFAULT}, {name}": by_group[name] for name in sorted(by_group)}
    for system, own in (grouped(rows, "system") | of_groups).items():
        tokens, calls, drafted, complete, valid = columns(own, "tokens", "calls", "drafted", "complete", "valid")
        counts = [f"{valid.sum():.0f}", with_interval(*pooled(tokens, calls)), f"{drafted.sum() / calls.sum():.2f}"]
        lines.append([system, str(len(own)), f"{complete.sum():.0f}", *counts])
    return lines


def instance_lines(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each group, and one for all."""
    lines = []
    for name, own in [*sorted(grouped(rows, "group").items()), ("all", list(rows))]:
        taken = [row for row in own if not int(row["refused"])]
        instances, agree, labelled = columns(taken, "instances", "agree", "labelled").sum(axis=1).astype(int)
        refused = len(own) - len(taken)
        lines.append([name, str(len(own)), str(refused), *map(str, (instances, agree, labelled))])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("schemas", type=Path, nargs="?", help="MaskBench's, JSON lines, compressed by xz")
    parser.add_argument("--model", default="smollm2-135m", help="of the catalogue, or a path")
    parser.add_argument("--weights", help="as of load(); by default the model's own")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--judge", action="store_true", help="judge instances, of all schemas")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help="of these, separated by commas")
    parser.add_argument("--most", type=int, default=500, help="schemas")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        set_up()
        loaded, records, kept = (
            load(args.model, weights=args.weights),
            read_lines(args.schemas),
            args.output.with_suffix(".jsonl"),
        )
        if args.judge:
            rows = judge(loaded, records, kept)
        else:
            rows = write(loaded, records, kept, args.systems.split(","), args.most, args.new_tokens)
        write_csv(args.output, rows)
        write_json(args.output.with_suffix(".json"), signature(model=args.model, new_tokens=args.new_tokens))
    rows = read_csv(args.output)
    if "refused" in rows[0]:
        table("instances", INSTANCE_HEAD, instance_lines(rows))
    else:
        table("texts", TEXT_HEAD, text_lines(rows))


if __name__ == "__main__":
    run(main)
