"""How often text decoded in half precision is not what the base model writes when it reads that text in one pass.

    python -m benchmarks.bench_precision -o benchmarks/results/precision.csv

Decodes the bundled prompts with ``generate()`` and with draft trees, in float32, bfloat16 and float16, and checks each
text by teacher forcing in the same precision.  A divergence is a near tie that a pass over many tokens and a pass over
few round differently; plain ``generate()`` shows how many of them are no matter of drafting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.common import grouped, options, recorded, set_up, signature, table
from latticebpd import Loaded, NoDrafter, check_lossless, generate, load
from latticebpd.drafters.bundled import load_prompts
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.models.weight_kinds import TORCH

NEW_TOKENS, NODES = 128, 16
HEAD = ("precision", "decoded by", "rows that diverge", "tokens compared", "greatest logit margin")


def decodes(loaded: Loaded) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Ways to decode a prompt ``[1, n]`` greedily, by name."""
    model, tree = loaded.target, loaded.drafter(f"{NODES}-tree")
    base = TransformersModel.of(model).model
    return {
        "`generate()`": lambda ids: base.generate(ids, do_sample=False, max_new_tokens=NEW_TOKENS),
        "`generate` of this library, no drafts": lambda ids: (
            generate(model, ids, NoDrafter(), max_new_tokens=NEW_TOKENS).sequences
        ),
        f"{NODES}-node tree": lambda ids: generate(model, ids, tree, max_new_tokens=NEW_TOKENS).sequences,
    }


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for every precision, way to decode and prompt; no margin where no token diverges."""
    set_up()
    signature(nodes=NODES)
    rows = list[dict[str, Any]]()
    for precision in ("float32", "bfloat16", "float16"):
        loaded = load(dtype=precision, weights=TORCH)
        prompts = [loaded.encode(prompt.text) for prompt in load_prompts()[: args.prompts]]
        for name, decode in decodes(loaded).items():
            for number, ids in enumerate(prompts):
                report = check_lossless(loaded.target, decode(torch.tensor([ids])), len(ids))
                margin = max((each.margin for each in report.divergences), default=None)
                assert margin is None or precision != "float32", f"float32 text of {name} diverges"
                values = (precision, name, number, report.tokens, margin)
                rows.append(dict(zip(("precision", "decoded by", "prompt", "tokens", "margin"), values, strict=True)))
    return rows


def lines_of(rows: Sequence[Mapping[str, str]]) -> list[list[str]]:
    """The table's lines."""
    lines = []
    for (precision, name), own in grouped(rows, "precision", "decoded by").items():
        margins = [float(row["margin"]) for row in own if row["margin"]]
        tokens, greatest = sum(int(row["tokens"]) for row in own), f"{max(margins):.4f}" if margins else "-"
        lines.append([precision, name, f"{len(margins)} of {len(own)}", f"{tokens:,}", greatest])
    return lines


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--prompts", type=int, help="of the bundled ones, at most")
    table("", HEAD, lines_of(recorded(parser, measured)))


if __name__ == "__main__":
    main()
