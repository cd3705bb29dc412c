"""The passes of a generation stitched into one call per layer: all tokens × all earlier keys.

A model that generates calls attention once for the prompt and once for each new token. Its cache
grows (dynamic), has its full length from the start (static), or drops old keys (sliding). Stitching
puts the keys of all passes in their positions. A token that no query may attend to is padding and
is left out. Some stitched rows are compared with the rows of their passes. Only a position bias
(T5), and a mask that is neither causal nor a window, take N × M memory. T tokens, H query heads.
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

ROWS = 256  # rows of a mask that are processed at once


class Placement(NamedTuple):
    """The positions of a pass's queries and keys in the stitched call, without padding.

    rows, columns: indices of its real queries and keys. queries, keys: their stitched positions.
    """

    rows: Tensor
    columns: Tensor
    queries: Tensor
    keys: Tensor


class Plan(NamedTuple):
    """How the passes of a layer are stitched; layers with the same real tokens share it.

    shape: the numbers of queries and keys. is_cross: whether it is cross-attention.
    """

    placements: list[Placement]
    mask: Mask | None
    shape: tuple[int, int]
    is_cross: bool = False


def stitched(captures: list[Capture], sequence: int) -> list[Call]:
    """Return the generation as one call for each attention module, in the order of execution.

    Cross-attention becomes all target tokens × the source. Bidirectional self-attention, as in an
    encoder, is left out.

    Raises:
        RunError: no generation, passes that do not follow each other, or stitched rows that differ
            from those of their passes.
    """
    modules: dict[str, list[Capture]] = {}
    for capture in captures:
        if capture.has(sequence):
            modules.setdefault(capture.name, []).append(capture)
    layers = list(modules.values())
    plans: dict[tuple, Plan] = {}
    calls = []
    generates = any(continues(capture) for passes in layers for capture in passes)
    for passes in layers:
        is_cross = generates and all(capture.kind == "cross" for capture in passes)
        if not is_cross and not any(map(continues, passes)):
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


def continues(capture: Capture) -> bool:
    """Return whether a call can be part of a generation."""
    return capture.kind == "causal" or (capture.kind == "self" and capture.query.shape[2] == 1)


def _plan(passes: list[Capture], sequence: int) -> Plan:
    slots, tokens = _slots(passes), [capture.real(sequence) for capture in passes]
    attended = torch.zeros(max(keys.stop for _, keys in slots), dtype=torch.bool, device="cpu")
    for capture, real, (queries, keys) in zip(passes, tokens, slots, strict=True):
        for _, allowed in allowed_rows(capture, sequence):
            attended[keys.start + real.keys] |= allowed.any(dim=(0, 1)).cpu()
        # the last attended key must belong to a query: later slots of a cache are empty
        last = int(attended.nonzero().max()) if bool(attended.any()) else queries.start
        restarts = queries.start > 0 and len(keys) <= len(queries)
        attended_in_pass = int(attended[queries.start : queries.stop].sum())
        attended_and_real = int(attended[queries.start + real.queries].sum())
        if restarts or last not in queries or attended_and_real != attended_in_pass:
            raise no_continuation(capture, sequence)
    positions = attended.cumsum(0) - 1
    placements = []
    for real, (queries, keys) in zip(tokens, slots, strict=True):
        of_queries, of_keys = queries.start + real.queries, keys.start + real.keys
        rows, columns = attended[of_queries].nonzero()[:, 0], attended[of_keys].nonzero()[:, 0]
        of_queries, of_keys = positions[of_queries[rows]], positions[of_keys[columns]]
        placements.append(Placement(rows, columns, of_queries, of_keys))
    total = int(attended.sum())
    return Plan(placements, _mask(passes, placements, total, sequence), (total, total))


def _plan_of_cross(passes: list[Capture], sequence: int) -> Plan:
    """Plan cross-attention: all passes have the same keys; keys that no query attends to go."""
    placements, total, first = [], 0, passes[0].real(sequence)
    tables = [table for capture in passes for _, table in allowed_rows(capture, sequence)]
    if any(not torch.equal(capture.real(sequence).keys, first.keys) for capture in passes):
        raise no_continuation(passes[-1], sequence)
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
    """Return the positions of each pass's queries and keys among all tokens, with padding."""
    slots, end = [], 0
    for capture in passes:
        first_query, M = end, capture.key.shape[2]
        end += capture.query.shape[2]
        start = max(0, end - M)  # above 0 for a sliding cache, which contains the last keys
        slots.append((range(first_query, end), range(start, start + M)))
    return slots


def allowed_rows(capture: Capture, sequence: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield the mask of a pass's real queries and keys, (1 or H, n, m), in runs of rows."""
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
    first, device = passes[0], passes[0].query.device  # with a budget, later ones are on the CPU
    inputs = [capture.inputs(sequence).on(device) for capture in passes]
    values = [value.to(device) for each in passes if (value := each.values(sequence)) is not None]
    pairs = zip(inputs, plan.placements, strict=True)
    query = torch.cat([take_rows(each.query, placement.rows) for each, placement in pairs], dim=1)
    stitched = AttentionInputs(
        query, _keys([each.key for each in inputs], passes, plan, sequence),
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
    """Stitch the keys or values of all passes, (G, T, d); each pass repeats the earlier ones."""
    stitched = tables[0].new_zeros(len(tables[0]), plan.shape[1], tables[0].shape[2])
    end = 0
    for capture, table, placement in zip(passes, tables, plan.placements, strict=True):
        rows, repeated = take_rows(table, placement.columns), int((placement.keys < end).sum())
        if not torch.equal(rows[:, :repeated], take_rows(stitched, placement.keys[:repeated])):
            raise no_continuation(capture, sequence)
        stitched[:, placement.keys[repeated:]] = rows[:, repeated:]
        end = plan.shape[1] if plan.is_cross else end + len(placement.queries)
    return stitched


def _bias(inputs: list[AttentionInputs], plan: Plan) -> Tensor | None:
    """Stitch the biases, (H, T, T); None if no pass has one."""
    stitched = None
    for each, placement in zip(inputs, plan.placements, strict=True):
        if each.bias is not None:
            if stitched is None:
                stitched = each.bias.new_zeros(each.shape[0], *plan.shape)
            bias = each.bias.expand(each.shape)[:, placement.rows][:, :, placement.columns]
            stitched[:, placement.queries[:, None], placement.keys] = bias
    return stitched


def _sinks(inputs: list[AttentionInputs], plan: Plan) -> Tensor | None:
    """Stitch the sinks, (H,), or (H, T) if they differ from query to query."""
    first = next((each.sinks for each in inputs if each.sinks is not None), None)
    if first is None or first.ndim == 1:
        return first
    stitched = first.new_full((len(first), plan.shape[0]), -torch.inf)
    for each, placement in zip(inputs, plan.placements, strict=True):
        if each.sinks is not None:
            stitched[:, placement.queries] = each.sinks[:, placement.rows]
    return stitched


def _row_sums(passes: list[Capture], plan: Plan, query: Tensor, sequence: int) -> RowSums:
    """Stitch the log-sum-exps of the rows, NaN where a pass has none."""
    table = unknown(query)
    for capture, placement in zip(passes, plan.placements, strict=True):
        sums = capture.row_sums(sequence)
        table[:, placement.queries] = sums.table[:, sums.queries[placement.rows]].to(table)
    return RowSums(table, torch.arange(plan.shape[0], device="cpu"))


def _query_ids(passes: list[Capture], plan: Plan, sequence: int) -> Tensor | None:
    """Stitch the ids of all queries, (T,); None unless each pass has the ids of its queries."""
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
    sampled = sampled_rows(plan.shape[0])
    for each, placement in zip(inputs, plan.placements, strict=True):
        is_sampled = torch.isin(placement.queries, sampled)
        if not bool(is_sampled.any()):
            continue
        rows = weights(each, queries=placement.rows[is_sampled])[:, :, placement.columns]
        difference = weights(stitched, queries=placement.queries[is_sampled])
        difference[:, :, placement.keys] -= rows
        worst = float(difference.abs().nan_to_num(nan=math.inf).max())
        if not worst <= (most := tolerance_of(torch.float32, stitched.query.device)):
            raise RunError(
                f"{name} cannot be stitched: its rows differ from their passes by {worst:.1e}",
                expected=f"at most {most:.0e}",
                cause="a scale, a softcap or a sink that changes from pass to pass",
                remedy="use the passes one by one: `for call in recording`",
            )


def no_continuation(capture: Capture, sequence: int) -> RunError:
    """Return the error for a pass that does not continue the pass before it."""
    return RunError(
        f"pass {capture.pass_index} of {capture.name} does not continue the pass before it, in "
        f"sequence {sequence}",
        expected="all passes of one generation, each with the keys of the earlier passes",
        cause="two generations in one recording, every n-th pass only, a cache that was filled "
        "before, no cache (then the last pass has the full map), or beam search, which changes to "
        "another beam",
        remedy="record one generation, greedy or sampled, in its own `with` block",
    )


def error_of(check: Check) -> float:
    """Return the error of a check; infinity if it is unknown."""
    return math.inf if math.isnan(check.worst) else check.worst
