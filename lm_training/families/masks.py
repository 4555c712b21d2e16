"""Training non-autoregressive drafters (Xia 2022, section 3.1) on what their teacher writes (`latticebpd distill`).

A random prefix ``y_1 .. y_p``, 1 <= p < m, of each target is given; the masks after it predict the following window, up
to the target's end::

    loss = - sum over i in p+1 .. min(p+k, m) of log P(y_i | y_1 .. y_p, x)

As in serving there are always k masks, so the drafter does not know how many tokens are left. Masks beyond the target's
end have no label.

*Glancing* (Qian 2021): the drafter fills the window once. Then random tokens of it, ``ratio`` times as many as were
wrong, replace their masks, and the loss is that of the others. Tokens outside the window, and an anchored drafter's
first token, which has no mask, are never revealed. The ratio falls linearly from 0.5 to 0.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor
from transformers import PreTrainedModel

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.drafters import LatticeDrafter, MaskLattices, Vanilla
from latticebpd.drafters.masks.mask_network import Columns, NonAutoregressiveModel, masked_columns
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.verification.forward import EncodedSource
from lm_training.families.translators import PairBatch, PairSampler, zero_loss
from lm_training.training.measures import block_efficiency
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer, rounded
from lm_training.training.training_options import MaskFillerTraining

UNLABELLED = -100


@dataclass(frozen=True, eq=False)
class Windows:
    """Prefixes of targets, and the labels of the masks after them.

    sources, mask: ``[rows, source length]``.
    columns: the decoder's pass over prefixes and masks.
    labels: ``[rows, windows, slots]``; ``UNLABELLED`` beyond the target's end.
    priorities: ``[rows, windows, slots]`` random; glancing reveals the lowest. Of a bidirectional drafter, every
        window is a row, ``[rows * windows, 1, slots]``, here, in the labels and in the columns.
    reveal: glancing's ratio.
    weight: factor of the weighted sum over the labels' losses.
    """

    sources: Tensor
    mask: Tensor
    columns: Columns
    labels: Tensor
    priorities: Tensor
    reveal: float = 0.0
    weight: float = 1.0


def glance(predicted: Tensor, labels: Tensor, priorities: Tensor, ratio: float) -> Tensor:
    """``[..., slots]`` bool: the labels to reveal, in each window ``ratio`` times the number of wrong ones, rounded.

    predicted, labels, priorities: ``[..., slots]``; labels are ``UNLABELLED`` outside the window.
    """
    inside = labels != UNLABELLED
    wrong = (inside & (predicted != labels)).sum(dim=-1, keepdim=True)
    order = priorities.masked_fill(~inside, torch.inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return inside & (order < (ratio * wrong).round())


class MaskFillerObjective(Objective[Windows, MaskFillerTraining]):
    """Trains a drafter on windows of sentence pairs.

    data, validation: sources and the teacher's translations, each with its end of text. serve: tokens per call of a
    drafter's decoding, for the log; None leaves it out.
    """

    def __init__(
        self,
        drafter: NonAutoregressiveModel,
        data: Texts,
        validation: Texts,
        options: MaskFillerTraining,
        serve: Callable[[NonAutoregressiveModel], float] | None = None,
    ) -> None:
        super().__init__(options, data)
        size = drafter.block_size
        self.drafter, self.validation, self.serve = drafter, validation, serve
        self.smallest = options.smallest_block or size
        expect(1 <= self.smallest <= size, f"smallest_block from 1 to {size} (the drafter's block size)", self.smallest)
        for name, pairs in (("training", data), ("validation", validation)):
            TransformersModel.of(drafter).check_sources(int(pairs.prompt_lengths.max(initial=0)))
            longest = int(pairs.answer_lengths.max(initial=0)) + size
            wanted = f"{name} targets that leave room for {size} masks in {drafter.max_positions} positions"
            expect(longest <= drafter.max_positions, wanted, f"{longest} together", "use a smaller block")
        self.pairs = PairSampler(drafter.base, data, options.batch_tokens, options.seed)
        self.tokens_per_step = self.pairs.tokens_per_batch

    def batch(self, step: int, part: int, parts: int) -> Windows:
        """Random numbers are drawn for the whole step, so they do not depend on the parts."""
        pairs, options = self.pairs.batch(step, 0, 1), self.options
        rng = np.random.default_rng([options.seed, step])
        most = self.drafter.block_size
        slots = min(most, int(self.smallest * ((most + 1) / self.smallest) ** rng.random()))
        targets = [row[row != UNLABELLED].tolist() for row in pairs.labels.cpu().numpy()]
        room = (self.drafter.max_positions - max(map(len, targets))) // slots  # windows that the positions suffice for
        count = options.windows if self.drafter.bidirectional else min(options.windows, room)
        drawn = [(target, rng.integers(1, max(2, len(target)), count).tolist()) for target in targets]
        windows = self.windows(pairs, drawn, slots, rng, slice(part, None, parts))
        labels = [min(slots, len(target) - prefix) for target, prefixes in drawn for prefix in prefixes]
        total = float(np.cumsum([0.0, *self.importance(slots)])[labels].sum())
        return replace(windows, reveal=options.reveal_ratio(step), weight=parts / (total or 1.0))

    def windows(
        self, pairs: PairBatch, drawn: list[tuple[list[int], list[int]]], slots: int, rng: Generator, part: slice
    ) -> Windows:
        """Part of the rows, with windows after the prefixes drawn from each target, the same number for all."""
        device, windows = pairs.sources.device, len(drawn[0][1])
        priorities = rng.random((len(drawn), windows, slots))[part]
        labels = np.full((len(drawn), windows, slots), UNLABELLED)
        for row, (target, prefixes) in enumerate(drawn):
            for window, prefix in enumerate(prefixes):
                following = target[prefix : prefix + slots]
                labels[row, window, : len(following)] = following
        labels, start, drafter = labels[part], self.pairs.model.start_id, self.drafter
        mine = drawn[part]
        lengths: list[list[int]] | None
        if drafter.bidirectional:  # a prefix attends to its masks, so windows cannot share it
            texts = [[start, *target[:prefix]] for target, prefixes in mine for prefix in prefixes] or [[start]]
            labels, priorities, lengths = labels.reshape(-1, 1, slots), priorities.reshape(-1, 1, slots), None
        else:
            texts = [[start, *target[: max(prefixes)]] for target, prefixes in mine] or [[start]]
            lengths = [[1 + prefix for prefix in prefixes] for _, prefixes in mine] or [[1] * windows]
        layout = (lengths, drafter.anchored, drafter.bidirectional)
        columns = masked_columns(texts, [0] * len(texts), slots, drafter.mask_token_id, *layout)
        moved_labels, moved = (torch.from_numpy(array).to(device) for array in (labels, priorities))
        return Windows(pairs.sources[part], pairs.mask[part], columns, moved_labels, moved)

    def importance(self, slots: int) -> np.ndarray:
        """``[slots]`` weights of a window's tokens."""
        return self.options.slot_decay ** np.arange(slots)

    def forward(self, batch: Windows) -> dict[str, Tensor]:
        """``loss``, smoothed, in nats per token of the windows; ``accuracy`` before glancing; both weighted by slot."""
        if not len(batch.sources):  # more parts than sentences
            return {"loss": zero_loss(self.drafter), "accuracy": torch.zeros(())}
        source = self.encoded(batch)
        inside, columns, right = batch.labels != UNLABELLED, batch.columns, None
        weights = torch.from_numpy(self.importance(inside.shape[2])).to(inside.device, torch.float32)
        importance = weights.expand(inside.shape)
        scored = inside
        if batch.reveal:
            with torch.no_grad():
                predicted = self.filled(batch, source)
            right = importance[predicted == batch.labels].sum()
            masked = batch.labels.clone()
            masked[:, :, : int(self.drafter.anchored)] = UNLABELLED  # has no mask to replace
            revealed = glance(predicted, masked, batch.priorities, batch.reveal)
            tokens, slots = columns.tokens.copy(), revealed.flatten(1).cpu().numpy()
            tokens[np.nonzero(slots)[0], columns.slots[slots]] = batch.labels[revealed].cpu().numpy()
            columns, scored = replace(columns, tokens=tokens), inside & ~revealed
        logits = self.drafter.logits(self.drafter(source, columns).unflatten(1, inside.shape[1:])[scored])
        smoothing = self.options.label_smoothing
        losses = F.cross_entropy(logits, batch.labels[scored], label_smoothing=smoothing, reduction="none")
        if right is None:  # without glancing
            right = importance[inside][logits.detach().argmax(dim=-1) == batch.labels[scored]].sum()
        return {"loss": (losses * importance[scored]).sum() * batch.weight, "accuracy": right * batch.weight}

    def encoded(self, batch: Windows) -> EncodedSource:
        """The sources, encoded once and repeated for their rows of windows."""
        source, times = self.drafter.encode(batch.sources, batch.mask), len(batch.labels) // len(batch.sources)
        return source.select(torch.arange(len(batch.sources), device=batch.sources.device).repeat_interleave(times))

    def filled(self, batch: Windows, source: EncodedSource) -> Tensor:
        """``[rows, windows, slots]``: the best token of every labelled mask, -1 for others."""
        inside = batch.labels != UNLABELLED
        predicted = torch.full_like(batch.labels, -1)
        hidden = self.drafter(source, batch.columns).unflatten(1, inside.shape[1:])
        predicted[inside] = self.drafter.logits(hidden[inside]).argmax(dim=-1)
        return predicted

    def validate(self) -> dict[str, Any]:
        """Accuracy by slot of windows after fixed random prefixes; tokens per call of decoding."""
        slots = self.drafter.block_size
        right, count = np.zeros(slots), np.zeros(slots)
        rng = np.random.default_rng(self.options.seed)
        for pairs in self.pairs.held_out(self.validation):
            targets = [row[row != UNLABELLED].tolist() for row in pairs.labels.cpu().numpy()]
            drawn = [(target, [int(rng.integers(1, max(2, len(target))))]) for target in targets]
            batch = self.windows(pairs, drawn, slots, rng, slice(None))
            right += (self.filled(batch, self.encoded(batch)) == batch.labels).sum(dim=(0, 1)).cpu().numpy()
            count += (batch.labels != UNLABELLED).sum(dim=(0, 1)).cpu().numpy()
        record: dict[str, Any] = {
            "accuracy": round(float(right.sum() / max(1.0, count.sum())), 4),
            "accuracy_by_slot": rounded(hit / n for hit, n in zip(right, count, strict=True) if n),
        }
        if self.serve is not None:
            record["tokens_per_call"] = round(self.serve(self.drafter), 4)
        return record

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return adamw_and_muon(self.drafter, self.options, betas=(0.9, 0.98))

    def save(self, directory: Path) -> None:
        self.drafter.save_pretrained(directory)


def train_mask_filler(
    drafter: NonAutoregressiveModel,
    verifier: PreTrainedModel,
    data: Texts,
    validation: Texts,
    directory: PathLike,
    options: MaskFillerTraining,
    process: Process | None = None,
) -> NonAutoregressiveModel:
    """Train ``drafter`` in place, or resume the run in ``directory``, where the finished model is written.

    verifier: decodes validation sources with the drafter, to measure tokens per call. data, validation: sources and
    their translations by the common teacher of drafter and verifier.
    """
    process = process or Process()
    sources, count = validation.prompts(), min(options.serving_sources, len(validation))
    verifier = verifier.to(process.device).eval()  # type: ignore[arg-type]

    def serve(drafter: NonAutoregressiveModel) -> float:
        return block_efficiency(verifier, LatticeDrafter(MaskLattices(drafter, 1), Vanilla()), sources, count, 128)

    identity = {
        "verifier": weights_fingerprint(verifier),
        "drafter": weights_fingerprint(drafter),
        "block_size": drafter.block_size,
        "anchored": drafter.anchored,
        "bidirectional": drafter.bidirectional,
        "dropout": drafter.base.config.dropout,
    }
    drafter = drafter.to(process.device)
    objective = MaskFillerObjective(drafter, data, validation, options, serve if count else None)
    torch.manual_seed(options.seed)
    Trainer(objective, Path(directory), options, process, identity).run()
    return drafter
