"""The log-sum-exps of the rows of a call: log Σₘ exp(score), from the kernel or computed once.

`certificate` checks a sample of rows. The log-sum-exps check the other rows: whenever a full row is
computed, the log-sum-exp of this row is compared with the known one.
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
    """The log-sum-exps of one sequence (a part of a text); methods omit its padding.

    table: (H, N), rows of padding included, NaN if unknown. queries: the indices of real queries.
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
        """Compare computed log-sum-exps with known ones; store those of rows without a known one.

        `inputs` are the attention inputs of `heads`. `computed` (h, n) is −inf for fully masked
        rows. Returns the row with the largest difference beyond rounding, or None if rounding
        explains all differences.
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
    """Return a kernel's log-sum-exps (B, H, N), with NaN (unknown) for rows that are ambiguous.

    A row with log-sum-exp 0 and output 0 is ambiguous: kernels return this for a fully masked row,
    and for a row with a single key of score 0 and value 0. A row is ambiguous too if all its keys
    are masked by the lowest number of the queries' dtype.
    """
    masked = max(MASKED_SCORE, torch.finfo(query.dtype).min) / 2
    sums = sums.masked_fill((sums < masked) | sums.isinf(), torch.nan)
    zero = sums == 0
    if not sums.is_cpu or bool(zero.any()):  # on a GPU, waiting for `any` takes longer than filling
        sums = sums.masked_fill(zero & (output == 0).all(dim=-1), torch.nan)
    return sums
