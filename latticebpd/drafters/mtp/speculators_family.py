"""The family of MTP drafters of ``speculators``: a layer as Qwen's, trained further, in a folder of its own."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.torch import load_file, save_file

from latticebpd.checks import expect
from latticebpd.drafters.family import DrafterLattices, LoadOptions, Target
from latticebpd.drafters.mtp.mtp_checkpoints import load_mtp
from latticebpd.drafters.mtp.mtp_lattices import MtpLattices
from latticebpd.models.transformers.checkpoints import safetensors_in
from latticebpd.models.transformers.transformers_model import TransformersModel

DRAFTS_ONLY = "an MTP drafter"
LAYER = "mtp_layers.0."
NAMES = {
    f"{LAYER}input_proj.": "mtp.fc.", f"{LAYER}token_layernorm.": "mtp.pre_fc_norm_embedding.",
    f"{LAYER}hidden_layernorm.": "mtp.pre_fc_norm_hidden.", f"{LAYER}final_layernorm.": "mtp.norm.",
    LAYER: "mtp.layers.0.",
}  # fmt: skip
"""Of tensors, in Qwen's own checkpoints."""


class FurtherTrainedLattices(MtpLattices):
    """Of a drafter with a path of its own."""

    uses_target_calibration = False

    def default_system(self, rescored: bool) -> str:
        return super().default_system(rescored).removeprefix("copies+")


def _config(path: Path) -> dict[str, Any]:
    try:
        record = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def recognises(path: Path) -> bool:
    return _config(path).get("speculators_model_type") == "mtp"


def runs_beside_engine(path: Path) -> bool:
    return False


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The drafter of a folder, which must be for a model of the target's kind and size."""
    model, layer = TransformersModel.of(loaded.target), _config(path).get("transformer_layer_config") or {}
    ours, theirs = (
        f"{each.get('model_type')} models of {each.get('hidden_size')} numbers and {each.get('vocab_size')} tokens"
        for each in (model.config.to_dict(), layer)
    )
    expect(ours == theirs, f"a drafter for {ours}", f"one for {theirs}", of=path)
    tensors = {}
    for file in safetensors_in(path, "model.safetensors"):
        for name, tensor in load_file(file).items():
            begin = next((begin for begin in NAMES if name.startswith(begin)), "")
            tensors[NAMES.get(begin, "") + name.removeprefix(begin)] = tensor
    with TemporaryDirectory() as renamed:
        save_file(tensors, Path(renamed, "model.safetensors"))
        try:
            mtp = load_mtp(model.model, Path(renamed))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
    return FurtherTrainedLattices(mtp, loaded.target)
