"""Heads for a base model that exists already, trained on people's text or on the model's own (Stern 2018, section 6).

With the base model frozen, its output and its files stay what they were, to the byte; fine-tuned, it gives up some of
its own quality for heads that are right more often.  A frozen base model may be kept in half precision, as it was
published perhaps, while its heads learn in float32: the hidden states are what it serves with.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_networks import Heads
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from lm_training.data.hidden_states import HiddenStates, load_states
from lm_training.data.loading import load_texts
from lm_training.data.shortlist import fingerprint
from lm_training.families.blockwise import BlockwiseObjective, HeadData
from lm_training.training.training_loop import Process, Trainer
from lm_training.training.training_options import HeadTraining


def train_heads(
    model: BlockwiseLM,
    data: HeadData | Texts,
    validation: HeadData | Texts,
    directory: str | os.PathLike[str],
    options: HeadTraining,
    process: Process | None = None,
    progress: bool = True,
) -> BlockwiseLM:
    """Train the heads of ``model`` in place, or go on with the run in ``directory``, where the finished model is
    written.

    With kept hidden states the frozen base model is run for nothing but measuring block efficiency.

    Raises:
        ValueError: data that do not fit the model, hidden states of another model, or a run in ``directory`` that began
            otherwise.
    """
    process, data, validation = process or Process(), HeadData.of(data), HeadData.of(validation)
    model.heads.requires_grad_(True)
    if not options.fine_tune:
        model.base.requires_grad_(False)
    elif not any(parameter.requires_grad for parameter in model.base.parameters()):
        raise ValueError(
            "expected a base model with parameters that require gradients, to fine-tune it, got one without; load it"
            " anew"
        )
    base = weights_fingerprint(model.base)
    for given in (data, validation):
        if given.states is not None:
            given.states.require_model(base, "the model whose heads are trained")
    model.to(process.device)

    def make_optimizers(model: BlockwiseLM) -> list[torch.optim.Optimizer]:
        groups: list[dict[str, Any]] = [{"params": list(model.heads.parameters()), "lr": options.learning_rate}]
        if options.fine_tune:
            # Some weights are constants, such as Marian's sinusoidal positions.
            taught = [parameter for parameter in model.base.parameters() if parameter.requires_grad]
            groups.append({"params": taught, "lr": options.base_learning_rate})
        return [torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=options.weight_decay)]

    run_identity = {
        "base": base,
        "heads": {"kind": model.heads.kind, **model.heads.settings()},
        "warm_start": _learnt(model.heads),
    }
    run_identity["shortlist"] = fingerprint(model.shortlist)
    objective = BlockwiseObjective(model, data, validation, options, make_optimizers, run_identity)
    Trainer(objective, Path(directory), options, process).run(progress)
    model.eval()
    return model


@torch.no_grad()
def _learnt(heads: Heads) -> str | None:
    """A hash of heads that have learnt something; None for new ones, which hand on any state as it is."""
    state = torch.linspace(-1, 1, heads.hidden_size, dtype=heads.dtype, device=next(heads.parameters()).device)[None]
    new = all(torch.equal(heads.alone(index, state), state) for index in range(heads.num_heads - 1))
    return None if new else weights_fingerprint(heads)


def load_head_data(
    paths: Sequence[Path], validation: Sequence[Path], window: int, with_states: bool = True
) -> tuple[HeadData, HeadData]:
    """What heads learn from and are measured by: the texts of files and directories, with hidden states where all of
    them have some."""
    texts = {path: load_texts(path, window) for path in (*paths, *validation)}
    states = {path: load_states(path, found) for path, found in texts.items()} if with_states else {}
    kept = {path: found for path, found in states.items() if found is not None}

    def joined(chosen: Sequence[Path]) -> HeadData:
        together = HiddenStates.joined([kept[path] for path in chosen]) if len(kept) == len(texts) else None
        return HeadData(Texts.joined([texts[path] for path in chosen]), together)

    return joined(paths), joined(validation)
