"""Query, key and log-sum-exp of a call as a file has them, so that a page computes any weight.

In half precision each is kept times a power of two, so that its largest number is well within the
range: a model whose queries are large loses no digits by it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN, Causes
from heedful.ops.cells import weights
from heedful.ops.evenly import evenly
from heedful.ops.statistics import LogSumExp, gather
from heedful.recording import Call
from heedful.recording.progress import Tell
from heedful.views.explorer.masks_in_file import mask_as_data
from heedful.views.explorer.summaries import planes

SAMPLED = 16  # queries of a call whose weights are compared
LARGEST = 14  # the power of two below which numbers in half precision are kept
ROWS = 256  # of a bias that are looked at in one go


def bytes_of(call: Call, *, half: bool) -> int:
    """About how many bytes the causes of a call take in a file, before they are deflated."""
    of = call.causes
    bias = 0 if of.bias is None else of.bias.numel()
    numbers = of.query.numel() + of.key.numel() + bias
    return numbers * (2 if half else 4) + of.shape[0] * of.shape[1] * 4


def causes_as_data(
    call: Call, *, half: bool, progress: Tell = lambda share: None
) -> tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor], float]:
    """What a page computes weights from.

    Args:
        call: whose.
        half: whether query, key and a whole table of biases are in half precision.
        progress: is told of the share that is done, 0 to 1.

    Returns:
        numbers; arrays; those that calls often share, a mask or a bias; and the largest difference
        of a weight to the recording's, in sampled rows.
    """
    of = call.checked()
    if call.causes.query.element_size() < 4:  # what the model's kernel told is in half precision
        [sums] = gather(call.checked(), LogSumExp(exact=True))
    else:
        sums = call.log_sum_exp(progress=lambda share: progress(share / 2))
    sums = sums.masked_fill(sums.isnan(), -torch.inf).float().cpu()
    query, query_up = _kept(of.query, half)
    key, key_up = _kept(of.key, half)
    bias_head, bias, as_kept = _bias(of, half)
    masks, shared = mask_as_data(call)
    head = {
        "half": half, "scale": of.scale, "softcap": of.softcap, "query up": query_up,
        "key up": key_up, "width": of.query.shape[-1], "groups": len(of.key), "mask": masks,
        **bias_head,
    }  # fmt: skip
    arrays = {"query": planes(query), "key": planes(key), "sums": sums}
    if of.sinks is not None:
        arrays["sinks"] = of.sinks.float().cpu()
    if call.value is not None:
        arrays["values"] = call.value.float().norm(dim=-1)
    kept = of._replace(query=_back(query, query_up), key=_back(key, key_up), bias=as_kept)
    off = _difference(call, kept, sums, lambda share: progress((1 + share) / 2))
    return head, arrays, {**shared, **bias}, off


def _kept(numbers: Tensor, half: bool) -> tuple[Tensor, int]:
    """As the file has them, and by which power of two they are multiplied to be so again."""
    single = numbers.float().cpu()
    if not half:
        return single, 0
    most = float(single.abs().max()) if single.numel() else 0.0
    up = math.frexp(most)[1] - LARGEST if 0 < most < math.inf else 0
    return (single * 2.0**-up).half(), up


def _back(kept: Tensor, up: int) -> Tensor:
    return kept.float() * 2.0**up


def _bias(of: Causes, half: bool) -> tuple[dict[str, Any], dict[str, Tensor], Tensor | None]:
    """A bias: one number for each distance where that is all it is, else its table."""
    if of.bias is None:
        return {}, {}, None
    bias = torch.atleast_2d(of.bias).float().cpu()
    bias = bias.reshape(-1, *bias.shape[-2:])
    _, N, M = of.shape
    by_distance = _by_distance(bias) if bias.shape[1:] == (N, M) and N * M > 1 else None
    if by_distance is not None:
        return {"bias": "distances"}, {"bias": by_distance}, bias
    if bias.shape[1] == 1 or bias.shape[2] == 1 or not half:
        return {"bias": "table"}, {"bias": bias}, bias
    table = bias.masked_fill(bias <= HIDDEN / 2, -torch.inf).clamp(max=65504).half()
    return (
        {"bias": "halves"},
        {"bias": planes(table), "shape": torch.tensor(table.shape, device="cpu")},
        (table.float().clamp(min=HIDDEN)),
    )


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


def _difference(call: Call, kept: Causes, sums: Tensor, progress: Tell) -> float:
    """The largest difference of a weight to the recording's, in evenly chosen rows of each head."""
    H, N, M = call.shape
    if not N * M:
        return 0.0
    rows = evenly(N, SAMPLED)
    largest = 0.0
    for at, head in enumerate(call.heads):
        of = kept.of_heads(slice(at, at + 1))
        # the page adds up products in double precision
        of = of._replace(query=of.query.double(), key=of.key.double())
        found = weights(of, queries=rows, sums=sums[at : at + 1, rows])[0]
        own = call.weights(head, queries=rows).cpu()
        largest = max(largest, float((found - own).abs().max()))
        progress((at + 1) / H)
    return largest
