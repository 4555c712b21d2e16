"""An answer's characters as its tokens arrive, up to the first stop string."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import StoppingCriteria


class AnswerText(StoppingCriteria):
    """Characters that no later token changes. As a stopping criterion, ends a text with its first stop string.

    ``transformers``' own criterion for stop strings goes through the vocabulary at every new list of them, which takes
    seconds. It reads arrays, so that no tokenizer of ``transformers`` is made for a request either.

    text: characters so far, up to the first stop string.
    stopped: whether the text has ended.  stop: the stop string at which it did.
    offsets: of each token, the characters before it.
    shown: special tokens that are characters here, such as those that begin tool calls.
    """

    accepts_numpy = True

    def __init__(self, tokenizer: Any, stops: Sequence[str] = (), shown: Mapping[int, str] | None = None) -> None:
        self.tokenizer, self.stops, self.shown = tokenizer, tuple(stops), shown or {}
        self.text, self.stopped, self.stop = "", False, ""
        self._stream = DecodeStream(skip_special_tokens=True)
        self._tokens: list[int] = []
        self.offsets: list[int] = []
        self._begin = 0, 0  # of what the stream reads: the tokens and the characters before it
        self._sent = 0  # characters that `take` has returned

    @property
    def ends(self) -> bool:
        """Whether it may end the text."""
        return bool(self.stops) or self.stopped

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        self.add([int(input_ids[0, -1])])
        return torch.full((1,), self.stopped)

    def add(self, tokens: Iterable[int]) -> None:
        """The next tokens of the answer."""
        for token in tokens:
            self._tokens.append(token)
            self.offsets.append(len(self.text))
            if token in self.shown:
                self._append(self._rest() + self.shown[token])
                self._stream, self._begin = DecodeStream(skip_special_tokens=True), (len(self._tokens), len(self.text))
                continue
            self._append(self._stream.step(self.tokenizer.backend_tokenizer, token) or "")

    def add_up_to(self, tokens: Sequence[int]) -> None:
        """The answer's tokens so far, of which the first may be known already."""
        self.add(tokens[len(self._tokens) :])

    def take(self) -> str:
        """New characters, but for those at the end that may become part of a stop string."""
        held = 0 if self.stopped else max((overlap(self.text, stop) for stop in self.stops), default=0)
        end = max(self._sent, len(self.text) - held)
        new, self._sent = self.text[self._sent : end], end
        return new

    def take_rest(self) -> str:
        """All characters that are left; bytes that are no character are replaced, as in the decoded text."""
        if not self.stopped:
            self._append(self._rest())
        new, self._sent = self.text[self._sent :], len(self.text)
        return new

    def _rest(self) -> str:
        """Characters that the stream holds back, as bytes of them may follow."""
        tokens, characters = self._begin
        decoded = str(self.tokenizer.decode(self._tokens[tokens:], skip_special_tokens=True))
        known = self.text[characters:]
        return decoded[len(known) :] if decoded.startswith(known) else ""

    def _append(self, characters: str) -> None:
        if self.stopped or not characters:
            return
        start = max(0, len(self.text) - max(map(len, self.stops), default=0))
        self.text += characters
        ends = [(at, stop) for stop in self.stops if (at := self.text.find(stop, start)) >= 0]
        if ends:
            end, self.stop = min(ends)
            self.text, self.stopped = self.text[:end], True


def overlap(text: str, stop: str) -> int:
    """The most characters, fewer than all, with which the text ends and the stop string begins."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
