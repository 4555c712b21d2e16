"""Training blockwise language models: heads for an existing base model, or a small model with heads (Stern 2018).

The loss of a step is the sum over predictions of ``c_p L_p`` (`lm_training.training.selection`), ``L_p`` being the mean
cross-entropy over all labels of the step's texts for prediction ``p`` (`lm_training.families.head_batches`).
Transitions add ``c_p T_p`` for heads 3 to h: the same of what they say after the text's own previous token, over all
that heads know.

A frozen base model keeps its output and its files, to the byte, and may be in half precision while its heads learn in
float32. A fine-tuned one loses some quality for more accurate heads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from latticebpd.checks import expect
from latticebpd.drafters import HeadLattices, LatticeDrafter, Vanilla
from latticebpd.drafters.heads.blockwise import BlockwiseLM
from latticebpd.drafters.heads.head_networks import FeedForwardHeads, Heads
from latticebpd.lattices.texts import Texts
from latticebpd.models.load_target import Name
from latticebpd.models.transformers.checkpoints import weights_fingerprint
from latticebpd.models.transformers.transformers_model import Projection, TransformersModel
from lm_training.data.batching import rows_of_step
from lm_training.data.hidden_states import read_states
from lm_training.data.shortlist import fingerprint
from lm_training.data.training_data import HeadData
from lm_training.families.head_batches import HeadBatch, HeadSampler, Labels
from lm_training.families.shapes import BlockwiseShape
from lm_training.training.measures import TOP, block_efficiency
from lm_training.training.optimizers import adamw_and_muon
from lm_training.training.selection import EveryHead
from lm_training.training.training_loop import Objective, Process, Trainer, rounded
from lm_training.training.training_options import BlockwiseTraining, HeadTraining

ROWS = 16
"""A head's labels are padded to a multiple of it: oneDNN compiles a bfloat16 product for every number of rows."""


def _counts(labels: Sequence[Labels]) -> list[int]:
    return [len(each.tokens) for each in labels]


def _last_known(labels: Sequence[Labels]) -> Tensor:
    """``[labels]`` rows at which the token before a label is chosen; a text's positions are consecutive rows."""
    return torch.cat([each.positions + ahead for ahead, each in enumerate(labels, 1)])


class _Tally:
    """Nats and ranks of labels, by prediction."""

    def __init__(self, predictions: int) -> None:
        self.loss, self.known = np.zeros((2, predictions))
        self.hits = np.zeros((len(TOP), predictions))

    def add(self, first: int, logits: Tensor, labels: Sequence[Labels]) -> None:
        """Of consecutive predictions."""
        for prediction, (values, each) in enumerate(zip(logits.split(_counts(labels)), labels, strict=True), first):
            values = values.float()
            self.loss[prediction] += float(F.cross_entropy(values, each.tokens, reduction="sum"))
            rank = (values > values.gather(1, each.tokens[:, None])).sum(dim=1)
            self.hits[:, prediction] += [int((rank < top).sum()) for top in TOP]
            self.known[prediction] += len(each.tokens)

    def mean(self, first: int, weights: np.ndarray) -> float:
        """Nats a label, each prediction's by its weight, from the prediction ``first`` on."""
        return round(float(np.average(self.loss[first:] / self.known[first:], weights=weights[first:])), 4)

    def record(self, name: str, first: int, counts: np.ndarray) -> dict[str, Any]:
        """From the prediction ``first`` on; counts: ``[predictions]`` labels, with those that heads do not know."""
        mean, shares = self.loss[first:] / self.known[first:], self.hits[:, first:] / counts[first:]
        accuracy = {f"top-{top}": rounded(row) for top, row in zip(TOP, shares, strict=True)}
        return {f"{name}_losses": rounded(mean), f"{name}_accuracy": accuracy}


class BlockwiseObjective(Objective[HeadBatch, HeadTraining | BlockwiseTraining]):
    """Trains heads, and the base model if any of its parameters require gradients."""

    def __init__(
        self,
        model: BlockwiseLM,
        data: HeadData | Texts,
        validation: HeadData | Texts,
        options: HeadTraining | BlockwiseTraining,
        make_optimizers: Callable[[BlockwiseLM], list[torch.optim.Optimizer]],
    ) -> None:
        data, heads = HeadData.of(data), model.num_heads
        super().__init__(options, data.texts)
        self.data = HeadSampler(model, data, "training")
        self.validation = HeadSampler(model, HeadData.of(validation), "validation")
        if int(self.data.texts.lengths.max(initial=0)) < 3:
            raise ValueError("expected training sequences of at least 3 tokens (a prompt and two labels), got none")
        self.transitions = model.heads.transitions
        self.heads_frozen = isinstance(options, HeadTraining) and options.freeze_heads
        weights, first = options.head_weights or (1.0,) * (heads - 1), 2 + self.heads_frozen
        fits = len(weights) == heads - 1 and all(0 <= weight < math.inf for weight in weights)
        if not fits or sum(weights[first - 2 :]) <= 0:
            wanted = f"{heads - 1} head weights >= 0, not all 0 (heads {first} to {heads})"
            raise ValueError(f"expected {wanted}, got {weights}")
        self.model, self.make_optimizers = model, make_optimizers
        self.frozen = not any(parameter.requires_grad for parameter in model.base.parameters())
        if data.states is not None and not self.frozen:
            raise ValueError("expected a frozen base model with kept hidden states; train this one on the texts only")
        self.distilled = isinstance(options, HeadTraining) and options.labels == "model"
        self.temperature = options.label_temperature if isinstance(options, HeadTraining) else 1.0
        expect(self.distilled or self.temperature == 1.0, "--labels model with --label-temperature", "--labels text")
        if self.distilled and not self.frozen:
            raise ValueError("expected a frozen base model with --labels model, got --fine-tune; leave one out")
        if self.heads_frozen and (self.transitions is None or not self.frozen):
            wanted, got = "transitions and a frozen base model with --freeze-heads", "none, or --fine-tune"
            raise ValueError(f"expected {wanted}, got {got}; add --transitions")
        self.weights = np.array([0.0 if self.frozen else 1.0, *weights])
        self.coefficients = torch.from_numpy(options.selection.coefficients(self.weights))
        self.tokens_per_step = round(options.batch_size * len(data.texts.tokens) / len(data.texts))

    def batch(self, step: int, part: int, parts: int) -> HeadBatch:
        seed = self.options.seed
        chosen = rows_of_step(len(self.data), self.options.batch_size, step, seed, parts)
        return self.data.batch(chosen, self.options.selection, self.weights, [seed, step], part, parts)

    def hidden(self, batch: HeadBatch) -> Tensor:
        """``[positions, states]`` the base model's final, normalised hidden states, and those of further layers."""
        if batch.states is not None:
            return batch.states
        assert batch.inputs is not None
        stock = TransformersModel.of(self.model.base)
        layers = self.model.layers
        states = read_states(stock, bool(layers), batch.inputs, batch.sources, batch.mask)
        return torch.cat([states[n] for n in (-1, *layers)], dim=-1).flatten(0, 1)

    def read(self, batch: HeadBatch) -> tuple[Tensor, Tensor]:
        """``[positions, hidden]``, which the base model's projection reads, and ``[positions, inputs]``, which heads
        read."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            states = self.hidden(batch)
            last = states[:, : self.model.heads.hidden_size]
            return last.to(self.model.heads.dtype), self.model.head_inputs(states, batch.following)

    def states(self, inputs: Tensor, labels: Sequence[Labels]) -> Tensor:
        """``[labels, hidden]`` every head's states at its labels' positions, one head after the other."""
        return self.model.heads.states_of([inputs[each.positions] for each in labels])

    def transition_logits(
        self, states: Tensor, labels: Sequence[Labels], following: Tensor, short: Projection
    ) -> Tensor:
        """``[labels of heads 3 to h, tokens]``, after the text's tokens before them; states: also head 2's."""
        assert self.transitions is not None
        before = _last_known(labels[1:])
        inputs = self.model.with_tokens(states[len(states) - len(before) :], following[before])
        return short(self.transitions.head_state(0, inputs))

    def forward(self, batch: HeadBatch) -> dict[str, Tensor]:
        """``loss``; ``base_loss``, if the base model is trained; ``head_losses``: ``[heads - 1]``, but for frozen ones;
        ``transition_losses``: ``[heads - 2]``, where there are transitions; all in nats."""
        heads, (hidden, inputs) = self.model.heads, self.read(batch)
        base, *labels = (each.padded(ROWS) for each in batch.labels)
        short = self.model.head_projection  # the shortlist's rows are gathered once
        states = self.states(inputs, labels)
        parts: dict[str, Tensor] = {}
        total = hidden.new_zeros(())
        if not self.frozen:
            parts["base_loss"] = self._losses(self.model.projection(hidden[base.positions]), [base])[0]
            total = total + parts["base_loss"] * float(self.coefficients[0])
        targets = None
        if self.distilled:
            with torch.no_grad():
                targets = (short(hidden[_last_known(labels)]).float() / self.temperature).softmax(dim=-1)
        if not self.heads_frozen:
            parts["head_losses"] = self._losses(heads.project(states, _counts(labels), short), labels, targets)
            total = total + parts["head_losses"] @ self.coefficients[1:].to(total)
        if self.transitions is not None:
            logits = self.transition_logits(states, labels, batch.following, short)
            targets = None if targets is None else targets[len(targets) - len(logits) :]
            parts["transition_losses"] = self._losses(logits, labels[1:], targets)
            total = total + parts["transition_losses"] @ self.coefficients[2:].to(total)
        return {"loss": total, **parts}

    def _losses(self, logits: Tensor, labels: Sequence[Labels], targets: Tensor | None = None) -> Tensor:
        """``[predictions]`` nats.

        logits: ``[labels, tokens]``.  targets: probabilities of the same shape, in place of the labels' tokens.
        """
        tokens, weights = (torch.cat([getattr(each, name) for each in labels]) for name in ("tokens", "weights"))
        losses = F.cross_entropy(logits.float(), tokens if targets is None else targets, reduction="none") * weights
        return torch.stack([part.sum() for part in losses.split(_counts(labels))])

    def train(self, mode: bool = True) -> BlockwiseObjective:
        """A frozen base model stays in evaluation mode, without dropout."""
        super().train(mode)
        if self.frozen:
            self.model.base.eval()
        return self

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.make_optimizers(self.model)

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """Mean cross-entropy of what learns and of every predictor, accuracy, and block efficiency of decoding.

        A label that is not on the heads' shortlist is in no loss and counts as missed.
        """
        counts, own = np.zeros(self.model.num_heads), _Tally(self.model.num_heads)
        after = _Tally(self.model.num_heads)
        every, lengths = np.ones(len(counts), bool), self.validation.texts.answer_lengths
        short = self.model.head_projection
        for index in range(min(self.options.validation_sequences, len(self.validation))):
            batch = self.validation.batch([index], EveryHead(), every, [self.options.seed])
            hidden, inputs = self.read(batch)
            known, *labels = batch.labels
            counts += np.maximum(lengths[index] - np.arange(len(counts)), 0)
            states = self.states(inputs, labels)
            own.add(0, self.model.projection(hidden[known.positions]), [known])
            own.add(1, self.model.heads.project(states, _counts(labels), short), labels)
            if self.transitions is not None:
                after.add(2, self.transition_logits(states, labels, batch.following, short), labels[1:])
        if not own.known.all():
            return {}
        base = float(own.loss[0] / own.known[0])
        record: dict[str, Any] = {
            "loss": after.mean(2, self.weights) if self.heads_frozen else own.mean(1, self.weights),
            "base_loss": round(base, 4),
            "base_perplexity": round(math.exp(min(base, 700.0)), 2),
            **own.record("head", 1, counts),
        }
        if self.model.shortlist is not None:
            record["coverage"] = round(float(own.known[1:].sum() / counts[1:].sum()), 4)
        if self.transitions is not None:
            record |= after.record("transition", 2, counts)
        if self.options.serving_prompts:
            prompts = self.validation.read.sources or self.validation.texts.prompts()
            drafter, decoded = LatticeDrafter(HeadLattices(self.model, 1), Vanilla()), self.options.serving_prompts
            record["serving_block_efficiency"] = round(block_efficiency(self.model, drafter, prompts, decoded, 64), 4)
        return record

    def save_full(self, directory: Path, weights: dict[str, Tensor]) -> None:
        own = {name.removeprefix("model."): tensor for name, tensor in weights.items()}
        self.model.save_pretrained(directory, weights=own)


def new_model(shape: BlockwiseShape, eos_id: int, tokenizer_fingerprint: str | None = None) -> BlockwiseLM:
    """A freshly initialised model on stock ``transformers`` classes."""
    heads = FeedForwardHeads(shape.hidden_size, shape.num_heads, shape.head_intermediate_size)
    base = shape.new_model(bos_token_id=eos_id, eos_token_id=eos_id, pad_token_id=eos_id)
    return BlockwiseLM(base, heads, tokenizer_fingerprint)


def train_blockwise(
    corpus: np.ndarray,
    validation: np.ndarray,
    directory: str | os.PathLike[str],
    shape: BlockwiseShape,
    options: BlockwiseTraining,
    eos_id: int,
    tokenizer_fingerprint: str | None = None,
    process: Process | None = None,
) -> BlockwiseLM:
    """Train a new base model and its heads on ``[n]`` token ids, or resume the run in ``directory``."""
    process = process or Process()
    if options.fsdp:
        raise ValueError("expected unsharded weights, since Muon updates matrices as wholes; leave fsdp out")
    torch.manual_seed(options.seed)
    model = new_model(shape, eos_id, tokenizer_fingerprint).to(process.device)
    span = options.sequence_length + shape.num_heads  # every position has a label for every head
    objective = BlockwiseObjective(
        model,
        Texts.of_corpus(corpus, span),
        Texts.of_corpus(validation, min(span, len(validation))),
        options,
        lambda model: adamw_and_muon(model, options, by_adamw=model.heads.parameters()),
    )
    Trainer(objective, Path(directory), options, process, {"shape": asdict(shape), "end_of_text": eos_id}).run()
    return model


def train_heads(
    model: BlockwiseLM,
    data: HeadData | Texts,
    validation: HeadData | Texts,
    directory: str | os.PathLike[str],
    options: HeadTraining,
    process: Process | None = None,
    name: Name | None = None,
) -> BlockwiseLM:
    """Train the heads of ``model`` in place, or resume the run in ``directory``, where the finished model is written.

    With stored hidden states a frozen base model is run only to measure block efficiency.

    name: by which the base model was loaded; states that the CPU engine computed from its files are its own.

    Raises:
        ValueError: data that do not fit the model, hidden states of another model, or another run in ``directory``.
    """
    process, data, validation = process or Process(), HeadData.of(data), HeadData.of(validation)
    model.heads.requires_grad_(not options.freeze_heads)
    if model.heads.transitions is not None:
        model.heads.transitions.requires_grad_(True)
    if not options.fine_tune:
        model.base.requires_grad_(False)
    elif not any(parameter.requires_grad for parameter in model.base.parameters()):
        wanted = "a base model with parameters that require gradients, to fine-tune it"
        raise ValueError(f"expected {wanted}, got one without; load it anew")
    base = weights_fingerprint(model.base)
    for each in (data, validation):
        each.require_model(base, "the model whose heads are trained", name)
    model.to(process.device)

    def make_optimizers(model: BlockwiseLM) -> list[torch.optim.Optimizer]:
        heads = [parameter for parameter in model.heads.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [{"params": heads, "lr": options.learning_rate}]
        if options.fine_tune:
            # Some weights are constants, such as Marian's sinusoidal positions.
            taught = [parameter for parameter in model.base.parameters() if parameter.requires_grad]
            groups.append({"params": taught, "lr": options.base_learning_rate})
        fused = process.device.type == "cpu" and not options.fsdp
        return [torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=options.weight_decay, fused=fused)]

    transitions = model.heads.transitions
    size = {} if transitions is None else {"transition_size": transitions.intermediate_size}
    identity = {
        "base": base,
        "heads": {"kind": model.heads.kind, **model.heads.settings(), **size},
        "warm_start": _trained_hash(model.heads),
        "shortlist": fingerprint(model.shortlist),
    }
    objective = BlockwiseObjective(model, data, validation, options, make_optimizers)
    Trainer(objective, Path(directory), options, process, identity).run()
    return model


@torch.no_grad()
def _trained_hash(heads: Heads) -> str | None:
    """A hash of trained heads; None for new ones, which return any state unchanged."""
    state = torch.linspace(-1, 1, heads.input_size, dtype=heads.dtype, device=next(heads.parameters()).device)[None]
    own = state[:, : heads.hidden_size]
    new = all(torch.equal(heads.head_state(index, state), own) for index in range(heads.num_heads - 1))
    return None if new else weights_fingerprint(heads)
