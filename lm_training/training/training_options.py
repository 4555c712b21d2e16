"""How training runs are told to go: every option with its default, once.

The commands of ``latticebpd train`` take their options from these classes (`lm_training.cli.options`): a field with
``help`` is an option of the command line, a field without is for Python alone. A run that goes on from a checkpoint
must have been
started with the same options, but for those that are *free*: they change how fast a step is computed or what is written
about it, not what is learnt (and ``steps``, so that a run may be lengthened).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from lm_training.training.selection import OBJECTIVES, OneHeadPerPosition, Selection

Schedule = Callable[[int], float]
"""Step -> factor in [0, 1] of every learning rate."""

PRECISIONS = ("float32", "bfloat16")


def option(default: Any, help: str | None = None, *, free: bool = False, **more: Any) -> Any:
    """A field and what the command line needs of it.

    Args:
        free: may differ when a run goes on.
        more: ``min``, ``max``: bounds, included.  ``above``: a bound, not included.  ``choices``: what it may be.
            ``flag``: its name on the command line.  ``parse``: from the command line's text to the value.
    """
    return field(default=default, metadata={"help": help, "free": free, **more})


def trapezoid(steps: int, warmup_steps: int, decay_fraction: float) -> Schedule:
    """Linear warm-up, plateau, linear fall over the last ``decay_fraction`` of the steps."""

    def factor(step: int) -> float:
        rise = (step + 1) / max(1, warmup_steps)
        fall = (steps - step) / max(1.0, decay_fraction * steps)
        return min(1.0, rise, fall)

    return factor


def cosine(steps: int, warmup_steps: int, floor: float = 0.0) -> Schedule:
    """Linear warm-up, then half a cosine wave down to ``floor``."""

    def factor(step: int) -> float:
        rise = (step + 1) / max(1, warmup_steps)
        done = min(1.0, max(0.0, (step - warmup_steps) / max(1, steps - warmup_steps)))
        return min(rise, floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * done)))

    return factor


def numbers(text: str) -> tuple[float, ...]:
    """``1,0.8,0.6`` as numbers.

    Raises:
        ValueError: it is anything else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"expected --head-weights as numbers separated by commas, such as 1,0.8,0.6, got {text!r}"
        ) from None


@dataclass(frozen=True)
class LoopOptions:
    """What every run can be told; rates warm up, then follow a cosine to zero."""

    steps: int = option(2000, "Updates in all; a finished run can be extended.", free=True, min=1)
    learning_rate: float = option(1e-3, "AdamW's peak rate.", min=0.0)
    weight_decay: float = option(0.01, min=0.0)
    warmup_steps: int = option(100, "Updates until the rates peak.", min=0)
    accumulate: int = option(
        1, "Accumulate gradients over this many parts of a batch, to save memory.", free=True, min=1
    )
    precision: str = option(
        "float32", "float32, or bfloat16: mixed precision; weights stay as they are.", choices=PRECISIONS
    )
    validation_every: int = option(250, "Updates between measurements.", free=True, min=1)
    checkpoint_every: int = option(250, "Updates between checkpoints.", free=True, min=1)
    seed: int = option(0, "Seed of everything random.")
    compile: bool = option(False, "Use torch.compile; needs a C++ compiler at run time.", free=True, flag="--compile")
    fsdp: bool = option(False, free=True)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, bounds = getattr(self, each.name), each.metadata
            if value is None:
                continue
            for name, sign, holds in (
                ("min", ">=", operator.ge),
                ("max", "<=", operator.le),
                ("above", ">", operator.gt),
            ):
                if name in bounds and not holds(value, bounds[name]):
                    raise ValueError(f"expected {each.name} {sign} {bounds[name]}, got {value}")
            if "choices" in bounds and value not in bounds["choices"]:
                raise ValueError(
                    f"expected --{each.name.replace('_', '-')} {', '.join(bounds['choices'])}, got {value!r}"
                )

    @property
    def schedule(self) -> Schedule:
        """Factor of the learning rates at every step."""
        return cosine(self.steps, self.warmup_steps)

    def record(self, free: bool = True) -> dict[str, Any]:
        """The options for JSON; without the free ones, what a run that goes on must have been started with."""
        kept = {each.name for each in fields(self) if free or not each.metadata.get("free")}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if name in kept
        }


@dataclass(frozen=True)
class PlateauOptions(LoopOptions):
    """Rates warm up, stay, and fall linearly over the last ``decay_fraction`` of the steps.

    learning_rate is AdamW's, for embeddings, norms, biases and heads, muon_learning_rate Muon's, for the other
    matrices.
    """

    learning_rate: float = option(2e-3, "AdamW's peak rate: embedding, norms and biases.", min=0.0)
    muon_learning_rate: float = option(5e-3, "Muon's peak rate: the layers' matrices.", min=0.0)
    decay_fraction: float = option(0.5, min=0.0, max=1.0)

    @property
    def schedule(self) -> Schedule:
        return trapezoid(self.steps, self.warmup_steps, self.decay_fraction)


@dataclass(frozen=True)
class HeadTraining(LoopOptions):
    """Heads for a given base model.

    objective: which pairs of head and position are scored, and what they count (`lm_training.training.selection`).
    head_weights: of heads 2..h; 1 by default.
    """

    learning_rate: float = option(1e-3, "Peak rate of the heads.", min=0.0)
    batch_size: int = option(32, "Texts per update, over all processes.", min=1)
    fine_tune: bool = option(
        False,
        "Train the base model too; by default it is frozen and its output never changes.",
        flag="--fine-tune/--freeze-base",
    )
    base_learning_rate: float = option(1e-4, "Peak rate of the base model, with --fine-tune.", min=0.0)
    objective: str = option(
        "position",
        "position: one head at each position; batch: one prediction per update (Stern); joint: every one everywhere"
        " (Kim).",
        choices=tuple(OBJECTIVES),
    )
    head_weights: tuple[float, ...] | None = option(
        None, "Weights of the losses of heads 2, 3, ..., such as 1,0.8,0.6; 1 by default.", parse=numbers
    )
    fsdp: bool = option(
        False,
        "Shard the weights over the processes (FSDP), for base models that do not fit on one device.",
        free=True,
        flag="--fsdp",
    )
    validation_sequences: int = option(64, free=True, min=1)
    serving_prompts: int = option(
        8, "Validation prompts that are decoded to measure block efficiency.", free=True, min=0
    )

    @property
    def selection(self) -> Selection:
        return OBJECTIVES[self.objective]


@dataclass(frozen=True)
class BlockwiseTraining(PlateauOptions):
    """A base model and its heads from scratch.  head_positions: share of the positions at which a head is scored."""

    steps: int = option(6000, "Updates in all; a finished run can be extended.", free=True, min=1)
    batch_size: int = option(8, "Texts per update, over all processes.", min=1)
    sequence_length: int = option(256, "Tokens per text.", min=3)
    learning_rate: float = option(2e-3, "AdamW's peak rate: embedding, norms, heads.", min=0.0)
    decay_fraction: float = option(0.3, min=0.0, max=1.0)
    head_positions: float = option(0.25, above=0.0, max=1.0)
    validation_sequences: int = option(64, free=True, min=1)
    serving_prompts: int = option(0, free=True, min=0)
    head_weights: tuple[float, ...] | None = option(None)
    fine_tune: bool = option(True)

    @property
    def selection(self) -> Selection:
        return OneHeadPerPosition(self.head_positions)


@dataclass(frozen=True)
class BlockDrafterTraining(LoopOptions):
    """A block drafter for a given target."""

    learning_rate: float = option(2e-3, "AdamW's peak rate: norms, and the bigram.", min=0.0)
    muon_learning_rate: float = option(
        1e-2, "Muon's peak rate, for the layers' matrices; 0 leaves all to AdamW.", min=0.0
    )
    batch_size: int = option(16, "Texts per update, over all processes.", min=1)
    anchors: int = option(16, "Anchors drawn from each text, with a block behind each.", min=1)
    gamma: float = option(5.0, "Slot m of a block weighs exp(-(m - 1) / gamma) in the loss.", above=0.0)
    objective: str = option(
        "ce",
        "ce: cross-entropy of the text's tokens; kl: forward KL from the target's distribution.",
        choices=("ce", "kl"),
    )
    temperature: float = option(1.0, "Softens both distributions of kl.", above=0.0)
    validation_sequences: int = option(64, "Validation texts that are measured.", free=True, min=1)


@dataclass(frozen=True)
class RescorerTraining(LoopOptions):
    """A small language model that rescores drafts."""

    learning_rate: float = option(2e-3, "AdamW's peak rate: embeddings, norms and biases.", min=0.0)
    muon_learning_rate: float = option(
        5e-3, "Muon's peak rate, for the other matrices; 0 leaves all to AdamW.", min=0.0
    )
    batch_size: int = option(32, "Texts per update, over all processes.", min=1)
    validation_sequences: int = option(64, free=True, min=1)


@dataclass(frozen=True)
class TranslationTraining(PlateauOptions):
    """A small translation model."""

    checkpoint_every: int = option(100, "Updates between checkpoints.", free=True, min=1)
    batch_tokens: int = option(4096, "Source and target tokens per update, padding included.", min=2)
    label_smoothing: float = option(0.1, "Share of the probability that is spread over all tokens.", min=0.0, max=0.99)


@dataclass(frozen=True)
class DrafterTraining(TranslationTraining):
    """A drafter that begins with its verifier's weights.

    windows: so many prefixes are drawn of each target, with replacement; fewer where the model's positions would not
        hold text and masks. They share the encoder's and the text's columns, so eight windows cost about three times
        what one does.
    smallest_block: every update fills as many masks as it draws, from this number to the drafter's block size, evenly
        on a logarithmic scale; None, as in the paper, always fills as many as the block size.
    slot_decay: 1, as in the paper, weighs all tokens of a window alike. A token is accepted only if all before it are,
        so that the first ones decide most.
    reveal: glancing's ratio at the first and the last update.
    """

    learning_rate: float = option(1e-3, "AdamW's peak rate: embedding, norms and biases.", min=0.0)
    muon_learning_rate: float = option(2e-3, "Muon's peak rate: the layers' matrices.", min=0.0)
    label_smoothing: float = option(0.0, "Share of the probability that is spread over all tokens.", min=0.0, max=0.99)
    windows: int = option(8, "Prefixes drawn from each target; they share one pass over it.", min=1)
    smallest_block: int | None = option(
        None, "Smallest number of masks; each update draws one between it and the block size.", min=1
    )
    slot_decay: float = option(
        1.0, "Weight of each token of a block in the loss, relative to the token before it.", above=0.0, max=1.0
    )
    reveal: tuple[float, float] = option(
        (0.5, 0.3), "Ratio of glancing at the first and the last update; 0 0 turns it off."
    )
    serving_sources: int = option(
        32, "Validation sources that are translated to measure tokens per call.", free=True, min=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0.0 <= ratio <= 1.0 for ratio in self.reveal):
            raise ValueError(f"expected reveal from 0 to 1, got {self.reveal[0]} and {self.reveal[1]}")

    def reveal_ratio(self, step: int) -> float:
        """Glancing's ratio at an update, counted from 0."""
        done = step / max(1, self.steps - 1)
        return self.reveal[0] + (self.reveal[1] - self.reveal[0]) * done


@dataclass(frozen=True)
class BlockwiseShape:
    """Shape of the small decoder-only transformer (Llama's layout: rotary positions, gated feed-forward layers)."""

    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 4
    attention_heads: int = 4
    intermediate_size: int = 704
    num_heads: int = 9
    head_intermediate_size: int = 160
    max_positions: int = 1024
