"""Sausage lattices: the top-k outputs of independent heads (Kim 2024, section 7).

A *sausage lattice* is an acyclic automaton of ``slots + 1`` states in a row.  Between states ``i`` and ``i + 1``
there is one arc for each of the ``k`` best tokens of one prediction head, weighted with the head's
log-probability.  Every path from the first state to the last is one draft; there are up to ``k ** slots``.

Head 1 is the base model's own output, whose token is committed without being drafted, so the lattice of ``h``
heads has ``h - 1`` slots: those of heads 2..h.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

import fst
from fst.files import replacing

if TYPE_CHECKING:
    import pywrapfst

PADDING = -1
"""Token of a missing arc."""


def _as_numpy(values: Any) -> np.ndarray:
    """Arrays, nested lists and torch tensors (on any device, of any float type) as numpy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()
        return np.asarray(values.numpy())
    return np.asarray(values)


@dataclass(frozen=True)
class SausageLattice:
    """A validated lattice.

    Args:
        tokens: ``[slots, k]`` token ids, distinct within a slot; -1 pads slots that have fewer arcs.
        log_probs: ``[slots, k]`` natural-log weights of the arcs.  They need not be normalised; ``-inf`` removes
            an arc; values at padded places are ignored.

    Raises:
        ValueError: wrong shapes, NaN or +inf, negative or repeated token ids, a slot without an arc.
    """

    tokens: np.ndarray
    log_probs: np.ndarray

    def __post_init__(self) -> None:
        tokens, log_probs = _as_numpy(self.tokens), _as_numpy(self.log_probs)
        if tokens.ndim != 2 or tokens.shape != log_probs.shape:
            raise ValueError(f"expected tokens and log_probs of one shape [slots, k], got {tokens.shape} and {log_probs.shape}")
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"expected integer tokens, got {tokens.dtype}")
        if log_probs.dtype.kind not in "fiu":
            raise ValueError(f"expected real log_probs, got {log_probs.dtype}")
        if tokens.size and (tokens.min() < PADDING or tokens.max() > np.iinfo(np.int32).max - 1):
            slot = int(np.argwhere((tokens < PADDING) | (tokens > np.iinfo(np.int32).max - 1))[0][0])
            raise ValueError(f"slot {slot}: expected token ids >= 0 (or -1 as padding) that fit 32 bits, got {tokens[slot].tolist()}")
        real = tokens != PADDING
        bad = real & (np.isnan(log_probs) | (log_probs == np.inf))
        if bad.any():
            slot, place = map(int, np.argwhere(bad)[0])
            raise ValueError(f"slot {slot}, arc {place}: expected a log-probability below +inf, got {log_probs[slot, place]}")
        arcs = real & (log_probs > -np.inf)
        if not arcs.any(axis=1).all():
            raise ValueError(f"slot {int(np.argmin(arcs.any(axis=1)))}: expected at least one arc of finite log-probability, got none")
        ordered = np.sort(tokens, axis=1)
        repeated = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PADDING)
        if repeated.any():
            slot, place = map(int, np.argwhere(repeated)[0])
            raise ValueError(f"slot {slot}: expected distinct tokens, got token {ordered[slot, place]} twice; keep its better arc")
        object.__setattr__(self, "tokens", np.ascontiguousarray(tokens, dtype=np.int32))
        object.__setattr__(self, "log_probs", np.ascontiguousarray(log_probs, dtype=np.float32))

    @classmethod
    def from_logits(cls, logits: Any, k: int = 16) -> SausageLattice:
        """The ``k`` best tokens of each slot, best first, ties towards the lower token id.

        Args:
            logits: ``[slots, vocab]``, numpy or torch; normalised here (natural log).
            k: arcs per slot, at most the vocabulary's size.
        """
        if len(getattr(logits, "shape", np.shape(logits))) != 2:
            raise ValueError(f"expected logits [slots, vocab], got shape {tuple(np.shape(logits))}")
        if not 1 <= k <= logits.shape[1]:
            raise ValueError(f"expected 1 <= k <= {logits.shape[1]} (the vocabulary), got {k}")
        values = _as_numpy(logits)
        if np.isnan(values).any() or (values == np.inf).any():
            raise ValueError("expected logits below +inf, got NaN or +inf")
        best = top_k(values, k)
        chosen = np.take_along_axis(values, best, axis=1).astype(np.float64)
        top = chosen[:, :1]
        log_norm = top + np.log(np.exp(values - top).sum(axis=1, keepdims=True, dtype=np.float64))
        return cls(best, chosen - log_norm)

    @property
    def slots(self) -> int:
        return int(self.tokens.shape[0])

    @property
    def k(self) -> int:
        return int(self.tokens.shape[1])

    @property
    def num_paths(self) -> int:
        """Number of distinct drafts; exact, however large."""
        arcs = (self.tokens != PADDING) & (self.log_probs > -np.inf)
        product = 1
        for count in arcs.sum(axis=1).tolist():
            product *= count
        return product

    @property
    def kept_log_mass(self) -> np.ndarray:
        """``[slots]`` natural log of each slot's probability that its arcs keep, at most 0."""
        weights = np.where(self.tokens == PADDING, -np.inf, self.log_probs).astype(np.float64)
        top = weights.max(axis=1, keepdims=True)
        mass: np.ndarray = np.minimum(top[:, 0] + np.log(np.exp(weights - top).sum(axis=1)), 0.0)
        return mass

    def to_fst(self) -> pywrapfst.VectorFst:
        """The lattice as an OpenFst acceptor: label = token id + 1, weight = cost = -log_prob."""
        return fst.lattice_to_fst(self.tokens, self.log_probs)

    @classmethod
    def from_fst(cls, automaton: pywrapfst.Fst) -> SausageLattice:
        """The lattice that an acceptor of linear topology spells: all arcs from state ``i`` lead to one state ``i + 1``.

        Raises:
            ValueError: the automaton has another topology, or labels or weights that no lattice has.
        """
        return cls(*fst.fst_to_lattice(automaton))

    def top_arcs(self, k: int) -> SausageLattice:
        """The lattice of each slot's ``k`` best arcs, best first."""
        order = top_k(np.where(self.tokens == PADDING, -np.inf, self.log_probs), min(k, self.k))
        return SausageLattice(np.take_along_axis(self.tokens, order, axis=1), np.take_along_axis(self.log_probs, order, axis=1))


def top_k(values: np.ndarray, k: int) -> np.ndarray:
    """Indices of the ``k`` largest of each row, largest first, ties towards the lower index: ``[rows, k]``."""
    if k < values.shape[1]:
        threshold = -np.partition(-values, k - 1, axis=1)[:, k - 1 : k]
        # Everything above the threshold, then ties at it in order of index.
        rank = np.where(values > threshold, 0, np.where(values == threshold, 1, 2))
        candidates = np.argsort(rank, axis=1, kind="stable")[:, :k]
    else:
        candidates = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.argsort(-np.take_along_axis(values, candidates, axis=1), axis=1, kind="stable")
    return np.take_along_axis(candidates, order, axis=1)


def oracle_path(lattice: SausageLattice, continuation: Sequence[int] | np.ndarray) -> np.ndarray:
    """The draft in the lattice with the longest prefix of ``continuation`` (Kim 2024, section 6.3).

    Args:
        lattice: the candidates.
        continuation: the base model's own next tokens; positions beyond its end match nothing.

    Returns:
        ``[slots]`` tokens: the continuation as far as the lattice holds it, then each slot's best arc.
    """
    path = lattice.top_arcs(1).tokens[:, 0].copy()
    for slot, token in enumerate(list(continuation)[: lattice.slots]):
        if not (lattice.tokens[slot][lattice.log_probs[slot] > -np.inf] == token).any() or token == PADDING:
            break
        path[slot] = token
    return path


@dataclass(frozen=True)
class LatticeSet:
    """Lattices of one shape with what is needed to score drafts against the base model's own text.

    tokens: ``[n, slots, k]`` int32, -1 pads; log_probs: ``[n, slots, k]`` float32, natural log.
    continuation: ``[n, slots]`` int32, the base model's greedy tokens; -1 where its text has ended.
    context: ``[n, c]`` int32, the last tokens before the lattice; -1 pads on the left.
    fingerprint: hash of the vocabulary that the ids belong to, where it is known.
    sequence: ``[n]`` the number of the text that each lattice belongs to, where it is known; the lattices of a text
        stand together, one for each position, in order.
    entropy: ``[n, slots + 1]`` nats, where it is known: of all heads' whole distributions, head 1 (the base model's own) first.
    origin: the model and the text that the lattices are from, in words, where they are known.
    """

    ARRAYS: ClassVar = ("tokens", "log_probs", "continuation", "context")
    OPTIONAL: ClassVar = ("sequence", "entropy")
    WORDS: ClassVar = ("fingerprint", "origin")

    tokens: np.ndarray
    log_probs: np.ndarray
    continuation: np.ndarray
    context: np.ndarray
    fingerprint: str | None = None
    sequence: np.ndarray | None = None
    entropy: np.ndarray | None = None
    origin: str | None = None

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
                "expected tokens [n, slots, k], log_probs [n, slots, k], continuation [n, slots] and context [n, c], got " + listing
            )
        for name in self.ARRAYS:
            array = getattr(self, name)
            kind = "f" if name == "log_probs" else "iu"
            if array.dtype.kind not in kind:
                raise ValueError(f"{name}: expected {'float' if kind == 'f' else 'integer'} values, got {array.dtype}")
            if kind == "iu" and array.size and (array.min() < PADDING or array.max() > np.iinfo(np.int32).max - 1):
                raise ValueError(f"{name}: expected ids >= 0 (or -1 as padding) that fit 32 bits, got {array.min()} to {array.max()}")
        self._check_log_probs()
        self._check_optional()

    def _check_log_probs(self) -> None:
        # A sum shows that there is no NaN and no infinity in one quick pass; -inf, which is allowed, has to be told from them.
        if np.isfinite(self.log_probs.sum()):
            return
        bad = (self.tokens != PADDING) & (np.isnan(self.log_probs) | (self.log_probs == np.inf))
        if bad.any():
            row, slot, arc = map(int, np.argwhere(bad)[0])
            raise ValueError(
                f"log_probs: expected log-probabilities below +inf, got {self.log_probs[row, slot, arc]} "
                f"in lattice {row}, slot {slot}, arc {arc}"
            )

    def _check_optional(self) -> None:
        n, slots = self.tokens.shape[:2]
        if self.sequence is not None and (self.sequence.shape != (n,) or self.sequence.dtype.kind not in "iu"):
            raise ValueError(
                f"sequence: expected integers [n], one for each of {n} lattices, got {self.sequence.dtype} {self.sequence.shape}"
            )
        if self.entropy is not None and (self.entropy.shape != (n, slots + 1) or self.entropy.dtype.kind != "f"):
            raise ValueError(
                f"entropy: expected floats [n, slots + 1] {(n, slots + 1)}, one for each head, "
                f"got {self.entropy.dtype} {self.entropy.shape}"
            )
        if self.entropy is not None and not (np.isfinite(self.entropy).all() and self.entropy.min(initial=0) >= 0):
            raise ValueError("entropy: expected finite values >= 0 (nats), got others")

    @classmethod
    def joined(cls, parts: Sequence[LatticeSet]) -> LatticeSet:
        """All lattices of several sets of one shape, in order; words are the first's, and so is what is optional.

        Raises:
            ValueError: no set, or sets of different shapes.
        """
        if not parts:
            raise ValueError("expected at least one set of lattices, got none")
        names = parts[0]._arrays()
        shapes = {tuple(getattr(part, name).shape[1:] for name in names if getattr(part, name) is not None) for part in parts}
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
            return SausageLattice(self.tokens[index], self.log_probs[index])
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
        words = {name: np.array(word) for name in self.WORDS if (word := getattr(self, name)) is not None}
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
        try:
            with np.load(path, allow_pickle=False) as archive:
                if not isinstance(archive, np.lib.npyio.NpzFile):
                    raise ValueError("expected an .npz archive of named arrays, got a single array")
                missing = [name for name in cls.ARRAYS if name not in archive]
                if missing:
                    raise ValueError(f"expected the arrays {', '.join(cls.ARRAYS)}; missing: {', '.join(missing)}")
                words: dict[str, Any] = {name: str(archive[name]) for name in cls.WORDS if name in archive}
                arrays: dict[str, Any] = {name: archive[name] for name in (*cls.ARRAYS, *cls.OPTIONAL) if name in archive}
                return cls(**arrays, **words)
        except FileNotFoundError:
            raise
        except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error, NotImplementedError, MemoryError) as error:
            raise ValueError(f"{path}: not a lattice file: {error}") from error
