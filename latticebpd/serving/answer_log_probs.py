"""Log-probabilities of an answer's tokens in OpenAI's two forms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from latticebpd.constraints.model_tokens import model_tokens
from latticebpd.decoding.log_probs import TokenLogProb

LogProbs = Sequence[tuple[TokenLogProb, int]]
"""Of successive tokens, each with the number of the answer's characters before it."""
IMPOSSIBLE = -9999.0
"""OpenAI's number for a probability of 0, which JSON has no logarithm of."""


class LogProbFormats:
    """How log-probabilities are written for one tokenizer."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.tokenizer, self.vocab_size = tokenizer, vocab_size

    @cached_property
    def _spelled(self) -> Sequence[bytes | None]:
        """Bytes of tokens; None of special ones, and of all where tokens are no bytes."""
        try:
            return model_tokens(self.tokenizer, self.vocab_size).spelled
        except ValueError:
            return [None] * self.vocab_size

    def prepare(self) -> None:
        """What takes a moment at the first use."""
        _ = self._spelled

    def _bytes(self, token: int) -> bytes:
        spelled = self._spelled[token]
        return str(self.tokenizer.decode([token])).encode() if spelled is None else spelled

    def _name(self, token: int) -> str:
        """The token's text or, if it is a part of a character, its bytes."""
        spelled = self._bytes(token)
        try:
            return spelled.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)

    def of_chat(self, tokens: LogProbs) -> dict[str, Any]:
        """``logprobs`` of a chat's choice."""

        def entry(token: int, log_prob: float) -> dict[str, Any]:
            return {"token": self._name(token), "logprob": _finite(log_prob), "bytes": list(self._bytes(token))}

        content = [
            {**entry(each.token, each.log_prob), "top_logprobs": [entry(*pair) for pair in each.top]}
            for each, _ in tokens
        ]
        return {"content": content, "refusal": None}

    def of_completion(self, tokens: LogProbs) -> dict[str, Any]:
        """``logprobs`` of a completion's choice; the chosen token is in every list, so that some have one more."""
        return {
            "tokens": [self._name(each.token) for each, _ in tokens],
            "token_logprobs": [_finite(each.log_prob) for each, _ in tokens],
            "top_logprobs": [
                {self._name(token): _finite(value) for token, value in ((each.token, each.log_prob), *each.top)}
                for each, _ in tokens
            ],
            "text_offset": [offset for _, offset in tokens],
        }


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else IMPOSSIBLE
