"""Spec-Bench (Xia 2024): its questions answered greedily and with drafts, its answer files and its numbers.

    python -m benchmarks.spec_bench question.jsonl --limit 3
    python -m benchmarks.spec_bench question.jsonl --model smollm2-135m --system 16-calibrated -o answers.jsonl

A method takes part in the benchmark's own harness through one function, ``forward_func(inputs, model, tokenizer,
max_new_tokens, **kwargs) -> (output_ids, new_token, step, accept_length_list)``; ours is `forward_func`. The baseline
is greedy decoding with the same weights. Both are asked in turn, question by question, so that a drift of the machine's
speed meets both alike.

Speed is computed as the benchmark does: tokens per second of each question, averaged over the questions of a task;
the speed-up is the ratio of the averages. *Mean accepted tokens* is the mean over calls of the tokens committed; it
does not depend on the machine.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding

from benchmarks import common
from fst.files import PathLike, write_text
from latticebpd import Drafter, Loaded, NoDrafter, generate, load
from latticebpd.checks import expect
from latticebpd.measuring.questions import Question, read_questions
from latticebpd.models.target_model import AnyModel
from latticebpd.models.transformers.transformers_model import Model, TransformersModel
from latticebpd.models.weight_kinds import TORCH

Result = tuple[Tensor, int, int, list[int]]
"""``output_ids [1, length]`` with the prompt; new tokens; calls after the prefill; tokens that each call committed."""
ForwardFunc = Callable[..., Result]
"""``forward_func(inputs, model, tokenizer, max_new_tokens, **kwargs)``, as Spec-Bench calls it."""
WARM_UPS = 3
HEAD = ("task", "questions", "mean accepted tokens", "tokens/s", "greedy tokens/s", "speed-up")


def forward_func(
    inputs: Any, model: AnyModel, tokenizer: Any, max_new_tokens: int, *, drafter: Drafter, **kwargs: Any
) -> Result:
    """This library's ``generate`` in Spec-Bench's convention.

    inputs: what a tokenizer returns for one prompt; ``inputs.input_ids`` and ``inputs.attention_mask`` are ``[1, n]``.
    tokenizer: not used. drafter, kwargs: for ``generate``.

    A prefill's token is counted in ``new_token`` but in no call; the accept lengths then sum to ``new_token - 1``.
    """
    del tokenizer
    options: Any = {"max_new_tokens": max_new_tokens, "attention_mask": inputs.attention_mask, **kwargs}
    out = generate(model, inputs.input_ids, drafter, **options)
    lengths = [length for length, calls in enumerate(out.accept_counts.tolist()) for _ in range(calls)]
    return torch.as_tensor(out.sequences), out.num_tokens, out.num_calls, lengths


def stock_forward_func(inputs: Any, model: Model, tokenizer: Any, max_new_tokens: int, **kwargs: Any) -> Result:
    """Greedy ``generate()`` of ``transformers`` in the same convention."""
    options: Any = {"attention_mask": inputs.attention_mask, "do_sample": False, "max_new_tokens": max_new_tokens}
    out = TransformersModel.of(model).model.generate(inputs.input_ids, **options, **kwargs)
    new = int(out.shape[1] - inputs.attention_mask.shape[1])
    return out, new, new - 1, [1] * (new - 1)


@dataclass
class Answer:
    """One method's answer to one question; lists have one entry per turn, ``accept_lengths`` one per call."""

    question: Question
    turns: list[str] = field(default_factory=list)
    decoding_steps: list[int] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    wall_time: list[float] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        return sum(self.new_tokens) / sum(self.wall_time)

    def as_record(self, model_id: str) -> dict[str, Any]:
        """The line of an answer file, as the benchmark writes and reads it."""
        values = asdict(self)
        question = values.pop("question")
        del question["turns"]
        record = {**question, "answer_id": uuid.uuid4().hex, "model_id": model_id}
        return record | {"choices": [{"index": 0, **values}], "tstamp": time.time()}


def write_answers(answers: Sequence[Answer], path: PathLike, model_id: str) -> None:
    """Write an answer file atomically: one JSON object a line, sorted by question."""
    ordered = sorted(answers, key=lambda answer: answer.question.question_id)
    write_text(path, "".join(json.dumps(answer.as_record(model_id)) + "\n" for answer in ordered))


@dataclass(frozen=True)
class TaskResult:
    """One task, or all of them (``overall``).

    mean_accepted: mean over calls of the tokens committed; NaN where no call was needed.
    tokens_per_second, greedy_tokens_per_second: means over questions.
    """

    task: str
    questions: int
    mean_accepted: float
    tokens_per_second: float
    greedy_tokens_per_second: float

    @property
    def speedup(self) -> float:
        return self.tokens_per_second / self.greedy_tokens_per_second


@dataclass(frozen=True)
class Run:
    """All answers of the method and of the baseline, in the order of the questions.

    cut: turns whose prompt was too long for the model and lost its beginning.
    differing: turns that the two answered differently; under exact acceptance in float32, none.
    """

    answers: list[Answer]
    greedy: list[Answer]
    cut: int
    differing: int

    def results(self) -> list[TaskResult]:
        """Every task in order of appearance, then ``overall``."""
        tasks = dict.fromkeys(answer.question.task for answer in self.answers)
        return [self._result(task, {task}) for task in tasks] + [self._result("overall", set(tasks))]

    def _result(self, name: str, tasks: set[str]) -> TaskResult:
        own, greedy = ([each for each in every if each.question.task in tasks] for every in (self.answers, self.greedy))
        lengths = [length for answer in own for length in answer.accept_lengths]
        mean_accepted = sum(lengths) / len(lengths) if lengths else float("nan")
        speeds = (sum(answer.tokens_per_second for answer in each) / len(own) for each in (own, greedy))
        return TaskResult(name, len(own), mean_accepted, *speeds)


def run(loaded: Loaded, questions: Sequence[Question], drafter: Drafter, max_new_tokens: int = 256) -> Run:
    """Ask every question with drafts and without, after three warm-ups on the first.

    Each method goes on from its own answers. Of a prompt that would leave no room in the model's context, the end is
    kept. The baseline is the greedy ``generate()`` of ``transformers`` or, where an engine computes the passes, this
    library's loop without drafts.

    max_new_tokens: per turn.
    """
    expect(max_new_tokens >= 1, "max_new_tokens >= 1", max_new_tokens)
    greedily = stock_forward_func if loaded.weights == TORCH else partial(forward_func, drafter=NoDrafter())
    ask, drafting = partial(_ask, loaded, max_new_tokens), partial(forward_func, drafter=drafter)
    for _ in range(WARM_UPS):
        ask(questions[0], greedily)
        ask(questions[0], drafting)
    answers, greedy, cut, differing = [], [], 0, 0
    for question in questions:
        base, lost = ask(question, greedily)
        own, _ = ask(question, drafting)  # of a prompt cut for both methods, count one
        answers.append(own)
        greedy.append(base)
        cut += lost
        differing += sum(ours != theirs for ours, theirs in zip(own.turns, base.turns, strict=True))
    return Run(answers, greedy, cut, differing)


def _ask(loaded: Loaded, max_new_tokens: int, question: Question, forward: ForwardFunc) -> tuple[Answer, int]:
    """The answer, and how many of its prompts were cut."""
    target: Any = loaded.target
    prompts, device = loaded.prompts, torch.device(getattr(target, "device", "cpu"))
    answer, cut, turns = Answer(question), 0, list[str]()
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    ends = {} if prompts.eos_ids is None else {"eos_token_id": prompts.eos_ids}
    for turn in question.turns:
        turns.append(turn)
        tokens = prompts.prompt(turns)
        if target.max_positions is not None:
            room = max(target.max_positions - max_new_tokens, 1)
            cut += len(tokens) > room
            tokens = tokens[-room:]
        ids = torch.tensor([tokens], device=device)
        inputs = BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        synchronize()
        started = time.perf_counter()
        output_ids, new_token, step, accept_lengths = forward(inputs, target, None, max_new_tokens, **ends)
        synchronize()
        answer.wall_time.append(time.perf_counter() - started)
        answer.turns.append(prompts.text(output_ids[0, ids.shape[1] :].tolist()))
        answer.decoding_steps.append(int(step))
        answer.new_tokens.append(int(new_token))
        answer.accept_lengths.extend(accept_lengths)
        turns.append(answer.turns[-1])
    return answer, cut


def main() -> None:
    parser = common.options(__doc__, whole=True)
    parser.add_argument("questions", type=Path, help="the benchmark's question.jsonl")
    parser.add_argument("--limit", type=int, help="questions of each task; by default all")
    parser.add_argument("--model", type=Path, help="as for `latticebpd generate`; by default the bundled model")
    parser.add_argument("--lm", type=Path, help="language model; by default lm.fst next to the model")
    parser.add_argument("--drafter-model", type=Path, help="draft with this model instead of heads")
    parser.add_argument("--system", help="drafting system, as for `latticebpd generate`")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of a turn")
    parser.add_argument("--weights", help="float32, int8, gguf or torch, as for `latticebpd generate`")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="file of the answers with drafts (JSONL)")
    args = parser.parse_args()
    questions = read_questions(args.questions, args.limit)
    common.set_up(args.threads)
    loaded = load(args.model, args.lm, drafter=args.drafter_model, weights=args.weights)
    result = run(loaded, questions, loaded.drafter(args.system), args.max_new_tokens)
    if args.output is not None:
        write_answers(result.answers, args.output, f"{loaded.name}-latticebpd")
    rows = []
    for task in result.results():
        speeds = f"{task.tokens_per_second:.0f}", f"{task.greedy_tokens_per_second:.0f}", f"{task.speedup:.2f}"
        rows.append((task.task, task.questions, task.mean_accepted, *speeds))
    common.table("", HEAD, rows)
    print(f"\nPrompts that lost their beginning: {result.cut}; answers unlike greedy decoding's: {result.differing}")
    common.signature(model=loaded.name, weights=loaded.weights)


if __name__ == "__main__":
    common.run(main)
