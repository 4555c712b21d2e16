"""Many lattices of one shape and the base model's own text beside them: one lattice file."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fst.files import replacing
from fst.lattices import checked_transitions
from fst.search import LARGEST_WEIGHT
from latticebpd.lattices.npz import check_names, opened, read_array
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.lattices.values import ArrayValues

EXPECTED = "a lattice file"


@dataclass(frozen=True, eq=False)
class LatticeSet(ArrayValues):
    """Lattices of one shape with what is needed to score drafts against the base model's own text.

    tokens: ``[n, slots, k]`` int32, -1 pads; log_probs: ``[n, slots, k]`` float32, natural log.
    continuation: ``[n, slots]`` int32, the base model's greedy tokens; -1 where its text has ended.
    context: ``[n, c]`` int32, the last tokens before the lattice; -1 pads on the left.
    fingerprint: hash of the vocabulary that the ids belong to, where it is known.
    sequence: ``[n]`` the number of the text that each lattice belongs to, where it is known; the lattices of a text
        stand together, one for each position, in order.
    entropy: ``[n, slots + 1]`` nats, where it is known: of all heads' whole distributions, head 1 (the base model's
        own) first.
    origin: the model and the text that the lattices are from, in words, where they are known.
    vocab_size: how many tokens the vocabulary has, where it is known.
    transitions: ``[n, slots - 1, k, k]`` float16 or float32, as of ``SausageLattice``, where the lattices have them.
    """

    ARRAYS: ClassVar = ("tokens", "log_probs", "continuation", "context")
    OPTIONAL: ClassVar = ("sequence", "entropy", "transitions")
    WORDS: ClassVar = ("fingerprint", "origin")

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

    def __post_init__(self) -> None:
        shapes = {name: getattr(self, name).shape for name in self.ARRAYS}
        n = shapes["tokens"][:1]
        if (
            len(shapes["tokens"]) != 3
            or not shapes["tokens"][2]
            or shapes["log_probs"] != shapes["tokens"]
            or shapes["continuation"] != shapes["tokens"][:2]
            or len(shapes["context"]) != 2
            or shapes["context"][:1] != n
        ):
            listing = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
            raise ValueError(
                "expected tokens [n, slots, k], log_probs [n, slots, k], continuation [n, slots] and context [n, c],"
                " got " + listing
            )
        for name in self.ARRAYS:
            array = getattr(self, name)
            kind = "f" if name == "log_probs" else "iu"
            if array.dtype.kind not in kind:
                raise ValueError(f"{name}: expected {'float' if kind == 'f' else 'integer'} values, got {array.dtype}")
            if kind == "iu" and array.size and (array.min() < PADDING or array.max() > np.iinfo(np.int32).max - 1):
                raise ValueError(
                    f"{name}: expected ids >= 0 (or -1 as padding) that fit 32 bits, got {array.min()} to {array.max()}"
                )
            if array.dtype.kind == "u":  # of which -1, the padding, is none
                object.__setattr__(self, name, array.astype(np.int64))
        self._check_log_probs()
        self._check_optional()

    def _check_log_probs(self) -> None:
        # Two quick passes show that all is well (NaN fails too); masks, which are allowed, have to be told from damage.
        if self.log_probs.min(initial=0) > -LARGEST_WEIGHT and self.log_probs.max(initial=0) <= LARGEST_WEIGHT:
            return
        bad = (self.tokens != PADDING) & ~(self.log_probs <= LARGEST_WEIGHT)
        if bad.any():
            row, slot, arc = map(int, np.argwhere(bad)[0])
            raise ValueError(
                f"log_probs: expected log-probabilities of at most {LARGEST_WEIGHT:g}, got"
                f" {self.log_probs[row, slot, arc]} in lattice {row}, slot {slot}, arc {arc}"
            )
        object.__setattr__(self, "log_probs", np.where(self.log_probs <= -LARGEST_WEIGHT, -np.inf, self.log_probs))

    def _check_optional(self) -> None:
        n, slots = self.tokens.shape[:2]
        if self.vocab_size is not None and self.tokens.max(initial=-1) >= self.vocab_size:
            raise ValueError(f"tokens: expected ids below vocab_size {self.vocab_size}, got {self.tokens.max()}")
        if self.sequence is not None and (self.sequence.shape != (n,) or self.sequence.dtype.kind not in "iu"):
            raise ValueError(
                f"sequence: expected integers [n], one for each of {n} lattices, got {self.sequence.dtype}"
                f" {self.sequence.shape}"
            )
        if self.sequence is not None and n and not -1 << 62 <= self.sequence.min() <= self.sequence.max() <= 1 << 62:
            raise ValueError(f"sequence: expected numbers of texts, got {self.sequence.min()} to {self.sequence.max()}")
        if self.sequence is not None and self.sequence.dtype.kind == "u":
            object.__setattr__(self, "sequence", self.sequence.astype(np.int64))
        if self.entropy is not None and (self.entropy.shape != (n, slots + 1) or self.entropy.dtype.kind != "f"):
            raise ValueError(
                f"entropy: expected floats [n, slots + 1] {(n, slots + 1)}, one for each head, "
                f"got {self.entropy.dtype} {self.entropy.shape}"
            )
        if self.entropy is not None and not (np.isfinite(self.entropy).all() and self.entropy.min(initial=0) >= 0):
            raise ValueError("entropy: expected finite values >= 0 (nats), got others")
        if self.transitions is not None:
            arcs = (self.tokens != PADDING) & (self.log_probs > -np.inf)
            object.__setattr__(self, "transitions", checked_transitions(self.transitions, arcs))

    @classmethod
    def joined(cls, parts: Sequence[LatticeSet]) -> LatticeSet:
        """All lattices of several sets of one shape, in order; words are the first's, and so is what is optional.

        Raises:
            ValueError: no set, or sets of different shapes.
        """
        if not parts:
            raise ValueError("expected at least one set of lattices, got none")
        names = parts[0]._arrays()
        shapes = {
            tuple(getattr(part, name).shape[1:] for name in names if getattr(part, name) is not None) for part in parts
        }
        if len(shapes) > 1:
            raise ValueError(f"expected sets of lattices of one shape, got {len(shapes)}")
        arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        return replace(parts[0], **arrays)

    def _arrays(self) -> dict[str, Any]:
        """The arrays that are there, by name."""
        return {name: array for name in (*self.ARRAYS, *self.OPTIONAL) if (array := getattr(self, name)) is not None}

    def __len__(self) -> int:
        return int(self.tokens.shape[0])

    def __getitem__(self, index: int) -> SausageLattice:
        """The ``index``-th lattice; a lattice that is not valid is named by its index."""
        try:
            transitions = None if self.transitions is None else self.transitions[index]
            return SausageLattice(self.tokens[index], self.log_probs[index], transitions)
        except ValueError as error:
            raise ValueError(f"lattice {index}: {error}") from error

    def context_of(self, index: int) -> list[int]:
        """The tokens before the ``index``-th lattice, padding left out."""
        return [token for token in self.context[index].tolist() if token != PADDING]

    def take(self, rows: np.ndarray) -> LatticeSet:
        """The lattices that ``rows`` selects, by indices or by truth values."""
        return replace(self, **{name: array[rows] for name, array in self._arrays().items()})

    def save(self, path: str | os.PathLike[str], compressed: bool = False) -> None:
        """Write an ``.npz``; the file appears when it is complete.

        Compressed files are about a third smaller, and reading them takes several times as long.
        """
        words = {
            name: np.array(word) for name in (*self.WORDS, "vocab_size") if (word := getattr(self, name)) is not None
        }
        arrays: dict[str, Any] = {**self._arrays(), **words}
        with replacing(path) as temporary, open(temporary, "wb") as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> LatticeSet:
        """Read a lattice file.

        Raises:
            ValueError: no ``.npz`` archive, an array missing or of the wrong shape; the message names the file.
            FileNotFoundError: there is no such file.
        """
        with opened(path, EXPECTED) as archive:
            there = check_names(archive, cls.ARRAYS)
            arrays: dict[str, Any] = {
                name: read_array(archive, name) for name in (*cls.ARRAYS, *cls.OPTIONAL) if name in there
            }
            return cls(**arrays, **read_words(archive))


def read_words(archive: zipfile.ZipFile) -> dict[str, Any]:
    """What an opened lattice file says in words, and how many tokens there are."""
    there = set(archive.namelist())
    words: dict[str, Any] = {
        name: str(read_array(archive, name)) for name in LatticeSet.WORDS if f"{name}.npy" in there
    }
    return words | ({"vocab_size": int(read_array(archive, "vocab_size"))} if "vocab_size.npy" in there else {})
