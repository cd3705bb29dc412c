"""Numbers on their way to a page: a short head in JSON, then the arrays as they lie in memory.

The head's length stands before it in four bytes; it is padded so that arrays begin at a multiple
of eight. All is little-endian. Tokens are JSON strings, never HTML.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

ALIGNED = 8
KEPT = (torch.float16, torch.uint8)  # types that stay what they are


def packed(head: Mapping[str, Any], /, **arrays: Tensor) -> bytes:
    """A head and named arrays as bytes; floats become float32, but for half ones; others int32.

    >>> data = packed({"word": "exact"}, map=torch.zeros(2, 3))
    >>> unpacked(data)[0]["word"], unpacked(data)[1]["map"].shape
    ('exact', (2, 3))
    """
    parts = {name: _as_numpy(array) for name, array in arrays.items()}
    described = {
        name: {"type": part.dtype.name, "shape": list(part.shape)} for name, part in parts.items()
    }
    text = json.dumps(finite({**head, "arrays": described}), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + 4) % ALIGNED)
    return struct.pack("<I", len(text)) + text + b"".join(_bytes(part) for part in parts.values())


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `packed` was given."""
    (length,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + length])
    arrays, start = {}, 4 + length
    for name, about in head.pop("arrays").items():
        kind, count = np.dtype(about["type"]), math.prod(about["shape"])
        arrays[name] = np.frombuffer(data, kind, count, start).reshape(about["shape"])
        start += -(-count * kind.itemsize // ALIGNED) * ALIGNED
    return head, arrays


def finite(value: Any) -> Any:
    """The same with a word for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("-inf" if value < 0 else "inf")
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _as_numpy(array: Tensor) -> np.ndarray:
    kind = torch.float32 if array.is_floating_point() else torch.int32
    if array.dtype in KEPT:
        kind = array.dtype
    return array.detach().to("cpu", kind).contiguous().numpy()


def _bytes(part: np.ndarray) -> bytes:
    data = part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()
    return data + b"\0" * (-len(data) % ALIGNED)


def planes(array: Tensor) -> Tensor:
    """The bytes of numbers, those of one significance together: uint8, (bytes of one, …).

    Where numbers are alike, so are their first bytes: deflated, they then take less.
    """
    numbers = array.contiguous().cpu().numpy()
    little = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    split = little.reshape(-1).view(np.uint8).reshape(-1, little.itemsize).T
    return torch.from_numpy(split.copy()).view(little.itemsize, *array.shape)
