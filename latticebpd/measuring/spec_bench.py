"""Spec-Bench (Xia 2024): its calling convention, its questions, its answer files, its numbers.

A method takes part through one function, ``forward_func(inputs, model, tokenizer, max_new_tokens, **kwargs) ->
(output_ids, new_token, step, accept_length_list)``; ours is :func:`forward_func`, and :func:`baseline_of` gives
the baseline, greedy decoding with the same weights.  :func:`run` asks the questions of both in turn, so that a drift of
the machine's speed meets both alike.

Speed is computed as the benchmark does: tokens per second of each question, averaged over the questions of a task;
the speed-up is the ratio of the averages.  *Mean accepted tokens* is the mean over calls of the tokens committed; it
does not depend on the machine.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import BatchEncoding

from fst.files import PathLike, write_text
from fst.processors import ignore
from latticebpd.checks import expect
from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter, NoDrafter
from latticebpd.lattices.json_files import read_json_lines
from latticebpd.models.chat import PlainText
from latticebpd.models.engine.engine import engine_of
from latticebpd.models.transformers.transformers_model import Model, TransformersModel

Result = tuple[Tensor, int, int, list[int]]
"""``output_ids [1, length]`` with the prompt; new tokens; calls after the prefill; tokens that each call committed."""

MT_BENCH = frozenset(["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"])
WARM_UPS = 3


ForwardFunc = Callable[..., Result]
"""``forward_func(inputs, model, tokenizer, max_new_tokens, **kwargs)``, as Spec-Bench calls it."""


def forward_func(
    inputs: Any, model: Model, tokenizer: Any, max_new_tokens: int, *, drafter: Drafter, **kwargs: Any
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
    return out.sequences, out.num_tokens, out.num_calls, lengths


def baseline_of(model: Model) -> ForwardFunc:
    """The baseline, one token a call: greedy ``generate()`` of ``transformers`` or, of a model with an engine, this
    library's loop without drafts. Chosen once for a run, since the check reads all weights."""
    has_engine = engine_of(TransformersModel.of(model).model) is not None
    return partial(forward_func, drafter=NoDrafter()) if has_engine else _stock_forward_func


def _stock_forward_func(inputs: Any, model: Model, tokenizer: Any, max_new_tokens: int, **kwargs: Any) -> Result:
    options: Any = {"attention_mask": inputs.attention_mask, "do_sample": False, "max_new_tokens": max_new_tokens}
    out = TransformersModel.of(model).model.generate(inputs.input_ids, **options, **kwargs)
    new = int(out.shape[1] - inputs.attention_mask.shape[1])
    return out, new, new - 1, [1] * (new - 1)


@dataclass(frozen=True)
class Question:
    """One question; a turn may refer to the answers of the turns before."""

    question_id: int
    category: str
    turns: list[str]

    @property
    def task(self) -> str:
        """The benchmark's task: MT-Bench's eight categories are one."""
        return "mt_bench" if self.category in MT_BENCH else self.category


def read_questions(path: PathLike, limit: int | None = None) -> list[Question]:
    """The questions of a ``question.jsonl``, the first ``limit`` of every task; ValueError for a line that is none, by
    file and line, or no question at all."""

    def parse(record: Any) -> Question:
        number, category, turns = record["question_id"], record["category"], record["turns"]
        if not (type(number) is int and isinstance(category, str)):
            raise ValueError("question_id must be a number, category a string")
        if not (isinstance(turns, list) and turns and all(isinstance(turn, str) and turn for turn in turns)):
            raise ValueError("turns must be a list of texts")
        return Question(number, category, turns)

    taken: Counter[str] = Counter()
    questions = []
    for question in read_json_lines(path, parse, "an object of question_id, category and turns"):
        taken[question.task] += 1
        if limit is None or taken[question.task] <= limit:
            questions.append(question)
    expect(questions, "at least one question", of=path)
    return questions


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


def run(
    questions: Sequence[Question],
    model: Model,
    prompts: PlainText,
    forward: ForwardFunc,
    max_new_tokens: int = 256,
    on_question: Callable[[Question], object] = ignore,
    **kwargs: Any,
) -> Run:
    """Ask every question of ``forward`` and of greedy decoding, after three warm-ups on the first.

    Each method goes on from its own answers. Of a prompt that would leave no room in the model's context, the end is
    kept.

    prompts: how turns become prompts: as plain text, or in the model's chat template. forward: the method, such as
    :func:`forward_func`, which also gets ``kwargs``. max_new_tokens: per turn.
    """
    expect(max_new_tokens >= 1, "max_new_tokens >= 1", max_new_tokens)
    ask, baseline = partial(_ask, model, prompts, max_new_tokens), baseline_of(model)
    for _ in range(WARM_UPS):
        ask(questions[0], baseline)
        ask(questions[0], forward, **kwargs)
    answers, greedy, cut, differing = [], [], 0, 0
    for question in questions:
        on_question(question)
        base, lost = ask(question, baseline)
        own, _ = ask(question, forward, **kwargs)  # of a prompt cut for both methods, count one
        answers.append(own)
        greedy.append(base)
        cut += lost
        differing += sum(ours != theirs for ours, theirs in zip(own.turns, base.turns, strict=True))
    return Run(answers, greedy, cut, differing)


def _ask(
    model: Model, prompts: PlainText, max_new_tokens: int, question: Question, forward: ForwardFunc, **kwargs: Any
) -> tuple[Answer, int]:
    """The answer, and how many of its prompts were cut."""
    base, answer, cut, turns = TransformersModel.of(model), Answer(question), 0, list[str]()
    synchronize = torch.cuda.synchronize if base.device.type == "cuda" else ignore
    ends = {} if prompts.eos_ids is None else {"eos_token_id": prompts.eos_ids}
    for turn in question.turns:
        turns.append(turn)
        tokens = prompts.prompt(turns)
        if base.max_positions is not None:
            room = max(base.max_positions - max_new_tokens, 1)
            cut += len(tokens) > room
            tokens = tokens[-room:]
        ids = torch.tensor([tokens], device=base.device)
        inputs = BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
        synchronize()
        started = time.perf_counter()
        output_ids, new_token, step, accept_lengths = forward(inputs, model, None, max_new_tokens, **ends, **kwargs)
        synchronize()
        answer.wall_time.append(time.perf_counter() - started)
        answer.turns.append(prompts.text(output_ids[0, ids.shape[1] :].tolist()))
        answer.decoding_steps.append(int(step))
        answer.new_tokens.append(int(new_token))
        answer.accept_lengths.extend(accept_lengths)
        turns.append(answer.turns[-1])
    return answer, cut
