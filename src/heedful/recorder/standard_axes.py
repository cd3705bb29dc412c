"""Arranges the axes of a recorded call in the order (texts × parts, heads, queries, keys)."""

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
from heedful.recorder.axes.axes_notation import order_from_pattern, pattern_for
from heedful.recorder.axes.pass_inputs import Inputs
from heedful.recorder.axes.usual_order import HEADS, PARTS, TEXTS, Order, Sizes, usual_order
from heedful.recorder.doors import tape_inputs
from heedful.recorder.doors.tape_cells import BATCH, KEYS, ONE, QUERIES, Cells, cells_of
from heedful.recorder.observed_call import AXES, Observed
from heedful.recording.evidence import Evidence
from heedful.recording.proof import Layout

TOLD = Layout("told")


class PendingCall(NamedTuple):
    """A call as recorded in the forward pass, before its axes are arranged.

    observed: the call; tensors that the model may change are copied.
    evidence: rows of the output, for the check of the call.
    number: the index of the call among all calls of the model.
    runs: for each running module, outermost first, its name and the index of its call in the pass.
    inputs: the arguments of the pass. widths, lengths: see `usual_order.Sizes`.
    in_decoder, names_tokens: whether the call is in a decoder, and whether token ids may label it.
    """

    observed: Observed
    evidence: Evidence
    name: str
    layer: int | None
    number: int
    runs: tuple[tuple[str, int], ...]
    pass_index: int
    inputs: Inputs
    widths: set[int]
    lengths: set[int]
    in_decoder: bool
    names_tokens: bool


class ArrangedCall(NamedTuple):
    """A call with its axes in standard order.

    texts, parts: the number of texts, and of parts (such as windows) of each text.
    weights: a function that replays the map (S, H, N, M) of attention by hand; else None.
    first, of_texts: if the call has only some texts of the batch, the batch index of the first of
        them, and the number of texts in the batch; else 0.
    """

    observed: Observed
    evidence: Evidence
    layout: Layout
    texts: int
    parts: int
    weights: Callable[[], Tensor] | None = None
    first: int = 0
    of_texts: int = 0


def arrange(pending: PendingCall, axes: Mapping[str, str]) -> ArrangedCall:
    """Arrange the axes of a call as its door, the user (`axes`) or the usual order specifies.

    Raises:
        ArgumentError: the axes do not fit the pattern in `axes`, or fit no rule.
        TypeError: attention by hand that has no map of queries × keys.
    """
    observed = pending.observed
    texts, other_texts = pending.inputs.texts(observed.query.shape[-2])
    texts = observed.texts or texts
    if observed.axes == AXES:
        B = len(observed.query)
        count = texts if texts and B % texts == 0 else B
        return ArrangedCall(observed, pending.evidence, TOLD, count, max(1, B // max(1, count)))
    cells = cells_of_call(observed)
    pattern = pattern_for(axes, pending.name) or observed.axes
    if pattern:
        order, layout = order_from_pattern(pattern, cells, texts), TOLD
        if texts is not None and order.count(TEXTS) not in (1, texts):
            why = f"axes= implies {order.count(TEXTS)} texts, but the inputs have {texts}"
            layout = Layout("guessed", why)
        return in_order(pending, cells, order, layout)
    order, layout = _usual(cells, Sizes(texts, other_texts, pending.widths, pending.lengths))
    if observed.taped is not None and not observed.taped.has_product:
        layout = _layout_of_weights(order, layout, pending.lengths)
    return in_order(pending, cells, order, layout)


def _usual(cells: Cells, sizes: Sizes) -> tuple[Order, Layout]:
    """Return the usual order for `sizes.texts` or, if none fits, for `sizes.other_texts`."""
    try:
        return usual_order(cells, sizes)
    except ArgumentError:
        if sizes.other_texts is not None:
            swapped = sizes._replace(texts=sizes.other_texts, other_texts=sizes.texts)
            with suppress(ArgumentError):
                return usual_order(cells, swapped)
        raise


def cells_of_call(observed: Observed) -> Cells:
    """Return the cells of a call: the axes of its softmax or kernel, with roles still unknown."""
    if observed.taped is not None:
        return cells_of(observed.taped)
    B, H, N, M = observed.shape
    kinds = [BATCH if size > 1 else ONE for size in (B, H)] + [QUERIES if N > 1 else ONE, KEYS]
    first = torch.arange(B * H, device="cpu").view(B, H, 1, 1)
    queries = first * N + torch.arange(N, device="cpu")[:, None]
    keys = first * M + torch.arange(M, device="cpu")
    key = _per_query_head(observed.key, H)
    query, key = (rows.reshape(-1, rows.shape[-1]) for rows in (observed.query, key))
    return Cells(kinds, (B, H, N, M), queries, keys, query, key)


def in_order(pending: PendingCall, cells: Cells, order: Order, layout: Layout) -> ArrangedCall:
    """Arrange the axes of a call in the given order."""
    texts, parts = order.count(TEXTS), order.count(PARTS)
    observed, evidence = pending.observed, pending.evidence
    if (taped := observed.taped) is not None:
        inputs = tape_inputs.read_inputs(observed, taped, cells, order.arrange)
        if observed.value is not None:
            value = tape_inputs.values_of(observed.value, taped, cells, order.arrange)
            inputs.value = value.expand(len(inputs.query), *value.shape[1:])
        weights = functools.partial(tape_inputs.replayed_map, taped, order.arrange)
        return ArrangedCall(inputs, evidence, layout, texts, parts, weights)
    shape = (texts * parts, *(order.count(role) for role in (HEADS, QUERIES, KEYS)))
    if shape != observed.shape or not order.is_in_order:
        observed, evidence = _moved(observed, evidence, cells, order)
    return ArrangedCall(observed, evidence, layout, texts, parts)


def _moved(
    observed: Observed, evidence: Evidence, cells: Cells, order: Order
) -> tuple[Observed, Evidence]:
    """Permute the axes of a call of a fused kernel."""
    H, N = observed.shape[1:3]

    def rows(table: Tensor, index: Tensor) -> Tensor:
        """Select rows of a table (B, H, n, …) by their index in its flattened B × H × n rows."""
        return table.flatten(0, 2)[index.to(table.device)]

    query_rows = order.arrange(cells.queries)[..., 0]
    key_rows = order.arrange(cells.keys)[:, :, 0].expand(len(query_rows), -1, -1)

    def columns(table: Tensor) -> Tensor:
        return rows(_per_query_head(table, H), key_rows)

    def permuted(table: Tensor) -> Tensor:
        return order.arrange(table.reshape(*[1] * (4 - table.ndim), *table.shape))

    mask = observed.mask
    if isinstance(mask, Mask):
        mask = mask.crop(observed.shape, device=observed.query.device)
    moved = replace(
        observed, query=rows(observed.query, query_rows), key=columns(observed.key),
        value=None if observed.value is None else columns(observed.value),
        mask=permuted(mask) if isinstance(mask, Tensor) else mask,
        bias=None if observed.bias is None else permuted(observed.bias),
    )  # fmt: skip
    if evidence.values is None or evidence.outputs is None or moved.shape[2] != N:
        why = evidence.why or "the axes of its kernel are not those of its map"
        return moved, replace(evidence, why=why, values=None, outputs=None, sums=None)
    heads = order.arrange(cells.queries[:, :, :1])[:, :, 0, 0] // N  # index into B × H
    outputs = evidence.outputs.flatten(0, 1)[heads.to(evidence.outputs.device)]
    values, sums = columns(evidence.values), evidence.sums
    sums = None if sums is None else rows(sums, query_rows)
    return moved, replace(evidence, values=values, outputs=outputs, sums=sums)


def _per_query_head(table: Tensor, heads: int) -> Tensor:
    """Repeat a table (B, G, …) of key heads for the query heads that share them: (B, H, …)."""
    group = heads // table.shape[1]
    return table if group == 1 else table.repeat_interleave(group, dim=1)


def _layout_of_weights(order: Order, layout: Layout, lengths: set[int]) -> Layout:
    """Return the layout of a map without queries; raise `TypeError` if it is not over tokens."""
    N, M = order.count(QUERIES), order.count(KEYS)
    if M not in lengths or (N > 1 and N not in lengths):
        raise TypeError("a softmax without a product of queries and keys, and not over tokens")
    return Layout("guessed", layout.why or "its scores are not a product of queries and keys")
