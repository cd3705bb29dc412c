"""`Capture`, the stored form of one call of attention for a batch.

Here a sequence is one part of one text; in `recording.sequences`, a sequence is a full text.
Letters of shapes: S sequences, H query heads, G key heads, N queries, M keys.
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
from heedful.recording.pause import recording_paused
from heedful.recording.proof import Layout
from heedful.recording.row_sums import RowSums, unknown
from heedful.recording.unpadded import RealTokens, of_sequence, row_of, take_rows

# Errors of a check that refute the call; other errors, such as KeyboardInterrupt, are raised
CALL_ERRORS = (HeedfulError, RuntimeError, ArithmeticError, LookupError, TypeError, ValueError)
TOLD_LAYOUT = Layout("told")


@dataclass
class Capture:
    """The stored form of a call: copies of its tensors, so that the model cannot change them.

    layer: the number of the block in the model. index: the number among all its calls, from 0.
    query (S, H, N, d), key (S, G, M, d), value (S, G, M, v): the sequences of a text are adjacent.
    tokens: the real tokens (those that are not padding) of each sequence.
    check_source: the `Check`; or the evidence from which, or a function by which, it is computed.
    weights: (S, H, N, M), the map, stored if the query and key do not reproduce it.
    ids: (texts, L), the token ids of the keys; the last N are those of the queries. With a cache,
        earlier ids may be missing. query_ids: (texts, L), those of queries in cross-attention.
    heads: the recorded heads' numbers in the model; None: all. layout: how axes were determined.
    refutations: why a comparison after the check refuted a sequence, by the sequence's index.
    sums: (S, H, N), the log-sum-exp of each row, from the kernel or computed; NaN if unknown.
    texts: the number of texts in the pass, of which the call may have only some, from `first` on.
    parts: the number of parts of each text.
    check_file: raises a RunError if the file that stores the call is truncated or damaged; with
        contents=False only if it is truncated.
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
    check_source: Check | Evidence | Callable[[], Check]
    bias: Tensor | None = None
    softcap: float | None = None
    sinks: Tensor | None = None
    weights: Tensor | None = None
    ids: Tensor | None = None
    query_ids: Tensor | None = None
    heads: list[int] | None = None
    index: int = 0
    layout: Layout = TOLD_LAYOUT
    refutations: dict[int, str] = field(default_factory=dict)
    sums: Tensor | None = None
    texts: int = 0
    parts: int = 1
    first: int = 0
    check_file: Callable[..., None] = lambda **_: None

    def __post_init__(self) -> None:
        self.texts = self.texts or self.query.shape[0] // self.parts

    @property
    def text_range(self) -> range:
        """The indices, among the texts of the pass, of the texts in this call."""
        return range(self.first, self.first + len(self.query) // self.parts)

    def row(self, text: int, part: int = 0) -> int:
        """Return a sequence's index in this call; raise an IndexError if the call lacks it."""
        if text not in self.text_range or not 0 <= part < self.parts:
            raise IndexError(f"part {part} of text {text} in {self.name}")
        self.check_file(contents=False)
        return (text - self.first) * self.parts + part

    def has_sequence(self, text: int, part: int = 0) -> bool:
        """Return whether the call has this sequence."""
        return text in self.text_range and 0 <= part < self.parts

    def real(self, text: int, part: int = 0) -> RealTokens:
        """Return the real tokens of a sequence."""
        return self.tokens[self.row(text, part)]

    @property
    def check(self) -> Check:
        """The comparison of recomputed rows with the model's output, computed on first use."""
        evidence = self.check_source
        if isinstance(evidence, Check):
            return evidence
        try:
            with recording_paused():
                if isinstance(evidence, Evidence):
                    inputs = (self.inputs_of(row) for row in range(len(self.query)))
                    check, agree = certify(inputs, self.tokens, evidence)
                    self.sums = evidence.sums if agree else self.sums
                else:
                    check = evidence()
        except (MemoryError, torch.OutOfMemoryError):  # a later attempt may have enough memory
            raise
        except CALL_ERRORS as error:  # if the check raises an error, the call is refuted
            why = f"its check ended in an error: {error} ({type(error).__name__})"
            check = Check(math.inf, 0.0, 0, why)
        self.check_source = check
        return check

    def inputs(self, text: int, part: int = 0) -> AttentionInputs:
        """Return the attention inputs of one sequence, without its padding."""
        return self.inputs_of(self.row(text, part))

    def inputs_of(self, row: int) -> AttentionInputs:
        """Return the attention inputs of the sequence `row` of this call, without its padding."""
        queries, keys, mask = self.tokens[row]
        if self.weights is not None:
            return inputs_of_weights(self._crop(self.weights[row], queries, keys), mask)
        bias = None if self.bias is None else of_sequence(self.bias, row)
        sinks = self.sinks
        if sinks is not None and sinks.ndim > 1:
            sinks = sinks[row][:, queries]
        bias = None if bias is None else self._crop(bias, queries, keys)
        query, key = take_rows(self.query[row], queries), take_rows(self.key[row], keys)
        return AttentionInputs(query, key, self.scale, mask, bias, self.softcap, sinks)

    @staticmethod
    def _crop(table: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        table = table if table.shape[-2] == 1 else take_rows(table, queries)
        return table if table.shape[-1] == 1 else take_rows(table.mT, keys).mT

    def map_of(self, text: int, part: int = 0) -> Tensor | None:
        """Return the map of one sequence without padding, (H, N, M); None if none is stored."""
        queries, keys, _ = self.real(text, part)
        weights = self.weights
        return None if weights is None else self._crop(weights[self.row(text, part)], queries, keys)

    def row_sums(self, text: int, part: int = 0) -> RowSums:
        """Return the log-sum-exp of each row of one sequence, NaN where unknown."""
        _ = self.check  # sets `sums` to the kernel's values if these agree with recomputed rows
        if self.sums is None:
            self.sums = unknown(self.query)
        row = self.row(text, part)
        return RowSums(self.sums[row], self.tokens[row].queries)

    def key_ids(self, text: int, part: int = 0) -> Tensor | None:
        """Return the token ids of the keys without padding, (M,); None if unknown."""
        if self.ids is None or not self._are_of_keys(self.ids):
            return None
        row = self._row_of_ids(text, part, self.ids)
        return None if row is None else self.ids[row][self.real(text, part).keys]

    def ids_of_queries(self, text: int, part: int = 0) -> Tensor | None:
        """Return the token ids of the queries without padding, (N,); None if unknown."""
        ids, N = self.query_ids if self.kind == "cross" else self.ids, self.query.shape[2]
        if ids is None or ids.shape[1] < N:
            return None
        row, last = self._row_of_ids(text, part, ids), ids[:, ids.shape[1] - N :]
        return None if row is None else last[row, self.real(text, part).queries]

    def _row_of_ids(self, text: int, part: int, ids: Tensor) -> int | None:
        """Return a sequence's row in `ids`, of which each row is a text; None if none fits."""
        if len(ids) == self.texts:
            return text
        return row_of(self.row(text, part), len(ids), len(self.query))

    def _are_of_keys(self, ids: Tensor) -> bool:
        """Return whether `ids` has an id for each key, except for empty slots of a cache."""
        length, N = ids.shape[1], self.query.shape[2]
        last = max((int(real.keys[-1]) for real in self.tokens if len(real.keys)), default=0)
        has_empty_slots = self.kind == "causal" and length >= N and last < length
        return length == self.key.shape[2] or has_empty_slots

    def values(self, text: int, part: int = 0) -> Tensor | None:
        """Return the values of one sequence without padding, (G, M, v); None if not stored."""
        if self.value is None:
            return None
        return take_rows(self.value[self.row(text, part)], self.real(text, part).keys)


def inputs_of_weights(weights: Tensor, mask: Mask | None) -> AttentionInputs:
    """Return attention inputs from which softmax computes the map `weights` (H, N, M).

    Queries and keys are 0, and the bias is the logarithm of the map. If a row sums to less than 1,
    but not to 0, a learned sink gets the missing weight. No positive weight may be masked.
    """
    (H, N, M), dtype = weights.shape, torch.promote_types(weights.dtype, torch.float32)
    weights = weights.detach().to(dtype).nan_to_num(nan=0.0)
    total = weights.sum(dim=-1)
    tolerance = row_sum_tolerance(weights.dtype)
    rest = torch.where((total < 1 - tolerance) & (total > 0), 1 - total, 0.0)
    sinks = rest.log() if bool(rest.any()) else None
    query, key = weights.new_zeros(()).expand(H, N, 1), weights.new_zeros(()).expand(H, M, 1)
    return AttentionInputs(query, key, 1.0, mask, bias=weights.log(), sinks=sinks)


def row_sum_tolerance(dtype: torch.dtype) -> float:
    """Return by how much the sum of a row of rounded weights may differ from 1."""
    return 1e-5 if dtype.itemsize > 2 else 2e-2


def capture_of_weights(weights: Tensor, name: str, layer: int | None, index: int = 0) -> Capture:
    """Return a call with nothing but its map (S, H, N, M); errors as in `from_attentions`."""
    total, tolerance = weights.detach().float().sum(dim=-1), row_sum_tolerance(weights.dtype)
    if not bool((weights >= 0).all() and (total <= 1 + tolerance).all()):
        raise ArgumentError(
            f"weights from {float(weights.min()):.3g}, rows that sum to {float(total.max()):.6g}",
            expected="weights of 0 or more, rows that sum to at most 1",
            cause="scores from before the softmax, or weights that dropout or a gate has changed",
        )
    S, H, N, M = weights.shape
    zero = weights.new_zeros((), dtype=torch.promote_types(weights.dtype, torch.float32))
    attended = (weights > 0).any(dim=1) if weights.numel() else weights.new_zeros(S, N, M).bool()
    tokens = [RealTokens.all_of(N, M)._replace(mask=_mask_of(table)) for table in attended]
    is_causal = all(isinstance(real.mask, Causal | Combined) for real in tokens)
    kind = "causal" if is_causal and tokens else "self" if N == M else "cross"
    check = Check(math.nan, 0.0, 0, "only the weights are known")
    return Capture(
        name, layer, 0, kind, "given maps", zero.expand(S, H, N, 1), zero.expand(S, H, M, 1),
        None, 1.0, tokens, check, weights=weights.detach().clone(), index=index,
    )  # fmt: skip


def _mask_of(attended: Tensor) -> Mask | None:
    """Infer a mask from a boolean table (N, M): which pairs have a positive weight in some head.

    The mask is a sliding window only if it allows exactly these pairs, and is wider than 2 keys.
    """
    N, M = attended.shape
    if N > 1 and M >= N and not bool(attended.triu(1 + M - N).any()):
        size = M - int(attended[-1].int().argmax())
        window = Causal() & Window(size)
        crop = window.crop((1, N, M), device=attended.device)[0]
        return window if 2 < size < M and torch.equal(crop, attended) else Causal()
    keys = attended.any(dim=0)
    return None if bool(keys.all()) or not bool(keys.any()) else Padding(keys)
