"""What a pass over so many tokens costs at 200 tokens of context: PyTorch, oneDNN with prepacked weights, our CPU
engine.

    python -m benchmarks.smollm2.curve --rounds 12

One thread, CPU time (wall-clock time with more), the least of all rounds; every token's logits are computed.  Ways
take turns.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.common import Clock, options, set_up, table
from latticebpd import DraftTree, load
from latticebpd.target.verifier_choice import verifier_for

WIDTHS = (1, 2, 3, 5, 9, 13, 17, 33, 65)
CONTEXT = 200


class Prepacked(nn.Module):
    """A linear layer whose weights oneDNN has laid out for 16 rows."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.laid_out = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), 16)

    def forward(self, hidden: Tensor) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, self.laid_out, self.bias, "none", [], "")
        return found


def prepacked(model: Any) -> Any:
    for module in list(model.modules()):
        for name, layer in list(module.named_children()):
            if type(layer) is nn.Linear:
                setattr(module, name, Prepacked(layer))
    return model


@torch.inference_mode()
def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    set_up(arguments.threads)
    clock = Clock("cpu" if arguments.threads == 1 else "wall")
    plain, *engines = (load(arguments.model, weights=weights).base for weights in ("torch", "float32", "int8"))
    ways = {"PyTorch": plain, "oneDNN, prepacked": prepacked(load(arguments.model, weights="torch").base)}
    ways |= dict(zip(("engine, float32", "engine, int8"), engines, strict=True))
    verifiers = {name: verifier_for(model) for name, model in ways.items()}
    for verifier in verifiers.values():
        verifier.prefill([list(range(100, 100 + CONTEXT))])
    best = dict.fromkeys([(name, width) for name in verifiers for width in WIDTHS], float("inf"))
    for _ in range(arguments.rounds):
        for width in WIDTHS:
            nodes = np.arange(width - 1, dtype=np.int32)
            tree = DraftTree(nodes + 100, (nodes - 1) // 2)
            for name, verifier in verifiers.items():
                started = clock()
                verifier.verify([5], [tree]).logits_of([0] * width, range(width))
                verifier.forget()
                best[name, width] = min(best[name, width], clock() - started)
    rows = [[name, *(f"{best[name, width] * 1e3:.0f}" for width in WIDTHS)] for name in verifiers]
    table("", ("tokens in the pass", *map(str, WIDTHS)), rows)


if __name__ == "__main__":
    main()
