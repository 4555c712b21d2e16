"""Training blockwise language models: the objective, and a small model from scratch (Stern 2018, section 6).

The loss of a step is ``base_weight`` times the base model's mean cross-entropy (nothing where it is frozen) plus the
weighted mean over heads 2..h of each head's mean cross-entropy, over all labels of the step's sequences.  Head ``i`` at
position ``t`` has the label ``t + i`` if that token follows the prompt and the hidden state at ``t`` is one from which a
draft could start, that of the prompt's last token or of a later one.  An encoder-decoder's encoder reads the prompt; its
decoder's text begins with the start token, in the prompt's place.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from latticebpd.decoding.loop import generate
from latticebpd.drafting import VanillaDrafter
from latticebpd.lattices.texts import Texts
from latticebpd.models.base import BaseModel
from latticebpd.models.blockwise import BlockwiseLM
from latticebpd.models.heads import BlockHeads
from lm_training.data.batching import padded, rows_of_step
from lm_training.neural.muon import Muon
from lm_training.neural.selection import EveryHead, OneHeadPerPosition, Selection
from lm_training.neural.training import LoopOptions, Objective, Process, Trainer, trapezoid

TOP = (1, 4, 16)
"""A head's accuracy is measured among its so many best tokens."""


@dataclass(frozen=True, eq=False)
class Labels:
    """What one predictor is to say.

    positions: ``[n]`` rows of the batch's flattened hidden states.  tokens: ``[n]``.
    weights: ``[n]``; their sum's mean over the parts of a step is expected to be 1.
    """

    positions: Tensor
    tokens: Tensor
    weights: Tensor


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Texts padded on the right, and their labels.

    inputs: ``[rows, length]``.  labels: of head 1 (the base model), 2, ..., h.
    sources, mask: ``[rows, source length]``, what an encoder-decoder's encoder reads, and 1 where that is no padding.
    """

    inputs: Tensor
    labels: list[Labels]
    sources: Tensor | None = None
    mask: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ModelTexts:
    """What a base model reads and writes.

    texts: sequences that it continues; an encoder-decoder's begin with its start token alone.
    sources: what its encoder reads, one for each text; None for a causal LM.
    """

    texts: Texts
    sources: Texts | None

    @classmethod
    def of(cls, base: PreTrainedModel, data: Texts, name: str) -> ModelTexts:
        """Prompts and what follows them, as ``base`` takes them; ValueError where vocabulary or positions do not fit."""
        stock = BaseModel.of(base)
        read = cls(data.answers(stock.start_id), data.prompts()) if stock.encodes else cls(data, None)
        limit = stock.max_positions
        for part, ids in ((read.texts, stock.vocab_size), (read.sources, stock.source_vocab_size)):
            if part is None:
                continue
            highest, longest = int(part.tokens.max(initial=0)), int(part.lengths.max(initial=0))
            if highest >= ids:
                raise ValueError(
                    f"expected {name} token ids below {ids} (the model's vocabulary), got {highest}; "
                    "was the text encoded with another tokenizer?"
                )
            if limit is not None and longest > limit:
                raise ValueError(f"expected {name} sequences of at most {limit} tokens (the model's positions), got one of {longest}")
        return read

    def __len__(self) -> int:
        return len(self.texts)


class BlockwiseObjective(Objective):
    """Teaches heads, and the base model if any of its parameters require gradients.

    Args:
        model: the model, on the device where it is to be trained.
        data: what to learn.
        validation: the same kind of data, not among ``data``.
        batch_size: sequences per update, all parts together.
        make_optimizers: from the model to its optimizers.
        selection: which pairs of head and position are scored.
        base_weight: weight of the base model's own loss; 0 leaves it out.
        head_weights: ``[heads - 1]`` relative weights of heads 2..h; equal by default.
        validation_sequences: so many of ``validation`` are measured.
        serving_prompts: so many validation prompts are decoded with vanilla drafts, as a user would.
    """

    def __init__(
        self,
        model: BlockwiseLM,
        data: Texts,
        validation: Texts,
        batch_size: int,
        make_optimizers: Callable[[BlockwiseLM], list[torch.optim.Optimizer]],
        selection: Selection,
        base_weight: float = 0.0,
        head_weights: tuple[float, ...] | None = None,
        seed: int = 0,
        validation_sequences: int = 16,
        serving_prompts: int = 0,
        record: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.data, self.validation = ModelTexts.of(model.base, data, "training"), ModelTexts.of(model.base, validation, "validation")
        if int(self.data.texts.lengths.max(initial=0)) < 3:
            raise ValueError("expected training sequences of at least 3 tokens (a prompt and labels for two heads), got none")
        weights = head_weights or (1.0,) * (model.num_heads - 1)
        if len(weights) != model.num_heads - 1 or min(weights) < 0 or sum(weights) <= 0:
            raise ValueError(f"expected {model.num_heads - 1} head weights >= 0, not all 0 (heads 2 to {model.num_heads}), got {weights}")
        self.model = model
        self.batch_size, self.make_optimizers, self.selection, self.seed = batch_size, make_optimizers, selection, seed
        self.base_weight = base_weight
        self.head_weights = np.array(weights) / sum(weights)
        self.validation_sequences, self.serving_prompts = validation_sequences, serving_prompts
        self.record = record or {}
        self.frozen = not any(parameter.requires_grad for parameter in model.base.parameters())
        self.tokens_per_step = round(batch_size * len(data.tokens) / len(data))

    def batch(self, step: int, part: int, parts: int) -> HeadBatch:
        """Sequences come in a fixed random order, every one once per epoch; ``parts`` deal a step's sequences out."""
        if parts > self.batch_size:
            raise ValueError(f"expected a batch of at least {parts} sequences, one for each part, got {self.batch_size}; use fewer parts")
        chosen = rows_of_step(len(self.data), self.batch_size, step, self.seed)
        return self.labelled(self.data, chosen, self.selection, [self.seed, step], part, parts)

    def labelled(
        self, data: ModelTexts, chosen: list[int], selection: Selection, seed: list[int], part: int = 0, parts: int = 1
    ) -> HeadBatch:
        """The labels of part of the chosen sequences."""
        heads, texts, device = self.model.num_heads, data.texts, self.model.base.device
        generated = (texts.lengths[chosen] - texts.prompt_lengths[chosen])[:, None]
        # [heads]: labels of each head in the whole step, so that every part weighs its own alike.
        counts = np.maximum(0, generated - np.arange(heads)).sum(axis=0)
        mine = range(part, len(chosen), parts)
        inputs, _ = padded([texts[chosen[slot]] for slot in mine], 0)
        length = inputs.shape[1]
        weights = np.zeros((heads, len(mine), length))
        ahead = np.arange(1, heads + 1)[:, None]
        for row, slot in enumerate(mine):
            tokens = int(texts.lengths[chosen[slot]])
            place = np.arange(tokens)
            labelled = (place >= texts.prompt_lengths[chosen[slot]] - 1) & (place + ahead < tokens)
            weights[0, row, :tokens] = labelled[0]
            row_rng, step_rng = np.random.default_rng([*seed, slot + 1]), np.random.default_rng([*seed, 0])
            weights[1:, row, :tokens] = selection.weights(labelled[1:], row_rng, step_rng)
        labels = []
        for head in range(heads):
            rows, places = np.nonzero(weights[head])
            share = weights[head, rows, places] * parts / max(1, counts[head])
            arrays = (rows * length + places, inputs[rows, places + head + 1], share.astype(np.float32))
            labels.append(Labels(*(torch.from_numpy(array).to(device) for array in arrays)))
        read = [inputs]
        if data.sources is not None:
            read += padded([data.sources[chosen[slot]] for slot in mine], BaseModel.of(self.model).pad_id or 0)
        tensors = [torch.from_numpy(array).to(device) for array in read]
        return HeadBatch(tensors[0], labels, *tensors[1:])

    def hidden(self, batch: HeadBatch) -> Tensor:
        """``[rows * length, hidden]`` the base model's final, normalised hidden states."""
        base, read = BaseModel.of(self.model), {}
        if batch.sources is not None:
            encoded = base.encoder(input_ids=batch.sources, attention_mask=batch.mask).last_hidden_state
            read = {"encoder_hidden_states": encoded, "encoder_attention_mask": batch.mask}
        hidden: Tensor = base.decoder(input_ids=batch.inputs, use_cache=False, **read).last_hidden_state
        return hidden.flatten(0, 1)

    def forward(self, batch: HeadBatch) -> dict[str, Tensor]:
        """``loss``; ``base_loss``, where the base model is taught; ``head_losses``: ``[heads - 1]``; all in nats."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.hidden(batch).to(self.model.heads.dtype)
        output = self.model.projection
        heads = self.model.heads
        losses = []
        for index, labels in enumerate(batch.labels[1:]):
            states = heads.alone(index, hidden[labels.positions])
            losses.append(_weighted_loss(heads.project(index, states, output), labels))
        head_losses = torch.stack(losses)
        loss = head_losses @ torch.as_tensor(self.head_weights, dtype=head_losses.dtype, device=head_losses.device)
        values = {"head_losses": head_losses}
        if self.base_weight:
            base_loss = _weighted_loss(output(hidden[batch.labels[0].positions]), batch.labels[0])
            loss, values = loss + self.base_weight * base_loss, {"base_loss": base_loss, **values}
        return {"loss": loss, **values}

    def train(self, mode: bool = True) -> BlockwiseObjective:
        """As ever, but a frozen base model stays as it serves: without dropout."""
        super().train(mode)
        if self.frozen:
            self.model.base.eval()
        return self

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.make_optimizers(self.model)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Mean cross-entropy of every predictor, the heads' accuracy among their best tokens, and block efficiency as served."""
        heads, count = self.model.heads, np.zeros(self.model.num_heads)
        loss, hits = np.zeros_like(count), np.zeros((len(TOP), len(count)))
        output = self.model.projection
        for index in range(min(self.validation_sequences, len(self.validation))):
            batch = self.labelled(self.validation, [index], EveryHead(), [self.seed])
            hidden = self.hidden(batch).to(heads.dtype)
            for head, labels in enumerate(batch.labels):
                states = hidden[labels.positions]
                logits = (heads.project(head - 1, heads.alone(head - 1, states), output) if head else output(states)).float()
                loss[head] += float(F.cross_entropy(logits, labels.tokens, reduction="sum"))
                rank = (logits > logits.gather(1, labels.tokens[:, None])).sum(dim=1)
                hits[:, head] += [int((rank < top).sum()) for top in TOP]
                count[head] += len(labels.tokens)
        if not count.all():
            return {}
        mean = loss / count
        record: dict[str, Any] = {
            "loss": round(float(mean[1:] @ self.head_weights), 4),
            "base_loss": round(float(mean[0]), 4),
            "base_perplexity": round(math.exp(min(mean[0], 700.0)), 2),
            "head_losses": [round(float(value), 4) for value in mean[1:]],
            "head_accuracy": {
                f"top-{top}": [round(float(share), 4) for share in row[1:] / count[1:]] for top, row in zip(TOP, hits, strict=True)
            },
        }
        if self.serving_prompts:
            record["serving_block_efficiency"] = round(self.serve(), 4)
        return record

    def serve(self, max_new_tokens: int = 64) -> float:
        """Block efficiency of decoding validation prompts with vanilla drafts, pooled."""
        prompts = self.validation.sources or self.validation.texts.prompts()
        ids, mask = padded([prompts[index] for index in range(min(self.serving_prompts, len(prompts)))], 0)
        drafter = VanillaDrafter(self.model)
        out = generate(self.model, ids, drafter, attention_mask=mask, max_new_tokens=max_new_tokens)  # type: ignore[arg-type]
        return out.block_efficiency

    def options(self) -> dict[str, Any]:
        return self.record

    def save(self, directory: Path) -> None:
        self.model.save_pretrained(directory)

    def save_whole(self, directory: Path, weights: dict[str, Tensor]) -> None:
        self.model.save_pretrained(directory, weights={name.removeprefix("model."): tensor for name, tensor in weights.items()})


def _weighted_loss(logits: Tensor, labels: Labels) -> Tensor:
    return (F.cross_entropy(logits.float(), labels.tokens, reduction="none") * labels.weights).sum()


@dataclass(frozen=True)
class ModelShape:
    """Shape of the small decoder-only transformer (Llama's layout: rotary positions, gated feed-forward layers)."""

    vocab_size: int = 8192
    hidden_size: int = 256
    num_layers: int = 4
    attention_heads: int = 4
    intermediate_size: int = 704
    num_heads: int = 9
    head_intermediate_size: int = 160
    max_positions: int = 1024


@dataclass(frozen=True)
class TrainingOptions(LoopOptions):
    """How to train from scratch.  Lengths are in tokens; the learning rate warms up, stays, and falls linearly to zero."""

    steps: int = 6000
    batch_size: int = 8
    sequence_length: int = 256
    learning_rate: float = 2e-3
    muon_learning_rate: float = 5e-3
    weight_decay: float = 0.01
    warmup_steps: int = 100
    decay_fraction: float = 0.3
    head_positions: float = 0.25
    seed: int = 0


def new_model(shape: ModelShape, eos_id: int, tokenizer_fingerprint: str | None = None) -> BlockwiseLM:
    """A freshly initialised model on stock ``transformers`` classes."""
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.attention_heads,
        num_key_value_heads=shape.attention_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        bos_token_id=eos_id,
        eos_token_id=eos_id,
        pad_token_id=eos_id,
    )
    heads = BlockHeads(shape.hidden_size, shape.num_heads, shape.head_intermediate_size)
    return BlockwiseLM(LlamaForCausalLM(config), heads, tokenizer_fingerprint)


def make_optimizers(model: BlockwiseLM, options: TrainingOptions) -> list[torch.optim.Optimizer]:
    """Muon for the transformer's matrices, AdamW for embedding, norms and heads."""
    embedding = model.base.get_input_embeddings().weight
    matrices = [p for p in model.base.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    return [
        torch.optim.AdamW(others, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay),
        Muon(matrices, lr=options.muon_learning_rate, weight_decay=options.weight_decay, momentum=0.95),
    ]


def train_blockwise(
    corpus: np.ndarray,
    validation: np.ndarray,
    directory: str | os.PathLike[str],
    shape: ModelShape,
    options: TrainingOptions,
    eos_id: int,
    tokenizer_fingerprint: str | None = None,
    process: Process | None = None,
    progress: bool = True,
) -> BlockwiseLM:
    """Train a base model and its heads together on token ids, or go on with the run in ``directory``; returns the model."""
    process = process or Process()
    if options.fsdp:
        raise ValueError("expected whole weights on every process, since Muon updates matrices as wholes; leave fsdp out")
    torch.manual_seed(options.seed)
    model = new_model(shape, eos_id, tokenizer_fingerprint).to(process.device)
    span = options.sequence_length + shape.num_heads  # every position has a label for every head
    objective = BlockwiseObjective(
        model,
        Texts.of_corpus(corpus, span),
        Texts.of_corpus(validation, min(span, len(validation))),
        options.batch_size,
        lambda model: make_optimizers(model, options),
        OneHeadPerPosition(options.head_positions),
        base_weight=1.0,
        seed=options.seed,
        validation_sequences=64,
        record=options.record(),
    )
    schedule = trapezoid(options.steps, options.warmup_steps, options.decay_fraction)
    Trainer.of(objective, directory, schedule, options, process).run(progress)
    model.eval()
    return model
