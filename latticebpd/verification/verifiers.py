"""The verifier of a target model."""

from __future__ import annotations

from typing import Any

from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import TargetModel
from latticebpd.verification.engine_verifier import EngineVerifier
from latticebpd.verification.verifier import Verifier


def verifier_of(
    target: TargetModel, source: Any = None, use_cache: bool = True, layers: tuple[int, ...] = ()
) -> Verifier:
    """The fastest verifier that is correct for a target model; ValueError if it has none.

    source: an encoder–decoder's `EncodedSource`.  use_cache: False reads every text from the beginning at every call;
    the engine, whose results do not depend on it, keeps its cache.  layers: those whose states are kept, from 0.
    """
    if isinstance(target, EngineModel):
        return EngineVerifier(target, layers)
    from latticebpd.models.transformers.transformers_model import TransformersModel
    from latticebpd.verification.verifier_choice import verifier_for

    return verifier_for(TransformersModel.of(target), source, use_cache, layers)
