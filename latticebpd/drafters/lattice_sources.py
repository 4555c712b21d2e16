"""Where lattices come from while a text is decoded: prediction heads, filled masks, block drafters, saved outputs.

A *source* gives, for each row that is about to be drafted for, the lattice that starts right after its tokens, or None
where it has none. What is drafted from the lattices is the strategy's business (``strategies.py``).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from latticebpd.drafters.block.block_cache import BlockFiller
from latticebpd.drafters.block.block_lattices import ALL_HEADS, DrafterHeads, block_lattices
from latticebpd.drafters.block.block_network import BlockDrafter
from latticebpd.drafters.drafter import State
from latticebpd.drafters.masks.mask_filler import MaskFiller
from latticebpd.drafters.masks.mask_network import NonAutoregressiveModel
from latticebpd.drafters.top_k import lattices_from_logits
from latticebpd.lattices.lattice_set import LatticeSet
from latticebpd.lattices.sausage import PADDING, SausageLattice
from latticebpd.target.stock_model import BaseModel, Model


class LatticeSource(Protocol):
    """Lattices for the rows of a batch."""

    @property
    def needs_hidden(self) -> bool:
        """Whether states must carry the hidden state that predicted their last token."""

    @property
    def fingerprint(self) -> str | None:
        """Hash of the vocabulary of the lattices' tokens, if it is known."""

    @property
    def vocab_size(self) -> int | None:
        """Its size, if it is known."""

    @property
    def owner(self) -> str:
        """Whose tokens they are, in words."""

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        """The lattice right after each state's tokens, with no more slots than the length limit leaves."""


class HasHeads(Protocol):
    """Prediction heads beside a base model; ``BlockwiseLM`` is one."""

    tokenizer_fingerprint: str | None

    @property
    def vocab_size(self) -> int: ...

    def head_logits(self, hidden: Tensor, slots: int | None = None) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, slots, vocab]``: slot ``i`` predicts the token ``i + 1`` after the next token.

        The tokens are those of the vocabulary or, where the heads have one, of the attribute ``shortlist`` (ids,
        ascending).

        slots: only the first so many, if there are more.
        """


class HeadLattices:
    """The outputs of prediction heads (Stern 2018): they read one hidden state per row, all rows at once.

    Args:
        model: the heads; those of a ``BlockwiseLM`` are heads 2..h.
        k: arcs per slot.
        slots: ask the first so many heads only; None asks all.  A head costs a projection to the vocabulary, and
            a small tree seldom reaches the last ones.
    """

    needs_hidden = True
    owner = "the model"

    def __init__(self, model: HasHeads, k: int = 16, slots: int | None = None) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"expected slots >= 1, or None for all, got {slots}")
        self.model, self.k, self.slots = model, k, slots
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size

    @torch.inference_mode()
    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        reachable = max(state.max_depth for state in states)
        hidden = [state.hidden for state in states if state.hidden is not None]
        if len(hidden) < len(states):
            raise ValueError(
                "expected states with the hidden state that predicted the last token, which heads read, got some"
                " without"
            )
        logits = self.model.head_logits(
            torch.stack(hidden), reachable if self.slots is None else min(reachable, self.slots)
        )
        found = lattices_from_logits(logits, self.k, getattr(self.model, "shortlist", None))
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(found, states, strict=True)]


class MaskLattices:
    """The outputs of a non-autoregressive model that fills masks behind the text in one pass (GAD; Xia 2022, sections 3
    and 4).

    A lattice ends where its best token ends the text.

    Args:
        model: fills the masks.
        k: arcs per slot.
        block_size: masks per draft, at most the model's own block size, which is the default.
    """

    needs_hidden = False
    owner = "the drafter"

    def __init__(self, model: NonAutoregressiveModel, k: int = 16, block_size: int | None = None) -> None:
        if block_size is not None and not 1 <= block_size <= model.block_size:
            raise ValueError(
                f"expected a block size from 1 to {model.block_size} (what the drafter was trained for), got"
                f" {block_size}"
            )
        self.model, self.k, self.block_size = model, k, block_size or model.block_size
        self.fingerprint, self.vocab_size = model.tokenizer_fingerprint, model.vocab_size
        self._reading: Future[None] | None = None

    @cached_property
    def filler(self) -> MaskFiller:
        return MaskFiller(self.model)

    def read(self, sources: Sequence[Sequence[int]]) -> None:
        """Begin to encode the sources of the next ``generate``, beside whatever happens meanwhile.

        Called right before ``generate`` it has drafter and verifier encode at the same time; without it the drafter
        encodes when it is first asked.
        """
        worker = ThreadPoolExecutor(1)
        self._reading = worker.submit(self.filler.encode, sources)
        worker.shutdown(wait=False)

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        if self._reading is not None:
            self._reading.result()
            self._reading = None
        logits = self.filler.logits(states, min(self.block_size, max(state.max_depth for state in states)))
        if not logits.shape[1]:  # the model has no position left
            return [None] * len(states)
        ends = BaseModel.of(self.model).eos_ids
        return [
            _cut(found, state.max_depth, ends)
            for found, state in zip(lattices_from_logits(logits, self.k), states, strict=True)
        ]


class BlockLattices:
    """The outputs of a block drafter, which reads what layers of the target handed on (DFlash, JetSpec, DSpark).

    Args:
        drafter: fills the blocks.
        target: the model that it was trained for, which decodes.
        k: arcs per slot.
        slots: the first so many only; the drafter still fills a whole block, as it was trained to.
        heads: which of the drafter's further heads are used, all by default.

    Raises:
        ValueError: a drafter of another target, or more arcs than it has tokens.
    """

    needs_hidden = True
    owner = "the target"

    def __init__(
        self,
        drafter: BlockDrafter,
        target: Model,
        k: int = 16,
        slots: int | None = None,
        heads: DrafterHeads = ALL_HEADS,
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"expected slots >= 1, or None for all, got {slots}")
        self.fingerprint = getattr(target, "tokenizer_fingerprint", None) or drafter.config.tokenizer_fingerprint
        self.filler = BlockFiller(drafter, target, self.fingerprint)
        self.drafter, self.target, self.k, self.slots, self.heads = drafter, target, k, slots, heads
        self.vocab_size = drafter.config.vocab_size
        self.needs_layers = drafter.config.target_layer_ids

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        reachable = max(state.max_depth for state in states)
        hidden = self.filler.states(states)[:, : reachable if self.slots is None else min(reachable, self.slots)]
        anchors = [state.tokens[-1] for state in states]
        found = block_lattices(self.drafter, self.filler.output, hidden, anchors, self.k, self.heads)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(found, states, strict=True)]


class SavedTopK:
    """Top-k outputs that were saved before: lattices made by other programs, or by an earlier run.

    A lattice fits where the text ends with its ``context [n, c]``; a context with padding is a whole text, shorter than
    ``c``.  Where contexts repeat, the first one after the lattice used last is taken.  A set without contexts is one
    text's, in order: lattice ``i`` follows ``i + 1`` new tokens.

    Args:
        saved: the outputs, or a file of them (:func:`load_top_k`); ``continuation`` is not looked at.
    """

    needs_hidden = False
    owner = "the saved lattices"

    def __init__(self, saved: LatticeSet | str | os.PathLike[str]) -> None:
        self.saved = saved if isinstance(saved, LatticeSet) else load_top_k(saved)
        self.fingerprint, self.vocab_size = self.saved.fingerprint, self.saved.vocab_size
        self._by_context: dict[tuple[int, ...], list[int]] = {}
        if (self.saved.context != PADDING).any():
            for index in range(len(self.saved)):
                self._by_context.setdefault(tuple(self.saved.context_of(index)), []).append(index)
        self._last: dict[int, int] = {}

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        found = [self._find(state) for state in states]
        return [None if index is None else self.saved[index] for index in found]

    def _find(self, state: State) -> int | None:
        """The lattice for this moment, if there is one."""
        done = len(state.tokens) - state.prompt_length
        if not self._by_context:
            return done - 1 if 1 <= done <= len(self.saved) else None
        indexes = self._by_context.get(tuple(state.tokens[-self.saved.context.shape[1] :]))
        if indexes is None:
            return None
        after = 0 if state.is_first else bisect_right(indexes, self._last.get(state.row, -1))
        self._last[state.row] = indexes[after % len(indexes)]
        return self._last[state.row]


def load_top_k(path: str | os.PathLike[str]) -> LatticeSet:
    """Saved top-k outputs: a lattice file (``.npz``), or safetensors.

    A safetensors file holds ``tokens [n, slots, k]`` and ``log_probs [n, slots, k]``, and may hold ``continuation
    [n, slots]``, ``context [n, c]`` and ``transitions [n, slots - 1, k, k]`` as lattice files do.

    Raises:
        ValueError: no such content, or arrays that make no lattices; the message names the file.
        FileNotFoundError: there is no such file.
    """
    if not os.fspath(path).endswith(".safetensors"):
        return LatticeSet.load(path)
    try:
        arrays = load_file(path)
        missing = [name for name in ("tokens", "log_probs") if name not in arrays]
        if missing:
            raise ValueError(f"expected tensors tokens and log_probs [n, slots, k]; missing: {', '.join(missing)}")
        tokens = arrays["tokens"]
        if tokens.ndim != 3:
            raise ValueError(f"expected tokens [n, slots, k], got shape {tokens.shape}")
        unknown = np.full(tokens.shape[:2], PADDING, dtype=np.int32)
        return LatticeSet(
            tokens,
            arrays["log_probs"].astype(np.float32),
            arrays.get("continuation", unknown),
            arrays.get("context", unknown[:, :0]),
            transitions=arrays.get("transitions"),
        )
    except FileNotFoundError:
        raise
    except (ValueError, TypeError, KeyError, OSError, SafetensorError) as error:
        raise ValueError(f"{os.fspath(path)}: not saved top-k outputs: {error}") from error


def _cut(lattice: SausageLattice, slots: int, ends: Sequence[int]) -> SausageLattice:
    """The first ``slots`` slots, up to the first whose best token is among ``ends``."""
    ended = np.flatnonzero(np.isin(lattice.tokens[:, 0], ends))
    return lattice.first_slots(min(slots, int(ended[0]) + 1) if ended.size else slots)
