"""The training loop: one for blockwise models, heads, rescorers and drafters alike.

What is trained is an `Objective`: a module whose batches are functions of ``(step, part, parts)`` and of nothing else,
and whose loss for a step is the mean over its parts.  A checkpoint therefore holds the trained weights, the optimizers'
moments and the step; training that is killed at any moment goes on as if it had not been, and the same step may be cut
into parts over processes (``torchrun``) and over time (``accumulate``) without changing what is learnt.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fst.files import replacing, replacing_files, require_writable
from latticebpd import console
from lm_training.training.sharding import gathered_root, like, shard, sync_gradients, whole, whole_state
from lm_training.training.training_options import LoopOptions
from lm_training.training.trim_heap import trim_heap

STATE_WEIGHTS = "training-state.safetensors"
STATE_STEP = "training-state.json"
LOG = "training-log.jsonl"
UPDATES_BETWEEN_TRIMS = 10

Batch = TypeVar("Batch")


class Objective(nn.Module, Generic[Batch]):
    """What is trained: where batches come from, and the loss of one.

    Parameters that do not require gradients are neither trained nor stored in checkpoints.
    """

    tokens_per_step: int
    """Tokens that the model reads in one step, all parts together; for the log."""

    legacy_defaults: Mapping[str, Any] = {}
    """What runs of earlier versions, which do not say it, were begun with; part of ``run_identity``."""

    def __init__(self, options: LoopOptions) -> None:
        super().__init__()
        self.options = options

    def batch(self, step: int, part: int, parts: int) -> Batch:
        """Part ``part`` of ``parts`` of a step's batch."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """``loss``, and further scalars or vectors for the log; each one's mean over the parts is the step's."""
        raise NotImplementedError

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers of all trained parameters, at their peak rates."""
        raise NotImplementedError

    def validate(self) -> dict[str, Any]:
        """Measurements on held-out data, for the log."""
        return {}

    def run_identity(self) -> dict[str, Any]:
        """Hashes of data and of models to begin with, and shapes: what a run that goes on must agree with, beside the
        options."""
        raise NotImplementedError

    def save(self, directory: Path) -> None:
        """Write the finished model."""
        raise NotImplementedError

    def save_whole(self, directory: Path, weights: dict[str, Tensor]) -> None:
        """Write the finished model from whole weights and buffers, by name; its own are dealt out over the
        processes."""
        raise ValueError(
            f"expected an objective that can be trained with its weights dealt out, got {type(self).__name__}"
        )


@dataclass(frozen=True)
class Process:
    """This process among those that train together."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @classmethod
    @contextlib.contextmanager
    def join(cls, device: str = "auto") -> Iterator[Process]:
        """Join the processes that ``torchrun`` started, NCCL between GPUs, gloo between CPUs; alone without it."""
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if device == "auto":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        chosen = torch.device(device)
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        if world == 1:
            yield cls(device=chosen)
            return
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        try:
            yield cls(rank, world, chosen)
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """Reckon with zero in place of denormal numbers, which take a processor a hundred times as long.

    The momentum of a matrix row that gets no gradient any more (a dead unit) fades to them after some 1,700 updates.
    """
    before = float("5e-324") * 2.0 == 0.0  # a setting of this thread, which nothing tells
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@dataclass
class Trainer:
    """One training run in ``directory``; ``run`` starts it or takes it up where its last checkpoint left it.

    Args:
        objective: what is trained, on its process's device.
        directory: checkpoints, log and the finished model.
        clip_norm: gradients are scaled down to this norm.
        fsdp: whether weights are dealt out over the processes; with a single one there is nothing to deal.
    """

    objective: Objective[Any]
    directory: Path
    options: LoopOptions
    process: Process = field(default_factory=Process)
    clip_norm: float = 1.0
    step: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)
    fsdp: bool = field(init=False)
    optimizers: list[torch.optim.Optimizer] = field(init=False)

    def __post_init__(self) -> None:
        require_writable(self.directory, "folder")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.fsdp = self.options.fsdp and self.process.world > 1
        if self.fsdp:
            shard(self.objective, self.process.device)
        self.optimizers = self.objective.optimizers()
        self._peak_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return (self.directory / STATE_WEIGHTS).exists()

    @denormals_flushed()
    def run(self, progress: bool = True) -> None:
        """Train to the last step, logging and writing checkpoints on the way; write the finished model."""
        self.restore()
        options, schedule = self.options, self.options.schedule
        module: Any = torch.compile(self.objective) if options.compile else self.objective
        if self.process.world > 1 and not self.fsdp:
            module = DistributedDataParallel(module)
        first = self.process.rank == 0
        with console.progress() if progress and first else Progress(disable=True) as bar:
            task = bar.add_task("training", total=options.steps, completed=self.step)
            while self.step < options.steps:
                started = time.perf_counter()
                values = self.update(module, schedule(self.step))
                seconds = time.perf_counter() - started
                self.seconds += seconds
                if self.step % UPDATES_BETWEEN_TRIMS == 0:
                    trim_heap()
                if not math.isfinite(values["loss"]):
                    rates = ", ".join(str(rate) for rates in self._peak_rates for rate in rates)
                    raise ValueError(
                        f"the loss is {values['loss']} at step {self.step}; lower the learning rate (now {rates})"
                    )
                last = self.step == options.steps
                rate = self.objective.tokens_per_step / seconds
                if first or self.fsdp:  # dealt out weights are gathered by all processes together
                    record = {"step": self.step, **values, "tokens_per_second": round(rate)}
                    if self.step % options.validation_every == 0 or last:
                        record["validation"] = self.validate()
                    if first:
                        with open(self.directory / LOG, "a", encoding="utf-8") as log:
                            log.write(json.dumps(record) + "\n")
                    if self.step % options.checkpoint_every == 0 or last:
                        self.checkpoint()
                bar.update(
                    task, completed=self.step, description=f"training (loss {values['loss']:.3f}, {rate:,.0f} tokens/s)"
                )
        self.objective.eval()
        if self.fsdp:
            weights = whole_state(self.objective)
            if first:
                with replacing_files(self.directory) as directory:
                    self.objective.save_whole(directory, weights)
        elif first:
            with replacing_files(self.directory) as directory:
                self.objective.save(directory)
        if self.process.world > 1:
            dist.barrier()

    def update(self, module: Any, factor: float) -> dict[str, Any]:
        """One step at ``factor`` times the peak rates; returns its values for the log, means over all parts."""
        self.objective.train()
        sums: dict[str, Tensor] = {}
        turns = self.options.accumulate
        parts = self.process.world * turns
        for turn in range(turns):
            batch = self.objective.batch(self.step, self.process.rank * turns + turn, parts)
            together = self.process.world == 1 or turn == turns - 1
            if self.fsdp:
                sync_gradients(self.objective, together)
            with contextlib.nullcontext() if together or self.fsdp else module.no_sync():
                with torch.autocast(
                    self.process.device.type, torch.bfloat16, enabled=self.options.precision == "bfloat16"
                ):
                    values = module(batch)
                (values["loss"] / turns).backward()
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach().float() / parts
        if self.process.world > 1:
            for value in sums.values():
                dist.all_reduce(value)
        trained = [parameter for optimizer in self.optimizers for parameter in _parameters(optimizer)]
        torch.nn.utils.clip_grad_norm_(trained, self.clip_norm)
        for optimizer, rates in zip(self.optimizers, self._peak_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {name: _rounded(value) for name, value in sums.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """What the objective measures on held-out data."""
        self.objective.eval()
        with gathered_root(self.objective) if self.fsdp else contextlib.nullcontext():
            return self.objective.validate()

    def checkpoint(self) -> None:
        """Write what a later run needs to go on, in however many processes."""
        tensors: dict[str, Tensor] = {name: whole(tensor) for name, tensor in self._trained()}
        for number, optimizer in enumerate(self.optimizers):
            for index, parameter in enumerate(_parameters(optimizer)):
                for name, value in optimizer.state[parameter].items():
                    tensors[f"optimizer{number}.{index}.{name}"] = whole(torch.as_tensor(value))
        if self.process.rank:
            return
        record = {
            "step": self.step,
            "options": self.options.record(),
            "made_of": self.run_identity,
            "seconds": self.seconds,
        }
        with replacing(self.directory / STATE_WEIGHTS) as temporary:
            save_file(tensors, temporary, metadata={"training": json.dumps(record)})
        with replacing(self.directory / STATE_STEP) as temporary:
            temporary.write_text(json.dumps(record, indent=2) + "\n")

    def restore(self) -> None:
        """Take up the directory's checkpoint, if it has one; what the log holds beyond it is dropped."""
        path = self.directory / STATE_WEIGHTS
        if not self.begun:
            return
        try:
            with safe_open(path, framework="pt") as file:
                record = json.loads(file.metadata()["training"])
            self._compare(record)
            tensors = load_file(path)
        except (SafetensorError, KeyError, TypeError, AttributeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(
                f"{path}: expected a checkpoint of this program: {error}; choose another directory"
            ) from error
        with torch.no_grad():
            for name, parameter in self._trained():
                stored = tensors.get(name)
                if stored is None or stored.shape != parameter.shape:
                    raise ValueError(
                        f"{path}: the checkpoint is of another model ({name} does not fit); choose another directory or"
                        " the same shape"
                    )
                parameter.copy_(like(stored, parameter))
        for number, optimizer in enumerate(self.optimizers):
            for index, weight in enumerate(_parameters(optimizer)):
                start = f"optimizer{number}.{index}."
                # AdamW keeps its count of steps, a scalar, on the CPU.
                optimizer.state[weight] = {
                    name.removeprefix(start): like(tensor, weight) if tensor.ndim else tensor
                    for name, tensor in tensors.items()
                    if name.startswith(start)
                }
        self.step, self.seconds = int(record["step"]), float(record["seconds"])
        if self.process.rank == 0:
            self._trim_log()

    @functools.cached_property
    def run_identity(self) -> dict[str, Any]:
        """What a run that goes on must have been started with."""
        whole = {
            "objective": type(self.objective).__name__,
            **self.objective.run_identity(),
            **self.options.record(free=False),
        }
        known: dict[str, Any] = json.loads(json.dumps(whole))
        return known

    def _compare(self, record: dict[str, Any]) -> None:
        """ValueError where the checkpoint is of another run; one of an earlier version that does not say so is
        believed."""
        found, wanted = {**self.objective.legacy_defaults, **record.get("made_of", {})}, self.run_identity
        for name in sorted(found.keys() & wanted.keys()):
            if found[name] != wanted[name]:
                raise ValueError(
                    f"{self.directory}: holds a run with {name} {found[name]}, asked for is {wanted[name]}; "
                    "choose another directory, or go on with the same"
                )
        if int(record["step"]) > self.options.steps:
            raise ValueError(
                f"{self.directory}: expected at least {record['step']} steps, which the run there has made, got"
                f" {self.options.steps}"
            )

    def _trim_log(self) -> None:
        log = self.directory / LOG
        if log.exists():
            kept = [
                line
                for line in log.read_text(encoding="utf-8").splitlines(keepends=True)
                if _step_of(line) <= self.step
            ]
            with replacing(log) as temporary:
                temporary.write_text("".join(kept), encoding="utf-8")

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.objective.named_parameters() if parameter.requires_grad)


def _step_of(line: str) -> float:
    """The step of a log line; infinity where a kill has cut it short."""
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        return math.inf


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _rounded(value: Tensor) -> float | list[float]:
    return float(value) if value.ndim == 0 else [round(number, 4) for number in value.tolist()]
