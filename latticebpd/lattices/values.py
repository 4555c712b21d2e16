"""Frozen dataclasses of read-only arrays, compared and hashed by their contents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import Any

import numpy as np

LARGEST_TOKEN = np.iinfo(np.int32).max - 1


class ArrayValues:
    """Equality and hash for a dataclass with ``eq=False``; NaN equals NaN."""

    def _compared(self) -> Iterator[Any]:
        return (getattr(self, field.name) for field in fields(self) if field.compare)  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(map(_equal, self._compared(), other._compared()))

    def __hash__(self) -> int:
        return hash(tuple(map(_hashable, self._compared())))

    def _assign(self, **values: Any) -> None:
        """Set fields of the frozen dataclass, for its ``__post_init__``."""
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return np.array_equal(a, b, equal_nan=a.dtype.kind == b.dtype.kind == "f")
    return type(a) is type(b) and bool(a == b)


def _hashable(value: Any) -> Any:
    """Float arrays by their shape only: equal floats such as 0 and -0 may differ in their bytes."""
    if not isinstance(value, np.ndarray):
        return value
    return value.shape, value.tobytes() if value.dtype.kind in "iu" else b""


def int32(name: str, values: Any) -> np.ndarray:
    """``values`` as a read-only int32 array, copied only to convert the type; ValueError if they do not fit."""
    array = np.asarray(values)
    if array.size and (array.dtype.kind not in "iu" or array.min() < -(2**31) or array.max() >= 2**31):
        got = f"{array.dtype} from {array.min()} to {array.max()}"
        raise ValueError(f"expected {name} as integers that fit 32 bits, got {got}")
    return read_only(np.ascontiguousarray(array, dtype=np.int32))


def read_only(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def first_number(config: Any, *names: str) -> int | None:
    """The integer under the first of the names that a configuration has one under; None without any."""
    return next((value for name in names if isinstance(value := getattr(config, name, None), int)), None)


def check_layers(layers: Iterable[int], deepest: int) -> None:
    """ValueError for layers, counted from 1, that a model of ``deepest`` layers does not have."""
    wanted = list(layers)
    if any(not 1 <= layer <= deepest for layer in wanted):
        raise ValueError(f"expected layers from 1 to {deepest} (the model's), got {', '.join(map(str, wanted))}")


def as_numpy(values: Any) -> np.ndarray:
    """Arrays, nested lists and torch tensors (on any device, of any float type) as numpy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if values.is_floating_point():
            values = values.float()
        return np.asarray(values.numpy())
    return np.asarray(values)


def as_tensor(value: Any) -> Any:
    """An array as a tensor of the same memory; PyTorch is imported only for that. Other values stay."""
    if not isinstance(value, np.ndarray):
        return value
    import torch

    return torch.from_numpy(value)


def array_for(consumer: object, array: np.ndarray) -> Any:
    """What a streamer or a stopping criterion receives: the array itself if it ``accepts_numpy``, else a tensor."""
    return array if getattr(consumer, "accepts_numpy", False) else as_tensor(array)
