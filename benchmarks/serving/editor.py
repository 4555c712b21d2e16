r"""Sessions of an editor and of an agent, whose requests begin alike: time to a line, and to an answer's first token.

    export OMP_NUM_THREADS=1
    latticebpd serve --model qwen2.5-coder-0.5b --port 8001 &
    llama-server --jinja --threads 1 --threads-batch 1 --ctx-size 4096 --parallel 1 --port 8002 --model model.gguf &
    python -m benchmarks.serving.editor -o editor.csv --tasks infilling.jsonl \
        --server latticebpd=http://127.0.0.1:8001 --server llama.cpp=http://127.0.0.1:8002

Both servers have the same GGUF file. The tasks are those of human-eval-infilling (JSON lines, perhaps compressed by
xz): lines that are left out of functions. ``editor``: a file grows function by function; for each left-out line one
``/infill`` request asks for that line, then the line is the task's own. ``agent``: in a chat with tools a scripted
assistant reads file after file; each turn asks for an answer after all earlier ones. Servers take turns, request by
request, and every round begins with a line of its own, so that nothing of it is known before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from benchmarks.common import grouped, named, options, read_csv, read_lines, run, signature, stamped, table, write_csv
from latticebpd.checks import expect

Row = dict[str, Any]
SINGLE_LINES = "SingleLineInfilling/"
OTHERS = [{"filename": "helpers.py", "text": "import math\nimport re\n"}]
"""With other files, servers that know their tokens make the same prompts."""
ASK = "Read the files one after another, and then say in a sentence what each of their functions does."
NEXT = "Go on with the next file."


def read_tasks(path: Path) -> list[Row]:
    """The tasks that leave out one line; ValueError without any."""
    tasks = [task for task in read_lines(path) if task["task_id"].startswith(SINGLE_LINES)]
    expect(tasks, f"tasks whose ids begin with {SINGLE_LINES}", "none", of=path)
    return tasks


def whole(task: Row) -> str:
    """The function with its line."""
    return f"{task['prompt']}{task['canonical_solution']}{task['suffix']}"


def infills(tasks: Sequence[Row]) -> Iterator[tuple[str, str, str]]:
    """What comes before each left-out line in the file as it has grown, what comes after it, and the line."""
    done, last = "", None
    for task in tasks:
        if last is not None and task["entry_point"] != last["entry_point"]:
            done += whole(last) + "\n\n"
        last = task
        yield done + task["prompt"], task["suffix"], task["canonical_solution"]


def infill(client: httpx.Client, before: str, after: str, limit: int) -> Row:
    """The text of a line, and what it cost."""
    body = {"input_prefix": before, "input_suffix": after, "prompt": "", "input_extra": OTHERS, "n_predict": limit}
    begin = time.perf_counter()
    answer = client.post("/infill", json={**body, "stop": ["\n"], "temperature": 0, "cache_prompt": True})
    seconds = time.perf_counter() - begin
    record, timings = answer.raise_for_status().json(), answer.json().get("timings", {})
    return {
        "text": record["content"], "seconds": seconds, "first": "", "tokens": record.get("tokens_predicted", ""),
        "read": timings.get("prompt_n", ""),
    }  # fmt: skip


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {
                "type": "object",
                "properties": {each: {"type": "string"} for each in fields},
                "required": fields,
                "additionalProperties": False,
            },
        },
    }
    for name, what, fields in (
        ("read_file", "Read a file of the project.", ["path"]),
        ("write_file", "Write a file of the project.", ["path", "text"]),
        ("run_tests", "Run the tests of a file.", ["path"]),
    )
]


def turns(tasks: Sequence[Row], mark: str) -> Iterator[list[Row]]:
    """The messages of each turn: those before, a call of a tool by the assistant, its result, the next request."""
    system = f"You are a programming assistant in the project {mark}. Read files with the tools that you have."
    messages: list[Row] = [{"role": "system", "content": system}, {"role": "user", "content": ASK}]
    for number, (name, own) in enumerate(grouped(tasks, "entry_point").items()):
        yield list(messages)
        function = {"name": "read_file", "arguments": json.dumps({"path": f"{name}.py"})}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": whole(own[0])},
            {"role": "user", "content": NEXT},
        ]


def chat(client: httpx.Client, messages: Sequence[Row], limit: int) -> Row:
    """An answer, its text and calls, and seconds to its first characters and to its end."""
    body = {"messages": messages, "tools": TOOLS, "max_tokens": limit, "temperature": 0, "stream": True}
    body |= {"stream_options": {"include_usage": True}}
    begin, first, parts, usage = time.perf_counter(), None, list[str](), dict[str, Any]()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                delta = choice["delta"]
                calls = [call["function"] for call in delta.get("tool_calls") or ()]
                new = [delta.get("content"), *(call.get(field) for call in calls for field in ("name", "arguments"))]
                if any(new):
                    first = first or time.perf_counter() - begin
                    parts += filter(None, new)
    seconds = time.perf_counter() - begin
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return {
        "text": "".join(parts), "seconds": seconds, "first": first or seconds,
        "tokens": usage.get("completion_tokens", ""), "read": usage.get("prompt_tokens", 0) - cached,
    }  # fmt: skip


def asks(tasks: Sequence[Row], counts: dict[str, int], turn: int) -> Iterator[tuple[Row, Callable[..., Row], str]]:
    """The requests of a round: which one it is, what asks a server for it, and the right text, if there is one."""
    for number, (before, after, line) in enumerate(islice(infills(tasks), counts["editor"])):
        ask = partial(infill, before=f"# {turn}\n{before}", after=after, limit=64)
        yield {"session": "editor", "round": turn, "request": number}, ask, line.strip()
    for number, messages in enumerate(islice(turns(tasks, f"number-{turn}"), counts["agent"])):
        ask = partial(chat, messages=messages, limit=32)
        yield {"session": "agent", "round": turn, "request": number}, ask, ""


def measured(servers: dict[str, str], tasks: Sequence[Row], counts: dict[str, int], rounds: int) -> list[Row]:
    """A row for every request of every session.  counts: requests of ``editor``, turns of ``agent``."""
    rows = list[Row]()
    with ExitStack() as stack:
        clients = {name: stack.enter_context(httpx.Client(base_url=url, timeout=600)) for name, url in servers.items()}
        for client in clients.values():  # warms up
            infill(client, "a = 1\n", "\n", 1)
        for about, ask, right in (each for turn in range(rounds) for each in asks(tasks, counts, turn)):
            for name, client in clients.items():
                answer = ask(client)
                text = answer.pop("text").strip()
                rows.append({"server": name, **about, **answer, "right": int(text == right) if right else ""})
    return rows


def lines_of(rows: Sequence[Row]) -> list[list[str]]:
    """Of each session of each server: milliseconds to a line or a first token, tokens read, and right lines."""
    lines = list[list[str]]()
    for (session, name), own in grouped(rows, "session", "server").items():
        seconds = [float(row["first"] or row["seconds"]) for row in own]
        times = [f"{1e3 * each:.0f}" for each in (median(seconds), np.quantile(seconds, 0.9))]
        read = np.mean([float(row["read"] or "nan") for row in own])
        right = f"{sum(int(row['right']) for row in own)} of {len(own)}" if own[0]["right"] else ""
        lines.append([session, name, *times, f"{read:.0f}", right])
    return lines


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file")
    parser.add_argument("--server", type=named, action="append", required=True, help="NAME=URL; may be repeated")
    parser.add_argument("--tasks", type=Path, required=True, help="human-eval-infilling's JSON lines, or these as .xz")
    parser.add_argument("--requests", type=int, default=40, help="of an editor's session")
    parser.add_argument("--turns", type=int, default=8, help="of an agent's session")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    counts = {"editor": args.requests, "agent": args.turns}
    write_csv(args.output, stamped(measured(dict(args.server), read_tasks(args.tasks), counts, args.rounds)))
    head = ("session", "server", "median ms", "90th percentile", "tokens read of a prompt", "right lines")
    table("", head, lines_of(read_csv(args.output)))
    print()
    signature(**counts, rounds=args.rounds)


if __name__ == "__main__":
    run(main)
