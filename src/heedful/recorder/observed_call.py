"""The form in which every door describes one call of attention, for a whole batch: `Observed`.

B sequences, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.ops.indexing import of_heads
from heedful.ops.masks import Mask
from heedful.recording.evidence import Finish

if TYPE_CHECKING:
    from heedful.recorder.doors.tape import Meeting

# How a door tells of a call: a function that makes an `Observed`, and its arguments. An error in
# that function does not end the forward pass.
See: TypeAlias = Callable[..., None]

AXES = "b h n d"  # of a query as most doors have it


class Real(NamedTuple):
    """Which tokens are no padding: keys (R, M) and queries (R, N) of R texts, None if unknown.

    In self-attention the queries follow from the keys, at whose positions they stand.
    is_guess: whether it holds only if no query at all sees the other tokens.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    is_guess: bool = False


@dataclass
class Observed:
    """One call of attention as a door saw it.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v): as the model used
        them. Of a product by hand, its factors and results: (b, N, d) and so on.
    mask: one of `ops.masks`, or boolean with True = may attend, or added to the scores, or flex
        attention's; bias: is added too. They broadcast to (B, H, N, M).
    sinks: (H,), or (B, H, N) where each query has its own.
    sums: (B, H, N), the log-sum-exp of each row, where a kernel gave it.
    axes: what the axes of the query are, as `record(axes=)` has them, where door or module tell it.
    texts: how many texts there are, where the module tells it.
    cross, causal: what the door knows of the kind of the call.
    real: which tokens are no padding, where the call itself was told.
    why: why the output cannot be compared, where it cannot.
    finish: what a kernel did after attention to give the output, then (B, 1, N, D).
    part: the part of the running module that attends, where a kernel computes all of the module.
    meeting: of a product by hand, its tape.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    output: Tensor | None
    scale: float = 1.0
    mask: Mask | Tensor | Any = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    sums: Tensor | None = None
    door: str = ""
    axes: str = ""
    texts: int = 0
    cross: bool | None = None
    causal: bool | None = None
    real: Real | None = None
    why: str = ""
    finish: Finish | None = None
    part: str = ""
    meeting: Meeting | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, N, M)."""
        return *self.query.shape[:3], self.key.shape[2]

    def of_heads(self, heads: Sequence[int]) -> Observed:
        """The same call for some of its heads, each with a key head of its own."""
        wanted = torch.tensor(heads, device="cpu")
        shared = wanted // (self.query.shape[1] // self.key.shape[1])
        sinks = self.sinks
        if sinks is not None:
            sinks = sinks[wanted] if sinks.ndim == 1 else sinks[:, wanted]
        return replace(
            self,
            query=self.query[:, wanted],
            key=self.key[:, shared],
            value=None if self.value is None else self.value[:, shared],
            output=None if self.output is None else self.output[:, wanted],
            mask=_mask_of(self.mask, wanted),
            bias=None if self.bias is None else of_heads(self.bias, wanted),
            sinks=sinks,
            sums=None if self.sums is None else self.sums[:, wanted],
        )


def _mask_of(mask: Any, wanted: Tensor) -> Any:
    if isinstance(mask, Tensor):
        return of_heads(mask, wanted)
    return mask.of_heads(wanted) if isinstance(mask, Mask) else mask
