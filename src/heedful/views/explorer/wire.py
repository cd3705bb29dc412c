"""The binary format of responses: a JSON header, then the raw bytes of arrays.

The first four bytes are the length of the header. The header and each array are padded to a
multiple of eight bytes. All numbers are little-endian. Tokens are JSON strings, never HTML.
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
UNCHANGED = (torch.float16, torch.uint8)  # types that are sent without conversion


def packed(head: Mapping[str, Any], /, **arrays: Tensor) -> bytes:
    """Pack a header and named arrays, as float32 or int32 unless their type is in `UNCHANGED`.

    >>> data = packed({"word": "exact"}, map=torch.zeros(2, 3))
    >>> unpacked(data)[0]["word"], unpacked(data)[1]["map"].shape
    ('exact', (2, 3))
    """
    parts = {name: _as_numpy(array) for name, array in arrays.items()}
    types = {
        name: {"type": part.dtype.name, "shape": list(part.shape)} for name, part in parts.items()
    }
    text = json.dumps(json_safe({**head, "arrays": types}), ensure_ascii=True).encode()
    text += b" " * (-(len(text) + 4) % ALIGNED)
    return struct.pack("<I", len(text)) + text + b"".join(_bytes(part) for part in parts.values())


def unpacked(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header and the arrays that `packed` wrote."""
    (length,) = struct.unpack_from("<I", data)
    head = json.loads(data[4 : 4 + length])
    arrays, start = {}, 4 + length
    for name, about in head.pop("arrays").items():
        dtype, count = np.dtype(about["type"]), math.prod(about["shape"])
        arrays[name] = np.frombuffer(data, dtype, count, start).reshape(about["shape"])
        start += -(-count * dtype.itemsize // ALIGNED) * ALIGNED
    return head, arrays


def json_safe(value: Any) -> Any:
    """Replace recursively what JSON lacks: NaN by None, infinities by "inf" and "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("-inf" if value < 0 else "inf")
    if isinstance(value, dict):
        return {key: json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value


def _as_numpy(array: Tensor) -> np.ndarray:
    dtype = torch.float32 if array.is_floating_point() else torch.int32
    if array.dtype in UNCHANGED:
        dtype = array.dtype
    return array.detach().to("cpu", dtype).contiguous().numpy()


def _bytes(part: np.ndarray) -> bytes:
    return part.tobytes() + b"\0" * (-part.nbytes % ALIGNED)


def planes(array: Tensor) -> Tensor:
    """Group the bytes of numbers by significance: uint8, (bytes per number, …).

    Similar numbers share their most significant bytes, so the result deflates better.
    """
    split = array.cpu().contiguous().view(-1, 1).view(torch.uint8).T
    return split.reshape(array.itemsize, *array.shape)
