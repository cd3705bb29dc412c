"""The log-sum-exp of each row of a call, returned by the kernel or computed once.

Known values are compared with later ones, so a wrong row outside the checked sample is detected
when the full row is computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import MASKED_SCORE, AttentionInputs
from heedful.recording.tolerance import rounding_of_sums


class Fault(NamedTuple):
    """A row whose computed log-sum-exp differs from the known one; head and query are indices."""

    head: int
    query: int
    computed: float
    known: float


@dataclass
class RowSums:
    """The log-sum-exps of one sequence, without its padding.

    table: (H, N) with padding, NaN if unknown; modified in place. queries: the real queries.
    """

    table: Tensor
    queries: Tensor

    @property
    def any_known(self) -> bool:
        """Whether any value is known."""
        return not bool(self.select(slice(None), slice(None)).isnan().all())

    def get_known(self, heads: slice, rows: Tensor | slice) -> Tensor | None:
        """Return the values of some rows, (h, n); None unless all are known."""
        sums = self.select(heads, rows)
        return None if bool(sums.isnan().any()) else sums

    def compare_and_store(
        self, inputs: AttentionInputs, heads: slice, rows: Tensor | slice, computed: Tensor
    ) -> Fault | None:
        """Compare computed log-sum-exps with the known ones, and store those that were unknown.

        `computed` (h, n) are those of some rows of `inputs`, the attention inputs of these heads:
        −inf for a fully masked row; NaN stays unknown. Returns the row that differs most beyond
        rounding, or None.
        """
        known = self.select(heads, rows)
        sums = torch.where(known.isnan(), computed.to(known), known)
        self.table[heads].index_copy_(1, self.queries[rows].to(sums.device), sums)
        if not inputs.shape[2]:
            return None
        difference = (computed - known).abs()
        excess = difference - rounding_of_sums(inputs, known.masked_fill(known.isinf(), 0.0), rows)
        is_near = known.isnan() | (computed == known) | (excess <= 0)
        if bool(is_near.all()):
            return None
        worst = excess.nan_to_num(nan=math.inf).masked_fill(is_near, -math.inf)
        h, row = divmod(int(worst.argmax()), worst.shape[1])
        head = range(self.table.shape[0])[heads][h]
        query = int(torch.arange(len(self.queries), device="cpu")[rows][row])
        return Fault(head, query, float(computed[h, row]), float(known[h, row]))

    def select(self, heads: slice, rows: Tensor | slice) -> Tensor:
        """Return the values of some rows, (h, n); NaN if unknown."""
        return self.table[heads][:, self.queries[rows]]


@torch.inference_mode(False)  # inference tensors could not be modified later
def unknown(query: Tensor) -> Tensor:
    """Return a table of unknown log-sum-exps, NaN, for queries (…, N, d)."""
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.full(query.shape[:-1], torch.nan, dtype=dtype, device=query.device)


@torch.inference_mode(False)
def sums_of_kernel(sums: Tensor, query: Tensor, output: Tensor) -> Tensor:
    """Return a kernel's log-sum-exps (B, H, N), NaN where they are ambiguous.

    For a fully masked row a kernel returns 0, with output 0; it does the same for a row with one
    key whose score and value are 0. Both are unknown, and so are rows in which all keys are masked
    by the lowest number of the queries' dtype.
    """
    masked = max(MASKED_SCORE, torch.finfo(query.dtype).min) / 2
    sums = sums.masked_fill((sums < masked) | sums.isinf(), torch.nan)
    zero = sums == 0
    if not sums.is_cpu or bool(zero.any()):  # on a GPU, waiting for `any` costs more than filling
        sums = sums.masked_fill(zero & (output == 0).all(dim=-1), torch.nan)
    return sums
