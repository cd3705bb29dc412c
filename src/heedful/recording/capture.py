"""Keeps one call of attention for a whole batch: copies of its tensors, its tokens, its evidence.

S sequences (texts × parts), H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.errors import ArgumentError, HeedfulError
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Causal, Combined, Mask, Padding, Window
from heedful.recording.certificate import Check, certify
from heedful.recording.evidence import Evidence
from heedful.recording.pause import computing
from heedful.recording.proof import Layout
from heedful.recording.real_tokens import RealTokens, of_sequence, row_of, take
from heedful.recording.row_sums import RowSums, unknown

# Errors that the numbers of a call may lead to. Any other comes from outside, as a TimeoutError
# of a signal handler does, and says nothing about the call
OF_THE_CALL = (HeedfulError, RuntimeError, ArithmeticError, LookupError, TypeError, ValueError)
TOLD = Layout("told")


@dataclass
class Capture:
    """A call as it is kept: copies of its tensors, which nothing that runs later can change.

    layer: the model's own number of the block; index: the number of the call.
    query (S, H, N, d), key (S, G, M, d), value (S, G, M, v): S sequences, those of a text together.
    tokens: the real tokens of each sequence.
    checked: the check of its numbers, or what makes it when it is needed.
    weights: (S, H, N, M), where the map itself is kept, since no `AttentionInputs` give it exactly.
    ids: (texts, L), the ids of the keys' tokens, of which the last N are the queries'; or those of
        the queries alone. query_ids: (texts, L), in cross-attention.
    heads: the model's numbers of the heads that were kept, None where all were.
    layout: how its axes are known.
    against: by sequence, what was found to be wrong with it since.
    sums: (S, H, N), the log-sum-exp of each row: a kernel's, or computed since; NaN if unknown.
    texts: how many texts the pass had; parts: how many sequences each has; first: the number of its
        first text, where the call is of some texts alone.
    intact: raises where the file that the call was read from is damaged.
    """

    name: str
    layer: int | None
    pass_index: int
    kind: str
    door: str
    query: Tensor
    key: Tensor
    value: Tensor | None
    scale: float
    tokens: list[RealTokens]
    checked: Check | Evidence | Callable[[], Check]
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    weights: Tensor | None = None
    ids: Tensor | None = None
    query_ids: Tensor | None = None
    heads: list[int] | None = None
    index: int = 0
    layout: Layout = TOLD
    against: dict[int, str] = field(default_factory=dict)
    sums: Tensor | None = None
    texts: int = 0
    parts: int = 1
    first: int = 0
    intact: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self.texts = self.texts or self.query.shape[0] // self.parts

    @property
    def own_texts(self) -> range:
        """The numbers of the texts that it has."""
        return range(self.first, self.first + len(self.query) // self.parts)

    def row(self, text: int, part: int = 0) -> int:
        """The number of a sequence in this call; raises an IndexError where it has none."""
        if text not in self.own_texts or not 0 <= part < self.parts:
            raise IndexError(f"part {part} of text {text} in {self.name}")
        return (text - self.first) * self.parts + part

    def has(self, text: int, part: int = 0) -> bool:
        """Whether the call has this sequence."""
        return text in self.own_texts and 0 <= part < self.parts

    def real(self, text: int, part: int = 0) -> RealTokens:
        """The real tokens of a sequence."""
        return self.tokens[self.row(text, part)]

    @property
    def check(self) -> Check:
        """How far rows computed from this were from the model's own, found out when first asked."""
        evidence = self.checked
        if isinstance(evidence, Check):
            return evidence
        try:
            with computing():
                if isinstance(evidence, Evidence):
                    causes = (self.causes_of(row) for row in range(len(self.query)))
                    check, agree = certify(causes, self.tokens, evidence)
                    self.sums = evidence.sums if agree else self.sums
                else:
                    check = evidence()
        except (MemoryError, torch.OutOfMemoryError):  # there may be room when it is asked again
            raise
        except OF_THE_CALL as error:  # what cannot be checked is not shown
            why = f"its check ended in an error: {error} ({type(error).__name__})"
            check = Check(math.inf, 0.0, 0, why)
        self.checked = check
        return check

    def causes(self, text: int, part: int = 0) -> AttentionInputs:
        """What the weights of one sequence are computed from, without its padding."""
        return self.causes_of(self.row(text, part))

    def causes_of(self, row: int) -> AttentionInputs:
        """The same of a sequence by its number in this call."""
        queries, keys, mask = self.tokens[row]
        if self.weights is not None:
            return causes_of_weights(self._cut(self.weights[row], queries, keys), mask)
        bias = None if self.bias is None else of_sequence(self.bias, row)
        sinks = self.sinks
        if sinks is not None and sinks.ndim > 1:
            sinks = sinks[row][:, queries]
        bias = None if bias is None else self._cut(bias, queries, keys)
        query, key = take(self.query[row], queries), take(self.key[row], keys)
        return AttentionInputs(query, key, self.scale, mask, bias, self.softcap, sinks)

    @staticmethod
    def _cut(table: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        table = table if table.shape[-2] == 1 else take(table, queries)
        return table if table.shape[-1] == 1 else take(table.mT, keys).mT

    def map_of(self, text: int, part: int = 0) -> Tensor | None:
        """The map of one sequence without its padding, (H, N, M), where it is kept itself."""
        queries, keys, _ = self.real(text, part)
        weights = self.weights
        return None if weights is None else self._cut(weights[self.row(text, part)], queries, keys)

    def row_sums(self, text: int, part: int = 0) -> RowSums:
        """The log-sum-exp of each row of one sequence, as far as it is known."""
        _ = self.check  # which says whether they are those that the kernel gave
        if self.sums is None:
            self.sums = unknown(self.query)
        row = self.row(text, part)
        return RowSums(self.sums[row], self.tokens[row].queries)

    def key_ids(self, text: int, part: int = 0) -> Tensor | None:
        """The ids of the keys' tokens without padding, (M,); None where they are not known."""
        if self.ids is None or not self._are_of_keys(self.ids):
            return None  # with a cache, a pass may have the ids of its queries alone
        row = self._row_of_ids(text, part, self.ids)
        return None if row is None else self.ids[row][self.real(text, part).keys]

    def ids_of_queries(self, text: int, part: int = 0) -> Tensor | None:
        """The ids of the queries' tokens without padding, (N,); None where they are not known."""
        ids, N = self.query_ids if self.kind == "cross" else self.ids, self.query.shape[2]
        if ids is None or ids.shape[1] < N:
            return None
        row, last = self._row_of_ids(text, part, ids), ids[:, ids.shape[1] - N :]
        return None if row is None else last[row, self.real(text, part).queries]

    def _row_of_ids(self, text: int, part: int, ids: Tensor) -> int | None:
        """Which row of ids a sequence is of: they are of all texts, or of the call's own."""
        if len(ids) == self.texts:
            return text
        return row_of(self.row(text, part), len(ids), len(self.query))

    def _are_of_keys(self, ids: Tensor) -> bool:
        """Whether there is an id for each key, or for each one so far in a cache with room."""
        length, N = ids.shape[1], self.query.shape[2]
        last = max((int(real.keys[-1]) for real in self.tokens if len(real.keys)), default=0)
        has_room = self.kind == "causal" and length >= N and last < length
        return length == self.key.shape[2] or has_room

    def values(self, text: int, part: int = 0) -> Tensor | None:
        """The values of one sequence without padding, (G, M, v); None where none were kept."""
        if self.value is None:
            return None
        return take(self.value[self.row(text, part)], self.real(text, part).keys)


def causes_of_weights(weights: Tensor, mask: Mask | None) -> AttentionInputs:
    """What gives a map (H, N, M) as its softmax: its logarithm as a bias, of queries and keys of 0.

    What a row lacks to one is the weight of a sink of its own. The mask hides no weight.
    """
    (H, N, M), kind = weights.shape, torch.promote_types(weights.dtype, torch.float32)
    weights = weights.detach().to(kind).nan_to_num(nan=0.0)
    total = weights.sum(dim=-1)
    lacking = torch.where((total < 1 - room(weights.dtype)) & (total > 0), 1 - total, 0.0)
    sinks = lacking.log() if bool(lacking.any()) else None
    query, key = weights.new_zeros(()).expand(H, N, 1), weights.new_zeros(()).expand(H, M, 1)
    return AttentionInputs(query, key, 1.0, mask, bias=weights.log(), sinks=sinks)


def room(kind: torch.dtype) -> float:
    """How far the sum of a row of weights may be from 1 by rounding to a type."""
    return 1e-5 if kind.itemsize > 2 else 2e-2


def capture_of_weights(weights: Tensor, name: str, layer: int | None, index: int = 0) -> Capture:
    """A call of which only the map (S, H, N, M) is known; errors as `from_attentions`."""
    total = weights.detach().float().sum(dim=-1)
    if not bool((weights >= 0).all() and (total <= 1 + room(weights.dtype)).all()):
        raise ArgumentError(
            f"weights from {float(weights.min()):.3g}, rows that sum to {float(total.max()):.6g}",
            expected="weights of 0 or more, rows that sum to at most 1",
            cause="scores from before the softmax, or weights that dropout or a gate has changed",
        )
    S, H, N, M = weights.shape
    nothing = weights.new_zeros((), dtype=torch.promote_types(weights.dtype, torch.float32))
    sees = (weights > 0).any(dim=1) if weights.numel() else weights.new_zeros(S, N, M).bool()
    tokens = [RealTokens.all_of(N, M)._replace(mask=_mask_of(table)) for table in sees]
    is_causal = all(isinstance(real.mask, Causal | Combined) for real in tokens)
    kind = "causal" if is_causal and tokens else "self" if N == M else "cross"
    check = Check(math.nan, 0.0, 0, "only the weights are known")
    return Capture(
        name, layer, 0, kind, "given maps", nothing.expand(S, H, N, 1), nothing.expand(S, H, M, 1),
        None, 1.0, tokens, check, weights=weights.detach().clone(), index=index,
    )  # fmt: skip


def _mask_of(sees: Tensor) -> Mask | None:
    """The mask (N, M) of a map by its weights that are not zero.

    A window is one where no head tells it from a mask: it is filled, and not by single keys.
    """
    N, M = sees.shape
    if N > 1 and M >= N and not bool(sees.triu(1 + M - N).any()):
        size = M - int(sees[-1].int().argmax())
        window = Causal() & Window(size)
        fills = 2 < size < M and torch.equal(window.crop((1, N, M), device=sees.device)[0], sees)
        return window if fills else Causal()
    keys = sees.any(dim=0)
    return None if bool(keys.all()) or not bool(keys.any()) else Padding(keys)
