"""The CPU engine and other libraries on SmolLM2-135M: what a pass over few tokens costs, and how fast answers are.

    python -m benchmarks.engine.run -o passes.csv --threads 1,2                # or with --random Qwen3-4B,Q4_0
    python -m benchmarks.engine.run -o answers.csv --questions question.jsonl --turns 80 --threads 2
    python -m benchmarks.engine.run -o perplexity.csv --text text.txt --turns 40
    python -m benchmarks.engine.run -o passes.csv --table                      # of what was measured before

Every system has a process of its own, which measures its processor time and the wall-clock time; all take turns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from benchmarks import common
from benchmarks.engine.files import BLOCKS, SHAPES, random_model
from benchmarks.engine.peers import Peer, System, systems, versions
from benchmarks.question_sets import SETS, question_set
from latticebpd.measuring.questions import Question, read_questions
from latticebpd.models.catalogue import resolved
from latticebpd.models.chat import ChatTemplate

WIDTHS = (1, 2, 3, 5, 9, 17, 33, 65)
CONTEXT, STARTS, NEW_TOKENS, WINDOW = 200, 3, 128, 256
READ_RANDOM = ("llama.cpp", "latticebpd")
OWN = ("", "16-copies", "default", "copies+16-tree", "2-calibrated", "4-calibrated", "16-calibrated")
"""How this project's answers are drafted."""
HEAD = ("system", "tokens/s (95 %)", "per CPU second", "same texts", "first token, s", "peak MiB", "outside passes")
"""The last: the share of processor time, where it was measured."""
PASSES = ("wall-clock (processor) ms of a pass over", *map(str, WIDTHS))
Row = dict[str, Any]


def turns(count: int, keys: Iterable[Any]) -> Iterable[tuple[int, Any]]:
    """All keys in every turn, in an order that rotates, with pauses in which threads stop waiting for work."""
    order = list(keys)
    for turn in range(count):
        common.err.print(f"{turn + 1}/{count}", style="dim")
        for key in order[turn % len(order) :] + order[: turn % len(order)]:
            time.sleep(0.02)
            yield turn, key


def passes(known: dict[str, System], threads: list[int], count: int) -> list[Row]:
    """Passes over the first tokens after a context, the same in every turn; turn 0 warms up."""
    rows, likeliest, tokens = list[Row](), dict[Any, list[int]](), list(range(100, 100 + CONTEXT + WIDTHS[-1]))
    with ExitStack() as stack:
        peers = {(name, n): stack.enter_context(closing(Peer(known[name], n))) for name in known for n in threads}
        for peer in peers.values():
            peer.ask(tokens=tokens[:CONTEXT], begin=0)
        for turn, key in turns(count + 1, [(*peer, width) for width in WIDTHS for peer in peers]):
            reply = peers[key[:2]].ask(tokens=tokens[CONTEXT : CONTEXT + key[2]], begin=CONTEXT)
            if likeliest.setdefault(key, reply["tokens"]) != reply["tokens"]:
                raise ValueError(f"{key}: expected the same tokens from the same pass, got others")
            row = dict(zip(("system", "threads", "tokens"), key, strict=True)) | {"turn": turn}
            rows += [row | {clock: reply[clock] for clock in ("wall_ms", "cpu_ms")}] if turn else []
    return rows


def ways(system: System) -> tuple[str, ...]:
    """How a system's answers are drafted: of this project's, those without heads only by copies."""
    if system[0] == "transformers":
        return "", *(f"prompt lookup {tokens}" for tokens in (3, 5, 10))
    if not system[0].startswith("latticebpd"):
        return "", "prompt lookup"
    return OWN[:2] if str(system[1]).endswith(".gguf") else OWN


def answers(known: dict[str, System], threads: list[int], asked: list[Question]) -> list[Row]:
    """Greedy answers without and with each library's own prompt lookup; ``start``: seconds to the first token."""
    chat = ChatTemplate(AutoTokenizer.from_pretrained(resolved("smollm2-135m")), None)
    prompts = [chat.prompt(question.turns[:1]) for question in asked]
    rows, starts, texts, peers = list[Row](), dict[Any, list[float]](), dict[Any, list[int]](), dict[Any, Peer]()
    keys = [(name, drafts, n) for name in known for drafts in ways(known[name]) for n in threads]
    with ExitStack() as stack:
        for _, key in turns(STARTS, keys):  # the last processes stay
            if key in peers:
                peers[key].close()
            peers[key] = Peer(known[key[0]], key[2], max(map(len, prompts)) + NEW_TOKENS + 64, key[1])
            stack.callback(peers[key].close)
            peers[key].ask(prompt=chat.prompt(["Hello!"]), limit=1, ends=[])
            starts.setdefault(key, []).append(time.perf_counter() - peers[key].started)
        for turn, key in turns(len(asked), keys):
            if key not in peers:
                continue
            try:
                reply = peers[key].ask(prompt=prompts[turn], limit=NEW_TOKENS, ends=chat.eos_ids)
            except ValueError as error:
                common.err.print(f"[yellow]{key} is left out:[/yellow] {error}")
                del peers[key]
                continue
            texts[turn, *key] = reply["tokens"]
            row = dict(zip(("system", "drafts", "threads"), key, strict=True)) | {"start": median(starts[key])}
            row |= {"question": asked[turn].question_id, "category": asked[turn].category}
            rows.append(row | reply | {"tokens": len(reply["tokens"]), "turn": turn})
    rows = [row for row in rows if (row["system"], row["drafts"], row["threads"]) in peers]
    for row in rows:
        turn, name, drafts, n = (row[each] for each in ("turn", "system", "drafts", "threads"))
        row["same"] = int(texts[turn, name, drafts, n] == texts[turn, name, "", n])
    return rows


def perplexities(known: dict[str, System], count: int, file: Path) -> list[Row]:
    """Each system's mean negative log-likelihood of the same windows of a text, each window read by itself."""
    ids = AutoTokenizer.from_pretrained(resolved("smollm2-135m"))(file.read_text(encoding="utf-8"))["input_ids"]
    windows, rows = [ids[WINDOW * i : WINDOW * (i + 1)] for i in range(min(count, len(ids) // WINDOW))], list[Row]()
    for name, system in known.items():
        common.err.print(name, style="dim")
        with closing(Peer(system, 1)) as peer:
            replies = [peer.ask(tokens=window, begin=0) for window in windows]
        rows += [{"system": name, "threads": 1, "window": i, "nats": own["nats"]} for i, own in enumerate(replies)]
    return rows


def tables(rows: list[dict[str, str]]) -> None:
    """Medians of passes, or speeds of answers with intervals over questions, for each number of threads."""
    if "nats" in rows[0]:
        groups = common.grouped(rows, "system").items()
        cells = [[name, f"{np.exp(common.columns(own, 'nats').mean()):.3f}"] for name, own in groups]
        common.table("", ("system", "perplexity"), cells)
        return
    by = [name for name in ("system", "drafts") if name in rows[0]]
    head, line = (HEAD, answers_line) if "drafts" in rows[0] else (PASSES, passes_line)
    for threads, every in sorted(common.grouped(rows, "threads").items()):
        lines = [line(own) for _, own in sorted(common.grouped(every, *by).items())]
        common.table(f"threads: {threads}", head, lines)


def passes_line(own: Sequence[Mapping[str, str]]) -> list[str]:
    """Medians of a system's passes."""
    by_width = common.grouped(own, "tokens")
    times = (np.median(common.columns(by_width[str(width)], "wall_ms", "cpu_ms"), axis=1) for width in WIDTHS)
    return [own[0]["system"], *(f"{wall:.1f} ({cpu:.1f})" for wall, cpu in times)]


def answers_line(own: Sequence[Mapping[str, str]]) -> list[str]:
    """Speed of a system's answers, their texts, memory, and the time that is not spent in passes."""
    first, drafts = own[0], own[0]["drafts"]
    tokens, wall, cpu, memory = common.columns(own, "tokens", "wall_ms", "cpu_ms", "mib")
    speed, low, high = common.pooled(tokens * 1e3, wall)
    same = f"{sum(int(row['same']) for row in own)} of {len(own)}" if drafts else ""
    within = sum(float(row.get("pass_ms") or 0) for row in own)
    outside = f"{100 * (1 - within / cpu.sum()):.1f} %" if within else ""
    name, per_second = ", ".join(filter(None, (first["system"], drafts))), f"{1e3 * tokens.sum() / cpu.sum():.1f}"
    rest = (per_second, same, f"{float(first['start']):.2f}", f"{memory.max():.0f}", outside)
    return [name, f"{speed:.1f} ({low:.1f}–{high:.1f})", *rest]


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file")
    parser.add_argument("--questions", type=Path, help="Spec-Bench's question.jsonl: answers instead of passes")
    parser.add_argument("--set", choices=SETS, default="development", help="of the questions")
    parser.add_argument("--text", type=Path, help="a text: perplexities instead of passes")
    parser.add_argument("--turns", type=int, default=30, help="passes of each kind, questions, or windows")
    parser.add_argument("--threads", default="1", help="numbers, separated by commas")
    parser.add_argument("--systems", help="names, separated by commas; all by default")
    models = [f"{shape},{kind}" for shape in SHAPES for kind in BLOCKS]
    parser.add_argument("--random", choices=models, help="passes over a model of random weights")
    parser.add_argument("--table", action="store_true", help="print the tables again")
    args = parser.parse_args()
    threads, known = [int(number) for number in args.threads.split(",")], {} if args.table else systems()
    with tempfile.TemporaryDirectory(dir=args.output.resolve().parent) as scratch:
        if args.random:
            path, (shape, kind) = Path(scratch) / "random.gguf", args.random.split(",")
            known = {f"{library} {kind}, {shape}": (library, path) for library in READ_RANDOM}
            random_model(SHAPES[shape], kind, path)
        if not args.table:
            names = args.systems.split(",") if args.systems else [*known]
            if unknown := {*names} - {*known}:
                raise ValueError(f"expected systems among {', '.join(known)}, got {', '.join(unknown)}")
            known = {name: known[name] for name in names}
            asked = question_set(args.set, read_questions(args.questions), args.turns) if args.questions else None
            rows = answers(known, threads, asked) if asked else None
            rows = perplexities(known, args.turns, args.text) if args.text else rows
            measured = rows or passes(known, threads, args.turns)
            common.write_csv(args.output, common.stamped(measured, Path(resolved("smollm2-135m"))))
    tables(common.read_csv(args.output))
    print()
    common.signature(threads=args.threads, **versions())


if __name__ == "__main__":
    common.run(main)
