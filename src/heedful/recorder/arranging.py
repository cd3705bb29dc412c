"""Puts the axes of a call that was seen in order: texts × parts, heads, queries, keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.ops.masks import Mask
from heedful.recorder.axes.axes_notation import pattern_for, told_order
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.axes.usual_order import HEADS, PARTS, TEXTS, Order, Sizes, usual_order
from heedful.recorder.doors import tape_inputs
from heedful.recorder.doors.tape_cells import BATCH, KEYS, ONE, QUERIES, Cells, cells_of
from heedful.recorder.observed_call import AXES, Observed
from heedful.recording.evidence import Evidence
from heedful.recording.proof import Layout

TOLD = Layout("told")


class Seen(NamedTuple):
    """A call that a door saw, with copies of what the model may change, and where it ran.

    evidence: what it is checked against. number: of the call in the recording.
    where: names of the running modules from the outermost on, and which run of each it is.
    inputs, widths, lengths: of the pass and of the module, as `usual_order.Sizes` has them.
    writes: whether it is in the decoder of a model that has an encoder too.
    names_tokens: whether ids among the inputs name its tokens.
    """

    observed: Observed
    evidence: Evidence
    name: str
    layer: int | None
    number: int
    where: tuple[tuple[str, int], ...]
    pass_index: int
    inputs: Inputs
    widths: set[int]
    lengths: set[int]
    writes: bool
    names_tokens: bool


class Arranged(NamedTuple):
    """A call with its axes in order.

    weights: gives the map (S, H, N, M) of a tape, of a call by hand.
    first, of_texts: the number of its first text, of how many, where it is of some texts alone.
    """

    observed: Observed
    evidence: Evidence
    layout: Layout
    texts: int
    parts: int
    weights: Callable[[], Tensor] | None = None
    first: int = 0
    of_texts: int = 0


def arranged(seen: Seen, axes: Mapping[str, str]) -> Arranged:
    """A call with its axes in order: as it tells them, as the user does, or as is usual.

    Raises:
        ArgumentError: they fit no rule.
        TypeError: a softmax of no product of queries and keys that is over no axis of tokens.
    """
    observed = seen.observed
    texts, other = seen.inputs.texts(observed.query.shape[-2])
    texts = observed.texts or texts
    if observed.axes == AXES:
        B = len(observed.query)
        count = texts if texts and B % texts == 0 else B
        return Arranged(observed, seen.evidence, TOLD, count, max(1, B // max(1, count)))
    cells = cells_of_call(observed)
    pattern = pattern_for(axes, seen.name) or observed.axes
    if pattern:
        order, layout = told_order(pattern, cells, texts), TOLD
        if texts is not None and order.count(TEXTS) not in (1, texts):
            why = f"axes= give {order.count(TEXTS)} texts, and the inputs {texts}"
            layout = Layout("guessed", why)
        return in_order(seen, cells, order, layout)
    order, layout = _usual(cells, Sizes(texts, other, seen.widths, seen.lengths))
    if observed.meeting is not None and not observed.meeting.has_product:
        layout = _of_weights_alone(order, layout, seen.lengths)
    return in_order(seen, cells, order, layout)


def _usual(cells: Cells, sizes: Sizes) -> tuple[Order, Layout]:
    """The usual order, of so many texts or else of so many others."""
    try:
        return usual_order(cells, sizes)
    except ArgumentError:
        if sizes.other_texts is not None:
            swapped = sizes._replace(texts=sizes.other_texts, other_texts=sizes.texts)
            with suppress(ArgumentError):
                return usual_order(cells, swapped)
        raise


def cells_of_call(observed: Observed) -> Cells:
    """The axes of a call that are to be named: those of a softmax by hand, or of a kernel."""
    if observed.meeting is not None:
        return cells_of(observed.meeting)
    B, H, N, M = observed.shape
    kinds = [BATCH if size > 1 else ONE for size in (B, H)] + [QUERIES if N > 1 else ONE, KEYS]
    first = torch.arange(B * H, device="cpu").view(B, H, 1, 1)
    queries = first * N + torch.arange(N, device="cpu")[:, None]
    keys = first * M + torch.arange(M, device="cpu")
    key = _of_each_head(observed.key, H)
    query, key = (rows.reshape(-1, rows.shape[-1]) for rows in (observed.query, key))
    return Cells(kinds, (B, H, N, M), queries, keys, query, key)


def in_order(seen: Seen, cells: Cells, order: Order, layout: Layout) -> Arranged:
    """A call with the axes that an order gives."""
    texts, parts = order.count(TEXTS), order.count(PARTS)
    observed, evidence = seen.observed, seen.evidence
    if (meeting := observed.meeting) is not None:
        made = tape_inputs.read(observed, meeting, cells, order.arranged)
        if observed.value is not None:
            value = tape_inputs.values_of(observed.value, meeting, cells, order.arranged)
            made.value = value.expand(len(made.query), *value.shape[1:])
        weights = functools.partial(tape_inputs.replayed, meeting, order.arranged)
        return Arranged(made, evidence, layout, texts, parts, weights)
    shape = (texts * parts, *(order.count(role) for role in (HEADS, QUERIES, KEYS)))
    if shape != observed.shape or not order.is_in_order:
        observed, evidence = _moved(observed, evidence, cells, order)
    return Arranged(observed, evidence, layout, texts, parts)


def _moved(
    observed: Observed, evidence: Evidence, cells: Cells, order: Order
) -> tuple[Observed, Evidence]:
    """A kernel's call with its axes in another order."""
    H, N = observed.shape[1:3]

    def rows(table: Tensor, places: Tensor) -> Tensor:
        """The rows of a table (B, H, n, …) at places that count them all."""
        return table.flatten(0, 2)[places.to(table.device)]

    of_queries = order.arranged(cells.queries)[..., 0]
    of_keys = order.arranged(cells.keys)[:, :, 0].expand(len(of_queries), -1, -1)

    def columns(table: Tensor) -> Tensor:
        return rows(_of_each_head(table, H), of_keys)

    def whole(table: Tensor) -> Tensor:
        return order.arranged(table.reshape(*[1] * (4 - table.ndim), *table.shape))

    mask = observed.mask
    if isinstance(mask, Mask):
        mask = mask.crop(observed.shape, device=observed.query.device)
    moved = replace(
        observed,
        query=rows(observed.query, of_queries),
        key=columns(observed.key),
        value=None if observed.value is None else columns(observed.value),
        mask=whole(mask) if isinstance(mask, Tensor) else mask,
        bias=None if observed.bias is None else whole(observed.bias),
    )
    if evidence.values is None or evidence.outputs is None or moved.shape[2] != N:
        why = evidence.why or "its kernel has other axes than its map"
        return moved, replace(evidence, why=why, values=None, outputs=None, sums=None)
    heads = order.arranged(cells.queries[:, :, :1])[:, :, 0, 0] // N  # the kernel's, of each head
    outputs = evidence.outputs.flatten(0, 1)[heads.to(evidence.outputs.device)]
    values, sums = columns(evidence.values), evidence.sums
    sums = None if sums is None else rows(sums, of_queries)
    return moved, replace(evidence, values=values, outputs=outputs, sums=sums)


def _of_each_head(table: Tensor, heads: int) -> Tensor:
    """A table (B, G, …) that groups of heads share, with one for each head."""
    group = heads // table.shape[1]
    return table if group == 1 else table.repeat_interleave(group, dim=1)


def _of_weights_alone(order: Order, layout: Layout, lengths: set[int]) -> Layout:
    """The layout of weights of a softmax of no product of queries and keys."""
    N, M = order.count(QUERIES), order.count(KEYS)
    if M not in lengths or (N > 1 and N not in lengths):
        raise TypeError("a softmax of no product of queries and keys, and over no axis of tokens")
    return Layout("guessed", layout.why or "no queries and keys were seen that made its scores")
