"""Options of training runs, with their defaults.

The commands of ``latticebpd train`` take their options from these classes (`lm_training.cli.options`): a field with
``help`` is a command-line option, a field without is for Python only. A resumed run must have the same options, except
*free* ones: these change speed and logging, not what is learnt (and ``steps``, so that a run can be extended).
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field, fields
from typing import Any

from latticebpd.checks import expect
from lm_training.training.selection import OBJECTIVES, EveryHead, OneHeadPerPosition, Selection

PRECISIONS = ("float32", "bfloat16")


def option(default: Any, help: str | None = None, *, free: bool = False, **more: Any) -> Any:
    """A field and its properties as an option.

    Args:
        free: may differ in a resumed run.
        more: ``min``, ``max``: bounds, included.  ``above``: a bound, excluded.  ``choices``: allowed values.
            ``flag``: its name on the command line.  ``parse``: from the command line's text to the value.
    """
    return field(default=default, metadata={"help": help, "free": free, **more})


def numbers(text: str) -> tuple[float, ...]:
    """``1,0.8,0.6`` as numbers; ValueError for any other text."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        message = f"expected --head-weights as numbers separated by commas, such as 1,0.8,0.6, got {text!r}"
        raise ValueError(message) from None


@dataclass(frozen=True)
class LoopOptions:
    """Options of every run; learning rates warm up, then follow a cosine to zero."""

    steps: int = option(2000, "Updates in all; a finished run can be extended.", free=True, min=1)
    learning_rate: float = option(1e-3, "AdamW's peak rate.", min=0.0)
    weight_decay: float = option(0.01, "How fast weights decay; 1 keeps heads from memorising their texts.", min=0.0)
    warmup_steps: int = option(100, "Updates until the rates peak.", min=0)
    accumulate: int = option(1, "Parts of a batch whose gradients are added up, to save memory.", free=True, min=1)
    precision: str = option("float32", "float32, or bfloat16: mixed precision.", choices=PRECISIONS)
    validation_every: int = option(250, "Updates between measurements.", free=True, min=1)
    checkpoint_every: int = option(250, "Updates between checkpoints.", free=True, min=1)
    seed: int = option(0, "Seed of everything random.")
    compile: bool = option(False, "Use torch.compile; needs a C++ compiler at run time.", free=True, flag="--compile")
    fsdp: bool = option(False, free=True)

    def __post_init__(self) -> None:
        comparisons = (("min", ">=", operator.ge), ("max", "<=", operator.le), ("above", ">", operator.gt))
        for each in fields(self):
            value, bounds = getattr(self, each.name), each.metadata
            if value is None:
                continue
            for name, sign, holds in comparisons:
                if name in bounds:
                    expect(holds(value, bounds[name]), f"{each.name} {sign} {bounds[name]}", value)
            choices = bounds.get("choices", (value,))
            expect(value in choices, f"--{each.name.replace('_', '-')} {', '.join(map(str, choices))}", repr(value))

    def rate_factor(self, step: int) -> float:
        """Factor in [0, 1] of every learning rate: linear warm-up, then half a cosine wave down to zero."""
        rise = (step + 1) / max(1, self.warmup_steps)
        done = min(1.0, max(0.0, (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)))
        return min(rise, 0.5 * (1 + math.cos(math.pi * done)))

    def record(self, free: bool = True) -> dict[str, Any]:
        """The options for JSON; without the free ones, those that a resumed run must have."""
        return {each.name: getattr(self, each.name) for each in fields(self) if free or not each.metadata.get("free")}


@dataclass(frozen=True)
class PlateauOptions(LoopOptions):
    """Rates warm up, stay, and fall linearly over the last ``decay_fraction`` of the steps."""

    learning_rate: float = option(2e-3, "AdamW's peak rate: embedding, norms and biases.", min=0.0)
    muon_learning_rate: float = option(5e-3, "Muon's peak rate: the layers' matrices.", min=0.0)
    decay_fraction: float = option(0.5, min=0.0, max=1.0)

    def rate_factor(self, step: int) -> float:
        rise = (step + 1) / max(1, self.warmup_steps)
        fall = (self.steps - step) / max(1.0, self.decay_fraction * self.steps)
        return min(1.0, rise, fall)


@dataclass(frozen=True)
class HeadLosses:
    """The loss of heads.

    objective: which pairs of prediction and position are scored (`lm_training.training.selection`).
    head_weights: of heads 2..h, where the base model weighs 1; 1 by default.
    head_positions: positions of a text say much the same, so that a share of those of more texts teaches more.
    """

    objective: str = option(
        "position",
        "position: one head at a position; batch: one prediction per update (Stern); joint: all (Kim).",
        choices=tuple(OBJECTIVES),
    )
    head_weights: tuple[float, ...] | None = option(
        None, "Weights of heads 2, 3, ...: 1,0.8,0.6; position draws them as often.", parse=numbers
    )
    head_positions: float = option(
        1.0, "Share of a text's positions that are scored; 0.25 with four times the texts costs the same.",
        above=0.0, max=1.0,
    )  # fmt: skip
    validation_sequences: int = option(64, free=True, min=1)

    @property
    def selection(self) -> Selection:
        position = self.objective == "position"
        return OneHeadPerPosition(self.head_positions) if position else OBJECTIVES[self.objective]


@dataclass(frozen=True)
class HeadTraining(HeadLosses, LoopOptions):
    """Heads for an existing base model.

    labels: with ``model`` a head learns the base model's distribution over the tokens that it knows, at the position
        whose next token it predicts (distillation by forward KL). The base model must be frozen.
    label_temperature: divides the logits of these distributions.
    freeze_heads: heads stay as they are, and only their transitions learn.
    """

    labels: str = option(
        "text", "text: the tokens that follow; model: their probabilities by the base model.", choices=("text", "model")
    )
    label_temperature: float = option(1.0, "Below 1, --labels model leans towards its best tokens.", above=0.0)
    learning_rate: float = option(1e-3, "Peak rate of the heads.", min=0.0)
    batch_size: int = option(32, "Texts per update, over all processes.", min=1)
    fine_tune: bool = option(False, "Train the base model too.", flag="--fine-tune/--freeze-base")
    base_learning_rate: float = option(1e-4, "Peak rate of the base model, with --fine-tune.", min=0.0)
    freeze_heads: bool = option(
        False, "With --warm-start --transitions: train only the transitions.", flag="--freeze-heads/--train-heads"
    )
    fsdp: bool = option(False, "Shard the weights over the processes (FSDP).", free=True, flag="--fsdp")
    serving_prompts: int = option(8, "Validation prompts decoded to measure block efficiency.", free=True, min=0)

    @property
    def selection(self) -> Selection:
        return EveryHead(self.head_positions) if self.objective == "joint" else super().selection


@dataclass(frozen=True)
class BlockwiseTraining(HeadLosses, PlateauOptions):
    """A new base model with heads."""

    steps: int = option(6000, "Updates in all; a finished run can be extended.", free=True, min=1)
    batch_size: int = option(8, "Texts per update, over all processes.", min=1)
    sequence_length: int = option(256, "Tokens per text.", min=3)
    learning_rate: float = option(2e-3, "AdamW's peak rate: embedding, norms, heads.", min=0.0)
    decay_fraction: float = option(0.3, min=0.0, max=1.0)
    head_positions: float = option(0.25, above=0.0, max=1.0)
    serving_prompts: int = option(0, free=True, min=0)
    fine_tune: bool = option(True)


@dataclass(frozen=True)
class BlockDrafterTraining(LoopOptions):
    """A block drafter for an existing target."""

    learning_rate: float = option(2e-3, "AdamW's peak rate: norms, and the bigram.", min=0.0)
    muon_learning_rate: float = option(1e-2, "Muon's peak rate: the layers' matrices; 0: AdamW only.", min=0.0)
    batch_size: int = option(16, "Texts per update, over all processes.", min=1)
    anchors: int = option(16, "Anchors drawn from each text, each followed by a block.", min=1)
    gamma: float = option(5.0, "Slot m of a block weighs exp(-(m - 1) / gamma) in the loss.", above=0.0)
    objective: str = option("ce", "ce: cross-entropy; kl: forward KL from the target.", choices=("ce", "kl"))
    temperature: float = option(1.0, "Softens both distributions of kl.", above=0.0)
    validation_sequences: int = option(64, "Validation texts that are measured.", free=True, min=1)


@dataclass(frozen=True)
class RescorerTraining(LoopOptions):
    """A small language model that rescores drafts."""

    learning_rate: float = option(2e-3, "AdamW's peak rate: embeddings, norms and biases.", min=0.0)
    muon_learning_rate: float = option(5e-3, "Muon's peak rate: other matrices; 0: AdamW only.", min=0.0)
    batch_size: int = option(32, "Texts per update, over all processes.", min=1)
    validation_sequences: int = option(64, free=True, min=1)


@dataclass(frozen=True)
class TranslationTraining(PlateauOptions):
    """A small translation model."""

    checkpoint_every: int = option(100, "Updates between checkpoints.", free=True, min=1)
    batch_tokens: int = option(4096, "Source and target tokens per update, padding included.", min=2)
    label_smoothing: float = option(0.1, "Share of the probability spread over all tokens.", min=0.0, max=0.99)


@dataclass(frozen=True)
class MaskFillerTraining(TranslationTraining):
    """A non-autoregressive drafter, initialised with its verifier's weights.

    windows: prefixes drawn from each target with replacement, fewer if the positions do not suffice. They share one
        pass over the text, so eight windows cost about three times as much as one.
    smallest_block: each update draws its number of masks between it and the block size, evenly on a logarithmic scale;
        None, as in the paper, always fills the whole block.
    slot_decay: 1, as in the paper, weighs all tokens of a window alike. A token is accepted only if all before it are,
        so the first tokens matter most.
    reveal: glancing's ratio at the first and the last update.
    """

    learning_rate: float = option(1e-3, "AdamW's peak rate: embedding, norms and biases.", min=0.0)
    muon_learning_rate: float = option(2e-3, "Muon's peak rate: the layers' matrices.", min=0.0)
    label_smoothing: float = option(0.0, "Share of the probability spread over all tokens.", min=0.0, max=0.99)
    windows: int = option(8, "Prefixes drawn from each target; they share one pass over it.", min=1)
    smallest_block: int | None = option(None, "Draw the number of masks from here to the block size.", min=1)
    slot_decay: float = option(1.0, "Weight of a block's token relative to the one before it.", above=0.0, max=1.0)
    reveal: tuple[float, float] = option((0.5, 0.3), "Glancing's ratio at the first and the last update; 0 0: off.")
    serving_sources: int = option(32, "Validation sources decoded to measure tokens per call.", free=True, min=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = all(0.0 <= ratio <= 1.0 for ratio in self.reveal)
        expect(fits, "reveal from 0 to 1", f"{self.reveal[0]} and {self.reveal[1]}")

    def reveal_ratio(self, step: int) -> float:
        """Glancing's ratio at an update, counted from 0."""
        first, last = self.reveal
        return first + (last - first) * (step / max(1, self.steps - 1))
