"""How parts of one call's map are computed, compared with what is known of it, and refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.ops import statistics as of
from heedful.ops.indexing import ALL, Index, as_slice, indices
from heedful.ops.inputs import AttentionInputs, entries_of
from heedful.ops.map_region import by_rows, weights
from heedful.ops.statistics import Statistic
from heedful.ops.top_k import Top
from heedful.recording.capture import TOLD
from heedful.recording.certificate import Check
from heedful.recording.checks import whole
from heedful.recording.image_patches import Picture
from heedful.recording.progress import Progress, Tell
from heedful.recording.proof import Layout, Proof, proof_of
from heedful.recording.row_sums import RowSums, unknown


@dataclass
class Rows:
    """What a call can be asked of its rows, by its causes; `Call` says what each field is."""

    name: str
    layer: int | None
    pass_index: int
    kind: str
    causes: AttentionInputs
    check: Check
    index: int = 0
    layout_of_axes: Layout = TOLD
    sums: RowSums = None  # type: ignore[assignment]  # made of the causes where not given
    refutations: dict[int, str] = field(default_factory=dict, repr=False)
    row: int = 0
    sequence: int = 0
    part: int = 0
    batch: int = 1
    map_: Tensor | None = field(default=None, repr=False)
    of_parts: Callable[[], list[Any]] | None = field(default=None, repr=False, compare=False)
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
    intact: Callable[[], None] | None = field(default=None, repr=False)
    home: Callable[[], Any] = field(default=lambda: None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.sums is None:
            query = self.causes.query
            self.sums = RowSums(unknown(query), torch.arange(query.shape[1], device="cpu"))

    _kept: dict[Any, Any] = field(default_factory=dict, repr=False)

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
        """What is missing to a proof, and what else a guessed layout may be; "" if nothing."""
        return "; ".join(filter(None, (self._proof.why, self.layout_of_axes.why)))

    @property
    def against(self) -> str:
        """What was found to be wrong since it was recorded; empty where nothing was."""
        return self.refutations.get(self.row, "")

    @property
    def _proof(self) -> Proof:
        return proof_of(self.check, self.against)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(H, N, M)."""
        return self.causes.shape

    @property
    def heads(self) -> list[int]:
        """The model's own number of each head, in the order of the rows."""
        return list(range(self.shape[0])) if self.chosen is None else self.chosen

    def gathered(
        self, *statistics: Statistic, heads: slice = ALL, within: range | None = None
    ) -> list[Any]:
        """What statistics find in one pass over whole rows, whose log-sum-exps are compared.

        `heads` are places in this call, `within` a range of queries; default all. A RunError says
        that the call is refuted, or is so by what they find.
        """
        causes = self._causes_of(heads)
        rows = ALL if within is None else as_slice(within)
        is_known = self.sums.known(heads, rows) is not None
        log_sums = of.LogSumExp(exact=not is_known)  # else mended where it is off
        *results, sums = of.gather(causes, *statistics, log_sums, within=within)
        self._meet(causes, heads, rows, sums[:, rows])
        return results

    def knows(self, head: int, queries: range) -> bool:
        """Whether the log-sum-exps of some rows are known: then a cell of theirs costs itself."""
        return self.sums.known(self._heads(head), as_slice(queries)) is not None

    def _cells(self, heads: slice, queries: Index, keys: Index) -> Tensor:
        """Any part of the map: its own cells where their rows' sums are known, else whole rows."""
        causes = self.checked()
        H, N, M = self.shape
        rows, columns = indices(queries, N, "query"), indices(keys, M, "key")
        if self.map_ is not None:
            return self.map_[heads][:, rows][:, :, columns]
        # Few rows are computed whole: their cells are more exact then, and the rows compared
        are_few = len(range(H)[heads]) * len(rows) * M <= entries_of(causes.query)
        known = None if are_few or len(columns) == M else self.sums.known(heads, rows)
        if known is not None:
            return weights(causes, heads, rows, columns, known)
        of = causes.of_heads(heads)
        cells, sums = by_rows(of.in_precision(), rows, columns)
        self._meet(of, heads, rows, sums)
        return cells

    def _row_sums(self, heads: slice, rows: range, progress: Tell | None) -> Tensor:
        """The log-sum-exp of a run of rows, (h, n), which is computed where it is not known."""
        self.checked()
        known = self.sums.known(heads, as_slice(rows))
        if known is None:
            tell = Progress(progress or (lambda share: None), len(rows))
            self.gathered(tell, heads=heads, within=rows)
        return self.sums.of(heads, as_slice(rows))

    def compare_rows(self) -> None:
        """Compare the log-sum-exp of every row with what the model's kernel had, if it gave any.

        It says in `proof` and `why` what came of it.
        """
        if self.proof != "refuted" and self.sums.any_known:
            with suppress(RunError):
                self.gathered()

    def _found(self, head: int | None, statistic: Statistic) -> Any:
        """What one statistic finds of one head, or of all."""
        [result] = self.gathered(statistic, heads=self._heads(head))
        if head is None:
            return result
        return Top(*(part[0] for part in result)) if isinstance(result, Top) else result[0]

    def _causes_of(self, heads: slice) -> AttentionInputs:
        causes = self.checked()
        return causes if heads == ALL else causes.of_heads(heads)

    def _meet(self, of: AttentionInputs, heads: slice, rows: Tensor | slice, sums: Tensor) -> None:
        fault = self.sums.meet(of, heads, rows, sums)
        if fault is not None:  # unless the sum of a long row lost digits
            every = torch.arange(self.shape[1], device="cpu")[rows]
            _, sums = by_rows(self.causes.of_heads(heads).in_precision(), every, every[:0])
            fault = self.sums.meet(of, heads, rows, sums)
        if fault is not None:
            self.refutations[self.row] = (
                f"row {fault.query} of head {self.heads[fault.head]} is not the model's: the "
                f"log-sum-exp of its scores is {fault.found:.6g}, and was {fault.known:.6g}"
            )
            self.checked()

    def _heads(self, head: int | None) -> slice:
        H = self.shape[0]
        if head is None:
            return ALL
        number = whole("head", head)
        if self.chosen is None:
            if not -H <= number < H:
                raise ArgumentError(f"head {number}", expected=f"head 0 to {H - 1}")
            return slice(number % H, number % H + 1)
        if number not in self.chosen:
            raise ArgumentError(
                f"head {number}", expected=f"one of those recorded, {listed(self.chosen)}"
            )
        at = self.chosen.index(number)
        return slice(at, at + 1)

    def checked(self) -> AttentionInputs:
        """The causes, unless they were shown not to be those of the output.

        Raises:
            RunError: the record of the call does not pass its check, or its file is damaged.
        """
        if self.intact is not None:
            self.intact()
        if self.proof == "refuted":
            raise RunError(
                f"{self.name} was not recorded truthfully: {self.why}",
                cause="attention of a form, or with axes, that the recorder does not know, or a "
                "record that was changed since",
                remedy='tell the axes, as record(model, axes={"*attn": "b h n d"}), or look at '
                "another layer, and please report the model",
            )
        return self.causes


def listed(numbers: list[int]) -> str:
    """Numbers with commas between."""
    return ", ".join(str(number) for number in numbers)
