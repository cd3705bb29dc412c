"""`CallRows`, the base class of `Call`: computes rows of the map, and compares log-sum-exps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops import statistics
from heedful.ops.indexing import ALL, Index, as_slice, indices
from heedful.ops.inputs import AttentionInputs, block_entries
from heedful.ops.map_region import by_rows, weights
from heedful.ops.statistics import Statistic
from heedful.ops.top_k import Top
from heedful.recording.capture import TOLD_LAYOUT
from heedful.recording.certificate import Check
from heedful.recording.checks import integer
from heedful.recording.image_patches import Picture
from heedful.recording.progress import OnProgress, Progress
from heedful.recording.proof import Layout, Proof, proof_of
from heedful.recording.row_sums import RowSums, unknown


@dataclass
class CallRows:
    """The fields of a call (`Call` explains most), and the computation of rows of the map."""

    name: str
    layer: int | None
    pass_index: int
    kind: str
    causes: AttentionInputs
    check: Check
    index: int = 0
    layout_of_axes: Layout = TOLD_LAYOUT
    sums: RowSums = None  # type: ignore[assignment]  # default: unknown sums
    refutations: dict[int, str] = field(default_factory=dict, repr=False)
    row: int = 0
    sequence: int = 0
    part: int = 0
    batch: int = 1
    map_: Tensor | None = field(default=None, repr=False)
    list_parts: Callable[[], list[Any]] | None = field(default=None, repr=False, compare=False)
    value: Tensor | None = None
    ids: Tensor | None = None
    query_ids: Tensor | None = None
    key_tokens: list[str] | None = None
    query_tokens: list[str] | None = None
    key_picture: Picture | None = None
    query_picture: Picture | None = None
    unknown: int | None = None
    door: str = ""
    chosen: list[int] | None = None
    check_file: Callable[[], None] | None = field(default=None, repr=False)
    recording_ref: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sums is None:
            query = self.causes.query
            self.sums = RowSums(unknown(query), torch.arange(query.shape[1], device="cpu"))

    _cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def proof(self) -> str:
        """ "proved", "unproved" or "refuted"; see `heedful.recording.proof`."""
        return self._proof.word

    @property
    def layout(self) -> str:
        """ "told", "verified", "usual" or "guessed"; see `heedful.recording.proof`."""
        return self.layout_of_axes.word

    @property
    def why(self) -> str:
        """Why the call is not proved, and why its layout is guessed; "" without a reason."""
        return "; ".join(filter(None, (self._proof.why, self.layout_of_axes.why)))

    @property
    def refutation(self) -> str:
        """Why a comparison after the check refuted the call; empty if none did."""
        return self.refutations.get(self.row, "")

    @property
    def _proof(self) -> Proof:
        return proof_of(self.check, self.refutation)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, N, M)."""
        return self.causes.shape

    @property
    def heads(self) -> list[int]:
        """The number in the model of each of the H heads, in the order of the maps."""
        return list(range(self.shape[0])) if self.chosen is None else self.chosen

    def gather(
        self, *requested: Statistic, heads: slice = ALL, within: range | None = None
    ) -> list[Any]:
        """Compute statistics in one pass over full rows; compare the rows' sums with known sums.

        `heads` are indices in this call, `within` is a range of queries; default all. Raises a
        RunError if the call is refuted already, or by this comparison, or if its file is damaged.
        """
        inputs = self._inputs_of(heads)
        rows = ALL if within is None else as_slice(within)
        is_known = self.sums.get_known(heads, rows) is not None
        log_sums = statistics.LogSumExp(exact=not is_known)  # sums that differ are recomputed
        *results, sums = statistics.gather(inputs, *requested, log_sums, within=within)
        self._compare_and_store(inputs, heads, rows, sums[:, rows])
        return results

    def has_row_sums(self, head: int, queries: range) -> bool:
        """Return whether rows have known log-sum-exps, so that some weights need no full rows."""
        self.checked_inputs()
        return self.sums.get_known(self._heads(head), as_slice(queries)) is not None

    def _cells(self, heads: slice, queries: Index, keys: Index) -> Tensor:
        """Compute some weights; for few rows, or unknown log-sum-exps, compute the full rows."""
        inputs = self.checked_inputs()
        H, N, M = self.shape
        rows, columns = indices(queries, N, "query"), indices(keys, M, "key")
        if self.map_ is not None:
            return self.map_[heads][:, rows][:, :, columns]
        # A few rows are computed in full: this is more exact, and their sums can be compared
        are_few = len(range(H)[heads]) * len(rows) * M <= block_entries(inputs.query)
        sums = None if are_few or len(columns) == M else self.sums.get_known(heads, rows)
        if sums is not None:
            return weights(inputs, heads, rows, columns, sums)
        inputs = inputs.of_heads(heads)
        cells, sums = by_rows(inputs.upcast(), rows, columns)
        self._compare_and_store(inputs, heads, rows, sums)
        return cells

    def _row_sums(self, heads: slice, rows: range, progress: OnProgress | None) -> Tensor:
        """Return the log-sum-exps of adjacent rows, (h, n); compute them if unknown."""
        self.checked_inputs()
        if self.sums.get_known(heads, as_slice(rows)) is None:
            counter = Progress(progress or (lambda share: None), len(rows))
            self.gather(counter, heads=heads, within=rows)
        return self.sums.select(heads, as_slice(rows))

    def compare_rows(self) -> None:
        """Compare all known log-sum-exps with recomputed ones; a difference refutes the call."""
        if self.proof != "refuted" and self.sums.any_known:
            with suppress(RunError):
                self.gather()

    def _statistic(self, head: int | None, statistic: Statistic) -> Any:
        [result] = self.gather(statistic, heads=self._heads(head))
        if head is None:
            return result
        return Top(*(part[0] for part in result)) if isinstance(result, Top) else result[0]

    def _inputs_of(self, heads: slice) -> AttentionInputs:
        inputs = self.checked_inputs()
        return inputs if heads == ALL else inputs.of_heads(heads)

    def _compare_and_store(
        self, inputs: AttentionInputs, heads: slice, rows: Tensor | slice, sums: Tensor
    ) -> None:
        fault = self.sums.compare_and_store(inputs, heads, rows, sums)
        if fault is not None:  # the sum of a long row may be rounded: compute it exactly
            indices = torch.arange(self.shape[1], device="cpu")[rows]
            _, sums = by_rows(self.causes.of_heads(heads).upcast(), indices, indices[:0])
            fault = self.sums.compare_and_store(inputs, heads, rows, sums)
        if fault is not None:
            self.refutations[self.row] = (
                f"row {fault.query} of head {self.heads[fault.head]} is not the model's: the "
                f"log-sum-exp of its scores is {fault.computed:.6g}, but was {fault.known:.6g}"
            )
            self.checked_inputs()

    def _heads(self, head: int | None) -> slice:
        H = self.shape[0]
        if head is None:
            return ALL
        number = integer("head", head)
        if self.chosen is None:
            if not -H <= number < H:
                raise ArgumentError(f"head {number}", expected=f"head 0 to {H - 1}")
            return slice(number % H, number % H + 1)
        if number not in self.chosen:
            raise ArgumentError(
                f"head {number}", expected=f"a recorded head: {comma_separated(self.chosen)}"
            )
        index = self.chosen.index(number)
        return slice(index, index + 1)

    def checked_inputs(self) -> AttentionInputs:
        """Return the attention inputs, unless the call is refuted.

        Raises:
            RunError: the call is refuted, or its file is damaged.
        """
        if self.check_file is not None:
            self.check_file()
        if self.proof == "refuted":
            raise RunError(
                f"{self.name} was not recorded correctly: {self.why}",
                cause="attention in a form, or with axes, that the recorder does not support, or a "
                "recording that was changed",
                remedy='pass the axes, as in record(model, axes={"*attn": "b h n d"}), or use '
                "another layer, and please report the model",
            )
        return self.causes


def comma_separated(numbers: list[int]) -> str:
    """Return the numbers, separated by commas."""
    return ", ".join(str(number) for number in numbers)
