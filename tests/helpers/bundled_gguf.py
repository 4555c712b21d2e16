"""The bundled model with a GGUF file."""

from __future__ import annotations

import shutil
from pathlib import Path

from latticebpd.drafters.bundled import LM, MODEL
from latticebpd.models.catalogue import GGUF_NAME
from latticebpd.models.load_target import load_stock
from tests.helpers.gguf_files import written


def bundled_with_gguf(folder: Path) -> Path:
    """The bundled model with its heads and n-gram model, and a GGUF file of it, in a new folder."""
    shutil.copytree(MODEL, folder)
    shutil.copy(LM, folder / "lm.fst")
    written(folder / GGUF_NAME, load_stock(MODEL), {}, {"context_length": 1024})
    return folder
