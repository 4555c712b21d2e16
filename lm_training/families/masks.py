"""Training non-autoregressive drafters (Xia 2022, section 3.1) on what their teacher writes (`latticebpd distill`).

Of each target a random prefix ``y_1 .. y_p``, 1 <= p < m, is given; the masks behind it are to say the window that
follows, up to the target's end::

    loss = - sum over i in p+1 .. min(p+k, m) of log P(y_i | y_1 .. y_p, x)

As in serving there are always k masks: how many tokens are left is for the drafter to find out.  Masks behind the
target's end have no label.

*Glancing* (Qian 2021): the drafter fills the window once; then as many of its tokens as ``ratio`` times the wrong ones,
chosen at random, are put in place of their masks, and the loss is that of the others.  Nothing outside the window is
ever put in, nor an anchored drafter's first token, which no mask says.  The ratio falls linearly from 0.5 to 0.3.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.decoding.generation_config import beams_ignored
from latticebpd.decoding.loop import generate
from latticebpd.drafters.masks.mask_network import Columns, NonAutoregressiveModel, masked_columns
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.forward import EncodedSource
from latticebpd.target.stock_model import BaseModel
from lm_training.families.translators import PairSampler, nothing
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import DrafterTraining

UNLABELLED = -100


@dataclass(frozen=True, eq=False)
class Windows:
    """Prefixes of targets, and what the masks behind them are to say.

    sources, mask: ``[rows, source length]``.
    columns: the decoder's pass over prefixes and masks.
    labels: ``[rows, windows, slots]``; ``UNLABELLED`` behind the target's end.
    priorities: ``[rows, windows, slots]`` random; glancing reveals those with the lowest. Of a bidirectional drafter,
        every window is a row of its own, ``[rows * windows, 1, slots]``, here, in the labels and in the columns.
    reveal: glancing's ratio.
    weight: what the weighted sum over the labels' losses is multiplied by.
    seed: of the dropout, so that a resumed run equals an unbroken one.
    """

    sources: Tensor
    mask: Tensor
    columns: Columns
    labels: Tensor
    priorities: Tensor
    reveal: float
    weight: float
    seed: int


def glance(predicted: Tensor, labels: Tensor, priorities: Tensor, ratio: float) -> Tensor:
    """``[..., slots]`` bool: the labels to put in place of their masks, ``ratio`` times the wrong ones of each window,
    rounded.

    Args:
        predicted, labels, priorities: ``[..., slots]``; labels are ``UNLABELLED`` outside the window.
    """
    inside = labels != UNLABELLED
    wrong = (inside & (predicted != labels)).sum(dim=-1, keepdim=True)
    order = priorities.masked_fill(~inside, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return inside & (order < (ratio * wrong).round())


class DrafterObjective(Objective[Windows]):
    """Teaches a drafter, on windows of the pairs that a translation model's batches are made of.

    Args:
        drafter: the model, on the device where it is to be trained.
        data, validation: sources and the teacher's translations, each with its end of text.
        serve: tokens per call of a drafter's decoding, for the log; None leaves it out.
        made_of: what a run that goes on must have begun with, beside data and options.
    """

    legacy_defaults: Mapping[str, Any] = {"bidirectional": False}

    def __init__(
        self,
        drafter: NonAutoregressiveModel,
        data: Texts,
        validation: Texts,
        options: DrafterTraining,
        serve: Callable[[NonAutoregressiveModel], float] | None = None,
        run_identity: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(options)
        smallest = options.smallest_block or drafter.block_size
        if not 1 <= smallest <= drafter.block_size:
            raise ValueError(
                f"expected smallest_block from 1 to {drafter.block_size} (the drafter's block size), got {smallest}"
            )
        for name, pairs in (("training", data), ("validation", validation)):
            BaseModel.of(drafter).check_sources(int(pairs.prompt_lengths.max(initial=0)))
            longest = int((pairs.lengths - pairs.prompt_lengths).max(initial=0)) + drafter.block_size
            if longest > drafter.max_positions:
                raise ValueError(
                    f"expected {name} targets that leave room for {drafter.block_size} masks in {drafter.max_positions}"
                    f" positions, got {longest} together; use a smaller block"
                )
        self.options: DrafterTraining = options
        self.drafter, self.validation, self.smallest, self.serve, self._made_of = (
            drafter,
            validation,
            smallest,
            serve,
            run_identity or {},
        )
        self.pairs = PairSampler(drafter.base, data, options.batch_tokens, options.seed)
        self.tokens_per_step = self.pairs.tokens_per_batch

    def batch(self, step: int, part: int, parts: int) -> Windows:
        """Prefixes, windows and priorities are drawn for the whole step, so that every part sees its own rows'
        alike."""
        whole = self.pairs.batch(step, 0, 1)
        rng = np.random.default_rng([self.options.seed, step])
        most = self.drafter.block_size
        slots = min(most, int(self.smallest * ((most + 1) / self.smallest) ** rng.random()))
        targets = [row[row != UNLABELLED].tolist() for row in whole.labels.cpu().numpy()]
        room = (self.drafter.max_positions - max(map(len, targets))) // slots  # a column more could not be placed
        drawn = self.options.windows if self.drafter.bidirectional else min(self.options.windows, room)
        prefixes = [rng.integers(1, max(2, len(target)), drawn).tolist() for target in targets]
        windows = self.windows(whole.sources, whole.mask, targets, prefixes, slots, rng, slice(part, None, parts))
        labels = [
            min(slots, len(target) - prefix) for target, each in zip(targets, prefixes, strict=True) for prefix in each
        ]
        total = float(np.cumsum([0.0, *self.importance(slots)])[labels].sum())
        seed = (self.options.seed * 1_000_003 + step) * 1009 + part
        return replace(windows, reveal=self.options.reveal_ratio(step), weight=parts / (total or 1.0), seed=seed)

    def windows(
        self,
        sources: Tensor,
        mask: Tensor,
        targets: list[list[int]],
        prefixes: list[list[int]],
        slots: int,
        rng: np.random.Generator,
        part: slice,
    ) -> Windows:
        """Part of the rows, whose windows begin behind the given prefixes, as many of every target."""
        device, windows = sources.device, len(prefixes[0])
        priorities = rng.random((len(targets), windows, slots))[part]
        labels = np.full((len(targets), windows, slots), UNLABELLED)
        for row, (target, drawn) in enumerate(zip(targets, prefixes, strict=True)):
            for window, prefix in enumerate(drawn):
                following = target[prefix : prefix + slots]
                labels[row, window, : len(following)] = following
        labels, start, drafter = labels[part], self.pairs.model.start_id, self.drafter
        mine = list(zip(targets[part], prefixes[part], strict=True))
        lengths: list[list[int]] | None
        if drafter.bidirectional:  # a prefix' columns see its masks, so that no other window can share them
            texts = [[start, *target[:prefix]] for target, drawn in mine for prefix in drawn] or [[start]]
            labels, priorities, lengths = labels.reshape(-1, 1, slots), priorities.reshape(-1, 1, slots), None
        else:
            texts = [[start, *target[: max(drawn)]] for target, drawn in mine] or [[start]]
            lengths = [[1 + prefix for prefix in drawn] for _, drawn in mine] or [[1] * windows]
        return Windows(
            sources[part],
            mask[part],
            masked_columns(
                texts, [0] * len(texts), slots, drafter.mask_token_id, lengths, drafter.anchored, drafter.bidirectional
            ),
            torch.from_numpy(labels).to(device),
            torch.from_numpy(priorities).to(device),
            reveal=0.0,
            weight=1.0,
            seed=0,
        )

    def importance(self, slots: int) -> np.ndarray:
        """``[slots]``: what each token of a window weighs."""
        weights: np.ndarray = self.options.slot_decay ** np.arange(slots)
        return weights

    def forward(self, batch: Windows) -> dict[str, Tensor]:
        """``loss``, smoothed, in nats per token of the windows; ``accuracy`` of the first filling; both weighted by
        slot."""
        if not len(batch.sources):  # more parts than sentences
            return {"loss": nothing(self.drafter), "accuracy": torch.zeros(())}
        if self.training:
            torch.manual_seed(batch.seed)
        source = self.encoded(batch)
        inside, columns, right = batch.labels != UNLABELLED, batch.columns, None
        importance = (
            torch.from_numpy(self.importance(inside.shape[2])).to(inside.device, torch.float32).expand(inside.shape)
        )
        scored = inside
        if batch.reveal:
            with torch.no_grad():
                predicted = self.filled(batch, source)
            right = importance[predicted == batch.labels].sum()
            masked = batch.labels.clone()
            masked[:, :, : int(self.drafter.anchored)] = UNLABELLED  # what no mask says, no mask can reveal
            revealed = glance(predicted, masked, batch.priorities, batch.reveal)
            tokens, places = columns.tokens.copy(), revealed.flatten(1).cpu().numpy()
            tokens[np.nonzero(places)[0], columns.slots[places]] = batch.labels[revealed].cpu().numpy()
            columns, scored = replace(columns, tokens=tokens), inside & ~revealed
        logits = self.drafter.logits(self.drafter(source, columns).unflatten(1, inside.shape[1:])[scored])
        smoothing = self.options.label_smoothing
        losses = F.cross_entropy(logits, batch.labels[scored], label_smoothing=smoothing, reduction="none")
        if right is None:  # nothing was revealed, so this filling is the first
            right = importance[inside][logits.detach().argmax(dim=-1) == batch.labels[scored]].sum()
        return {"loss": (losses * importance[scored]).sum() * batch.weight, "accuracy": right * batch.weight}

    def encoded(self, batch: Windows) -> EncodedSource:
        """The sources, encoded once, as many times as each has rows of windows."""
        source, times = self.drafter.encode(batch.sources, batch.mask), len(batch.labels) // len(batch.sources)
        return source.select(torch.arange(len(batch.sources), device=batch.sources.device).repeat_interleave(times))

    def filled(self, batch: Windows, source: EncodedSource) -> Tensor:
        """``[rows, windows, slots]``: the best token of every labelled mask, -1 elsewhere."""
        inside = batch.labels != UNLABELLED
        predicted = torch.full_like(batch.labels, -1)
        hidden = self.drafter(source, batch.columns).unflatten(1, inside.shape[1:])
        predicted[inside] = self.drafter.logits(hidden[inside]).argmax(dim=-1)
        return predicted

    def validate(self) -> dict[str, Any]:
        """Accuracy by place in the window, of windows behind prefixes drawn once and for all; tokens per call as
        served."""
        slots = self.drafter.block_size
        right, count = np.zeros(slots), np.zeros(slots)
        rng = np.random.default_rng(self.options.seed)
        for pairs in self.pairs.held_out(self.validation):
            targets = [row[row != UNLABELLED].tolist() for row in pairs.labels.cpu().numpy()]
            prefixes = [[int(rng.integers(1, max(2, len(target))))] for target in targets]
            batch = self.windows(pairs.sources, pairs.mask, targets, prefixes, slots, rng, slice(None))
            hits = self.filled(batch, self.encoded(batch)) == batch.labels
            right += hits.sum(dim=(0, 1)).cpu().numpy()
            count += (batch.labels != UNLABELLED).sum(dim=(0, 1)).cpu().numpy()
        places = [round(float(hit / n), 4) for hit, n in zip(right, count, strict=True) if n]
        record: dict[str, Any] = {
            "accuracy": round(float(right.sum() / max(1.0, count.sum())), 4),
            "accuracy_by_place": places,
        }
        if self.serve is not None:
            record["tokens_per_call"] = round(self.serve(self.drafter), 4)
        return record

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return adamw_and_muon(self.drafter, self.options, betas=(0.9, 0.98))

    def run_identity(self) -> dict[str, Any]:
        return {"data": self.pairs.data.fingerprint(), **self._made_of}

    def save(self, directory: Path) -> None:
        self.drafter.save_pretrained(directory)


def train_drafter(
    drafter: NonAutoregressiveModel,
    verifier: PreTrainedModel,
    data: Texts,
    validation: Texts,
    directory: str | os.PathLike[str],
    options: DrafterTraining,
    process: Process | None = None,
    progress: bool = True,
) -> NonAutoregressiveModel:
    """Train ``drafter`` in place, or go on with the run in ``directory``, where the finished model is written.

    Args:
        drafter: a model of `NonAutoregressiveModel.like`, or one that is to be taught further.
        verifier: whose decoding the drafter is measured with, now and then.
        data, validation: sources and their translations by the teacher that drafter and verifier share.
    """
    process = process or Process()
    chosen = range(min(options.serving_sources, len(validation)))
    sources = [validation[row][: validation.prompt_lengths[row]].tolist() for row in chosen]
    width = max(map(len, sources), default=0)
    ids = [source + [0] * (width - len(source)) for source in sources]
    mask = [[1] * len(source) + [0] * (width - len(source)) for source in sources]
    verifier = verifier.to(process.device).eval()  # type: ignore[arg-type]

    def serve(drafter: NonAutoregressiveModel) -> float:
        with beams_ignored(verifier):
            return generate(
                verifier, ids, LatticeDrafter(MaskLattices(drafter, 1), Vanilla()), attention_mask=mask, max_new_tokens=128
            ).block_efficiency

    run_identity = {
        "verifier": weights_fingerprint(verifier), "drafter": weights_fingerprint(drafter),
        "block_size": drafter.block_size,
        "anchored": drafter.anchored, "bidirectional": drafter.bidirectional, "dropout": drafter.base.config.dropout,
    }  # fmt: skip
    objective = DrafterObjective(
        drafter.to(process.device), data, validation, options, serve if sources else None, run_identity
    )
    torch.manual_seed(options.seed)
    Trainer(objective, Path(directory), options, process).run(progress)
    drafter.eval()
    return drafter
