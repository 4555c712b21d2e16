"""Texts as token ids, each a prompt and its continuation.

Only the continuation is learnt or measured. Windows of a corpus are texts whose prompt is one token; documents are
thereby packed end to end. For an encoder-decoder the prompt is the source, which its encoder reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fst.files import PathLike, replacing
from latticebpd.checks import expect
from latticebpd.lattices.npz import opened, read_arrays


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts end to end in one array.

    tokens: ``[n]`` ids.  starts: ``[texts + 1]``, where each begins; the last is ``n``.
    prompt_lengths: ``[texts]``, the number of each text's tokens that are prompt, at least one.
    """

    ARRAYS: ClassVar = ("tokens", "starts", "prompt_lengths")

    tokens: np.ndarray
    starts: np.ndarray
    prompt_lengths: np.ndarray

    def __post_init__(self) -> None:
        for name in self.ARRAYS:
            array = getattr(self, name)
            if array.ndim != 1 or array.dtype.kind not in "ui":
                raise ValueError(f"expected {name} [n] of integers, got shape {array.shape} of {array.dtype}")
        n, starts, prompts = len(self.tokens), self.starts, self.prompt_lengths
        if len(starts) < 1 or starts[0] != 0 or starts[-1] != n or (self.lengths < 0).any():
            raise ValueError(f"expected starts that rise from 0 to {n} (the number of tokens)")
        if len(prompts) != len(self.lengths) or (prompts < 1).any() or (prompts > self.lengths).any():
            raise ValueError("expected one prompt length for each text, from 1 to the text's length")
        lowest = self.tokens.min(initial=0)
        expect(lowest >= 0, "token ids >= 0", lowest)

    def __len__(self) -> int:
        return len(self.prompt_lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """Tokens of one text, prompt included."""
        return self.tokens[self.starts[index] : self.starts[index + 1]]

    def _rows(self) -> Iterator[tuple[np.ndarray, int]]:
        """Every text and the length of its prompt."""
        return zip(map(self.__getitem__, range(len(self))), self.prompt_lengths.tolist(), strict=True)

    def items(self) -> Iterator[tuple[list[int], int]]:
        """Tokens, prompt included, and the length of the prompt, text by text."""
        return ((row.tolist(), prompt) for row, prompt in self._rows())

    @property
    def lengths(self) -> np.ndarray:
        """``[texts]`` tokens of each, prompt included."""
        return np.diff(self.starts.astype(np.int64))

    @property
    def answer_lengths(self) -> np.ndarray:
        """``[texts]`` tokens of each that follow its prompt."""
        return self.lengths - self.prompt_lengths

    @property
    def num_labels(self) -> int:
        """Tokens that follow a prompt."""
        return len(self.tokens) - int(self.prompt_lengths.sum(dtype=np.int64))

    @classmethod
    def of_corpus(cls, tokens: np.ndarray, length: int) -> Texts:
        """Windows of ``length`` tokens without overlap, not copied; a shorter rest is dropped."""
        windows = len(tokens) // length
        expect(windows >= 1, f"a corpus of at least {length} tokens (one window)", len(tokens), "give more text")
        starts = np.arange(windows + 1, dtype=np.int64) * length
        return cls(tokens[: windows * length], starts, np.ones(windows, dtype=np.int32))

    @classmethod
    def of_rows(
        cls, rows: Sequence[Sequence[int] | np.ndarray], prompt_lengths: Sequence[int], dtype: Any = np.int32
    ) -> Texts:
        """Texts from one row of tokens each, prompts included."""
        starts = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        tokens = np.concatenate([np.empty(0, np.int64), *(np.asarray(row, np.int64) for row in rows)]).astype(dtype)
        return cls(tokens, starts, np.array(prompt_lengths, dtype=np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Texts]) -> Texts:
        """All texts of several sets, in order."""
        if len(parts) <= 1:  # not copied: it may be a mapped file
            return parts[0] if parts else cls.of_rows([], [])
        offsets = np.cumsum([0, *(len(part.tokens) for part in parts)], dtype=np.int64)
        starts = [part.starts[:-1] + offset for part, offset in zip(parts, offsets[:-1], strict=True)]
        prompts = np.concatenate([part.prompt_lengths for part in parts])
        return cls(np.concatenate([part.tokens for part in parts]), np.concatenate([*starts, offsets[-1:]]), prompts)

    def chosen(self, indices: Iterable[int]) -> Texts:
        """Some of the texts, in this order."""
        kept = list(indices)
        return Texts.of_rows([self[i] for i in kept], self.prompt_lengths[kept].tolist(), self.tokens.dtype)

    def prompts(self) -> Texts:
        """The prompts, without continuations."""
        rows = [row[:prompt] for row, prompt in self._rows()]
        return Texts.of_rows(rows, self.prompt_lengths.tolist(), self.tokens.dtype)

    def answers(self, start: int) -> Texts:
        """The continuations, each with ``start`` as its prompt: the texts of an encoder-decoder's decoder."""
        rows = [np.concatenate([[start], row[prompt:]]) for row, prompt in self._rows()]
        return Texts.of_rows(rows, [1] * len(rows), self.tokens.dtype)

    def corpus(self, end_of_text: int, history: int) -> np.ndarray:
        """``[n]`` the continuations, each after the last ``history`` tokens of its prompt and before an end of text.

        An n-gram model of order ``history + 1`` estimated from it has seen every label with its full history. A row
        that begins with the end of text, as of BART's decoder, shares the one that ends the row before.
        """
        end = np.array([end_of_text], dtype=self.tokens.dtype)
        pieces = [end[:0]]
        for text, prompt in self._rows():
            row = text[max(0, prompt - history) :]
            row = row[1:] if len(row) and row[0] == end_of_text else row
            pieces += [row] if len(row) and row[-1] == end_of_text else [row, end]
        return np.concatenate(pieces)

    def fingerprint(self, piece: int = 1 << 24) -> str:
        """A hash of the texts and their prompt lengths, whatever types they are stored in."""
        digest = hashlib.sha256()
        for array in (self.tokens, self.lengths, self.prompt_lengths if self.num_labels else self.prompt_lengths[:0]):
            for begin in range(0, len(array), piece):
                digest.update(np.ascontiguousarray(array[begin : begin + piece], dtype=np.int64).data)
        return f"sha256:{digest.hexdigest()[:16]}"

    def save(self, path: PathLike) -> None:
        """Write an ``.npz`` file atomically."""
        with replacing(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, tokens=self.tokens, starts=self.starts, prompt_lengths=self.prompt_lengths)

    @classmethod
    def is_file(cls, path: PathLike) -> bool:
        """Whether a file has the arrays that ``save`` writes; False for one that cannot be read."""
        try:
            with opened(path, "texts") as archive:
                return all(f"{name}.npy" in archive.namelist() for name in cls.ARRAYS)
        except (ValueError, OSError):
            return False

    @classmethod
    def load(cls, path: PathLike) -> Texts:
        """Read what ``save`` wrote; ValueError, by the file's name, for a damaged one."""
        with opened(path, "texts as `latticebpd distill` and `latticebpd lattices` write them") as archive:
            return cls(**read_arrays(archive, cls.ARRAYS))


def padded(rows: Sequence[Sequence[int] | np.ndarray], fill: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Token ids ``[rows, longest]`` int64, padded with ``fill`` on the right or left; and the mask, 0 at padding."""
    width = max(map(len, rows), default=0)
    ids, mask = np.full((len(rows), width), fill, dtype=np.int64), np.zeros((len(rows), width), dtype=np.int64)
    for number, row in enumerate(rows):
        columns = slice(width - len(row), width) if left else slice(0, len(row))
        ids[number, columns], mask[number, columns] = row, 1
    return ids, mask
