"""Weights sharded over processes (FSDP2, ``fully_shard``), for models that do not fit on one device.

Every process keeps its share of every weight, gradient and optimizer state. A transformer's blocks are gathered one at
a time while they compute; weights outside of blocks (embeddings, heads) are gathered for the whole step. Checkpoints
and finished models hold full weights, so the number of processes may change between runs.

``torch.distributed.tensor`` takes seconds to import and is imported only for sharded weights. A sharded tensor is
recognised by its ``full_tensor``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def shard(module: nn.Module, device: torch.device) -> None:
    """Shard ``module``'s weights in place over all processes; its optimizers must be created afterwards."""
    from torch.distributed.device_mesh import init_device_mesh

    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # its module in PyTorch 2.5
        from torch.distributed._composable import fsdp

        fully_shard = fsdp.fully_shard  # type: ignore[attr-defined, unused-ignore]
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in _blocks(module):
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


@contextlib.contextmanager
def gathered_root(module: Any) -> Iterator[None]:
    """Gather the weights outside of a sharded module's blocks, so that its parts can be called by themselves.

    All processes must call the same parts in the same order.
    """
    module.unshard()
    try:
        yield
    finally:
        module.reshard()


def full_copy(tensor: Tensor) -> Tensor:
    """A copy of a tensor on its own device, gathered if it is sharded: every process must call this."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()).contiguous()


def full_state(module: nn.Module) -> dict[str, Tensor]:
    """All full weights and buffers by name, on the CPU, tied ones in one tensor: every process must call this."""
    tensors = module.state_dict(keep_vars=True)
    distinct = {id(tensor): tensor for tensor in tensors.values()}
    gathered = {number: full_copy(tensor).cpu() for number, tensor in distinct.items()}
    return {name: gathered[id(tensor)] for name, tensor in tensors.items()}


def like(tensor: Tensor, weight: Any) -> Tensor:
    """A full tensor stored as ``weight`` is: on its device, and sharded if it is."""
    tensor = tensor.to(weight.device)
    if not hasattr(weight, "full_tensor") or tensor.shape != weight.shape:
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, weight.device_mesh, weight.placements)


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The members of the outermost module lists: a transformer's layers."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _blocks(child)
