"""The changes of heads that `heedful.intervene` applies, each with its definition.

A change computes the new output of some heads of a call: of the values that the heads add up,
before whatever follows attention (an output projection, or a norm before it). Heads are numbered as
`heedful heads` prints them; if several query heads share a key head, a change acts on query heads.

Sizes: B texts, h changed heads, N queries, M keys, v width of a value.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.interventions import from_recording
from heedful.interventions.base import Change, Heads, Positions, heads_of, positions_of, words
from heedful.interventions.head_call import HeadCall, attend, by_definition, in_blocks
from heedful.ops.masks import Causal
from heedful.recording import Recording

__all__ = [
    "block", "first", "mean", "output_from", "pattern_from", "resample", "scale", "uniform", "zero",
]  # fmt: skip

EXPECTED = 'modules and their changes: {"layers.5": change.zero(heads=[1])}'


def zero(heads: Heads = None) -> Change:
    """Set the output of heads to zero. Biases of the output projection stay.

    Source: Michel et al. 2019, *Are sixteen heads really better than one?* (arXiv:1905.10650).

    Args:
        heads: the number of a head or a list of numbers, from 0; default all heads of the module.

    >>> zero([1, 3])
    <Change zero, heads 1, 3>
    """

    def define(call: HeadCall, rows: Tensor) -> Tensor:
        return torch.zeros_like(call.values[:, :, :1]).expand(-1, -1, len(rows), -1)

    return Change("zero", heads_of(heads), define, accepts_dropout=True)


def scale(factor: float | Tensor, heads: Heads = None) -> Change:
    """Multiply the output of heads by a factor; a tensor that requires gradients is a gate.

    Sources: Michel et al. 2019 (arXiv:1905.10650); gates: *Causal head gating* (arXiv:2505.13737).

    Args:
        factor: a number, or a tensor without axes or of shape (h,), with a factor for each head.
        heads: as in `zero`.

    >>> scale(torch.ones(2, requires_grad=True), heads=[0, 5])
    <Change scale, heads 0, 5>
    """
    if isinstance(factor, bool) or not isinstance(factor, int | float | Tensor):
        raise ArgumentError(f"factor={factor!r}", expected="a number or a tensor")

    def define(call: HeadCall, rows: Tensor) -> Tensor:
        output = call.before[:, :, rows]
        factors = torch.as_tensor(factor, device=output.device).to(output.dtype)
        if factors.shape not in ((), (len(call.heads),)):
            raise ArgumentError(
                f"factor of shape {tuple(factors.shape)} in {call.name}",
                expected=f"a number, or {len(call.heads)}, one for each head",
            )
        return output * factors.reshape(-1, 1, 1)

    return Change("scale", heads_of(heads), define, accepts_dropout=True)


def mean(heads: Heads = None, *, of: Recording | Tensor, per_position: bool = False) -> Change:
    """Replace the output of heads by its mean over texts: what a head adds on average stays.

    Source: Wang et al. 2022, *Interpretability in the wild* (arXiv:2211.00593).

    Args:
        heads: as in `zero`.
        of: a recording with `values=True`, over whose texts, passes and real tokens the mean is
            computed; or the means, (h, v), or with `per_position` (h, positions, v).
        per_position: use a mean for each position. The recorded texts must have equal lengths.

    Raises:
        ArgumentError: at the call, if the means do not fit the module.

    >>> mean(heads=[2], of=torch.zeros(1, 64))
    <Change mean, head 2>
    """
    if not isinstance(of, Tensor):
        from_recording.check_recording(of, needs_values=True)

    @functools.lru_cache(maxsize=1024)
    def recorded(name: str, numbers: tuple[int, ...]) -> Tensor:
        return from_recording.mean_output(cast(Recording, of), name, numbers, per_position)

    def define(call: HeadCall, rows: Tensor) -> Tensor:
        means = of if isinstance(of, Tensor) else recorded(call.name, call.heads)
        end, h, v = call.first_query + call.shape[2], call.shape[1], call.value.shape[3]
        sizes = (h, means.shape[1], v) if per_position else (h, v)
        if means.shape != sizes or (per_position and means.shape[1] < end):
            expected = f"({h} heads, at least {end} positions, width {v})"
            raise ArgumentError(
                f"means of shape {tuple(means.shape)} for {call.name}",
                expected=expected if per_position else f"({h} heads, width {v})",
                cause="texts of unequal lengths, or means of another model",
            )
        means = means[:, rows + call.first_query] if per_position else means[:, None]
        return means.to(call.value).expand(len(call.value), h, len(rows), v)

    return Change("mean", heads_of(heads), define, accepts_dropout=True)


def first(heads: Heads = None) -> Change:
    """Replace the output of heads by the value of the first key that each query may see.

    A head that finds nothing often attends to the first token. The mask is kept: with padding or a
    window, the first visible key differs between queries. A query without a key gets zeros.

    >>> first(0)
    <Change first, head 0>
    """

    def define(call: HeadCall, rows: Tensor) -> Tensor:
        table = call.visible(rows)
        return (table & (table.cumsum(dim=-1) == 1)).to(call.values.dtype) @ call.values

    def compute(call: HeadCall) -> Tensor:
        _, _, N, M = call.shape
        is_causal = isinstance(call.mask, Causal) and N == M and call.mask.offset in (None, 0)
        if (call.mask is None or is_causal) and not call.hidden:  # all queries see the first key
            return call.values[:, :, :1].expand(-1, -1, N, -1)
        return in_blocks(lambda rows: define(call, rows), call.rows)

    return Change("first", heads_of(heads), define, compute)


def uniform(heads: Heads = None) -> Change:
    """Replace the output of heads by the mean of the values of the keys that each query may see.

    This is attention with a query of zeros: its mask is kept; bias, soft cap and sink are left out.
    A query without a key gets zeros.

    >>> uniform()
    <Change uniform, all heads>
    """

    def define(call: HeadCall, rows: Tensor) -> Tensor:
        table = call.visible(rows).to(torch.promote_types(call.query.dtype, torch.float32))
        table = table / table.sum(dim=-1, keepdim=True).clamp(min=1)
        return (table @ call.values.to(table.dtype)).to(call.values.dtype)

    def compute(call: HeadCall) -> Tensor:
        zeros = torch.zeros_like(call.query)
        return attend(replace(call, query=zeros, bias=None, softcap=None, sinks=None))

    return Change("uniform", heads_of(heads), define, compute)


def block(
    queries: Positions | str,
    keys: Positions | str,
    heads: Heads = None,
    segments: Mapping[str, Positions] | None = None,
) -> Change:
    """Hide keys from queries (attention knock-out): the weights of the other keys grow to sum to 1.

    Only the rows of these queries are computed again. A row that loses all its keys gives zeros;
    the report counts these rows. Source: Geva et al. 2023 (arXiv:2304.14767), who block a window
    of layers, as a line for each layer does.

    Args:
        queries, keys: positions, from 0: a number, a slice, a range or a list of numbers, or the
            name of a segment. Negative ones count from the end of the pass. In `generate`,
            positions count all earlier tokens; in a padded batch, they count padding.
        heads: as in `zero`.
        segments: positions by name, as `recording.segments` takes them.

    Raises:
        ArgumentError: not positions; at the end of the context, a position that no pass had.

    >>> block(queries=-1, keys=slice(2, 5), heads=[0])
    <Change block queries -1 × keys 2:5, head 0>
    >>> block("answer", "document", segments={"document": range(2, 5), "answer": [9]})
    <Change block queries answer × keys document, all heads>
    """
    sides = (queries, keys)
    positions = [(segments or {}).get(p, p) if isinstance(p, str) else p for p in sides]
    edges = positions_of("queries", positions[0]), positions_of("keys", positions[1])
    texts = [p if isinstance(p, str) else words(q) for p, q in zip(sides, edges, strict=True)]
    name = f"block queries {texts[0]} × keys {texts[1]}"
    return Change(name, heads_of(heads), by_definition, edges=edges)


def pattern_from(recording: Recording, heads: Heads = None) -> Change:
    """Use the weights of another run with the values of this run (patching of attention patterns).

    The weights are not built: it is fused attention of the recorded query, key, mask, bias, scale,
    cap and sinks with this run's values. Padding rows of the recording keep this run's output.
    Source: Zhang and Nanda 2023, *Towards best practices of activation patching*
    (arXiv:2309.16042).

    Args:
        recording: a recording of the same module on texts of the same number and padded length (or
            of one text, for all texts). The n-th call uses the n-th recorded call of the module,
            or the only one.
        heads: as in `zero`.

    Raises:
        ArgumentError: not a recording. At the call: unequal lengths, or another model.
    """
    return _from_recordings("pattern_from", [recording], heads, with_values=False)


def output_from(recording: Recording, heads: Heads = None) -> Change:
    """Use the output of another run (activation patching): recorded weights times recorded values.

    Sources: Vig et al. 2020 (arXiv:2004.12265); Heimersheim and Nanda 2024 (arXiv:2404.15255).

    Args:
        recording: as in `pattern_from`, with `values=True`.
        heads: as in `zero`.
    """
    return _from_recordings("output_from", [recording], heads)


def resample(recordings: Sequence[Recording], seed: int = 0, heads: Heads = None) -> Change:
    """Use the output of one of several other runs, drawn for each forward pass.

    Source: Chan et al. 2022, *Causal scrubbing* (resampling ablation).

    Args:
        recordings: recordings as in `output_from`. All modules of a pass use the same recording.
        seed: of the draw.
        heads: as in `zero`.
    """
    is_list = isinstance(recordings, Sequence) and not isinstance(recordings, Recording)
    if not is_list or not recordings or not isinstance(seed, int):
        raise ArgumentError("resample", expected="a list of recordings, and a whole number as seed")
    return _from_recordings("resample", list(recordings), heads, seed=seed)


def _from_recordings(
    name: str, recordings: list[Recording], heads: Heads, with_values: bool = True, seed: int = 0
) -> Change:
    for recording in recordings:
        from_recording.check_recording(recording, with_values)

    def drawn(call: HeadCall) -> Recording:
        generator = torch.Generator("cpu").manual_seed(seed * 1_000_003 + call.pass_index)
        return recordings[int(torch.randint(len(recordings), (), generator=generator))]

    def define(call: HeadCall, rows: Tensor | None = None) -> Tensor:
        return from_recording.output(drawn(call), call, with_values, rows)

    return Change(name, heads_of(heads), define, compute=define)


def as_change(change: Any) -> Change:
    """Return a change unchanged, or the change that calls a function."""
    if isinstance(change, Change):
        return change
    is_unfinished = getattr(change, "__module__", "") == __name__  # such as zero without ()
    if is_unfinished or not callable(change):
        raise ArgumentError(f"a change {change!r:.40}", expected=EXPECTED)
    name = getattr(change, "__name__", type(change).__name__)

    def compute(call: HeadCall) -> Tensor:
        new, output = change(call.query, call.key, call.value, call.before), call.before
        if not isinstance(new, Tensor) or new.shape != output.shape:
            shape = tuple(new.shape) if isinstance(new, Tensor) else type(new).__name__
            raise ArgumentError(
                f"{name} returned {shape} for {call.name}",
                expected=f"a tensor {tuple(output.shape)}, the new output",
            )
        return new

    return Change(name, None, None, compute)
