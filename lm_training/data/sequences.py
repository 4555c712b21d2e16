"""Token sequences to learn from, each a prompt and what follows it.

Only what follows the prompt is ever a label.  Windows of a corpus are sequences too, whose prompt is one token; documents
are thereby packed end to end.  For an encoder-decoder the prompt is the source, which its encoder reads.
"""

from __future__ import annotations

import functools
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fst.files import replacing


@dataclass(frozen=True)
class Sequences:
    """Sequences end to end in one array.

    tokens: ``[n]`` ids.  starts: ``[sequences + 1]``, where each begins; the last is ``n``.
    prompt_lengths: ``[sequences]``, tokens of each that are prompt, at least one.
    """

    tokens: np.ndarray
    starts: np.ndarray
    prompt_lengths: np.ndarray

    def __post_init__(self) -> None:
        for name in ("tokens", "starts", "prompt_lengths"):
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in "ui":
                raise ValueError(f"expected {name} [n] of integers, got shape {array.shape} of {array.dtype}")
        if len(self.starts) < 1 or self.starts[0] != 0 or self.starts[-1] != len(self.tokens) or (self.lengths < 0).any():
            raise ValueError(f"expected starts that rise from 0 to {len(self.tokens)} (the number of tokens)")
        if len(self.prompt_lengths) != len(self.lengths) or (self.prompt_lengths < 1).any() or (self.prompt_lengths > self.lengths).any():
            raise ValueError("expected one prompt length per sequence, from 1 to the sequence's length")
        if self.tokens.dtype.kind == "i" and self.tokens.min(initial=0) < 0:
            raise ValueError(f"expected token ids >= 0, got {self.tokens.min()}")

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one sequence, prompt included."""
        row: np.ndarray = self.tokens[self.starts[index] : self.starts[index + 1]]
        return row

    @property
    def lengths(self) -> np.ndarray:
        """``[sequences]`` tokens of each, prompt included."""
        return np.diff(self.starts.astype(np.int64))

    @property
    def num_labels(self) -> int:
        """Tokens that follow a prompt."""
        return len(self.tokens) - int(self.prompt_lengths.sum())

    @classmethod
    def of_corpus(cls, tokens: np.ndarray, length: int) -> Sequences:
        """Windows of ``length`` tokens that do not overlap; the corpus is not copied, its rest is left out."""
        windows = len(tokens) // length
        if windows < 1:
            raise ValueError(f"expected a corpus of at least {length} tokens (one window), got {len(tokens)}; give more text")
        starts = np.arange(windows + 1, dtype=np.int64) * length
        return cls(tokens[: windows * length], starts, np.ones(windows, dtype=np.int32))

    @classmethod
    def of_rows(cls, rows: list[np.ndarray], prompt_lengths: list[int], dtype: np.dtype) -> Sequences:
        """Sequences given one by one."""
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        tokens = np.concatenate(rows).astype(dtype) if rows else np.empty(0, dtype)
        return cls(tokens, starts, np.array(prompt_lengths, dtype=np.int32))

    @classmethod
    def joined(cls, parts: list[Sequences]) -> Sequences:
        """All sequences of several sets, in order."""
        if len(parts) == 1:  # perhaps a mapped file
            return parts[0]
        offsets = np.cumsum([0, *(len(part.tokens) for part in parts)], dtype=np.int64)
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
        tokens = np.concatenate([part.tokens for part in parts])
        return cls(tokens, np.concatenate([*starts, offsets[-1:]]), np.concatenate([part.prompt_lengths for part in parts]))

    def prompts(self) -> Sequences:
        """The prompts alone; nothing follows them."""
        rows = [self[index][:length] for index, length in enumerate(self.prompt_lengths.tolist())]
        return Sequences.of_rows(rows, self.prompt_lengths.tolist(), self.tokens.dtype)

    def answers(self, start: int) -> Sequences:
        """What follows each prompt, behind ``start`` in the prompt's place: what an encoder-decoder's decoder reads and writes."""
        first = np.array([start], dtype=self.tokens.dtype)
        rows = [np.concatenate([first, self[index][length:]]) for index, length in enumerate(self.prompt_lengths.tolist())]
        return Sequences.of_rows(rows, [1] * len(rows), self.tokens.dtype)

    def corpus(self, end_of_text: int, history: int) -> np.ndarray:
        """``[n]`` what follows the prompts, each with the last ``history`` tokens of its prompt before it and an end of text after it.

        An n-gram model of order ``history + 1`` estimated from it has seen every label with its full history.
        """
        end = np.array([end_of_text], dtype=self.tokens.dtype)
        pieces = [end[:0]]
        for index, prompt in enumerate(self.prompt_lengths.tolist()):
            row = self[index][max(0, prompt - history) :]
            pieces += [row] if len(row) and row[-1] == end_of_text else [row, end]
        return np.concatenate(pieces)

    def save(self, path: Path) -> None:
        """Write an ``.npz`` file; it appears whole or not at all."""
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, tokens=self.tokens, starts=self.starts, prompt_lengths=self.prompt_lengths)

    @classmethod
    def load(cls, path: Path) -> Sequences:
        """Read what ``save`` wrote; ValueError where it is damaged."""
        try:
            with np.load(path, allow_pickle=False) as file:
                return cls(file["tokens"], file["starts"], file["prompt_lengths"])
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: expected sequences as `latticebpd distill` writes them: {error}; is the copy complete?") from error


def padded(rows: list[np.ndarray], fill: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Token ids ``[rows, longest]`` int64, filled up on the right or on the left, and the mask, 1 where they are the row's own."""
    width = max(map(len, rows), default=0)
    ids, mask = np.full((len(rows), width), fill, dtype=np.int64), np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        place = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, place], mask[number, place] = row, 1
    return ids, mask


def rows_of_step(sequences: int, batch_size: int, step: int, seed: int) -> list[int]:
    """Which of so many sequences a step's batch holds: all in random order, once per epoch, in another order in the next."""
    places = range(step * batch_size, (step + 1) * batch_size)
    return [int(_epoch_order(sequences, seed, place // sequences)[place % sequences]) for place in places]


@functools.lru_cache(maxsize=4)
def _epoch_order(sequences: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch, 0]).permutation(sequences)
