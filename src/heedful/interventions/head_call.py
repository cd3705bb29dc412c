"""`HeadCall`, a call of attention whose heads are changed, and attention of some of its rows.

`attend` is fused and differentiable; `by_definition` writes the weights out. Sizes: B sequences, H
query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from heedful.ops.arguments import check
from heedful.ops.definition import per_query_head, softmax, upcast
from heedful.ops.dispatch import attend as attend_fused
from heedful.ops.indexing import evenly_spaced
from heedful.ops.inputs import rows_of
from heedful.ops.masks import Dense, Mask
from heedful.recorder.observed_call import Observed

BLOCK = 512  # rows whose mask, or whose weights, are built at once


@dataclass
class HeadCall(Observed):
    """A call with axes in standard order, a boolean mask (or None), and its place in the run.

    name: the module's name. number: the index among the module's calls in this context.
    pass_index: the index of the forward pass. heads: the numbers of the heads in the model.
    all_heads: the number of heads of the module.
    first_query, first_key: the positions of the first query and of the first key in the text.
    """

    name: str = ""
    number: int = 0
    pass_index: int = 0
    heads: tuple[int, ...] = ()
    all_heads: int = 0
    first_query: int = 0
    first_key: int = 0

    def of_heads(self, heads: Any) -> HeadCall:
        """Return the call with only these heads of the model, each with its key head."""
        if tuple(heads) == self.heads:
            return self
        index = [self.heads.index(head) for head in heads]
        return cast(HeadCall, replace(super().of_heads(index), heads=tuple(heads)))  # type: ignore

    def table(self, rows: Tensor) -> Tensor | None:
        """Return rows of the mask, which broadcast to (B, H, n, M); None without a mask."""
        if isinstance(self.mask, Mask):
            return self.mask.crop(self.shape, rows, device=self.query.device)
        return None if self.mask is None else rows_of(self.mask, rows)

    def of_rows(self, rows: Tensor, hidden_keys: Tensor | None = None) -> HeadCall:
        """Return the call with only these queries; `hidden_keys` (indices) are masked, too."""
        mask, sinks = self.table(rows), self.sinks
        if hidden_keys is not None:
            keep = torch.ones(self.shape[3], dtype=torch.bool, device=self.query.device)
            keep[hidden_keys] = False
            mask = keep[None] if mask is None else mask & keep
        return replace(
            self, query=self.query[:, :, rows], mask=mask,
            output=None if self.output is None else self.output[:, :, rows],
            bias=None if self.bias is None else rows_of(self.bias, rows),
            sinks=sinks if sinks is None or sinks.ndim == 1 else sinks[:, :, rows],
        )  # fmt: skip

    def in_float64(self) -> HeadCall:
        """Return the call in float64, without a graph."""
        names = ("query", "key", "value", "output", "bias", "sinks")
        tensors = {name: getattr(self, name) for name in names}
        exact = {name: t.detach().double() for name, t in tensors.items() if t is not None}
        return replace(self, **exact)

    @property
    def values(self) -> Tensor:
        """The values of each query head, (B, H, M, v)."""
        value: Any = self.value
        return per_query_head(value, self.shape[1] // value.shape[1])


def sampled_rows(rows: Tensor, count: int = 8) -> Tensor:
    """Return at most `count` evenly spaced rows, with the first and the last."""
    return rows[evenly_spaced(len(rows), count)]


def blocks(rows: Tensor) -> tuple[Tensor, ...]:
    """Split rows into blocks of consecutive elements."""
    return rows.split(BLOCK) if len(rows) else (rows,)


def attend(call: HeadCall) -> Tensor:
    """Return softmax(scores) · values, (B, H, N, v); a row without a visible key gives zeros.

    torch's fused kernels have neither a soft cap nor sinks: such a call is computed by rows.
    """
    if call.softcap is None and call.sinks is None:
        mask = Dense(call.mask) if isinstance(call.mask, Tensor) else call.mask
        arguments = check(
            call.query, call.key, call.value, mask=mask, bias=call.bias, causal=False,
            scale=call.scale, dropout=0.0,
        )  # fmt: skip
        return attend_fused(arguments)
    rows = torch.arange(call.shape[2], device="cpu")
    return torch.cat([by_definition(call.of_rows(block)) for block in blocks(rows)], dim=2)


def by_definition(call: HeadCall) -> Tensor:
    """Return the same as `attend` without a fused kernel: its memory grows with N · M."""
    values = call.values
    return (weights(call) @ upcast(values, values)).to(values.dtype)


def weights(call: HeadCall) -> Tensor:
    """Return the weights (B, H, N, M), at least in float32.

    The steps: query · key → scale → cap → bias → mask → sinks → softmax.

    >>> words = torch.eye(2)[None, None]
    >>> weights(HeadCall(words, words, words, None, mask=torch.eye(2).bool()))
    tensor([[[[1., 0.],
              [0., 1.]]]])
    """
    query, key = upcast(call.query, call.query), upcast(call.key, call.query)
    scores = (query * call.scale) @ per_query_head(key, call.shape[1] // key.shape[1]).mT
    if call.softcap is not None:
        scores = (scores / call.softcap).tanh() * call.softcap
    if call.bias is not None:
        scores = scores + call.bias
    table = call.table(torch.arange(call.shape[2], device="cpu"))
    if table is not None:
        scores = torch.where(table, scores, -torch.inf)
    if call.sinks is None:
        return softmax(scores)
    sinks = call.sinks[:, None] if call.sinks.ndim == 1 else call.sinks
    sinks = sinks.to(scores)[..., None].expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
