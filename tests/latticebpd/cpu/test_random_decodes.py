"""Random decodes on the engine: prompts, batches, drafters, rules, threads, instruction sets and weights.

They are the same every time, and each text is that of a decode without drafts by itself.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from latticebpd import Exact, NoDrafter, Sampling, generate, load
from latticebpd.cpu import _engine
from latticebpd.drafters.bundled import MODEL
from latticebpd.models.engine.engine_copy import engine_copy
from latticebpd.models.load_target import load_stock

DECODES = 240
SYSTEMS = ["greedy", "8-tree", "64-tree", "16-best", "16-copies", "64-calibrated", "vanilla"]


def rule(seed: int | None) -> Exact | Sampling:
    return Exact() if seed is None else Sampling(1.0, 20, 0.95, torch.Generator().manual_seed(seed))


@pytest.mark.nightly
@pytest.mark.parametrize("weights", ["float32", "int8"])
def test_random_decodes_have_the_texts_of_decodes_without_drafts(weights: str) -> None:
    rng, loaded = random.Random(weights), load(weights=weights)
    stock = load_stock(MODEL)
    targets = [engine_copy(stock, weights, isa=isa) for isa in range(_engine.isas())]
    words = loaded.encode("The history of the city and the people of the river in the north of the old town")
    singles: dict[Any, list[int]] = {}

    def single(prompt: tuple[int, ...], length: int, seed: int | None) -> list[int]:
        if (prompt, length, seed) not in singles:
            torch.set_num_threads(1)
            out = generate(loaded.target, list(prompt), NoDrafter(), rule(seed), length)
            singles[prompt, length, seed] = out.tokens[0].tolist()
        return singles[prompt, length, seed]

    prompts = [tuple(rng.choices(words, k=rng.randint(1, 30))) for _ in range(32)]
    accepted = 0
    try:
        for number in range(DECODES // 2):
            count, length = rng.choice([1, 1, 2, 5]), rng.choice([1, 2, 9, 24])
            seed = number if count == 1 and number % 3 == 0 else None
            rows = rng.sample(prompts, count)
            width = max(map(len, rows))
            ids = np.array([[0] * (width - len(row)) + list(row) for row in rows])
            mask = np.array([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            torch.set_num_threads(rng.randint(1, 3))
            system, target = rng.choice(SYSTEMS), rng.choice(targets)
            out = generate(target, ids, loaded.drafter(system), rule(seed), length, attention_mask=mask)
            accepted += int(out.num_tokens - out.num_calls - sum(out.prefilled))
            for row, got in zip(rows, out.tokens.tolist(), strict=True):
                expected = single(row, length, seed)
                assert got[width - len(row) :][: len(expected)] == expected, (number, system, count, length, seed)
    finally:
        torch.set_num_threads(1)
    assert accepted > DECODES / 2
