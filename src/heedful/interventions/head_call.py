"""`HeadCall`, a call of attention whose heads are changed, and attention of some of its rows.

`attend` is fused and differentiable; `by_definition` writes the weights out. Sizes: B sequences, h
query heads, G key heads, N queries, M keys, v width of a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from heedful.ops.arguments import check
from heedful.ops.definition import per_query_head, softmax, upcast
from heedful.ops.dispatch import attend as attend_fused
from heedful.ops.indexing import crop_table
from heedful.ops.masks import Dense, Mask
from heedful.recorder.observed_call import Observed

CHANGED = "changed by heedful.intervene"  # a recorder's note on a changed call begins so
BLOCK = 512  # rows whose masks, or whose weights, are built at once


@dataclass
class HeadCall(Observed):
    """A call with axes in standard order, a boolean mask (or None), and its place in the run.

    compute_output: returns the output before the change, (B, h, N, v). If all heads are replaced,
        it is not called, so the model's own attention does not run. `output` is not used.
    name: the module's name. number: the index among the module's calls in this context.
    pass_index: the index of the forward pass. heads: the numbers of the heads in the model.
    all_heads: the number of heads of the module.
    first_query, first_key: the positions of the first query and of the first key in the text.
    hidden: further masked pairs: the heads, and the indices of queries and of keys.
    """

    value: Any = None
    output: None = None
    compute_output: Callable[[], Tensor] | None = None
    name: str = ""
    number: int = 0
    pass_index: int = 0
    heads: tuple[int, ...] = ()
    all_heads: int = 0
    first_query: int = 0
    first_key: int = 0
    hidden: tuple[tuple[tuple[int, ...], Tensor, Tensor], ...] = ()

    def of_heads(self, heads: Any) -> HeadCall:
        """Return the call with only these heads of the model, each with its key head."""
        if tuple(heads) == self.heads:
            return self
        index = [self.heads.index(head) for head in heads]
        call = cast(HeadCall, super().of_heads(index))
        return replace(call, heads=tuple(heads), compute_output=lambda: self.before[:, index])

    def visible(self, rows: Tensor) -> Tensor:
        """Return which keys some queries may see; broadcasts to (B, h, n, M)."""
        M, device = self.shape[3], self.query.device
        if isinstance(self.mask, Mask):
            table = self.mask.crop(self.shape, rows, device=device)
        elif self.mask is None:
            table = torch.ones(1, M, dtype=torch.bool, device=device)
        else:
            table = crop_table(self.mask, rows)
        columns = torch.arange(M, device="cpu")
        for heads, queries, keys in self.hidden:
            pairs = torch.isin(rows, queries)[:, None] & torch.isin(columns, keys)
            if not {*self.heads} <= {*heads}:
                is_hidden = torch.tensor([head in heads for head in self.heads], device="cpu")
                pairs = pairs & is_hidden[:, None, None]
            table = table & ~pairs.to(device)
        return table.expand(*table.shape[:-2], len(rows), M)

    def of_rows(self, rows: Tensor) -> HeadCall:
        """Return the call with only these queries."""
        sinks = self.sinks
        is_open = self.mask is None and not self.hidden
        return replace(
            self, query=self.query[:, :, rows], mask=None if is_open else self.visible(rows),
            bias=None if self.bias is None else crop_table(self.bias, rows), hidden=(),
            sinks=sinks if sinks is None or sinks.ndim == 1 else sinks[:, :, rows],
        )  # fmt: skip

    def in_float64(self) -> HeadCall:
        """Return the call in float64, without a graph; `weights` converts the query."""
        tensors = {name: getattr(self, name) for name in ("key", "value", "bias", "sinks")}
        exact: Any = {name: t.detach().double() for name, t in tensors.items() if t is not None}
        return replace(self, **exact, compute_output=lambda: self.before.detach().double())

    @property
    def before(self) -> Tensor:
        """The output before the change, (B, h, N, v)."""
        return cast(Callable[[], Tensor], self.compute_output)()

    @property
    def rows(self) -> Tensor:
        """The indices of all queries."""
        return torch.arange(self.shape[2], device="cpu")

    @property
    def values(self) -> Tensor:
        """The values of each query head, (B, h, M, v)."""
        return per_query_head(self.value, self.shape[1] // self.value.shape[1])


def attend(call: HeadCall, rows: Tensor | None = None) -> Tensor:
    """Return softmax(scores) · values of some queries; a row without a visible key gives zeros.

    torch's fused kernels have neither a soft cap nor sinks: such a call is computed by rows.
    """
    if call.softcap is not None or call.sinks is not None:
        return in_blocks(
            lambda block: by_definition(call, block), call.rows if rows is None else rows
        )
    if rows is not None or call.hidden:  # the mask becomes a table, built for some rows at once
        rows = call.rows if rows is None else rows
        return in_blocks(lambda block: attend(call.of_rows(block)), rows)
    mask = Dense(call.mask) if isinstance(call.mask, Tensor) else call.mask
    arguments = check(
        call.query, call.key, call.value, mask=mask, bias=call.bias, causal=False,
        scale=call.scale, dropout=0.0,
    )  # fmt: skip
    return attend_fused(arguments)


def in_blocks(compute: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
    """Compute the output of some queries, `BLOCK` of them at once."""
    return torch.cat([compute(block) for block in rows.split(BLOCK)], dim=2)


def by_definition(call: HeadCall, rows: Tensor) -> Tensor:
    """Return the same as `attend` without a fused kernel: its memory grows with n · M."""
    values = call.values
    return (weights(call.of_rows(rows)) @ upcast(values, values)).to(values.dtype)


def weights(call: HeadCall) -> Tensor:
    """Return the weights (B, h, N, M), at least in float32.

    The steps: query · key → scale → cap → bias → mask → sinks → softmax.
    """
    dtype = torch.promote_types(call.query.dtype, call.key.dtype)
    dtype = torch.promote_types(dtype, torch.float32)
    query, key = call.query.to(dtype), call.key.to(dtype)
    scores = (query * call.scale) @ per_query_head(key, call.shape[1] // key.shape[1]).mT
    if call.softcap is not None:
        scores = (scores / call.softcap).tanh() * call.softcap
    if call.bias is not None:
        scores = scores + call.bias
    scores = torch.where(call.visible(call.rows), scores, -torch.inf)
    if call.sinks is None:
        return softmax(scores)
    sinks = call.sinks[:, None] if call.sinks.ndim == 1 else call.sinks
    sinks = sinks.to(scores)[..., None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
