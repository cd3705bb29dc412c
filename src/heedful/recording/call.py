"""`Call`, a recorded call of attention on one part of one text: its map and its statistics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError, RunError
from heedful.lazy_imports import import_name
from heedful.ops import statistics
from heedful.ops.heatmap import check_region, heatmap, pooled
from heedful.ops.indexing import ALL, Index, indices
from heedful.ops.masked_cells import masked_cells
from heedful.ops.single_weight import OneWeight, one_weight
from heedful.ops.statistics import RowStatistic
from heedful.ops.top_k import Top, TopKeys
from heedful.recording.checks import integer, is_integer, region
from heedful.recording.map_rows import CallRows, comma_separated
from heedful.recording.progress import OnProgress, Progress, sub_progress
from heedful.recording.segment_masks import SegmentSpecs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from heedful.recording.segment_table import Segments


class Call(CallRows):
    """A call of attention on one part of one text: a map of N queries × M keys for each of H heads.

    Maps are computed on request from the stored attention inputs. `heedful.ops.statistics` defines
    the statistics. With the argument `head`, methods return only that head.

    name: the module's name. layer: the number of the block in that name; None without a number.
    index, pass_index: the numbers of the call and of its forward pass, counted from 0.
    kind: "self", "causal" or "cross". door: the entry point where the call was intercepted.
    ids, query_ids: the token ids of the keys (M,) and of the queries (N,); None if unknown.
    key_tokens, query_tokens: the text of each token; None if unknown. Image patches are named
        "row,column". key_picture, query_picture: the image of the patches; None for other tokens.
    unknown: the tokenizer's id for unknown words. map_: the map (H, N, M), if it is stored.
    sequence: the index of the text in the batch, from 0. batch: the number of texts.
    part: the index of this call in `parts`, the calls on all parts of the text, such as windows.
    chosen: the numbers of the heads in the model, if only some were recorded; else None.
    proof: the certainty of the numbers. layout: that of the axes. why: the reasons for doubt.
    recording_ref: returns the recording, or None once the recording is deleted.
    sums: the log-sum-exps of the rows, if known; every computed full row is compared with them.
    refutations: by sequence (texts × parts), why later comparisons refuted it; this one is `row`.
    """

    def __repr__(self) -> str:
        H, N, M = self.shape
        heads = f"{H} head{'' if H == 1 else 's'}"
        if self.chosen is not None:
            heads = f"head{'' if H == 1 else 's'} {comma_separated(self.chosen)}"
        size = f"{heads}, {N} × {M}"
        if self.batch > 1:
            size += f", text {self.sequence} of {self.batch}"
        if (parts := len(self.parts)) > 1:
            size += f", part {self.part} of {parts}"
        certainty = f"{self.proof}, layout {self.layout}" + (f" ({self.why})" if self.why else "")
        return f"<Call {self.name!r}: {self.kind}, {size}, pass {self.pass_index}, {certainty}>"

    def _repr_html_(self) -> str:
        """Return a line about the call, with a small picture of each head, as HTML."""
        from heedful.recording.html_table import html

        return html([self], repr(self).strip("<>"), "call")

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """Return the explorer's page, opened at this call, for notebooks that can show it."""
        return import_name("heedful.views.notebook.display", "bundle")(self)

    @property
    def is_cross(self) -> bool:
        """Whether the call is cross-attention: its queries have no position among the keys."""
        return self.kind == "cross"

    @property
    def tokens(self) -> list[str] | None:
        """The text of each of the M tokens in self-attention; None in cross-attention."""
        return None if self.is_cross else self.key_tokens

    @property
    def parts(self) -> list[Call]:
        """The calls on all parts of the text, such as windows; most texts have one part."""
        return [self] if self.list_parts is None else self.list_parts()

    def weights(
        self, head: int | None = None, queries: Index | int | None = None,
        keys: Index | None = None, *, part: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Compute the weights of some queries on some keys exactly: (H, n, m), or (n, m) of a head.

        Args:
            head: the number of a head in the model, from 0; default all. If all were recorded,
                negative numbers count from the end.
            queries, keys: an index, a slice, a list of indices, or a boolean mask; default all.
            part: the index of a part of the text, such as a window; default this call's part.

        Raises:
            ArgumentError: a head, query, key or part that does not exist.
            RunError: the call is refuted, or its file is damaged.
        """
        if part is not None and part != self.part:
            parts = self.parts
            if not 0 <= integer("part", part) < len(parts):
                raise ArgumentError(f"part {part}", expected=f"part 0 to {len(parts) - 1}")
            return parts[part].weights(head, queries, keys)
        cells = self._cells(self._heads(head), _index(queries), _index(keys))
        return cells if head is None else cells[0]

    def log_sum_exp(
        self, head: int | None = None, progress: OnProgress | None = None, *, queries: slice = ALL
    ) -> Tensor:
        """Return log Σₘ exp(score) of each query, (H, n) or (n,); NaN for fully masked rows.

        Values that the model's kernel did not return are computed once. After that, the time to
        compute weights depends only on how many they are. If a model masks all keys of a
        row by large negative numbers, other scores with the same weights may be stored, and used.
        `queries` is a slice without a step. `progress` is called with the completed share, 0 to 1.
        """
        rows = range(self.shape[1])[region("queries", queries)]
        sums = self._row_sums(self._heads(head), rows, progress)
        sums = sums.masked_fill(sums == -torch.inf, torch.nan)
        return sums if head is None else sums[0]

    def received(self, head: int | None = None, *, mean: bool = False) -> Tensor:
        """Return Σₙ W[n, m] of each key m; `mean`: the mean over queries that may attend to m."""
        return self._statistic(head, statistics.Received(mean))

    def entropy(self, head: int | None = None) -> Tensor:
        """Return −Σₘ W log W of each query, in nats."""
        return self._statistic(head, statistics.Entropy())

    def largest(self, head: int | None = None) -> Top:
        """Return the largest weight of each query, and the key that has this weight."""
        top = self.top(1, head)
        return Top(top.weights[..., 0], top.keys[..., 0])

    def top(self, k: int, head: int | None = None) -> Top:
        """Return the k largest weights of each query with their keys, in descending order."""
        return self._statistic(head, TopKeys(integer("top", k, minimum=1)))

    def distance(self, head: int | None = None) -> Tensor:
        """Return Σₘ W · |p(n) − m| of each query n at position p(n); NaN in cross-attention."""
        return self._statistic(head, self.positional(statistics.Distance()))

    def diagonal(self, offset: int, head: int | None = None) -> Tensor:
        """Return the mean of W[n, p(n) − offset]; offset 0 is the token itself, 1 the previous one.

        The mean is over queries that may attend to this key and to others. NaN in cross-attention,
        which has no p(n).
        """
        diagonal = statistics.Diagonal(integer("offset", offset))
        return statistics.mean(self._statistic(head, self.positional(diagonal)))

    def sink(self, head: int | None = None) -> Tensor:
        """Return the mean weight on the first key, over later queries that may attend to it."""
        return statistics.mean(self._statistic(head, statistics.Sink(crosses=self.is_cross)))

    def learned_sink(self, head: int | None = None) -> Tensor:
        """Return 1 − Σₘ W of each query: the weight on a learned sink, a logit without a value."""
        return self._statistic(head, statistics.LearnedSink())

    def heatmap(
        self, size: int = 256, *, head: int | None = None, queries: slice = ALL,
        keys: slice = ALL, reduce: str = "mean", progress: OnProgress | None = None,
    ) -> Tensor:  # fmt: skip
        """Pool a region of the map to at most size × size cells; (rows, columns) for each head.

        If the log-sum-exps of its rows are known, only the region is computed, else full rows.

        Args:
            size: the maximum number of rows, and of columns, of cells.
            head: the number of a head in the model; default all: (H, rows, columns).
            queries, keys: the region, as slices without a step; default all.
            reduce: "mean" or "max" of the weights in a cell; masked weights count as 0.
            progress: called with the completed share, 0 to 1.
        """
        cells, heads = integer("size", size, minimum=1), self._heads(head)
        rows, columns = region("queries", queries), region("keys", keys)
        check_region(reduce, rows, columns)  # before anything is computed
        sums = self._row_sums(heads, range(self.shape[1])[rows], sub_progress(progress, 0, 2))
        inputs, progress = self._inputs_of(heads), sub_progress(progress, 1, 2)
        table = heatmap(inputs, sums, cells, reduce, rows, columns, progress)
        return table if head is None else table[0]

    def pooled(
        self, cell: tuple[int, int], head: int, queries: slice = ALL, keys: slice = ALL, *,
        reduce: str = "mean",
    ) -> Tensor:  # fmt: skip
        """Pool a region of one head like `heatmap`, but to cells of a fixed size, (queries, keys).

        The last cell of an axis may be smaller. Regions fit together as tiles of one picture if
        they start and end at multiples of the cell size.
        """
        heads, rows = self._heads(head), region("queries", queries)
        sums = self._row_sums(heads, range(self.shape[1])[rows], None)
        columns = region("keys", keys)
        return pooled(self._inputs_of(heads), sums, cell, reduce, rows, columns)[0]

    def masked_cells(
        self, cell: tuple[int, int], head: int, queries: slice = ALL, keys: slice = ALL
    ) -> Tensor:
        """Return which cells of `pooled` contain only masked pairs: boolean (rows, columns)."""
        return masked_cells(self._inputs_of(self._heads(head)), cell, queries, keys)[0]

    def one_weight(self, head: int, query: int, key: int) -> OneWeight:
        """Return one weight with each step of its computation, from query · key to the softmax."""
        head_index = range(self.shape[0])[self._heads(head)][0]
        return one_weight(self.checked_inputs(), head_index, query, key)

    def value_norm(
        self, head: int | None = None, queries: Index | None = None, keys: Index | None = None
    ) -> Tensor:
        """Return W[n, m] · ‖value m‖, the norm of the weighted value: (H, n, m), or (n, m).

        Source: Kobayashi et al. 2020, *Attention is not only a weight* (arXiv:2004.10102).
        """
        if self.value is None:
            raise RunError(
                f"no values of {self.name} in this recording",
                expected="record(model, values=True)",
                cause=None if self.check.rows else "a call recorded as weights alone",
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
        """Draw the maps of the call as a figure; arguments and errors as in `Recording.plot`."""
        from heedful.recording.figure import Selection, picture

        return picture([self], Selection(heads=heads), reduce=reduce, size=size, title=title,
                       scale=scale, highest=highest, values=values)  # fmt: skip

    def summary(self, progress: OnProgress | None = None) -> dict[str, Tensor]:
        """Return the mean of each row statistic over the queries, (H,), and "received", (H, M).

        "self", "previous" and "sink" are defined as in `Recording.heads`. "self", "previous" and
        "distance" are NaN in cross-attention. The result is cached, since computing it needs every
        row of the map. `progress` is called with the completed share, 0 to 1.
        """
        if "summary" not in self._cache:
            rows = {
                "entropy": statistics.Entropy(),
                "largest": statistics.LargestWeight(),
                "distance": self.positional(statistics.Distance()),
                "self": self.positional(statistics.Diagonal(0)),
                "previous": self.positional(statistics.Diagonal(1)),
                "sink": statistics.Sink(crosses=self.is_cross),
                "learned_sink": statistics.LearnedSink(),
            }
            counter = Progress(progress or (lambda share: None))
            *results, received, _ = self.gather(*rows.values(), statistics.Received(), counter)
            means = zip(rows, map(statistics.mean, results), strict=True)
            self._cache["summary"] = {**dict(means), "received": received}
        return self._cache["summary"]

    def segments(
        self, segments: SegmentSpecs, *, queries: SegmentSpecs | None = None,
        progress: OnProgress | None = None,
    ) -> Segments:  # fmt: skip
        """Compute how much each head attends from each segment of queries to each segment of keys.

        Args:
            segments: the segments of the keys, by name: each a slice, a range, a list of indices, a
                boolean per token, or a text that occurs once in the tokens. They may overlap.
            queries: segments of the queries, in the same forms. By default a query is in the
                segments of the key at its position; in cross-attention all queries are one segment,
                "all".
            progress: called with the completed share, 0 to 1, after each block of rows.

        Returns:
            a list of `SegmentShare`s, which prints as a table.

        Raises:
            ArgumentError: no segment, a reserved name, a segment without a token, an index out of
                range, or a text that does not occur exactly once.
            RunError: the call is refuted, or its file is damaged.
        """
        from heedful.recording.segments import segments_of_call

        self.checked_inputs()
        return segments_of_call(self, segments, queries, progress)

    def positional(self, statistic: RowStatistic) -> RowStatistic:
        """Return the statistic; in cross-attention, a statistic that is NaN."""
        return statistics.Undefined() if self.is_cross else statistic


def _index(index: Any) -> Index:
    if index is None:
        return ALL
    return [index] if is_integer(index) else index
