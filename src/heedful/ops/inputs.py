"""The inputs of attention (query, key, mask, …), and the scores of any part of their weight map.

The map of a head has N × M entries; its query and key have only (N + M) · d. So recordings store
the inputs, and compute rows, crops and statistics of the map on request.

Sizes: H query heads, G key heads, N queries, M keys, d width.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.ops.indexing import ALL, crop_table, of_heads
from heedful.ops.mask_base import parts_of
from heedful.ops.masks import Causal, Mask, Window

MASKED_SCORE = -1e30  # its exp is 0, like that of −inf; but its product with 0 is not NaN
# Number of scores computed at once. 8 MB on a CPU: smaller blocks need more operations, and larger
# blocks do not fit into the cache. 256 MB on an accelerator, to keep it busy
ENTRIES, ACCELERATOR_ENTRIES = 1 << 21, 1 << 26


class AttentionInputs(NamedTuple):
    """Everything that determines the attention weights of one sequence in one call.

    The steps are: query · key → scale → softcap → bias → mask → append a column with the sink's
    score → softmax → remove that column. A query that may attend to no key has zero weights.

    query: (H, N, d).
    key: (G, M, d); query head h uses key head h // (H // G).
    scale: factor of the scores.
    mask: which pairs may attend; None: all.
    bias: added to the capped scores; broadcasts to (H, N, M).
    softcap: c in c · tanh(score / c), as in Gemma 2.
    sinks: (H,) or (H, N), the score of a learned sink for each head, as in gpt-oss, or for each
        head and query; the weights of a row then sum to less than 1.

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
        """The position of the first query among the keys: query n has position n + offset.

        The offset is M − N: the last query is at the last key, as with a key/value cache. But with
        more queries than keys, it is the mask's offset, if that is set (0 for torch's `is_causal`).
        """
        _, N, M = self.shape
        offsets = [p.offset for p in parts_of(self.mask) if isinstance(p, Causal | Window)]
        explicit = [offset for offset in offsets if offset is not None]
        return explicit[0] if N > M and explicit else M - N

    def upcast(self) -> AttentionInputs:
        """Convert query and key to at least float32, the type of scores in fused kernels."""
        dtype = torch.promote_types(self.query.dtype, torch.float32)
        if self.query.dtype == self.key.dtype == dtype:
            return self
        return self._replace(query=self.query.to(dtype), key=self.key.to(dtype))

    def on(self, device: torch.device) -> AttentionInputs:
        """Move the tensors to a device, except the mask: its crops can be built on any device."""
        parts = (part.to(device) if isinstance(part, Tensor) else part for part in self)
        return AttentionInputs._make(parts)

    def of_heads(self, heads: slice | Tensor) -> AttentionInputs:
        """Select query heads, by a slice or indices; repeat key heads that several of them use."""
        group = len(self.query) // len(self.key)
        if isinstance(heads, slice) and heads == ALL and group == 1:
            return self
        key_heads = torch.arange(len(self.query), device="cpu")[heads] // group
        if len(key_heads) == 1:  # a view; query heads that share a key head would need copies of it
            key = self.key[int(key_heads) :][:1]
        else:
            key = self.key[heads if group == 1 else key_heads]
        return self._replace(
            query=self.query[heads],
            key=key,
            mask=None if self.mask is None else self.mask.of_heads(heads),
            bias=None if self.bias is None else of_heads(self.bias, heads),
            sinks=None if self.sinks is None else self.sinks[heads],
        )


def no_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """Return a context that disables autocast on the tensor's device."""
    device = tensor.device.type
    is_enabled = torch.is_autocast_enabled(device)
    return torch.autocast(device, enabled=False) if is_enabled else nullcontext()


def block_entries(tensor: Tensor) -> int:
    """Return how many scores to compute at once on the tensor's device."""
    return ENTRIES if tensor.is_cpu else ACCELERATOR_ENTRIES


def scores(
    inputs: AttentionInputs,
    rows: Tensor,
    columns: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor:
    """Compute masked scores of some queries and keys, (H, n, m); masked pairs are `MASKED_SCORE`.

    Args:
        inputs: the result of `upcast()`, with one key head for each query head.
        rows, columns: indices of queries and of keys; `columns` defaults to all keys.
        table: the mask of these rows and columns, if it is already built.
    """
    out = (inputs.query[:, rows] * inputs.scale) @ _select(inputs.key, columns, 1).mT
    if inputs.softcap is not None:
        out = out.div_(inputs.softcap).tanh_().mul_(inputs.softcap)
    if inputs.bias is not None:
        bias = crop_table(inputs.bias, rows)
        out += bias if bias.shape[-1] == 1 else _select(bias, columns, -1)
        out.clamp_(min=MASKED_SCORE)  # −inf in the bias masks a pair
    if inputs.mask is not None:  # torch.where is faster than masked_fill_
        if table is None:
            table = inputs.mask.between(inputs.shape, rows, columns, out.device)
        torch.where(table, out, out.new_full((), MASKED_SCORE), out=out)
    return out


def _select(tensor: Tensor, indices: Tensor | None, dim: int) -> Tensor:
    """Select indices along an axis; consecutive indices give a view."""
    if indices is None:
        return tensor
    index = as_slice_if_consecutive(indices)
    if isinstance(index, slice):
        return tensor.narrow(dim, index.start, index.stop - index.start)
    return tensor.index_select(dim, index.to(tensor.device))


def as_slice_if_consecutive(indices: Tensor) -> slice | Tensor:
    """Return consecutive indices as a slice, which torch reads without a copy; others unchanged."""
    first = int(indices[0]) if len(indices) else 0
    end = first + len(indices)
    run = torch.arange(first, end, device=indices.device)
    return slice(first, end) if torch.equal(indices, run) else indices


def add_sink(weights: Tensor, total: Tensor, sinks: Tensor) -> Tensor:
    """Rescale weights (H, n, m) in place so that sinks (H, 1 or n) take their share.

    `total` is the log-sum-exp of each row without the sink. Return the log-sum-exp with the sink.
    """
    with_sink = torch.logaddexp(total, sinks.to(total))
    weights *= (total - with_sink).exp()[..., None]
    return with_sink


def sinks_of(sinks: Tensor, rows: Tensor | slice) -> Tensor:
    """Select the sinks of some queries, (H, 1 or n)."""
    return sinks[:, None] if sinks.ndim == 1 else sinks[:, rows]
