"""Recognises the structure of a model's mask, so that it costs nothing to keep.

A mask comes as a table that is boolean (True = may attend) or added to the scores. `Masks` splits
it into what may attend and what is added; `recognise` finds causal masks, windows and runs of keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from heedful.ops.inputs import HIDDEN
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Window
from heedful.recorder.observed_call import Observed
from heedful.recording.mask_groups import tables_of

FAINT = -9e3  # a key whose score is this low has no weight; models add −10,000, often plus a bias
# What may attend (boolean), and what is added to the scores
Parts: TypeAlias = tuple[Mask | Tensor | None, Tensor | None]


def recognise(mask: Mask | None, shape: tuple[int, int, int]) -> Mask | None:
    """The same mask as a structure; None where every query may attend to every key.

    A table becomes causal, a window or a run of keys for each query (as of packed documents) where
    it is exactly that, else bits. The result shares no memory with the table.
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
    if N > 1 and _is(usual, table):
        return usual
    if bool(table.all()):
        return None
    return next((guess for guess in _guesses(table) if _is(guess, table)), None) or _any(table)


def offset_of(mask: Mask | None, N: int, M: int) -> int | None:
    """The key at which the first query of a causal mask stands; None of any other mask."""
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    found = next((part for part in parts if isinstance(part, Causal)), None)
    if found is None:
        return None
    return M - N if found.offset is None else found.offset


def _any(table: Tensor) -> Mask:
    """A table that no guess fits, as runs of keys or else bits; and causal where it is that too."""
    M = table.shape[1]
    count, first = table.sum(dim=1), table.int().argmax(dim=1)
    last = M - 1 - table.flip(1).int().argmax(dim=1)
    is_run = bool(((count == 0) | (last - first + 1 == count)).all())
    found = KeyRanges(first, first + count) if is_run else Packed.of(table)
    return _if_causal(found, table)


def _if_causal(found: Mask, table: Tensor) -> Mask:
    """The mask combined with `Causal` where no key ahead is seen, so that those are skipped."""
    N, M = table.shape[-2:]
    if N == 1 or bool(table.triu(1 + M - N).any()) or not bool(table.any()):
        return found
    if N < M:  # fewer queries than keys may pool them (Perceiver), and then have no position
        sees_itself = table.diagonal(M - N, -2, -1) | ~table.any(dim=-1)
        return Causal(M - N) & found if bool(sees_itself.all()) else found
    return Causal(M - N) & found


def _guesses(table: Tensor) -> list[Mask]:
    """Structures that the first and the last visible key of a few rows suggest."""
    N, M = table.shape
    seen = table.any(dim=1)
    if not bool(seen.any()):
        return []
    rows = seen.nonzero()[:, 0]
    first = table.int().argmax(dim=1)[rows]
    last = M - 1 - table.flip(1).int().argmax(dim=1)[rows]
    inside = last < M - 1  # a row that sees the last key of all says nothing about the offset
    offsets = (last - rows)[inside]
    offset = int(offsets[0]) if len(offsets) else M - N
    sizes = [int((rows + at - first)[first > 0][:1].sum()) + 1 for at in (offset, M - N)]
    windows = [Causal(offset) & Window(max(1, sizes[0]), offset), Window(max(1, sizes[1]), M - N)]
    return [Causal(offset), *windows]


def _is(guess: Mask, table: Tensor) -> bool:
    guessed = guess.crop(table.shape, device=table.device)
    return torch.equal(guessed.expand(table.shape), table)


class Masks:
    """Splits masks (boolean, added, or flex attention's) into what may attend and what is added.

    Layers of a pass mostly share a mask: the last few are remembered, so that the N × M entries are
    looked at once and the layers share the result too.
    """

    def __init__(self) -> None:
        # masks or biases, how they were split for calls of which shape, and the parts
        self._known: list[tuple[Any, Callable, tuple[int, ...], Parts]] = []

    def split(self, seen: Observed) -> None:
        """Leave a call a mask that only hides; what it added becomes part of the bias.

        A bias that hides keys, as T5's does, is such a mask.
        """
        if seen.mask is None and seen.bias is not None and bool((seen.bias <= HIDDEN).any()):
            seen.mask, seen.bias = seen.bias, None
        if seen.bias is not None:
            _, seen.bias = self._parts_of(seen.bias, seen, _added)
        if seen.mask is None:
            return
        seen.mask, added = self._parts_of(seen.mask, seen, _parts)
        if added is not None:
            seen.bias = added if seen.bias is None else seen.bias + added

    def _parts_of(
        self, mask: Any, seen: Observed, split: Callable[[Any, Observed], Parts]
    ) -> Parts:
        """The parts of a mask, those of an equal one where a layer before had it."""
        for other, by, shape, parts in self._known:
            if (by, shape) == (split, seen.shape) and _is_same(other, mask):
                return parts
        parts = split(mask, seen)
        self._known = [*self._known[-7:], (mask, split, seen.shape, parts)]
        return parts


def _added(bias: Tensor, seen: Observed) -> Parts:
    return None, bias


def _is_same(mask: Any, other: Any) -> bool:
    """Whether masks have the same entries, as where each layer of a model makes its own."""
    if mask is other:
        return True
    if isinstance(mask, Mask) and type(mask) is type(other):
        tables = tables_of(mask), tables_of(other)
        return repr(mask) == repr(other) and all(map(_is_same, *tables))
    if not (isinstance(mask, Tensor) and isinstance(other, Tensor)):
        return False
    is_like = (mask.shape, mask.dtype, mask.device) == (other.shape, other.dtype, other.device)
    return is_like and torch.equal(mask, other)


def _parts(mask: Any, seen: Observed) -> Parts:
    """What may attend and what is added."""
    if isinstance(mask, Mask):
        return mask, None
    B, H, N, M = seen.shape
    if not isinstance(mask, Tensor):  # flex attention's
        from torch.nn.attention.flex_attention import create_mask

        function = getattr(mask, "mask_mod", mask)
        return create_mask(function, B, H, N, M, device=seen.query.device), None
    mask = mask[..., :M]
    if mask.dtype == torch.bool:
        return mask, None
    is_faint = bool(mask.numel()) and _is_faint(mask)
    allowed = ~(mask <= (FAINT if is_faint else torch.finfo(mask.dtype).min / 2))
    added = mask.masked_fill(~allowed, 0.0)
    return (None if bool(allowed.all()) else allowed), (added if bool(added.any()) else None)


def _is_faint(mask: Tensor) -> bool:
    """Whether the table hides pairs by adding −10,000 or the like, and is no bias such as ALiBi's:
    no number lies between hidden ones and the rest, and every row has a key that is not hidden."""
    between = (mask > FAINT) & (mask < FAINT / 10)
    return not bool(between.any()) and bool((mask.amax(dim=-1) > FAINT / 10).all())
