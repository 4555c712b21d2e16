"""Counts of parts of the data that add up to the counts of all of it, exactly: every sum is of integers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from latticebpd.measuring.lattice_files import Shard
from latticebpd.measuring.signature import Signature
from latticebpd.scoring.weights import DECODE


def ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """NaN where ``below`` is 0."""
    above, below = np.broadcast_arrays(above, below)
    return np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)


def block_efficiency(by: str | None, counts: np.ndarray, decode_totals: np.ndarray) -> np.ndarray:
    """``[...]`` tokens per call of decodes; by position the mean accepted length, and the token that comes free.

    counts: ``[..., slots + 1]`` steps by accepted drafted tokens. decode_totals: ``[..., 3]`` of ``DecodeReplay``.
    """
    if by == DECODE:
        return ratio(decode_totals[..., 0], decode_totals[..., 1])
    return ratio(counts @ np.arange(counts.shape[-1]), counts.sum(axis=-1)) + 1


STORED_NAMES = {"repetition_changes": "mended", "decode_totals": "walked"}
"""Arrays that records call otherwise."""


@dataclass(frozen=True, eq=False)
class MergeableCounts:
    """Sums over lattices. Subclasses add *keys*, tuples of what is counted, and int64 arrays with an axis for each.

    KIND: name of the record. COMMAND: the command that writes it. signature: what the numbers depend on.
    parts: those of the data that were counted, each once; empty if not known.
    """

    KIND: ClassVar[str]
    COMMAND: ClassVar[str]

    signature: Signature
    parts: frozenset[Shard] = field(default=frozenset(), kw_only=True)

    def __post_init__(self) -> None:
        if len({part.count for part in self.parts}) > 1:
            raise ValueError(f"expected parts of one number, got {', '.join(map(str, sorted(self.parts)))}")

    @classmethod
    def shapes(cls, keys: Mapping[str, tuple[Any, ...]], slots: int) -> dict[str, tuple[int, ...]]:
        """The shape of every array."""
        raise NotImplementedError

    @classmethod
    def zero(cls, signature: Signature, shard: Shard | None, **keys: tuple[Any, ...]) -> Self:
        arrays = {name: np.zeros(shape, np.int64) for name, shape in cls.shapes(keys, signature.heads - 1).items()}
        return cls(signature, **keys, **arrays, parts=frozenset([shard] if shard else []))

    def __add__(self, other: Self) -> Self:
        if type(self) is not type(other) or self._keys() != other._keys() or self.signature != other.signature:
            raise ValueError(f"expected counts of one kind, got {self._description()} and {other._description()}")
        if twice := self.parts & other.parts:
            raise ValueError(f"expected every part once, got {min(twice)} twice")
        names = self.shapes(self._keys(), self.signature.heads - 1)
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return type(self)(self.signature, **self._keys(), **sums, parts=self.parts | other.parts)

    def check_parts(self, without: Collection[int]) -> None:
        """Raises ValueError unless all parts were counted but those that ``without`` numbers."""
        count, own = min(self.parts).count, {part.index for part in self.parts}
        missing = next((index for index in range(count) if index not in own.union(without)), None)
        if missing is not None:
            part, remedy = Shard(missing, count), f"or add up without it by --partial {missing}"
            raise ValueError(f"expected all parts, but {part} is missing; count it with --shard {part}, {remedy}")
        if own.intersection(without) or max(without, default=0) >= count:
            raise ValueError(f"expected --partial to name the missing parts, got {', '.join(map(str, without))}")

    def _keys(self) -> dict[str, tuple[Any, ...]]:
        return {field.name: value for field in fields(self) if isinstance(value := getattr(self, field.name), tuple)}

    def _description(self) -> str:
        keys = (f"{name} {' '.join(map(str, values))}" for name, values in self._keys().items())
        return f"{self.KIND} of {', '.join(keys)}, {self.signature}"

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers; ``from_json`` reads them back exactly."""
        keys, parts = self._keys(), sorted(map(str, self.parts))
        if self.parts and len(self.parts) == min(self.parts).count:
            parts = [str(Shard())]
        names = self.shapes(keys, self.signature.heads - 1)
        arrays = {STORED_NAMES.get(name, name): getattr(self, name).tolist() for name in names}
        lists = {name: [*values] for name, values in keys.items()}
        return {"kind": self.KIND, "signature": asdict(self.signature), "parts": parts, **lists, **arrays}

    @classmethod
    def from_json(cls, record: Any) -> Self:
        """Raises ValueError for anything that ``to_json`` does not write."""
        try:
            if record["kind"] != cls.KIND:
                raise KeyError(record["kind"])
            signature = Signature(**record["signature"])
            keys = {each.name: tuple(record[each.name]) for each in fields(cls) if str(each.type).startswith("tuple")}
            shapes = cls.shapes(keys, signature.heads - 1)
            arrays = {name: np.array(record[STORED_NAMES.get(name, name)], np.int64) for name in shapes}
            parts = frozenset(map(Shard.parse, record.get("parts", ())))
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
            wanted = f"a record of kind {cls.KIND!r}, as `{cls.COMMAND} --tally` writes it"
            raise ValueError(f"expected {wanted}, got something else: {error}; make it anew") from error
        for name, array in arrays.items():
            if array.shape != shapes[name] or array.min(initial=0) < 0:
                raise ValueError(f"expected {name} as numbers of at least 0 of shape {shapes[name]}, got {array.shape}")
        return cls(signature, **keys, **arrays, parts=parts)
