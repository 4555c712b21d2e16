"""Heads, n-gram model and calibration for Qwen2.5-Coder-Instruct from its own answers: one resumable command.

    python -m benchmarks.qwen.make WORK/answers --prompts WORK/prompts.jsonl --model MODEL.gguf --work WORK/0.5b

WORK/answers is what `distill --hidden` has filled so far. Heads learn on PyTorch from the states that the engine had
when it wrote the answers, so that the model is not run again; all that they do afterwards is the engine's. What the
package has is in ``without-heads`` (n-gram model, its calibration) and ``with-heads`` of ``WORK/0.5b``. A stage whose
result is there is not done again.
"""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

import torch

from benchmarks.common import latticebpd, options, run, stage
from benchmarks.qwen.answers import corpus
from fst.files import copy
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.models.catalogue import GGUF_NAME, resolved
from latticebpd.scoring.calibration import calibration_path

LATER = "0.7,0.5,0.4,0.3,0.25"
"""How often heads after the first learn: draft trees have fewer and fewer nodes from slot to slot."""
SHAPE = "--kind conditioned"
TRAINING = "--warmup-steps 50 --checkpoint-every 50 --validation-every 200 --serving-prompts 0 --precision bfloat16"
LABELS = "--batch-size 40 --head-positions 0.25 --labels model --label-temperature 0.5 --weight-decay 1"
TRANSITIONS = "--warm-start --freeze-heads"
LATTICES = "--weights gguf --teacher-force --max-new-tokens 256 --context 1024 -k 16"


def heads(work: Path, model: Path, steps: int, count: int, width: int, transitions: int, shortlist: str) -> Path:
    """So many heads, then their transitions, of these widths; a directory that `load` takes."""
    texts = (work / "learn.npz", "--validation", work / "held-out.npz")
    marginal, tied = work / "marginal-heads", work / "heads"
    later = ",".join(LATER.split(",")[: count - 1])
    common = f"--learning-rate 2e-3 {LABELS} {TRAINING}"
    shape = (
        f"{SHAPE} --shortlist {shortlist} --num-heads {count + 1} --intermediate-size {width} --head-weights 1,{later}"
    )
    latticebpd("train heads", *texts, "--model", model, f"{shape} {common} --steps {steps} -o", marginal)
    shape = f"{TRANSITIONS} --transitions {transitions} --head-weights 0,{later}"
    latticebpd("train heads", *texts, "--model", marginal, f"{shape} {common} --steps {steps // 3} -o", tied)
    return tied


def calibrated(work: Path, lm: Path, examples: Path) -> Path:
    """A folder of an n-gram model with a calibration of its own: of lattices, or of texts without any."""
    own = work / lm.name
    stage(own, lambda: copy(lm, own))
    calibration = calibration_path(own)
    fitting = "--examples 10000 --positions 20000 --write"
    stage(calibration, lambda: latticebpd("calibrate", examples, "--lm", own, fitting))
    return work


def main() -> None:
    parser = options(__doc__, whole=True)
    parser.add_argument("answers", type=Path, help="what `latticebpd distill --hidden` fills")
    parser.add_argument("--prompts", type=Path, required=True, help="what `prompts.py` wrote beside them (.jsonl)")
    parser.add_argument("--model", type=Path, required=True, help="the model's .gguf file")
    parser.add_argument("--work", type=Path, required=True, help="folder of all stages' results")
    parser.add_argument("--steps", type=int, default=900, help="updates of the heads")
    parser.add_argument("--heads", type=int, default=6, help="after the model's own prediction")
    parser.add_argument("--widths", type=int, nargs=2, default=(640, 512), help="of heads and of transitions")
    parser.add_argument("--shortlist", default="16384", help="most frequent tokens, or a model whose heads' tokens")
    parser.add_argument("--trained", help="a model whose heads are there, in place of new ones")
    parser.add_argument("--lm", type=Path, help="an n-gram model that is there, in place of one of these answers")
    parser.add_argument("--held-out", type=int, nargs="*", default=(), help="shards; by default every 16th answer")
    args = parser.parse_args()
    work, model = args.work, args.model
    kinds = [json.loads(line)["kind"] for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    stage(work / "learn.npz", lambda: corpus(args.answers, kinds, work, args.held_out))
    lm, package, lattices = work / "lm.fst", work / "with-heads", work / "lattices"
    stage(package / GGUF_NAME, lambda: (package / GGUF_NAME).symlink_to(model.absolute()))
    made, written = package / "latticebpd/heads.json", package / "latticebpd"
    if args.trained:
        stage(made, lambda: copytree(Path(resolved(args.trained)) / "latticebpd", written, dirs_exist_ok=True))
    else:
        trained = heads(work, model, args.steps, args.heads, *args.widths, args.shortlist)
        stage(made, lambda: load_blockwise(trained).save_heads(package, torch.int8))
    texts = [path for path in (work / "learn.npz", work / "more.npz") if path.exists()]
    if args.lm is None:
        stage(lm, lambda: latticebpd("lm train", *texts, "--tokenizer", package, "-o", lm))
    else:
        stage(lm, lambda: copy(args.lm, lm))
    calibrated(work / "without-heads", lm, work / "held-out.npz")
    latticebpd("lattices --prompts", work / "held-out.npz", "--model", package, LATTICES, "-o", lattices)
    calibrated(package, lm, lattices)


if __name__ == "__main__":
    run(main)
