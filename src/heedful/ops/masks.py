"""Masks as small values: what may attend to what, without the N × M table.

A mask is a predicate on (query, key) with named parameters. It is combined with `&`, any crop
of it is made on demand, and `span` says which keys a run of queries can see at all, so that
nobody computes blocks that the mask empties. True means *may attend*.

Positions: query n of N stands at position p(n) = n + offset. Where no offset is given it is
M − N, so the last query stands at the last key (*bottom right*), as key/value caches need.

>>> mask = Causal() & Window(2)
>>> mask.crop((3, 5)).int()
tensor([[0, 1, 1, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 1, 1]], dtype=torch.int32)
>>> mask.crop((3, 5), queries=[2], keys=slice(3, 5))
tensor([[True, True]])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.indexing import (
    Index,
    Shape,
    as_boolean,
    check_broadcast,
    check_whole,
    meeting,
    of_heads,
)
from heedful.ops.mask_base import Combined, Mask, changed


@dataclass(frozen=True)
class Causal(Mask):
    """Query n sees keys m ≤ n + offset; offset None means M − N (bottom right)."""

    offset: int | None = None

    def __post_init__(self) -> None:
        check_whole("Causal", offset=self.offset)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Keys up to the query's own position."""
        return key <= query + _offset(self.offset, shape)

    def span(self, queries: range, shape: Shape) -> range:
        """Keys up to the position of the last query."""
        last = queries[-1] + _offset(self.offset, shape)
        return range(max(0, min(shape[-1], last + 1)))

    def certain(self, queries: range, shape: Shape) -> range:
        """Keys up to the position of the first query."""
        return self.span(queries[:1], shape)

    def leaves_every_row(self, shape: Shape) -> bool:
        """The first query sees the first key, and the others see more."""
        return _offset(self.offset, shape) >= 0 and shape[-1] > 0


@dataclass(frozen=True)
class Window(Mask):
    """Query n sees keys with abs(p(n) − m) < size; with `Causal()`, the last `size` keys.

    Source: the sliding windows of Longformer (Beltagy et al. 2020, arXiv:2004.05150).
    """

    size: int
    offset: int | None = None

    def __post_init__(self) -> None:
        check_whole("Window", size=self.size, offset=self.offset)
        if self.size < 1:
            raise ArgumentError(
                f"Window(size={self.size})",
                expected="a size of at least 1",
                remedy="size counts the token itself: Window(1) sees only the query's own position",
            )

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Keys nearer than `size`."""
        return (query + _offset(self.offset, shape) - key).abs() < self.size

    def span(self, queries: range, shape: Shape) -> range:
        """From the first key near the first query to the last key near the last."""
        offset = _offset(self.offset, shape)
        first = min(shape[-1], max(0, queries[0] + offset - self.size + 1))
        return range(first, max(first, min(shape[-1], queries[-1] + offset + self.size)))

    def certain(self, queries: range, shape: Shape) -> range:
        """Keys near both the first and the last query."""
        return meeting(self.span(queries[:1], shape), self.span(queries[-1:], shape))


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Real keys may be attended to, padding may not.

    Args:
        keep: boolean tensor or NumPy array (M,) or (B, M), True where the key is a real token.

    >>> Padding.from_lengths([2, 3], total=3).crop((2, 1, 3, 3)).shape
    torch.Size([2, 1, 3, 3])
    """

    keep: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", as_boolean("Padding", self.keep))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], total: int, side: str = "right") -> Padding:
        """Padding of a batch of sequences of these lengths to `total` tokens.

        Args:
            lengths: real tokens of each sequence.
            total: tokens after padding.
            side: "right" or "left", where the padding stands.
        """
        if side not in ("left", "right"):
            raise ArgumentError(f"side={side!r}", expected="'left' or 'right'")
        length = torch.as_tensor(list(lengths))[:, None]
        if len(length) and not 0 <= int(length.min()) <= int(length.max()) <= total:
            raise ArgumentError(f"lengths {list(lengths)}", expected=f"lengths from 0 to {total}")
        position = torch.arange(total)[None, :]
        return cls(position < length if side == "right" else position >= total - length)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the mask is."""
        return self.keep.device

    def check(self, shape: Shape) -> None:
        """One row of keys for each sequence of the batch."""
        keep = tuple(self.keep.shape)
        batch = tuple(shape[:-3]) if len(shape) >= 4 else tuple(shape[:-2])
        fits = all(have in (1, want) for have, want in zip(keep[:-1], batch, strict=False))
        if len(keep) not in (1, 1 + len(batch)) or keep[-1] != shape[-1] or not fits:
            raise ArgumentError(
                f"padding of shape {keep}",
                expected=f"(keys,) or (batch, keys), {(*batch, shape[-1])}, for these scores",
                cause="keys of a cache left out, or a batch where the scores have none",
                remedy="keep has one entry for each key, those of the cache too",
            )

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Real keys, the same for every query."""
        real = self.keep[..., None, key[0]]
        between = len(shape) - real.ndim  # heads, where there are any
        if real.ndim == 2 or between == 0:
            return real
        return real.reshape(*real.shape[:-2], *[1] * between, *real.shape[-2:])


@dataclass(frozen=True, eq=False)
class KeyRanges(Mask):
    """Query n sees the keys from first[n] up to end[n], which it does not see.

    So several documents in one row see each its own tokens, or a prefix sees itself in both
    directions. `& Causal()` hides the keys after each query.

    Args:
        first, end: whole numbers (N,); a query whose end is not after its first sees nothing.

    >>> (KeyRanges.from_lengths([2, 1]) & Causal()).crop((3, 3)).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    first: Tensor
    end: Tensor

    def __post_init__(self) -> None:
        for tensor in (self.first, self.end):
            whole = isinstance(tensor, Tensor) and tensor.dtype == torch.long
            if not whole or tensor.ndim != 1 or len(tensor) != len(self.first):
                raise ArgumentError(
                    f"ranges from {_told(self.first)} to {_told(self.end)}",
                    expected="two tensors of as many whole numbers, one for each query",
                )

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor) -> KeyRanges:
        """Documents of these lengths, one after the other, each of which sees itself.

        Where the lengths are a tensor, the ranges are made on its device.
        """
        length = torch.as_tensor(lengths, dtype=torch.long)
        end = length.cumsum(0)
        return cls((end - length).repeat_interleave(length), end.repeat_interleave(length))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the mask is."""
        return self.first.device

    def check(self, shape: Shape) -> None:
        """A range for each query."""
        if len(self.first) != shape[-2]:
            raise ArgumentError(f"ranges of {len(self.first)} queries", expected=f"{shape[-2]}")

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Keys in the query's range."""
        return (self.first[query] <= key) & (key < self.end[query])

    def span(self, queries: range, shape: Shape) -> range:
        """From the first key that any query sees to the last."""
        first, end = self._seeing(queries)
        if not len(first):
            return range(0)
        return _within(int(first.min()), int(end.max()), shape)

    def certain(self, queries: range, shape: Shape) -> range:
        """Keys in the ranges of all queries."""
        first, end = self._seeing(queries)
        if not len(first) or len(first) < len(queries):
            return range(0)
        return _within(int(first.max()), int(end.min()), shape)

    def leaves_every_row(self, shape: Shape) -> bool:
        """Whether no range is empty."""
        return bool((self.end.clamp(max=shape[-1]) > self.first.clamp(min=0)).all())

    def _seeing(self, queries: range) -> tuple[Tensor, Tensor]:
        """The ranges that are not empty."""
        first, end = (part[queries.start : queries.stop] for part in (self.first, self.end))
        return first[first < end], end[first < end]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """Any boolean tensor or NumPy array that broadcasts to (..., N, M), True = may attend."""

    table: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", as_boolean("Dense", self.table))

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the mask is."""
        return self.table.device

    def of_heads(self, heads: Index) -> Mask:
        """Its own rows of heads, where it has any."""
        return changed(self, table=of_heads(self.table, heads))

    def check(self, shape: Shape) -> None:
        """It broadcasts."""
        check_broadcast("mask", self.table, shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """The table's own entries."""
        table = torch.atleast_2d(self.table)
        query = query if table.shape[-2] > 1 else torch.zeros_like(query[:1])
        key = key if table.shape[-1] > 1 else torch.zeros_like(key[:, :1])
        return table[..., query, key]


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """A boolean table kept as bits, an eighth of its size; `Packed.of(table)` packs one.

    >>> table = torch.tensor([[True, False, True], [True, True, True]])
    >>> torch.equal(Packed.of(table).crop((2, 3)), table)
    True
    """

    bits: Tensor
    keys: int

    @classmethod
    def of(cls, table: Tensor) -> Packed:
        """Of a boolean table (..., N, M)."""
        table = as_boolean("Packed", table)
        M = table.shape[-1]
        eights = torch.nn.functional.pad(table.to(torch.uint8), (0, -M % 8)).unflatten(-1, (-1, 8))
        places = 2 ** torch.arange(8, dtype=torch.uint8, device=table.device)
        return cls((eights * places).sum(dim=-1, dtype=torch.uint8), M)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the bits are."""
        return self.bits.device

    def of_heads(self, heads: Index) -> Mask:
        """Its own rows of heads, where it has any."""
        return changed(self, bits=of_heads(self.bits, heads))

    def check(self, shape: Shape) -> None:
        """It broadcasts."""
        check_broadcast("mask", self.bits[..., :1].expand(*self.bits.shape[:-1], self.keys), shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """The bit of each pair."""
        query = query if self.bits.shape[-2] > 1 else torch.zeros_like(query[:1])
        return (self.bits[..., query, key // 8] >> (key % 8).to(torch.uint8) & 1).bool()


KINDS = (Causal, Window, Padding, KeyRanges, Dense, Packed)


def is_of_ours(mask: Mask) -> bool:
    """Whether a mask is of this module, with all its parts, and so a function of its fields.

    >>> is_of_ours(Causal() & Window(2))
    True
    >>> class Ahead(Mask):
    ...     def allowed(self, query, key, shape):
    ...         return key <= query + 1
    >>> is_of_ours(Ahead()), is_of_ours(Causal() & Ahead())
    (False, False)
    """
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    return all(type(part) in KINDS for part in parts)


def _within(first: int, end: int, shape: Shape) -> range:
    first = min(max(first, 0), shape[-1])
    return range(first, max(first, min(end, shape[-1])))


def _told(tensor: object) -> str:
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _offset(offset: int | None, shape: Shape) -> int:
    return shape[-1] - shape[-2] if offset is None else offset
