"""Random decodes against the base model's own ``generate(do_sample=False)``: every family, drafter, batch size and
precision.

Each case is drawn from its number alone, so a failure names the case that reproduces it.  The quick form draws a few
dozen, the slow one ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, NoRepeatNGramLogitsProcessor, PreTrainedModel

from latticebpd import Drafter, DraftTree, State, generate
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.models.transformers.transformers_model import TransformersModel
from tests.helpers.drafters import DRAFTERS
from tests.helpers.tiny_families import FAMILIES, VOCABULARY, tiny


class RandomHeads:
    """Heads that read the hidden state and know nothing."""

    fingerprint = None
    vocab_size = num_tokens = VOCABULARY
    has_transitions, layers, shortlist = False, (), None

    def __init__(self, model: PreTrainedModel, slots: int, seed: int) -> None:
        self.target, self.num_heads = TransformersModel(model), slots + 1
        generator = torch.Generator().manual_seed(seed)
        width = model.config.get_text_config().hidden_size
        self.weight = torch.randn(slots, width, VOCABULARY, generator=generator).to(model.dtype)

    def joined(self, parts: Sequence[Sequence[Tensor]]) -> Tensor:
        return torch.stack([torch.cat(list(row)) for row in parts])

    def draw(self, states: Tensor, last: Sequence[int], slots: int | None, k: int, transitions: bool) -> Any:
        return lattices_from_logits(torch.einsum("rh,shv->rsv", states, self.weight[:slots]), k)


class Scripted:
    """Drafts the paths that ``script`` makes of what is left of the row's right text."""

    def __init__(self, texts: Sequence[Sequence[int]], script: Callable[[list[int], State], list[list[int]]]) -> None:
        self.texts, self.script = texts, script

    def propose(self, states: Sequence[State]) -> list[DraftTree]:
        return [
            DraftTree.from_paths(
                self.script(list(self.texts[state.row][len(state.tokens) - state.prompt_length :]), state)
            )
            for state in states
        ]

    def observe(self, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> None:
        assert len(rows) == len(tokens)
        assert all(tokens)


def drafters(
    model: PreTrainedModel, texts: list[list[int]], rng: np.random.Generator
) -> dict[str, Callable[[], Drafter]]:
    """Good ones, bad ones, hostile ones.  texts: the right continuations."""

    def heads() -> RandomHeads:
        return RandomHeads(model, int(rng.integers(1, 6)), int(rng.integers(1 << 30)))

    def shifted(rest: list[int], state: State) -> list[list[int]]:
        return [[(token + 1) % VOCABULARY for token in rest[:4]]]

    def noisy(rest: list[int], state: State) -> list[list[int]]:
        paths = []
        for _ in range(int(rng.integers(0, 6))):
            path = rest[: int(rng.integers(0, 7))]
            path += rng.integers(0, VOCABULARY, int(rng.integers(0, 4))).tolist()
            paths.append([int(rng.integers(VOCABULARY)) if rng.random() < 0.2 else token for token in path])
        return paths + paths[:1]  # the first one twice

    return {
        **{name: partial(make, heads(), texts) for name, make in DRAFTERS.items()},
        "all right, beyond the end": lambda: Scripted(texts, lambda rest, state: [rest + [3] * 9]),
        "all wrong": lambda: Scripted(texts, shifted),
        "noise around the right text": lambda: Scripted(texts, noisy),
        "one token again and again": lambda: Scripted(texts, lambda rest, state: [[state.tokens[-1]] * 7, [5] * 5]),
        "end of text at once": lambda: Scripted(texts, lambda rest, state: [[2, 2], [*rest[:2], 2], rest[:3]]),
        "empty tree": lambda: Scripted(texts, lambda rest, state: []),
        "every token": lambda: Scripted(texts, lambda rest, state: [[token, token] for token in range(VOCABULARY)]),
    }


@lru_cache(maxsize=256)
def model_of(family: str, seed: int, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    return tiny(family, seed, dtype, attention=attention)


def continuations(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, new: int, eos: list[int] | None, processors: LogitsProcessorList
) -> list[list[int]]:
    """Each row's greedy text by ``generate()``.

    Causal prompts of different lengths are decoded one by one in float64, where ``generate()`` runs into NaN on left
    padding, and with processors, which it lets see the padding.
    """

    def decoded(prompts: Tensor, kept: Tensor) -> list[list[int]]:
        start = 1 if model.config.is_encoder_decoder else prompts.shape[1]
        output = model.generate(
            prompts, attention_mask=kept, do_sample=False, num_beams=1, max_new_tokens=new, eos_token_id=eos,
            pad_token_id=0,
            logits_processor=processors,
        )  # fmt: skip
        return [_until(row, eos) for row in output[:, start:].tolist()]

    if model.config.is_encoder_decoder or bool(mask.all()) or (model.dtype == torch.float32 and not processors):
        return decoded(ids, mask)
    rows = [row[kept][None] for row, kept in zip(ids, mask == 1, strict=True)]
    return [decoded(row, torch.ones_like(row))[0] for row in rows]


def _until(tokens: list[int], ends: list[int] | None) -> list[int]:
    """Tokens up to and with the first that ends a text."""
    return next((tokens[: at + 1] for at, token in enumerate(tokens) if token in (ends or [])), tokens)


def check_case(number: int) -> None:
    """Draw a case and compare the decode with ``generate()``, padding included."""
    rng = np.random.default_rng(number)
    family = list(FAMILIES)[number % len(FAMILIES)]
    model = model_of(
        family,
        int(rng.integers(8)),
        [torch.float32, torch.float64][int(rng.integers(2))],
        ["sdpa", "eager"][int(rng.integers(2))],
    )
    rows, width, new = int(rng.integers(1, 6)), int(rng.integers(1, 9)), int(rng.integers(1, 15))
    ids = torch.from_numpy(rng.integers(3, VOCABULARY, (rows, width)))
    mask = torch.ones_like(ids)
    for row in range(rows if rng.random() < 0.5 else 0):
        mask[row, : int(rng.integers(0, width))] = 0
    ids = ids.masked_fill(mask == 0, 0)
    eos: list[int] | None = None
    # Random models like to repeat one token; half of them are kept from it.
    processors = LogitsProcessorList([NoRepeatNGramLogitsProcessor(2)] if rng.random() < 0.5 else [])
    texts = continuations(model, ids, mask, new, eos, processors)
    if rng.random() < 0.5:  # end some texts early, with tokens that do occur
        text = texts[int(rng.integers(rows))]
        eos = [text[int(rng.integers(len(text)))], 2]
        texts = continuations(model, ids, mask, new, eos, processors)
    longest = max(map(len, texts))
    begins = [[1]] * rows if model.config.is_encoder_decoder else ids.tolist()
    expected = [begin + text + [0] * (longest - len(text)) for begin, text in zip(begins, texts, strict=True)]
    kinds = drafters(model, texts, rng)
    kind = list(kinds)[number % len(kinds)]
    use_cache = bool(rng.random() < 0.85)
    out = generate(
        model, ids, kinds[kind](), max_new_tokens=new, eos_token_id=[] if eos is None else eos, attention_mask=mask,
        pad_token_id=0, use_cache=use_cache, logits_processor=processors,
    )  # fmt: skip
    what = f"case {number}: {family}, {kind}, {rows} rows, {model.dtype}, cache {use_cache}"
    assert out.sequences.tolist() == expected, what
    committed = int(np.arange(len(out.accept_counts)) @ out.accept_counts)
    assert committed == out.num_tokens - sum(out.prefilled), what
    assert out.num_calls == out.accept_counts.sum(), what


@pytest.mark.parametrize("block", range(7))
def test_decodes_are_lossless(block: int) -> None:
    for number in range(block * 10, block * 10 + 10):
        check_case(number)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand_decodes_are_lossless(block: int) -> None:
    for number in range(1000 + block * 100, 1000 + block * 100 + 100):
        check_case(number)
