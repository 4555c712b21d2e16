"""Decoding side by side: stock greedy generate(), and this library's loop under one drafter after another.

    python -m benchmarks.bench_decoding                              # the bundled model: batch 1, 4, 16; context 128, 1024
    python -m benchmarks.bench_decoding --batch 1 --context 128 --budget --pay-off
    python -m benchmarks.bench_decoding --shape gpt2-xl              # what verifying n nodes costs, weights random

Systems take turns within a repetition, so that a drift of the machine's speed meets all alike; a number is the median
over repetitions after one warm-up.  Tokens per second include the prefill, as a user sees them.  Every text is
compared with generate()'s, token for token, and the program ends with an error if one differs.  On a machine that is busy
otherwise, `--clock cpu` counts the processor's time instead of the wall's: with one thread the two agree on a quiet one.

`--budget` says where a call's time goes, by a run of its own with a stopwatch around the parts.  `--pay-off` predicts
the speed-up of each size of tree from replayed acceptance and measured cost, and names the best.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from rich.console import Console

import latticebpd
from latticebpd import BlockwiseLM, DraftTree, NoDrafter, PathsDrafter, TreeDrafter, VanillaDrafter, generate
from latticebpd.decoding import loop as decoding
from latticebpd.decoding.loop import Generated
from latticebpd.drafters import BestTree, Drafter, MixtureDrafter, NBestPaths, PromptNgramDrafter, lattice_sources
from latticebpd.drafters.bundled import Bundle, load_bundle
from latticebpd.measuring.payoff import SIZES, pay_off
from latticebpd.target.tree_attention import TreeVerifier
from latticebpd.target.verifier_choice import verifier_for

err = Console(stderr=True)

SHAPES = {"gpt2": (12, 12, 768), "gpt2-medium": (24, 16, 1024), "gpt2-large": (36, 20, 1280), "gpt2-xl": (48, 25, 1600)}
"""Layers, attention heads, width; 50,257 tokens each."""


def tree(bundle: Bundle, nodes: int, slots: int | None) -> Drafter:
    return TreeDrafter(bundle.model, bundle.lm_file, num_nodes=nodes, slots=slots)


def mixture(bundle: Bundle, nodes: int, slots: int | None) -> Drafter:
    """Copying first; the heads are asked where it is unsure."""
    return MixtureDrafter(
        PromptNgramDrafter(block_size=nodes, num_nodes=nodes), tree(bundle, nodes, slots), num_nodes=nodes
    )


def systems(bundle: Bundle, slots: int | None) -> dict[str, Callable[[], Drafter]]:
    """A fresh drafter by name: what a drafter has learnt from one text is not carried to the next."""
    model = bundle.model
    return {
        "greedy, this loop": NoDrafter,
        "vanilla BPD": lambda: VanillaDrafter(model),
        "16-best 4-gram": lambda: PathsDrafter(model, bundle.lm_file, p=16),
        **{f"tree, {nodes} nodes": lambda nodes=nodes: tree(bundle, nodes, slots) for nodes in (4, 8, 16, 32, 64)},
        "prompt n-grams, 16 nodes": lambda: PromptNgramDrafter(block_size=16, num_nodes=16),
        **{
            f"n-grams + tree, {nodes} nodes": lambda nodes=nodes: mixture(bundle, nodes, slots) for nodes in (8, 16, 32)
        },
    }


class Clock:
    """Seconds, after whatever the device still has to do."""

    def __init__(self, kind: str, device: torch.device) -> None:
        self.read = time.process_time if kind == "cpu" else time.perf_counter
        self.device = device

    def __call__(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return self.read()


class Stopwatch:
    """Exclusive seconds of each part: what one part calls in another counts for the other alone.

    Args:
        whole: parts that are not taken apart; what they call counts for them.
    """

    def __init__(self, clock: Clock, whole: frozenset[str]) -> None:
        self.clock, self.whole = clock, whole
        self.seconds: dict[str, float] = {}
        self._running: list[tuple[str, float]] = []

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        if self._running and self._running[-1][0] in self.whole:
            yield
            return
        now = self.clock()
        self._settle(now)
        self._running.append((name, now))
        try:
            yield
        finally:
            now = self.clock()
            self._settle(now)
            self._running.pop()
            if self._running:
                self._running[-1] = (self._running[-1][0], now)

    def _settle(self, now: float) -> None:
        if self._running:
            name, since = self._running[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - since

    def around(self, owner: Any, attribute: str, name: str) -> Any:
        """A patch under which every call of ``owner.attribute`` counts for ``name``."""
        inner = getattr(owner, attribute)

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return inner(*args, **kwargs)

        return mock.patch.object(owner, attribute, timed)


PARTS = ("forward", "project", "heads", "lattice", "search", "draft", "verify", "cache", "loop")


def budget(
    model: BlockwiseLM, prompts: torch.Tensor, drafter: Drafter, new_tokens: int, clock: Clock
) -> dict[str, float]:
    """Milliseconds per pass by part; the prefill is left out.

    forward: the transformer layers.  project: the accepted path's hidden states to the vocabulary.  heads: block heads and
    their projection.  lattice: top k.  search: rescoring and tree.  draft: the rest of drafting.  verify: masks,
    positions, walking the tree.  cache: keeping what was accepted.  loop: all else.
    """
    watch = Stopwatch(clock, whole=frozenset({"prefill", "heads"}))
    base = model.base
    with contextlib.ExitStack() as patches:
        for owner, attribute, name in (
            (base.base_model, "forward", "forward"),
            (base.get_output_embeddings(), "forward", "project"),
            (model, "head_logits", "heads"),
            (lattice_sources, "lattices_from_logits", "lattice"),
            (BestTree, "draft", "search"),
            (NBestPaths, "draft", "search"),
            (drafter, "propose", "draft"),
            (TreeVerifier, "verify", "verify"),
            (decoding, "walk", "verify"),
            (TreeVerifier, "keep", "cache"),
            (TreeVerifier, "prefill", "prefill"),
        ):
            patches.enter_context(watch.around(owner, attribute, name))
        with watch.part("loop"):
            found = generate(model, prompts, drafter, max_new_tokens=new_tokens, eos_token_id=())
    return {name: 1e3 * watch.seconds.get(name, 0.0) / max(found.num_passes, 1) for name in PARTS}


def prompts_of(bundle: Bundle, batch: int, context: int, groups: int) -> list[torch.Tensor]:
    """``groups`` tensors ``[batch, context]``: stretches of the held-out prompts, joined end to end, each row from another place."""
    tokens = [token for prompt in bundle.prompts for token in bundle.tokenizer.encode(prompt.text).ids]
    tokens *= 1 + (context + 1) // len(tokens)
    starts = [row * len(tokens) // (batch * groups) for row in range(batch * groups)]
    rows = torch.tensor(
        [(tokens + tokens)[start : start + context] for start in starts], device=bundle.model.base.device
    )
    return [rows[group::groups] for group in range(groups)]


def compare(
    bundle: Bundle,
    chosen: dict[str, Callable[[], Drafter]],
    batch: int,
    context: int,
    arguments: argparse.Namespace,
    clock: Clock,
) -> list[dict[str, Any]]:
    """One table: every system on the same prompts; the first row is stock ``generate()``."""
    model: BlockwiseLM = bundle.model
    base: Any = model.base
    new_tokens, repeats = arguments.new_tokens, arguments.repeats
    groups = prompts_of(bundle, batch, context, arguments.groups)
    seconds = {name: [0.0] * repeats for name in ("generate()", *chosen)}
    found: dict[str, list[Generated]] = {name: [] for name in chosen}
    for repetition in range(-1, repeats):  # the first warms up, on one group
        for prompts in groups[: None if repetition >= 0 else 1]:
            err.print(f"batch {batch}, context {context}, repetition {repetition + 1} of {repeats}", style="dim")
            mask = torch.ones_like(prompts)
            started = clock()
            reference = base.generate(
                prompts, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens, min_new_tokens=new_tokens
            )
            elapsed = {"generate()": clock() - started}
            for name, drafter_of in chosen.items():
                drafter = drafter_of()
                started = clock()
                run = generate(model, prompts, drafter, max_new_tokens=new_tokens, eos_token_id=())
                elapsed[name] = clock() - started
                if not torch.equal(run.sequences, reference.cpu()):
                    sys.exit(
                        f"bench_decoding: error: {name} at batch {batch}, context {context}: the text differs from generate()'s"
                    )
                if repetition == 0:
                    found[name].append(run)
            if repetition >= 0:
                for name, value in elapsed.items():
                    seconds[name][repetition] += value
    greedy = statistics.median(seconds["generate()"])
    rows: list[dict[str, Any]] = []
    for name, values in seconds.items():
        median = statistics.median(values)
        runs = found.get(name, [])
        tokens = batch * new_tokens * len(groups)
        calls = sum(run.num_calls for run in runs) or tokens - batch * len(groups)
        rows.append({
            "system": name,
            "batch": batch,
            "context": context,
            "tokens_per_second": tokens / median,
            "speedup": greedy / median,
            "block_efficiency": (tokens - batch * len(groups)) / calls,
            "verified_per_call": sum(run.verified_tokens for run in runs) / calls,
            "calls": calls,
            "spread": (max(values) - min(values)) / median,
        })  # fmt: skip
    return rows


def bundled(arguments: argparse.Namespace, device: torch.device, clock: Clock) -> dict[str, Any]:
    """Everything about the bundled model."""
    bundle = load_bundle()
    bundle.model.to(device)
    chosen = systems(bundle, arguments.slots)
    if arguments.systems:
        unknown = [name for name in arguments.systems if name not in chosen]
        if unknown:
            raise ValueError(f"expected systems among {', '.join(chosen)}, got {unknown[0]}")
        chosen = {name: chosen[name] for name in arguments.systems}
    positions = bundle.model.base.config.max_position_embeddings
    record: dict[str, Any] = {"decoding": [], "budget": [], "pay_off": None}
    for context in arguments.context:
        # The bundled model has 1,024 positions: where prompt and text do not fit, the prompt is cut to what does.
        fitting = min(context, positions - arguments.new_tokens)
        for batch in arguments.batch:
            rows = compare(bundle, chosen, batch, fitting, arguments, clock)
            record["decoding"] += rows
            show(
                f"batch {batch}, context {fitting}, {arguments.new_tokens} new tokens a row, {arguments.groups} batches of prompts pooled",
                ["system", "tokens/s", "vs. generate()", "tokens/call", "verified/call", "calls", "spread"],
                [
                    [
                        row["system"],
                        f"{row['tokens_per_second']:.0f}",
                        f"{row['speedup']:.2f}x",
                        f"{row['block_efficiency']:.2f}",
                        f"{row['verified_per_call']:.1f}",
                        str(row["calls"]),
                        f"{row['spread']:.0%}",
                    ]
                    for row in rows
                ],
            )
            if arguments.budget:
                prompts = prompts_of(bundle, batch, fitting, 1)[0]
                parts = {
                    name: budget(bundle.model, prompts, of(), arguments.new_tokens, clock)
                    for name, of in chosen.items()
                }
                record["budget"] += [
                    {"system": name, "batch": batch, "context": fitting, **found} for name, found in parts.items()
                ]
                show(
                    f"milliseconds a pass, batch {batch}, context {fitting}",
                    ["system", *PARTS, "sum", "not forward"],
                    [[name, *(f"{v:.2f}" for v in found.values()), *_shares(found)] for name, found in parts.items()],
                )
    if arguments.pay_off:
        record["pay_off"] = measure_pay_off(bundle, arguments, clock)
    return record


def _shares(found: dict[str, float]) -> tuple[str, str]:
    total = sum(found.values())
    inside = found["forward"] + found["project"] + found["heads"]
    return f"{total:.2f}", f"{1 - inside / total:.0%}"


def measure_pay_off(bundle: Bundle, arguments: argparse.Namespace, clock: Clock) -> dict[str, Any]:
    prompts = [bundle.tokenizer.encode(prompt.text).ids for prompt in bundle.prompts]
    record = {}
    families: dict[str, Callable[[int], Drafter]] = {
        "tree": lambda n: tree(bundle, n, arguments.slots),
        "n-grams + tree": lambda n: mixture(bundle, n, arguments.slots),
    }
    for name, of in families.items():
        with err.status(f"pay-off of {name}"):
            found = pay_off(
                bundle.model,
                prompts,
                of,
                SIZES,
                max_new_tokens=arguments.new_tokens,
                repeats=arguments.repeats,
                clock=clock,
            )
        record[name] = {**vars(found), "speedups": found.speedups, "best": found.best}
        show(
            f"pay-off of {name}: {found.best} nodes are best here; greedy {1e3 * found.greedy_seconds:.2f} ms a token",
            ["nodes", "tokens/call", "ms/call", "breaks even at", "predicted speed-up"],
            [
                [str(n), f"{tokens:.2f}", f"{1e3 * seconds:.2f}", f"{even:.2f}", f"{speedup:.2f}x"]
                for n, tokens, seconds, even, speedup in zip(
                    found.num_nodes,
                    found.tokens_per_call,
                    found.seconds_per_call,
                    found.break_even,
                    found.speedups,
                    strict=True,
                )
            ],
        )
    return record


def shaped(arguments: argparse.Namespace, device: torch.device, clock: Clock) -> dict[str, Any]:
    """What verifying ``n`` nodes costs, against one token, on a model with random weights."""
    layers, attention_heads, width = SHAPES[arguments.shape]
    dtype = getattr(torch, arguments.dtype)
    parameters = 12 * layers * width * width + 50257 * width
    needed = parameters * torch.finfo(dtype).bits // 8
    free = (
        torch.cuda.mem_get_info()[0]
        if device.type == "cuda"
        else os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    if needed > 0.8 * free:
        raise ValueError(
            f"expected {needed / 2**30:.1f} GiB of free memory for {arguments.shape}, got {free / 2**30:.1f}; take a smaller shape"
        )
    err.print(f"making {arguments.shape}: {parameters / 1e9:.2f}B random parameters", style="dim")
    config = transformers.GPT2Config(
        n_layer=layers, n_head=attention_heads, n_embd=width, n_positions=4096, bos_token_id=None, eos_token_id=None
    )
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = transformers.GPT2LMHeadModel(config).eval()
    torch.set_default_dtype(torch.float32)
    rng = np.random.default_rng(0)
    rows = []
    for batch in arguments.batch:
        for context in arguments.context:
            verifier = verifier_for(model)
            verifier.prefill(rng.integers(0, 50257, (batch, context)).tolist())
            seconds: dict[int, list[float]] = {n: [] for n in arguments.nodes}
            for repetition in range(arguments.repeats + 1):  # the first warms up; sizes take turns
                err.print(
                    f"batch {batch}, context {context}, repetition {repetition} of {arguments.repeats}", style="dim"
                )
                for n in arguments.nodes:
                    parents = (np.arange(n, dtype=np.int32) - 1) // 2  # any tree costs the same
                    trees = [DraftTree(np.arange(n, dtype=np.int32), parents)] * batch
                    started = clock()
                    verified = verifier.verify([0] * batch, trees)
                    verified.logits_of(list(range(batch)), [0] * batch).argmax(dim=-1).tolist()
                    verifier.forget()
                    if repetition:
                        seconds[n].append(clock() - started)
            medians = {n: statistics.median(values) for n, values in seconds.items()}
            one = medians[min(medians)]
            rows += [
                {"batch": batch, "context": context, "nodes": n, "ms": 1e3 * value, "against_one_token": value / one}
                for n, value in medians.items()
            ]
            show(
                f"{arguments.shape}, {arguments.dtype}: one pass, batch {batch}, context {context}",
                ["nodes", "ms", "against one token", "speculation pays above, tokens/call"],
                [
                    [str(n), f"{1e3 * value:.2f}", f"{value / one:.2f}x", f"{value / one:.2f}"]
                    for n, value in medians.items()
                ],
            )
    return {"passes": rows, "parameters": parameters}


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown, as `benchmarks/README.md` holds them."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    lines = [[heading.ljust(width) for heading, width in zip(headings, widths, strict=True)]]
    lines.append(["-" * (width - 1) + ("-" if number == 0 else ":") for number, width in enumerate(widths)])
    lines += [
        [
            cell.ljust(width) if number == 0 else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]
    print(f"\n{title}\n", *("| " + " | ".join(line) + " |" for line in lines), sep="\n")


def machine(device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    return {
        "command": shlex.join(["python", *sys.argv]),
        "processor": processor,
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "clock": arguments.clock,
        "latticebpd": latticebpd.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
    }


def numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 0:
        raise ValueError
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16], help="rows, separated by commas")
    parser.add_argument("--context", type=numbers, default=[128, 1024], help="prompt tokens, separated by commas")
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens decoded per row")
    parser.add_argument("--groups", type=int, default=3, help="batches of different prompts, pooled")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions")
    parser.add_argument(
        "--systems", type=lambda text: text.split(";"), help="names separated by semicolons; all by default"
    )
    parser.add_argument("--slots", type=int, help="heads that trees draft with; all by default")
    parser.add_argument("--budget", action="store_true", help="where a call's time goes")
    parser.add_argument("--pay-off", action="store_true", help="which size of tree pays best here")
    parser.add_argument("--shape", choices=SHAPES, help="measure passes of a random model of this shape instead")
    parser.add_argument(
        "--nodes", type=numbers, default=[0, 1, 4, 8, 16, 32, 64, 128], help="sizes of tree for --shape"
    )
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16", "float16"], default="float32", help="weights for --shape"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--json", type=Path, help="write everything as JSON")
    parser.add_argument("--csv", type=Path, help="write the decoding table, or the passes, as CSV")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    device = torch.device(arguments.device)
    clock = Clock(arguments.clock, device)
    signature = machine(device, arguments)
    print(" | ".join(f"{name} {value}" for name, value in signature.items()))
    try:
        record = shaped(arguments, device, clock) if arguments.shape else bundled(arguments, device, clock)
    except ValueError as error:
        sys.exit(f"bench_decoding: error: {error}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"signature": signature, **record}, indent=1) + "\n")
    if arguments.csv:
        rows = record["passes"] if arguments.shape else record["decoding"]
        with arguments.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
