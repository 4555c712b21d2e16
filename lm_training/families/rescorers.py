"""Training small causal language models that rescore drafts (Kim 2024, section 7.1 and appendix C.2).

A rescorer is an ordinary language model over the target's vocabulary. It learns from people's text, or from text that
the target wrote (`latticebpd distill`), which drafts have to match. Labels are the tokens that follow a prompt; the
loss is their mean cross-entropy over all labels of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from fst.files import PathLike
from latticebpd.checks import expect
from latticebpd.lattices.texts import Texts, padded
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import TransformersModel
from latticebpd.scoring.weights import RescorerSettings
from lm_training.data.batching import rows_of_step
from lm_training.families.shapes import RescorerShape
from lm_training.training.measures import token_measures
from lm_training.training.model_texts import ModelTexts
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.training_loop import Objective, Process, Trainer
from lm_training.training.training_options import RescorerTraining


def new_rescorer(shape: RescorerShape, vocab_size: int, eos_id: int | None = None) -> PreTrainedModel:
    """A freshly initialised model; as in the paper, without dropout."""
    tokens = {"bos_token_id": eos_id, "eos_token_id": eos_id, "pad_token_id": eos_id}
    return shape.new_model(vocab_size=vocab_size, **tokens)


@dataclass(frozen=True, eq=False)
class NextTokenBatch:
    """Texts and their labels.

    inputs: ``[rows, length]``, padded on the right.
    labels, weights: ``[rows, kept]`` of the last ``kept`` positions: the next token, and its share of the step's loss,
        0 without a label; the mean of the weights' sum over a step's parts is 1.
    """

    inputs: Tensor
    labels: Tensor
    weights: Tensor


class RescorerObjective(Objective[NextTokenBatch, RescorerTraining]):
    """Trains a causal language model; settings: to store with it, None leaves the directory's unchanged."""

    def __init__(
        self,
        model: PreTrainedModel,
        data: Texts,
        validation: Texts,
        options: RescorerTraining,
        settings: RescorerSettings | None = None,
    ) -> None:
        super().__init__(options, data)
        wanted, got = "a decoder-only causal LM as rescorer", f"an encoder-decoder ({model.config.model_type})"
        expect(not TransformersModel.of(model).is_encoder_decoder, wanted, got)
        self.data = ModelTexts.of(model, data, "training").texts
        self.validation = ModelTexts.of(model, validation, "validation").texts
        expect(data.num_labels and validation.num_labels, "sequences with tokens after their prompts", "prompts only")
        self.model, self.settings = model, settings
        self.tokens_per_step = round(options.batch_size * len(data.tokens) / len(data))

    def batch(self, step: int, part: int, parts: int) -> NextTokenBatch:
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, self.options.seed, parts)
        labels = int(self.data.answer_lengths[chosen].sum())
        return self.labelled(self.data, chosen[part::parts], parts / max(1, labels))

    def labelled(self, data: Texts, chosen: list[int], weight: float) -> NextTokenBatch:
        """The chosen sequences, with the same weight for every label."""
        inputs, mask = padded([data[index] for index in chosen], 0)
        first = int(data.prompt_lengths[chosen].min()) - 1  # position of the first label's logits
        positions = np.arange(first, inputs.shape[1] - 1)
        labelled = (positions >= data.prompt_lengths[chosen][:, None] - 1) & (mask[:, first + 1 :] > 0)
        arrays = (inputs[:, :-1], inputs[:, first + 1 :], np.where(labelled, weight, 0.0).astype(np.float32))
        moved = (torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device) for array in arrays)
        return NextTokenBatch(*moved)

    def logits(self, batch: NextTokenBatch) -> Tensor:
        """``[labels, vocab]`` for labels only; projecting prompts and padding would be most of the cost."""
        kept = batch.labels.shape[1]
        labelled = batch.weights > 0
        output: Any = self.model.get_output_embeddings()
        hook = output.register_forward_pre_hook(lambda _, inputs: (inputs[0][:, -kept:][labelled],))
        try:
            return self.model(input_ids=batch.inputs, use_cache=False).logits.float()
        finally:
            hook.remove()

    def forward(self, batch: NextTokenBatch) -> dict[str, Tensor]:
        """``loss``, in nats."""
        labelled = batch.weights > 0
        losses = F.cross_entropy(self.logits(batch), batch.labels[labelled], reduction="none")
        return {"loss": losses @ batch.weights[labelled]}

    def optimizers(self) -> list[torch.optim.Optimizer]:
        output: Any = self.model.get_output_embeddings()
        return adamw_and_muon(self.model, self.options, by_adamw=output.parameters())

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Mean cross-entropy, perplexity and accuracy of the best token."""
        loss, right, labels = 0.0, 0, 0
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.labelled(self.validation, [index], 1.0)
            if batch.labels.numel():
                logits, wanted = self.logits(batch), batch.labels[batch.weights > 0]
                loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
                right += int((logits.argmax(dim=1) == wanted).sum())
                labels += len(wanted)
        return token_measures(loss, right, labels, digits=2) if labels else {}

    def save(self, directory: Path) -> None:
        self.model.save_pretrained(directory)
        if self.settings is not None:
            self.settings.save(directory)


def train_rescorer(
    model: PreTrainedModel,
    data: Texts,
    validation: Texts,
    directory: PathLike,
    options: RescorerTraining,
    tokenizer_fingerprint: str | None = None,
    process: Process | None = None,
    initial: Any = None,
) -> PreTrainedModel:
    """Train ``model`` in place, or resume the run in ``directory``, where the finished rescorer is written.

    initial: what identifies the untrained model, such as a new one's shape; by default a hash of its weights.
    """
    process, identity = process or Process(), {"model": initial or weights_fingerprint(model)}
    torch.nn.Module.to(model, process.device)  # the type of `transformers`' own `to` is hidden
    # A finished run keeps its settings, whose weight may have been tuned.
    kept = RescorerSettings.stored(directory)
    settings = None if kept else RescorerSettings(tokenizer_fingerprint=tokenizer_fingerprint)
    objective = RescorerObjective(model, data, validation, options, settings)
    Trainer(objective, Path(directory), options, process, identity).run()
    return model
