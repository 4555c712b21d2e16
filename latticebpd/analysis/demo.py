"""The demonstration: every drafting system on the bundled prompts, side by side, in one run."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
import transformers

from latticebpd._version import __version__
from latticebpd.decoding.loop import Generated, generate
from latticebpd.drafting import Drafter, Heads, OracleDrafter, drafter_named
from latticebpd.models.bundle import Bundle
from latticebpd.scoring.rescoring import tunings_of

SMALL = 16
"""Nodes of the small tree: what a processor reads about as fast as one token."""


@dataclass(frozen=True)
class SystemResult:
    """One system over all prompts.

    block_efficiency: ``tokens / calls``.
    verified_tokens_per_call: drafted nodes in the verification pass, mean.
    tokens_per_second: new tokens over wall time, prefill and drafting included.
    calls, tokens: forward passes that committed tokens, and the tokens they committed (the prefill, which commits
        each prompt's first token, is counted in neither).
    """

    name: str
    block_efficiency: float
    verified_tokens_per_call: float
    tokens_per_second: float
    calls: int
    tokens: int


@dataclass(frozen=True)
class Demo:
    """The whole run.

    signature: what the numbers depend on.
    systems: results in the order of the table.
    generate_tokens_per_second: ``transformers``' own ``generate(do_sample=False)`` on the same prompts.
    exact: whether every system's text was greedy's, token for token.
    example: the first prompt's decode by the tree, with a trace.
    """

    signature: dict[str, Any]
    systems: list[SystemResult]
    generate_tokens_per_second: float
    exact: bool
    example: Generated

    def as_json(self) -> dict[str, Any]:
        return {"signature": self.signature, "systems": [asdict(system) for system in self.systems]}


def systems(bundle: Bundle, continuation: list[int], k: int, p: int, num_nodes: int) -> dict[str, Drafter]:
    """The demo's drafters by name; ``continuation`` is greedy's text after the prompt, for the oracle.

    All but one draft from the heads alone; "copies + tree" also copies from the text so far, which is no part of
    blockwise decoding but what one would run.
    """
    order = f"{bundle.lm.order}-gram"
    names = {
        "greedy": "greedy",
        "vanilla BPD": "vanilla",
        order: "1-best",
        f"{p}-best 0-gram": f"{p}-best:0-gram",
        f"{p}-best {order}": f"{p}-best",
        f"{num_nodes}-node tree": f"{num_nodes}-tree",
        f"{SMALL}-node tree": f"{SMALL}-tree",
        "copies + tree": f"copies+{SMALL}-tree",
    }
    source = Heads(bundle.model, k)
    found = {label: drafter_named(name, source, bundle.lm_file) for label, name in names.items()}
    return {**found, "oracle": OracleDrafter(bundle.model, continuation, k)}


def run_demo(
    bundle: Bundle,
    num_prompts: int | None = None,
    max_new_tokens: int = 64,
    k: int = 16,
    p: int = 16,
    num_nodes: int = 64,
    on_run: Callable[[str], None] | None = None,
) -> Demo:
    """Decode the prompts with every system.

    The systems take turns on each prompt, so that a drift of the machine's speed meets all alike.

    Args:
        bundle: model, tokenizer, n-gram model and prompts.
        num_prompts: how many prompts, all by default.
        max_new_tokens: tokens per prompt.
        k, p, num_nodes: arcs per slot, drafts, and nodes of the tree.
        on_run: called with the system's name before each decode, for progress.
    """
    prompts = [bundle.tokenizer.encode(prompt.text).ids for prompt in bundle.prompts[:num_prompts]]
    seconds: dict[str, float] = {}
    results: dict[str, list[Generated]] = {}
    exact = True
    example: Generated | None = None
    generate_seconds, generate_tokens = 0.0, 0
    base: Any = bundle.model.base
    base.generate(torch.tensor([prompts[0]]), do_sample=False, max_new_tokens=4)  # warms up, as the next line does
    for drafter in systems(bundle, [0], k, p, num_nodes).values():
        generate(bundle.model, prompts[0], drafter, max_new_tokens=4)
    for prompt in prompts:
        if on_run is not None:
            on_run("generate()")
        started = time.perf_counter()
        reference = base.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=max_new_tokens)
        generate_seconds += time.perf_counter() - started
        generate_tokens += reference.shape[1] - len(prompt)
        for name, drafter in systems(bundle, reference[0, len(prompt) :].tolist(), k, p, num_nodes).items():
            if on_run is not None:
                on_run(name)
            started = time.perf_counter()
            out = generate(bundle.model, prompt, drafter, max_new_tokens=max_new_tokens, trace=True)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - started
            results.setdefault(name, []).append(out)
            exact &= torch.equal(out.sequences, reference)
            if example is None and name.endswith("tree"):
                example = out
    assert example is not None
    return Demo(_signature(bundle, len(prompts), max_new_tokens, k), [_summarise(n, r, seconds[n]) for n, r in results.items()],
                generate_tokens / generate_seconds, exact, example)  # fmt: skip


def _summarise(name: str, outs: list[Generated], seconds: float) -> SystemResult:
    calls = sum(out.num_calls for out in outs)
    new_tokens = sum(out.num_tokens for out in outs)
    tokens = new_tokens - len(outs)
    return SystemResult(
        name=name,
        block_efficiency=tokens / calls,
        verified_tokens_per_call=sum(out.verified_tokens for out in outs) / calls,
        tokens_per_second=new_tokens / seconds,
        calls=calls,
        tokens=tokens,
    )


def _signature(bundle: Bundle, prompts: int, max_new_tokens: int, k: int) -> dict[str, Any]:
    return {
        "version": __version__,
        "model": "bundled",
        "parameters": sum(parameter.numel() for parameter in bundle.model.parameters()),
        "heads": bundle.model.num_heads,
        "k": k,
        "lm": f"bundled {bundle.lm.order}-gram, {sum(bundle.lm.num_ngrams)} n-grams",
        "alpha": ", ".join(f"{tuning.system} {tuning.alpha:g}" for tuning in tunings_of(bundle.lm_file)),
        "prompts": prompts,
        "max_new_tokens": max_new_tokens,
        "dtype": str(bundle.model.base.dtype).removeprefix("torch."),
        "device": str(bundle.model.base.device),
        "threads": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
