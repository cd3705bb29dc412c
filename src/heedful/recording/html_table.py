"""Calls as an HTML table for notebooks, with a small picture of each head.

Time and size are bounded: at most 64 calls are listed, and of a long map only some rows are drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.ops.indexing import evenly_spaced
from heedful.recording.call import Call
from heedful.recording.proof import layout_warnings
from heedful.recording.segment_table import CELL, QUIET, TABLE

ROWS = 64  # the maximum number of calls in a table
SCORES = 1 << 27  # the maximum number of scores computed for a table
SIDES = ((16, 80), (64, 48), (256, 32), (4096, 16))  # (maximum number of heads, side of a picture)
TOKENS = 60  # the maximum number of tokens that are printed
WEIGHTS_AT_ONCE = 1 << 24  # for more weights, heads are computed separately
COLUMNS = ("", "module", "attention", "heads, queries × keys", "proof", "layout", "heads")


def html(calls: Sequence[Call], title: str, expression: str, notes: Sequence[str] = ()) -> str:
    """Return the calls on a text as a table; `expression` is Python code for the first call."""
    listed = calls[:ROWS]
    heads = sum(call.shape[0] for call in listed)
    side = next((side for limit, side in SIDES if heads <= limit), 0)  # 0 if there are too many
    budget, remarks = SCORES, [*notes, *layout_warnings(listed)]
    rows, missing, sampled = [], 0, False
    for i, call in enumerate(listed):
        cost = call.shape[0] * min(call.shape[1], side) * call.shape[2]
        picture = ""
        if side and 0 < cost <= budget and call.proof != "refuted":
            budget -= cost
            picture = _picture(call, side)
            sampled = sampled or max(call.shape[1:]) > side
        elif call.proof != "refuted" and cost:
            missing += 1
        rows.append(_row(i, call, picture))
    remarks.append("in a picture, rows are queries and columns keys; colour is the square root of "
                "the weight, from 0 (dark) to 1 (yellow); grey is masked")  # fmt: skip
    if sampled:
        remarks.append(f"of a map with a side above {side}, the picture has at most {side} "
                    "queries; each cell is the largest weight of neighbouring keys")  # fmt: skip
    if missing:
        remarks.append(f"{_count(missing, 'call')} without a picture, which would take long: "
                    f"{expression}.plot(heads=0) draws one head")  # fmt: skip
    if len(calls) > len(listed):
        more = _count(len(calls) - len(listed), "call")
        remarks.append(f"{more} more: iterate over the recording, or use an index: {expression}")
    if find_spec("anywidget") is None:
        remarks.append("for a page that shows every weight: pip install 'heedful[notebook]'")
    token_lists = (call.key_tokens for call in calls if call.key_picture is None)
    tokens = next(filter(None, token_lists), None)
    head = "".join(f'<th style="{CELL}">{word}</th>' for word in COLUMNS)
    return (
        f"<div><div><b>{escape(title)}</b></div>"
        + (f'<div style="{QUIET}">{_token_line(tokens)}</div>' if tokens else "")
        + f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        + "</table>"
        + "".join(f'<div style="{QUIET}">{escape(line)}</div>' for line in remarks)
        + "</div>"
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _row(i: int, call: Call, picture: str) -> str:
    (H, N, M), why = call.shape, escape(call.why)
    kind = escape(call.kind) + (f", pass {call.pass_index}" if call.pass_index else "")
    certainty = [f'<span title="{why}">{word}</span>' for word in (call.proof, call.layout)]
    cells = (str(i), escape(call.name), kind, f"{H:,}, {N:,} × {M:,}", *certainty, picture)
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _token_line(tokens: Sequence[str]) -> str:
    """Return the first tokens, each in a frame, and the number of further tokens."""
    frame = "border:1px solid #d0d7de;border-radius:3px;padding:0 2px;margin-right:1px"
    words = "".join(f'<span style="{frame}">{escape(token)}</span>' for token in tokens[:TOKENS])
    more = len(tokens) - TOKENS
    return words + (f" and {_count(more, 'token')} more" if more > 0 else "")


def _picture(call: Call, side: int) -> str:
    from heedful.pictures.thumbnails import strip

    try:
        address, width, height = strip(_reduced_maps(call, side), side)
    except RunError as error:  # the call was refuted when its rows were computed
        return escape(str(error))
    heads = call.heads
    is_run = len(heads) > 1 and heads == list(range(heads[0], heads[-1] + 1))
    numbers = f"{heads[0]} to {heads[-1]}" if is_run else ", ".join(map(str, heads))
    label = f"head{'' if len(heads) == 1 else 's'} {numbers}"
    return (
        f'<img src="{address}" width="{width}" height="{height}" alt="{label}" title="{label}" '
        'style="image-rendering:pixelated;max-width:none;margin:0">'
    )


def _reduced_maps(call: Call, side: int) -> list[np.ma.MaskedArray]:
    """Return the map of each head with at most `side` rows and columns.

    Queries are sampled evenly. Neighbouring keys are pooled to their largest weight.
    """
    H, N, M = call.shape
    rows = evenly_spaced(N, side).tolist()
    size = -(-M // side)
    if H * len(rows) * M <= WEIGHTS_AT_ONCE:
        weights = _pool(call.weights(queries=rows), size)
    else:
        weights = torch.stack([_pool(call.weights(head, rows), size) for head in call.heads])
    weights = weights.float().cpu()
    masked = np.zeros((1, *weights.shape[1:]), bool)
    if call.causes.mask is not None:
        table = call.causes.mask.crop(call.shape, rows, device=call.causes.query.device)
        table = (table if table.ndim == 3 else table[None]).cpu()
        masked = ~_pool(table.to(torch.uint8), size).bool().numpy()
    tables = zip(weights.numpy(), np.broadcast_to(masked, weights.shape), strict=True)
    return [np.ma.masked_array(table, mask) for table, mask in tables]


def _pool(weights: Tensor, size: int) -> Tensor:
    """Return the largest weight of every `size` neighbours along the last axis."""
    if size == 1:
        return weights
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % size))
    return padded.unflatten(-1, (-1, size)).amax(dim=-1)
