"""Block drafters of SmolLM2-135M-Instruct from its own text: DFlash's kind, its causal twin of the same budget,
bigrams on both.

    python -m benchmarks.smollm2.make --data DIR --work WORK
    python -m benchmarks.smollm2.drafters --work WORK

WORK/blocks then holds states of whole texts and, each in a directory of its own, the drafters; a stopped run is taken
up where it was. All read the states of layers 2, 15 and 28 and draft eight tokens after the anchor, of the tokens
that the heads know.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.common import latticebpd, options, stage
from benchmarks.smollm2.make import MODEL
from latticebpd.lattices.texts import Texts

LAYERS = "2,15,28"
SHAPE = f"--num-layers 3 --layers {LAYERS} --block-size 8 --num-kv-heads 9 --intermediate-size 768"
OPTIONS = (
    "--batch-size 16 --anchors 16 --muon-learning-rate 1e-2 --warmup-steps 10 --precision bfloat16 "
    "--validation-every 60 --validation-sequences 32 --checkpoint-every 10"
)


def drafters(work: Path, model: str, shortlist: str, steps: int) -> None:
    """Train all of them; finished ones stay."""
    blocks, target = work / "blocks", f"--model {model} --base-dtype bfloat16"
    train, held = (blocks / name for name in ("train.npz", "held-out.npz"))
    for copy in (train, held):  # heads' states, of written tokens alone, may stand next to the texts themselves
        stage(copy, lambda copy=copy: Texts.load(work / copy.name).save(copy))  # type: ignore[misc]
    latticebpd("train", "hidden", train, held, f"{target} --whole --layers {LAYERS} --shard-texts 64")
    common = ("train", "block-drafter", train, "--validation", held, f"{target} {OPTIONS}")
    for name, causal in (("bidirectional", ""), ("causal", "--causal")):
        rates = f"--shortlist {shortlist} --steps {steps} --learning-rate 2e-3"
        latticebpd(*common, SHAPE, causal, rates, "-o", blocks / name)
        rates = "--bigram-rank 64 --steps 150 --learning-rate 5e-3"
        latticebpd(*common, "--head-on", blocks / name, rates, "-o", blocks / f"{name}-bigram")


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("--work", type=Path, required=True, help="folder that make.py has filled")
    parser.add_argument("--model", default=MODEL, help="target")
    about = "whose heads' tokens are drafted, or how many of the text's own"
    parser.add_argument("--shortlist", default=MODEL, help=about)
    parser.add_argument("--steps", type=int, default=420, help="updates of each drafter")
    given = parser.parse_args()
    drafters(given.work, given.model, given.shortlist, given.steps)


if __name__ == "__main__":
    main()
