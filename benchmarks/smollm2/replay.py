"""What rescoring adds on held-out answers, by walking through them: systems in pairs, with and without the n-gram model.

    latticebpd lattices --prompts WORK/held-out.npz --model WORK/heads --teacher-force --max-new-tokens 256 -k 64 -o WORK/lattices
    latticebpd tune WORK/lattices --lm WORK/lm.fst -s 1-best -s 16-best -s 8-tree -s 16-tree -s 64-tree --examples 12 --write
    python benchmarks/smollm2/replay.py WORK/lattices --lm WORK/lm.fst

The answers are the model's own greedy text, so that a walk makes the calls of a decode; the texts that weights were tuned on are left
out.  Intervals: 95 %, texts drawn anew, both systems of a pair on the same ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from latticebpd.analysis import blocks, compare
from latticebpd.analysis.excluding import without_any
from latticebpd.scoring.weights import stored_tunings

PAIRED = ("16-best", "8-tree", "16-tree", "64-tree")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lattices", type=Path, nargs="+")
    parser.add_argument("--lm", type=Path, required=True)
    arguments = parser.parse_args()
    systems = ["1-best", *(name for system in PAIRED for name in (f"{system}:0-gram", system))]
    left = without_any(blocks(arguments.lattices), stored_tunings(arguments.lm))
    found = compare(left, systems, str(arguments.lm))
    drawn = found.resampled[:, :, 0] / found.resampled[:, :, 1]
    place = {name: number for number, name in enumerate(found.systems)}
    for name, efficiency, verified in zip(found.systems, found.block_efficiency, found.verified_tokens, strict=True):
        line = f"{name:16} {efficiency:.3f} tokens a call, {verified:5.1f} verified"
        if name in PAIRED:
            ratio = drawn[:, place[name]] / drawn[:, place[f"{name}:0-gram"]] - 1
            low, high = np.quantile(ratio, [0.025, 0.975])
            own = efficiency / found.block_efficiency[place[f"{name}:0-gram"]] - 1
            line += f"; over the same without the n-gram model {own:+.1%} ({low:+.1%} to {high:+.1%})"
        print(line)
    print(found.signature)


if __name__ == "__main__":
    main()
