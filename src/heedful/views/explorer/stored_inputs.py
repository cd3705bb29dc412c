"""Attention inputs of heads in a standalone page, which computes weights from them.

They are stored as named parts. A key, mask or bias that several heads share is one part. Numbers
have 32 bits (single precision) or 16. With 16 bits, they are codes: the range of each
dimension over all tokens is divided into equal steps. The log-sum-exp of a row is computed from the
rounded numbers, so that the page's weights sum to one.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.ops.indexing import evenly_spaced
from heedful.ops.inputs import MASKED_SCORE, AttentionInputs
from heedful.ops.map_region import weights
from heedful.ops.mask_base import parts_of
from heedful.ops.masks import Causal, KeyRanges, Mask, Packed, Padding, Window
from heedful.ops.statistics import LogSumExp, gather
from heedful.recording import Call
from heedful.views.explorer.wire import packed, planes

SINGLE = 32  # bits per number in single precision
SAMPLED = 16  # rows of weights per head that are compared with those of the recording
ROWS = 256  # rows of a bias per comparison
BITS = 512  # rows of a mask per computation

Arrays = dict[str, Tensor]


class StoredInputs:
    """The attention inputs of a call as the page stores them.

    Args:
        name: the identifier of the call, which is in the names of its parts.
        call: the call; a refuted call raises an error.
        bits: the bits per number: 32 or 16.
    """

    def __init__(self, name: str, call: Call, bits: int) -> None:
        self.call, self.bits, self._name = call, bits, name
        self._inputs = call.checked_inputs()
        self._keys: dict[int, tuple[Arrays, Tensor]] = {}
        self._mask, arrays = mask_as_data(call)
        self._mask_part = _shared("mask", arrays) if arrays else {}
        self.difference = 0.0  # largest deviation of a weight from the recording's, in sampled rows

    def about(self) -> dict[str, Any]:
        """Return the names of the shared parts, and the scalars of the call."""
        inputs, (bias, _) = self._inputs, self._bias
        H, G = len(inputs.query), len(inputs.key)
        return {
            "scale": inputs.scale, "softcap": inputs.softcap, "sinks": inputs.sinks is not None,
            "mask": self._mask, "mask part": next(iter(self._mask_part), None),
            "bias": [next(iter(part)) for part in bias], "group": H // max(1, G),
        }  # fmt: skip

    def parts(self, head: int) -> dict[str, bytes]:
        """Return the parts of a head by name, given the head's index in the call."""
        inputs = self._inputs
        bias, bias_rounded = self._bias
        bias_index = head if len(bias) > 1 else 0
        group = head // (len(inputs.query) // len(inputs.key))
        if group not in self._keys:
            self._keys[group] = _coded(inputs.key[group], self.bits)
        query, query_rounded = _coded(inputs.query[head], self.bits)
        key, key_rounded = self._keys[group]
        single = inputs.of_heads(slice(head, head + 1)).on(torch.device("cpu"))
        rounded = single._replace(
            query=query_rounded[None], key=key_rounded[None],
            bias=bias_rounded[bias_index] if bias else None,
        )  # fmt: skip
        [sums] = gather(rounded, LogSumExp(exact=True))
        self._compare(head, rounded, sums)
        rows = {**query, "sums": sums[0].float().cpu()}
        if inputs.sinks is not None:
            rows["sinks"] = torch.atleast_1d(inputs.sinks[head]).float().cpu()
        if (value := self.call.value) is not None:
            rows["values"] = value[head // (len(inputs.query) // len(value))].float().norm(dim=-1)
        arrays = {f"query-{self._name}-{head}": rows, f"key-{self._name}-{group}": key}
        parts = {name: packed({}, **part) for name, part in arrays.items()}
        return parts | self._mask_part | (bias[bias_index] if bias else {})

    @cached_property
    def _bias(self) -> tuple[list[dict[str, bytes]], Tensor]:
        """The parts of the bias, one per head or one for all heads, and the rounded bias."""
        inputs = self._inputs
        if inputs.bias is None:
            return [], inputs.query[:0]
        bias = torch.atleast_2d(inputs.bias).float().cpu()
        bias = bias.reshape(-1, *bias.shape[-2:]).clamp(min=MASKED_SCORE)
        _, N, M = inputs.shape
        by_distance = _by_distance(bias) if bias.shape[1:] == (N, M) and N * M > 1 else None
        if by_distance is not None:
            return [_shared("bias", {"distances": row}) for row in by_distance], bias
        coded = [_coded(table.reshape(-1, 1), self.bits) for table in bias]
        shape = torch.tensor(bias.shape[1:], device="cpu")
        parts = [_shared("bias", {**arrays, "shape": shape}) for arrays, _ in coded]
        return parts, torch.stack([rounded for _, rounded in coded]).view(bias.shape)

    def _compare(self, head: int, rounded: AttentionInputs, sums: Tensor) -> None:
        """Update `difference` with a head's weights in evenly spaced rows."""
        _, N, M = self.call.shape
        if not N * M:
            return
        rows = evenly_spaced(N, SAMPLED)
        # the page computes scores in double precision
        double = rounded._replace(query=rounded.query.double(), key=rounded.key.double())
        computed = weights(double, queries=rows, sums=sums[:, rows].cpu().double())[0]
        recorded = self.call.weights(self.call.heads[head], queries=rows).cpu()
        self.difference = max(self.difference, float((computed - recorded).abs().max()))


def size_of(call: Call, bits: int) -> float:
    """Estimate how many bytes the inputs of all heads of a call take in a page, in base64."""
    inputs = call.causes
    bias = 0 if inputs.bias is None else inputs.bias.numel()
    numbers = inputs.query.numel() + inputs.key.numel() + bias
    return (numbers * bits / 8 + inputs.query.shape[0] * inputs.query.shape[1] * 4) * 4 / 3


def _coded(numbers: Tensor, bits: int) -> tuple[Arrays, Tensor]:
    """Return the arrays that encode numbers (n, d), and the numbers that the page decodes.

    With fewer than 32 bits, code 0 means −∞, and code c ≥ 1 means low + (c − 1) · step.
    """
    single = numbers.float().cpu()
    if bits == SINGLE or not single.numel() or bool(single.isnan().any()):  # NaN has no code
        return {"numbers": planes(single)}, single
    masked = single <= MASKED_SCORE / 2
    any_masked = bool(masked.any())
    low, high = torch.aminmax(single, dim=0)
    if any_masked:
        low = single.masked_fill(masked, torch.inf).amin(0).clamp(max=high)
    step = ((high - low) / (2**bits - 2)).clamp(min=torch.finfo(torch.float32).tiny)
    codes = ((single - low) / step).round().clamp(0, 2**bits - 2)
    decoded = low + codes * step
    codes += 1
    if any_masked:
        codes.masked_fill_(masked, 0)
        decoded.masked_fill_(masked, MASKED_SCORE)
    halves = torch.from_numpy(codes.numpy().astype(np.uint16))
    return {"numbers": planes(halves), "low": low, "step": step}, decoded


def _by_distance(bias: Tensor) -> Tensor | None:
    """Return the bias (h, N + M − 1), indexed by m − n + N − 1; None if it varies for an m − n."""
    N, M = bias.shape[1:]
    table = torch.cat([bias[:, :, 0].flip(1), bias[:, 0, 1:]], dim=1)
    for start in range(0, N, ROWS):
        rows = torch.arange(start, min(start + ROWS, N), device="cpu")
        indices = torch.arange(M, device="cpu") - rows[:, None] + N - 1
        if not torch.equal(table[:, indices], bias[:, rows]):
            return None
    return table


def _shared(kind: str, arrays: Arrays) -> dict[str, bytes]:
    """Return a part that heads may share, named by its digest."""
    data = packed({}, **arrays)
    return {f"{kind}-{hashlib.blake2b(data, digest_size=8).hexdigest()}": data}


def mask_as_data(call: Call) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return a call's mask as conditions, all true if a pair is unmasked, and their arrays by name.

    n is a query, m a key. causal: m ≤ n + value. window: |n + offset − m| < value. runs: first ≤
    m < end, both given per query. bits: (1 or H, 1 or N, ⌈M/8⌉) bytes, lowest bit first.
    """
    _, N, M = call.shape
    conditions: list[dict[str, Any]] = []
    arrays: dict[str, Tensor] = {}
    for i, part in enumerate(parts_of(call.causes.mask)):
        offset = M - N if getattr(part, "offset", None) is None else part.offset  # type: ignore[attr-defined]
        if isinstance(part, Causal):
            conditions.append({"causal": offset})
        elif isinstance(part, Window):
            conditions.append({"window": part.size, "offset": offset})
        elif isinstance(part, KeyRanges):
            conditions.append({"runs": f"mask{i}"})
            arrays[f"mask{i}"] = torch.stack([part.first, part.end])
        else:
            conditions.append({"bits": f"mask{i}"})
            arrays[f"mask{i}"] = _bits(part, call)
    return conditions, arrays


def _bits(part: Mask, call: Call) -> Tensor:
    """Return a mask as packed bits; a single row if all queries have the same mask."""
    N = call.shape[1]
    if isinstance(part, Packed):
        bits = part.bits
    elif isinstance(part, Padding):
        bits = Packed.of(torch.atleast_2d(part.keep)).bits
    else:
        runs = (slice(start, start + BITS) for start in range(0, N, BITS))
        crops = [part.crop(call.shape, run) for run in runs]
        bits = torch.cat([Packed.of(crop).bits for crop in crops], dim=-2)
    bits = bits.reshape(-1, *bits.shape[-2:])
    return bits[:, :1] if bool((bits == bits[:, :1]).all()) else bits
