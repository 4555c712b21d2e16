"""What rows have read, kept after their requests: of a prompt that begins like an earlier text, only the rest is read.

A text is its tokens, prompt and answer, with the engine's cache and states of them. On the engine a token's results
depend on the tokens before it only, not on the passes that read them: a text that goes on from another one's cache is
bit-identical to that of a decode of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latticebpd.verification.engine_verifier import EngineVerifier


@dataclass(frozen=True, eq=False)
class ReadText:
    """Tokens that a row of a verifier has read.

    tokens: ``[n]`` int64, the first ones of the row's text.
    """

    tokens: np.ndarray
    verifier: EngineVerifier
    row: int = 0

    def shared(self, prompt: np.ndarray) -> int:
        """How many tokens at the beginning are those of a prompt."""
        n = min(len(self.tokens), len(prompt))
        differ = np.flatnonzero(self.tokens[:n] != prompt[:n])
        return int(differ[0]) if len(differ) else n


class PrefixStore:
    """Texts of rows that ended, up to a limit of memory; the one that was used least recently goes first.

    limit: bytes of all texts together; 0 keeps none, and shares none between rows either.
    texts: least recently used first.
    """

    def __init__(self, limit: int) -> None:
        self.limit, self.texts = limit, list[ReadText]()

    @property
    def memory(self) -> int:
        """Bytes of all texts."""
        return sum(text.verifier.memory for text in self.texts)

    def shared(self, prompt: np.ndarray, live: Sequence[ReadText] = ()) -> int:
        """How many tokens of a prompt, ``[n]``, need not be read; never all, since the last one's output is needed.

        live: what rows that go on have read.
        """
        return max((text.shared(prompt[:-1]) for text in self._all(live)), default=0)

    def begin(self, prompt: np.ndarray, live: Sequence[ReadText] = ()) -> tuple[EngineVerifier, int] | None:
        """A verifier of a single row that has read the first tokens of a prompt, and how many; None if there are none.

        A kept text that the prompt goes on from leaves the store for the new row; of others, the beginning is copied.
        """
        best = max(self._all(live), key=lambda text: text.shared(prompt[:-1]), default=None)
        if best is None or not (count := best.shared(prompt[:-1])):
            return None
        if best not in self.texts:
            return best.verifier.first(best.row, count), count
        self.texts.remove(best)
        if count == len(best.tokens):
            return best.verifier, count
        self.texts.append(best)
        return best.verifier.first(best.row, count), count

    def add(self, tokens: Sequence[int], verifier: EngineVerifier, row: int) -> None:
        """Keep a text whose row leaves a verifier, as far as it was read.  tokens: final ones, perhaps more."""
        count = min(len(tokens), verifier.caches[row].length)
        if not self.limit or not count:
            return
        new = ReadText(np.array(tokens[:count], np.int64), verifier.alone(row))
        new.verifier.cut([count])
        longer = next((text for text in self.texts if text.shared(new.tokens) == count), None)
        gone = {text for text in self.texts if text is longer or new.shared(text.tokens) == len(text.tokens)}
        self.texts = [*(text for text in self.texts if text not in gone), longer or new]
        while self.memory > self.limit:
            del self.texts[0]

    def _all(self, live: Sequence[ReadText]) -> list[ReadText]:
        """In the order in which equally good ones are taken."""
        return [*reversed(self.texts), *live] if self.limit else []
