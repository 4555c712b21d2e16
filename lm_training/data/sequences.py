"""Token sequences by the name of a file or folder: what ``latticebpd train encode`` and ``distill`` write."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fst.files import PathLike
from latticebpd.lattices.shards import distilled_directory, whole_number
from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import load_tokens
from lm_training.data.encoding import RECORD, encoded_directory
from lm_training.data.records import SAVED

SETTINGS, START = "distill.json", "start_id"
"""The record of a distilled folder; its entry for the token that an encoder-decoder's texts begin with."""


def holds_sequences(path: PathLike) -> bool:
    """Whether the name is that of prompts and texts as token ids: an ``.npz`` file, or a folder, but for a data set
    that the package ``datasets`` has saved."""
    path = Path(path)
    return path.suffix == ".npz" or (path.is_dir() and not any((path / name).exists() for name in SAVED))


def load_distilled(directory: PathLike) -> Texts:
    """All sequences of a directory that `distill` has filled; ValueError if it is not one, or incomplete."""
    return Texts.joined([Texts.load(path) for path in distilled_directory(directory).files()])


def written_corpus(path: PathLike, end_of_text: int, history: int) -> np.ndarray:
    """``[n]`` ids of what follows the prompts, as an n-gram model of order ``history + 1`` learns it (`Texts.corpus`).

    The texts of an encoder-decoder follow its start token, not their sources.
    """
    texts, path = load_texts(path, 0), Path(path)
    start = distilled_directory(path).settings().get(START) if (path / SETTINGS).exists() else None
    if start is None:
        return texts.corpus(end_of_text, history)
    return texts.answers(whole_number({START: start}, START, least=0)).corpus(end_of_text, max(1, history))


def load_texts(path: PathLike, window: int) -> Texts:
    """Texts (``.npz``), an encoded or distilled directory, or a corpus (``.npy``) in windows of ``window`` tokens."""
    path = Path(path)
    if path.is_dir():
        directory = encoded_directory(path) if (path / RECORD).exists() else distilled_directory(path)
        return Texts.joined([Texts.load(file) for file in directory.files()])
    if path.suffix == ".npz":
        return Texts.load(path)
    if path.suffix != ".npy":
        kinds = f"sequences (.npz), token ids (.npy) or a directory of sequences ({RECORD}, {SETTINGS})"
        raise ValueError(f"{path}: expected {kinds}; encode text first")
    return Texts.of_corpus(load_tokens([path]), window)
