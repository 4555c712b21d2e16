"""One text under the glass: its iterates, what its tokens waited for, and how they are called."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from latticebpd.jacobi.algorithms import gauss_seidel_jacobi, jacobi
from latticebpd.jacobi.dependencies import Dependencies, dependencies
from latticebpd.jacobi.initial_values import Initial
from latticebpd.jacobi.trajectory import UNKNOWN, Cell, Trajectory, trajectory
from latticebpd.lattices.token_text import classes, piece
from latticebpd.target.stock_model import BaseModel, Model


@dataclass(frozen=True)
class Sentence:
    """What the pictures show.

    source: the input.
    pieces: ``[m]``, the decoded tokens as people read them.
    classes: ``[m]``, each token's class.
    values: ``[passes + 1][m]``, what each pass found, as pieces, row 0 before the first; empty where no block had
        begun.
    trajectory: ``[m]`` places over the passes.
    dependencies: what each place waited for.
    """

    source: str
    pieces: list[str]
    classes: list[str]
    values: list[list[str]]
    trajectory: Trajectory
    dependencies: Dependencies

    def record(self) -> dict[str, Any]:
        """As JSON values: places count from 0, passes from 1, probabilities are null where a pass did not look."""
        iterates = self.trajectory
        edges = {(wait.place, wait.on) for wait in self.dependencies.edges}
        return {
            "source": self.source,
            "tokens": iterates.tokens,
            "pieces": self.pieces,
            "classes": self.classes,
            "values": self.values,
            "cells": [[Cell(cell).name.lower() for cell in row] for row in iterates.cells.tolist()],
            "probabilities": [[None if math.isnan(p) else p for p in row] for row in iterates.probabilities.tolist()],
            "frontier": iterates.frontier.tolist(),
            "right_since": iterates.right_since.tolist(),
            "waits": [
                {
                    "place": wait.place,
                    "on": wait.on,
                    "probability_without": wait.probability,
                    "redundant": (wait.place, wait.on) not in edges,
                }
                for waits in self.dependencies.waits
                for wait in waits
            ],
        }


def look_into(
    model: Model,
    tokenizer: Any,
    text: str,
    initial: Initial | None = None,
    block_size: int | None = None,
    max_new_tokens: int = 128,
    on_progress: Callable[[float], None] | None = None,
) -> Sentence:
    """Decode a text by Jacobi iteration and measure what its tokens waited for.

    Args:
        model: any causal LM or encoder-decoder.
        tokenizer: its ``transformers`` tokenizer.
        text: the input.
        initial: first values; padding by default.
        block_size: None solves the whole text together, its length being found by a decode in small blocks first.
        max_new_tokens: length limit.
        on_progress: called with the share that is done, now and then.
    """
    base = BaseModel.of(model)
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    mask = torch.ones_like(ids)  # no token of a text is padding, whatever its id
    if block_size is None:
        length = int(gauss_seidel_jacobi(model, ids, attention_mask=mask, max_new_tokens=max_new_tokens).num_tokens[0])
        solution = jacobi(model, ids, initial, length, attention_mask=mask, max_new_tokens=max_new_tokens, trace=True)
    else:
        solution = gauss_seidel_jacobi(
            model, ids, block_size, initial, attention_mask=mask, max_new_tokens=max_new_tokens, trace=True
        )
    iterates = trajectory(solution)
    names = {
        token: piece(tokenizer, token) for token in {*iterates.values.ravel().tolist(), *iterates.tokens} - {UNKNOWN}
    }
    pieces = [names[token] for token in iterates.tokens]
    return Sentence(
        source=text,
        pieces=pieces,
        classes=classes(pieces, iterates.tokens, set(tokenizer.all_special_ids), frozenset(base.eos_ids)),
        values=[[names.get(token, "") for token in row] for row in iterates.found.tolist()],
        trajectory=iterates,
        dependencies=dependencies(model, ids, iterates, max_new_tokens=max_new_tokens, on_progress=on_progress),
    )
