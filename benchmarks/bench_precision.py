"""How often text decoded in half precision is not what the base model writes when it reads that text in one pass.

Decodes the bundled prompts with ``generate()`` and with draft trees, in float32, bfloat16 and float16, and checks each
text by teacher forcing in the same precision.  A divergence is a near tie that a pass over many tokens and a pass over
few round differently; plain ``generate()`` shows how many of them are no matter of drafting.

    python -m benchmarks.bench_precision [--prompts 12] [--max-new-tokens 128] [--nodes 16] [--device cpu]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.common import options, set_up, signature, table
from latticebpd import BlockwiseLM, Loaded, NoDrafter, TreeDrafter, check_lossless, generate, load
from latticebpd.drafters.bundled import MODEL, load_prompts


def decodes(
    model: BlockwiseLM, bundle: Loaded, nodes: int, new: int
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Ways to decode a prompt ``[1, n]`` greedily, by name."""
    base: Any = model.base
    tree = TreeDrafter(model, bundle.lm, num_nodes=nodes)
    return {
        "generate()": lambda ids: base.generate(ids, do_sample=False, max_new_tokens=new),
        "no drafts": lambda ids: generate(model, ids, NoDrafter(), max_new_tokens=new).sequences,
        "tree": lambda ids: generate(model, ids, tree, max_new_tokens=new).sequences,
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    set_up(torch.get_num_threads())
    bundle, rows = load(), list[list[str]]()
    prompts = [bundle.encode(prompt.text) for prompt in load_prompts()[: given.prompts]]
    signature(nodes=given.nodes)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        model = BlockwiseLM.from_pretrained(MODEL, dtype).to(given.device)
        for name, decode in decodes(model, bundle, given.nodes, given.max_new_tokens).items():
            margins, compared = list[float](), 0
            for prompt in prompts:
                report = check_lossless(model, decode(torch.tensor([prompt], device=given.device)), len(prompt))
                margins += [divergence.margin for divergence in report.divergences]
                compared += report.tokens
            assert not margins or dtype != torch.float32, f"float32 text of {name} diverges"
            greatest = f"{max(margins):.4f}" if margins else "-"
            precision = str(dtype).removeprefix("torch.")
            rows.append([precision, name, f"{len(margins)} of {len(prompts)}", f"{compared:,}", greatest])
    table("", ("precision", "decoded by", "rows that diverge", "tokens compared", "greatest logit margin"), rows)


if __name__ == "__main__":
    main()
