"""The form in which every door describes one call of attention, for a whole batch: `Observed`.

B batch, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.masks import Mask
from heedful.ops.score_tables import of_heads

# How a door tells of a call: it gives a function that makes an Observed, and its arguments, so that
# an error in that function does not end the forward pass that is watched.
Tell: TypeAlias = Callable[..., None]


# What a kernel does after attention: from joined heads (B, n, H · v) and the index of their rows
# in its input, (sequences (B, 1), rows (n,)), to the output (B, n, D)
Finish: TypeAlias = Callable[[Tensor, Any], Tensor]


class Real(NamedTuple):
    """Which tokens are real, and no padding: keys (R, M) and queries (R, N), None if not told.

    The R rows are texts; a call with more sequences has equally many of each text. In
    self-attention the queries follow from the keys, at whose positions they stand.
    is_guess: whether it holds only if no query at all sees the other tokens.
    """

    keys: Tensor | None = None
    queries: Tensor | None = None
    is_guess: bool = False


class Batch(NamedTuple):
    """How many texts the model was given; None where no input tells.

    is_sure: whether the inputs leave no doubt about it.
    place: the number of the input that has the texts, and the dimension along which they are.
    is_followed: whether that is the dimension beside one to which the queries were followed.
    """

    texts: int | None
    is_sure: bool = True
    place: tuple[int, int] | None = None
    is_followed: bool = False


class Source(NamedTuple):
    """What a mask or a bias was made of; layers that make the same of it share one.

    tensor: the model's own.
    made: what was made of it: how its axes were put in order, and whether it was inverted.
    """

    tensor: Tensor
    made: tuple


class Added(NamedTuple):
    """What one product added to weights times values: share · table + times · (weights @ values).

    table: as the output, (B, H, N, v).
    """

    table: Tensor
    share: float
    times: float


class Tokens(NamedTuple):
    """All tokens of an input, in their order: what one side of a call was followed to.

    number: of the input, whose second axis they are.
    rows: of each sequence of the call, the row of that input; 0 too where the call has one sequence
        that was followed to no row.
    """

    number: int
    rows: tuple[int, ...]


class Followed(NamedTuple):
    """Where the tokens of a call were followed to.

    queries, keys: None where they are not all the tokens of an input, or that is not known.
    are_reordered: whether tokens are known to stand in other places along their text.
    """

    queries: Tokens | None = None
    keys: Tokens | None = None
    are_reordered: bool = False


@dataclass
class Observed:
    """One call of attention as a door saw it.

    query (B, H, N, d), key (B, G, M, d), value (B, G, M, v), output (B, H, N, v): as the model used
        them.
    mask: one of `ops.masks`, or boolean with True = may attend, or added to the scores, or flex
        attention's; bias: is added too. They broadcast to (B, H, N, M).
    sinks: (H,), or (B, H, N) where each query has its own.
    sums: (B, H, N), the log-sum-exp of each row, where a kernel gave it.
    cross, causal: what the door knows of the kind of the call.
    real: which tokens are no padding, where the call itself was told.
    why: why no output can be compared, where none can.
    inferred: what of the call's axes is a guess, and how it was made.
    finish: what a kernel did after attention to give the output, then (B, 1, N, D).
    added: what the product with values added to the output, as `baddbmm` does.
    batch: how many texts there are, where that was followed from the inputs.
    follows: whether the sequences were followed to those texts, in their order.
    moved: the operation that put texts in other places, if one did.
    is_of_two: whether the keys were followed to another input than the queries.
    followed: where its tokens were followed to.
    of_tokens: the parts of the axes of texts and of tokens, where a kernel was given tokens as
        (B, N, D).
    are_windows: whether each sequence has a part of the tokens of a text.
    part: the part of the running module that attends, where a kernel computes all of the module.
    source: what mask or bias were made of, where that is one tensor alone.
    is_known_by_numbers: whether the mask has no address by which it could be known again: it is a
        copy, or another name for a tensor of the model's, which counts no changes of that.
    are_copies: whether queries and keys are copies of the recorder's own, which nothing changes.
    is_by_hand: whether operations of the model's own made the weights, and no kernel.
    kinds: the types that scores and weights were of on their way, which may be narrower than those
        of the tensors here.
    rounded_to: the type to which each step that made the scores has rounded them; none of a kernel,
        which keeps them in float32.
    added_to_scores: the largest number that stood beside the scores of a row while they were made,
        which broadcasts to (B, H, N, 1); None where mask and bias show all that did.
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
    sums: Tensor | None = None
    dropout: float = 0.0
    door: str = ""
    cross: bool | None = None
    causal: bool | None = None
    real: Real | None = None
    why: str = ""
    inferred: dict[str, str] = field(default_factory=dict)
    finish: Finish | None = None
    added: Added | None = None
    batch: Batch | None = None
    follows: bool = False
    moved: str = ""
    is_of_two: bool = False
    followed: Followed = field(default_factory=Followed)
    of_tokens: tuple[Any, Any] | None = None
    are_windows: bool = False
    part: str = ""
    source: Source | None = None
    is_known_by_numbers: bool = False
    are_copies: bool = False
    is_by_hand: bool = False
    kinds: frozenset[torch.dtype] = frozenset()
    rounded_to: tuple[torch.dtype, ...] = ()
    added_to_scores: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, N, M)."""
        return *self.query.shape[:3], self.key.shape[2]

    @property
    def are_keys_numbers(self) -> Tensor:
        """Which keys are numbers, (B, G, M).

        One that is none is hidden by nothing that is added to its scores: NaN plus minus infinity
        is NaN, and so is infinity.
        """
        # of sums, as torch does not vectorise `isfinite` on CPUs
        wide = torch.promote_types(self.key.dtype, torch.float32)
        return self.key.sum(dim=-1, dtype=wide).isfinite()

    def of_heads(self, heads: Sequence[int]) -> Observed:
        """The same call for some of its heads, each with a key head of its own."""
        wanted = torch.tensor(heads, device="cpu")
        shared = wanted // (self.query.shape[1] // self.key.shape[1])
        return replace(
            self,
            query=self.query[:, wanted],
            key=self.key[:, shared],
            value=None if self.value is None else self.value[:, shared],
            output=None if self.output is None else self.output[:, wanted],
            added=None
            if self.added is None
            else self.added._replace(table=self.added.table[:, wanted]),
            mask=_mask_of(self.mask, wanted),
            bias=None if self.bias is None else of_heads(self.bias, wanted),
            sinks=None if self.sinks is None else _heads_of(self.sinks, wanted),
            added_to_scores=None
            if self.added_to_scores is None
            else of_heads(self.added_to_scores, wanted),
            sums=None if self.sums is None else self.sums[:, wanted],
        )


def rounding(kinds: Iterable[torch.dtype]) -> float:
    """How far the sum of a row of weights may be from 1 that were rounded to these types."""
    return 1e-5 if all(one.itemsize > 2 for one in kinds) else 2e-2


def of_weights(weights: Tensor, door: str, kinds: Iterable[torch.dtype] = ()) -> Observed:
    """A call of which only the weights (B, H, N, M) are known.

    A row may sum to less than one: what it lacks is the weight of a sink of its own.

    Args:
        weights: non-negative, with rows that sum to at most one.
        door: what they were seen by.
        kinds: the types that they were rounded to before they had that of `weights`.

    Raises:
        ArgumentError: weights below 0, or rows that sum to more than one.
    """
    B, H, N, M = weights.shape
    room = rounding([weights.dtype, *kinds])
    share = room / 10 if room < 1e-2 else room  # a row that lacks more than this has a sink
    weights = weights.detach().float()
    total = weights.sum(dim=-1)
    if not bool((weights >= 0).all() and (total <= 1 + room).all()):
        raise ArgumentError(
            f"weights from {float(weights.min()):.3g}, rows that sum to {float(total.max()):.6g}",
            expected="weights of 0 or more, rows that sum to at most 1",
            cause="scores from before the softmax, or weights that dropout or a gate has changed",
        )
    # softmax(log W) is W: log W becomes the bias, and queries and keys are zero
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
    """One sequence of a table that broadcasts to (B, H, N, M): (1 or H, N, M)."""
    table = table.reshape(*[1] * (4 - table.ndim), *table.shape)
    return table[sequence if len(table) > 1 else 0]
