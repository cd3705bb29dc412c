"""What a door saw of one call of attention, for a whole batch, in the words that all doors share.

B batch, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.masks import Mask
from heedful.ops.score_tables import of_heads

# How a door tells of a call: a function that makes an Observed, and its arguments. What goes wrong
# in it must not end the forward pass that is watched.
Tell: TypeAlias = Callable[..., None]


# From heads joined (n, H · v), and (sequence, rows) of what was read, to the output (n, D)
Finish: TypeAlias = Callable[[Tensor, Any], Tensor]


class Real(NamedTuple):
    """True for real tokens: keys (R, M) and queries (R, N); None where nothing was told.

    A row is of as many sequences of the call as there are for it. In self-attention the queries
    follow from the keys, at whose positions they stand. `is_guess`: only if the others are seen by
    no query at all.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    is_guess: bool = False


class Batch(NamedTuple):
    """How many texts the model was given, None where no input tells.

    is_sure: whether there can be no doubt.
    place: the number of the input that has them, and along which of its axes.
    is_followed: whether that is the axis beside the one that queries stand along.
    """

    texts: int | None
    is_sure: bool = True
    place: tuple[int, int] | None = None
    is_followed: bool = False


@dataclass
class Observed:
    """One call.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v) as the model used
    it. `mask` is one of ours, boolean with True = may attend, added to the scores, or flex
    attention's; `bias` is added too. All broadcast to (B, H, N, M). `cross` and `causal` say what
    the door knows of the kind, `real` what of the batch the call itself was told to be no padding,
    `inferred` what of its axes is a guess, and how it was made, and `why` why no output can be
    compared, where none can. `sinks` are (H,), or (B, H, N) where each query has its own. `finish`
    is what a kernel did to its context before the output (B, 1, N, D) that can be seen; `batch` is
    how many texts there are, where it was followed from the inputs, `follows` whether sequences
    were followed to them, and `part` which part of the
    module that runs attends, where a kernel computes the module as a whole. `source` is the model's
    own tensor where mask or bias were made of one alone, so that layers that share it are known.
    """

    query: Tensor
    key: Tensor
    value: Tensor | None
    output: Tensor | None
    scale: float
    mask: Mask | Tensor | Any = None
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    dropout: float = 0.0
    door: str = ""
    cross: bool | None = None
    causal: bool | None = None
    real: Real | None = None
    why: str = ""
    inferred: dict[str, str] = field(default_factory=dict)
    finish: Finish | None = None
    batch: Batch | None = None
    follows: bool = False
    part: str = ""
    source: Any = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, N, M)."""
        return *self.query.shape[:3], self.key.shape[2]

    def of_heads(self, heads: Sequence[int]) -> Observed:
        """Some of the heads, each with a key head of its own."""
        wanted = torch.tensor(heads)
        shared = wanted // (self.query.shape[1] // self.key.shape[1])
        return replace(
            self,
            query=self.query[:, wanted],
            key=self.key[:, shared],
            value=None if self.value is None else self.value[:, shared],
            output=None if self.output is None else self.output[:, wanted],
            mask=_mask_of(self.mask, wanted),
            bias=None if self.bias is None else of_heads(self.bias, wanted),
            sinks=None if self.sinks is None else _heads_of(self.sinks, wanted),
        )


def rounding(weights: Tensor) -> float:
    """How far from one the sum of a row of weights may be."""
    return 1e-5 if weights.dtype.itemsize > 2 else 2e-2


def of_weights(weights: Tensor, door: str) -> Observed:
    """A call of which only the weights (B, H, N, M) are known; a row may sum to less than one.

    What a row lacks is the share of a sink of its own.

    Raises:
        ArgumentError: weights below 0, or rows that sum to more than one.
    """
    B, H, N, M = weights.shape
    room = rounding(weights)
    share = room / 10 if room < 1e-2 else room  # that is a sink's, and no rounding
    weights = weights.detach().float()
    total = weights.sum(dim=-1)
    if not bool((weights >= 0).all() and (total <= 1 + room).all()):
        raise ArgumentError(
            f"weights from {float(weights.min()):.3g}, rows that sum to {float(total.max()):.4g}",
            expected="weights of 0 or more, rows that sum to at most 1",
            cause="scores from before the softmax, or weights that dropout or a gate has changed",
        )
    # softmax(log W) is W: the map itself is the bias, of queries and keys that say nothing
    nothing = weights.new_zeros(())
    rest = torch.where((total < 1 - share) & (total > 0), 1 - total, 0.0)
    return Observed(
        nothing.expand(B, H, N, 1),
        nothing.expand(B, H, M, 1),
        None,
        None,
        1.0,
        bias=weights.log(),
        sinks=rest.log() if bool(rest.any()) else None,
        door=door,
        why="only the weights are known",
    )


def _mask_of(mask: Mask | Tensor | None, wanted: Tensor) -> Mask | Tensor | None:
    if mask is None:
        return None
    return of_heads(mask, wanted) if isinstance(mask, Tensor) else mask.of_heads(wanted)


def _heads_of(sinks: Tensor, wanted: Tensor) -> Tensor:
    return sinks[wanted] if sinks.ndim == 1 else sinks[:, wanted]


def of_sequence(table: Tensor, sequence: int) -> Tensor:
    """A table that broadcasts to (B, H, N, M), of one sequence: (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]
