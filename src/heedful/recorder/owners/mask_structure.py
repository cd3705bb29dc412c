"""Recognises a model's mask as the structure that it is, so that it costs nothing to keep.

A mask comes in as a table that is boolean (True = may attend) or added to the scores. `Masks`
splits it into what may attend and what is added; `recognise` turns the first into causal, windowed
or a run of keys for each query where it is exactly that, else into bits.
"""

from __future__ import annotations

import copy
import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.ops.causes import HIDDEN
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Window
from heedful.recorder.following.same_numbers import are_same, counts_changes
from heedful.recorder.following.scores import COMPARED, FAINT, copied, lowest
from heedful.recorder.following.strides import unexpanded
from heedful.recorder.following.writes import state_of
from heedful.recorder.observed import Observed, Source

ENTRIES = 1 << 20  # of a table that are compared at a time
NOTHING = 100.0  # a key whose score is so far below another one has no weight
# What may attend (boolean), and what is added to the scores; None for what there is not
Parts: TypeAlias = tuple[Mask | Tensor | None, Tensor | None]


def recognise(mask: Mask | None, shape: tuple[int, int, int]) -> Mask | None:
    """The same mask as a structure; None where every query may attend to every key.

    A table that is exactly causal, or of a window, or has one run of keys for each query (as packed
    documents have) becomes that; any other table is kept as bits. What is made of a table shares no
    memory with it.

    >>> table = (Causal() & Window(2)).crop((1, 4, 6))
    >>> recognise(Dense(table), (1, 4, 6))
    Combined(parts=(Causal(offset=2), Window(size=2, offset=2)))
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
    begins = first > 0
    sizes = (rows + offset - first)[begins] + 1
    size = int(sizes[0]) if len(sizes) else 0
    guesses: list[Mask] = [Causal(offset)]
    if size > 0:
        guesses.append(Causal(offset) & Window(size, offset))
    span = M - N
    both = (rows + span - first)[begins] + 1
    if len(both) and int(both[0]) > 0:
        guesses.append(Window(int(both[0]), span))
    return guesses


def _is(guess: Mask, table: Tensor) -> bool:
    """Whether the guess equals the table, of which some rows are compared at a time."""
    several = max(1, ENTRIES // max(1, table.shape[1]))
    for start in range(0, len(table), several):
        rows = slice(start, start + several)
        if not are_same(guess.crop(table.shape, rows, device=table.device), table[rows]):
            return False
    return True


class _Known(NamedTuple):
    """A mask that came, and what was made of it.

    place: its address and state, and what was made of it, by which it is known again; None where
        it is known by its numbers alone.
    shape: of the map that it was made for, (B, H, N, M).
    mask: the mask itself and its storage, held so that nothing else gets their addresses.
    copy: by which others with its numbers are known; of a large one that has a place there is none.
    parts: what may attend, and what is added.
    gap: how far below all others the finite numbers are that hide keys; inf where there are none.
    """

    place: tuple | None
    shape: tuple[int, ...]
    mask: Any
    copy: Tensor | None
    parts: Parts
    gap: float = math.inf


class _Structure(NamedTuple):
    """A structure that came, such as `Dense`, and the state that its tables had.

    mask: itself, held so that nothing else gets its `id`.
    homes: the storages of its tables, held so that no others get their addresses.
    states: of each table its place, or a copy where it does not count its changes.
    as_now: the object that stands for the mask in this state.
    """

    mask: Mask
    homes: list[torch.UntypedStorage]
    states: list[Any]
    as_now: Mask

    def is_of(self, tables: list[Tensor]) -> bool:
        """Whether the tables are in this state."""
        return all(
            are_equal(state, one) if isinstance(state, Tensor) else state == place_of(one)
            for state, one in zip(self.states, tables, strict=True)
        )


class Masks:
    """Splits masks (boolean, added, or flex attention's) into what may attend and what is added.

    One of these serves one pass, whose layers mostly share a mask: what was made of the last few is
    remembered, so that the N × M entries are looked at once and the layers share the result too.
    Those of `ops.masks`, which have no such entries, are known by their tensors.
    """

    def __init__(self) -> None:
        self._known: list[_Known] = []
        self._structures: list[_Structure] = []

    def split(self, seen: Observed) -> Observed:
        """The call, now with a mask that only hides; what it added has become part of the bias.

        Calls get the same object as their mask only where they had the same mask, with the same
        numbers: a model may have changed the tables of one between two calls.
        """
        if seen.mask is None:
            return seen
        if isinstance(seen.mask, Mask):
            seen.mask = self._as_now(seen.mask, seen)
            return seen
        source, made = seen.source or Source(seen.mask, ())
        has_place = not isinstance(source, Tensor) or counts_changes(source)
        has_place = has_place and not seen.is_known_by_numbers
        place = (*place_of(source), *made) if has_place else None
        alike = [one for one in self._known if one.shape == seen.shape]
        same = (one for one in alike if place is not None and one.place == place)
        known = next(same, None) or _equal(alike, seen.mask)
        if known is None:
            own = _copy(seen.mask, has_place)
            whole = seen.mask if own is None else own
            home = source.untyped_storage() if isinstance(source, Tensor) else None
            known = _Known(place, seen.shape, (source, home), own, *_parts(whole, seen))
            self._known = [*self._known[-3:], known]
        allowed, added = _of_scores(seen, known)
        bias = added if seen.bias is None else seen.bias if added is None else seen.bias + added
        seen.mask, seen.bias = allowed, bias
        return seen

    def _as_now(self, mask: Mask, seen: Observed) -> Mask:
        """A structure, as another object for each state in which it came."""
        tables = tables_of(mask)
        if not tables:
            return mask
        several = (one for one in self._structures if one.mask is mask and one.is_of(tables))
        known = next(several, None)
        if known is None:
            states: list[Any] = [
                place_of(one) if counts_changes(one) else copied(one) for one in tables
            ]
            homes = [one.untyped_storage() for one in tables]
            known = _Structure(mask, homes, states, copy.copy(mask))
            self._structures = [*self._structures[-7:], known]
        return known.as_now


def tables_of(mask: Mask) -> list[Tensor]:
    """The tensors that a mask of `ops.masks` consists of.

    >>> tables_of(Dense(torch.ones(2, 2) > 0) & Causal())
    [tensor([[True, True],
            [True, True]])]
    """
    if isinstance(mask, Combined):
        return [one for part in mask.parts for one in tables_of(part)]
    return [one for one in vars(mask).values() if isinstance(one, Tensor)]


def _of_scores(seen: Observed, known: _Known) -> Parts:
    """The parts of a mask as they are known, or what the scores of this call leave of them."""
    parts = known.parts
    if not (isinstance(seen.mask, Tensor) and seen.mask.is_floating_point()):
        return parts
    table = _own(seen.mask, seen.shape[-1])
    # in float32 the least number of half precision is one that scores may reach over
    wide = torch.promote_types(table.dtype, torch.float32)
    if known.gap < math.inf and not _reach(seen) <= known.gap - NOTHING:
        parts = _at(lowest(wide), table.to(wide))
    if parts[0] is None or bool(seen.are_keys_numbers.all()):
        return parts
    table, low = table.to(wide), lowest(wide)
    never = _not_hidden(seen, table > low)
    return _at(low, torch.where(never, _counting(table), table), never)


def _equal(known: list[_Known], mask: Any) -> _Known | None:
    """A known mask with the same numbers, for models in which each layer makes its own."""
    if not isinstance(mask, Tensor):
        return None
    return next((one for one in reversed(known) if are_equal(one.copy, mask)), None)


def _copy(mask: Any, has_place: bool) -> Tensor | None:
    is_compared = isinstance(mask, Tensor) and (not has_place or mask.numel() <= COMPARED)
    return copied(mask.detach()) if is_compared else None


def are_equal(one: Tensor | None, other: Tensor) -> bool:
    """Whether two tables have one shape, type and device, and the same numbers."""
    if one is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return one.device == other.device and are_same(one, other)


def place_of(mask: Any) -> tuple:
    """The address, shape and state of a mask, which tell it from others and from a changed one.

    Those that do not count their changes have no state, and have to be compared.
    """
    if not isinstance(mask, Tensor):
        return (id(mask.mask_mod),)
    state = state_of(mask) if counts_changes(mask) else None
    return mask.data_ptr(), mask.shape, mask.stride(), mask.dtype, state


def _parts(mask: Any, seen: Observed) -> tuple[Parts, float]:
    """What may attend and what is added; and how far below the rest the numbers that hide are."""
    B, H, N, M = seen.shape
    if not isinstance(mask, Tensor):  # flex attention's
        from torch.nn.attention.flex_attention import create_mask

        return (create_mask(mask.mask_mod, B, H, N, M, device=seen.query.device), None), math.inf
    mask = _own(mask, M)
    if mask.dtype == torch.bool:
        return (mask, None), math.inf
    if not (mask.numel() and _is_faint(mask)):
        return _at(lowest(mask.dtype), mask), math.inf
    is_hidden = mask <= FAINT
    least, most = mask.masked_fill(is_hidden, math.inf), mask.masked_fill(~is_hidden, -math.inf)
    return _at(FAINT, mask), float(least.amin()) - float(most.amax())


def _own(mask: Tensor, M: int) -> Tensor:
    """The mask of M keys, that of heads which share it once; the axis of the keys stays."""
    return unexpanded(mask[..., :M], range(mask.ndim - 1))


def _not_hidden(seen: Observed, is_ordinary: Tensor) -> Tensor:
    """Which pairs no added number hides, however low it is, (B, H, N, M).

    Those of a key that is no number, and those of a row that sees such keys alone: if all its
    scores are minus infinity, the keys that a number was to hide have all of its weight.

    is_ordinary: pairs without a number that hides, which broadcasts to (B, H, N, M).
    """
    none = ~seen.are_keys_numbers
    none = none.repeat_interleave(seen.shape[1] // none.shape[1], dim=1)[:, :, None]
    has_score = (is_ordinary & ~none).any(dim=-1, keepdim=True)
    return none | ~has_score


def _counting(table: Tensor) -> Tensor:
    """The table with the least number of its type as one that still counts, and hides nothing."""
    return torch.where(table > -math.inf, table.clamp(min=HIDDEN / 4), table)


def _at(low: float, mask: Tensor, never: Tensor | None = None) -> Parts:
    """What may attend, which is more than a low number, and what is added to it.

    never: keys that it does not hide.
    """
    allowed = ~(mask <= low)  # what is no number hides nothing
    if never is not None:
        allowed, mask = torch.broadcast_tensors(allowed | never, mask)
    added = mask.masked_fill(~allowed, 0.0)
    return (None if bool(allowed.all()) else allowed), (added if bool(added.any()) else None)


def _reach(seen: Observed) -> float:
    """How far apart two scores of a row can be at most, before the mask is added."""
    if not (seen.query.numel() and seen.key.numel()):
        return 0.0
    longest = [one.float().norm(dim=-1).amax() for one in (seen.query, seen.key)]
    reach = 2 * abs(seen.scale) * float(longest[0] * longest[1])
    if seen.softcap:
        reach = min(reach, 2 * abs(seen.softcap))
    if seen.bias is not None:
        bias = seen.bias.nan_to_num(neginf=0.0)
        reach += float(bias.amax()) - float(bias.amin())
    return reach


def _is_faint(mask: Tensor) -> bool:
    """Whether the table hides some pairs by adding −10,000 or the like, as many models do.

    Two things tell it from a bias such as ALiBi's: no number lies between the hidden ones and the
    rest, and every row has a key that is not hidden (else the softmax would weigh the hidden ones).
    """
    between = (mask > FAINT) & (mask < FAINT / 10)
    return not bool(between.any()) and bool((mask.amax(dim=-1) > FAINT / 10).all())
