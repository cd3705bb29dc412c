"""The log-sum-exp of each row of a call: the kernel's own, or what was computed since, once.

What is known is compared with what is computed later: a fault in a row that no sample saw is found
as soon as anybody looks at that row whole.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.ops.inputs import HIDDEN, AttentionInputs
from heedful.recording.tolerance import rounding_of_sums


class Fault(NamedTuple):
    """A row, by the index of its head and its query, whose log-sum-exp is not the one known."""

    head: int
    query: int
    found: float
    known: float


@dataclass
class RowSums:
    """The log-sum-exps of one sequence, without its padding.

    table: (H, N) of the whole call, NaN where unknown; it is written into. queries: the real ones.
    """

    table: Tensor
    queries: Tensor

    @property
    def any_known(self) -> bool:
        """Whether there is any to compare with."""
        return not bool(self.of(slice(None), slice(None)).isnan().all())

    def known(self, heads: slice, rows: Tensor | slice) -> Tensor | None:
        """Those of some rows, (h, n); None unless all of them are known."""
        sums = self.of(heads, rows)
        return None if bool(sums.isnan().any()) else sums

    def meet(
        self, of: AttentionInputs, heads: slice, rows: Tensor | slice, found: Tensor
    ) -> Fault | None:
        """Compare what was computed of some rows with what is known, and keep what was not.

        `found` (h, n), their log-sum-exp, was computed from `of`, the causes of these heads: −inf
        where a row may attend to nothing; NaN stays unknown. Returns the row that differs most
        beyond rounding; None where none does.
        """
        known = self.of(heads, rows)
        sums = torch.where(known.isnan(), found.to(known), known)
        self.table[heads].index_copy_(1, self.queries[rows].to(sums.device), sums)
        if not of.shape[2]:
            return None
        off = (found - known).abs()
        beyond = off - rounding_of_sums(of, known.masked_fill(known.isinf(), 0.0), rows)
        is_near = known.isnan() | (found == known) | (beyond <= 0)
        if bool(is_near.all()):
            return None
        worst = beyond.nan_to_num(nan=math.inf).masked_fill(is_near, -math.inf)
        at, row = divmod(int(worst.argmax()), worst.shape[1])
        head = range(self.table.shape[0])[heads][at]
        query = int(torch.arange(len(self.queries), device="cpu")[rows][row])
        return Fault(head, query, float(found[at, row]), float(known[at, row]))

    def of(self, heads: slice, rows: Tensor | slice) -> Tensor:
        """(h, n), NaN where one is not known."""
        return self.table[heads][:, self.queries[rows]]


@torch.inference_mode(False)  # which would keep anybody from writing into them later
def unknown(query: Tensor) -> Tensor:
    """As many log-sum-exps as queries (…, N, d) have rows, none of which is known."""
    kind = torch.promote_types(query.dtype, torch.float32)
    return torch.full(query.shape[:-1], torch.nan, dtype=kind, device=query.device)


@torch.inference_mode(False)
def sums_of_kernel(sums: Tensor, query: Tensor, output: Tensor) -> Tensor:
    """The log-sum-exps (B, H, N) that a kernel gave, NaN where these say nothing.

    Of a row that sees nothing a kernel gives 0, and the output 0; so it does of a row with one key
    whose score and value are 0. Of these, and of rows whose keys are all hidden by the lowest
    number of the queries' type, nothing is known.
    """
    hidden = max(HIDDEN, torch.finfo(query.dtype).min) / 2
    sums = sums.masked_fill((sums < hidden) | sums.isinf(), torch.nan)
    zero = sums == 0
    if not sums.is_cpu or bool(zero.any()):  # to wait for a GPU takes longer than to look
        sums = sums.masked_fill(zero & (output == 0).all(dim=-1), torch.nan)
    return sums
