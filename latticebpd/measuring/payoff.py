"""Does speculation pay on this machine, and with how many nodes?

Verifying ``n`` nodes costs more than one token, by how much depends on model, machine and batch; and more nodes are
accepted more, by how much depends on drafter and text.  A tree of ``n`` nodes speeds decoding up by::

    tokens per call(n) / (seconds per call(n) / seconds per token of plain greedy decoding)

The first factor is counted, without any timing, by replaying the decode along the base model's own greedy text; the
second is measured on a few real calls.  :func:`pay_off` does both for several sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.decoding.loop import generate
from latticebpd.drafters import Drafter, State
from latticebpd.drafters.drafter import needs_hidden
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.lattices.drafts import DraftTree
from latticebpd.measuring.replay import accept_length
from latticebpd.target.stock_model import BaseModel

SIZES = (4, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class PayOff:
    """What each size of tree would bring.

    num_nodes: the sizes tried.
    tokens_per_call: for each size, by replay; the prefill's token is not counted.
    seconds_per_call: for each size, everything included: drafting, the pass, acceptance.
    greedy_seconds: of one token of ``transformers``' greedy ``generate()``, in the same run.
    """

    num_nodes: list[int]
    tokens_per_call: list[float]
    seconds_per_call: list[float]
    greedy_seconds: float

    @property
    def speedups(self) -> list[float]:
        """Predicted, over greedy ``generate()``; below 1 speculation does not pay."""
        return [
            tokens * self.greedy_seconds / seconds
            for tokens, seconds in zip(self.tokens_per_call, self.seconds_per_call, strict=True)
        ]

    @property
    def break_even(self) -> list[float]:
        """Tokens per call from which on each size pays."""
        return [seconds / self.greedy_seconds for seconds in self.seconds_per_call]

    @property
    def best(self) -> int:
        """The size with the greatest predicted speed-up; of equal ones the smallest."""
        return self.num_nodes[max(range(len(self.num_nodes)), key=lambda i: self.speedups[i])]


def pay_off(
    model: BlockwiseLM | PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    drafter_of: Callable[[int], Drafter],
    sizes: Sequence[int] = SIZES,
    max_new_tokens: int = 64,
    timed_tokens: int = 24,
    repeats: int = 3,
    clock: Callable[[], float] = time.perf_counter,
    on_step: Callable[[], None] | None = None,
) -> PayOff:
    """Predict the speed-up of each size of tree.

    Args:
        model: a causal LM, with or without heads.
        prompts: a few typical ones, token ids.
        drafter_of: a size -> a drafter that drafts as many nodes.
        sizes: to be tried, >= 1 each.
        max_new_tokens: greedy tokens per prompt, along which the decode is replayed.
        timed_tokens: of the runs that are timed, on the first prompt; the least of ``repeats`` runs counts.
        clock: seconds; ``time.process_time`` counts the processor's time, for machines that are busy otherwise.
        on_step: called after each prompt and each timed size, for progress.

    Raises:
        ValueError: no prompt, no size, or a limit too small for a call.
    """
    if not prompts or not sizes or min(sizes) < 1:
        raise ValueError(f"expected prompts and sizes >= 1, got {len(prompts)} prompts and sizes {list(sizes)}")
    if min(max_new_tokens, timed_tokens) < 2 or repeats < 1:
        raise ValueError(
            f"expected at least 2 tokens and 1 repetition, got {max_new_tokens}, {timed_tokens} and {repeats}"
        )
    base = BaseModel.of(model)
    counts = dict.fromkeys(sizes, (0, 0))
    for prompt in prompts:
        text, hidden = greedy_text(base.model, prompt, max_new_tokens)
        for size in sizes:
            lengths = list(replay(drafter_of(size), text, len(prompt), hidden))
            tokens, calls = counts[size]
            counts[size] = tokens + sum(lengths), calls + len(lengths)
        if on_step is not None:
            on_step()

    ids = torch.tensor([list(prompts[0])], device=base.device)
    mask = torch.ones_like(ids)

    def greedy(new: int) -> int:
        base.model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=new, min_new_tokens=new)
        return new - 1

    def speculating(drafter: Drafter) -> Callable[[int], int]:
        return lambda new: generate(model, ids, drafter, max_new_tokens=new, eos_token_id=()).num_calls

    greedy_seconds = _per_step(greedy, timed_tokens, repeats, clock, base.device)
    seconds = []
    for size in sizes:
        seconds.append(_per_step(speculating(drafter_of(size)), timed_tokens, repeats, clock, base.device))
        if on_step is not None:
            on_step()
    return PayOff(list(sizes), [tokens / max(calls, 1) for tokens, calls in counts.values()], seconds, greedy_seconds)


def _per_step(
    run: Callable[[int], int], tokens: int, repeats: int, clock: Callable[[], float], device: torch.device
) -> float:
    """Seconds per step: ``run`` takes a number of tokens and tells how many steps followed the prefill.

    The least of several runs counts, less the least of as many that only prefill.
    """

    def timed(new: int) -> tuple[float, int]:
        if device.type == "cuda":
            torch.cuda.synchronize()
        started = clock()
        steps = run(new)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return clock() - started, steps

    run(2)  # warms up
    prefill = min(timed(1)[0] for _ in range(repeats))
    seconds, steps = min(timed(tokens) for _ in range(repeats))
    return max(seconds - prefill, 1e-9) / max(steps, 1)


@torch.inference_mode()
def greedy_text(base: Any, prompt: Sequence[int], max_new_tokens: int) -> tuple[list[int], Tensor]:
    """The base model's greedy text, prompt included, and ``[length, hidden]`` final hidden states at each of its
    tokens."""
    ids = torch.tensor([list(prompt)], device=base.device)
    text = base.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_new_tokens)
    hidden: Tensor = base(input_ids=text, output_hidden_states=True, use_cache=False).hidden_states[-1][0]
    return text[0].tolist(), hidden


def replay(drafter: Drafter, text: Sequence[int], prompt_length: int, hidden: Tensor) -> Iterator[int]:
    """Tokens committed by each call of a decode that writes ``text``: the loop of ``generate``, without the model.

    Args:
        drafter: asked as in a decode of one prompt; one that needs no hidden state, before the prompt is read.
        text: prompt and greedy continuation.
        prompt_length: tokens of the prompt.
        hidden: ``[length, hidden]``, as :func:`greedy_text` returns them.
    """
    early = not needs_hidden(drafter)
    at = prompt_length if early else prompt_length + 1
    while at < len(text):
        left = len(text) - at
        tree = DraftTree.empty()
        if left > 1:
            # As in `generate`, the state that predicted the last token stands one place before it.
            state = hidden[at - 2] if at > prompt_length else None
            tree = drafter.propose([State(0, list(text[:at]), prompt_length, state, left - 1)])[0].pruned(left - 1)
        committed = accept_length(tree, text[at:]) + 1
        drafter.observe([0], [text[at : at + committed]])
        is_call = len(tree) or at > prompt_length  # a prompt that is read without a draft is a prefill
        at += committed
        if is_call:
            yield committed
