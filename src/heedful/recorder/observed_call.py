"""`Observed`: a call of attention as a door reports it to `record`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.ops.indexing import of_heads
from heedful.ops.masks import Mask
from heedful.recording.evidence import Epilogue

if TYPE_CHECKING:
    from heedful.recorder.doors.tape import TapedCall

# A door reports a call by report(build, *arguments), where `build(*arguments)` returns an
# `Observed`. An error in `build` does not end the forward pass of the model.
Report: TypeAlias = Callable[..., None]

AXES = "b h n d"  # the standard axes of the query


class TokenMasks(NamedTuple):
    """Boolean tables of the real tokens (True = not padding) of R texts.

    keys, queries: (R, M) and (R, N); None if unknown. In self-attention, unknown queries follow
        from the keys at the same positions.
    is_guess: use the tables only if the call's mask hides the padding from padding queries, too.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    is_guess: bool = False


@dataclass
class Observed:
    """One call of attention: B sequences, H query heads, G key heads, N queries, M keys.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v): the tensors of
        the model. For attention by hand, the tensors of `TapedCall`, with axes not yet arranged.
    mask: a mask of `ops.masks` or of flex attention, a boolean tensor (True = may attend), or a
        tensor that is added to the scores. bias: added to the scores, too. Both broadcast to
        (B, H, N, M).
    sinks: logits of learned sinks, (H,), or (B, H, N) if each query has its own.
    sums: the log-sum-exp of each row, (B, H, N); None if the kernel did not return it.
    axes: the axes of the query in the notation of `record(axes=)`; "" if unknown.
    texts: the number of texts in the batch; 0 if unknown.
    cross, causal: whether the call is cross-attention, or is causal; None if unknown.
    real: the real tokens, if a padding mask of the call shows them; else None.
    why: the reason why the output cannot be compared with the weights; "" if it can.
    epilogue: operations of a fused kernel after attention. With them, the output is (B, 1, N, D).
    part: the name of the submodule that attends, if the kernel runs the module around it; else "".
    taped: the tape of attention by hand; else None.
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
    real: TokenMasks | None = None
    why: str = ""
    epilogue: Epilogue | None = None
    part: str = ""
    taped: TapedCall | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, N, M)."""
        return *self.query.shape[:3], self.key.shape[2]

    def of_heads(self, heads: Sequence[int]) -> Observed:
        """Return the call with only these query heads, each with its own copy of its key head."""
        index = torch.tensor(heads, device="cpu")
        key_index = index // (self.query.shape[1] // self.key.shape[1])
        sinks = self.sinks
        if sinks is not None:
            sinks = sinks[index] if sinks.ndim == 1 else sinks[:, index]
        return replace(
            self, query=self.query[:, index], key=self.key[:, key_index],
            value=None if self.value is None else self.value[:, key_index],
            output=None if self.output is None else self.output[:, index],
            mask=_mask_of_heads(self.mask, index), sinks=sinks,
            bias=None if self.bias is None else of_heads(self.bias, index),
            sums=None if self.sums is None else self.sums[:, index],
        )  # fmt: skip


def _mask_of_heads(mask: Any, heads: Tensor) -> Any:
    if isinstance(mask, Tensor):
        return of_heads(mask, heads)
    return mask.of_heads(heads) if isinstance(mask, Mask) else mask
