"""Boolean attention masks as small composable values, without the N × M table.

A mask is a predicate on (query, key) with named parameters; True means *may attend*. `&` combines
masks. `crop` builds any part of the table on demand. `span` bounds the keys that a run of queries
may attend to, so that fully masked blocks are never computed.

Positions: query n of N has position p(n) = n + offset. The default offset is M − N, so the last
query is at the last key (aligned bottom right), as with a key/value cache.

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
    check_integers,
    intersection,
    of_heads,
)
from heedful.ops.mask_base import Combined, Mask


@dataclass(frozen=True)
class Causal(Mask):
    """Query n may attend to keys m ≤ n + offset; offset None means M − N (aligned bottom right)."""

    offset: int | None = None

    def __post_init__(self) -> None:
        check_integers("Causal", offset=self.offset)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Allow keys up to the position of the query."""
        return key <= query + _offset(self.offset, shape)

    def span(self, queries: range, shape: Shape) -> range:
        """Return the keys up to the position of the last query."""
        return _within(0, queries[-1] + _offset(self.offset, shape) + 1, shape)

    def common_span(self, queries: range, shape: Shape) -> range:
        """Return the keys up to the position of the first query."""
        return self.span(queries[:1], shape)

    def has_no_empty_row(self, shape: Shape) -> bool:
        """Return whether the first query may attend to a key; then later queries may as well."""
        return _offset(self.offset, shape) >= 0 and shape[-1] > 0


@dataclass(frozen=True)
class Window(Mask):
    """Query n may attend to keys with |p(n) − m| < size; with `Causal()`, to the last `size` keys.

    Source: the sliding window of Longformer (Beltagy et al. 2020, arXiv:2004.05150).
    """

    size: int
    offset: int | None = None

    def __post_init__(self) -> None:
        check_integers("Window", size=self.size, offset=self.offset)
        if self.size < 1:
            raise ArgumentError(
                f"Window(size={self.size})",
                expected="a size of at least 1",
                remedy="size counts the token itself: Window(1) is only the query's own position",
            )

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Allow keys nearer than `size` to the query."""
        return (query + _offset(self.offset, shape) - key).abs() < self.size

    def span(self, queries: range, shape: Shape) -> range:
        """Return keys from the start of the first query's window to the end of the last one's."""
        offset = _offset(self.offset, shape)
        return _within(queries[0] + offset - self.size + 1, queries[-1] + offset + self.size, shape)

    def common_span(self, queries: range, shape: Shape) -> range:
        """Return the keys in the windows of both the first and the last query."""
        return intersection(self.span(queries[:1], shape), self.span(queries[-1:], shape))


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """Queries may attend to real tokens, not to padding.

    Args:
        keep: boolean tensor or NumPy array, (M,) or (B, M), True where the key is a real token.

    >>> Padding.from_lengths([2, 3], total=3).crop((2, 1, 3, 3)).shape
    torch.Size([2, 1, 3, 3])
    """

    keep: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "keep", as_boolean("Padding", self.keep))

    @classmethod
    def from_lengths(cls, lengths: Sequence[int], total: int, side: str = "right") -> Padding:
        """Return the mask of a batch of sequences that are padded to `total` tokens.

        Args:
            lengths: number of real tokens of each sequence.
            total: number of tokens after padding.
            side: the padded side, "right" or "left".

        Raises:
            ArgumentError: another side, or a length outside 0 to `total`.
        """
        if side not in ("left", "right"):
            raise ArgumentError(f"side={side!r}", expected="'left' or 'right'")
        length = torch.as_tensor(list(lengths))[:, None]
        if len(length) and not 0 <= int(length.min()) <= int(length.max()) <= total:
            raise ArgumentError(f"lengths {list(lengths)}", expected=f"lengths from 0 to {total}")
        position = torch.arange(total)[None, :]
        return cls(position < length if side == "right" else position >= total - length)

    def check(self, shape: Shape) -> None:
        """Check that `keep` has an entry for each key: in one row, or in a row per sequence."""
        keep = tuple(self.keep.shape)
        batch = tuple(shape[:-3]) if len(shape) >= 4 else tuple(shape[:-2])
        fits = all(n in (1, size) for n, size in zip(keep[:-1], batch, strict=False))
        if len(keep) not in (1, 1 + len(batch)) or keep[-1] != shape[-1] or not fits:
            raise ArgumentError(
                f"padding of shape {keep}",
                expected=f"(keys,) or (batch, keys); these scores have {(*batch, shape[-1])}",
                cause="no entries for cached keys, or a batch axis that the scores lack",
                remedy="pass an entry for each key, including cached keys",
            )

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Allow real keys, the same for every query."""
        real = self.keep[..., None, key[0]]
        between = len(shape) - real.ndim  # 1 if the scores have an axis of heads
        if real.ndim == 2 or between == 0:
            return real
        return real.reshape(*real.shape[:-2], *[1] * between, *real.shape[-2:])


@dataclass(frozen=True, eq=False)
class KeyRanges(Mask):
    """Query n may attend to keys first[n] ≤ m < end[n].

    Uses: a sequence of several documents, each of which attends only to itself; a prefix with
    attention in both directions. `& Causal()` masks the keys after each query.

    Args:
        first, end: int64 tensors (N,); a query with end[n] ≤ first[n] may attend to no key.

    >>> (KeyRanges.from_lengths([2, 1]) & Causal()).crop((3, 3)).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [0, 0, 1]], dtype=torch.int32)
    """

    first: Tensor
    end: Tensor

    def __post_init__(self) -> None:
        for tensor in (self.first, self.end):
            is_integer = isinstance(tensor, Tensor) and tensor.dtype == torch.long
            if not is_integer or tensor.ndim != 1 or len(tensor) != len(self.first):
                raise ArgumentError(
                    f"ranges from {_summary(self.first)} to {_summary(self.end)}",
                    expected="two int64 tensors with one number for each query",
                )

    @classmethod
    def from_lengths(cls, lengths: Sequence[int] | Tensor) -> KeyRanges:
        """Return the mask of consecutive documents of these lengths, each attending only to itself.

        The ranges are on the device of `lengths` if it is a tensor.
        """
        length = torch.as_tensor(lengths, dtype=torch.long)
        end = length.cumsum(0)
        return cls((end - length).repeat_interleave(length), end.repeat_interleave(length))

    def check(self, shape: Shape) -> None:
        """Check that there is a range for each query."""
        if len(self.first) != shape[-2]:
            raise ArgumentError(f"ranges of {len(self.first)} queries", expected=f"{shape[-2]}")

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Allow the keys in the range of the query."""
        return (self.first[query] <= key) & (key < self.end[query])

    def span(self, queries: range, shape: Shape) -> range:
        """Return the keys from the smallest `first` to the largest `end`."""
        first, end = self._nonempty(queries)
        if not len(first):
            return range(0)
        return _within(int(first.min()), int(end.max()), shape)

    def common_span(self, queries: range, shape: Shape) -> range:
        """Return the keys that lie in the ranges of all these queries."""
        first, end = self._nonempty(queries)
        if not len(first) or len(first) < len(queries):
            return range(0)
        return _within(int(first.max()), int(end.min()), shape)

    def has_no_empty_row(self, shape: Shape) -> bool:
        """Return whether no range is empty."""
        return bool((self.end.clamp(max=shape[-1]) > self.first.clamp(min=0)).all())

    def _nonempty(self, queries: range) -> tuple[Tensor, Tensor]:
        """Return the ranges that are not empty."""
        first, end = (part[queries.start : queries.stop] for part in (self.first, self.end))
        return first[first < end], end[first < end]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A boolean tensor or NumPy array that broadcasts to (..., N, M), True = may attend."""

    table: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "table", as_boolean("Dense", self.table))

    def of_heads(self, heads: Index) -> Mask:
        """Select heads, if the table has an axis for them."""
        return Dense(of_heads(self.table, heads))

    def check(self, shape: Shape) -> None:
        """Check that the table broadcasts."""
        check_broadcast("mask", self.table, shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Return the entries of the table."""
        table = torch.atleast_2d(self.table)
        query = query if table.shape[-2] > 1 else torch.zeros_like(query[:1])
        key = key if table.shape[-1] > 1 else torch.zeros_like(key[:, :1])
        return table[..., query, key]


@dataclass(frozen=True, eq=False)
class Packed(Mask):
    """A boolean table stored as bits, in an eighth of the memory; `Packed.of(table)` packs it.

    >>> table = torch.tensor([[True, False, True], [True, True, True]])
    >>> torch.equal(Packed.of(table).crop((2, 3)), table)
    True
    """

    bits: Tensor
    keys: int

    @classmethod
    def of(cls, table: Tensor) -> Packed:
        """Pack a boolean table (..., N, M)."""
        table = as_boolean("Packed", table)
        M = table.shape[-1]
        octets = torch.nn.functional.pad(table.to(torch.uint8), (0, -M % 8)).unflatten(-1, (-1, 8))
        powers = 2 ** torch.arange(8, dtype=torch.uint8, device=table.device)
        return cls((octets * powers).sum(dim=-1, dtype=torch.uint8), M)

    def of_heads(self, heads: Index) -> Mask:
        """Select heads, if the table has an axis for them."""
        return Packed(of_heads(self.bits, heads), self.keys)

    def check(self, shape: Shape) -> None:
        """Check that the table broadcasts."""
        check_broadcast("mask", self.bits[..., :1].expand(*self.bits.shape[:-1], self.keys), shape)

    def allowed(self, query: Tensor, key: Tensor, shape: Shape) -> Tensor:
        """Return the bit of each pair."""
        query = query if self.bits.shape[-2] > 1 else torch.zeros_like(query[:1])
        return (self.bits[..., query, key // 8] >> (key % 8).to(torch.uint8) & 1).bool()


KINDS = (Causal, Window, Padding, KeyRanges, Dense, Packed)


def is_built_in(mask: Mask) -> bool:
    """Return whether all parts of a mask are of classes that this module defines.

    >>> is_built_in(Causal() & Window(2))
    True
    >>> class Ahead(Mask):
    ...     def allowed(self, query, key, shape):
    ...         return key <= query + 1
    >>> is_built_in(Ahead()), is_built_in(Causal() & Ahead())
    (False, False)
    """
    parts = mask.parts if isinstance(mask, Combined) else (mask,)
    return all(type(part) in KINDS for part in parts)


def _within(first: int, end: int, shape: Shape) -> range:
    """Return the keys from `first` to `end` (exclusive) that exist."""
    first = min(max(first, 0), shape[-1])
    return range(first, max(first, min(end, shape[-1])))


def _summary(tensor: object) -> str:
    if not isinstance(tensor, Tensor):
        return type(tensor).__name__
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _offset(offset: int | None, shape: Shape) -> int:
    return shape[-1] - shape[-2] if offset is None else offset
