"""Small causal language models that rescore drafts (Kim 2024, section 7.1 and appendix C.2).

A rescorer is an ordinary language model over the base model's vocabulary. It learns from people's text, or from what
the base model wrote (`latticebpd distill`), which is what drafts have to agree with; labels are the tokens that follow
a prompt. The loss is their mean cross-entropy over all labels of a step.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

from latticebpd.lattices.texts import Texts
from latticebpd.scoring.weights import RescorerSettings
from latticebpd.target.checkpoints import weights_fingerprint
from latticebpd.target.stock_model import BaseModel
from lm_training.data.batching import padded, rows_of_step
from lm_training.training.labels import ModelTexts
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import RescorerTraining


@dataclass(frozen=True)
class RescorerShape:
    """Shape of a decoder-only transformer with learnt positions (GPT-2's layout), its output embedding tied to the
    input's."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    attention_heads: int = 12
    max_positions: int = 2048


PRESETS = {
    "tiny": RescorerShape(2, 128, 512, 4, 1024),
    "small": RescorerShape(4, 192, 768, 6, 1024),
    "32m": RescorerShape(2, 384, 1536),
    "61m": RescorerShape(12, 384, 1536),
    "94m": RescorerShape(6, 768, 3072),
}
"""The last three have Table 6's shapes and are called as there. The totals are the paper's own, over a vocabulary of
about 50,000 tokens; stock GPT-2 of these shapes has 24, 41 and 83 million parameters over 50,257. ``tiny`` (0.5M
parameters beside the token embedding) and ``small`` (2M) train on two processor cores."""


def new_rescorer(shape: RescorerShape, vocab_size: int, eos_id: int | None = None) -> PreTrainedModel:
    """A freshly initialised model; as in the paper, without dropout."""
    config = GPT2Config(
        vocab_size=vocab_size,
        n_positions=shape.max_positions,
        n_embd=shape.hidden_size,
        n_layer=shape.num_layers,
        n_head=shape.attention_heads,
        n_inner=shape.intermediate_size,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=eos_id,
        eos_token_id=eos_id,
        pad_token_id=eos_id,
    )
    model: PreTrainedModel = GPT2LMHeadModel(config)
    return model


@dataclass(frozen=True, eq=False)
class NextTokenBatch:
    """inputs: ``[rows, length]``, padded on the right. labels, weights: ``[rows, kept]``, of the last ``kept``
    positions: the next token, and its share of the step's loss, 0 where it is no label; the weights' sum's mean over
    the parts of a step is 1."""

    inputs: Tensor
    labels: Tensor
    weights: Tensor


class RescorerObjective(Objective[NextTokenBatch]):
    """Teaches a causal language model.

    Args:
        model: on the device where it is to be trained.
        data: what to learn.
        validation: the same kind of data, not among ``data``.
        tokenizer_fingerprint: stored with the finished rescorer.
        keep_settings: leave the settings that are there.
        begins_with: what the model is before it is trained.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        data: Texts,
        validation: Texts,
        options: RescorerTraining,
        tokenizer_fingerprint: str | None = None,
        keep_settings: bool = False,
        begins_with: Any = None,
    ) -> None:
        super().__init__(options)
        if BaseModel.of(model).is_encoder_decoder:
            raise ValueError(
                f"expected a decoder-only causal LM as rescorer, got an encoder-decoder ({model.config.model_type})"
            )
        self.data, self.validation = (
            ModelTexts.of(model, part, name).texts for part, name in ((data, "training"), (validation, "validation"))
        )
        if not data.num_labels or not validation.num_labels:
            raise ValueError("expected sequences with tokens behind their prompts, got prompts alone")
        self.options: RescorerTraining = options
        self.model, self.source, self.begins_with = model, data, begins_with
        self.tokenizer_fingerprint, self.keep_settings = tokenizer_fingerprint, keep_settings
        self.tokens_per_step = round(options.batch_size * len(data.tokens) / len(data))

    def batch(self, step: int, part: int, parts: int) -> NextTokenBatch:
        """Sequences come in a fixed random order, every one once per epoch; ``parts`` deal a step's sequences out."""
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, self.options.seed, parts)
        labels = int((self.data.lengths[chosen] - self.data.prompt_lengths[chosen]).sum())
        return self.labelled(self.data, chosen[part::parts], parts / max(1, labels))

    def labelled(self, data: Texts, chosen: list[int], weight: float) -> NextTokenBatch:
        """The chosen sequences, every label with the given weight."""
        inputs, mask = padded([data[index] for index in chosen], 0)
        first = int(data.prompt_lengths[chosen].min()) - 1  # logits before the first label are not asked for
        place = np.arange(first, inputs.shape[1] - 1)
        labelled = (place >= data.prompt_lengths[chosen][:, None] - 1) & (mask[:, first + 1 :] > 0)
        arrays = (inputs[:, :-1], inputs[:, first + 1 :], np.where(labelled, weight, 0.0).astype(np.float32))
        return NextTokenBatch(
            *(torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device) for array in arrays)
        )

    def logits(self, batch: NextTokenBatch) -> Tensor:
        """``[labels, vocab]``, where the weights are not 0: prompts and padding are most of a batch, and a projection
        most of the cost."""
        kept = batch.labels.shape[1]
        labelled = batch.weights > 0
        output: Any = self.model.get_output_embeddings()
        hook = output.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -kept:][labelled],))
        try:
            logits: Tensor = self.model(input_ids=batch.inputs, use_cache=False).logits
        finally:
            hook.remove()
        return logits.float()

    def forward(self, batch: NextTokenBatch) -> dict[str, Tensor]:
        """``loss``, in nats."""
        labelled = batch.weights > 0
        losses = F.cross_entropy(self.logits(batch), batch.labels[labelled], reduction="none")
        return {"loss": losses @ batch.weights[labelled]}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return adamw_and_muon(self.model, self.options, output=self.model.get_output_embeddings())

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Mean cross-entropy, perplexity, and how often the best token is the right one."""
        loss = hits = labels = 0.0
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.labelled(self.validation, [index], 1.0)
            if batch.labels.numel():
                logits, wanted = self.logits(batch), batch.labels[batch.weights > 0]
                loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
                hits += float((logits.argmax(dim=1) == wanted).sum())
                labels += len(wanted)
        if not labels:
            return {}
        mean = loss / labels
        return {
            "loss": round(mean, 4),
            "perplexity": round(math.exp(min(mean, 700.0)), 2),
            "accuracy": round(hits / labels, 4),
        }

    def run_identity(self) -> dict[str, Any]:
        return {"data": self.source.fingerprint(), "model": self.begins_with}

    def save(self, directory: Path) -> None:
        """The model, and its settings."""
        self.model.save_pretrained(directory)
        if not self.keep_settings:
            RescorerSettings(tokenizer_fingerprint=self.tokenizer_fingerprint).save(directory)


def train_rescorer(
    model: PreTrainedModel,
    data: Texts,
    validation: Texts,
    directory: str | os.PathLike[str],
    options: RescorerTraining,
    tokenizer_fingerprint: str | None = None,
    process: Process | None = None,
    progress: bool = True,
    begins_with: Any = None,
) -> PreTrainedModel:
    """Train ``model`` in place, or go on with the run in ``directory``, where the finished rescorer is written.

    Args:
        begins_with: what the model is before it is trained, a new one's shape, say; by default a hash of its weights.
    """
    process = process or Process()
    begins_with = begins_with or weights_fingerprint(model)
    torch.nn.Module.to(model, process.device)  # `transformers` wraps its own `to` in a way that hides its type
    keep = RescorerSettings.stored(directory)  # of a finished run, with a weight that may have been tuned
    objective = RescorerObjective(model, data, validation, options, tokenizer_fingerprint, keep, begins_with)
    Trainer(objective, Path(directory), options, process).run(progress)
    model.eval()
    return model
