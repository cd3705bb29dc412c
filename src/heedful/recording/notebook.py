"""How calls show themselves in a notebook: a table with a small picture of each head.

What that costs has an end, in time and in bytes: of a long map a few rows are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from heedful.errors import RunError
from heedful.ops.indexing import evenly
from heedful.recording.call import Call
from heedful.recording.proof import guesses
from heedful.recording.segment_table import CELL, QUIET, TABLE

ROWS = 64  # calls in a table
SCORES = 1 << 27  # computed for a table
SIDES = ((16, 80), (64, 48), (256, 32), (4096, 16))  # up to so many heads, the side in pixels
TOKENS = 60  # that are written out
AT_ONCE = 1 << 24  # weights
COLUMNS = ("", "module", "attention", "heads, queries × keys", "proof", "layout", "heads")


def html(calls: Sequence[Call], name: str, one: str, notes: Sequence[str] = ()) -> str:
    """Calls of a sequence as a table; `name` is what they are, `one` the Python that gives one."""
    shown = calls[:ROWS]
    heads = sum(call.shape[0] for call in shown)
    side = next((side for most, side in SIDES if heads <= most), 0)  # 0 where there are too many
    left, remarks = SCORES, [*notes, *guesses(shown)]
    rows, missing, sampled = [], 0, False
    for i, call in enumerate(shown):
        cost = call.shape[0] * min(call.shape[1], side) * call.shape[2]
        picture = ""
        if side and 0 < cost <= left and call.proof != "refuted":
            left -= cost
            picture = _picture(call, side)
            sampled = sampled or max(call.shape[1:]) > side
        elif call.proof != "refuted" and cost:
            missing += 1
        rows.append(_row(i, call, picture))
    remarks.append("a picture: queries down, keys across; the square root of the weight, 0 is dark "
                "and 1 yellow; grey is masked")  # fmt: skip
    if sampled:
        remarks.append(f"of a longer map {side} of the queries are shown, and in each cell the "
                    "largest weight of neighbouring keys")  # fmt: skip
    if missing:
        remarks.append(f"{_many(missing, 'call')} without a picture, which would take long: "
                    f"{one}.plot(heads=0) draws it")  # fmt: skip
    if len(calls) > len(shown):
        remarks.append(f"{_many(len(calls) - len(shown), 'call')} more: iterate, or take {one}")
    if find_spec("anywidget") is None:
        remarks.append("as a page in which every weight can be looked at: "
                    "pip install 'heedful[notebook]'")  # fmt: skip
    words = (call.key_tokens for call in calls if call.key_picture is None)
    tokens = next(filter(None, words), None)
    head = "".join(f'<th style="{CELL}">{word}</th>' for word in COLUMNS)
    return (
        f"<div><div><b>{escape(name)}</b></div>"
        + (f'<div style="{QUIET}">{_texts(tokens)}</div>' if tokens else "")
        + f'<table style="{TABLE}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody>'
        + "</table>"
        + "".join(f'<div style="{QUIET}">{escape(line)}</div>' for line in remarks)
        + "</div>"
    )


def _many(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _row(i: int, call: Call, picture: str) -> str:
    (H, N, M), why = call.shape, escape(call.why)
    kind = escape(call.kind) + (f", pass {call.pass_index}" if call.pass_index else "")
    known = [f'<span title="{why}">{word}</span>' for word in (call.proof, call.layout)]
    cells = (str(i), escape(call.name), kind, f"{H:,}, {N:,} × {M:,}", *known, picture)
    return "<tr>" + "".join(f'<td style="{CELL}">{cell}</td>' for cell in cells) + "</tr>"


def _texts(tokens: Sequence[str]) -> str:
    """The tokens, each in its frame, and how many more there are."""
    frame = "border:1px solid #d0d7de;border-radius:3px;padding:0 2px;margin-right:1px"
    words = "".join(f'<span style="{frame}">{escape(token)}</span>' for token in tokens[:TOKENS])
    more = len(tokens) - TOKENS
    return words + (f" and {_many(more, 'token')} more" if more > 0 else "")


def _picture(call: Call, side: int) -> str:
    """All heads of a call beside each other, as an image."""
    from heedful.pictures.thumbnails import strip

    try:
        address, width, height = strip(_small(call, side), side)
    except RunError as error:  # whole rows are compared when they are computed
        return escape(str(error))
    heads = call.heads
    is_run = len(heads) > 1 and heads == list(range(heads[0], heads[-1] + 1))
    numbers = f"{heads[0]} to {heads[-1]}" if is_run else ", ".join(map(str, heads))
    what = f"head{'' if len(heads) == 1 else 's'} {numbers}"
    return (
        f'<img src="{address}" width="{width}" height="{height}" alt="{what}" title="{what}" '
        'style="image-rendering:pixelated;max-width:none;margin:0">'
    )


def _small(call: Call, side: int) -> list[np.ma.MaskedArray]:
    """The map of each head with at most `side` rows and columns of cells.

    Of many queries every few are taken; of many keys a cell has the largest weight.
    """
    H, N, M = call.shape
    rows = evenly(N, side).tolist()
    size = -(-M // side)
    if H * len(rows) * M <= AT_ONCE:
        weights = _pooled(call.weights(queries=rows), size)
    else:
        weights = torch.stack([_pooled(call.weights(head, rows), size) for head in call.heads])
    weights = weights.float().cpu()
    hidden = np.zeros((1, *weights.shape[1:]), bool)
    if call.causes.mask is not None:
        table = call.causes.mask.crop(call.shape, rows, device=call.causes.query.device)
        table = (table if table.ndim == 3 else table[None]).cpu()
        hidden = ~_pooled(table.to(torch.uint8), size).bool().numpy()
    tables = zip(weights.numpy(), np.broadcast_to(hidden, weights.shape), strict=True)
    return [np.ma.masked_array(table, mask) for table, mask in tables]


def _pooled(weights: Tensor, size: int) -> Tensor:
    """The largest of each `size` neighbours along the last axis."""
    if size == 1:
        return weights
    padded = torch.nn.functional.pad(weights, (0, -weights.shape[-1] % size))
    return padded.unflatten(-1, (-1, size)).amax(dim=-1)
