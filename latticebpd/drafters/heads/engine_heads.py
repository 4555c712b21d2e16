"""Lattices of feed-forward heads beside an `EngineTarget`, by kernels of 8 bits alone: those of `HeadLattices` with
``use_int8``, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from safetensors.numpy import load_file

from latticebpd.cpu.array_kernels import Int8HeadKernels, top_k
from latticebpd.drafters.drafter import State
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_numpy
from latticebpd.target.engine_target import UNREADABLE, EngineTarget

if TYPE_CHECKING:
    from torch import Tensor

    from latticebpd.drafters.family import FamilySource

HEADS_CONFIG, HEADS_WEIGHTS = "heads.json", "heads.safetensors"
FORMAT_VERSION, KIND = 3, "feed-forward"


class EngineHeads:
    """The kernels, and which tokens they know.

    tokens: ``[n]`` ids, ascending; None: all.  fingerprint: of the vocabulary.  vocab_size: of the target.
    """

    def __init__(self, folder: Path, target: EngineTarget, fingerprint: str) -> None:
        """ValueError or another of ``UNREADABLE`` for heads that ``BlockwiseLM`` has to read, or refuses.

        fingerprint: of the vocabulary of the folder's tokenizer.
        """
        config = json.loads((folder / HEADS_CONFIG).read_text(encoding="utf-8"))
        weights = load_file(folder / HEADS_WEIGHTS)
        up, down, tokens = weights["up"], weights["down"], weights.get("shortlist")
        sizes, count = [config[name] for name in ("hidden_size", "intermediate_size")], config["num_heads"] - 1
        every = np.arange(target.vocab_size) if tokens is None else tokens
        fits = (
            (config["format_version"], config["kind"]) == (FORMAT_VERSION, KIND),
            config.get("base_fingerprint") is None,  # which is the float weights'
            config["tokenizer_fingerprint"] in (None, fingerprint),
            (config["vocab_size"], sizes[0]) == (target.vocab_size, target.hidden_size),
            config.get("model_type", target.weights.architecture) == target.weights.architecture,
            count >= 1 and up.shape == (count, *sizes) and down.shape == (count, *sizes[::-1]),
            up.dtype.kind == down.dtype.kind == "f" and weights.keys() <= {"up", "down", "shortlist"},
            config.get("shortlist") == (None if tokens is None else len(tokens)),
            every.ndim == 1 and len(every) and every.dtype == np.int64 and (every[1:] > every[:-1]).all(),
            every[0] >= 0 and every[-1] < target.vocab_size,
        )
        if not all(fits):
            raise ValueError(f"{folder}: expected feed-forward heads for the engine, got others")
        self.kernels = Int8HeadKernels(up, down, target.weights.output_rows(every))
        self.tokens, self.fingerprint, self.vocab_size = tokens, config["tokenizer_fingerprint"], target.vocab_size


def read_heads(folder: Path, target: EngineTarget, fingerprint: str) -> EngineHeads | None:
    """The heads of a folder; None where they have to be read as a ``BlockwiseLM``."""
    try:
        return EngineHeads(folder, target, fingerprint)
    except UNREADABLE:
        return None


class EngineHeadLattices:
    """A `FamilySource` of them.  stock: makes the source of the model as PyTorch has it, for all but decoding."""

    needs_hidden = True
    owner = "the model"
    has_transitions = False
    shares_lm = True

    def __init__(
        self, heads: EngineHeads, stock: Callable[[], FamilySource], k: int = 16, slots: int | None = None
    ) -> None:
        if slots is not None and slots < 1:
            raise ValueError(f"expected slots >= 1, or None for all, got {slots}")
        self.heads, self.stock, self.k, self.slots = heads, stock, k, slots
        self.fingerprint, self.vocab_size = heads.fingerprint, heads.vocab_size

    def lattices(self, states: Sequence[State]) -> list[SausageLattice | None]:
        hidden = [vars(state)["hidden"] for state in states]
        if any(each is None for each in hidden):
            raise ValueError(
                "expected states with the hidden state that predicted the last token, which heads read, got some"
                " without"
            )
        slots = min(self.num_slots, max(state.max_depth for state in states))
        logits = self.heads.kernels.logits(np.stack([as_numpy(each) for each in hidden]), slots)
        known, drawn = self.heads.tokens, top_k(logits, self.k)
        lattices = (SausageLattice(best if known is None else known[best], scores) for best, scores in drawn)
        return [lattice.first_slots(state.max_depth) for lattice, state in zip(lattices, states, strict=True)]

    @property
    def target(self) -> Any:
        return self.stock().target

    @property
    def num_slots(self) -> int:
        number = self.heads.kernels.num_heads
        return number if self.slots is None else min(self.slots, number)

    @property
    def num_tokens(self) -> int:
        return self.heads.kernels.num_tokens

    @property
    def weights(self) -> str:
        return self.stock().weights

    def default_system(self, rescored: bool) -> str:
        return "copies+{n}-tree"

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return type(self)(self.heads, self.stock, k, slots)

    def lattices_of_text(
        self, text: Sequence[int], positions: range, source: Sequence[int] = ()
    ) -> Iterator[tuple[list[SausageLattice], Tensor | None]]:
        return self.stock().with_shape(self.k, self.slots).lattices_of_text(text, positions, source)
