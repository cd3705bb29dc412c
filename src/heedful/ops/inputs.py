"""What a map of weights is a function of, and the scores of any part of it.

The map of a head has N × M entries, its causes (N + M) · d. So the causes are kept, and a row, a
crop or a statistic is computed when somebody asks. H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import ALL
from heedful.ops.masks import Causal, Combined, Mask, Window

HIDDEN = -1e30  # a score that no exponent survives, and that, unlike −inf, times a weight of 0 is 0
# Scores computed at once. On a CPU 8 MB: with less, there are more operations to start; more fits
# into no cache. Elsewhere 256 MB, so that an accelerator has enough to do
ENTRIES, ELSEWHERE = 1 << 21, 1 << 26


class AttentionInputs(NamedTuple):
    """All that decides the weights of one sequence in one call.

    They are applied in the order of the models that have them: scale → softcap → bias → mask → a
    column for the sink → softmax → the sink's column is left out. A query that may see nothing has
    zeros.

    query: (H, N, d).
    key: (G, M, d); query head h uses key head h // (H // G).
    scale: what the scores are multiplied by.
    mask: which pairs may attend; None is all.
    bias: added to the scaled scores; broadcasts to (H, N, M).
    softcap: c of the soft cap c · tanh(score / c) (Gemma 2).
    sinks: (H,), a score for attending to nothing (gpt-oss), or (H, N), one for each query; rows
        then sum to less than one.

    >>> from heedful.ops.map_region import weights
    >>> from heedful.ops.masks import Causal
    >>> query = key = torch.eye(3).unsqueeze(0)
    >>> weights(AttentionInputs(query, key, scale=1.0, mask=Causal()), queries=[1])
    tensor([[[0.2689, 0.7311, 0.0000]]])
    """

    query: Tensor
    key: Tensor
    scale: float
    mask: Mask | None = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, N, M)."""
        return self.query.shape[0], self.query.shape[1], self.key.shape[1]

    @property
    def offset(self) -> int:
        """The key at which the first query stands: p(n) = n + offset.

        It is M − N, so that the last query stands at the last key, as caches need. Only where there
        are more queries than keys does the mask's own offset count, if it has one; 0 is that of
        torch's `is_causal`.
        """
        _, N, M = self.shape
        parts = self.mask.parts if isinstance(self.mask, Combined) else (self.mask,)
        offsets = [one.offset for one in parts if isinstance(one, Causal | Window)]
        told = [offset for offset in offsets if offset is not None]
        return told[0] if N > M and told else M - N

    def in_precision(self) -> AttentionInputs:
        """The same in float32 at the least, as scores are computed in fused kernels."""
        kind = torch.promote_types(self.query.dtype, torch.float32)
        if self.query.dtype == self.key.dtype == kind:
            return self
        return self._replace(query=self.query.to(kind), key=self.key.to(kind))

    def on(self, device: torch.device) -> AttentionInputs:
        """The same with all its tensors on a device; a mask is made wherever its queries are."""
        return self._replace(
            query=self.query.to(device),
            key=self.key.to(device),
            bias=None if self.bias is None else self.bias.to(device),
            sinks=None if self.sinks is None else self.sinks.to(device),
        )

    def of_heads(self, heads: slice) -> AttentionInputs:
        """The same for some of the heads, with a key for each of them."""
        H, group = len(self.query), len(self.query) // len(self.key)
        if heads == ALL and group == 1:
            return self
        wanted = range(H)[heads]
        if len(wanted) == 1:  # a view, where others of its group need a copy each
            key = self.key[wanted[0] // group :][:1]
        else:
            own = torch.tensor(wanted, device="cpu") // group
            key = self.key[heads] if group == 1 else self.key[own]
        bias = self.bias
        return self._replace(
            query=self.query[heads],
            key=key,
            mask=None if self.mask is None else self.mask.of_heads(heads),
            bias=bias[heads] if bias is not None and bias.ndim == 3 and len(bias) > 1 else bias,
            sinks=None if self.sinks is None else self.sinks[heads],
        )


def unrounded(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context in which autocast rounds no product where a tensor is."""
    kind = tensor.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()


def entries_of(tensor: Tensor) -> int:
    """How many scores are computed at once where a tensor is."""
    return ENTRIES if tensor.is_cpu else ELSEWHERE


def scores(
    of: AttentionInputs, rows: Tensor, columns: Tensor | None = None, table: Tensor | None = None
) -> Tensor:
    """Masked scores of some queries with some keys, (H, n, m); `HIDDEN` where none may attend.

    `columns` are indices of keys, by default all; `table` is the mask of these rows and columns,
    where it is made already; `of` is in its precision, with a key for each of its heads.
    """
    out = (of.query[:, rows] * of.scale) @ _at(of.key, columns, 1).mT
    if of.softcap is not None:
        out = out.div_(of.softcap).tanh_().mul_(of.softcap)
    if of.bias is not None:
        bias = rows_of(of.bias, rows)
        out += bias if bias.shape[-1] == 1 else _at(bias, columns, -1)
        out.clamp_(min=HIDDEN)  # a bias of −inf hides
    if of.mask is not None:  # torch.where is faster than masked_fill_
        if table is None:
            table = of.mask.between(of.shape, rows, columns, out.device)
        torch.where(table, out, out.new_full((), HIDDEN), out=out)
    return out


def _at(tensor: Tensor, places: Tensor | None, dim: int) -> Tensor:
    """What stands at places of an axis; a view where they are a run."""
    if places is None:
        return tensor
    where = run_of(places)
    if isinstance(where, slice):
        return tensor.narrow(dim, where.start, where.stop - where.start)
    return tensor.index_select(dim, where.to(tensor.device))


def run_of(indices: Tensor) -> slice | Tensor:
    """Indices as a slice where they follow one another: torch then copies nothing."""
    first = int(indices[0]) if len(indices) else 0
    end = first + len(indices)
    run = torch.arange(first, end, device=indices.device)
    return slice(first, end) if torch.equal(indices, run) else indices


def add_sink(weights: Tensor, total: Tensor, sinks: Tensor) -> Tensor:
    """Give sinks (H, 1 or n) their share of weights (H, n, m), in place.

    `total` is the log-sum-exp of each row; what is returned is the same with the sink.
    """
    with_sink = torch.logaddexp(total, sinks.to(total))
    weights *= (total - with_sink).exp()[..., None]
    return with_sink


def sinks_of(sinks: Tensor, rows: Tensor | slice) -> Tensor:
    """The sinks of some queries, (H, 1 or n)."""
    return sinks[:, None] if sinks.ndim == 1 else sinks[:, rows]


def rows_of(bias: Tensor, rows: Tensor | slice) -> Tensor:
    """The bias of some queries, (…, n or 1, M or 1)."""
    bias = torch.atleast_2d(bias)
    return bias if bias.shape[-2] == 1 else bias[..., rows, :]
