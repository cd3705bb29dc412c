"""One call of attention as it happened, for a whole batch; and how it proves itself.

B batch, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.causes import Causes, weights
from heedful.ops.masks import Causal, Dense, Mask

SAMPLED = 8  # rows of each sequence on which a call is checked

# The worst difference that rounding explains, in units of the largest output
TOLERANCE = {
    torch.float64: 1e-10,
    torch.float32: 2e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}


@dataclass
class Seen:
    """What a door saw of a call, in the words that all doors share.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v) as the model used
    it. `mask` is one of ours, boolean with True = may attend, or None; `bias` is added to the
    scaled scores. Both broadcast to (B, H, N, M).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    scale: float
    mask: Mask | Tensor | None = None
    bias: Tensor | None = None
    cap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    door: str = ""
    cross: bool | None = None

    def of_heads(self, heads: Sequence[int]) -> Seen:
        """Some of the heads, each with a key head of its own."""
        H = self.query.shape[1]
        wrong = [head for head in heads if not 0 <= head < H]
        if wrong:
            raise ArgumentError(f"head {wrong[0]}", expected=f"heads from 0 to {H - 1}")
        wanted = torch.tensor(heads)
        shared = wanted // (H // self.key.shape[1])

        def cut(table: Tensor | None) -> Tensor | None:
            if table is None or table.ndim < 3 or table.shape[-3] == 1:
                return table
            return table[..., wanted, :, :]

        return replace(
            self,
            query=self.query[:, wanted],
            key=self.key[:, shared],
            value=self.value[:, shared],
            output=self.output[:, wanted],
            mask=cut(self.mask) if isinstance(self.mask, Tensor) else self.mask,
            bias=cut(self.bias),
            sinks=None if self.sinks is None else self.sinks[wanted],
        )

    def mask_of(self, sequence: int) -> Mask | None:
        """The mask of one sequence, over its (H, N, M)."""
        if self.mask is None or isinstance(self.mask, Causal):
            return self.mask
        if isinstance(self.mask, Mask):
            B, H, N, _ = self.query.shape
            table = self.mask.crop((B, H, N, self.key.shape[2]), device=self.query.device)
        else:
            table = self.mask
        return Dense(of_sequence(table, sequence))

    def causes(self, sequence: int) -> Causes:
        """What the weights of one sequence are a function of."""
        return Causes(
            self.query[sequence],
            self.key[sequence],
            self.scale,
            self.mask_of(sequence),
            None if self.bias is None else of_sequence(self.bias, sequence),
            self.cap,
            self.sinks,
        )


@dataclass
class Check:
    """How far weights @ values was from the output that the model used, on sampled rows.

    `worst` is in units of the largest output; NaN where it cannot be told, and `why` says why.
    """

    worst: float
    tolerance: float
    rows: int
    why: str = ""

    @property
    def passed(self) -> bool:
        """Whether rounding explains the difference."""
        return self.worst <= self.tolerance


@dataclass
class Capture:
    """A call as it is kept: copies, which nothing that runs later can change.

    `keep` (B, M) says which keys are no padding, `checks` how each sequence proved itself.
    """

    seen: Seen
    name: str
    layer: int
    forward: int
    check: Check
    keep: Tensor | None
    values: bool


def captured(
    seen: Seen,
    *,
    name: str,
    layer: int,
    forward: int,
    keep: Tensor | None,
    heads: Collection[int] | None,
    values: bool,
    dtype: torch.dtype | None,
) -> Capture:
    """Check a call against the output that the model used, and copy what is to be kept."""
    check = certify(seen)
    if heads is not None:
        seen = seen.of_heads(sorted(heads))
    kept = replace(
        seen,
        query=_copy(seen.query, dtype),
        key=_copy(seen.key, dtype),
        value=_copy(seen.value, dtype) if values else seen.value[..., :0, :].clone(),
        output=seen.output[..., :0, :].clone(),
        bias=None if seen.bias is None else seen.bias.detach(),
    )
    return Capture(kept, name, layer, forward, check, keep, values)


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    kept = tensor.detach().to(dtype or tensor.dtype, memory_format=torch.contiguous_format)
    return kept.clone() if kept.data_ptr() == tensor.data_ptr() else kept


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """A table that broadcasts to (B, H, N, M), of one sequence: (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]


@torch.no_grad()
def certify(seen: Seen) -> Check:
    """Compare recomputed rows with the output that the model really used."""
    tolerance = TOLERANCE.get(seen.query.dtype, 1e-2)
    if seen.dropout:
        return Check(float("nan"), tolerance, 0, "weights were dropped at random")
    N = seen.query.shape[2]
    rows = torch.linspace(0, N - 1, min(N, SAMPLED)).long().unique()
    worst, size = 0.0, 1e-30
    for sequence in range(len(seen.query)):
        causes = seen.causes(sequence)
        map_ = weights(causes, queries=rows)
        group = len(seen.query[sequence]) // len(seen.value[sequence])
        value = seen.value[sequence].to(map_).repeat_interleave(group, dim=0)
        used = seen.output[sequence][:, rows].to(map_)
        # what a row that sees nothing holds differs from kernel to kernel, and is no attention
        real = (map_.amax(dim=-1, keepdim=True) > 0).to(map_)
        worst = max(worst, float(((map_ @ value - used) * real).abs().max()))
        size = max(size, float((used * real).abs().max()))
    return Check(worst / size, tolerance, len(rows))
