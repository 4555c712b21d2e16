"""Decoding: stock greedy generate(), and this library's loop under one drafter after another.

    python -m benchmarks.bench_decoding                         # batch 1, 4, 16; context 128, 1024
    python -m benchmarks.bench_decoding --batch 1 --context 128 --budget

Systems take turns within a repetition, so that a drift of the machine's speed affects all alike.  A number is the
median over repetitions after one warm-up.  Tokens per second include the prefill, as a user sees them.  Every text is
compared with generate()'s, token for token, and the program ends with an error if one differs.  On a busy machine
`--clock cpu` counts CPU time: with one thread the two agree on an idle one.  `--budget` shows where a call's time
goes, by a run of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import common
from latticebpd import BlockwiseLM, Loaded, NoDrafter, PathsDrafter, TreeDrafter, VanillaDrafter, generate, load
from latticebpd.decoding import loop as decoding
from latticebpd.decoding.loop import Generated
from latticebpd.drafters import BestTree, Drafter, MixtureDrafter, NBestPaths, PromptNgramDrafter
from latticebpd.drafters.bundled import load_prompts
from latticebpd.drafters.heads import head_family
from latticebpd.target.tree_attention import TreeVerifier

PARTS = ("forward", "project", "heads", "lattice", "search", "draft", "verify", "cache", "loop")
COLUMNS = {
    "tokens/s": ("tokens_per_second", "{:.0f}"),
    "vs. generate()": ("speedup", "{:.2f}x"),
    "tokens/call": ("block_efficiency", "{:.2f}"),
    "verified/call": ("verified_per_call", "{:.1f}"),
    "rescoring, ms/pass": ("rescoring_ms_per_pass", "{:.2f}"),
    "ms/pass": ("ms_per_pass", "{:.2f}"),
    "calls": ("calls", "{}"),
    "spread": ("spread", "{:.0%}"),
}
"""A heading, and the number below it."""
Batch = tuple[torch.Tensor, torch.Tensor]
"""Prompts ``[rows, columns]``, padded on the left, and their attention mask."""


def systems(bundle: Loaded, slots: int | None) -> dict[str, Callable[[], Drafter]]:
    """A fresh drafter by name: what a drafter has learnt from one text is not carried to the next."""
    model, lm = bundle.model, bundle.lm

    def tree(nodes: int) -> Drafter:
        return TreeDrafter(model, lm, num_nodes=nodes, slots=slots)

    def copies(nodes: int) -> Drafter:
        return PromptNgramDrafter(block_size=nodes, num_nodes=nodes)

    def mixture(nodes: int) -> Drafter:
        return MixtureDrafter(copies(nodes), tree(nodes), num_nodes=nodes)

    return {
        "greedy, this loop": NoDrafter,
        "vanilla BPD": lambda: VanillaDrafter(model),
        "16-best 4-gram": lambda: PathsDrafter(model, lm, p=16),
        **{f"tree, {nodes} nodes": lambda nodes=nodes: tree(nodes) for nodes in (4, 8, 16, 32, 64)},
        "prompt n-grams, 16 nodes": lambda: copies(16),
        **{f"n-grams + tree, {nodes} nodes": lambda nodes=nodes: mixture(nodes) for nodes in (8, 16, 32)},
    }


def budget(
    model: BlockwiseLM, prompts: torch.Tensor, drafter: Drafter, new_tokens: int, clock: common.Clock
) -> list[float]:
    """Milliseconds per pass by part, in `PARTS`' order; the prefill is left out.

    forward: the transformer layers.  project: the accepted path's hidden states to the vocabulary.  heads: block
    heads and their projection.  lattice: top k.  search: rescoring and tree.  draft: the rest of drafting.  verify:
    masks, positions, walking the tree.  cache: keeping what was accepted.  loop: all else.
    """
    watch, base = common.Stopwatch(clock, whole=frozenset({"prefill", "heads"})), model.base
    with contextlib.ExitStack() as patches:
        for owner, attribute, name in (
            (base.base_model, "forward", "forward"),
            (base.get_output_embeddings(), "forward", "project"),
            (model, "head_logits", "heads"),
            (head_family, "lattices_from_logits", "lattice"),
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
    return [1e3 * watch.seconds.get(name, 0.0) / max(found.num_passes, 1) for name in PARTS]


def prompts_of(bundle: Loaded, batch: int, context: int, groups: int) -> list[torch.Tensor]:
    """``groups`` tensors ``[batch, context]``: passages of the joined held-out prompts, rows at different offsets."""
    tokens = [token for prompt in load_prompts() for token in bundle.encode(prompt.text)]
    tokens *= 1 + (context + 1) // len(tokens)
    starts = [row * len(tokens) // (batch * groups) for row in range(batch * groups)]
    passages = [(tokens + tokens)[start : start + context] for start in starts]
    rows = torch.tensor(passages, device=bundle.model.base.device)
    return [rows[group::groups] for group in range(groups)]


def compare(
    model: BlockwiseLM,
    batches: Sequence[Batch],
    chosen: Mapping[str, Callable[[], Drafter]],
    new_tokens: int,
    repeats: int,
    clock: common.Clock,
) -> list[dict[str, Any]]:
    """One row for every system on the same prompts; the first is stock ``generate()``.

    Raises:
        ValueError: a system writes another text than ``generate()``.
    """
    base: Any = model.base
    seconds: dict[str, list[float]] = {name: [0.0] * repeats for name in ("generate()", *chosen)}
    rescoring, runs = dict.fromkeys(seconds, 0.0), {name: list[Generated]() for name in seconds}
    stock = {"do_sample": False, "max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "pad_token_id": 0}
    for repetition in range(-1, repeats):  # the first warms up, on one batch
        for number, (prompts, mask) in enumerate(batches if repetition >= 0 else batches[:1]):
            at = f"repetition {repetition + 1} of {repeats}, batch {number + 1} of {len(batches)}"
            common.err.print(at, style="dim")
            started = clock()
            reference = base.generate(prompts, attention_mask=mask, **stock)
            elapsed = {"generate()": clock() - started}
            for name, drafter_of in chosen.items():
                watch, drafter = common.Stopwatch(clock), drafter_of()
                started = clock()
                with watch.around(NBestPaths, "draft", "rescoring"), watch.around(BestTree, "draft", "rescoring"):
                    sizes: Any = {"max_new_tokens": new_tokens, "eos_token_id": ()}
                    out = generate(model, prompts, drafter, attention_mask=mask, **sizes)
                elapsed[name] = clock() - started
                if not torch.equal(out.sequences, reference.cpu()):
                    raise ValueError(f"{name}, {at}: expected generate()'s text, got another")
                if repetition >= 0:
                    rescoring[name] += watch.seconds.get("rescoring", 0.0)
                if repetition == 0:
                    runs[name].append(out)
            for name, value in elapsed.items() if repetition >= 0 else ():
                seconds[name][repetition] += value
    count = sum(len(prompts) for prompts, _ in batches)
    tokens, greedy = count * new_tokens, statistics.median(seconds["generate()"])
    rows: list[dict[str, Any]] = []
    for name, values in seconds.items():
        median = statistics.median(values)
        calls = sum(out.num_calls for out in runs[name]) or tokens - count
        passes = sum(out.num_passes for out in runs[name]) or (new_tokens - 1) * len(batches)
        rows.append({
            "system": name,
            "tokens_per_second": tokens / median,
            "speedup": greedy / median,
            "block_efficiency": (tokens - count) / calls,
            "verified_per_call": sum(out.verified_tokens for out in runs[name]) / calls,
            "rescoring_ms_per_pass": 1e3 * rescoring[name] / repeats / passes,
            "ms_per_pass": 1e3 * median / passes,
            "calls": calls,
            "spread": (max(values) - min(values)) / median,
        })  # fmt: skip
    return rows


def show(title: str, rows: Sequence[Mapping[str, Any]], headings: Sequence[str]) -> None:
    """Some of `COLUMNS`."""
    cells = [[row["system"], *(COLUMNS[each][1].format(row[COLUMNS[each][0]]) for each in headings)] for row in rows]
    common.table(title, ("system", *headings), cells)


def bundled(arguments: argparse.Namespace, device: torch.device, clock: common.Clock) -> dict[str, Any]:
    """Everything about the bundled model."""
    bundle = load(weights="torch")
    model, new_tokens, groups = bundle.model, arguments.new_tokens, arguments.groups
    model.to(device)
    chosen = common.selected(systems(bundle, arguments.slots), arguments.systems)
    record: dict[str, Any] = {"decoding": [], "budget": []}
    headings = [name for name in COLUMNS if "ms/pass" not in name]
    for context in arguments.context:
        # The bundled model has 1,024 positions: where prompt and text do not fit, the prompt is cut.
        fitting = min(context, model.base.config.max_position_embeddings - new_tokens)
        for batch in arguments.batch:
            batches = [(ids, torch.ones_like(ids)) for ids in prompts_of(bundle, batch, fitting, groups)]
            rows = compare(model, batches, chosen, new_tokens, arguments.repeats, clock)
            at = f"batch {batch}, context {fitting}"
            record["decoding"] += [row | {"batch": batch, "context": fitting} for row in rows]
            show(f"{at}, {new_tokens} new tokens a row, {groups} batches of prompts pooled", rows, headings)
            if arguments.budget:
                lines = []
                for name, drafter_of in chosen.items():
                    parts = budget(model, prompts_of(bundle, batch, fitting, 1)[0], drafter_of(), new_tokens, clock)
                    values = dict(zip(PARTS, parts, strict=True))
                    record["budget"].append({"system": name, "batch": batch, "context": fitting, **values})
                    lines.append([name, *parts, sum(parts), f"{1 - sum(parts[:3]) / sum(parts):.0%}"])
                common.table(f"milliseconds a pass, {at}", ("system", *PARTS, "sum", "not forward"), lines)
    return record


def numbers(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if min(found) < 0:
        raise ValueError
    return found


def decoding_options(parser: argparse.ArgumentParser) -> None:
    """What every benchmark of the bundled model's decoding takes."""
    parser.add_argument("--new-tokens", type=int, default=64, help="tokens decoded per row")
    parser.add_argument("--repeats", type=int, default=3, help="timed repetitions")
    all_names = "names separated by semicolons; all by default"
    parser.add_argument("--systems", type=lambda text: text.split(";"), help=all_names)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    common.clock_options(parser)
    parser.add_argument("--json", type=Path, help="write everything as JSON")


def main() -> None:
    parser = common.options(__doc__)
    parser.add_argument("--batch", type=numbers, default=[1, 4, 16], help="rows, separated by commas")
    parser.add_argument("--context", type=numbers, default=[128, 1024], help="prompt tokens, separated by commas")
    parser.add_argument("--groups", type=int, default=3, help="batches of different prompts, pooled")
    parser.add_argument("--slots", type=int, help="heads that trees draft with; all by default")
    parser.add_argument("--budget", action="store_true", help="show where a call's time goes")
    decoding_options(parser)
    arguments = parser.parse_args()
    common.set_up(arguments.threads)
    device = torch.device(arguments.device)
    record = {"signature": common.signature(device=arguments.device, clock=arguments.clock)}
    record |= bundled(arguments, device, common.Clock(arguments.clock, device))
    if arguments.json:
        common.write_json(arguments.json, record)


if __name__ == "__main__":
    common.run(main)
