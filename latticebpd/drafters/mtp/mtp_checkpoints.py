"""MTP layers in a target's own checkpoint, as far as ``MtpModel`` of ``transformers`` (5.21 and later) builds them.

The configuration says how many layers there are, and the names of the tensors whether the checkpoint has them. In
Qwen's layout (``mtp.fc``, ``mtp.layers.0``) the configuration says nothing: it is one layer with full attention.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import safe_open

from fst.printable import plain_words

INDEX, QWEN_PROJECTION = "model.safetensors.index.json", "mtp.fc.weight"
ATTENTION = frozenset({"full_attention", "sliding_attention"})
"""Kinds of MTP layers that tree attention can read."""


def has_mtp(folder: Path) -> bool:
    """Whether a folder holds a model with MTP layers that can be loaded. It imports ``transformers`` only where the
    tensors' names call for it, and leaves damaged files to whatever loads the model."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        layers, names = (config.get("text_config") or config)["num_hidden_layers"], _tensor_names(folder)
        if not any(map(_names_of_mtp(layers).search, names)):
            return False
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return _with_mtp_fields(config, names) is not None
    except Exception:  # damaged values in config.json raise any kind of error
        return False


def load_mtp(model: Any, folder: Path) -> Any:
    """The ``MtpModel`` of a stock model from the tensors of a folder, in the model's type and on its device; it shares
    the model's embeddings. ValueError where it cannot be built, or weights are missing."""
    config = _with_mtp_fields(model.config, _tensor_names(folder))
    if config is None:
        wanted, kind = "a model whose MTP layers transformers builds", model.config.model_type
        raise ValueError(f"expected {wanted}, got {kind} with transformers {version('transformers')}; see docs/mtp.md")
    from transformers.modeling_layers import MtpModel

    main = copy.copy(model)  # so that the target's own configuration stays as it is
    main.config = config
    main.config.name_or_path, main.config.dtype = str(folder), model.dtype
    # transformers knows the layers' numbers of the families' first checkpoints only
    main._keys_to_ignore_on_load_unexpected = [_names_of_mtp(model.config.get_text_config().num_hidden_layers).pattern]
    try:
        return MtpModel.from_pretrained(main, device_map={"": model.device}).eval()
    except Exception as error:  # conversions of weights raise many kinds
        raise ValueError(f"its MTP layers cannot be read: {plain_words(error)}") from error


def _names_of_mtp(num_hidden_layers: int) -> re.Pattern[str]:
    """The names of the tensors of MTP layers, which some families number after the target's own."""
    further = "|".join(map(str, range(num_hidden_layers, num_hidden_layers + 10)))
    return re.compile(rf"(^|\.)mtp\.|^model\.layers\.({further})\.")


def _tensor_names(folder: Path) -> set[str]:
    if (folder / INDEX).is_file():
        return set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
    names: set[str] = set()
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, framework="numpy") as archive:
            names.update(archive.keys())
    return names


def _with_mtp_fields(config: Any, names: Iterable[str]) -> Any:
    """A copy of a configuration that describes the MTP layers; None where they cannot be built, or read by tree
    attention."""
    config = copy.deepcopy(config)
    text = config.get_text_config(decoder=True)
    if QWEN_PROJECTION in names and getattr(text, "num_mtp_layers", None) is None:
        text.num_mtp_layers, text.mtp_layer_types = 1, ["full_attention"]
    if not getattr(text, "num_mtp_layers", None):
        return None
    try:
        kinds = getattr(config.get_mtp_config(), "layer_types", None)
        from transformers.modeling_layers import MtpModel
    except (AttributeError, ValueError, ImportError):  # an older version, or layers of no stated kind
        return None
    return config if hasattr(MtpModel, "forward_layer") and ATTENTION.issuperset(kinds or ()) else None
