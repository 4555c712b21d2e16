"""Training small translation models on sentence pairs: stock Marian models.

They serve as target models with heads, as verifiers and teachers of non-autoregressive drafters, and for Jacobi
decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MarianMTModel, PreTrainedModel

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.drafters.registry import check_decodes
from latticebpd.lattices.texts import Texts, padded
from latticebpd.models.load_target import load_stock
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel
from lm_training.families.shapes import TranslationShape
from lm_training.training.measures import token_measures
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import TranslationTraining

HELD_OUT_ROWS = 64
"""Pairs that are validated together."""


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Sentences padded on the right.

    sources, mask: ``[rows, source length]``.  inputs, labels: ``[rows, target length]``; labels are -100 at padding.
    weight: factor of the sum over this part's label losses.
    """

    sources: Tensor
    mask: Tensor
    inputs: Tensor
    labels: Tensor
    weight: float


def new_translator(shape: TranslationShape, vocab_size: int, eos_id: int, pad_id: int) -> MarianMTModel:
    """A freshly initialised stock model; its decoder starts from the padding token."""
    tokens = {"eos_token_id": eos_id, "pad_token_id": pad_id, "decoder_start_token_id": pad_id}
    return shape.new_model(vocab_size=vocab_size, **tokens)


def load_translator(directory: PathLike) -> MarianMTModel:
    """A translation model to train further; ValueError for a directory without one."""
    check_decodes(Path(directory))
    model = load_stock(directory)
    if not isinstance(model, MarianMTModel):
        raise ValueError(f"{directory}: expected a Marian model, found {model.config.model_type}")
    return model


class PairSampler:
    """Makes batches of sentence pairs of similar length, in another order every epoch.

    batch_tokens: source and target tokens of a batch together, padding included.
    """

    def __init__(self, model: PreTrainedModel, data: Texts, batch_tokens: int, seed: int) -> None:
        self.model, self.data, self.seed = TransformersModel.of(model), data, seed
        self.cuts = batch_cuts(data, batch_tokens)
        self.tokens_per_batch = len(data.tokens) // (len(self.cuts) - 1)

    def batch(self, step: int, part: int, parts: int) -> PairBatch:
        """Part of a step's pairs."""
        batches = len(self.cuts) - 1
        epoch, index = divmod(step, batches)
        order, turns = _epoch_plan(_sizes(self.data).tobytes(), self.seed, epoch, batches)
        rows = order[self.cuts[turns[index]] : self.cuts[turns[index] + 1]]
        return self.collate(self.data, rows[part::parts], parts / int(self.data.answer_lengths[rows].sum()))

    def collate(self, data: Texts, rows: np.ndarray, weight: float) -> PairBatch:
        """Pad the chosen pairs."""
        device, pad = self.model.device, self.model.pad_id or 0
        sources = [data[row][: data.prompt_lengths[row]] for row in rows.tolist()]
        targets = [data[row][data.prompt_lengths[row] :] for row in rows.tolist()]
        source, mask = (torch.from_numpy(array).to(device) for array in padded(sources, pad))
        labels = torch.from_numpy(padded(targets, -100)[0]).to(device)
        inputs = F.pad(labels[:, :-1].masked_fill(labels[:, :-1] < 0, pad), (1, 0), value=self.model.start_id)
        return PairBatch(source, mask, inputs, labels, weight)

    def held_out(self, data: Texts) -> Iterator[PairBatch]:
        """Batches of all pairs of another set, from short to long."""
        order = np.argsort(data.lengths, kind="stable")
        for first in range(0, len(order), HELD_OUT_ROWS):
            yield self.collate(data, order[first : first + HELD_OUT_ROWS], 1.0)


class TranslationObjective(Objective[PairBatch, TranslationTraining]):
    """Label-smoothed cross-entropy of the targets, averaged over their tokens."""

    def __init__(self, model: MarianMTModel, data: Texts, validation: Texts, options: TranslationTraining) -> None:
        super().__init__(options, data)
        self.model, self.validation = model, validation
        self.pairs = PairSampler(model, data, options.batch_tokens, options.seed)
        self.tokens_per_step = self.pairs.tokens_per_batch

    def batch(self, step: int, part: int, parts: int) -> PairBatch:
        return self.pairs.batch(step, part, parts)

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """``loss``, smoothed, in nats per target token."""
        if not len(batch.sources):  # more parts than sentences
            return {"loss": zero_loss(self.model)}
        logits = self.logits(batch)
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=smoothing, reduction="sum")
        return {"loss": loss * batch.weight}

    def logits(self, batch: PairBatch) -> Tensor:
        """``[rows, target length, vocab]``."""
        read = {"input_ids": batch.sources, "attention_mask": batch.mask, "decoder_input_ids": batch.inputs}
        return self.model(**read, use_cache=False).logits

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return adamw_and_muon(self.model, self.options, betas=(0.9, 0.98))

    def validate(self) -> dict[str, Any]:
        """Cross-entropy without smoothing, perplexity and accuracy per target token of the held-out pairs."""
        loss, right, count = 0.0, 0, 0
        for batch in self.pairs.held_out(self.validation):
            logits, labels = self.logits(batch).flatten(0, 1), batch.labels.flatten()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
            count += int((labels >= 0).sum())
        return token_measures(loss, right, count, digits=3)


def zero_loss(module: torch.nn.Module) -> Tensor:
    """A loss of 0 that depends on every weight, as DistributedDataParallel requires."""
    return sum((parameter.sum() for parameter in module.parameters()), torch.zeros(())) * 0.0


def _sizes(data: Texts) -> np.ndarray:
    """``[pairs]`` the longer side of each."""
    return np.maximum(data.prompt_lengths, data.answer_lengths)


def batch_cuts(data: Texts, batch_tokens: int) -> np.ndarray:
    """``[batches + 1]`` cuts of the pairs, shortest first, into batches of at most ``batch_tokens``, padding included.

    The cuts depend only on lengths, so all epochs have the same number of batches.
    """
    cuts, sizes = [0], np.sort(_sizes(data)).tolist()
    for index, size in enumerate(sizes):
        if index > cuts[-1] and 2 * size * (index + 1 - cuts[-1]) > batch_tokens:
            cuts.append(index)
    expect(sizes, "at least one sentence pair to train on")
    return np.array([*cuts, len(sizes)])


@functools.lru_cache(maxsize=2)
def _epoch_plan(sizes: bytes, seed: int, epoch: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs from short to long, equally long ones in random order, and the order of the batches."""
    generator = np.random.default_rng([seed, epoch])
    lengths = np.frombuffer(sizes, dtype=np.int64)
    shuffled = generator.permutation(len(lengths))
    return shuffled[np.argsort(lengths[shuffled], kind="stable")], generator.permutation(batches)


def train_translation(
    data: Texts,
    validation: Texts,
    directory: PathLike,
    model: MarianMTModel,
    options: TranslationTraining,
    process: Process | None = None,
    initial: Any = None,
) -> MarianMTModel:
    """Train ``model`` in place on pairs, or resume the run in ``directory``, where the finished model is written.

    initial: what identifies the untrained model, such as a new one's shape; by default a hash of its weights.
    """
    limit = int(model.config.max_position_embeddings)
    for name, pairs in (("training", data), ("validation", validation)):
        longest = int(_sizes(pairs).max(initial=0))
        wanted = f"{name} sentences of at most {limit} tokens (the model's positions)"
        expect(longest <= limit, wanted, f"one of {longest}")
    torch.manual_seed(options.seed)
    process, identity = process or Process(), {"model": initial or weights_fingerprint(model)}
    torch.nn.Module.to(model, process.device)  # the type of `transformers`' own `to` is hidden
    objective = TranslationObjective(model, data, validation, options)
    Trainer(objective, Path(directory), options, process, identity).run()
    return model
