"""Small encoder-decoders from sentence pairs: stock Marian models, trained from scratch.

They serve as base models for heads, as verifiers of non-autoregressive drafts, as their teachers, and as models that
Jacobi decoding is measured on.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import MarianConfig, MarianMTModel, PreTrainedModel

from latticebpd.drafters.masks.mask_network import load_verifier
from latticebpd.lattices.texts import Texts
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel
from lm_training.data.batching import padded
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import TranslationTraining


@dataclass(frozen=True)
class TranslationShape:
    """Shape of the model; encoder and decoder are equally wide and share one embedding with the output."""

    hidden_size: int = 192
    encoder_layers: int = 3
    decoder_layers: int = 3
    attention_heads: int = 4
    intermediate_size: int = 768
    max_positions: int = 256
    dropout: float = 0.1


SHAPES = {
    "base": TranslationShape(),
    "small": TranslationShape(
        hidden_size=128, encoder_layers=2, decoder_layers=2, attention_heads=2, intermediate_size=512
    ),
}


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Sentences padded on the right.

    sources, mask: ``[rows, source length]``.  inputs, labels: ``[rows, target length]``; labels are -100 at padding.
    weight: what the sum over this part's label losses is multiplied by.
    """

    sources: Tensor
    mask: Tensor
    inputs: Tensor
    labels: Tensor
    weight: float


def new_translator(shape: TranslationShape, vocab_size: int, eos_id: int, pad_id: int) -> MarianMTModel:
    """A freshly initialised stock model; its decoder starts from the padding token."""
    config = MarianConfig(
        vocab_size=vocab_size,
        d_model=shape.hidden_size,
        encoder_layers=shape.encoder_layers,
        decoder_layers=shape.decoder_layers,
        encoder_attention_heads=shape.attention_heads,
        decoder_attention_heads=shape.attention_heads,
        encoder_ffn_dim=shape.intermediate_size,
        decoder_ffn_dim=shape.intermediate_size,
        max_position_embeddings=shape.max_positions,
        activation_function="relu",
        dropout=shape.dropout,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
        decoder_start_token_id=pad_id,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def load_translator(directory: str | os.PathLike[str]) -> MarianMTModel:
    """A translation model that is to be taught further.

    Raises:
        ValueError: the directory holds none.
    """
    model = load_verifier(directory)
    if not isinstance(model, MarianMTModel):
        raise ValueError(f"{directory}: expected a Marian model, found {model.config.model_type}")
    return model


class PairSampler:
    """Deals sentence pairs out in batches of about one length; every epoch anew.

    Args:
        model: whose padding and start token are used, on the device where batches are wanted.
        data: the pairs.
        batch_tokens: source and target tokens of a batch together, padding included.
    """

    def __init__(self, model: PreTrainedModel, data: Texts, batch_tokens: int, seed: int) -> None:
        self.model, self.data, self.seed = BaseModel.of(model), data, seed
        self.cuts = batch_cuts(data, batch_tokens)
        self.tokens_per_batch = len(data.tokens) // (len(self.cuts) - 1)

    def batch(self, step: int, part: int, parts: int) -> PairBatch:
        """Part of a step's pairs."""
        epoch, index = divmod(step, len(self.cuts) - 1)
        order, turns = _epoch_plan(self.data, self.seed, epoch, len(self.cuts) - 1)
        turn = turns[index]
        rows = order[self.cuts[turn] : self.cuts[turn + 1]]
        labels = int((self.data.lengths[rows] - self.data.prompt_lengths[rows]).sum())
        return self.collate(self.data, rows[part::parts], parts / labels)

    def collate(self, data: Texts, rows: np.ndarray, weight: float) -> PairBatch:
        """Pad the chosen pairs."""
        device, pad = self.model.device, self.model.pad_id or 0
        sources = [data[row][: data.prompt_lengths[row]] for row in rows.tolist()]
        targets = [data[row][data.prompt_lengths[row] :] for row in rows.tolist()]
        source, mask = (torch.from_numpy(array).to(device) for array in padded(sources, pad))
        labels = torch.from_numpy(padded(targets, -100)[0]).to(device)
        inputs = F.pad(labels[:, :-1].masked_fill(labels[:, :-1] < 0, pad), (1, 0), value=self.model.start_id)
        return PairBatch(source, mask, inputs, labels, weight)

    def held_out(self, data: Texts, size: int = 64) -> Iterator[PairBatch]:
        """All of other pairs, from short to long."""
        order = np.argsort(data.lengths, kind="stable")
        for first in range(0, len(order), size):
            yield self.collate(data, order[first : first + size], 1.0)


class TranslationObjective(Objective[PairBatch]):
    """Label-smoothed cross-entropy of the targets, averaged over their tokens.

    Args:
        begins_with: what the model is before it is trained.
    """

    def __init__(
        self,
        model: MarianMTModel,
        data: Texts,
        validation: Texts,
        options: TranslationTraining,
        begins_with: Any = None,
    ) -> None:
        super().__init__(options)
        self.options: TranslationTraining = options
        self.model, self.validation, self.begins_with = model, validation, begins_with
        self.pairs = PairSampler(model, data, options.batch_tokens, options.seed)
        self.tokens_per_step = self.pairs.tokens_per_batch

    def batch(self, step: int, part: int, parts: int) -> PairBatch:
        return self.pairs.batch(step, part, parts)

    def forward(self, batch: PairBatch) -> dict[str, Tensor]:
        """``loss``, smoothed, in nats per target token."""
        if not len(batch.sources):  # more parts than sentences
            return {"loss": nothing(self.model)}
        logits = self.logits(batch)
        smoothing = self.options.label_smoothing
        loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), label_smoothing=smoothing, reduction="sum")
        return {"loss": loss * batch.weight}

    def logits(self, batch: PairBatch) -> Tensor:
        """``[rows, target length, vocab]``."""
        output = self.model(
            input_ids=batch.sources, attention_mask=batch.mask, decoder_input_ids=batch.inputs, use_cache=False
        )
        logits: Tensor = output.logits
        return logits

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
        mean = loss / max(count, 1)
        return {
            "loss": round(mean, 4),
            "perplexity": round(math.exp(min(mean, 700.0)), 3),
            "accuracy": round(right / max(count, 1), 4),
        }

    def run_identity(self) -> dict[str, Any]:
        return {"data": self.pairs.data.fingerprint(), "model": self.begins_with}

    def save(self, directory: Path) -> None:
        self.model.save_pretrained(directory)


def nothing(module: torch.nn.Module) -> Tensor:
    """A loss of 0 that depends on every weight, as the processes of a step expect of each other."""
    return sum((parameter.sum() for parameter in module.parameters()), torch.zeros(())) * 0.0


def _sizes(data: Texts) -> np.ndarray:
    """``[pairs]`` the longer side of each."""
    sizes: np.ndarray = np.maximum(data.prompt_lengths, data.lengths - data.prompt_lengths)
    return sizes


def batch_cuts(data: Texts, batch_tokens: int) -> np.ndarray:
    """``[batches + 1]`` where to cut the pairs, shortest first, so that no batch is padded to more than
    ``batch_tokens``.

    The cuts depend on lengths alone, so every epoch has as many batches as the first.
    """
    cuts, sizes = [0], np.sort(_sizes(data)).tolist()
    for index, size in enumerate(sizes):
        if index > cuts[-1] and 2 * size * (index + 1 - cuts[-1]) > batch_tokens:
            cuts.append(index)
    if not sizes:
        raise ValueError("expected at least one sentence pair to train on, got none")
    return np.array([*cuts, len(sizes)])


def _epoch_plan(data: Texts, seed: int, epoch: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs from short to long, equally long ones in random order, and the order in which the batches come."""
    return _plan(_sizes(data).tobytes(), seed, epoch, batches)


@functools.lru_cache(maxsize=2)
def _plan(sizes: bytes, seed: int, epoch: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([seed, epoch])
    lengths = np.frombuffer(sizes, dtype=np.int64)
    shuffled = generator.permutation(len(lengths))
    return shuffled[np.argsort(lengths[shuffled], kind="stable")], generator.permutation(batches)


def train_translation(
    data: Texts,
    validation: Texts,
    directory: str | os.PathLike[str],
    model: MarianMTModel,
    options: TranslationTraining,
    process: Process | None = None,
    progress: bool = True,
    begins_with: Any = None,
) -> MarianMTModel:
    """Train ``model`` on pairs, or go on with the run in ``directory``; returns the model.

    Args:
        data, validation: pairs as `lm_training.data.pairs.encode_pairs` makes them, or as `distill` writes them.
        model: a model of `new_translator`, or one that is to be taught further.
        begins_with: what the model is before it is trained, a new one's shape, say; by default a hash of its weights.
    """
    process = process or Process()
    limit = int(model.config.max_position_embeddings)
    for name, pairs in (("training", data), ("validation", validation)):
        longest = int(_sizes(pairs).max(initial=0))
        if longest > limit:
            raise ValueError(
                f"expected {name} sentences of at most {limit} tokens (the model's positions), got one of {longest}"
            )
    torch.manual_seed(options.seed)
    begins_with = begins_with or weights_fingerprint(model)
    torch.nn.Module.to(model, process.device)  # `transformers` wraps its own `to` in a way that hides its type
    Trainer(TranslationObjective(model, data, validation, options, begins_with), Path(directory), options, process).run(
        progress
    )
    model.eval()
    return model
