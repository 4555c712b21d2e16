"""Options of the commands that train: made of dataclasses, checked alike on the command line and in Python; progress in
logs."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any

import pytest

from lm_training.cli.blockwise import blockwise
from lm_training.cli.heads import heads
from lm_training.cli.masks import masks
from lm_training.cli.options import with_options
from lm_training.cli.rescorer import rescorer
from lm_training.cli.translation import translation
from lm_training.training.selection import OBJECTIVES, EveryHead, OneHeadPerPosition
from lm_training.training.training_options import (
    BlockwiseTraining,
    HeadTraining,
    LoopOptions,
    MaskFillerTraining,
    RescorerTraining,
    TranslationTraining,
)

KINDS: list[tuple[Any, type[LoopOptions]]] = [
    (blockwise, BlockwiseTraining),
    (heads, HeadTraining),
    (rescorer, RescorerTraining),
    (translation, TranslationTraining),
    (masks, MaskFillerTraining),
]


@pytest.mark.parametrize(("command", "kind"), KINDS)
def test_every_option_with_a_help_text_is_the_commands_and_has_its_default(
    command: Any, kind: type[LoopOptions]
) -> None:
    parameters = inspect.signature(command).parameters
    for each in fields(kind):
        assert (each.name in parameters) == bool(each.metadata["help"]), each.name
        if each.metadata["help"]:
            assert parameters[each.name].default.default == each.default
    assert "options" not in parameters


def test_a_command_hands_the_dataclass_on() -> None:
    seen: list[HeadTraining] = []

    def command(name: str, *, options: HeadTraining) -> None:
        seen.append(options)

    defaults = {each.name: each.default for each in fields(HeadTraining) if each.metadata["help"]}
    with_options(command)(**{"name": "x", **defaults, "steps": 7, "head_weights": "1,0.5"})
    assert seen == [HeadTraining(steps=7, head_weights=(1.0, 0.5))]


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (HeadTraining, {"steps": 0}, "expected steps >= 1, got 0"),
        (HeadTraining, {"learning_rate": -1.0}, r"expected learning_rate >= 0\.0, got -1"),
        (HeadTraining, {"learning_rate": float("nan")}, r"expected learning_rate >= 0\.0, got nan"),
        (HeadTraining, {"objective": "both"}, "expected --objective position, batch, joint, got 'both'"),
        (RescorerTraining, {"precision": "fp8"}, "expected --precision float32, bfloat16, got 'fp8'"),
        (BlockwiseTraining, {"head_positions": 0.0}, r"expected head_positions > 0\.0, got 0\.0"),
        (HeadTraining, {"head_positions": 1.5}, r"expected head_positions <= 1\.0, got 1\.5"),
        (TranslationTraining, {"label_smoothing": 1.0}, r"expected label_smoothing <= 0\.99"),
        (MaskFillerTraining, {"windows": 0}, "expected windows >= 1, got 0"),
    ],
)
def test_impossible_options_are_refused_in_python_too(
    kind: type[LoopOptions], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**change)


def test_heads_are_scored_at_a_share_of_the_positions() -> None:
    assert HeadTraining().selection == OneHeadPerPosition(1.0)
    assert HeadTraining(head_positions=0.25).selection == OneHeadPerPosition(0.25) == BlockwiseTraining().selection
    assert HeadTraining(head_positions=0.25, objective="joint").selection == EveryHead(0.25)
    assert BlockwiseTraining(objective="joint").selection is OBJECTIVES["joint"]
