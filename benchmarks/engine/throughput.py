r"""Servers with one client and with several: tokens a second of all together, and seconds to the first token.

    export OMP_NUM_THREADS=1
    latticebpd serve --model smollm2-135m --port 8001 &
    $LATTICEBPD_CACHE/peers/llama.cpp/bin/python -m llama_cpp.server --port 8002 --n_threads 1 --n_threads_batch 1 \
        --n_ctx 2048 --interrupt_requests False --model $LATTICEBPD_CACHE/peers/models/SmolLM2-135M-Instruct.Q4_0.gguf &
    python -m benchmarks.engine.throughput -o throughput.csv --questions question.jsonl \
        --server latticebpd=http://127.0.0.1:8001/v1 --server llama.cpp=http://127.0.0.1:8002/v1

Every client asks one question after another and reads greedy answers as streams; servers take turns. ``same`` counts
answers that have the text of the run with one client. llama-cpp-python's server needs its extra ``[server]``; a server
that sends no usage sends a chunk for each token.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median
from typing import Any

from openai import AsyncOpenAI

from benchmarks.common import grouped, named, options, read_csv, run, signature, table, write_csv
from latticebpd.measuring.questions import read_questions

Row = dict[str, Any]


async def answer(client: AsyncOpenAI, model: str, question: str, limit: int) -> Row:
    """One answer: its text, tokens, and seconds to the first one."""
    begin, first, parts, tokens = time.perf_counter(), None, list[str](), None
    chunks = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": question}], max_tokens=limit, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    async for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.perf_counter() - begin
            parts.append(chunk.choices[0].delta.content)
        tokens = chunk.usage.completion_tokens if chunk.usage else tokens
    tokens = len(parts) if tokens is None else tokens
    return {"text": "".join(parts), "tokens": tokens, "first": first or time.perf_counter() - begin}


async def load(url: str, clients: int, questions: list[str], limit: int) -> tuple[float, list[Row]]:
    """Seconds that so many clients take for all questions, and the answers in their order."""
    answers: list[Row] = [{} for _ in questions]
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=2, timeout=3600) as client:
        model = (await client.models.list()).data[0].id

        async def ask(first: int) -> None:
            for number in range(first, len(questions), clients):
                answers[number] = await answer(client, model, questions[number], limit)

        begin = time.perf_counter()
        await asyncio.gather(*map(ask, range(clients)))
        return time.perf_counter() - begin, answers


def measured(servers: dict[str, str], clients: list[int], questions: list[str], limit: int, rounds: int) -> list[Row]:
    """A row for each round of each server with each number of clients; the first round warms up."""
    rows, texts = list[Row](), dict[str, list[str]]()
    for turn in range(rounds + 1):
        for count in clients:
            for name, url in servers.items():
                seconds, answers = asyncio.run(load(url, count, questions, limit))
                written = [each["text"] for each in answers]
                same = sum(one == other for one, other in zip(written, texts.setdefault(name, written), strict=True))
                tokens, first = sum(each["tokens"] for each in answers), median(each["first"] for each in answers)
                row = {"server": name, "clients": count, "turn": turn, "answers": len(answers), "same": same}
                rows += [row | {"tokens": tokens, "seconds": seconds, "first": first}] if turn else []
    return rows


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file")
    parser.add_argument("--server", type=named, action="append", required=True, help="NAME=URL; may be repeated")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--clients", default="1,4,16", help="numbers, separated by commas, rising")
    parser.add_argument("--count", type=int, default=32, help="questions of a round")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    every = read_questions(args.questions)
    asked = [each.turns[0] for each in every[:: max(1, len(every) // args.count)][: args.count]]
    clients = [int(number) for number in args.clients.split(",")]
    write_csv(args.output, measured(dict(args.server), clients, asked, args.limit, args.rounds))
    printed = list[list[str]]()
    for (name, count), own in grouped(read_csv(args.output), "server", "clients").items():
        speed = median(float(row["tokens"]) / float(row["seconds"]) for row in own)
        first, same = median(float(row["first"]) for row in own), min(int(row["same"]) for row in own)
        printed.append([name, count, f"{speed:.1f}", f"{first:.2f}", f"{same} of {own[0]['answers']}"])
    table("", ("server", "clients", "tokens/s", "seconds to the first", "same texts"), printed)
    print()
    signature(count=len(asked), limit=args.limit, rounds=args.rounds)


if __name__ == "__main__":
    run(main)
