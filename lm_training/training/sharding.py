"""Weights dealt out over processes (FSDP2, ``fully_shard``), for models that do not fit on one device.

Every process keeps its share of every weight, gradient and optimizer state. The blocks of a transformer are gathered
one at a time, when they compute; what is outside of blocks (embeddings, heads) is gathered for the whole step.
Checkpoints and finished models hold whole weights, so one process can read what many have written, and the other way
round.

``torch.distributed.tensor`` takes seconds to import and is so only where weights are dealt out; a dealt out tensor is
told by its ``full_tensor``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def shard(module: nn.Module, device: torch.device) -> None:
    """Deal ``module``'s weights out, in place, over all processes; its optimizers must be made afterwards."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # PyTorch 2.5 has it elsewhere
        from torch.distributed._composable.fsdp import fully_shard  # type: ignore[no-redef, attr-defined, unused-ignore]
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def sync_gradients(module: Any, sync: bool) -> None:
    """Whether the next backward pass averages a dealt out module's gradients over the processes, or adds them up
    locally."""
    module.set_requires_gradient_sync(sync)


@contextlib.contextmanager
def gathered_root(module: Any) -> Iterator[None]:
    """What is outside of a dealt out module's blocks is whole inside the context, so that its parts may be called by
    themselves.

    All processes must call the same parts in the same order.
    """
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def whole(tensor: Tensor) -> Tensor:
    """A copy of a tensor on its own device; of a dealt out one, all of it: every process must call this."""
    tensor = tensor.detach()
    if hasattr(tensor, "full_tensor"):
        gathered: Tensor = tensor.full_tensor().contiguous()
        return gathered
    return tensor.clone().contiguous()


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers by name, whole and on the CPU, tied ones in one tensor: every process must call this."""
    gathered: dict[int, Tensor] = {}
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if id(tensor) not in gathered:
            gathered[id(tensor)] = whole(tensor).cpu()
        state[name] = gathered[id(tensor)]
    return state


def like(tensor: Tensor, weight: Any) -> Tensor:
    """A whole tensor as ``weight`` is kept: on its device, and dealt out where it is."""
    tensor = tensor.to(weight.device)
    if not hasattr(weight, "full_tensor") or tensor.shape != weight.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, weight.device_mesh, weight.placements)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost lists' members: the layers of a transformer."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)
