"""Puts the passes of a generation together: every token × all keys up to it, for each layer.

A model that generates calls attention once for the prompt and once for each new token, with a
cache that grows with them, was made at full length beforehand (static) or forgets old keys
(sliding). The keys of all passes are put in their places again. A token that no query may see is
padding, and is left out. Rows of the whole are compared with the same rows of their own passes.
Only a bias of positions (T5), and a mask that is neither causal nor a window, are put together as a
whole map. T tokens in all, H query heads.
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
from heedful.recording.evidence import sampled
from heedful.recording.proof import LAYOUTS
from heedful.recording.real_tokens import take
from heedful.recording.row_sums import RowSums, unknown
from heedful.recording.tolerance import tolerance_of

ROWS = 256  # how many rows of a mask are looked at in one go


class Part(NamedTuple):
    """Where the queries and keys of a pass stand in the whole, without padding.

    rows, columns: which of its real queries and keys. queries, keys: their places in the whole.
    """

    rows: Tensor
    columns: Tensor
    queries: Tensor
    keys: Tensor


class Together(NamedTuple):
    """How the passes of a layer go together; layers of the same real tokens share it.

    shape: how many queries and keys the whole has. crosses: whether these are of two texts.
    """

    parts: list[Part]
    mask: Mask | None
    shape: tuple[int, int]
    crosses: bool = False


def stitched(captures: list[Capture], sequence: int) -> list[Call]:
    """The generation as one call for each module that attends, in the order in which they ran.

    Of cross-attention, all tokens that were written × those of the source. What sees both ways, as
    an encoder's layers do, is left out.

    Raises:
        RunError: nothing that was generated, passes that do not follow each other, or a map whose
            rows are not those of its passes.
    """
    modules: dict[str, list[Capture]] = {}
    for capture in captures:
        if capture.has(sequence):
            modules.setdefault(capture.name, []).append(capture)
    layers = list(modules.values())
    plans: dict[tuple, Together] = {}
    calls = []
    generates = any(goes_on(capture) for passes in layers for capture in passes)
    for passes in layers:
        crosses = generates and all(capture.kind == "cross" for capture in passes)
        if not crosses and not any(map(goes_on, passes)):
            continue
        alike = tuple(
            (id(of.tokens), of.first, of.query.shape[2], of.key.shape[2]) for of in passes
        )
        if alike not in plans:
            plans[alike] = (_plan_of_cross if crosses else _plan)(passes, sequence)
        calls.append(_layer(passes, plans[alike], sequence))
    if not calls:
        raise RunError(
            "no pass of causal self-attention was recorded",
            expected="a generation inside the `with` block",
        )
    return calls


def goes_on(capture: Capture) -> bool:
    """Whether a call is of a text that is continued."""
    return capture.kind == "causal" or (capture.kind == "self" and capture.query.shape[2] == 1)


def _plan(passes: list[Capture], sequence: int) -> Together:
    slots, tokens = _slots(passes), [capture.real(sequence) for capture in passes]
    seen = torch.zeros(max(keys.stop for _, keys in slots), dtype=torch.bool, device="cpu")
    for capture, real, (queries, keys) in zip(passes, tokens, slots, strict=True):
        for _, allowed in allowed_rows(capture, sequence):
            seen[keys.start + real.keys] |= allowed.any(dim=(0, 1)).cpu()
        # the last key that is seen is that of a query: what a cache has after it is empty
        last = int(seen.nonzero().max()) if bool(seen.any()) else queries.start
        begins_anew = queries.start > 0 and len(keys) <= len(queries)
        seen_of_pass = int(seen[queries.start : queries.stop].sum())
        seen_and_real = int(seen[queries.start + real.queries].sum())
        if begins_anew or last not in queries or seen_and_real != seen_of_pass:
            raise broken(capture, sequence)
    places = seen.cumsum(0) - 1
    parts = []
    for real, (queries, keys) in zip(tokens, slots, strict=True):
        of_queries, of_keys = queries.start + real.queries, keys.start + real.keys
        rows, columns = seen[of_queries].nonzero()[:, 0], seen[of_keys].nonzero()[:, 0]
        parts.append(Part(rows, columns, places[of_queries[rows]], places[of_keys[columns]]))
    total = int(seen.sum())
    return Together(parts, _mask(passes, parts, total, sequence), (total, total))


def _plan_of_cross(passes: list[Capture], sequence: int) -> Together:
    """Queries of all passes, each with the same keys; those that no query sees are padding."""
    parts, done, first = [], 0, passes[0].real(sequence)
    tables = [table for capture in passes for _, table in allowed_rows(capture, sequence)]
    if any(not torch.equal(capture.real(sequence).keys, first.keys) for capture in passes):
        raise broken(passes[-1], sequence)
    seen = torch.stack([table.any(dim=(0, 1)) for table in tables]).any(dim=0).cpu()
    columns = seen.nonzero()[:, 0]
    for capture in passes:
        rows = torch.arange(len(capture.real(sequence).queries), device="cpu")
        parts.append(Part(rows, columns, done + rows, torch.arange(len(columns), device="cpu")))
        done += len(rows)
    heads = max(map(len, tables))
    allowed = torch.cat([table.expand(heads, -1, -1) for table in tables], dim=1)[:, :, columns]
    mask = None if bool(allowed.all()) else Packed.of(allowed)
    return Together(parts, mask, (done, len(columns)), crosses=True)


def _slots(passes: list[Capture]) -> list[tuple[range, range]]:
    """For each pass, the places of its queries and of its keys among all tokens with padding."""
    slots, done = [], 0
    for capture in passes:
        before, held = done, capture.key.shape[2]
        done += capture.query.shape[2]
        start = max(0, done - held)  # above 0 where a cache forgets: it holds the last keys
        slots.append((range(before, done), range(start, start + held)))
    return slots


def allowed_rows(capture: Capture, sequence: int) -> Iterator[tuple[slice, Tensor]]:
    """Which of its real keys some rows of a pass may see, (1 or H, n, m), in runs of rows."""
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


def _mask(passes: list[Capture], parts: list[Part], total: int, sequence: int) -> Mask:
    """The mask of the whole: causal or of a window if every row of every pass is; else bits."""

    def tables() -> Iterator[tuple[Tensor, Tensor]]:
        for capture, part in zip(passes, parts, strict=True):
            for rows, allowed in allowed_rows(capture, sequence):
                here = (part.rows >= rows.start) & (part.rows < rows.stop)
                allowed = allowed[:, part.rows[here] - rows.start]
                table = allowed.new_zeros(*allowed.shape[:2], total)
                table[:, :, part.keys] = allowed[:, :, part.columns]
                yield part.queries[here], table

    def is_it(guess: Mask) -> bool:
        return all(
            bool((guess.crop((total, total), queries, device=table.device) == table).all())
            for queries, table in tables()
        )

    guesses: list[Mask] = [Causal()]
    if total:
        *_, (_, last) = tables()
        guesses.append(Causal() & Window(total - int(last[0, -1].int().argmax())))
    for guess in guesses:
        if is_it(guess):
            return guess
    bits = [Packed.of(table).bits for _, table in tables()]
    heads = max(map(len, bits))
    return Packed(torch.cat([run.expand(heads, -1, -1) for run in bits], dim=1), total)


def _layer(passes: list[Capture], plan: Together, sequence: int) -> Call:
    for capture in passes:
        capture.intact()
    first, device = passes[0], passes[0].query.device  # of a budget, later ones are on the CPU
    causes = [capture.causes(sequence).on(device) for capture in passes]
    values = [value.to(device) for of in passes if (value := of.values(sequence)) is not None]
    queries = [take(of.query, part.rows) for of, part in zip(causes, plan.parts, strict=True)]
    together = AttentionInputs(
        torch.cat(queries, dim=1), _keys([of.key for of in causes], passes, plan, sequence),
        causes[0].scale, plan.mask, _bias(causes, plan), causes[0].softcap, _sinks(causes, plan),
    )  # fmt: skip
    _compare(together, causes, plan, first.name)
    query_ids = ids = _query_ids(passes, plan, sequence)
    if plan.crosses:  # the keys are those of every pass
        ids = first.key_ids(sequence)
        ids = None if ids is None else ids[plan.parts[0].columns]
    faults = (of.against.get(of.row(sequence), "") for of in passes)
    against = next(filter(None, faults), "")
    return Call(
        first.name, first.layer, first.pass_index, "cross" if plan.crosses else "causal", together,
        max((capture.check for capture in passes), key=worst_of), index=first.index,
        layout_of_axes=max((of.layout for of in passes), key=lambda of: LAYOUTS.index(of.word)),
        sums=_row_sums(passes, plan, together.query, sequence),
        refutations={0: against} if against else {},
        value=_keys(values, passes, plan, sequence) if values else None,
        ids=ids, query_ids=query_ids, door=first.door, chosen=first.heads,
    )  # fmt: skip


def _keys(tables: list[Tensor], passes: list[Capture], plan: Together, sequence: int) -> Tensor:
    """Keys or values of all passes, (G, T, d), though each pass has those of the passes before."""
    whole = tables[0].new_zeros(len(tables[0]), plan.shape[1], tables[0].shape[2])
    done = 0
    for capture, table, part in zip(passes, tables, plan.parts, strict=True):
        held, known = take(table, part.columns), int((part.keys < done).sum())
        if not torch.equal(held[:, :known], take(whole, part.keys[:known])):
            raise broken(capture, sequence)
        whole[:, part.keys[known:]] = held[:, known:]
        done = plan.shape[1] if plan.crosses else done + len(part.queries)
    return whole


def _bias(causes: list[AttentionInputs], plan: Together) -> Tensor | None:
    """The bias of the whole, (H, T, T); None where no pass has one."""
    whole = None
    for of, part in zip(causes, plan.parts, strict=True):
        if of.bias is not None:
            whole = of.bias.new_zeros(of.shape[0], *plan.shape) if whole is None else whole
            bias = of.bias.expand(of.shape)[:, part.rows][:, :, part.columns]
            whole[:, part.queries[:, None], part.keys] = bias
    return whole


def _sinks(causes: list[AttentionInputs], plan: Together) -> Tensor | None:
    """The sinks of the whole, (H,), or (H, T) where each query has its own."""
    first = next((of.sinks for of in causes if of.sinks is not None), None)
    if first is None or first.ndim == 1:
        return first
    whole = first.new_full((len(first), plan.shape[0]), -torch.inf)
    for of, part in zip(causes, plan.parts, strict=True):
        if of.sinks is not None:
            whole[:, part.queries] = of.sinks[:, part.rows]
    return whole


def _row_sums(passes: list[Capture], plan: Together, query: Tensor, sequence: int) -> RowSums:
    """The log-sum-exp of each row, as far as it is known of the passes."""
    table = unknown(query)
    for capture, part in zip(passes, plan.parts, strict=True):
        known = capture.row_sums(sequence)
        table[:, part.queries] = known.table[:, known.queries[part.rows]].to(table)
    return RowSums(table, torch.arange(plan.shape[0], device="cpu"))


def _query_ids(passes: list[Capture], plan: Together, sequence: int) -> Tensor | None:
    """The ids of all queries, (T,); None unless each pass was given the ids of its own."""
    rows = []
    for capture, part in zip(passes, plan.parts, strict=True):
        ids = capture.ids_of_queries(sequence)
        if ids is None:
            return None
        rows.append(ids[part.rows])
    return torch.cat(rows)


def _compare(
    together: AttentionInputs, causes: list[AttentionInputs], plan: Together, name: str
) -> None:
    """Compare some rows of what was put together with the same rows of their own passes."""
    rows = sampled(plan.shape[0])
    for of, part in zip(causes, plan.parts, strict=True):
        here = torch.isin(part.queries, rows)
        if not bool(here.any()):
            continue
        off = weights(together, queries=part.queries[here])
        off[:, :, part.keys] -= weights(of, queries=part.rows[here])[:, :, part.columns]
        worst = float(off.abs().nan_to_num(nan=math.inf).max())
        if not worst <= (most := tolerance_of(torch.float32, together.query.device)):
            raise RunError(
                f"{name} was not put together truthfully: rows of the whole are {worst:.1e} away "
                "from those of their passes",
                expected=f"at most {most:.0e}",
                cause="a scale, a softcap or a sink that changes from pass to pass",
                remedy="look at the passes one by one: `for call in recording`",
            )


def broken(capture: Capture, sequence: int) -> RunError:
    """What is said of a pass that belongs to no generation, or to another one."""
    return RunError(
        f"pass {capture.pass_index} of {capture.name} does not go on from the one before it, in "
        f"sequence {sequence}",
        expected="all passes of one generation, each with the keys of those before",
        cause="two generations in one recording, every n-th pass only, a cache that was filled "
        "before, no cache (then the last pass has all of it), or beam search, which goes on from "
        "another beam",
        remedy="record one generation, greedy or sampled, in a `with` block of its own",
    )


def worst_of(check: Check) -> float:
    """By how much a check is off; without end where that is not known."""
    return math.inf if math.isnan(check.worst) else check.worst
