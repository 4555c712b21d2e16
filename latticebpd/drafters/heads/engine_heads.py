"""Feed-forward heads by int8 kernels, next to a target on the CPU engine; drafts need not be exact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fst.fingerprint import vocabulary_fingerprint
from latticebpd.checks import expect
from latticebpd.cpu import _engine
from latticebpd.drafters.heads.head_files import (
    CONDITIONED,
    EPSILON,
    FEED_FORWARD,
    HEADS_CONFIG,
    HEADS_WEIGHTS,
    HeadSettings,
    head_file,
    read_settings,
    unreadable,
    unrounded,
)
from latticebpd.lattices.sausage import SausageLattice
from latticebpd.lattices.values import as_numpy
from latticebpd.machine import num_threads
from latticebpd.models.engine.engine_model import EngineModel, file_hash

INPUTS = {FEED_FORWARD: 1, CONDITIONED: 2}
"""Kinds of heads that there are kernels for, and what they read in hidden sizes: the state, the last token too.
Each further layer adds one."""
TRANSITIONS = ("transitions.up", "transitions.down")


def has_kernels(settings: HeadSettings) -> bool:
    """Whether there are kernels for such heads."""
    return settings.kind in INPUTS and settings.arguments["num_heads"] > 1


class EngineHeads:
    """The heads of a folder, for a target; ValueError for heads of another target, or without kernels.

    tokenizer: the target's.
    """

    def __init__(self, folder: Path, target: EngineModel, tokenizer: Any) -> None:
        self._arguments = folder, target, tokenizer
        settings = read_settings(folder)
        wanted = f"heads of a kind among {', '.join(INPUTS)} on the CPU engine"
        expect(has_kernels(settings), wanted, settings.kind, "load the model with weights='torch'", of=folder)
        settings.check_base(folder, target.vocab_size, target.model_type)
        if (known := settings.tokenizer_fingerprint) is not None:
            own, wanted = (
                vocabulary_fingerprint(tokenizer.get_vocab()),
                f"the vocabulary of the model's heads ({known})",
            )
            expect(own == known, wanted, own, "copy their tokenizer here", of=folder)
        target.check_layers(settings.layers)
        with unreadable(folder):
            weights = unrounded(load_file(head_file(folder, HEADS_WEIGHTS)))
        up, down, transitions = _checked(folder, settings, weights, target)
        self.shortlist: np.ndarray | None = weights.get("shortlist")
        every = np.arange(target.vocab_size) if self.shortlist is None else self.shortlist
        self.target, self.layers, self.has_transitions = target, settings.layers, bool(transitions)
        self.num_heads, self.num_tokens = len(up) + 1, len(every)
        self.fingerprint, self.vocab_size = settings.tokenizer_fingerprint, target.vocab_size
        self._file, self._reads_token = head_file(folder, HEADS_WEIGHTS), settings.kind == CONDITIONED
        size = target.hidden_size
        tied = [each[0] for each in transitions] or [np.empty((2 * size, 0)), np.empty((0, size))]
        self._projection = _engine.Int8Weights(target.embeddings.output_embeddings(every))
        self._heads = _engine.Int8Heads(up.swapaxes(1, 2), down.swapaxes(1, 2))
        self._kernels = _engine.HeadLattices(
            self._heads, self._projection, every.tolist(), np.swapaxes(np.split(tied[0], 2), 1, 2), tied[1]
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> EngineHeads:
        """Itself: nothing changes it."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by its folder's name, not with its weights."""
        return EngineHeads, self._arguments

    @property
    def weights_fingerprint(self) -> str:
        """Hash of the target's and the heads' weights."""
        return f"{self.target.fingerprint} with {file_hash([self._file])}"

    def joined(self, parts: Sequence[Sequence[Any]]) -> np.ndarray:
        """``[rows, states]`` of each row's state and those of its layers."""
        return np.stack([np.concatenate(list(map(as_numpy, row))) for row in parts])

    def draw(
        self, states: np.ndarray, last: Sequence[int], slots: int | None, k: int, transitions: bool
    ) -> list[SausageLattice]:
        """After ``[rows, states]`` and the tokens that they predicted, the lattices of the first ``slots`` heads and
        their ``k`` best tokens, all if there are fewer; with transitions, if the heads have some."""
        read, slots = self._inputs(states, last), self._slots(slots)
        tied = self.has_transitions and transitions and slots > 1
        arrays = self._kernels.lattices(read, slots, min(k, self.num_tokens), tied, num_threads())
        return list(map(SausageLattice.trusted, *arrays))

    def entropies(self, states: np.ndarray, last: Sequence[int], slots: int | None) -> np.ndarray:
        """``[rows, slots]`` nats: of the heads' outputs there."""
        own, *others = np.split(self._inputs(states, last), len(self.layers) + 1 + self._reads_token, axis=1)
        norms = (each / np.sqrt(np.square(each).mean(axis=1, keepdims=True) + np.float32(EPSILON)) for each in others)
        read = np.hstack([own, *norms]).astype(np.float32)
        drawn = self._heads.states(np.ascontiguousarray(read), self._slots(slots), num_threads())
        logits = self._projection.multiply(drawn.reshape(-1, drawn.shape[-1]), num_threads())
        logits -= logits.max(axis=1, keepdims=True)
        weights = np.exp(logits)
        totals = weights.sum(axis=1)
        return (np.log(totals) - (weights * logits).sum(axis=1) / totals).reshape(len(drawn), -1)

    def _inputs(self, states: np.ndarray, last: Sequence[int]) -> NDArray[np.float32]:
        if not self._reads_token:
            return states
        return np.hstack([states, self.target.embeddings.output_embeddings(np.asarray(last, np.int64))])

    def _slots(self, slots: int | None) -> int:
        return len(range(self.num_heads - 1)[:slots])


def _checked(
    folder: Path, settings: HeadSettings, weights: dict[str, Any], target: EngineModel
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """The matrices of a file: up, down and transitions; ValueError where they are not as the settings say."""
    up, down, tokens = (weights.get(name, np.empty(0)) for name in ("up", "down", "shortlist"))
    ties, width = [weights[name] for name in TRANSITIONS if name in weights], settings.transition_size
    size, inner = settings.arguments["hidden_size"], settings.arguments["intermediate_size"]
    count, inputs = settings.arguments["num_heads"] - 1, (INPUTS[settings.kind] + len(settings.layers)) * size
    wanted = f"heads of hidden size {target.hidden_size} (the target's)"
    expect(size == target.hidden_size, wanted, size, of=folder)
    fits = (
        up.shape == (count, inputs, inner) and down.shape == (count, inner, size),
        all(each.dtype.kind == "f" for each in (up, down, *ties)),
        weights.keys() <= {"up", "down", "shortlist", *TRANSITIONS},
        [each.shape for each in ties] == ([(1, 2 * size, width), (1, width, size)] if width else []),
        (settings.shortlist or 0) == len(tokens),
    )
    if not all(fits):
        raise ValueError(f"{folder}: {HEADS_WEIGHTS} does not fit {HEADS_CONFIG}; is the copy complete?")
    if settings.shortlist is not None:
        ascending = tokens.ndim == 1 and tokens.dtype == np.int64 and (tokens[1:] > tokens[:-1]).all()
        known = ascending and tokens[0] >= 0 and tokens[-1] < target.vocab_size
        expect(known, f"a shortlist of ascending token ids from 0 to {target.vocab_size - 1}", "others", of=folder)
    return up, down, ties
