"""Stitching: the passes of a generation as one call per layer, all tokens × all earlier keys.

A generation has one pass for the prompt, and one for each new token. The model's cache grows
(dynamic), has its full length from the start (static), or drops old keys (sliding). Stitching
moves the keys of all passes to their positions in the text, and omits tokens that no query may
attend to, because these are padding. Some stitched rows are compared with the rows of the passes.
Only a position bias (T5), or a mask that is neither causal nor a window, takes T × T memory, where
T is the number of tokens. H counts query heads, G key heads; `sequence` is the index of a text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.ops.inputs import AttentionInputs
from heedful.ops.map_region import weights
from heedful.ops.masks import Causal, Mask, Packed, Window
from heedful.recording.call import Call
from heedful.recording.capture import Capture
from heedful.recording.certificate import Check
from heedful.recording.evidence import sampled_rows
from heedful.recording.proof import LAYOUTS
from heedful.recording.row_sums import RowSums, unknown
from heedful.recording.tolerance import tolerance_of
from heedful.recording.unpadded import take_rows

ROWS = 256  # rows of a mask that are computed at once


class Placement(NamedTuple):
    """The positions of a pass's queries and keys in the stitched call, without padding.

    rows, columns: their indices in the pass. queries, keys: their indices in the stitched call.
    """

    rows: Tensor
    columns: Tensor
    queries: Tensor
    keys: Tensor


class Plan(NamedTuple):
    """The placements of a layer's passes; layers with the same `RealTokens` share a plan.

    mask: the stitched mask. shape: the numbers of stitched queries and keys.
    """

    placements: list[Placement]
    mask: Mask | None
    shape: tuple[int, int]
    is_cross: bool = False


def stitched(captures: list[Capture], sequence: int) -> list[Call]:
    """Return a generation as one call for each attention module, in the order of execution.

    Cross-attention becomes one map, all target tokens × the source. Encoders are omitted.

    Raises:
        RunError: no generation, a pass that does not continue the passes before it, or stitched
            rows that differ from those of their passes.
    """
    modules: dict[str, list[Capture]] = {}
    for capture in captures:
        if capture.has_sequence(sequence):
            modules.setdefault(capture.name, []).append(capture)
    layers = list(modules.values())
    plans: dict[tuple, Plan] = {}
    calls = []
    generates = any(can_continue(capture) for passes in layers for capture in passes)
    for passes in layers:
        is_cross = generates and all(capture.kind == "cross" for capture in passes)
        if not is_cross and not any(map(can_continue, passes)):
            continue
        key = tuple(
            (id(capture.tokens), capture.first, capture.query.shape[2], capture.key.shape[2])
            for capture in passes
        )
        if key not in plans:
            plans[key] = (_plan_of_cross if is_cross else _plan)(passes, sequence)
        calls.append(_stitch_layer(passes, plans[key], sequence))
    if not calls:
        raise RunError(
            "no pass of causal self-attention was recorded",
            expected="a generation inside the `with` block",
        )
    return calls


def can_continue(capture: Capture) -> bool:
    """Return whether a call fits a generation: it is causal, or self-attention of one query."""
    return capture.kind == "causal" or (capture.kind == "self" and capture.query.shape[2] == 1)


def _plan(passes: list[Capture], sequence: int) -> Plan:
    """Plan the passes of causal self-attention."""
    slots, tokens = _slots(passes), [capture.real(sequence) for capture in passes]
    attended = torch.zeros(max(keys.stop for _, keys in slots), dtype=torch.bool, device="cpu")
    for capture, real, (queries, keys) in zip(passes, tokens, slots, strict=True):
        for _, allowed in allowed_rows(capture, sequence):
            attended[keys.start + real.keys] |= allowed.any(dim=(0, 1)).cpu()
        # the last attended key must be of a query of this pass: later slots of a cache are empty
        last = int(attended.nonzero().max()) if bool(attended.any()) else queries.start
        restarts = queries.start > 0 and len(keys) <= len(queries)
        attended_in_pass = int(attended[queries.start : queries.stop].sum())
        attended_and_real = int(attended[queries.start + real.queries].sum())
        if restarts or last not in queries or attended_and_real != attended_in_pass:
            raise continuation_error(capture, sequence)
    positions = attended.cumsum(0) - 1
    placements = []
    for real, (queries, keys) in zip(tokens, slots, strict=True):
        query_slots, key_slots = queries.start + real.queries, keys.start + real.keys
        rows, columns = (attended[axis].nonzero()[:, 0] for axis in (query_slots, key_slots))
        indices = positions[query_slots[rows]], positions[key_slots[columns]]
        placements.append(Placement(rows, columns, *indices))
    total = int(attended.sum())
    return Plan(placements, _mask(passes, placements, total, sequence), (total, total))


def _plan_of_cross(passes: list[Capture], sequence: int) -> Plan:
    """Plan passes of cross-attention, which have the same keys; omit keys that all passes mask."""
    placements, total, first = [], 0, passes[0].real(sequence)
    tables = [table for capture in passes for _, table in allowed_rows(capture, sequence)]
    if any(not torch.equal(capture.real(sequence).keys, first.keys) for capture in passes):
        raise continuation_error(passes[-1], sequence)
    attended = torch.stack([table.any(dim=(0, 1)) for table in tables]).any(dim=0).cpu()
    columns = attended.nonzero()[:, 0]
    keys = torch.arange(len(columns), device="cpu")
    for capture in passes:
        rows = torch.arange(len(capture.real(sequence).queries), device="cpu")
        placements.append(Placement(rows, columns, total + rows, keys))
        total += len(rows)
    heads = max(map(len, tables))
    allowed = torch.cat([table.expand(heads, -1, -1) for table in tables], dim=1)[:, :, columns]
    mask = None if bool(allowed.all()) else Packed.of(allowed)
    return Plan(placements, mask, (total, len(columns)), is_cross=True)


def _slots(passes: list[Capture]) -> list[tuple[range, range]]:
    """Return the ranges of each pass's queries and keys among all tokens, padding included."""
    slots, end = [], 0
    for capture in passes:
        first_query, M = end, capture.key.shape[2]
        end += capture.query.shape[2]
        start = max(0, end - M)  # above 0 for a sliding cache, which contains only the last keys
        slots.append((range(first_query, end), range(start, start + M)))
    return slots


def allowed_rows(capture: Capture, sequence: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield slices of a pass's real queries, each with its mask on real keys, (1 or H, n, m)."""
    queries, keys, mask = capture.real(sequence)
    shape = (capture.query.shape[1], len(queries), len(keys))
    device = capture.query.device
    for start in range(0, len(queries), ROWS):
        rows = slice(start, min(start + ROWS, len(queries)))
        if mask is None:
            allowed = torch.ones(rows.stop - start, len(keys), dtype=torch.bool, device=device)
        else:
            allowed = mask.crop(shape, rows, device=device)
        yield rows, allowed if allowed.ndim == 3 else allowed[None]


def _mask(passes: list[Capture], placements: list[Placement], total: int, sequence: int) -> Mask:
    """Return a causal or window mask if all rows of all passes agree with it; else a bit mask."""

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        for capture, placement in zip(passes, placements, strict=True):
            for rows, allowed in allowed_rows(capture, sequence):
                in_run = (placement.rows >= rows.start) & (placement.rows < rows.stop)
                allowed = allowed[:, placement.rows[in_run] - rows.start]
                table = allowed.new_zeros(*allowed.shape[:2], total)
                table[:, :, placement.keys] = allowed[:, :, placement.columns]
                yield placement.queries[in_run], table

    def is_equal(guess: Mask) -> bool:
        return all(
            bool((guess.crop((total, total), queries, device=table.device) == table).all())
            for queries, table in tables()
        )

    guesses: list[Mask] = [Causal()]
    if total:
        *_, (_, last) = tables()
        guesses.append(Causal() & Window(total - int(last[0, -1].int().argmax())))
    for guess in guesses:
        if is_equal(guess):
            return guess
    bits = [Packed.of(table).bits for _, table in tables()]
    heads = max(map(len, bits))
    return Packed(torch.cat([run.expand(heads, -1, -1) for run in bits], dim=1), total)


def _stitch_layer(passes: list[Capture], plan: Plan, sequence: int) -> Call:
    for capture in passes:
        capture.check_file()
    first, device = passes[0], passes[0].query.device  # passes that exceed a budget are on the CPU
    inputs = [capture.inputs(sequence).on(device) for capture in passes]
    values = [x.to(device) for call in passes if (x := call.values(sequence)) is not None]
    pairs = zip(inputs, plan.placements, strict=True)
    query = torch.cat([take_rows(x.query, placement.rows) for x, placement in pairs], dim=1)
    stitched = AttentionInputs(
        query, _keys([x.key for x in inputs], passes, plan, sequence),
        inputs[0].scale, plan.mask, _bias(inputs, plan), inputs[0].softcap, _sinks(inputs, plan),
    )  # fmt: skip
    _compare(stitched, inputs, plan, first.name)
    query_ids = ids = _query_ids(passes, plan, sequence)
    if plan.is_cross:  # all passes have the same keys
        ids = first.key_ids(sequence)
        ids = None if ids is None else ids[plan.placements[0].columns]
    refutations = (capture.refutations.get(capture.row(sequence), "") for capture in passes)
    refutation = next(filter(None, refutations), "")
    layouts = (capture.layout for capture in passes)
    return Call(
        first.name, first.layer, first.pass_index, "cross" if plan.is_cross else "causal", stitched,
        max((capture.check for capture in passes), key=error_of), index=first.index,
        layout_of_axes=max(layouts, key=lambda layout: LAYOUTS.index(layout.word)),
        sums=_row_sums(passes, plan, stitched.query, sequence),
        refutations={0: refutation} if refutation else {},
        value=_keys(values, passes, plan, sequence) if values else None,
        ids=ids, query_ids=query_ids, door=first.door, chosen=first.heads,
    )  # fmt: skip


def _keys(tables: list[Tensor], passes: list[Capture], plan: Plan, sequence: int) -> Tensor:
    """Stitch all passes' keys or values, (G, T, d); check that later passes repeat them exactly."""
    stitched = tables[0].new_zeros(len(tables[0]), plan.shape[1], tables[0].shape[2])
    end = 0
    for capture, table, placement in zip(passes, tables, plan.placements, strict=True):
        rows, repeated = take_rows(table, placement.columns), int((placement.keys < end).sum())
        if not torch.equal(rows[:, :repeated], take_rows(stitched, placement.keys[:repeated])):
            raise continuation_error(capture, sequence)
        stitched[:, placement.keys[repeated:]] = rows[:, repeated:]
        end = plan.shape[1] if plan.is_cross else end + len(placement.queries)
    return stitched


def _bias(inputs: list[AttentionInputs], plan: Plan) -> Tensor | None:
    """Stitch the biases, (H, T, T); None if no pass has one."""
    stitched = None
    for x, placement in zip(inputs, plan.placements, strict=True):
        if x.bias is not None:
            if stitched is None:
                stitched = x.bias.new_zeros(x.shape[0], *plan.shape)
            bias = x.bias.expand(x.shape)[:, placement.rows][:, :, placement.columns]
            stitched[:, placement.queries[:, None], placement.keys] = bias
    return stitched


def _sinks(inputs: list[AttentionInputs], plan: Plan) -> Tensor | None:
    """Stitch the sinks, (H,), or (H, T) if they differ from query to query."""
    first = next((x.sinks for x in inputs if x.sinks is not None), None)
    if first is None or first.ndim == 1:
        return first
    stitched = first.new_full((len(first), plan.shape[0]), -torch.inf)
    for x, placement in zip(inputs, plan.placements, strict=True):
        if x.sinks is not None:
            stitched[:, placement.queries] = x.sinks[:, placement.rows]
    return stitched


def _row_sums(passes: list[Capture], plan: Plan, query: Tensor, sequence: int) -> RowSums:
    """Stitch the log-sum-exps of the rows, NaN where a pass has none."""
    table = unknown(query)
    for capture, placement in zip(passes, plan.placements, strict=True):
        sums = capture.row_sums(sequence)
        table[:, placement.queries] = sums.table[:, sums.queries[placement.rows]].to(table)
    return RowSums(table, torch.arange(plan.shape[0], device="cpu"))


def _query_ids(passes: list[Capture], plan: Plan, sequence: int) -> Tensor | None:
    """Stitch the ids of all queries, (T,); None if the ids of some pass are unknown."""
    rows = []
    for capture, placement in zip(passes, plan.placements, strict=True):
        ids = capture.ids_of_queries(sequence)
        if ids is None:
            return None
        rows.append(ids[placement.rows])
    return torch.cat(rows)


def _compare(
    stitched: AttentionInputs, inputs: list[AttentionInputs], plan: Plan, name: str
) -> None:
    """Compare sampled rows with the rows of the passes; raise a RunError if they differ."""
    sampled = sampled_rows(plan.shape[0])
    for x, placement in zip(inputs, plan.placements, strict=True):
        is_sampled = torch.isin(placement.queries, sampled)
        if not bool(is_sampled.any()):
            continue
        rows = weights(x, queries=placement.rows[is_sampled])[:, :, placement.columns]
        difference = weights(stitched, queries=placement.queries[is_sampled])
        difference[:, :, placement.keys] -= rows
        worst = float(difference.abs().nan_to_num(nan=math.inf).max())
        if not worst <= (tolerance := tolerance_of(torch.float32, stitched.query.device)):
            raise RunError(
                f"{name} cannot be stitched: rows differ from those of the passes by {worst:.1e}",
                expected=f"at most {tolerance:.0e}",
                cause="a scale, a softcap or a sink that changes from pass to pass",
                remedy="use the passes separately: `for call in recording`",
            )


def continuation_error(capture: Capture, sequence: int) -> RunError:
    """Return the error for a pass that does not continue the pass before it."""
    return RunError(
        f"pass {capture.pass_index} of {capture.name} does not continue the pass before it, in "
        f"text {sequence} of the batch",
        expected="all passes of one generation, each with the keys of the earlier passes",
        cause="two generations in one recording, a recording of every n-th pass, a cache filled "
        "before recording, no cache (the last pass has the full map), or beam search",
        remedy="record one generation, greedy or sampled, in its own `with` block",
    )


def error_of(check: Check) -> float:
    """Return the largest error of a check; infinity if nothing was compared."""
    return math.inf if math.isnan(check.worst) else check.worst
