"""Recognises causal masks, windows and key ranges in mask tensors, to store them compactly.

A model's mask is boolean (True = may attend) or added to the scores. `Masks` splits it into a
boolean mask and a bias; `recognise` replaces a boolean table by an equal mask of `ops.masks`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.ops.inputs import MASKED_SCORE
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Window
from heedful.recorder.observed_call import Observed
from heedful.recording.mask_groups import tables_of

MASKED = -9e3  # many models mask by adding −10,000, often plus a bias; the weight is then 0
# The boolean mask, and the bias that is added to the scores
Parts: TypeAlias = tuple[Mask | Tensor | None, Tensor | None]


def recognise(mask: Mask | None, shape: tuple[int, int, int]) -> Mask | None:
    """Return an equal, compact mask; None if every query may attend to every key.

    A table becomes a causal mask, a window or a key range per query (as for packed documents) if
    one of these equals it. Any other table is packed into bits. The result has its own memory.
    """
    if not isinstance(mask, Dense):
        return mask
    table = mask.table
    while table.ndim > 2:
        if len(table) > 1 and not bool((table == table[:1]).all()):
            return _if_causal(Packed.of(mask.table), mask.table)
        table = table[0]
    N, M = shape[-2:]
    table = table.expand(N, M)
    usual = Causal(M - N)
    if N > 1 and _equals(usual, table):
        return usual
    if bool(table.all()):
        return None
    equal = (guess for guess in _guesses(table) if _equals(guess, table))
    return next(equal, None) or _packed(table)


def offset_of(mask: Mask | None, N: int, M: int) -> int | None:
    """Return the key position of the first query in a causal mask; None for other masks."""
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    causal = next((part for part in parts if isinstance(part, Causal)), None)
    if causal is None:
        return None
    return M - N if causal.offset is None else causal.offset


def _packed(table: Tensor) -> Mask:
    """Store a table as key ranges, else as bits; add `Causal` if the table is causal."""
    M = table.shape[1]
    count, first = table.sum(dim=1), table.int().argmax(dim=1)
    last = M - 1 - table.flip(1).int().argmax(dim=1)
    is_run = bool(((count == 0) | (last - first + 1 == count)).all())
    mask = KeyRanges(first, first + count) if is_run else Packed.of(table)
    return _if_causal(mask, table)


def _if_causal(mask: Mask, table: Tensor) -> Mask:
    """Combine the mask with `Causal` if the table is causal, so that later keys are skipped."""
    N, M = table.shape[-2:]
    if N == 1 or bool(table.triu(1 + M - N).any()) or not bool(table.any()):
        return mask
    if N < M:  # fewer queries than keys may pool the keys (Perceiver), and then have no positions
        has_itself = table.diagonal(M - N, -2, -1) | ~table.any(dim=-1)
        return Causal(M - N) & mask if bool(has_itself.all()) else mask
    return Causal(M - N) & mask


def _guesses(table: Tensor) -> list[Mask]:
    """Guess masks from the first and the last visible key of the rows."""
    N, M = table.shape
    has_keys = table.any(dim=1)
    if not bool(has_keys.any()):
        return []
    rows = has_keys.nonzero()[:, 0]
    first = table.int().argmax(dim=1)[rows]
    last = M - 1 - table.flip(1).int().argmax(dim=1)[rows]
    inside = last < M - 1  # a row that may attend to the last key does not determine the offset
    offsets = (last - rows)[inside]
    offset = int(offsets[0]) if len(offsets) else M - N
    sizes = [int((rows + start - first)[first > 0][:1].sum()) + 1 for start in (offset, M - N)]
    windows = [Causal(offset) & Window(max(1, sizes[0]), offset), Window(max(1, sizes[1]), M - N)]
    return [Causal(offset), *windows]


def _equals(guess: Mask, table: Tensor) -> bool:
    guessed = guess.crop(table.shape, device=table.device)
    return torch.equal(guessed.expand(table.shape), table)


class Masks:
    """Splits masks (boolean, additive, or flex attention's) into a boolean mask and a bias.

    The last results are cached, so layers that share a mask also share the result.
    """

    def __init__(self) -> None:
        # mask or bias, the function that split it, the shape of the call, and the result
        self._cache: list[tuple[Any, Callable, tuple[int, ...], Parts]] = []

    def split(self, call: Observed) -> None:
        """Make the mask of a call boolean, and move its additive part to the bias. If there
        is no mask, a bias that masks keys, as in T5, becomes the mask."""
        bias = call.bias
        if call.mask is None and bias is not None and bool((bias <= MASKED_SCORE).any()):
            call.mask, call.bias = bias, None
        if call.bias is not None:
            _, call.bias = self._parts_of(call.bias, call, _bias_alone)
        if call.mask is None:
            return
        call.mask, added = self._parts_of(call.mask, call, _parts)
        if added is not None:
            call.bias = added if call.bias is None else call.bias + added

    def _parts_of(
        self, mask: Any, call: Observed, split: Callable[[Any, Observed], Parts]
    ) -> Parts:
        """Return the parts of a mask, from the cache if an equal mask was split before."""
        for other, by, shape, parts in self._cache:
            if (by, shape) == (split, call.shape) and _is_same(other, mask):
                return parts
        parts = split(mask, call)
        self._cache = [*self._cache[-7:], (mask, split, call.shape, parts)]
        return parts


def _bias_alone(bias: Tensor, call: Observed) -> Parts:
    return None, bias


def _is_same(mask: Any, other: Any) -> bool:
    """Whether two masks have the same entries, even if they are different tensors."""
    if mask is other:
        return True
    if isinstance(mask, Mask) and type(mask) is type(other):
        tables = tables_of(mask), tables_of(other)
        return repr(mask) == repr(other) and all(map(_is_same, *tables))
    if not (isinstance(mask, Tensor) and isinstance(other, Tensor)):
        return False
    is_like = (mask.shape, mask.dtype, mask.device) == (other.shape, other.dtype, other.device)
    return is_like and torch.equal(mask, other)


def _parts(mask: Any, call: Observed) -> Parts:
    """Split a mask into a boolean mask and a bias."""
    if isinstance(mask, Mask):
        return mask, None
    B, H, N, M = call.shape
    if not isinstance(mask, Tensor):  # of flex attention
        from torch.nn.attention.flex_attention import create_mask

        function = getattr(mask, "mask_mod", mask)
        return create_mask(function, B, H, N, M, device=call.query.device), None
    mask = mask[..., :M]
    if mask.dtype == torch.bool:
        return mask, None
    by_constant = bool(mask.numel()) and _masks_by_constant(mask)
    allowed = ~(mask <= (MASKED if by_constant else torch.finfo(mask.dtype).min / 2))
    added = mask.masked_fill(~allowed, 0.0)
    return (None if bool(allowed.all()) else allowed), (added if bool(added.any()) else None)


def _masks_by_constant(mask: Tensor) -> bool:
    """Whether the table masks by a constant such as −10,000, unlike a bias such as ALiBi: there is
    a gap above the masked entries, and every row has an entry above the gap."""
    in_gap = (mask > MASKED) & (mask < MASKED / 10)
    return not bool(in_gap.any()) and bool((mask.amax(dim=-1) > MASKED / 10).all())
