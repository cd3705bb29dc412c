"""The real tokens of a sequence: its queries and keys without padding, and their mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.masks import Mask


class RealTokens(NamedTuple):
    """The tokens of one sequence that are not padding.

    queries, keys: the indices (N,) and (M,) of the real queries and keys in the padded call.
    mask: the mask (N, M) over real tokens; None if every query may attend to every key.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None = None

    @classmethod
    def all_of(cls, queries: int, keys: int) -> RealTokens:
        """Return the tokens of a sequence without padding and without a mask."""
        return cls(torch.arange(queries, device="cpu"), torch.arange(keys, device="cpu"))


def distinct(tokens: Sequence[RealTokens]) -> list[RealTokens]:
    """Return each object once: sequences with the same padding and mask may share an object."""
    return list({id(real): real for real in tokens}.values())


def row_of(sequence: int, rows: int, sequences: int) -> int | None:
    """Return the index of a sequence's text, given `rows` texts; None if the numbers do not fit.

    A call has more sequences (texts × parts) than texts if a text has several parts, as in Swin.
    """
    if not rows or sequences % rows:
        return None
    return sequence // (sequences // rows)


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return some rows of a tensor (…, N, d), as a view if they are contiguous."""
    if len(rows) == tensor.shape[-2]:
        return tensor
    if not are_contiguous(rows):
        return tensor[..., rows, :]
    return tensor[..., int(rows[0]) : int(rows[-1]) + 1, :]


def are_contiguous(indices: Tensor) -> bool:
    """Return whether sorted indices are not empty, and have no gap."""
    return len(indices) > 0 and int(indices[-1]) - int(indices[0]) + 1 == len(indices)


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """Return one sequence of a table that broadcasts to (B, H, N, M), as (1 or H, 1 or N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]
