"""Texts to learn from, by the name of a file or directory."""

from __future__ import annotations

import os
from pathlib import Path

from latticebpd.lattices.texts import Texts
from lm_training.data.corpus import load_tokens
from lm_training.data.distill import SETTINGS, load_distilled
from lm_training.data.encoding import RECORD, load_encoded


def load_texts(path: str | os.PathLike[str], window: int) -> Texts:
    """Texts (``.npz``), a directory of them (encoded or distilled), or windows of ``window`` tokens of a corpus
    (``.npy``)."""
    path = Path(path)
    if path.is_dir():
        return load_encoded(path) if (path / RECORD).exists() else load_distilled(path)
    if path.suffix == ".npz":
        return Texts.load(path)
    if path.suffix != ".npy":
        raise ValueError(
            f"{path}: expected sequences (.npz), token ids (.npy) or a directory of sequences ({RECORD}, {SETTINGS});"
            " encode text first"
        )
    return Texts.of_corpus(load_tokens([path]), window)
