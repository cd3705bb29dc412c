"""The changes of heads that `heedful.intervene` applies, each with its definition.

A change computes the new output of some heads of a call: of the values that the heads add up,
before whatever follows attention (an output projection, or a norm before it). Heads are numbered as
`heedful heads` prints them; if several query heads share a key head, a change acts on query heads.

Sizes: B texts, h changed heads, N queries, M keys, v width of a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.interventions import from_recording
from heedful.interventions.base import Change, Heads, Result
from heedful.interventions.head_call import HeadCall, attend, blocks, by_definition, sampled_rows
from heedful.interventions.positions import Positions, Spec
from heedful.ops.masks import Causal
from heedful.recording import Recording

__all__ = [
    "block", "first", "mean", "output_from", "pattern_from", "resample", "scale", "uniform", "zero",
]  # fmt: skip


def zero(heads: Heads = None) -> Change:
    """Set the output of heads to zero: what a head adds to the model's output is removed.

    Biases of the output projection stay. Source: Michel et al. 2019, *Are sixteen heads really
    better than one?* (arXiv:1905.10650).

    Args:
        heads: the number of a head or a list of numbers, from 0; default all heads of the module.

    >>> zero([1, 3])
    <Change zero, heads 1, 3>
    """
    return _Scale("zero", 0.0, heads)


def scale(factor: float | Tensor, heads: Heads = None) -> Change:
    """Multiply the output of heads by a factor; a tensor that requires gradients is a gate.

    Sources: Michel et al. 2019 (arXiv:1905.10650); learned gates: *Causal head gating*
    (arXiv:2505.13737).

    Args:
        factor: a number, or a tensor without axes or of shape (h,), a factor for each head.
        heads: as in `zero`.

    >>> gates = torch.ones(2, requires_grad=True)
    >>> scale(gates, heads=[0, 5])
    <Change scale, heads 0, 5>
    """
    if isinstance(factor, bool) or not isinstance(factor, int | float | Tensor):
        raise ArgumentError(f"factor={factor!r}", expected="a number or a tensor")
    return _Scale("scale", factor, heads)


class _Scale(Change):
    accepts_dropout = True

    def __init__(self, name: str, factor: float | Tensor, heads: Heads) -> None:
        super().__init__(name, heads)
        if isinstance(factor, Tensor) and factor.ndim > 1:
            raise ArgumentError(
                f"factor of shape {tuple(factor.shape)}", expected="no axis, or one for the heads"
            )
        self.factor = factor

    def output(self, call: HeadCall) -> Result:
        if self.name == "zero":  # also where the output is not finite
            return Result(torch.zeros_like(call.output))
        return Result(call.output * self._factor(call, self.factor))

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        output, factor = call.output[:, :, rows], self.factor
        if self.name == "zero":
            return torch.zeros_like(output)
        factor = factor.detach().double() if isinstance(factor, Tensor) else factor
        return output * self._factor(call, factor)

    def _factor(self, call: HeadCall, factor: float | Tensor) -> Any:
        if not isinstance(factor, Tensor) or factor.ndim == 0:
            return factor
        if len(factor) != len(call.heads):
            raise ArgumentError(
                f"{len(factor)} factors for {len(call.heads)} heads of {call.name}",
                expected="one for each head",
            )
        return factor.to(call.query.device)[:, None, None]


def mean(heads: Heads = None, *, of: Recording | Tensor, per_position: bool = False) -> Change:
    """Replace the output of heads by its mean over texts: what a head adds on average stays.

    Source: Wang et al. 2022, *Interpretability in the wild* (arXiv:2211.00593).

    Args:
        heads: as in `zero`.
        of: a recording with `values=True`, over whose texts, passes and real tokens the mean is
            computed; or the means, (h, v), or with `per_position` (h, positions, v).
        per_position: use a mean for each position. The recorded texts must have equal lengths.

    Raises:
        ArgumentError: at the call, if the shape does not fit the module, or the recording lacks it.

    >>> mean(heads=[2], of=torch.zeros(1, 64))
    <Change mean, head 2>
    """
    if not isinstance(of, Tensor):
        from_recording.check_recording(of, needs_values=True)
    elif of.ndim != 2 + per_position:
        raise ArgumentError(
            f"means of shape {tuple(of.shape)}",
            expected="(heads, positions, width)" if per_position else "(heads, width)",
        )
    return _Mean("mean", heads, of, per_position)


class _Mean(Change):
    accepts_dropout = True

    def __init__(self, name: str, heads: Heads, of: Any, per_position: bool) -> None:
        super().__init__(name, heads)
        self.of, self.per_position = of, per_position
        self._means: dict[tuple, Tensor] = {}  # of a recording, by module and heads

    def output(self, call: HeadCall) -> Result:
        return Result(self._table(call).to(call.output).expand_as(call.output))

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        table = self._table(call).detach().double()
        return table[:, rows] if self.per_position else table.expand(-1, len(rows), -1)

    def _table(self, call: HeadCall) -> Tensor:
        """Return the means of the call's heads and rows, (h, 1 or N, v)."""
        means, key = self.of, (call.name, call.heads)
        if not isinstance(means, Tensor):
            if key not in self._means:
                self._means[key] = from_recording.mean_output(means, call, self.per_position)
            means = self._means[key]
        means = means if self.per_position else means[:, None]
        h, _, N, v = len(call.heads), 0, call.shape[2], call.output.shape[3]
        if (len(means), means.shape[2]) != (h, v):
            raise ArgumentError(
                f"means of {len(means)} heads of width {means.shape[2]} for {call.name}",
                expected=f"{h} heads of width {v}",
            )
        if not self.per_position:
            return means
        end = call.first_query + N
        if means.shape[1] < end:
            raise ArgumentError(
                f"means of {means.shape[1]} positions for position {end - 1} of {call.name}",
                expected="texts of the recorded length",
            )
        return means[:, call.first_query : end]


def first(heads: Heads = None) -> Change:
    """Replace the output of heads by the value of the first key that each query may see.

    A head that finds nothing often attends to the first token. The mask is kept: with padding or a
    window, the first visible key differs between queries. A query without a key gets zeros.

    >>> first(0)
    <Change first, head 0>
    """
    return _First("first", heads)


class _First(Change):
    def output(self, call: HeadCall) -> Result:
        values, (_, _, N, _) = call.values, call.shape
        if _is_causal(call):
            return Result(values[:, :, :1].expand(-1, -1, N, -1))
        parts = []
        for rows in blocks(torch.arange(N, device="cpu")):
            table: Any = call.table(rows)
            table = table.expand(*values.shape[:2], len(rows), call.shape[3])
            index = (
                table.byte().argmax(dim=-1, keepdim=True).expand(*table.shape[:3], values.shape[3])
            )
            has_keys = table.any(dim=-1, keepdim=True)
            parts.append(values.gather(2, index).masked_fill(~has_keys, 0.0))
        return Result(torch.cat(parts, dim=2))

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        table = _visible(call, rows)
        return (table & (table.cumsum(dim=-1) == 1)).double() @ call.values


def uniform(heads: Heads = None) -> Change:
    """Replace the output of heads by the mean of the values of the keys that each query may see.

    This is attention with a query of zeros: its mask is kept; bias, soft cap and sink are left out.
    A query without a key gets zeros.

    >>> uniform()
    <Change uniform, all heads>
    """
    return _Uniform("uniform", heads)


class _Uniform(Change):
    def output(self, call: HeadCall) -> Result:
        N, M = call.shape[2:]
        if call.mask is None:
            return Result(call.values.mean(dim=2, keepdim=True).expand(-1, -1, N, -1))
        if _is_causal(call) and M == N:
            values = call.values
            wide = torch.promote_types(values.dtype, torch.float32)
            counts = torch.arange(1, N + 1, device=values.device, dtype=wide)[:, None]
            return Result((values.cumsum(dim=2, dtype=wide) / counts).to(values.dtype))
        query = torch.zeros_like(call.query)
        return Result(attend(replace(call, query=query, bias=None, softcap=None, sinks=None)))

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        table = _visible(call, rows).double()
        return table / table.sum(dim=-1, keepdim=True).clamp(min=1) @ call.values


def _is_causal(call: HeadCall) -> bool:
    """Whether each query may see key 0, and all keys or those up to its own position."""
    mask = call.mask
    return mask is None or (type(mask) is Causal and mask.has_no_empty_row(call.shape))


def _visible(call: HeadCall, rows: Tensor) -> Tensor:
    """Return which keys each of some queries may see; broadcasts to (B, h, n, M)."""
    table = call.table(rows)
    if table is None:
        return torch.ones(len(rows), call.shape[3], dtype=torch.bool, device=call.query.device)
    return table.expand(*table.shape[:-1], call.shape[3])


def block(queries: Spec, keys: Spec, heads: Heads = None) -> Change:
    """Hide keys from queries (attention knock-out): the weights of the other keys grow to sum to 1.

    Only the rows of these queries are computed again. A row that loses all its keys gives zeros;
    the report counts these rows. Source: Geva et al. 2023 (arXiv:2304.14767), who block a window
    of layers, as `{"layers.*": block(…)}` or a line for each layer does.

    Args:
        queries, keys: positions, from 0: a number, a slice, a range or a list of numbers. Negative
            ones count from the end of the pass. In `generate`, positions count all earlier tokens;
            in a padded batch, they count padding.
        heads: as in `zero`.

    Raises:
        ArgumentError: not positions; at the end of the context, a position that no pass had.

    >>> block(queries=-1, keys=slice(2, 5), heads=[0])
    <Change block queries -1, keys 2:5, head 0>
    """
    rows, columns = Positions.of("queries", queries), Positions.of("keys", keys)
    return _Block(f"block queries {rows.text}, keys {columns.text}", heads, rows, columns)


class _Block(Change):
    def __init__(self, name: str, heads: Heads, queries: Positions, keys: Positions) -> None:
        super().__init__(name, heads)
        self.queries, self.keys = queries, keys

    def _rows(self, call: HeadCall) -> tuple[Tensor, Tensor]:
        """Return the affected queries and the hidden keys of a call, as indices."""
        rows = self.queries.within(call.first_query, call.shape[2])
        columns = self.keys.within(call.first_key, call.shape[3])
        return rows[: len(rows) if len(columns) else 0], columns

    def output(self, call: HeadCall) -> Result:
        rows, columns = self._rows(call)
        parts, lost = [], 0
        for part in blocks(rows):
            changed = call.of_rows(part, columns)
            had = _visible(call, part).any(dim=-1)
            lacks = had & ~_visible(changed, torch.arange(len(part), device="cpu")).any(dim=-1)
            lacks = lacks.expand(len(call.query), call.shape[1], len(part))
            lost += int(lacks.any(dim=1).sum())
            parts.append(attend(changed))
        return Result(torch.cat(parts, dim=2), rows, lost)

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        affected, columns = self._rows(call)
        is_affected = torch.isin(rows, affected).to(call.query.device)[:, None]
        expected = by_definition(call.of_rows(rows, columns))
        return torch.where(is_affected, expected, call.output[:, :, rows])

    def sampled(self, call: HeadCall) -> Tensor:
        rows = torch.cat([super().sampled(call), sampled_rows(self._rows(call)[0])])
        return rows.unique()

    def check_positions(self, queries: int, keys: int) -> None:
        self.queries.check(queries)
        self.keys.check(keys)


def pattern_from(recording: Recording, heads: Heads = None) -> Change:
    """Use the weights of another run with the values of this run (patching of attention patterns).

    The weights are not built: it is fused attention of the recorded query, key, mask, bias, scale,
    cap and sinks with this run's values. Padding rows of the recording keep this run's output.
    Source: Zhang and Nanda 2023, *Towards best practices of activation patching* (arXiv:2309.16042).

    Args:
        recording: a recording of the same module on texts of the same number and padded length (or
            of one text, for all texts). The n-th call uses the n-th recorded call of the module,
            or the only one.
        heads: as in `zero`.

    Raises:
        ArgumentError: not a recording. At the call: unequal lengths, or another model.
    """
    from_recording.check_recording(recording)
    return _FromRecording("pattern_from", heads, [recording], recorded_values=False)


def output_from(recording: Recording, heads: Heads = None) -> Change:
    """Use the output of another run (activation patching): recorded weights times recorded values.

    Sources: Vig et al. 2020 (arXiv:2004.12265); Heimersheim and Nanda 2024 (arXiv:2404.15255).

    Args:
        recording: as in `pattern_from`, with `values=True`.
        heads: as in `zero`.
    """
    from_recording.check_recording(recording, needs_values=True)
    return _FromRecording("output_from", heads, [recording], recorded_values=True)


def resample(recordings: Sequence[Recording], seed: int = 0, heads: Heads = None) -> Change:
    """Use the output of one of several other runs, drawn for each forward pass.

    Source: Chan et al. 2022, *Causal scrubbing* (resampling ablation).

    Args:
        recordings: recordings as in `output_from`. All modules of a pass use the same recording.
        seed: of the draw.
        heads: as in `zero`.
    """
    is_list = isinstance(recordings, Sequence) and not isinstance(recordings, Recording)
    if not is_list or not recordings:
        raise ArgumentError("no recordings to draw from", expected="a list of recordings")
    for recording in recordings:
        from_recording.check_recording(recording, needs_values=True)
    if not isinstance(seed, int):
        raise ArgumentError(f"seed={seed!r}", expected="a whole number")
    return _FromRecording("resample", heads, list(recordings), recorded_values=True, seed=seed)


class _FromRecording(Change):
    def __init__(
        self, name: str, heads: Heads, recordings: list[Recording], recorded_values: bool,
        seed: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(name, heads)
        self.recordings, self.recorded_values, self.seed = recordings, recorded_values, seed

    def _texts(self, call: HeadCall) -> list[from_recording.RecordedText]:
        recording = self.recordings[0]
        if len(self.recordings) > 1:
            generator = torch.Generator("cpu").manual_seed(self.seed * 1_000_003 + call.pass_index)
            count = len(self.recordings)
            recording = self.recordings[int(torch.randint(count, (), generator=generator))]
        return from_recording.texts_for(recording, call, self.recorded_values)

    def output(self, call: HeadCall) -> Result:
        outputs = []
        for output, text in zip(call.output, self._texts(call), strict=True):
            new = attend(text.call)[0].to(output.dtype)
            outputs.append(text.placed(new, output))
        return Result(torch.stack(outputs))

    def definition(self, call: HeadCall, rows: Tensor) -> Tensor:
        outputs = []
        for output, text in zip(call.output, self._texts(call), strict=True):
            is_row = torch.isin(text.queries, rows)
            part = text.call.of_rows(is_row.nonzero()[:, 0]).in_float64()
            part = replace(text, queries=text.queries[is_row]).placed(
                by_definition(part)[0], output
            )
            outputs.append(part[:, rows])
        return torch.stack(outputs)


def function(change: Callable[..., Any]) -> Change:
    """Return the change that calls a function of (query, key, value, output)."""
    return _Function(change)


class _Function(Change):
    def __init__(self, change: Callable[..., Any]) -> None:
        super().__init__(getattr(change, "__name__", type(change).__name__), None)
        self.change = change

    def output(self, call: HeadCall) -> Result:
        new = self.change(call.query, call.key, call.value, call.output)
        if not isinstance(new, Tensor) or new.shape != call.output.shape:
            shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ArgumentError(
                f"{self.name} returned {shape} for {call.name}",
                expected=f"a tensor {tuple(call.output.shape)}, the new output",
            )
        return Result(new)
