"""The real tokens of a sequence: its queries and keys without padding, and their mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.masks import Mask


class RealTokens(NamedTuple):
    """The tokens of one sequence that are not padding.

    queries, keys: their indices in the call.
    mask: the mask over them; None if every query may attend to every key.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None = None

    @classmethod
    def all_of(cls, queries: int, keys: int) -> RealTokens:
        """Return all of a number of queries and keys, without a mask."""
        return cls(torch.arange(queries, device="cpu"), torch.arange(keys, device="cpu"))


def distinct(several: Sequence[RealTokens]) -> list[RealTokens]:
    """Return each object once; sequences share them."""
    return list({id(each): each for each in several}.values())


def row_of(sequence: int, rows: int, sequences: int) -> int | None:
    """Return the row of a table with one row per text for a sequence of a call, or None.

    A call has more sequences than texts if a text has several parts (Swin's windows).
    """
    if not rows or sequences % rows:
        return None
    return sequence // (sequences // rows)


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Return rows of a tensor (…, N, d); a view if they are contiguous."""
    if len(rows) == tensor.shape[-2]:
        return tensor
    if not are_contiguous(rows):
        return tensor[..., rows, :]
    return tensor[..., int(rows[0]) : int(rows[-1]) + 1, :]


def are_contiguous(indices: Tensor) -> bool:
    """Return whether sorted indices have no gap."""
    return len(indices) > 0 and int(indices[-1]) - int(indices[0]) + 1 == len(indices)


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """Return one sequence of a table that broadcasts to (B, H, N, M): (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]
