"""Training blockwise language models: the objective, and a small model from scratch (Stern 2018, section 6).

The loss of a step is the sum over predictions of ``c_p L_p`` (`lm_training.training.selection`), ``L_p`` being the mean
cross-entropy over all labels of the step's texts for prediction ``p`` (`lm_training.training.labels`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from latticebpd.decoding.generation_config import beams_ignored
from latticebpd.decoding.loop import generate
from latticebpd.drafters import VanillaDrafter
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_networks import BlockHeads
from latticebpd.lattices.texts import Texts
from latticebpd.target.stock_model import BaseModel
from lm_training.data.batching import padded, rows_of_step
from lm_training.data.hidden_states import HiddenStates, read_states
from lm_training.training.labels import HeadBatch, HeadSampler, Labels
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.selection import EveryHead
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import BlockwiseShape, BlockwiseTraining, HeadTraining

TOP = (1, 4, 16)
"""A head's accuracy is measured among its so many best tokens."""


@dataclass(frozen=True, eq=False)
class HeadData:
    """What heads learn from, or are measured by.

    states: the hidden states that the texts were written from; None lets the base model read the texts.
    """

    texts: Texts
    states: HiddenStates | None = None

    @classmethod
    def of(cls, data: HeadData | Texts) -> HeadData:
        return data if isinstance(data, HeadData) else cls(data)


class BlockwiseObjective(Objective[HeadBatch]):
    """Teaches heads, and the base model if any of its parameters require gradients.

    Args:
        model: the model, on the device where it is to be trained.
        data: what to learn.
        validation: the same kind of data, not among ``data``.
        make_optimizers: from the model to its optimizers.
        made_of: what a run that goes on must have begun with, beside data and options.
    """

    def __init__(
        self,
        model: BlockwiseLM,
        data: HeadData | Texts,
        validation: HeadData | Texts,
        options: HeadTraining | BlockwiseTraining,
        make_optimizers: Callable[[BlockwiseLM], list[torch.optim.Optimizer]],
        run_identity: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(options)
        data, validation = HeadData.of(data), HeadData.of(validation)
        shortlist, heads = model.shortlist, model.num_heads
        self.data = HeadSampler(model.base, data.texts, "training", heads, data.states, shortlist)
        self.validation = HeadSampler(model.base, validation.texts, "validation", heads, validation.states, shortlist)
        if int(self.data.texts.lengths.max(initial=0)) < 3:
            raise ValueError(
                "expected training sequences of at least 3 tokens (a prompt and labels for two heads), got none"
            )
        weights = options.head_weights or (1.0,) * (heads - 1)
        if len(weights) != heads - 1 or not all(0 <= weight < math.inf for weight in weights) or sum(weights) <= 0:
            raise ValueError(f"expected {heads - 1} head weights >= 0, not all 0 (heads 2 to {heads}), got {weights}")
        self.model, self.make_optimizers, self._made_of = model, make_optimizers, run_identity or {}
        self.options: HeadTraining | BlockwiseTraining = options
        self.frozen = not any(parameter.requires_grad for parameter in model.base.parameters())
        if data.states is not None and not self.frozen:
            raise ValueError(
                "expected a frozen base model with kept hidden states, got one that is taught; train on the texts alone"
            )
        self.weights = np.array([0.0 if self.frozen else 1.0, *weights])
        self.coefficients = options.selection.coefficients(self.weights)
        self.tokens_per_step = round(options.batch_size * len(data.texts.tokens) / len(data.texts))

    def batch(self, step: int, part: int, parts: int) -> HeadBatch:
        """Texts come in a fixed random order, every one once per epoch; ``parts`` deal a step's texts out."""
        seed = self.options.seed
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, seed, parts)
        return self.data.batch(chosen, self.options.selection, self.weights > 0, [seed, step], part, parts)

    def hidden(self, batch: HeadBatch) -> Tensor:
        """``[positions, hidden]`` the base model's final, normalised hidden states."""
        if batch.states is not None:
            return batch.states
        assert batch.inputs is not None
        return read_states(BaseModel.of(self.model.base), batch.inputs, batch.sources, batch.mask)[-1].flatten(0, 1)

    def logits(self, prediction: int, hidden: Tensor) -> Tensor:
        """``[n, hidden]`` -> ``[n, tokens]``, of the tokens that a prediction knows; prediction 0 is the base model's
        own."""
        if not prediction:
            return self.model.projection(hidden)
        heads = self.model.heads
        return heads.project(prediction - 1, heads.alone(prediction - 1, hidden), self.model.head_projection)

    def forward(self, batch: HeadBatch) -> dict[str, Tensor]:
        """``loss``; ``base_loss``, where the base model is taught; ``head_losses``: ``[heads - 1]``; all in nats."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            hidden = self.hidden(batch).to(self.model.heads.dtype)
        taught = range(int(self.frozen), self.model.num_heads)
        losses = torch.stack([self._loss(prediction, hidden, batch.labels[prediction]) for prediction in taught])
        coefficients = torch.as_tensor(self.coefficients[taught.start :], dtype=losses.dtype, device=losses.device)
        values = {"loss": losses @ coefficients}
        return values | (
            {"head_losses": losses} if self.frozen else {"base_loss": losses[0], "head_losses": losses[1:]}
        )

    def _loss(self, prediction: int, hidden: Tensor, labels: Labels) -> Tensor:
        logits = self.logits(prediction, hidden[labels.positions]).float()
        return (F.cross_entropy(logits, labels.tokens, reduction="none") * labels.weights).sum()

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
        """Mean cross-entropy of every predictor, the heads' accuracy among their best tokens, and block efficiency as
        served.

        A label that the heads' shortlist lacks is in no loss, and counts as missed by every head.
        """
        count, known = np.zeros(self.model.num_heads), np.zeros(self.model.num_heads)
        loss, hits = np.zeros_like(count), np.zeros((len(TOP), len(count)))
        every, lengths = np.ones(len(count), bool), self.validation.texts.lengths - self.validation.texts.prompt_lengths
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.validation.batch([index], EveryHead(), every, [self.options.seed])
            hidden = self.hidden(batch).to(self.model.heads.dtype)
            for prediction, labels in enumerate(batch.labels):
                logits = self.logits(prediction, hidden[labels.positions]).float()
                loss[prediction] += float(F.cross_entropy(logits, labels.tokens, reduction="sum"))
                rank = (logits > logits.gather(1, labels.tokens[:, None])).sum(dim=1)
                hits[:, prediction] += [int((rank < top).sum()) for top in TOP]
                known[prediction] += len(labels.tokens)
                count[prediction] += max(0, int(lengths[index]) - prediction)
        if not known.all():
            return {}
        mean = loss / known
        record: dict[str, Any] = {
            "loss": round(float(mean[1:] @ (self.weights[1:] / self.weights[1:].sum())), 4),
            "base_loss": round(float(mean[0]), 4),
            "base_perplexity": round(math.exp(min(mean[0], 700.0)), 2),
            "head_losses": [round(float(value), 4) for value in mean[1:]],
            "head_accuracy": {
                f"top-{top}": [round(float(share), 4) for share in row[1:] / count[1:]]
                for top, row in zip(TOP, hits, strict=True)
            },
        }
        if self.model.shortlist is not None:
            record["coverage"] = round(float(known[1:].sum() / count[1:].sum()), 4)
        if self.options.serving_prompts:
            record["serving_block_efficiency"] = round(self.serve(), 4)
        return record

    def serve(self, max_new_tokens: int = 64) -> float:
        """Block efficiency of decoding validation prompts with vanilla drafts, pooled."""
        prompts = self.validation.read.sources or self.validation.texts.prompts()
        ids, mask = padded([prompts[index] for index in range(min(self.options.serving_prompts, len(prompts)))], 0)
        drafter = VanillaDrafter(self.model)
        with beams_ignored(self.model):
            out = generate(self.model, ids, drafter, attention_mask=mask, max_new_tokens=max_new_tokens)  # type: ignore[arg-type]
        return out.block_efficiency

    def run_identity(self) -> dict[str, Any]:
        return {"data": self.data.source.fingerprint(), **self._made_of}

    def save(self, directory: Path) -> None:
        self.model.save_pretrained(directory)

    def save_whole(self, directory: Path, weights: dict[str, Tensor]) -> None:
        self.model.save_pretrained(
            directory, weights={name.removeprefix("model."): tensor for name, tensor in weights.items()}
        )


def new_model(shape: BlockwiseShape, eos_id: int, tokenizer_fingerprint: str | None = None) -> BlockwiseLM:
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


def train_blockwise(
    corpus: np.ndarray,
    validation: np.ndarray,
    directory: str | os.PathLike[str],
    shape: BlockwiseShape,
    options: BlockwiseTraining,
    eos_id: int,
    tokenizer_fingerprint: str | None = None,
    process: Process | None = None,
    progress: bool = True,
) -> BlockwiseLM:
    """Train a base model and its heads together on token ids, or go on with the run in ``directory``; returns the
    model."""
    process = process or Process()
    if options.fsdp:
        raise ValueError(
            "expected whole weights on every process, since Muon updates matrices as wholes; leave fsdp out"
        )
    torch.manual_seed(options.seed)
    model = new_model(shape, eos_id, tokenizer_fingerprint).to(process.device)
    span = options.sequence_length + shape.num_heads  # every position has a label for every head
    objective = BlockwiseObjective(
        model,
        Texts.of_corpus(corpus, span),
        Texts.of_corpus(validation, min(span, len(validation))),
        options,
        lambda model: adamw_and_muon(model, options, by_adamw=model.heads.parameters()),
        {"shape": asdict(shape), "end_of_text": eos_id},
    )
    Trainer(objective, Path(directory), options, process).run(progress)
    model.eval()
    return model
