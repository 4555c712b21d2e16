"""The target model's states and outputs at every position of a finished text, from one reading of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from latticebpd.models.engine.engine_model import EngineModel
from latticebpd.models.target_model import AnyModel, target_model
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.engine_verifier import EngineVerifier


@dataclass(frozen=True, eq=False)
class TextStates:
    """What a model computed while it read a text of ``n`` tokens; arrays of the engine, tensors of PyTorch.

    hidden: ``[n, hidden]`` final, normalised hidden states.
    layers: ``[n, layers * hidden]`` states after selected layers, concatenated; the last layer's are normalised.
    logits: ``[positions, vocab]`` a tensor: the outputs at the positions that were asked for.
    """

    hidden: Any
    layers: Any
    logits: torch.Tensor


@torch.inference_mode()
def read_text(
    model: AnyModel, text: Sequence[int], positions: range, layers: Sequence[int] = (), source: Sequence[int] = ()
) -> TextStates:
    """Read a text.  positions: whose logits are computed.  layers: from 0.  source: of an encoder–decoder."""
    target = target_model(model)
    if isinstance(target, EngineModel):
        return _read_by_engine(target, text, positions, layers)
    assert isinstance(target, TransformersModel)
    ids = torch.tensor([list(text)], device=target.device)
    if source:
        read = {"input_ids": torch.tensor([list(source)], device=target.device), "decoder_input_ids": ids}
        out = target.model(**read, output_hidden_states=True, use_cache=False)
        states, logits = out.decoder_hidden_states, out.logits[0, positions.start :]
    else:
        options: Any = target.text(ids)
        if target.takes("logits_to_keep"):
            options["logits_to_keep"] = len(text) - positions.start
        out = target.model(**options, output_hidden_states=True, use_cache=False)
        states = out.hidden_states
        logits = out.logits[0, positions.start - len(text) :]
    chosen = [states[layer + 1][0] for layer in layers]
    joined = torch.cat(chosen, dim=-1) if chosen else states[-1].new_empty(len(text), 0)
    return TextStates(states[-1][0], joined, logits[: len(positions)])


def _read_by_engine(target: EngineModel, text: Sequence[int], positions: range, layers: Sequence[int]) -> TextStates:
    verifier = EngineVerifier(target, layers)
    verifier.begin(1)
    hidden = np.concatenate([*verifier.read(0, text)])
    states = verifier.layer_states(0)
    wanted = np.ascontiguousarray(hidden[positions.start : positions.stop])
    logits = torch.from_numpy(target.transformer.logits(wanted, verifier.threads))
    return TextStates(hidden, np.empty((len(hidden), 0), np.float32) if states is None else states, logits)
