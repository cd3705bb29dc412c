"""Which queries and keys of a sequence are no padding, and the mask over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.masks import Mask


class RealTokens(NamedTuple):
    """The tokens of one sequence that are no padding.

    queries, keys: their indices in the call.
    mask: the mask over these; None where every query may attend to every key.
    """

    queries: Tensor
    keys: Tensor
    mask: Mask | None = None

    @classmethod
    def all_of(cls, queries: int, keys: int) -> RealTokens:
        """All of so many queries and keys, without a mask."""
        return cls(torch.arange(queries, device="cpu"), torch.arange(keys, device="cpu"))


def distinct(several: Sequence[RealTokens]) -> list[RealTokens]:
    """Each object once, as sequences share them."""
    return list({id(each): each for each in several}.values())


def row_of(sequence: int, rows: int, sequences: int) -> int | None:
    """The row (of a mask of texts, say) for a sequence of a call; None where none fits.

    A call has more sequences than there are texts where a text has several parts (Swin's windows).
    """
    if not rows or sequences % rows:
        return None
    return sequence // (sequences // rows)


def take(tensor: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor (…, N, d), in their order; a view where they follow each other."""
    if len(rows) == tensor.shape[-2]:
        return tensor
    if not stand_together(rows):
        return tensor[..., rows, :]
    return tensor[..., int(rows[0]) : int(rows[-1]) + 1, :]


def stand_together(indices: Tensor) -> bool:
    """Whether indices follow each other without a gap."""
    return len(indices) > 0 and int(indices[-1]) - int(indices[0]) + 1 == len(indices)


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """One sequence of a table that broadcasts to (B, H, N, M): (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]
