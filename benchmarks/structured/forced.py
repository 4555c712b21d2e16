"""Tokens a call by forced tokens alone, on valid instances of JSON schemas: a replay without a model.

    python -m benchmarks.structured.forced maskbench.jsonl.xz --model qwen2.5-coder-0.5b -o results/forced.csv
    python -m benchmarks.structured.forced -o results/forced.csv --table

Instances are written in the one way of ``json_schema``, and their tokens are those of the model's tokenizer. Each call
commits the forced tokens that agree with the text and one more. Schemas that are refused, and instances that a schema's
grammar does not accept so (another order of properties), are counted and left out.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
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
    read_lines,
    run,
    signature,
    stamped,
    table,
    with_interval,
    write_csv,
    write_json,
)
from latticebpd import json_schema, load
from latticebpd.constraints.model_tokens import ModelTokens, model_tokens
from latticebpd.constraints.token_automaton import ILLEGAL, TokenAutomaton, after

HEAD = ("schemas of", "instances", "tokens a call (95 %)", "share of tokens drafted and right", "drafts that are right")
LONGEST = 400
"""Tokens of an instance; what follows is left out."""


def replayed(automaton: TokenAutomaton, text: Sequence[int]) -> dict[str, int] | None:
    """Tokens, calls, and forced tokens that were drafted and right; None if the text is not legal."""
    state, at = automaton.start, 0
    counts = Counter(tokens=len(text))
    while at < len(text):
        forced = automaton.forced(state).tolist()
        own = text[at : at + len(forced)]
        right = next((i for i, pair in enumerate(zip(forced, own, strict=False)) if pair[0] != pair[1]), len(own))
        counts.update(calls=1, drafted=len(forced), right=right)
        for token in text[at : at + right + 1]:
            if (state := after(automaton, state, token)) == ILLEGAL:
                return None
        automaton.release(state)
        at += right + 1
    return dict(counts)


def measure(path: Path, tokens: ModelTokens, eos: int) -> tuple[list[dict[str, Any]], Counter[str]]:
    """A row for each valid instance; what was left out."""
    rows, left_out = list[dict[str, Any]](), Counter[str]()
    for record in read_lines(path):
        valid = [test["data"] for test in record["tests"] if test["valid"]]
        try:
            constraint = json_schema(record["schema"])
        except ValueError:
            left_out["of schemas that are refused"] += len(valid)
            continue
        for number, value in enumerate(valid):
            text = [*tokens.encode(json.dumps(value, ensure_ascii=False)), eos][:LONGEST]
            counts = replayed(constraint.automaton(tokens, [eos]), text)
            if counts is None:
                left_out["written in another way"] += 1
            else:
                rows.append({"instance": f"{record['id']} {number}", "group": record["group"], **counts})
    return rows, left_out


def lines_of(rows: Sequence[Any]) -> list[list[str]]:
    """A line for each group, and one for all."""
    lines = []
    for name, own in [*sorted(grouped(rows, "group").items()), ("all", list(rows))]:
        tokens, calls, drafted, right = counts = columns(own, "tokens", "calls", "drafted", "right")

        def efficiency(drawn: np.ndarray, tokens: np.ndarray = counts[0], calls: np.ndarray = counts[1]) -> Any:
            return tokens[drawn].sum(axis=-1) / calls[drawn].sum(axis=-1)

        shares = [f"{100 * right.sum() / all_of.sum():.0f} %" for all_of in (tokens, drafted)]
        lines.append([name, str(len(calls)), with_interval(*interval(efficiency, len(calls))), *shares])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("schemas", type=Path, nargs="?", help="MaskBench's, JSON lines, compressed by xz")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="whose tokenizer")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        loaded = load(args.model)
        eos = (loaded.prompts.eos_ids or loaded.target.eos_ids)[0]
        rows, left_out = measure(args.schemas, model_tokens(loaded.tokenizer, loaded.target.vocab_size), eos)
        write_csv(args.output, stamped(rows, loaded.folder))
        write_json(args.output.with_suffix(".json"), signature(model=args.model, left_out=dict(left_out)))
        err.print(f"left out: {dict(left_out)}", style="dim")
    table("forced tokens", HEAD, lines_of(read_csv(args.output)))


if __name__ == "__main__":
    run(main)
