"""Query, key, mask, bias and log-sum-exp of single heads, so that a page computes any weight.

They are parts with names: what heads have in common, a key, a mask or a bias, is one part. Numbers
are in single precision, or of 16 or 15 bits: the range of a dimension, from its smallest to its
largest number over all tokens, in equal steps. The log-sum-exp of a row is that of the numbers as
the page has them, so that its weights sum to one.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heedful.ops.indexing import evenly
from heedful.ops.inputs import HIDDEN, AttentionInputs
from heedful.ops.map_region import weights
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Padding, Window
from heedful.ops.statistics import LogSumExp, gather
from heedful.recording import Call
from heedful.views.explorer.wire import packed, planes

SINGLE = 32  # bits of a number
SAMPLED = 16  # queries of a head whose weights are compared
ROWS = 256  # of a bias that are looked at in one go
BITS = 512  # queries whose bits of a mask are made in one go

Arrays = dict[str, Tensor]


class Inputs:
    """What a page computes the weights of one call from.

    Args:
        name: of the call; the names of its parts end with it.
        call: whose heads.
        bits: of a number: 32, or fewer.
    """

    def __init__(self, name: str, call: Call, bits: int) -> None:
        self.call, self.bits, self._name = call, bits, name
        self._causes = call.checked()
        self._keys: dict[int, tuple[Arrays, Tensor]] = {}
        self._mask, arrays = mask_as_data(call)
        self._mask_part = _shared("mask", arrays) if arrays else {}
        self.difference = 0.0  # the largest of a weight to the recording's, in sampled rows

    def about(self) -> dict[str, Any]:
        """What the page needs to find the parts, and the numbers that are no arrays."""
        of, (bias, _) = self._causes, self._bias
        H, G = len(of.query), len(of.key)
        return {
            "scale": of.scale, "softcap": of.softcap, "sinks": of.sinks is not None,
            "mask": self._mask, "mask part": next(iter(self._mask_part), None),
            "bias": [next(iter(part)) for part in bias], "group": H // max(1, G),
        }  # fmt: skip

    def parts(self, head: int) -> dict[str, bytes]:
        """The parts that a head needs, the first by its place in the call."""
        of = self._causes
        bias, bias_back = self._bias
        place = head if len(bias) > 1 else 0
        group = head // (len(of.query) // len(of.key))
        if group not in self._keys:
            self._keys[group] = _coded(of.key[group], self.bits)
        query, query_back = _coded(of.query[head], self.bits)
        key, key_back = self._keys[group]
        alone = of.of_heads(slice(head, head + 1)).on(torch.device("cpu"))
        back = alone._replace(
            query=query_back[None], key=key_back[None],
            bias=bias_back[place] if bias else None,
        )  # fmt: skip
        [sums] = gather(back, LogSumExp(exact=True))
        self._compare(head, back, sums)
        rows = {**query, "sums": sums[0].float().cpu()}
        if of.sinks is not None:
            rows["sinks"] = torch.atleast_1d(of.sinks[head]).float().cpu()
        if (value := self.call.value) is not None:
            rows["values"] = value[head // (len(of.query) // len(value))].float().norm(dim=-1)
        arrays = {f"query-{self._name}-{head}": rows, f"key-{self._name}-{group}": key}
        parts = {name: packed({}, **of_part) for name, of_part in arrays.items()}
        return parts | self._mask_part | (bias[place] if bias else {})

    @cached_property
    def _bias(self) -> tuple[list[dict[str, bytes]], Tensor]:
        """The part of each head's bias, or of all heads', and the bias as the page has it."""
        of = self._causes
        if of.bias is None:
            return [], of.query[:0]
        bias = torch.atleast_2d(of.bias).float().cpu()
        bias = bias.reshape(-1, *bias.shape[-2:]).clamp(min=HIDDEN)
        _, N, M = of.shape
        by_distance = _by_distance(bias) if bias.shape[1:] == (N, M) and N * M > 1 else None
        if by_distance is not None:
            return [_shared("bias", {"distances": row}) for row in by_distance], bias
        coded = [_coded(table.reshape(-1, 1), self.bits) for table in bias]
        shape = torch.tensor(bias.shape[1:], device="cpu")
        parts = [_shared("bias", {**arrays, "shape": shape}) for arrays, _ in coded]
        return parts, torch.stack([back for _, back in coded]).view(bias.shape)

    def _compare(self, head: int, back: AttentionInputs, sums: Tensor) -> None:
        """Note the largest difference of a weight to the recording's, in evenly chosen rows."""
        _, N, M = self.call.shape
        if not N * M:
            return
        rows = evenly(N, SAMPLED)
        # the page adds up products in double precision
        double = back._replace(query=back.query.double(), key=back.key.double())
        mine = weights(double, queries=rows, sums=sums[:, rows].cpu().double())[0]
        theirs = self.call.weights(self.call.heads[head], queries=rows).cpu()
        self.difference = max(self.difference, float((mine - theirs).abs().max()))


def bytes_of(call: Call, bits: int) -> float:
    """About how many bytes all heads of a call take in a page, deflated and in base64."""
    of = call.causes
    bias = 0 if of.bias is None else of.bias.numel()
    numbers = of.query.numel() + of.key.numel() + bias
    return (numbers * bits / 8 + of.query.shape[0] * of.query.shape[1] * 4) * 4 / 3


def _coded(numbers: Tensor, bits: int) -> tuple[Arrays, Tensor]:
    """Numbers (n, d) as a part has them, and as the page reads them again.

    Fewer than 32 bits are whole numbers from 1 on, of which the first is `low` and each next one
    `step` more, (d,) each; 0 is −∞.
    """
    single = numbers.float().cpu()
    if bits == SINGLE or not single.numel():
        return {"numbers": planes(single)}, single
    hidden = single <= HIDDEN / 2
    any_hidden = bool(hidden.any())
    low, high = torch.aminmax(single, dim=0)
    if any_hidden:
        low = single.masked_fill(hidden, torch.inf).amin(0).clamp(max=high)
    step = ((high - low) / (2**bits - 2)).clamp(min=torch.finfo(torch.float32).tiny)
    codes = ((single - low) / step).round().clamp(0, 2**bits - 2)
    back = low + codes * step
    codes += 1
    if any_hidden:
        codes.masked_fill_(hidden, 0)
        back.masked_fill_(hidden, HIDDEN)
    halves = torch.from_numpy(codes.numpy().astype(np.uint16))
    return {"numbers": planes(halves), "low": low, "step": step}, back


def _by_distance(bias: Tensor) -> Tensor | None:
    """(h, N + M − 1), the numbers for m − n + N − 1; None where equal distances differ."""
    N, M = bias.shape[1:]
    table = torch.cat([bias[:, :, 0].flip(1), bias[:, 0, 1:]], dim=1)
    for start in range(0, N, ROWS):
        rows = torch.arange(start, min(start + ROWS, N), device="cpu")
        places = torch.arange(M, device="cpu") - rows[:, None] + N - 1
        if not torch.equal(table[:, places], bias[:, rows]):
            return None
    return table


def _shared(kind: str, arrays: Arrays) -> dict[str, bytes]:
    """A part that many heads may need, named by what is in it."""
    data = packed({}, **arrays)
    return {f"{kind}-{hashlib.blake2b(data, digest_size=8).hexdigest()}": data}


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
        runs = (slice(start, start + BITS) for start in range(0, N, BITS))
        crops = [part.crop(call.shape, run) for run in runs]
        bits = torch.cat([Packed.of(crop).bits for crop in crops], dim=-2)
    bits = bits.reshape(-1, *bits.shape[-2:])
    return bits[:, :1] if bool((bits == bits[:, :1]).all()) else bits
