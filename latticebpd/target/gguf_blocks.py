"""Weights of GGUF files as float32, by NumPy: the formulas of ggml's blocks.

``d`` and ``m`` are a block's scale and minimum in half precision, ``q`` its codes of 4 to 8 bits. Products are rounded
to float32 in the order written, as ggml rounds them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from latticebpd.target.gguf_file import BLOCKS, GgmlType, GgufTensor

Bytes = NDArray[np.uint8]
Codes = NDArray[np.integer[Any]]
Floats = NDArray[np.float32]


@np.errstate(all="ignore")  # scales may be infinite or no numbers
def dequantized(tensor: GgufTensor) -> Floats:
    """A tensor's numbers in its shape, ``[outputs, inputs]`` for a matrix; of F32, a view of the file. ValueError for a
    type without a formula."""
    if tensor.type not in _FORMULAS:
        known = ", ".join(kind.name for kind in _FORMULAS)
        raise ValueError(f"expected tensor {tensor.name!r} as one of {known}, got {tensor.type.name}")
    return _FORMULAS[tensor.type](tensor.data.reshape(-1, BLOCKS[tensor.type][1])).reshape(tensor.shape)


def _half(blocks: Bytes, at: int) -> Floats:
    """``[blocks, 1]``, the number in half precision at a byte."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(codes: Bytes) -> Bytes:
    """``[..., n] -> [..., 2, n]``: the low and the high four bits of each byte."""
    return np.stack((codes & 15, codes >> 4), axis=-2)


def _halves(blocks: Bytes, at: int) -> Bytes:
    """``[blocks, 32]``: element ``i`` is the low four bits of byte ``i``, element ``i + 16`` its high ones."""
    return _nibbles(blocks[:, at:]).reshape(-1, 32)


def _fives(blocks: Bytes, at: int) -> Codes:
    """`_halves` after 32 bits, which are the elements' fifth bits."""
    return _halves(blocks, at + 4) | np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _centred(codes: Codes, zero: int) -> NDArray[np.int8]:
    return codes.view(np.int8) - np.int8(zero)


def _scaled(scale: Floats, codes: Codes) -> Floats:
    """Float32 products, without a copy of the codes in float32."""
    return np.multiply(scale, codes, dtype=np.float32)


def _of_256(blocks: Bytes, fifth_bits: bool) -> Floats:
    """Eight sub-blocks of 32 with scales and minima of six bits: ``(d * scale) * q - (dmin * minimum)``."""
    first, second, third = np.split(blocks[:, 4:16], 3, axis=1)
    scales = np.hstack((first & 63, (third & 15) | (first >> 6) << 4))
    minima = np.hstack((second & 63, (third >> 4) | (second >> 6) << 4))
    codes = _nibbles(blocks[:, -128:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    if fifth_bits:  # bit j of byte l is of element l of sub-block j
        codes |= np.unpackbits(blocks[:, 16:48, None], axis=2, bitorder="little").swapaxes(1, 2) << 4
    values = _scaled(_scaled(_half(blocks, 0), scales)[:, :, None], codes)
    values -= _scaled(_half(blocks, 2), minima)[:, :, None]
    return values


def _q6_k(blocks: Bytes) -> Floats:
    """Two halves of four groups of 32; a signed scale for every 16: ``(d * scale) * q``."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 2, 32)).swapaxes(2, 3).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = _scaled(_half(blocks, 208), blocks[:, 192:208].view(np.int8))
    return _scaled(scales[:, :, None], _centred(low | high << 4, 32).reshape(-1, 16, 16))


_FORMULAS: dict[GgmlType, Callable[[Bytes], Floats]] = {
    GgmlType.F32: lambda blocks: blocks.view("<f4"),
    GgmlType.F16: lambda blocks: blocks.view("<f2").astype(np.float32),
    GgmlType.BF16: lambda blocks: (blocks.view("<u2").astype(np.uint32) << 16).view(np.float32),
    GgmlType.Q4_0: lambda blocks: _scaled(_half(blocks, 0), _centred(_halves(blocks, 2), 8)),
    GgmlType.Q4_1: lambda blocks: _scaled(_half(blocks, 0), _halves(blocks, 4)) + _half(blocks, 2),
    GgmlType.Q5_0: lambda blocks: _scaled(_half(blocks, 0), _centred(_fives(blocks, 2), 16)),
    GgmlType.Q5_1: lambda blocks: _scaled(_half(blocks, 0), _fives(blocks, 4)) + _half(blocks, 2),
    GgmlType.Q8_0: lambda blocks: _scaled(_half(blocks, 0), blocks[:, 2:].view(np.int8)),
    GgmlType.Q4_K: lambda blocks: _of_256(blocks, fifth_bits=False),
    GgmlType.Q5_K: lambda blocks: _of_256(blocks, fifth_bits=True),
    GgmlType.Q6_K: _q6_k,
}
