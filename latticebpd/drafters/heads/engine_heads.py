"""Lattices of feed-forward heads for an `EngineTarget`, by int8 kernels only: those of `HeadLattices` with
``use_int8``, without PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file

from latticebpd.checks import expect
from latticebpd.cpu import _engine
from latticebpd.drafters.family import FamilySource, PositionLattices
from latticebpd.drafters.heads.head_source import HeadSource
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_numpy
from latticebpd.machine import num_threads
from latticebpd.models.engine.engine_target import EngineTarget

EPSILON = _engine.EPSILON
"""Added to the mean square of a vector, which may be padding's embedding, all zeros."""
HEADS_CONFIG, HEADS_WEIGHTS = "heads.json", "heads.safetensors"
FORMAT_VERSION = 4
SCALE = ".scale"
"""Ends the name of the scales of a matrix of 8 bits."""
INPUTS = {"feed-forward": 1, "conditioned": 2}
"""Kinds of heads that there are kernels for, and what they read in hidden sizes: the state, the last token too.
Each further layer adds one."""
TRANSITIONS = ("transitions.up", "transitions.down")


class EngineHeads:
    """The kernels of a folder's heads.  fingerprint: of the vocabulary.  vocab_size: of the target."""

    def __init__(self, folder: Path, target: EngineTarget, fingerprint: str) -> None:
        """ValueError or another of ``UNREADABLE`` for heads that ``BlockwiseLM`` has to read, or refuses.

        fingerprint: of the vocabulary of the folder's tokenizer.
        """
        config = json.loads((folder / HEADS_CONFIG).read_text(encoding="utf-8"))
        weights = unrounded(load_file(folder / HEADS_WEIGHTS))
        up, down, tokens = weights["up"], weights["down"], weights.get("shortlist")
        ties, width = [weights[name] for name in TRANSITIONS if name in weights], config.get("transition_size")
        sizes, count = [config[name] for name in ("hidden_size", "intermediate_size")], config["num_heads"] - 1
        every = np.arange(target.vocab_size) if tokens is None else tokens
        self.layers = tuple(config.get("layers", ()))
        inputs = (INPUTS[config["kind"]] + len(self.layers)) * sizes[0]
        fits = (
            config["format_version"] in (3, FORMAT_VERSION),
            config.get("base_fingerprint") is None,  # which is the float weights'
            config["tokenizer_fingerprint"] in (None, fingerprint),
            (config["vocab_size"], sizes[0]) == (target.vocab_size, target.hidden_size),
            config.get("model_type", target.weights.architecture) == target.weights.architecture,
            count >= 1 and up.shape == (count, inputs, sizes[1]) and down.shape == (count, *sizes[::-1]),
            all(each.dtype.kind == "f" for each in (up, down, *ties)),
            weights.keys() <= {"up", "down", "shortlist", *TRANSITIONS},
            [each.shape for each in ties] == ([(1, 2 * sizes[0], width), (1, width, sizes[0])] if width else []),
            config.get("shortlist") == (None if tokens is None else len(tokens)),
            every.ndim == 1 and len(every) and every.dtype == np.int64 and (every[1:] > every[:-1]).all(),
            every[0] >= 0 and every[-1] < target.vocab_size,
            all(type(layer) is int and 1 <= layer <= target.num_layers for layer in self.layers),
        )
        expect(all(fits), "feed-forward heads for the engine", "others", of=folder)
        projection = _engine.Int8Weights(target.weights.output_rows(every))
        tied = [each[0] for each in ties] or [np.empty((2 * sizes[0], 0)), np.empty((0, sizes[0]))]
        matrices = np.swapaxes(np.split(tied[0], 2), 1, 2), tied[1]
        heads = _engine.Int8Heads(up.swapaxes(1, 2), down.swapaxes(1, 2))
        self._kernels = _engine.HeadLattices(heads, projection, every.tolist(), *matrices)
        self._embeddings = target.weights.output_embeddings if config["kind"] == "conditioned" else None
        self.has_transitions = bool(ties)
        self.num_heads, self.num_tokens = len(up) + 1, len(every)
        self.fingerprint, self.vocab_size = config["tokenizer_fingerprint"], target.vocab_size

    def lattices(
        self, hidden: np.ndarray, last: list[int], slots: int, k: int, transitions: bool = False
    ) -> list[SausageLattice]:
        """After ``[rows, states]`` and the tokens that they predicted, of the first ``slots`` heads and their
        ``k`` best tokens, all if there are fewer; with transitions, if asked for."""
        read = hidden if self._embeddings is None else np.hstack([hidden, self._embeddings(np.asarray(last))])
        tied = self.has_transitions and transitions and slots > 1
        arrays = self._kernels.lattices(read, slots, min(k, self.num_tokens), tied, num_threads())
        return list(map(SausageLattice.trusted, *arrays))


def unrounded(tensors: dict[str, Any]) -> dict[str, Any]:
    """Arrays or tensors of a file by name, those of 8 bits times their scales; ValueError where these do not fit."""
    matrices = {name: tensor for name, tensor in tensors.items() if not name.endswith(SCALE)}
    for name in tensors.keys() - matrices.keys():
        scale = tensors[name]
        matrix = matrices.get(name.removesuffix(SCALE))
        wanted = f"{name} [..., 1, columns] of a matrix [..., rows, columns]"
        fits = matrix is not None and matrix.ndim > 1 and scale.shape == (*matrix.shape[:-2], 1, matrix.shape[-1])
        expect(fits, wanted, f"shape {tuple(scale.shape)}", of=HEADS_WEIGHTS)
        matrices[name.removesuffix(SCALE)] = matrix * scale
    return matrices


class EngineHeadLattices(HeadSource):
    """A `FamilySource` of them.  stock: makes the source of the model as PyTorch has it, for all but decoding."""

    def __init__(
        self,
        heads: EngineHeads,
        stock: Callable[[], FamilySource],
        k: int = 16,
        slots: int | None = None,
        bigram: bool = True,
    ) -> None:
        super().__init__(heads, k, slots, bigram)
        self.stock, self.num_tokens = stock, heads.num_tokens
        self.fingerprint, self.vocab_size = heads.fingerprint, heads.vocab_size

    def _drawn(self, read: list[list[Any]], last: list[int], slots: int) -> list[SausageLattice]:
        states = np.stack([np.concatenate(list(map(as_numpy, parts))) for parts in read])
        return self.heads.lattices(states, last, min(slots, self.num_slots), self.k, self.has_transitions)

    @property
    def target(self) -> Any:
        return self.stock().target

    @property
    def weights(self) -> str:
        return self.stock().weights

    def with_shape(self, k: int, slots: int | None = None) -> Self:
        return type(self)(self.heads, self.stock, k, slots, self.bigram)

    def lattices_of_text(self, text: Sequence[int], positions: range, source: Sequence[int] = ()) -> PositionLattices:
        return self.stock().with_shape(self.k, self.slots).lattices_of_text(text, positions, source)
