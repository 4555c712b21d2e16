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

import torch

from benchmarks.common import latticebpd, options, run, stage
from benchmarks.qwen.answers import corpus
from fst.files import copy
from latticebpd.drafters.heads.blockwise import load_blockwise
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.scoring.calibration import calibration_path

LATER = "0.7,0.5,0.4,0.3,0.25"
"""How often heads after the first learn: draft trees have fewer and fewer nodes from slot to slot."""
SHAPE = "--kind conditioned --num-heads 7 --intermediate-size 640 --shortlist 16384"
TRAINING = "--warmup-steps 50 --checkpoint-every 50 --validation-every 200 --serving-prompts 0 --precision bfloat16"
LABELS = "--batch-size 40 --head-positions 0.25 --labels model --label-temperature 0.5 --weight-decay 1"
HEADS = f"{SHAPE} --head-weights 1,{LATER} --learning-rate 2e-3 {LABELS} {TRAINING}"
TRANSITIONS = (
    f"--warm-start --freeze-heads --transitions 512 --head-weights 0,{LATER} --learning-rate 2e-3 {LABELS} {TRAINING}"
)
LATTICES = "--weights gguf --teacher-force --max-new-tokens 256 --context 1024 -k 16"


def heads(work: Path, model: Path, steps: int) -> Path:
    """Heads, then their transitions; a directory that `load` takes."""
    texts = (work / "learn.npz", "--validation", work / "held-out.npz")
    marginal, tied = work / "marginal-heads", work / "heads"
    latticebpd("train heads", *texts, "--model", model, f"{HEADS} --steps {steps} -o", marginal)
    latticebpd("train heads", *texts, "--model", marginal, f"{TRANSITIONS} --steps {steps // 3} -o", tied)
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
    args = parser.parse_args()
    work, model = args.work, args.model
    kinds = [json.loads(line)["kind"] for line in args.prompts.read_text(encoding="utf-8").splitlines()]
    stage(work / "learn.npz", lambda: corpus(args.answers, kinds, work))
    trained, lm = heads(work, model, args.steps), work / "lm.fst"
    texts = [path for path in (work / "learn.npz", work / "more.npz") if path.exists()]
    stage(lm, lambda: latticebpd("lm train", *texts, "--tokenizer", trained, "-o", lm))
    calibrated(work / "without-heads", lm, work / "held-out.npz")
    package, lattices = work / "with-heads", work / "lattices"
    stage(package / GGUF_NAME, lambda: (package / GGUF_NAME).symlink_to(model.absolute()))
    stage(package / "latticebpd/heads.json", lambda: load_blockwise(trained).save_heads(package, torch.int8))
    latticebpd("lattices --prompts", work / "held-out.npz", "--model", package, LATTICES, "-o", lattices)
    calibrated(package, lm, lattices)


if __name__ == "__main__":
    run(main)
