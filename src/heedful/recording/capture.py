"""Keeps one call of attention for a whole batch: copies of its tensors, its layouts, its evidence.

B batch, H query heads, G key heads, N queries, M keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import Tensor

from heedful.errors import HeedfulError
from heedful.ops.causes import Causes
from heedful.recording.certificate import Check, certify
from heedful.recording.evidence import Evidence, evidence_of
from heedful.recording.row_sums import RowSums, unknown
from heedful.recorder.observed import Batch, Observed, of_sequence
from heedful.recording.own_work import computing
from heedful.recorder.owners.kind import kind_of
from heedful.recorder.owners.token_ids import Ids
from heedful.recorder.owners.padding import Layout, distinct, row_of, take

NO_IDS = Ids()
# Errors that the numbers of a call may lead to. Any other comes from outside, as a TimeoutError
# of a signal handler does, and says nothing about the call
OF_THE_CALL = (HeedfulError, RuntimeError, ArithmeticError, LookupError, TypeError, ValueError)


def _nothing() -> None:
    """Do nothing: a call that was never in a file cannot be damaged there."""


@dataclass
class Capture:
    """A call as it is kept: copies of its tensors, which nothing that runs later can change.

    layer: the model's own number of the block; index: the number of the call.
    layouts: one for each sequence of the batch.
    checked: the check of its numbers, or what that is made from when somebody first asks.
    heads: the model's numbers of the heads that were kept, None where all were.
    inferred: what of the call's axes is a guess, and how it was made.
    against: by sequence, what was found since to be wrong with it.
    sums: (B, H, N), the log-sum-exp of each row: the kernel's own, or what was computed since, NaN
        where it is not known; None where nobody asked yet, and before the check.
    ids: (texts, L), those of the keys' tokens, of which the last N are the queries'; where only the
        queries' are known, these. query_ids: (texts, L), in cross-attention, whose last N are the
        queries'.
    texts: how many texts the pass had; texts_dim: along which dimension of its inputs.
    first: the number of its first sequence. A model that calls attention for one text after the
        other has the sequences of each in a call of its own.
    batch: how many sequences all texts have: its own, or more where it has some of the texts.
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
    layouts: list[Layout]
    checked: Check | Evidence
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    ids: Tensor | None = None
    query_ids: Tensor | None = None
    heads: list[int] | None = None
    index: int = 0
    inferred: dict[str, str] = field(default_factory=dict)
    against: dict[int, str] = field(default_factory=dict)
    sums: Tensor | None = None
    texts: int | None = None
    texts_dim: int | None = None
    first: int = 0
    batch: int = 0
    intact: Callable[[], None] = _nothing

    def __post_init__(self) -> None:
        self.batch = self.batch or self.query.shape[0]

    @property
    def sequences(self) -> range:
        """The numbers of its sequences, by which it is asked for what it has of each."""
        return range(self.first, self.first + len(self.query))

    def layout(self, sequence: int) -> Layout:
        """What of one sequence is real."""
        return self.layouts[sequence - self.first]

    @property
    def check(self) -> Check:
        """How far rows computed from this were from the model's own, found out when first asked."""
        evidence = self.checked
        if isinstance(evidence, Check):
            return evidence
        agree = False
        try:
            with computing():
                causes = (self.causes(sequence) for sequence in self.sequences)
                found, agree = certify(causes, self.layouts, evidence)
        except (MemoryError, torch.OutOfMemoryError):  # there may be room when it is asked again
            raise
        except OF_THE_CALL as error:  # what cannot be checked is not shown
            why = f"its check ended in an error: {error} ({type(error).__name__})"
            found = Check(math.inf, evidence.tolerance, 0, why)
        if agree:
            self.sums = evidence.sums
        self.checked = found
        return found

    def causes(self, sequence: int) -> Causes:
        """What the weights of one sequence are computed from, without its padding."""
        queries, keys, mask = self.layout(sequence)
        at = sequence - self.first
        bias = None if self.bias is None else of_sequence(self.bias, at)
        if bias is not None:
            bias = bias if bias.shape[-2] == 1 else take(bias, queries)
            bias = bias if bias.shape[-1] == 1 else take(bias.mT, keys).mT
        sinks = self.sinks
        if sinks is not None and sinks.ndim > 1:
            sinks = sinks[at][:, queries]
        return Causes(
            take(self.query[at], queries),
            take(self.key[at], keys),
            self.scale,
            mask,
            bias,
            self.softcap,
            sinks,
        )

    def row_sums(self, sequence: int) -> RowSums:
        """The log-sum-exp of each row of one sequence, as far as it is known."""
        _ = self.check  # which says whether they are those that the kernel gave
        if self.sums is None:
            self.sums = unknown(self.query)
        return RowSums(self.sums[sequence - self.first], self.layout(sequence).queries)

    def tokens(self, sequence: int) -> Tensor | None:
        """The ids of the keys' tokens without padding, (M,); None where they are not known."""
        if self.ids is None or not self._are_of_keys(self.ids):
            return None  # with a cache, a pass may have the ids of its queries alone
        row = self._row_of(sequence, self.ids)
        if row is None:
            return None
        return self.ids[row][self.layout(sequence).keys]

    def query_tokens(self, sequence: int) -> Tensor | None:
        """The ids of the queries' tokens without padding, (N,); None where they are not known."""
        given = self.query_ids if self.kind == "cross" else self.ids
        N = self.query.shape[2]
        if given is None or given.shape[1] < N:
            return None
        row = self._row_of(sequence, given)
        if row is None:
            return None
        return given[row][given.shape[1] - N + self.layout(sequence).queries]

    def _row_of(self, sequence: int, ids: Tensor) -> int | None:
        """Which row of ids a sequence is of, where they are of all texts, or of the call's own."""
        if len(ids) == self.texts:
            return row_of(sequence, len(ids), self.batch)
        return row_of(sequence - self.first, len(ids), len(self.query))

    def _are_of_keys(self, ids: Tensor) -> bool:
        """Whether there is an id for each key, or for each one so far in a cache with room."""
        length, N = ids.shape[1], self.query.shape[2]
        last = max((int(one.keys[-1]) for one in self.layouts if len(one.keys)), default=0)
        has_room = self.kind == "causal" and length >= N and last < length
        return length == self.key.shape[2] or has_room

    def values(self, sequence: int) -> Tensor | None:
        """The values of one sequence without padding, (G, M, v); None where none were kept."""
        if self.value is None:
            return None
        return take(self.value[sequence - self.first], self.layout(sequence).keys)


def captured(
    seen: Observed,
    *,
    name: str,
    layer: int | None,
    pass_index: int,
    layouts: list[Layout],
    index: int = 0,
    heads: Collection[int] | None = None,
    values: bool = False,
    dtype: torch.dtype | None = None,
    ids: Ids = NO_IDS,
    kind: str | None = None,
) -> Capture:
    """Copy what is to be kept of a call, and what it is to be checked against."""
    chosen = None if heads is None else list(heads)
    if chosen is not None:
        seen = seen.of_heads(chosen)
        of_chosen = {id(one): one.of_heads(chosen) for one in distinct(layouts)}
        layouts = [of_chosen[id(one)] for one in layouts]
    copy = _own if seen.are_copies else _copy
    query = copy(seen.query, dtype)
    capture = Capture(
        name,
        layer,
        pass_index,
        kind or kind_of(seen, name, layouts),
        seen.door,
        query,
        copy(seen.key, dtype),
        _copy(seen.value, dtype) if values and seen.value is not None else None,
        seen.scale,
        layouts,
        evidence_of(seen, layouts, query.dtype),
        None if seen.bias is None else seen.bias.detach(),
        seen.softcap,
        None if seen.sinks is None else seen.sinks.detach().clone(),
        ids.keys,
        ids.queries,
        chosen,
        index,
        dict(seen.inferred),
        texts=None if seen.batch is None else seen.batch.texts,
        texts_dim=_dim_of(seen.batch),
    )
    if seen.finish is not None:  # by weights of the model, which may be others later
        _ = capture.check
    return capture


def _dim_of(batch: Batch | None) -> int | None:
    """The dimension of the inputs along which the texts are; None where that was not followed."""
    return batch.place[1] if batch is not None and batch.is_followed and batch.place else None


def _copy(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    if dtype is None or dtype == tensor.dtype:  # in one step
        return tensor.clone(memory_format=torch.contiguous_format)  # each head's rows together
    return tensor.new_empty(tensor.shape, dtype=dtype).copy_(tensor)


def _own(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A copy of a tensor that nothing changes: itself, where it is as a copy would be."""
    is_whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    is_one = is_whole and dtype in (None, tensor.dtype)
    return tensor if is_one else _copy(tensor, dtype)
