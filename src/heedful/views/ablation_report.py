"""The results of `heedful ablate`, as tables and as a picture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from heedful.pictures import head_grid
from heedful.pictures.attention_map import around_zero
from heedful.pictures.page_layout import Block, Line
from heedful.recording import HeadTotals
from heedful.views.head_tables import MISSING, Row, scores_table
from heedful.views.terminal import plural, table

TITLES = {"delta": "Δ", "error": "±", "first_order": "Δ₁", "query": "query", "key": "key"}


def _delta(head: dict[str, Any]) -> float:
    """Return the first-order estimate of Δ, or else Δ."""
    return head["delta"] if head["first_order"] is None else head["first_order"]


def draw(data: dict[str, Any]) -> Figure:
    """Draw Δ of all heads, with a row for each module; `data` is what --json prints."""
    modules = list(dict.fromkeys(head["module"] for head in data["heads"]))
    columns = range(1 + max(head["head"] for head in data["heads"]))
    grid = np.ma.masked_all((len(modules), len(columns)))
    for head in data["heads"]:
        grid[modules.index(head["module"]), head["head"]] = _delta(head)
    layers = {head["module"]: str(head["layer"]) for head in data["heads"]}
    is_unique = len({*layers.values()}) == len(layers)  # else several modules of a layer attend
    names, axis = ([*layers.values()], "layer") if is_unique else (modules, "module")
    block = Block([Line("", [grid])], [""], names, [*map(str, columns)], (axis, "head"))
    name = data["metric"].rpartition(":")[2]
    title, scale = f"{name} without each head ({data['kind']})", around_zero([grid], f"Δ {name}")
    return head_grid.draw([block], scale=scale, title=title)


def show(screen: Console, data: dict[str, Any], totals: HeadTotals, count: int | None) -> None:
    """Print heads sorted by Δ with their scores, groups, and what the numbers mean."""
    groups = data["groups"]
    heads = sorted(data["heads"], key=_delta, reverse=True)
    largest = max(abs(_delta(head)) for head in heads) or 1.0
    digits = min(9, max(0, 2 - math.floor(math.log10(largest))))

    def cells(rows: list[dict[str, Any]], name: str) -> list[str]:
        numbers = [row.get(name) for row in rows]
        return [MISSING if n is None else f"{round(n, digits) + 0.0:.{digits}f}" for n in numbers]

    scored = {(head.name, head.head): Row(0, head) for head in totals.heads()}
    rows = [scored[head["module"], head["head"]] for head in heads]
    more = {title: cells(heads, name) for name, title in TITLES.items()}
    more = {title: column for title, column in more.items() if {*column} != {MISSING}}
    scores, hidden = scores_table(rows, count, None, screen.width, more)
    screen.print(scores)
    if groups:
        columns = [[group["name"] for group in groups]]
        columns += [cells(groups, name) for name in ("delta", "error", "sum")]
        titles = ("group", "Δ", "±", "sum of its heads")
        screen.print("", table(titles, zip(*columns, strict=True), range(1, 4)), sep="\n")
    name, plain = data["metric"].rpartition(":")[2], cells([data], "plain")[0]
    direction = "drop" if name == "logit-difference" else "increase"
    error = "; ± is the standard error over texts" * ("±" in more)
    lines = [
        f"Δ: {direction} of {name} ({plain} with all heads) without the head ({data['kind']}); "
        "positive: the model gets worse",
        f"over {plural(data['texts'], 'text')}, {plural(data['tokens'], 'token')} in "
        f"{plural(data['contexts'], 'context')}{error}",
        f"changed outputs: {', '.join(f'{n:,} {proof}' for proof, n in data['proofs'].items())}",
    ]
    if hidden:
        lines.append(f"columns that did not fit: {', '.join(hidden)}; widen the terminal")
    if "Δ₁" in more:
        correlation = "–" if data["correlation"] is None else f"{data['correlation']:.2f}"
        lines.append(f"Δ₁: first-order estimate; its rank correlation with Δ is {correlation}")
    screen.print("", *lines, sep="\n", style="dim", highlight=False)
