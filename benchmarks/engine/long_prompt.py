r"""Chats of one token while a server reads a long prompt: seconds that each waits.

    OMP_NUM_THREADS=1 latticebpd serve --model smollm2-135m --port 8001 &
    python -m benchmarks.engine.long_prompt http://127.0.0.1:8001/v1

A prompt of ``--words`` short words is sent, and ``--delay`` seconds later all chats at once; first without the prompt.
"""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

from openai import AsyncOpenAI

from benchmarks.common import options, run, signature, table


async def waited(url: str, chats: int, words: int, delay: float) -> list[float]:
    """Seconds that each chat takes and, last, the long prompt; without the prompt if it has no words."""
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=3600) as client:
        model = (await client.models.list()).data[0].id

        async def ask(content: str) -> float:
            begin = time.perf_counter()
            messages: Any = [{"role": "user", "content": content}]
            await client.chat.completions.create(model=model, messages=messages, max_tokens=1, temperature=0)
            return time.perf_counter() - begin

        long = [asyncio.create_task(ask(" so" * words))] if words else []
        if long:
            await asyncio.sleep(delay)
        short = await asyncio.gather(*(ask(f"Hi {number}") for number in range(chats)))
        return [*short, *[await each for each in long]]


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("url", help="the server's, with /v1")
    parser.add_argument("--chats", type=int, default=16)
    parser.add_argument("--words", type=int, default=3500, help="of the long prompt")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds between the prompt and the chats")
    args = parser.parse_args()
    rows = list[list[str]]()
    for chats, words in ((1, 0), (args.chats, 0), (1, args.words), (args.chats, args.words)):
        seconds = asyncio.run(waited(args.url, chats, words, args.delay))
        short, long = seconds[:chats], seconds[chats:]
        last = f"{long[0]:.1f}" if long else "–"
        rows.append([str(words), str(chats), f"{median(short):.2f}", f"{max(short):.2f}", last])
    table("", ("words of the prompt", "chats", "median s", "slowest s", "the prompt's s"), rows)
    print()
    signature(chats=args.chats, words=args.words, delay=args.delay)


if __name__ == "__main__":
    run(main)
