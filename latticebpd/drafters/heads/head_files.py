"""The files of heads: ``heads.json`` (format, kind, shape, what they belong to) and ``heads.safetensors``.

They lie in the folder ``latticebpd`` of a model's own, where no loader of the model looks: vLLM reads every safetensors
file next to the model's. Where they lie next to it, as earlier versions wrote them, they are read too.

Format 1 knew one kind of heads, those that format 2 calls ``feed-forward``. Since format 3 heads may know a *shortlist*
of the tokens only (the others are never drafted), may have *transitions* of a ``transition_size``, and the file holds
a hash of the base model that they were trained on. Since format 4 they may read the states of further ``layers``, and
have weights of 8 bits, each column with its scale.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from fst.printable import plain_words
from latticebpd.checks import expect
from latticebpd.cpu import _engine
from latticebpd.models.catalogue import HEADS

EPSILON = _engine.EPSILON
"""Added to the mean square of a vector, which may be padding's embedding, all zeros."""
HEADS_CONFIG, HEADS_WEIGHTS = HEADS
FORMAT_VERSION = 4
SCALE = ".scale"
"""Ends the name of the scales of a matrix of 8 bits."""
FEED_FORWARD, CONDITIONED, STERN, MEDUSA = "feed-forward", "conditioned", "stern", "medusa"
_NETWORK = ("hidden_size", "num_heads", "intermediate_size")
DAMAGE = (
    json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, OverflowError, RuntimeError, SafetensorError,
)  # fmt: skip
SIZES = {
    FEED_FORWARD: _NETWORK,
    CONDITIONED: _NETWORK,
    STERN: _NETWORK,
    MEDUSA: ("hidden_size", "num_heads", "vocab_size", "num_layers"),
}
"""Kinds of heads, and the sizes of each."""
WITH_LAYERS = frozenset({FEED_FORWARD, CONDITIONED})
"""Those that may read the states of further layers."""


@dataclass(frozen=True)
class HeadSettings:
    """What ``heads.json`` says.

    arguments: of the kind's class, by name; where heads have a shortlist and a vocabulary of their own, its size.
    shortlist: tokens that the heads know; None: all of ``vocab_size``.
    """

    kind: str
    format_version: int
    arguments: dict[str, Any]
    vocab_size: int
    shortlist: int | None
    transition_size: int
    model_type: str | None
    tokenizer_fingerprint: str | None
    base_fingerprint: str | None

    @property
    def layers(self) -> tuple[int, ...]:
        """Of the base model, counted from 1."""
        return tuple(self.arguments.get("layers", ()))

    def check_base(self, directory: Path, vocab_size: int, model_type: str) -> None:
        """ValueError where the base model in a directory is not the one that the heads were trained on."""
        wanted = f"a base model of {self.vocab_size} tokens (the heads')"
        expect(vocab_size == self.vocab_size, wanted, vocab_size, of=directory)
        known = self.model_type
        expect(known in (None, model_type), f"a base model of type {known} (the heads')", model_type, of=directory)
        if self.base_fingerprint is None:
            return
        from latticebpd.models.transformers.checkpoints import stored_fingerprint

        stored, wanted = stored_fingerprint(directory), self.base_fingerprint
        wanted = f"the base model that the heads were trained on ({wanted})"
        remedy = "copy its model.safetensors here, or train heads for this one"
        fits = stored in (None, self.base_fingerprint)
        expect(fits, wanted, f"another's weights ({stored})", remedy, of=directory)


def head_file(directory: Path, name: str) -> Path:
    """A file of a directory's heads, ``HEADS_CONFIG`` or ``HEADS_WEIGHTS``, whether it exists or not."""
    file, earlier = directory / name, directory / Path(name).name
    return earlier if earlier.exists() and not file.exists() else file


def has_heads(path: str | os.PathLike[str]) -> bool:
    """Whether a path is a directory with heads."""
    return head_file(Path(path), HEADS_CONFIG).exists()


def read_settings(directory: Path) -> HeadSettings:
    """The settings of a directory's heads; ValueError for a missing or damaged file, or one of a later version."""
    with unreadable(directory):
        config: dict[str, Any] = json.loads(head_file(directory, HEADS_CONFIG).read_text(encoding="utf-8"))
        version = config["format_version"]
        wanted = f"heads of format 1 to {FORMAT_VERSION}"
        expect(version in range(1, FORMAT_VERSION + 1), wanted, version, "update latticebpd", of=directory)
        kind = config["kind"] if version > 1 else FEED_FORWARD
        wanted = f"heads of a kind among {', '.join(SIZES)}"
        expect(kind in SIZES, wanted, repr(kind), "update latticebpd", of=directory)
        for name in (*SIZES[kind], "vocab_size"):
            fits = type(config[name]) is int and config[name] >= 1
            expect(fits, f"{name} in {HEADS_CONFIG} to be a number >= 1", repr(config[name]), of=directory)
        arguments: dict[str, Any] = {name: config[name] for name in SIZES[kind]}
        short, width = (config.get(name) or None for name in ("shortlist", "transition_size"))
        for name, value in (("shortlist", config.get("shortlist")), ("transition_size", width)):
            wanted = f"{name} in {HEADS_CONFIG} to be a number >= 1 or null"
            expect(value is None or (type(value) is int and value >= 1), wanted, repr(value), of=directory)
        if layers := config.get("layers"):
            fits = type(layers) is list and all(type(each) is int for each in layers)
            wanted = f"layers in {HEADS_CONFIG} to be a list of numbers"
            expect(fits and kind in WITH_LAYERS, wanted, repr(layers), of=directory)
            arguments["layers"] = layers
        if short and "vocab_size" in arguments:
            arguments["vocab_size"] = short
        names = ("model_type", "tokenizer_fingerprint", "base_fingerprint")
        return HeadSettings(
            kind, version, arguments, config["vocab_size"], short, width or 0, *(config.get(name) for name in names)
        )


@contextmanager
def unreadable(directory: Path) -> Iterator[None]:
    """What a damaged file of heads raises, as a ValueError that names the directory."""
    try:
        yield
    except FileNotFoundError as error:
        raise ValueError(
            f"{directory}: expected a blockwise model (config.json, model.safetensors, {HEADS_CONFIG},"
            f" {HEADS_WEIGHTS}), but {Path(error.filename or '?').name} is missing"
        ) from error
    except DAMAGE as error:
        problem = f"{directory}: the block heads cannot be read: {plain_words(error)}"
        raise ValueError(f"{problem}; is the copy complete?") from error


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
