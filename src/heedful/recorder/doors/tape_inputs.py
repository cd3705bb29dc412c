"""Finds the scale, mask, bias and soft cap of attention by hand by replaying its tape.

A replay with zeros in place of the product returns the mask and the bias. A replay with a pattern
changes the scores in proportion to the scale. If these inputs do not reproduce the weights of the
model up to rounding, the recording stores the map instead. Shapes: S sequences, H heads, N queries,
M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from heedful.ops.indexing import evenly_spaced
from heedful.recorder.doors.tape import TapedCall
from heedful.recorder.doors.tape_cells import Cells, drop_outside, replayed_weights
from heedful.recorder.doors.tape_steps import (
    OUTSIDE,
    PRODUCTS,
    Step,
    name_of,
    replay,
    with_strides,
)
from heedful.recorder.observed_call import Observed

DOOR, ALONE = "softmax and a product", "softmax and a product (weights alone)"
LARGE = 64.0  # factor of the pattern: so large that adding a bias hardly rounds the scores
FAR = 80.0  # scores this far below the highest of their row are masked, if a gap separates them
VERY_FAR = 5e3  # scores this far below the highest are masked without a gap, too
NEAR = {torch.float64: 1e-10}  # tolerance for the rounding of a weight, by type
ROUNDED = 2e-5  # for other types; rounding in 16 bits exceeds it, so 16-bit maps are stored
ENTRIES = 1 << 22  # number of cells that are compared at once
UNIFORM = 1e-5  # relative difference below which scales are equal
SAMPLED_ROWS = 16  # rows from which scales are computed
# Permutes a table with the axes of the softmax to (S, H, N, M)
Arrange = Callable[[Tensor], Tensor]


def read_inputs(observed: Observed, taped: TapedCall, cells: Cells, arrange: Arrange) -> Observed:
    """Return a call with its axes arranged, and the scale, mask, bias and soft cap of its tape."""
    query = cells.query[arrange(cells.queries)[..., 0].to(cells.query.device)]
    key = cells.key[arrange(cells.keys)[..., 0, :].to(cells.key.device)]
    S, H = arrange(cells.queries.new_zeros(()).expand(cells.shape)).shape[:2]
    query, key = query.expand(S, H, -1, -1), key.expand(S, *key.shape[1:])
    if not query.is_floating_point():  # a product of integers
        query, key = query.float(), key.float()
    inputs = replace(observed, query=query, key=key, value=None)
    if not taped.has_product:
        return replace(inputs, door=ALONE)
    base = _logits(taped, arrange)
    scale, inputs.softcap = _scale(taped, cells, arrange, base)
    inputs.mask, inputs.bias = _mask_and_bias(base)
    low, high = scale.amin(), scale.amax()
    if bool(high - low <= UNIFORM * high.abs()):
        inputs.scale = _without_rounding(float(scale.median()), query.shape[-1])
    else:  # each head has its own temperature
        inputs.query = (query * scale.to(query)).contiguous()
    return inputs


def replayed_map(taped: TapedCall, arrange: Arrange) -> Tensor:
    """Replay the map of a tape, (S, H, N, M), with 0 in place of NaN."""
    return arrange(replayed_weights(taped)).nan_to_num(nan=0.0)


def values_of(value: Tensor, taped: TapedCall, cells: Cells, arrange: Arrange) -> Tensor:
    """Arrange the values (b, M, v) of a call by hand like its keys: (S or 1, G, M, v)."""
    flat = value.reshape(-1, value.shape[-1])
    rows = arrange(cells.keys)[..., 0, :]
    if taped.has_product:
        index = taped.weights.index({}).amax(dim=-2).flatten()  # the same for all queries
        n, m = taped.softmax.product.shape[-2:]
        of_key = index // m if cells.is_transposed else index // (n * m) * m + index % m
        row_of_key = torch.full((len(cells.key),), -1, device="cpu")
        inside = index != OUTSIDE
        row_of_key[of_key[inside]] = inside.nonzero()[:, 0]
        rows = row_of_key[rows]
    return flat[rows.to(flat.device)]


def is_near(observed: Observed, weights: Tensor, rows: Tensor, tolerance: float) -> bool:
    """Whether the attention inputs reproduce the given rows of the replayed map."""
    block_size = max(1, ENTRIES // max(1, weights[:, :, :1].numel()))
    blocks = rows.split(block_size)
    return all(_is_block_near(observed, weights, block, tolerance) for block in blocks)


def _is_block_near(observed: Observed, weights: Tensor, rows: Tensor, tolerance: float) -> bool:
    wide = torch.promote_types(observed.query.dtype, torch.float32)
    group = observed.query.shape[1] // observed.key.shape[1]
    key = observed.key.to(wide).repeat_interleave(group, dim=1)
    logits = (observed.query[:, :, rows].to(wide) * observed.scale) @ key.mT
    if observed.softcap is not None:
        logits = observed.softcap * torch.tanh(logits / observed.softcap)
    if observed.bias is not None:
        logits = logits + _rows(observed.bias, rows)
    if isinstance(observed.mask, Tensor):
        logits = logits.masked_fill(~_rows(observed.mask, rows), -math.inf)
    difference = logits.softmax(-1).nan_to_num(nan=0.0) - weights[:, :, rows].to(wide)
    return bool((difference.abs() <= tolerance).all())


def _rows(table: Tensor, rows: Tensor) -> Tensor:
    return table if table.shape[-2] == 1 else table[..., rows, :]


def _mask_and_bias(base: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return mask and bias, from the scores (S, H, N, M) of a replay with zeros."""
    base = _reduced(base)  # most masks and biases are the same for all texts or heads
    highest = base.nan_to_num(nan=-math.inf).amax(dim=-1, keepdim=True)
    base = (base - highest.nan_to_num(neginf=0.0)).nan_to_num(nan=-math.inf)
    visible = _visible(base)
    bias = base.masked_fill(~visible, 0.0)
    mask = None if bool(visible.all()) else _reduced(visible)
    return mask, _reduced(bias) if bool(bias.any()) else None


def _visible(base: Tensor) -> Tensor:
    """Return which keys each row may attend to. The highest score of each row must be 0."""
    low = base < -FAR
    has_gap = bool((low | (base > -FAR / 2)).all())
    return ~low if has_gap else base > -VERY_FAR


def _scale(
    taped: TapedCall, cells: Cells, arrange: Arrange, base: Tensor
) -> tuple[Tensor, float | None]:
    """Return the scale of each head, (S, H, 1, 1), and the soft cap of the scores."""
    rows = evenly_spaced(base.shape[2], SAMPLED_ROWS)
    base = base[:, :, rows]
    m = taped.softmax.product.shape[-2 if cells.is_transposed else -1]
    is_odd = arrange((cells.keys % m % 2 == 1).expand(cells.shape))[:, :, rows].to(base.device)
    visible = _visible(base - base.nan_to_num(nan=-math.inf).amax(dim=-1, keepdim=True))

    def slope(size: float) -> Tensor:
        """Return for each row how much `size` raises the mean score of odd keys above even ones."""
        change = _logits(taped, arrange, size, cells)[:, :, rows] - base
        change = change.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).double()
        means = [
            change.masked_fill(~keys, 0.0).sum(-1, keepdim=True) / keys.sum(-1, keepdim=True)
            for keys in (visible & is_odd, visible & ~is_odd)
        ]
        return means[0] - means[1]  # NaN if a row has only odd or only even keys

    at_one, at_large = slope(1.0), slope(LARGE)
    scale, softcap = at_large / LARGE, None
    if bool(((at_one - scale).abs() > 1e-2 * at_one.abs()).any()):
        softcap = float(slope(1e6).nanmedian())
        scale = softcap * torch.atanh((at_one / softcap).clamp(-1 + 1e-7, 1 - 1e-7))
    per_head = scale.nanmedian(dim=2, keepdim=True).values
    per_head = torch.where(per_head.isnan(), scale.nanmedian(), per_head)
    return per_head.nan_to_num(nan=taped.first.shape[-1] ** -0.5), softcap


def _logits(
    taped: TapedCall, arrange: Arrange, size: float = 0.0, cells: Cells | None = None
) -> Tensor:
    """Replay the scores for a pattern in place of the product: `size` at odd keys, 0 at even."""
    softmax = taped.softmax
    is_transposed = bool(cells and cells.is_transposed)
    cache = {id(softmax.product): _product(softmax.product, size, is_transposed)}
    if softmax.target is not None:
        logits = softmax.target.value(cache)
    else:
        logits = replay(softmax.arguments[0], cache)
    if not softmax.is_plain:
        index = softmax.index({})
        shape = drop_outside(index).shape
        if shape != index.shape:  # without a sink's column
            logits = logits[(index != OUTSIDE).to(logits.device)].view(shape)
    return arrange(logits)


def _product(product: Step, size: float = 0.0, is_transposed: bool = False) -> Tensor:
    """Return the pattern that replaces a product: `size` at odd keys, 0 at even keys."""
    factor = replay(product.arguments, {})[PRODUCTS[name_of(product.function)]]
    wide = torch.promote_types(product.dtype, torch.float32)
    m = product.shape[-2 if is_transposed else -1]
    column = (torch.arange(m, device=factor.device) % 2).to(wide) * size
    result = (column[:, None] if is_transposed else column).expand(product.shape).clone()
    if PRODUCTS[name_of(product.function)]:  # baddbmm: beta · input + alpha · product
        result = product.keywords.get("alpha", 1) * result
        added = replay(product.arguments[0], {})
        result = result + product.keywords.get("beta", 1) * added
    return with_strides(result, product)


def _without_rounding(scale: float, width: int) -> float:
    """Replace a scale that is close to 1/√width or to 1 by the exact value."""
    for exact in (width**-0.5, 1.0):
        if abs(scale - exact) <= UNIFORM * exact:
            return exact
    return scale


def _reduced(table: Tensor) -> Tensor:
    """Reduce to size 1 each axis, but the last, along which a table is constant."""
    for dim in range(table.ndim - 1):
        if table.shape[dim] > 1 and bool((table == table.narrow(dim, 0, 1)).all()):
            table = table.narrow(dim, 0, 1)
    return table.contiguous()
