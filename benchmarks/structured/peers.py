"""Other programs' tool calls under the same schemas: llama.cpp with a grammar, and ``transformers`` with xgrammar.

    python -m venv LLAMA && LLAMA/bin/pip install xllamacpp
    python -m venv XGRAMMAR && XGRAMMAR/bin/pip install transformers xgrammar gguf
    python -m benchmarks.structured.peers bfcl-*.jsonl --most 15 --llama LLAMA/bin/python -o results/peers-llama.csv
    python -m benchmarks.structured.peers bfcl-*.jsonl --most 5 --xgrammar XGRAMMAR/bin/python -o results/peers-xg.csv

Questions, prompts, schemas, limits and the model's file are those of ``tool_calls``. ``transformers`` computes the
file's weights in float32. Prompts are read beforehand: llama.cpp keeps them, and of ``transformers`` the time of one
token is taken off. Each program is a process of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.common import (
    columns,
    grouped,
    read_csv,
    run,
    stamped,
    table,
    write_csv,
)
from benchmarks.structured.tool_calls import call_options, drawn, is_right, note, prompt, schema_of
from latticebpd import load
from latticebpd.models.catalogue import GGUF_NAME

LLAMA, XGRAMMAR = "llama.cpp with its grammar", "transformers with xgrammar"
HEAD = ("program", "questions", "tokens/s", "by processor time", "right")
ASKED = """
import json, sys, time
asked = json.load(sys.stdin)
def row(question, answer):
    begun, used = time.perf_counter(), time.process_time()
    text, tokens = answer()
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    record = {"question": question["id"], "tokens": tokens, "seconds": seconds, "processor": processor, "text": text}
    print("row", json.dumps(record), flush=True)
"""
PROGRAMS = {
    LLAMA: """
import xllamacpp
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel = asked["model"], 4096, 1
for each in (options.cpuparams, options.cpuparams_batch):
    each.n_threads = asked["threads"]
server = xllamacpp.Server(options)
def complete(question, tokens, **fields):
    out = server.handle_completions({"prompt": question["prompt"], "max_tokens": tokens, "temperature": 0.0,
                                     "cache_prompt": True, **fields})
    return out["choices"][0]["text"], out["usage"]["completion_tokens"]
for question in asked["questions"]:
    complete(question, 1)
    row(question, lambda: complete(question, asked["tokens"], json_schema=question["schema"]))
""",
    XGRAMMAR: """
import os, torch, transformers, xgrammar, xgrammar.contrib.hf
torch.set_num_threads(asked["threads"])
folder, file = os.path.split(asked["model"])
model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=model.config.vocab_size)
compiler = xgrammar.GrammarCompiler(info, max_threads=1)
def complete(question, tokens, *processors):
    ids = torch.tensor([question["prompt"]])
    out = model.generate(ids, max_new_tokens=tokens, do_sample=False, logits_processor=[*processors],
                         eos_token_id=asked["eos"])[0, ids.shape[1]:]
    return tokenizer.decode(out, skip_special_tokens=True), len(out)
for question in asked["questions"]:
    grammar = compiler.compile_json_schema(json.dumps(question["schema"]), any_whitespace=False)
    begun, used = time.perf_counter(), time.process_time()
    complete(question, 1)
    first = time.perf_counter() - begun, time.process_time() - used
    print("first", json.dumps(first), flush=True)
    row(question, lambda: complete(question, asked["tokens"], xgrammar.contrib.hf.LogitsProcessor(grammar)))
""",
}


def answers(python: str, program: str, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each question, of an interpreter that has the program."""
    done = subprocess.run(
        [python, "-c", ASKED + PROGRAMS[program]], input=json.dumps(asked), capture_output=True, text=True
    )
    rows, first = list[dict[str, Any]](), (0.0, 0.0)
    for kind, _, line in (line.partition(" ") for line in done.stdout.splitlines()):
        if kind == "first":
            first = tuple(json.loads(line))
        elif kind == "row":
            row = json.loads(line)
            rows.append(row | {"seconds": row["seconds"] - first[0], "processor": row["processor"] - first[1]})
    if len(rows) != len(asked["questions"]):
        wanted = f"{program}: expected {len(asked['questions'])} answers"
        raise ValueError(f"{wanted}, got {len(rows)}: {done.stderr[-300:]}")
    return rows


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each program."""
    lines = []
    for program, own in grouped(rows, "program").items():
        tokens, seconds, processor, right = columns(own, "tokens", "seconds", "processor", "right").sum(axis=1)
        speeds = [f"{tokens / seconds:.1f}", f"{tokens / processor:.1f}"]
        lines.append([program, str(len(own)), *speeds, f"{100 * right / len(own):.0f} %"])
    return lines


def main() -> None:
    parser = call_options(__doc__)
    parser.add_argument("--llama", help="an interpreter that has xllamacpp")
    parser.add_argument("--xgrammar", help="an interpreter that has transformers, xgrammar and gguf")
    args = parser.parse_args()
    if not args.table:
        records, loaded = drawn(args.questions, args.most, args.test), load(args.model)
        asked = {
            "model": str(loaded.folder / GGUF_NAME),
            "tokens": args.new_tokens,
            "threads": args.threads,
            "eos": [*(loaded.prompts.eos_ids or loaded.target.eos_ids)],
            "questions": [
                {
                    "id": each["id"],
                    "prompt": list(map(int, prompt(loaded, each))),
                    "schema": schema_of(each["function"]),
                }
                for each in records
            ],
        }
        rows, accepted = list[dict[str, Any]](), {each["id"]: each["possible_answer"] for each in records}
        for program, python in ((LLAMA, args.llama), (XGRAMMAR, args.xgrammar)):
            for row in answers(python, program, asked) if python else ():
                right = int(is_right(row.pop("text"), accepted[row["question"]]))
                rows.append({"program": program, **row, "right": right})
        write_csv(args.output, stamped(rows, loaded.folder))
        note(args)
    table("tool calls of other programs", HEAD, lines_of(read_csv(args.output)))


if __name__ == "__main__":
    run(main)
