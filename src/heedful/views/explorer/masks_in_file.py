"""A mask as the page computes it: by numbers where it has a rule, else as bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Padding, Window
from heedful.recording import Call

ROWS = 512  # queries whose bits are made in one go


def mask_as_data(call: Call) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The parts of a call's mask, of which all have to allow a pair, and their arrays by name.

    causal: query n sees keys m ≤ n + this. window: |n + offset − m| < this. runs: from one array's
    number up to another's. bits: (1 or H, 1 or N, ⌈M/8⌉) bytes, the lowest bit first.
    """
    mask, (_, N, M) = call.causes.mask, call.shape
    parts: tuple[Mask, ...] = ()
    if mask is not None:
        parts = mask.parts if isinstance(mask, Combined) else (mask,)
    told: list[dict[str, Any]] = []
    arrays: dict[str, Tensor] = {}
    for i, part in enumerate(parts):
        offset = M - N if getattr(part, "offset", None) is None else part.offset  # type: ignore[attr-defined]
        if isinstance(part, Causal):
            told.append({"causal": offset})
        elif isinstance(part, Window):
            told.append({"window": part.size, "offset": offset})
        elif isinstance(part, KeyRanges):
            told.append({"runs": f"mask{i}"})
            arrays[f"mask{i}"] = torch.stack([part.first, part.end])
        else:
            told.append({"bits": f"mask{i}"})
            arrays[f"mask{i}"] = _bits(part, call)
    return told, arrays


def _bits(part: Mask, call: Call) -> Tensor:
    """A table packed; one row of it where all queries see the same."""
    _, N, M = call.shape
    if isinstance(part, Packed):
        bits = part.bits
    elif isinstance(part, Dense | Padding):
        table = part.table if isinstance(part, Dense) else part.keep
        table = torch.atleast_2d(table)
        bits = Packed.of(table.expand(*table.shape[:-1], M)).bits
    else:
        runs = (slice(start, start + ROWS) for start in range(0, N, ROWS))
        crops = [part.crop(call.shape, run) for run in runs]
        bits = torch.cat([Packed.of(crop).bits for crop in crops], dim=-2)
    bits = bits.reshape(-1, *bits.shape[-2:])
    return bits[:, :1] if bool((bits == bits[:, :1]).all()) else bits
