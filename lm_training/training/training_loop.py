"""The training loop of all families.

An `Objective` is a module whose batches depend only on ``(step, part, parts)`` and whose loss for a step is the mean
over its parts. A checkpoint holds the trained weights, the optimizers' moments and the step, so a killed run resumes
exactly. A step may be split over processes (``torchrun``) and over time (``accumulate``) without changing the result.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from rich.progress import Progress
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fst.files import replacing_files, require_writable, write_text
from latticebpd import console
from latticebpd.checks import expect
from latticebpd.lattices.json_files import write_json
from latticebpd.lattices.texts import Texts
from latticebpd.models.transformers.checkpoints import save_tensors
from lm_training.training.sharding import full_copy, full_state, gathered_root, like, shard
from lm_training.training.training_options import LoopOptions

STATE_WEIGHTS = "training-state.safetensors"
STATE_STEP = "training-state.json"
LOG = "training-log.jsonl"
UPDATES_BETWEEN_TRIMS = 10
CLIP_NORM = 1.0
"""Gradients are scaled down to this norm."""

Batch = TypeVar("Batch")
Options = TypeVar("Options", bound=LoopOptions)


class Objective(nn.Module, Generic[Batch, Options]):
    """What is trained: its batches, and the loss of one.

    Parameters without ``requires_grad`` are neither trained nor stored in checkpoints.

    trained: the texts that are learnt; a resumed run must have the same.
    """

    model: Any
    """The model that is trained and saved; its name is part of the names in checkpoints."""

    tokens_per_step: int
    """Tokens that the model reads in one step, all parts together; for the log."""

    def __init__(self, options: Options, trained: Texts) -> None:
        super().__init__()
        self.options, self.trained_texts = options, trained

    def batch(self, step: int, part: int, parts: int) -> Batch:
        """Part ``part`` of ``parts`` of a step's batch."""
        raise NotImplementedError

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """``loss``, and further scalars or vectors for the log; a step's value is the mean over its parts."""
        raise NotImplementedError

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """Optimizers of all trained parameters, at their peak rates."""
        raise NotImplementedError

    def validate(self) -> dict[str, Any]:
        """Measurements on held-out data, for the log."""
        return {}

    def save(self, directory: Path) -> None:
        """Write the finished model."""
        self.model.save_pretrained(directory)

    def save_full(self, directory: Path, weights: dict[str, Tensor]) -> None:
        """Write the finished model from full weights and buffers by name; its own are sharded over the processes."""
        raise ValueError(f"expected an objective that can be trained with sharded weights, got {type(self).__name__}")


@dataclass(frozen=True)
class Process:
    """This process among those that train together.  progress: whether it shows a progress bar."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    progress: bool = True

    @classmethod
    @contextlib.contextmanager
    def join(cls, device: str = "auto") -> Iterator[Process]:
        """Join the processes that ``torchrun`` started, by NCCL between GPUs and gloo between CPUs."""
        rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        if device == "auto":
            device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
        chosen = torch.device(device)
        if chosen.index is not None and chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        if world == 1:
            yield cls(device=chosen)
            return
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        try:
            yield cls(rank, world, chosen, progress=rank == 0)
        finally:
            dist.destroy_process_group()


@contextlib.contextmanager
def denormals_flushed() -> Iterator[None]:
    """Flush denormals to zero in this thread; processors compute with them a hundred times slower.

    Muon's momentum of a matrix row without gradients (a dead unit) decays to denormals after some 1,700 updates.
    """
    before = float("5e-324") * 2.0 == 0.0  # PyTorch has no getter for it
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


@dataclass
class Trainer:
    """A training run of an objective, on its process's device, in ``directory``, which holds checkpoints, log and the
    finished model.

    identity: what a resumed run must have begun with, next to options and texts: hashes of models, shapes.
    """

    objective: Objective[Any, Any]
    directory: Path
    options: LoopOptions
    process: Process = field(default_factory=Process)
    identity: Mapping[str, Any] = field(default_factory=dict)
    step: int = field(default=0, init=False)
    seconds: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        require_writable(self.directory, "folder")
        self.directory.mkdir(parents=True, exist_ok=True)
        self.fsdp = self.options.fsdp and self.process.world > 1
        self.kind = type(self.objective).__name__  # sharding changes the class
        if self.fsdp:
            shard(self.objective, self.process.device)
        self.optimizers = self.objective.optimizers()
        self._peak_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.optimizers]

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint to resume from."""
        return (self.directory / STATE_WEIGHTS).exists()

    @denormals_flushed()
    def run(self) -> None:
        """Train to the last step, writing log and checkpoints; write the finished model and set it to evaluation."""
        self.restore()
        options = self.options
        module: Any = torch.compile(self.objective) if options.compile else self.objective
        if self.process.world > 1 and not self.fsdp:
            module = DistributedDataParallel(module)
        with console.progress() if self.process.progress else Progress(disable=True) as bar:
            task = bar.add_task("training", total=options.steps, completed=self.step)
            while self.step < options.steps:
                started = time.perf_counter()
                values = self.update(module, options.rate_factor(self.step))
                seconds = time.perf_counter() - started
                self.seconds += seconds
                if self.step % UPDATES_BETWEEN_TRIMS == 0:
                    trim_heap()
                loss, rate = values["loss"], self.objective.tokens_per_step / seconds
                if not math.isfinite(loss):
                    rates = ", ".join(str(rate) for rates in self._peak_rates for rate in rates)
                    raise ValueError(f"the loss is {loss} at step {self.step}; lower the learning rate (now {rates})")
                if self.process.rank == 0 or self.fsdp:  # all processes together gather sharded weights
                    self._record({"step": self.step, **values, "tokens_per_second": round(rate)})
                bar.update(task, completed=self.step, description=f"training (loss {loss:.3f}, {rate:,.0f} tokens/s)")
        self.objective.eval()
        weights = full_state(self.objective) if self.fsdp else {}
        if self.process.rank == 0:
            with replacing_files(self.directory) as directory:
                if self.fsdp:
                    self.objective.save_full(directory, weights)
                else:
                    self.objective.save(directory)
        if self.process.world > 1:
            dist.barrier()

    def _record(self, record: dict[str, Any]) -> None:
        """Validate and write a checkpoint where they are due; append to the log."""
        last = self.step == self.options.steps
        if self.step % self.options.validation_every == 0 or last:
            record["validation"] = self.validate()
        if self.process.rank == 0:
            with open(self.directory / LOG, "a", encoding="utf-8") as log:
                log.write(json.dumps(record) + "\n")
        if self.step % self.options.checkpoint_every == 0 or last:
            self.checkpoint()

    def update(self, module: Any, factor: float) -> dict[str, Any]:
        """One step at ``factor`` times the peak rates; returns its values for the log, means over all parts."""
        self.objective.train()
        sums: dict[str, Tensor] = {}
        turns, bfloat16 = self.options.accumulate, self.options.precision == "bfloat16"
        parts = self.process.world * turns
        for turn in range(turns):
            part = self.process.rank * turns + turn
            batch = self.objective.batch(self.step, part, parts)
            # Dropout depends only on step and part, so that a resumed run equals an unbroken one.
            torch.manual_seed((self.options.seed * 1_000_003 + self.step) * 1009 + part)
            synchronise = self.process.world == 1 or turn == turns - 1  # else add gradients up locally
            if self.fsdp:
                sharded: Any = self.objective
                sharded.set_requires_gradient_sync(synchronise)
            with contextlib.nullcontext() if synchronise or self.fsdp else module.no_sync():
                with torch.autocast(self.process.device.type, torch.bfloat16, enabled=bfloat16):
                    values = module(batch)
                (values["loss"] / turns).backward()
            for name, value in values.items():
                sums[name] = sums.get(name, 0) + value.detach().float() / parts
        if self.process.world > 1:
            for value in sums.values():
                dist.all_reduce(value)
        weights = [weight for optimizer in self.optimizers for weight in _parameters(optimizer)]
        torch.nn.utils.clip_grad_norm_(weights, CLIP_NORM)
        for optimizer, rates in zip(self.optimizers, self._peak_rates, strict=True):
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {name: rounded(value.tolist()) if value.ndim else float(value) for name, value in sums.items()}

    @torch.no_grad()
    def validate(self) -> dict[str, Any]:
        """The objective's measurements on held-out data."""
        self.objective.eval()
        with gathered_root(self.objective) if self.fsdp else contextlib.nullcontext():
            return self.objective.validate()

    def checkpoint(self) -> None:
        """Write what a later run needs to resume, with any number of processes."""
        tensors: dict[str, Tensor] = {name: full_copy(tensor) for name, tensor in self._trained()}
        for number, optimizer in enumerate(self.optimizers):
            for index, parameter in enumerate(_parameters(optimizer)):
                for name, value in optimizer.state[parameter].items():
                    tensors[f"optimizer{number}.{index}.{name}"] = full_copy(torch.as_tensor(value))
        if self.process.rank:
            return
        record = {"step": self.step, "options": self.options.record(), "made_of": self.run_identity}
        record["seconds"] = self.seconds
        save_tensors(self.directory / STATE_WEIGHTS, tensors, {"training": json.dumps(record)})
        write_json(self.directory / STATE_STEP, record, indent=2)  # for people; the checkpoint holds it, too

    def restore(self) -> None:
        """Load the directory's checkpoint, if it has one, and drop the log's lines after it."""
        path = self.directory / STATE_WEIGHTS
        if not self.begun:
            self._trim_log()
            return
        try:
            with safe_open(path, framework="pt") as file:
                record = json.loads(file.metadata()["training"])
            self._compare(record)
            tensors = load_file(path)
        except (SafetensorError, KeyError, TypeError, AttributeError, json.JSONDecodeError, RecursionError) as error:
            message = f"{path}: expected a checkpoint of this program: {error}; choose another directory"
            raise ValueError(message) from error
        with torch.no_grad():
            for name, parameter in self._trained():
                stored = tensors.get(name)
                if stored is None or stored.shape != parameter.shape:
                    message = f"{path}: the checkpoint is of another model ({name} does not fit)"
                    raise ValueError(f"{message}; choose another directory or the same shape")
                parameter.copy_(like(stored, parameter))
        for number, optimizer in enumerate(self.optimizers):
            for index, weight in enumerate(_parameters(optimizer)):
                start = f"optimizer{number}.{index}."
                # AdamW's step count is a scalar and stays on the CPU.
                optimizer.state[weight] = {
                    name.removeprefix(start): like(tensor, weight) if tensor.ndim else tensor
                    for name, tensor in tensors.items()
                    if name.startswith(start)
                }
        self.step, self.seconds = int(record["step"]), float(record["seconds"])
        self._trim_log()
        if self.process.rank == 0:
            write_json(self.directory / STATE_STEP, record, indent=2)

    @functools.cached_property
    def run_identity(self) -> dict[str, Any]:
        texts = {"training": self.kind, "data": self.objective.trained_texts.fingerprint()}
        return json.loads(json.dumps({**texts, **self.identity, **self.options.record(free=False)}))

    def _compare(self, record: dict[str, Any]) -> None:
        """ValueError for a checkpoint of another run."""
        stored = record["made_of"]
        for name, value in sorted(self.run_identity.items()):
            if stored.get(name) != value:
                message = f"{self.directory}: holds a run with {name} {stored.get(name)}, asked for is {value}"
                raise ValueError(f"{message}; choose another directory, or go on with the same")
        wanted, steps = f"at least {record['step']} steps, which the run there has made", self.options.steps
        expect(int(record["step"]) <= steps, wanted, steps, of=self.directory)

    def _trim_log(self) -> None:
        log = self.directory / LOG
        if self.process.rank == 0 and log.exists():
            lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(log, "".join(line for line in lines if _step_of(line) <= self.step))

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.objective.named_parameters() if parameter.requires_grad)


def trim_heap() -> None:
    """Return freed memory to the system, in a few milliseconds; only glibc needs and offers it.

    Batches differ in shape, so freed tensors leave gaps: some 30 MB per update of a block drafter.
    """
    if (trim := _malloc_trim()) is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl and macOS lack the function, Windows the library
        return None


def _step_of(line: str) -> float:
    """The step of a log line; infinity for a line that a kill has cut short."""
    try:
        return int(json.loads(line)["step"])
    except (json.JSONDecodeError, KeyError, TypeError, ValueError):
        return math.inf


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def rounded(values: Iterable[Any]) -> list[float]:
    """Numbers for the log, to four digits after the point."""
    return [round(float(value), 4) for value in values]
