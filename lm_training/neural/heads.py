"""Heads for a base model that exists already, trained on people's text or on the model's own (Stern 2018, section 6).

With the base model frozen, its output and its files stay what they were, to the byte; fine-tuned, it gives up some of
its own quality for heads that are right more often.  A frozen base model may be kept in half precision, as it was
published perhaps, while its heads learn in float32: the hidden states are what it serves with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import torch

from latticebpd.lattices.texts import Texts
from latticebpd.models.blockwise import BlockwiseLM
from lm_training.neural.blockwise import BlockwiseObjective
from lm_training.neural.selection import OneHeadPerPosition, Selection
from lm_training.neural.training import LoopOptions, Process, Trainer, cosine


@dataclass(frozen=True)
class HeadTraining(LoopOptions):
    """How to train heads, beside what every run can be told.

    batch_size: sequences per update, over all processes and parts.
    learning_rate: AdamW's peak rate for the heads; the rate follows a cosine after the warm-up.
    base_learning_rate: the same for the base model; None freezes it.
    selection: which pairs of head and position are scored.
    head_weights: relative weights of heads 2..h; equal by default.
    """

    batch_size: int = 32
    learning_rate: float = 1e-3
    base_learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup_steps: int = 100
    selection: Selection = field(default_factory=OneHeadPerPosition)
    head_weights: tuple[float, ...] | None = None
    validation_sequences: int = 64
    serving_prompts: int = 8
    seed: int = 0


def train_heads(
    model: BlockwiseLM,
    data: Texts,
    validation: Texts,
    directory: str | os.PathLike[str],
    options: HeadTraining,
    process: Process | None = None,
    progress: bool = True,
) -> BlockwiseLM:
    """Train the heads of ``model`` in place, or go on with the run in ``directory``, where the finished model is written."""
    process = process or Process()
    frozen = options.base_learning_rate is None
    model.heads.requires_grad_(True)
    if frozen:
        model.base.requires_grad_(False)
    elif not any(parameter.requires_grad for parameter in model.base.parameters()):
        raise ValueError("expected a base model with parameters that require gradients, to fine-tune it, got one without; load it anew")
    model.to(process.device)

    def make_optimizers(model: BlockwiseLM) -> list[torch.optim.Optimizer]:
        groups = [{"params": list(model.heads.parameters()), "lr": options.learning_rate}]
        if not frozen:
            # Some weights are constants, such as Marian's sinusoidal positions.
            taught = [parameter for parameter in model.base.parameters() if parameter.requires_grad]
            groups.append({"params": taught, "lr": options.base_learning_rate})
        return [torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=options.weight_decay)]

    objective = BlockwiseObjective(
        model,
        data,
        validation,
        options.batch_size,
        make_optimizers,
        options.selection,
        base_weight=0.0 if frozen else 1.0,
        head_weights=options.head_weights,
        seed=options.seed,
        validation_sequences=options.validation_sequences,
        serving_prompts=options.serving_prompts,
        record=options.record(),
    )
    schedule = cosine(options.steps, options.warmup_steps)
    Trainer.of(objective, directory, schedule, options, process).run(progress)
    model.eval()
    return model
