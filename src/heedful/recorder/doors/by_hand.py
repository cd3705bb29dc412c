"""Attention by hand: what a tape's weights are a function of, and where the tape itself is kept.

The usual tape is a scale, a mask, a bias, a soft cap and a sink: then a crop of the map costs its
own cells, and a file holds queries and keys. They are read off the tape by running it on products
of zeros and of a pattern in place of queries times keys. Nothing has to be understood about its
operations, since the result is compared with the tape run on the true product. Where they differ by
more than rounding, the map that the tape gives is kept.

S sequences, H heads, N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.recorder.doors.cells import Cells, in_cells, without_outside
from heedful.recorder.doors.steps import OUTSIDE, PRODUCTS, Step, run_again, with_strides
from heedful.recorder.doors.tape import Meeting
from heedful.recorder.observed import Observed

DOOR, ALONE = "softmax and a product", "softmax and a product (weights alone)"
LARGE = 64.0  # by which the pattern is multiplied, so that a bias costs the scale no digits
FAR = 80.0  # a score so far below all others of its row, with nothing between, is hidden
VERY_FAR = 5e3  # or this far, whatever is between
NEAR = {torch.float64: 1e-10, torch.float32: 2e-5}  # what rounding explains of a weight
ENTRIES = 1 << 22  # cells of a map that are compared at once
UNIFORM = 1e-5  # by so much, as a share of them, scales of rows may differ that are one
# Gives a table with the axes of the softmax as (S, H, N, M)
Arrange = Callable[[Tensor], Tensor]


class Parts(NamedTuple):
    """What a tape does to the scores: scale (S, H, N, 1), and the rest as `Observed` has it."""

    scale: Tensor
    mask: Tensor
    bias: Tensor | None
    softcap: float | None
    sinks: Tensor | None


def read(seen: Observed, cells: Cells, arrange: Arrange) -> tuple[Observed, Tensor]:
    """A call of a meeting by what its weights are a function of, and the map that its tape gives.

    Args:
        seen: the call, with its meeting.
        cells: of the meeting.
        arrange: puts the axes of the softmax in order.
    """
    meeting = seen.meeting
    assert meeting is not None
    weights = arrange(in_cells(meeting, meeting.used()))
    weights = weights.nan_to_num(nan=0.0)  # a row of NaN is no map
    S, H, N, _ = weights.shape
    query = cells.query[arrange(cells.queries)[..., 0].to(cells.query.device)]
    key = cells.key[arrange(cells.keys)[..., 0, :].to(cells.key.device)]
    query, key = query.expand(S, H, N, -1), key.expand(S, *key.shape[1:])
    if not query.is_floating_point():  # as a product of whole numbers has them
        query, key = query.to(weights), key.to(weights)
    made = replace(seen, query=query, key=key, value=None, door=DOOR)
    if not meeting.has_product:
        return replace(made, door=ALONE), weights
    parts = _parts(meeting, cells, arrange, weights)
    made.mask = None if bool(parts.mask.all()) else _least(parts.mask)
    made.bias, made.softcap, made.sinks = parts.bias, parts.softcap, parts.sinks
    low, high = parts.scale.amin(), parts.scale.amax()
    if bool(high - low <= UNIFORM * high.abs()):
        made.scale = _plain(float(parts.scale.median()), query.shape[-1])
    else:  # a temperature for each head or query
        made.query = (query * parts.scale.to(query)).contiguous()
    return made, weights


def values_of(seen: Observed, cells: Cells, arrange: Arrange) -> Tensor:
    """The values of a call by hand, (S or 1, G, M, v), each where its key is."""
    meeting, value = seen.meeting, seen.value
    assert meeting is not None
    assert value is not None
    flat = value.reshape(-1, value.shape[-1])
    rows = arrange(cells.keys)[..., 0, :]
    if meeting.has_product:
        places = meeting.weights.index({}).amax(dim=-2).flatten()  # of any query
        n, m = meeting.softmax.product.shape[-2:]
        of_key = places // m if cells.is_turned else places // (n * m) * m + places % m
        row_of_key = torch.full((len(cells.key),), -1, device="cpu")
        inside = places != OUTSIDE
        row_of_key[of_key[inside]] = inside.nonzero()[:, 0]
        rows = row_of_key[rows]
    return flat[rows.to(flat.device)]


def is_near(seen: Observed, weights: Tensor, rows: Tensor) -> bool:
    """Whether the parts give some rows of the map as the tape does, in blocks of them."""
    several = max(1, ENTRIES // max(1, weights[:, :, :1].numel()))
    return all(_are_near(seen, weights, block) for block in rows.split(several))


def _are_near(seen: Observed, weights: Tensor, rows: Tensor) -> bool:
    near = NEAR.get(seen.query.dtype, NEAR[torch.float32])
    wide = torch.promote_types(seen.query.dtype, torch.float32)
    group = seen.query.shape[1] // seen.key.shape[1]
    key = seen.key.to(wide).repeat_interleave(group, dim=1)
    logits = (seen.query[:, :, rows].to(wide) * seen.scale) @ key.mT
    if seen.softcap is not None:
        logits = seen.softcap * torch.tanh(logits / seen.softcap)
    if seen.bias is not None:
        logits = logits + _rows(seen.bias, rows)
    if isinstance(seen.mask, Tensor):
        logits = logits.masked_fill(~_rows(seen.mask, rows), -math.inf)
    if seen.sinks is not None:
        sinks = seen.sinks if seen.sinks.ndim == 3 else seen.sinks[None, :, None]
        sinks = _rows(sinks[..., None], rows).expand(*logits.shape[:-1], 1)
        made = torch.cat([logits, sinks.to(logits)], dim=-1).softmax(-1)[..., :-1]
    else:
        made = logits.softmax(-1)
    off = made.nan_to_num(nan=0.0) - weights[:, :, rows].to(wide)
    return bool((off.abs() <= near).all())


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table if table.shape[-2] == 1 else table[..., rows, :]


def _parts(meeting: Meeting, cells: Cells, arrange: Arrange, weights: Tensor) -> Parts:
    """What a tape does to the scores, as it shows on products of zeros and of a pattern."""
    at_zero = _arranged_logits(meeting, arrange, 0.0)
    highest = at_zero.nan_to_num(nan=-math.inf).amax(dim=-1, keepdim=True)
    base = (at_zero - highest.nan_to_num(neginf=0.0)).nan_to_num(nan=-math.inf)
    seen = _visible(base, weights)
    scale, softcap = _scale(meeting, cells, arrange, at_zero, seen)
    bias = base.masked_fill(~seen, 0.0)
    added = _least(bias) if bool(bias.any()) else None
    return Parts(scale, seen, added, softcap, _sinks(meeting, arrange, base, seen))


def _visible(base: Tensor, weights: Tensor) -> Tensor:
    """Which keys a row sees, by its scores of zero products, of which the highest is 0."""
    low = base < -FAR
    has_gap = bool((low | (base > -FAR / 2)).all())
    return ~low | (weights > 1e-20) if has_gap else base > -VERY_FAR


def _scale(
    meeting: Meeting, cells: Cells, arrange: Arrange, at_zero: Tensor, seen: Tensor
) -> tuple[Tensor, float | None]:
    """What products are multiplied by, (S, H, N, 1), and the soft cap of the scores."""
    m = meeting.softmax.product.shape[-2 if cells.is_turned else -1]
    is_odd = arrange((cells.keys % m % 2 == 1).expand(cells.shape))
    odd, even = (seen & is_odd, seen & ~is_odd)

    def slope(size: float) -> Tensor:
        """The difference that a product of `size` at odd keys makes, for each row."""
        change = (_arranged_logits(meeting, arrange, size, cells) - at_zero).nan_to_num(nan=0.0)
        means = [
            change.masked_fill(~of, 0.0).sum(-1, keepdim=True) / of.sum(-1, keepdim=True)
            for of in (odd, even)
        ]
        return (means[0] - means[1]).double()  # NaN where a row sees keys of one kind alone

    at_one, at_large = slope(1.0), slope(LARGE)
    scale, softcap = at_large / LARGE, None
    if bool(((at_one - scale).abs() > 1e-2 * at_one.abs()).any()):
        softcap = float(slope(1e6).nanmedian())
        scale = softcap * torch.atanh((at_one / softcap).clamp(-1 + 1e-7, 1 - 1e-7))
    usual = scale.nanmedian().nan_to_num(nan=meeting.query.shape[-1] ** -0.5)
    return torch.where(scale.isnan(), usual, scale), softcap


def _sinks(meeting: Meeting, arrange: Arrange, base: Tensor, seen: Tensor) -> Tensor | None:
    """The scores of sinks, (H,) or (S, H, N), by what rows of zero products lack to one."""
    known = {id(meeting.softmax.product): _product(meeting.softmax.product, 0.0)}
    total = arrange(in_cells(meeting, meeting.weights.value(known))).double().sum(-1)
    total = total.nan_to_num(nan=1.0)
    if bool((total > 1 - 1e-4).all()):
        return None
    share = ((1 - total) / total).clamp(min=0.0)
    sinks = base.double().masked_fill(~seen, -math.inf).logsumexp(-1) + share.log()
    sinks = sinks.float()
    is_same = bool((sinks - sinks[:1, :, :1]).abs().nan_to_num(nan=1.0).max() < 1e-5)
    return sinks[0, :, 0] if is_same else sinks


def _arranged_logits(
    meeting: Meeting, arrange: Arrange, size: float, cells: Cells | None = None
) -> Tensor:
    """What the tape gives its softmax for products of `size` at odd keys, and of 0 at even ones."""
    softmax = meeting.softmax
    x = _product(softmax.product, size, cells is not None and cells.is_turned)
    known = {id(softmax.product): x}
    if softmax.target is not None:
        logits = softmax.target.value(known)
    else:
        logits = run_again(softmax.arguments[0], known)
    order = softmax.index({})
    kept = without_outside(order)
    if kept.shape != order.shape:  # a sink's column
        logits = logits[(order != OUTSIDE).to(logits.device)].view(kept.shape)
    return arrange(logits)


def _product(product: Step, size: float, is_turned: bool = False) -> Tensor:
    """The result of a tape's product, were it of `size` at odd keys and of 0 at even ones."""
    like = run_again(product.arguments, {})[PRODUCTS[product.name]]
    wide = torch.promote_types(product.dtype, torch.float32)
    m = product.shape[-2 if is_turned else -1]
    column = (torch.arange(m, device=like.device) % 2).to(wide) * size
    made = (column[:, None] if is_turned else column).expand(product.shape).clone()
    if PRODUCTS[product.name]:  # baddbmm: beta · input + alpha · product
        made = product.keywords.get("alpha", 1) * made
        added = run_again(product.arguments[0], {})
        made = made + product.keywords.get("beta", 1) * added
    return with_strides(made, product)


def _plain(scale: float, width: int) -> float:
    """A scale, taken for 1/√d or 1 where it is that but for rounding."""
    for usual in (width**-0.5, 1.0):
        if abs(scale - usual) <= UNIFORM * usual:
            return usual
    return scale


def _least(table: Tensor) -> Tensor:
    """A table with size 1 along axes on which it does not change."""
    for dim in range(table.ndim - 1):
        if table.shape[dim] > 1 and bool((table == table.narrow(dim, 0, 1)).all()):
            table = table.narrow(dim, 0, 1)
    return table.contiguous()
