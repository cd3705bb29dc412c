"""Attention by hand: what a tape's weights are a function of, and where the tape itself is kept.

The usual tape is a scale, a mask, a bias and a soft cap: then a crop of the map costs its own cells
alone. They are read off the tape by running it on products of zeros and of a pattern. The result is
compared with the tape run on the true product; where they differ by more than rounding, the map
that the tape gives is kept.

S sequences, H heads, N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heedful.ops.indexing import evenly
from heedful.recorder.doors.tape import Meeting
from heedful.recorder.doors.tape_cells import Cells, in_cells, without_outside
from heedful.recorder.doors.tape_steps import (
    OUTSIDE,
    PRODUCTS,
    Step,
    name_of,
    run_again,
    with_strides,
)
from heedful.recorder.observed_call import Observed

DOOR, ALONE = "softmax and a product", "softmax and a product (weights alone)"
LARGE = 64.0  # by which the pattern is multiplied, so that a bias costs the scale no digits
FAR = 80.0  # a score so far below all others of its row, with nothing between, is hidden
VERY_FAR = 5e3  # or this far, whatever is between
NEAR = {torch.float64: 1e-10}  # what rounding explains of a weight
ROUNDED = 2e-5  # in all other types: narrower ones keep the map of the tape
ENTRIES = 1 << 22  # cells of a map that are compared at once
UNIFORM = 1e-5  # by so much, as a share of them, scales of rows may differ that are one
LOOKED_AT = 16  # rows on which scales are compared
# Gives a table with the axes of the softmax as (S, H, N, M)
Arrange = Callable[[Tensor], Tensor]


def read(seen: Observed, meeting: Meeting, cells: Cells, arrange: Arrange) -> Observed:
    """A call by what its weights are a function of, with the axes of its softmax arranged."""
    query = cells.query[arrange(cells.queries)[..., 0].to(cells.query.device)]
    key = cells.key[arrange(cells.keys)[..., 0, :].to(cells.key.device)]
    S, H = arrange(cells.queries.new_zeros(()).expand(cells.shape)).shape[:2]
    query, key = query.expand(S, H, -1, -1), key.expand(S, *key.shape[1:])
    if not query.is_floating_point():  # as a product of whole numbers has them
        query, key = query.float(), key.float()
    made = replace(seen, query=query, key=key, value=None)
    if not meeting.has_product:
        return replace(made, door=ALONE)
    base = _logits(meeting, arrange)
    scale, made.softcap = _scale(meeting, cells, arrange, base)
    made.mask, made.bias = _mask_and_bias(base)
    low, high = scale.amin(), scale.amax()
    if bool(high - low <= UNIFORM * high.abs()):
        made.scale = _plain(float(scale.median()), query.shape[-1])
    else:  # a temperature for each head
        made.query = (query * scale.to(query)).contiguous()
    return made


def replayed(meeting: Meeting, arrange: Arrange) -> Tensor:
    """The map that a tape gives, (S, H, N, M); a row of NaN is no map, and has zeros."""
    return arrange(in_cells(meeting)).nan_to_num(nan=0.0)


def values_of(value: Tensor, meeting: Meeting, cells: Cells, arrange: Arrange) -> Tensor:
    """The values (b, M, v) of a call by hand as (S or 1, G, M, v), each where its key is."""
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


def is_near(seen: Observed, weights: Tensor, rows: Tensor, near: float) -> bool:
    """Whether the parts give some rows of the map as the tape does, in blocks of them."""
    several = max(1, ENTRIES // max(1, weights[:, :, :1].numel()))
    return all(_are_near(seen, weights, block, near) for block in rows.split(several))


def _are_near(seen: Observed, weights: Tensor, rows: Tensor, near: float) -> bool:
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
    off = logits.softmax(-1).nan_to_num(nan=0.0) - weights[:, :, rows].to(wide)
    return bool((off.abs() <= near).all())


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table if table.shape[-2] == 1 else table[..., rows, :]


def _mask_and_bias(base: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """What a tape hides and adds, by the scores (S, H, N, M) that it gives products of zeros."""
    base = _least(base)  # masks and biases are mostly the same for all texts, or all heads
    highest = base.nan_to_num(nan=-math.inf).amax(dim=-1, keepdim=True)
    base = (base - highest.nan_to_num(neginf=0.0)).nan_to_num(nan=-math.inf)
    sees = _visible(base)
    bias = base.masked_fill(~sees, 0.0)
    mask = None if bool(sees.all()) else _least(sees)
    return mask, _least(bias) if bool(bias.any()) else None


def _visible(base: Tensor) -> Tensor:
    """Which keys a row sees, by its scores of zero products, of which the highest is 0."""
    low = base < -FAR
    has_gap = bool((low | (base > -FAR / 2)).all())
    return ~low if has_gap else base > -VERY_FAR


def _scale(
    meeting: Meeting, cells: Cells, arrange: Arrange, base: Tensor
) -> tuple[Tensor, float | None]:
    """What products are multiplied by in each head, (S, H, 1, 1), and the soft cap of scores."""
    rows = evenly(base.shape[2], LOOKED_AT)
    base = base[:, :, rows]
    m = meeting.softmax.product.shape[-2 if cells.is_turned else -1]
    is_odd = arrange((cells.keys % m % 2 == 1).expand(cells.shape))[:, :, rows].to(base.device)
    sees = _visible(base - base.nan_to_num(nan=-math.inf).amax(dim=-1, keepdim=True))

    def slope(size: float) -> Tensor:
        """The difference that a product of `size` at odd keys makes, for each row."""
        change = _logits(meeting, arrange, size, cells)[:, :, rows] - base
        change = change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).double()
        means = [
            change.masked_fill(~of, 0.0).sum(-1, keepdim=True) / of.sum(-1, keepdim=True)
            for of in (sees & is_odd, sees & ~is_odd)
        ]
        return means[0] - means[1]  # NaN where a row sees keys of one kind alone

    at_one, at_large = slope(1.0), slope(LARGE)
    scale, softcap = at_large / LARGE, None
    if bool(((at_one - scale).abs() > 1e-2 * at_one.abs()).any()):
        softcap = float(slope(1e6).nanmedian())
        scale = softcap * torch.atanh((at_one / softcap).clamp(-1 + 1e-7, 1 - 1e-7))
    usual = scale.nanmedian(dim=2, keepdim=True).values  # of each head
    usual = torch.where(usual.isnan(), scale.nanmedian(), usual)
    return usual.nan_to_num(nan=meeting.query.shape[-1] ** -0.5), softcap


def _logits(
    meeting: Meeting, arrange: Arrange, size: float = 0.0, cells: Cells | None = None
) -> Tensor:
    """What the tape gives its softmax for products of `size` at odd keys, and of 0 at even ones."""
    softmax = meeting.softmax
    known = {id(softmax.product): _product(softmax.product, size, bool(cells and cells.is_turned))}
    if softmax.target is not None:
        logits = softmax.target.value(known)
    else:
        logits = run_again(softmax.arguments[0], known)
    if not softmax.is_plain:
        order = softmax.index({})
        kept = without_outside(order)
        if kept.shape != order.shape:  # a sink's column
            logits = logits[(order != OUTSIDE).to(logits.device)].view(kept.shape)
    return arrange(logits)


def _product(product: Step, size: float = 0.0, is_turned: bool = False) -> Tensor:
    """The result of a tape's product, were it of `size` at odd keys and of 0 at even ones."""
    like = run_again(product.arguments, {})[PRODUCTS[name_of(product.function)]]
    wide = torch.promote_types(product.dtype, torch.float32)
    m = product.shape[-2 if is_turned else -1]
    column = (torch.arange(m, device=like.device) % 2).to(wide) * size
    made = (column[:, None] if is_turned else column).expand(product.shape).clone()
    if PRODUCTS[name_of(product.function)]:  # baddbmm: beta · input + alpha · product
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
