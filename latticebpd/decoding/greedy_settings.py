"""Where texts end in plain greedy decodes: what `GenerationSettings` says of a model whose generation config asks for
nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latticebpd.checks import expect
from latticebpd.lattices.values import token_ids
from latticebpd.models.engine.engine_target import EngineTarget

DEFAULT_NEW_TOKENS = 256


class GreedySettings:
    """The model's tokens that end texts and fill rows, or the caller's; None leaves the model's. ValueError for a value
    out of its range, or stop strings, which need ``GenerationSettings``."""

    def __init__(
        self,
        target: EngineTarget,
        max_new_tokens: int | None = None,
        eos_token_id: Any = None,
        pad_token_id: int | None = None,
        stop_strings: None = None,
    ) -> None:
        check_new_tokens(max_new_tokens)
        expect(not stop_strings, "a plain greedy decode", "stop strings", "decode with the model itself")
        self.new_tokens = DEFAULT_NEW_TOKENS if max_new_tokens is None else max_new_tokens
        self.eos_ids = token_ids("eos_token_id", target.eos_ids if eos_token_id is None else eos_token_id)
        self.pad_id = target.pad_id if pad_token_id is None else pad_token_id
        self.fill_id = next(iter(self.eos_ids), 0) if self.pad_id is None else int(self.pad_id)

    def stops(self, width: int, criteria: Sequence[Any], tokenizer: Any) -> tuple[frozenset[int], int, list[Any]]:
        """The tokens that end texts, their columns at most, and the given criteria."""
        return frozenset(self.eos_ids), width + self.new_tokens, [*criteria]

    def row_processors(self, width: int, rows: Sequence[Any], processors: Sequence[Any]) -> list[list[Any]]:
        """No logits processors for any row."""
        expect(not processors, "a plain greedy decode", "logits processors", "decode with the model itself")
        return [[] for _ in rows]


def check_new_tokens(number: int | None) -> None:
    """ValueError for a length limit below one token."""
    expect(number is None or number >= 1, "max_new_tokens >= 1", number)
