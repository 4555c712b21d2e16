"""Other libraries on the questions of `speed.py`, with the same file and the same prompts, by their own drafts too.

    python -m venv VENV && VENV/bin/pip install xllamacpp      # llama.cpp's server in a wheel, compiled for AVX2
    python -m benchmarks.qwen.peers humaneval.jsonl --model qwen2.5-coder-0.5b --python VENV/bin/python -o peers.csv
    python -m benchmarks.qwen.peers humaneval.jsonl --model qwen2.5-coder-1.5b --drafter qwen2.5-coder-0.5b ...
    python -m benchmarks.qwen.peers test.jsonl --model smollm2-135m --file SmolLM2-135M-Instruct.Q4_0.gguf ...
    python -m benchmarks.qwen.peers ... --server BUILD/bin/llama-server       # in C++, compiled for this machine
    python -m venv OPENVINO && OPENVINO/bin/pip install openvino-genai
    python -m benchmarks.qwen.peers ... --library OpenVINO --model qwen2.5-coder-1.5b --python OPENVINO/bin/python
    python -m benchmarks.qwen.peers ... --library transformers      # in float32: 4 bytes for each weight

llama.cpp's drafts are prompt lookup (``ngram-simple``, with llama.cpp's sizes and with short ones, which suit short
answers) and, with ``--drafter``, a smaller model; OpenVINO's and transformers' are prompt lookup, of 5 tokens and of 3
and 10. Each system is a process of its own, one after another.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.common import columns, grouped, options, read_csv, run, stamped, table, write_csv, write_json
from benchmarks.engine.peers import Peer
from benchmarks.qwen.speed import Row, prompt_of, questions, text_hash
from latticebpd import load
from latticebpd.checks import expect
from latticebpd.models.catalogue import GGUF_NAME, resolved

BINDING = """
import hashlib, json, sys, time
import xllamacpp
asked = json.load(sys.stdin)
options = xllamacpp.CommonParams()
options.model.path, options.n_ctx, options.n_parallel = asked["model"], 4096, 1
for each in (options.cpuparams, options.cpuparams_batch, options.speculative.draft.cpuparams,
             options.speculative.draft.cpuparams_batch):
    each.n_threads = asked["threads"]
kind = xllamacpp.common_speculative_type
if asked["lookup"]:
    options.speculative.types = [kind.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
    options.speculative.ngram_simple.size_n, options.speculative.ngram_simple.size_m = asked["lookup"]
elif asked["drafter"]:
    options.speculative.types = [kind.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    options.speculative.draft.mparams.path = asked["drafter"]
server = xllamacpp.Server(options)
for number, prompt in enumerate(asked["prompts"]):
    begun, used = time.perf_counter(), time.process_time()
    out = server.handle_completions({"prompt": prompt, "max_tokens": asked["tokens"], "temperature": 0.0,
                                     "cache_prompt": False, "stop": asked["stops"][number]})
    seconds, processor = time.perf_counter() - begun, time.process_time() - used
    text = hashlib.sha256(out["choices"][0]["text"].encode()).hexdigest()[:12]
    record = {"number": number, "tokens": out["usage"]["completion_tokens"], "seconds": seconds,
              "processor": processor, "text": text}
    print("row", json.dumps(record), flush=True)
"""


LOOKUPS = {"OpenVINO": ["prompt lookup"], "transformers": ["prompt lookup 3", "prompt lookup 10"]}
"""How libraries that `benchmarks.engine.serve` knows draft, besides not at all."""


def llama_rows(
    name: str,
    answers: Callable[[Row], list[Row]],
    model: Path,
    drafter: Path | None,
    prompts: list[list[int]],
    stops: list[list[str]],
    new_tokens: int,
    threads: int,
) -> dict[str, list[Row]]:
    """Rows of each of llama.cpp's systems, in the order of the prompts.

    answers: of a system that is asked for as `BINDING` reads it.  stops: texts that end each answer.
    """
    systems: dict[str, Row] = {
        name: {}, f"{name}, lookup 12 and 48": {"lookup": [12, 48]}, f"{name}, lookup 3 and 3": {"lookup": [3, 3]},
    }  # fmt: skip
    if drafter is not None:
        systems[f"{name}, smaller model"] = {"drafter": str(drafter)}
    common = {"model": str(model), "drafter": None, "lookup": None, "prompts": prompts, "stops": stops}
    rows = dict[str, list[Row]]()
    for system, drafts in systems.items():
        rows[system] = answers({**common, **drafts, "tokens": new_tokens, "threads": threads})
        print(f"{system}: done", file=sys.stderr)
    return rows


def binding_answers(python: str, asked: Row) -> list[Row]:
    """By the Python binding, in an interpreter that has it; ValueError if it fails."""
    done = subprocess.run([python, "-c", BINDING], input=json.dumps(asked), capture_output=True, text=True)
    rows = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("row ")]
    wanted = len(asked["prompts"])
    expect(len(rows) == wanted, f"{wanted} answers by xllamacpp", f"{len(rows)}: {done.stderr[-300:]}")
    return rows


def server_answers(server: str, asked: Row) -> list[Row]:
    """By a ``llama-server``; its processor time is not known. ValueError if it ends before it answers."""
    threads, port, rows = asked["threads"], free_port(), list[Row]()
    flags = f"--threads {threads} --threads-batch {threads} --ctx-size 4096 --parallel 1 --port {port}"
    if asked["lookup"]:
        sizes = "--spec-ngram-simple-size-n {} --spec-ngram-simple-size-m {}".format(*asked["lookup"])
        flags += f" --spec-type ngram-simple {sizes}"
    command = [server, *flags.split(), "--model", asked["model"]]
    if asked["drafter"]:
        own = f"--spec-type draft-simple --spec-draft-threads {threads} --spec-draft-threads-batch {threads}"
        command += [*own.split(), "--spec-draft-model", asked["drafter"]]
    quiet = subprocess.DEVNULL
    with (
        subprocess.Popen(command, stdout=quiet, stderr=quiet) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=600) as client,
    ):
        try:
            await_health(client, process)
            for number, (prompt, stop) in enumerate(zip(asked["prompts"], asked["stops"], strict=True)):
                body = {"prompt": prompt, "n_predict": asked["tokens"], "stop": stop}
                begun = time.perf_counter()
                answer = client.post("/completion", json={**body, "temperature": 0, "cache_prompt": False})
                seconds, record = time.perf_counter() - begun, answer.raise_for_status().json()
                rows.append({"number": number, "tokens": record["tokens_predicted"], "seconds": seconds,
                             "processor": "", "text": text_hash(record["content"])})  # fmt: skip
        finally:
            process.terminate()
    return rows


def await_health(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    """Return once a server has loaded its model; ValueError if it ends instead."""
    while True:
        expect(process.poll() is None, "a llama-server that runs", f"exit status {process.returncode}")
        try:
            if client.get("/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def peer_rows(
    library: str,
    python: str,
    model: Path,
    prompts: list[tuple[list[int], list[int]]],
    decode: Callable[[list[int]], str],
    new_tokens: int,
    threads: int,
) -> dict[str, list[Row]]:
    """Rows of another library's systems; each warms up first.  prompts: with the tokens that end their answers."""
    rows = dict[str, list[Row]]()
    for drafts in ("", *LOOKUPS[library]):
        name = ", ".join(filter(None, (library, drafts)))
        own = rows[name] = []
        size = max(len(ids) for ids, _ in prompts) + new_tokens + 64
        with closing(Peer((library.lower(), model), threads, size, drafts, python)) as peer:
            peer.ask(prompt=prompts[0][0], limit=8, ends=[])
            for number, (ids, ends) in enumerate(prompts):
                reply = peer.ask(prompt=ids, limit=new_tokens, ends=ends)
                tokens = reply["tokens"][:new_tokens]  # OpenVINO's prompt lookup may go on beyond the limit
                counted = min(len(tokens) + 1, new_tokens)  # with the token that ends an answer
                seconds, processor = reply["wall_ms"] / 1e3, reply["cpu_ms"] / 1e3
                own.append({"number": number, "tokens": counted, "seconds": seconds, "processor": processor,
                            "text": text_hash(decode(tokens))})  # fmt: skip
        print(f"{name}: done", file=sys.stderr)
    return rows


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each system; the first one drafts nothing."""
    lines, by_system = [], grouped(rows, "system")
    greedy = [row["text"] for row in next(iter(by_system.values()))]
    for name, own in by_system.items():
        tokens, seconds, processor = columns(own, "tokens", "seconds", "processor").sum(axis=1)
        same = sum(row["text"] == text for row, text in zip(own, greedy, strict=True))
        by_processor = "" if np.isnan(processor) else f"{tokens / processor:.1f}"
        lines.append([name, f"{tokens / seconds:.1f}", by_processor, f"{same} of {len(own)}"])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("questions", type=Path, nargs="?", help="as of speed.py")
    parser.add_argument("--library", choices=["llama.cpp", *LOOKUPS], default="llama.cpp")
    parser.add_argument("--model", default="qwen2.5-coder-0.5b", help="of the catalogue")
    parser.add_argument("--file", type=Path, help="other weights of the model, that are read instead")
    parser.add_argument("--drafter", help="a smaller model of the catalogue, which drafts for llama.cpp")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the library")
    parser.add_argument("--server", help="a llama-server, which is asked instead")
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file of rows")
    parser.add_argument("--most", type=int, help="questions, the first ones")
    parser.add_argument("--left-out", type=int, default=0, help="so many questions before them")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.table:
        asked, loaded = questions(args.questions, args.most, args.left_out), load(args.model)
        prompts = [prompt_of(loaded, question) for question in asked]
        drafter = None if args.drafter is None else Path(resolved(args.drafter)) / GGUF_NAME
        file, rest = args.file or loaded.folder / GGUF_NAME, (args.new_tokens, args.threads)
        if args.library in LOOKUPS:
            measured = peer_rows(args.library, args.python, file, prompts, loaded.decode, *rest)
        else:
            stops = [["\n"] if question.is_line else [] for question in asked]
            binding, server = partial(binding_answers, args.python), partial(server_answers, args.server)
            program = ("llama-server", server) if args.server else ("llama.cpp", binding)
            measured = llama_rows(*program, file, drafter, [ids for ids, _ in prompts], stops, *rest)
        rows = [
            {"question": question.name, "kind": question.kind, "system": system, "prompt": len(ids), **each}
            for system, own in measured.items()
            for question, (ids, _), each in zip(asked, prompts, own, strict=True)
        ]
        write_csv(args.output, stamped(rows, loaded.folder))
        about = {name: str(getattr(args, name)) for name in ("library", "model", "drafter", "new_tokens", "threads")}
        about["file"] = file.name
        write_json(args.output.with_suffix(".json"), about)
    head = ("system", "tokens/s", "by processor time", "texts equal to those without drafts")
    table("", head, lines_of(read_csv(args.output)))


if __name__ == "__main__":
    run(main)
