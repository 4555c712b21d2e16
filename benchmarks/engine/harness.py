"""lm-evaluation-harness as it is, and with ``custom_generate`` on the CPU engine: scores, and the time of its answers.

    pip install lm-eval
    python -m benchmarks.engine.harness -o harness.csv --questions question.jsonl     # an hour

Spec-Bench's word problems (the answer's last number) and translations (chrF) by SmolLM2-135M, greedily. The engine's
texts are those of `transformers` in float32, but for rounding; with the file's blocks they differ.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

from benchmarks import common
from latticebpd import custom_generate, load
from latticebpd.models.load_target import load_stock, load_tokenizer
from latticebpd.models.weight_kinds import FLOAT32, GGUF, TORCH

MODEL = "smollm2-135m"
SYSTEMS = {
    "transformers": (TORCH, None), "float32, greedy": (FLOAT32, "greedy"),
    "float32, tree of 8": (FLOAT32, "8-calibrated"), "file, greedy": (GGUF, "greedy"), "file, default": (GGUF, ""),
}  # fmt: skip
"""Weights, "file" for those of the GGUF file, and the system that drafts; "": the default."""
NUMBER = {"function": "regex", "regex_pattern": "(-?[0-9][0-9.,]*[0-9]|[0-9])", "group_select": -1}
FILTERS = [{"name": "number", "filter": [NUMBER, {"function": "take_first"}]}]
TASKS: dict[str, dict[str, Any]] = {
    "math_reasoning": {"metric_list": [{"metric": "exact_match"}], "filter_list": FILTERS},
    "translation": {"metric_list": [{"metric": "chrf"}]},
}


def harness_task(name: str, questions: list[dict[str, Any]], limit: int, folder: Path) -> dict[str, Any]:
    """A category's questions as a task of the harness."""
    own = [{"q": each["turns"][0], "a": each["reference"][0]} for each in questions if each["category"] == name]
    lines = [{**each, "a": each["a"].rpartition("#### ")[2]} for each in own]  # word problems end with their number
    common.write_csv(folder / f"{name}.csv", lines)
    files = {"data_files": {"test": str(folder / f"{name}.csv")}, "cache_dir": str(folder)}
    settings = {"until": [], "max_gen_toks": limit, "do_sample": False}
    about = {"dataset_path": "csv", "dataset_kwargs": files, "test_split": "test", "output_type": "generate_until"}
    form = {"doc_to_text": "{{q}}", "doc_to_target": "{{a}}", "generation_kwargs": settings}
    return {"task": name, **about, **form, **TASKS[name]}


class TimedModel(HFLM):  # type: ignore[misc]
    """Measures each batch's answers."""

    def _model_generate(self, context: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        wall, cpu = time.perf_counter(), time.process_time()
        tokens: torch.Tensor = super()._model_generate(context, *args, **options)
        wall, cpu = 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)
        texts = self.tokenizer.batch_decode(tokens[:, context.shape[1] :], skip_special_tokens=True)
        self.calls = [*getattr(self, "calls", []), {"wall_ms": wall, "cpu_ms": cpu, "texts": texts}]
        return tokens


def measured(tasks: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each batch of each system, with the scores of all batches."""
    rows, stock = list[dict[str, Any]](), list[Any]()
    base, tokenizer = load_stock(MODEL), load_tokenizer(MODEL)
    for name, (weights, system) in SYSTEMS.items():
        model, drafts = TimedModel(base, tokenizer=tokenizer, batch_size=args.batch), None
        if system is not None:
            loaded = load(MODEL, weights=weights)
            drafts = {"custom_generate": custom_generate(loaded.drafter(system or None), target=loaded.target)}
        settings: dict[str, Any] = {"limit": args.count, "apply_chat_template": True, "bootstrap_iters": 0}
        manager = TaskManager(include_defaults=False)
        scores = lm_eval.simple_evaluate(model, tasks=tasks, gen_kwargs=drafts, task_manager=manager, **settings)
        values = {
            task: float(next(own[key] for key in own if key.startswith(TASKS[task]["metric_list"][0]["metric"])))
            for task, own in scores["results"].items()
        }
        stock = stock or [call["texts"] for call in model.calls]
        for number, (call, expected) in enumerate(zip(model.calls, stock, strict=True)):
            texts = call.pop("texts")
            same = sum(one == other for one, other in zip(texts, expected, strict=True))
            rows.append({"system": name, "batch": number, "answers": len(texts), "same": same, **call, **values})
    return rows


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--count", type=int, default=80, help="questions of each task")
    parser.add_argument("--limit", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    common.set_up(args.threads)
    with tempfile.TemporaryDirectory() as folder:
        questions = common.read_lines(args.questions)
        tasks = [harness_task(name, questions, args.limit, Path(folder)) for name in TASKS]
        common.write_csv(args.output, measured(tasks, args))
    groups, printed = common.grouped(common.read_csv(args.output), "system"), list[list[str]]()
    (base,) = common.columns(groups["transformers"], "wall_ms")
    for name, own in groups.items():
        wall, cpu = common.columns(own, "wall_ms", "cpu_ms")
        gain, low, high = common.pooled(base, wall)
        same, count = (sum(int(row[key]) for row in own) for key in ("same", "answers"))
        scores = [f"{float(own[0][task]):.3f}" for task in TASKS]
        seconds = f"{wall.sum() / 1e3:.0f} ({cpu.sum() / 1e3:.0f})"
        printed.append([name, seconds, f"{gain:.2f}× ({low:.2f}–{high:.2f})", *scores, f"{same} of {count}"])
    common.table("", ("system", "wall-clock (processor) s", "speed-up (95 %)", *TASKS, "same texts"), printed)
    print()
    common.signature(count=args.count, limit=args.limit, batch=args.batch, lm_eval=lm_eval.__version__)


if __name__ == "__main__":
    common.run(main)
