"""Training a blockwise language model from scratch: base model and heads together (Stern 2018, section 6).

The loss is the base model's cross-entropy plus ``head_weight`` times the mean cross-entropy of heads 2..h.  The
heads' mean is estimated without bias at a fraction of its cost: in every batch a random sample of positions is
dealt out evenly among the heads, and each position is scored by its head alone.

Everything random is a function of ``(seed, step)``: the batch of a step, the positions of its heads.  A
checkpoint therefore holds weights, optimizer moments and the step, nothing else, and training that is killed at
any moment goes on as if it had not been.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from fst.files import replacing
from latticebpd.models import BlockHeads, BlockwiseLM
from lm_training.muon import Muon

STATE_WEIGHTS = "training-state.safetensors"
STATE_STEP = "training-state.json"
LOG = "training-log.jsonl"


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
class TrainingOptions:
    """How to train.  Lengths are in tokens; the learning rate warms up, stays, and falls linearly to zero."""

    steps: int = 6000
    batch_size: int = 8
    sequence_length: int = 256
    learning_rate: float = 2e-3
    muon_learning_rate: float = 5e-3
    weight_decay: float = 0.01
    warmup_steps: int = 100
    decay_fraction: float = 0.3
    head_weight: float = 1.0
    head_positions: float = 0.25
    validation_every: int = 250
    checkpoint_every: int = 250
    seed: int = 0
    compile: bool = False


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


def learning_rate_factor(step: int, options: TrainingOptions) -> float:
    """Trapezoid in [0, 1]: linear warm-up, plateau, linear fall over the last ``decay_fraction`` of the steps."""
    rise = (step + 1) / max(1, options.warmup_steps)
    fall = (options.steps - step) / max(1.0, options.decay_fraction * options.steps)
    return min(1.0, rise, fall)


@dataclass(frozen=True)
class Batch:
    """One step's input.

    inputs: ``[batch, length]``; targets: ``[batch * length]``, the next token of every position.
    head_positions: ``[heads - 1, n]`` flat positions; head_targets: the same shape, the token ``i + 2`` ahead.
    """

    inputs: Tensor
    targets: Tensor
    head_positions: Tensor
    head_targets: Tensor


def batch_at(tokens: np.ndarray, step: int, num_heads: int, options: TrainingOptions) -> Batch:
    """The batch of a step: windows of the corpus in a fixed random order, every one once per epoch."""
    length = options.sequence_length
    span = length + num_heads
    windows = len(tokens) // span
    if windows < 1:
        raise ValueError(
            f"expected a corpus of at least {span} tokens (one window), got {len(tokens)}; give more text or a shorter sequence length"
        )
    first = step * options.batch_size
    chosen = []
    for index in range(first, first + options.batch_size):
        epoch, place = divmod(index, windows)
        chosen.append(_epoch_order(windows, options.seed, epoch)[place])
    rows = torch.from_numpy(np.stack([np.asarray(tokens[w * span : (w + 1) * span], dtype=np.int64) for w in chosen]))
    rng = np.random.default_rng([options.seed, step, 1])
    total = options.batch_size * length
    per_head = max(1, int(total * options.head_positions) // (num_heads - 1))
    flat = rng.permutation(total)[: per_head * (num_heads - 1)].reshape(num_heads - 1, per_head)
    positions = torch.from_numpy(flat)
    ahead = torch.arange(2, num_heads + 1).unsqueeze(1)
    head_targets = rows[positions // length, positions % length + ahead]
    return Batch(rows[:, :length].contiguous(), rows[:, 1 : length + 1].reshape(-1).contiguous(), positions, head_targets)


_ORDERS: dict[tuple[int, int, int], np.ndarray] = {}


def _epoch_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    key = (windows, seed, epoch)
    if key not in _ORDERS:
        if len(_ORDERS) > 2:
            _ORDERS.clear()
        _ORDERS[key] = np.random.default_rng([seed, epoch, 0]).permutation(windows)
    return _ORDERS[key]


def block_loss(model: BlockwiseLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """Cross-entropy in nats: the base model's mean, and the mean over each head of its positions, ``[heads - 1]``."""
    hidden = model.base.base_model(batch.inputs).last_hidden_state.flatten(0, 1)
    output = model.base.get_output_embeddings().weight
    base = F.cross_entropy(F.linear(hidden, output), batch.targets)
    grouped = model.heads.forward_grouped(hidden[batch.head_positions])
    count = batch.head_targets.shape[1]
    losses = F.cross_entropy(F.linear(grouped.flatten(0, 1), output), batch.head_targets.flatten(), reduction="none")
    return base, losses.view(-1, count).mean(1)


def make_optimizers(model: BlockwiseLM, options: TrainingOptions) -> list[torch.optim.Optimizer]:
    """Muon for the transformer's matrices, AdamW for embedding, norms and heads."""
    embedding = model.base.get_input_embeddings().weight
    matrices = [p for p in model.base.parameters() if p.ndim == 2 and p is not embedding]
    others = [p for p in model.parameters() if not any(p is m for m in matrices)]
    return [
        torch.optim.AdamW(others, lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay),
        Muon(matrices, lr=options.muon_learning_rate, weight_decay=options.weight_decay, momentum=0.95),
    ]


@dataclass
class Trainer:
    """One training run in ``directory``; ``run`` starts it or takes it up where its last checkpoint left it."""

    model: BlockwiseLM
    tokens: np.ndarray
    validation: np.ndarray
    directory: Path
    options: TrainingOptions
    step: int = 0
    seen_seconds: float = 0.0
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        highest = int(max(self.tokens[: 1 << 20].max(initial=0), self.validation.max(initial=0)))
        if highest >= self.model.vocab_size:
            raise ValueError(
                f"expected token ids below {self.model.vocab_size} (the model's vocabulary), got {highest}; "
                "was the corpus encoded with another tokenizer?"
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.optimizers = make_optimizers(self.model, self.options)
        self._base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    def run(self, progress: bool = True) -> None:
        """Train to ``options.steps``, logging and writing checkpoints on the way."""
        self.restore()
        loss_function = torch.compile(block_loss) if self.options.compile else block_loss
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, disable=not progress) as bar:
            task = bar.add_task("training", total=self.options.steps, completed=self.step, status="")
            while self.step < self.options.steps:
                started = time.perf_counter()
                base, heads = self._train_step(loss_function)
                seconds = time.perf_counter() - started
                self.seen_seconds += seconds
                rate = self.options.batch_size * self.options.sequence_length / seconds
                record: dict[str, Any] = {"step": self.step, "loss": base, "head_losses": heads, "tokens_per_second": round(rate)}
                if not math.isfinite(base):
                    raise ValueError(f"the loss is {base} at step {self.step}; lower the learning rate (now {self.options.learning_rate})")
                if self.step % self.options.validation_every == 0 or self.step == self.options.steps:
                    record["validation"] = self.validate()
                with open(self.directory / LOG, "a", encoding="utf-8") as log:
                    log.write(json.dumps(record) + "\n")
                if self.step % self.options.checkpoint_every == 0 or self.step == self.options.steps:
                    self.checkpoint()
                bar.update(task, completed=self.step, status=f"loss {base:.3f}, {rate:,.0f} tokens/s")

    def _train_step(self, loss_function: Any) -> tuple[float, list[float]]:
        self.model.train()
        batch = batch_at(self.tokens, self.step, self.model.num_heads, self.options)
        base, heads = loss_function(self.model, batch)
        loss = base + self.options.head_weight * heads.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        factor = learning_rate_factor(self.step, self.options)
        for optimizer, rates in zip(self.optimizers, self._base_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return float(base.detach()), [round(float(value), 4) for value in heads.detach()]

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, Any]:
        """Mean cross-entropy on held-out text: of the base model, and of each head."""
        self.model.eval()
        available = len(self.validation) // (self.options.sequence_length + self.model.num_heads)
        if available < 1:
            return {}
        options = replace(self.options, batch_size=min(self.options.batch_size, available), head_positions=1.0)
        results = [block_loss(self.model, batch_at(self.validation, index, self.model.num_heads, options)) for index in range(batches)]
        base = float(torch.stack([base for base, _ in results]).mean())
        heads = torch.stack([heads for _, heads in results]).mean(0)
        return {"loss": round(base, 4), "perplexity": round(math.exp(base), 2), "head_losses": [round(float(value), 4) for value in heads]}

    def checkpoint(self) -> None:
        """Write the model and, beside it, what a later run needs to go on."""
        self.model.save_pretrained(self.directory)
        tensors = {f"model.{name}": tensor.detach().clone().contiguous() for name, tensor in self.model.named_parameters()}
        for number, name, tensor in self._optimizer_tensors():
            tensors[f"optimizer{number}.{name}"] = tensor.detach().clone().contiguous()
        record = {"step": self.step, "options": asdict(self.options), "seconds": self.seen_seconds}
        with replacing(self.directory / STATE_WEIGHTS) as temporary:
            save_file(tensors, temporary, metadata={"training": json.dumps(record)})
        with replacing(self.directory / STATE_STEP) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")

    def restore(self) -> None:
        """Take up the directory's checkpoint, if it has one."""
        path = self.directory / STATE_WEIGHTS
        if not path.exists():
            return
        with safe_open(path, framework="pt") as file:
            record = json.loads(file.metadata()["training"])
        tensors = load_file(path)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                stored = tensors.get(f"model.{name}")
                if stored is None or stored.shape != parameter.shape:
                    raise ValueError(
                        f"{path}: the checkpoint is of another model ({name} does not fit); choose another directory or the same shape"
                    )
                parameter.copy_(stored)
        for number, optimizer in enumerate(self.optimizers):
            prefix = f"optimizer{number}."
            for index, weight in enumerate(_parameters(optimizer)):
                start = f"{prefix}{index}."
                optimizer.state[weight] = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        self.step, self.seen_seconds = int(record["step"]), float(record["seconds"])

    def _optimizer_tensors(self) -> Iterator[tuple[int, str, Tensor]]:
        for number, optimizer in enumerate(self.optimizers):
            for index, parameter in enumerate(_parameters(optimizer)):
                for name, value in optimizer.state[parameter].items():
                    yield number, f"{index}.{name}", torch.as_tensor(value)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def train_blockwise(
    corpus: np.ndarray,
    validation: np.ndarray,
    directory: str | os.PathLike[str],
    shape: ModelShape,
    options: TrainingOptions,
    eos_id: int,
    tokenizer_fingerprint: str | None = None,
    progress: bool = True,
) -> BlockwiseLM:
    """Train a blockwise model on token ids, or go on with the run in ``directory``; returns the model."""
    torch.manual_seed(options.seed)
    model = new_model(shape, eos_id, tokenizer_fingerprint)
    Trainer(model, corpus, validation, Path(directory), options).run(progress)
    model.eval()
    return model
