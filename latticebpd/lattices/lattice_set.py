"""Lattice files: many lattices of one shape, with the target model's own continuation of each."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fst.files import PathLike, replacing
from fst.lattices import checked_transitions
from fst.search import LARGEST_WEIGHT
from latticebpd.checks import expect
from latticebpd.lattices.npz import opened, read_arrays
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.lattices.values import ArrayValues

EXPECTED = "a lattice file"


@dataclass(frozen=True, eq=False)
class LatticeSet(ArrayValues):
    """Lattices of one shape with what scoring drafts against the target model's text needs; None: not known.

    tokens: ``[n, slots, k]`` int32, -1 pads; log_probs: ``[n, slots, k]`` float32, natural log.
    continuation: ``[n, slots]`` int32, the target model's greedy tokens; -1 after the end of its text.
    context: ``[n, c]`` int32, the last tokens before the lattice; -1 pads on the left.
    fingerprint: hash of the vocabulary of the ids.
    sequence: ``[n]`` the number of each lattice's text; the lattices of a text are adjacent and in order, one for each
        position.
    entropy: ``[n, slots + 1]`` nats, of each head's full distribution; head 1 is the target model's own.
    origin: a description of the model and the text that the lattices are from.
    drafter: the drafter's family and a hash of its files.
    transitions: ``[n, slots - 1, k, k]`` float16 or float32, as of ``SausageLattice``; None: the lattices have none.
    """

    ARRAYS: ClassVar = ("tokens", "log_probs", "continuation", "context")
    OPTIONAL: ClassVar = ("sequence", "entropy", "transitions")
    WORDS: ClassVar = {"fingerprint": str, "origin": str, "vocab_size": int, "drafter": str}

    tokens: np.ndarray
    log_probs: np.ndarray
    continuation: np.ndarray
    context: np.ndarray
    fingerprint: str | None = None
    sequence: np.ndarray | None = None
    entropy: np.ndarray | None = None
    origin: str | None = None
    vocab_size: int | None = None
    transitions: np.ndarray | None = None
    drafter: str | None = None

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in self.ARRAYS}
        tokens, log_probs, continuation, context = shapes.values()
        agree = (log_probs, continuation, context[:1]) == (tokens, tokens[:2], tokens[:1])
        if not (agree and len(tokens) == 3 and tokens[2] and len(context) == 2):
            got = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            wanted = "tokens and log_probs [n, slots, k], continuation [n, slots], context [n, c]"
            raise ValueError(f"expected {wanted}, got {got}")
        expect(self.log_probs.dtype.kind == "f", "float values", self.log_probs.dtype, of="log_probs")
        for name in ("tokens", "continuation", "context"):
            array = getattr(self, name)
            expect(array.dtype.kind in "iu", "integer values", array.dtype, of=name)
            if array.size and (array.min() < PADDING or array.max() > np.iinfo(np.int32).max - 1):
                got = f"{array.min()} to {array.max()}"
                raise ValueError(f"{name}: expected ids >= 0 (or -1 as padding) that fit 32 bits, got {got}")
            self._assign(**{name: _signed(array)})
        self._check_log_probs()
        self._check_optional()

    def _check_log_probs(self) -> None:
        # Two fast passes accept the usual case, which NaN fails; masks and bad values need a closer look.
        if self.log_probs.min(initial=0) > -LARGEST_WEIGHT and self.log_probs.max(initial=0) <= LARGEST_WEIGHT:
            return
        bad = (self.tokens != PADDING) & ~(self.log_probs <= LARGEST_WEIGHT)
        if bad.any():
            row, slot, arc = map(int, np.argwhere(bad)[0])
            got = f"{self.log_probs[row, slot, arc]} in lattice {row}, slot {slot}, arc {arc}"
            raise ValueError(f"log_probs: expected log-probabilities of at most {LARGEST_WEIGHT:g}, got {got}")
        self._assign(log_probs=np.where(self.log_probs <= -LARGEST_WEIGHT, -np.inf, self.log_probs))

    def _check_optional(self) -> None:
        n, slots = self.tokens.shape[:2]
        if self.vocab_size is not None and self.tokens.max(initial=-1) >= self.vocab_size:
            raise ValueError(f"tokens: expected ids below vocab_size {self.vocab_size}, got {self.tokens.max()}")
        if (sequence := self.sequence) is not None:
            fits, got = sequence.shape == (n,) and sequence.dtype.kind in "iu", f"{sequence.dtype} {sequence.shape}"
            expect(fits, f"integers [n], one for each of {n} lattices", got, of="sequence")
            if n and not -1 << 62 <= sequence.min() <= sequence.max() <= 1 << 62:
                raise ValueError(f"sequence: expected numbers of texts, got {sequence.min()} to {sequence.max()}")
            self._assign(sequence=_signed(sequence))
        if (entropy := self.entropy) is not None:
            shape, got = (n, slots + 1), f"{entropy.dtype} {entropy.shape}"
            fits = entropy.shape == shape and entropy.dtype.kind == "f"
            expect(fits, f"floats [n, slots + 1] {shape}, one a head", got, of="entropy")
            fits = bool(np.isfinite(entropy).all()) and entropy.min(initial=0) >= 0
            expect(fits, "finite values >= 0 (nats)", "others", of="entropy")
        if self.transitions is not None:
            arcs = (self.tokens != PADDING) & (self.log_probs > -np.inf)
            self._assign(transitions=checked_transitions(self.transitions, arcs))

    @classmethod
    def joined(cls, parts: Sequence[LatticeSet]) -> LatticeSet:
        """All lattices of several sets of one shape, in order; descriptions are the first set's."""
        names = parts[0]._arrays() if parts else ()
        shapes = {tuple(array.shape[1:] for name, array in part._arrays().items() if name in names) for part in parts}
        expect(len(shapes) == 1, "at least one set of lattices, all of one shape", f"{len(shapes)} shapes")
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays)

    def _arrays(self) -> dict[str, Any]:
        """The arrays that are not None, by name."""
        return {name: array for name in (*self.ARRAYS, *self.OPTIONAL) if (array := getattr(self, name)) is not None}

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def __getitem__(self, index: int) -> SausageLattice:
        """The ``index``-th lattice; the ValueError for an invalid one names the index."""
        try:
            transitions = None if self.transitions is None else self.transitions[index]
            return SausageLattice(self.tokens[index], self.log_probs[index], transitions)
        except ValueError as error:
            raise ValueError(f"lattice {index}: {error}") from error

    def context_of(self, index: int) -> list[int]:
        """The tokens before the ``index``-th lattice, without padding."""
        return [token for token in self.context[index].tolist() if token != PADDING]

    def take(self, rows: np.ndarray) -> LatticeSet:
        """The lattices that ``rows`` selects, by indices or by truth values."""
        return replace(self, **{name: array[rows] for name, array in self._arrays().items()})

    def save(self, path: PathLike, compressed: bool = False) -> None:
        """Write an ``.npz`` atomically; compressed, it is a third smaller and several times slower to read."""
        # Readers that take a block at a time expect rows one after another, whatever the arrays were views of.
        arrays: dict[str, Any] = {name: np.ascontiguousarray(array) for name, array in self._arrays().items()}
        arrays |= {name: word for name in self.WORDS if (word := getattr(self, name)) is not None}
        with replacing(path) as temporary, open(temporary, "wb") as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)

    @classmethod
    def load(cls, path: PathLike) -> LatticeSet:
        """Read a lattice file; ValueError, by the file's name, for a damaged archive and missing or invalid arrays."""
        with opened(path, EXPECTED) as archive:
            return cls(**read_arrays(archive, cls.ARRAYS, cls.OPTIONAL), **read_words(archive))


def read_words(archive: zipfile.ZipFile) -> dict[str, Any]:
    """Fingerprint, origin, vocabulary size and drafter of an opened lattice file, those that it has."""
    words = read_arrays(archive, (), tuple(LatticeSet.WORDS))
    return {name: LatticeSet.WORDS[name](word) for name, word in words.items()}


def _signed(array: np.ndarray) -> np.ndarray:
    """As int64 where the type is unsigned and cannot hold -1."""
    return array.astype(np.int64) if array.dtype.kind == "u" else array
