"""One call of attention on one sequence: any part of its map, and its statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.lazy_imports import wired
from heedful.ops import statistics as of
from heedful.ops.heatmap import check_region, heatmap, pooled
from heedful.ops.indexing import ALL, Index, indices
from heedful.ops.masked_cells import hidden_cells
from heedful.ops.single_weight import OneWeight, one_weight
from heedful.ops.statistics import RowStatistic
from heedful.ops.top_k import Top, TopKeys
from heedful.recording.checks import is_whole, region, whole
from heedful.recording.map_rows import Rows, listed
from heedful.recording.progress import Progress, Tell, within
from heedful.recording.segment_masks import Told

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heedful.recording.segment_table import Segments


class Call(Rows):
    """One call of attention on one sequence: maps of N queries × M keys for each of H heads.

    The maps are computed when somebody asks, from what the model computed them from.

    `name` is the module's name, `layer` the number of its block in that name (None without one),
    `index` the number of the call, `pass_index` that of the forward pass, `kind` "self", "causal"
    or "cross". `ids` (M,) are the tokens of the keys, `query_ids` (N,) those of the queries,
    `key_tokens` and `query_tokens` their text, None where they are not known or the axis is none of
    tokens; `key_picture` and `query_picture` are the image of which their tokens are patches, None
    where they are of none; patches are named "row,column". `unknown` is the id of words that the
    tokenizer does not know. `sequence` is the number of the text among the `batch`, from 0, and
    `part` that of its part, such as a window, of which `parts` has all.
    `chosen` are the model's numbers of the heads, where `record` was told which to keep. `proof`
    says whether the numbers are certain, `layout` how its axes are known, and `why` what is not.
    Every statistic is defined in `heedful.ops.statistics`; with `head`, the model's number of a
    head, it is that of one head, without it of all, (H, …).

    `home()` is the recording, as long as somebody holds it. `sums` are the log-sum-exps of rows
    that are known. Whenever whole rows are computed they are compared; one that is not the model's
    refutes the call, which all calls of `refutations` see. `map_` (H, N, M) is the map where it is
    kept itself.
    """

    def __repr__(self) -> str:
        H, N, M = self.shape
        heads = f"{H} head{'' if H == 1 else 's'}"
        if self.chosen is not None:
            heads = f"head{'' if H == 1 else 's'} {listed(self.chosen)}"
        size = f"{heads}, {N} × {M}"
        if self.batch > 1:
            size += f", text {self.sequence} of {self.batch}"
        if (parts := len(self.parts)) > 1:
            size += f", part {self.part} of {parts}"
        known = f"{self.proof}, layout {self.layout}" + (f" ({self.why})" if self.why else "")
        return f"<Call {self.name!r}: {self.kind}, {size}, pass {self.pass_index}, {known}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: as a recording does, of one call."""
        from heedful.recording.notebook import html

        return html([self], repr(self).strip("<>"), "call")

    def _repr_mimebundle_(self, **given: Any) -> Any:
        """What a notebook shows where it can: the explorer's page, opened on this call."""
        return wired("in a notebook")(self)

    @property
    def crosses(self) -> bool:
        """Whether the keys are of another text than the queries, so that these stand at none."""
        return self.kind == "cross"

    @property
    def tokens(self) -> list[str] | None:
        """The text of each of the M tokens of self-attention; None in cross-attention."""
        return None if self.crosses else self.key_tokens

    @property
    def parts(self) -> list[Call]:
        """The calls of all parts of its text, such as windows; most texts have one."""
        return [self] if self.of_parts is None else self.of_parts()

    def weights(
        self, head: int | None = None, queries: Index | int | None = None,
        keys: Index | None = None, *, part: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Any part of the map, exactly: (H, n, m), or (n, m) of one head.

        Args:
            head: the model's number of one, from 0; where all were recorded, negative ones count
                from the end.
            queries, keys: slices, lists of indices or a boolean for each; default all.
            part: the number of a part of the text, such as a window; default its own.

        Raises:
            ArgumentError: what is not in the map.
            RunError: the record of this call does not pass its own check.
        """
        if part is not None and part != self.part:
            parts = self.parts
            if not 0 <= whole("part", part) < len(parts):
                raise ArgumentError(f"part {part}", expected=f"part 0 to {len(parts) - 1}")
            return parts[part].weights(head, queries, keys)
        cells = self._cells(self._heads(head), _index(queries), _index(keys))
        return cells if head is None else cells[0]

    def log_sum_exp(
        self, head: int | None = None, progress: Tell | None = None, *, queries: slice = ALL
    ) -> Tensor:
        """log Σₘ exp(score) of each query, NaN where it sees nothing.

        The model's own kernel gave it, or it is computed now, once: with it, any part of the map
        costs its own cells alone. Where a model hides all keys of a row by large numbers, it is
        that of scores which make the same weights. `queries` is a slice without a step; `progress`
        is told of the share that is done, 0 to 1.
        """
        rows = range(self.shape[1])[region("queries", queries)]
        sums = self._row_sums(self._heads(head), rows, progress)
        sums = sums.masked_fill(sums == -torch.inf, torch.nan)
        return sums if head is None else sums[0]

    def received(self, head: int | None = None, *, mean: bool = False) -> Tensor:
        """Σₙ W[n, m] of each key; as a mean, over the queries that may see it."""
        return self._found(head, of.Received(mean))

    def entropy(self, head: int | None = None) -> Tensor:
        """−Σₘ W log W of each query, in nats."""
        return self._found(head, of.Entropy())

    def largest(self, head: int | None = None) -> Top:
        """The largest weight of each query and its key."""
        top = self.top(1, head)
        return Top(top.weights[..., 0], top.keys[..., 0])

    def top(self, k: int, head: int | None = None) -> Top:
        """The k largest weights of each query with their keys, descending."""
        return self._found(head, TopKeys(whole("top", k, least=1)))

    def distance(self, head: int | None = None) -> Tensor:
        """Σₘ W · |p(n) − m| of each query, in tokens; NaN in cross-attention."""
        return self._found(head, self.placed(of.Distance()))

    def diagonal(self, offset: int, head: int | None = None) -> Tensor:
        """Mean of W[n, p(n) − offset]: 0 is the token itself, 1 the one before it.

        Over the queries that have a choice, those after the first key; NaN in cross-attention,
        where queries stand at no key.
        """
        return of.mean(self._found(head, self.placed(of.Diagonal(whole("offset", offset)))))

    def sink(self, head: int | None = None) -> Tensor:
        """Mean weight on the first key, of the queries after it; in cross-attention of all."""
        return of.mean(self._found(head, of.Sink(crosses=self.crosses)))

    def learned_sink(self, head: int | None = None) -> Tensor:
        """1 − Σₘ W of each query: what a learned sink takes."""
        return self._found(head, of.LearnedSink())

    def heatmap(
        self, size: int = 256, *, head: int | None = None, queries: slice = ALL,
        keys: slice = ALL, reduce: str = "mean", progress: Tell | None = None,
    ) -> Tensor:  # fmt: skip
        """A region pooled to at most size × size cells: (H, rows, columns), or of one head.

        Nothing but the region is computed where the log-sum-exp of its rows is known.

        Args:
            size: how many rows and columns of cells there may be.
            queries, keys: the region, slices without a step; default all.
            reduce: "mean" or "max" of the weights in a cell; hidden ones count as 0.
            progress: is told of the share that is done, 0 to 1.
        """
        cells, heads = whole("size", size, least=1), self._heads(head)
        rows, columns = region("queries", queries), region("keys", keys)
        check_region(reduce, rows, columns)  # before anything is computed
        sums = self._row_sums(heads, range(self.shape[1])[rows], within(progress, 0, 2))
        causes, tell = self._causes_of(heads), within(progress, 1, 2)
        table = heatmap(causes, sums, cells, reduce, rows, columns, tell)
        return table if head is None else table[0]

    def pooled(
        self, cell: tuple[int, int], head: int, queries: slice = ALL, keys: slice = ALL, *,
        reduce: str = "mean",
    ) -> Tensor:  # fmt: skip
        """A region of one head in cells of (queries, keys) weights each, as `heatmap` pools them.

        The last row and column of cells may be smaller. Neighbouring regions that begin at whole
        cells fit together, as tiles of one picture.
        """
        heads, rows = self._heads(head), region("queries", queries)
        sums = self._row_sums(heads, range(self.shape[1])[rows], None)
        columns = region("keys", keys)
        return pooled(self._causes_of(heads), sums, cell, reduce, rows, columns)[0]

    def hidden_cells(
        self, cell: tuple[int, int], head: int, queries: slice = ALL, keys: slice = ALL
    ) -> Tensor:
        """Which cells of `pooled` the mask hides whole: boolean (rows, columns)."""
        return hidden_cells(self._causes_of(self._heads(head)), cell, queries, keys)[0]

    def one_weight(self, head: int, query: int, key: int) -> OneWeight:
        """One weight with all that makes it: query · key, scale, cap, bias, mask, softmax."""
        at = range(self.shape[0])[self._heads(head)][0]
        return one_weight(self.checked(), at, query, key)

    def value_norm(
        self, head: int | None = None, queries: Index | None = None, keys: Index | None = None
    ) -> Tensor:
        """W[n, m] · ‖value m‖: what is moved, and not only where from.

        Source: Kobayashi et al. 2020, *Attention is not only a weight* (arXiv:2004.10102).
        """
        if self.value is None:
            raise RunError(
                f"no values of {self.name} in this recording",
                expected="record(model, values=True)",
                cause=None if self.check.rows else "a call of which only the weights can be seen",
            )
        group = self.shape[0] // len(self.value)
        norms = self.value.float().norm(dim=-1).repeat_interleave(group, dim=0)
        columns = norms[self._heads(head)][:, None, indices(_index(keys), self.shape[2], "key")]
        part = self._cells(self._heads(head), _index(queries), _index(keys)) * columns
        return part if head is None else part[0]

    def plot(
        self, *, heads: Iterable[int] | int | None = None, title: str | None = None,
        scale: str | None = None, highest: float | None = None, size: float | None = None,
        values: bool | None = None, reduce: str = "max",
    ) -> Figure:  # fmt: skip
        """Its maps as a picture; arguments and errors as `Recording.plot`."""
        from heedful.recording.figure import Chosen, picture

        return picture([self], Chosen(heads=heads), reduce=reduce, size=size, title=title,
                       scale=scale, highest=highest, values=values)  # fmt: skip

    def summary(self, progress: Tell | None = None) -> dict[str, Tensor]:
        """For each head, the mean over the queries of every statistic of a row, and `received`.

        "self", "previous" and "sink" are the scores of `Recording.heads`; "self", "previous" and
        "distance" are NaN in cross-attention. One pass over every row of the map, which is kept;
        `progress` is told of the share that is done, 0 to 1.
        """
        if "summary" not in self._kept:
            rows = {
                "entropy": of.Entropy(),
                "largest": of.LargestWeight(),
                "distance": self.placed(of.Distance()),
                "self": self.placed(of.Diagonal(0)),
                "previous": self.placed(of.Diagonal(1)),
                "sink": of.Sink(crosses=self.crosses),
                "learned_sink": of.LearnedSink(),
            }
            tell = Progress(progress or (lambda share: None))
            *results, received, _ = self.gathered(*rows.values(), of.Received(), tell)
            means = {name: of.mean(result) for name, result in zip(rows, results, strict=True)}
            self._kept["summary"] = {**means, "received": received}
        return self._kept["summary"]

    def segments(
        self, segments: Told, *, queries: Told | None = None, progress: Tell | None = None
    ) -> Segments:
        """How much each head reads of each segment, from each: exact, in one pass over all rows.

        Args:
            segments: of the keys, by name: a slice, a range, a list of indices, a boolean for each
                token, or a text that occurs once among them. They may overlap.
            queries: of the queries, in the same ways. By default those of the keys at which they
                stand; in cross-attention all queries are one segment, "all".
            progress: is told of the share that is done, 0 to 1, as the pass goes on; an exception
                such as Ctrl-C ends it between two blocks.

        Returns:
            a list of `SegmentShare`s, which prints as a table.

        Raises:
            ArgumentError: a segment without a token, an index outside, a text that occurs nowhere
                or several times.
            RunError: the record of this call does not pass its own check.
        """
        from heedful.recording.segments import of_call

        self.checked()
        return of_call(self, segments, queries, progress)

    def placed(self, statistic: RowStatistic) -> RowStatistic:
        """A statistic that asks where a query stands among the keys; in cross-attention NaN."""
        return of.Unplaced() if self.crosses else statistic


def _index(index: Any) -> Index:
    if index is None:
        return ALL
    return [index] if is_whole(index) else index
