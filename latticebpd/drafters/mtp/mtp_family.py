"""The family of multi-token prediction (MTP) layers, which a model's own checkpoint brings (DeepSeek, GLM, Qwen).

They were trained with the model, so they draft without further training.
"""

from __future__ import annotations

from pathlib import Path

from latticebpd.drafters.family import DrafterLattices, LoadOptions, Target
from latticebpd.drafters.mtp.mtp_checkpoints import has_mtp

DRAFTS_ONLY = None
recognises = has_mtp


def runs_beside_engine(path: Path) -> bool:
    return False


def load(path: Path, loaded: Target, options: LoadOptions) -> DrafterLattices:
    """The MTP layers of the target's own folder."""
    from latticebpd.drafters.mtp.mtp_checkpoints import load_mtp
    from latticebpd.drafters.mtp.mtp_lattices import MtpLattices
    from latticebpd.models.transformers.transformers_model import TransformersModel

    try:
        mtp = load_mtp(TransformersModel.of(loaded.target).model, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return MtpLattices(mtp, loaded.target)
