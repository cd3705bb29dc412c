"""Maps of one shape side by side: sizes, labels, numbers and one shared colour bar.

Widths are in inches and letters in points (1/72 inch). A grid is at most `WIDTH` wide, so that
its letters keep their size on a page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, Normalize
from matplotlib.figure import Figure

from heedful.pictures import style
from heedful.pictures.labels import columns, drawable, shorten
from heedful.pictures.maps import Fit, depth, draw_labels, draw_map, fit
from heedful.pictures.names import names
from heedful.pictures.style import INK, LETTER, QUIET

WIDTH = 9.0
CELL = 0.6
GAP = 0.3  # between two maps


@dataclass(frozen=True)
class GridLayout:
    """Where things go in a grid of maps, all of one shape."""

    rows: int
    cols: int
    width: float  # of one map, in inches
    height: float
    figure: tuple[float, float]
    labels: Fit


def plan(
    count: int, shape: tuple[int, int], queries: Sequence[str], keys: Sequence[str]
) -> GridLayout:
    """Sizes for `count` maps of `shape` (N, M) with these labels.

    >>> layout = plan(4, (6, 6), ["the"] * 6, ["the"] * 6)
    >>> layout.rows, layout.cols, layout.labels.steps, layout.labels.angle
    (2, 2, (1, 1), 0)
    """
    most = _columns(count, shape)
    fewer = (cols for cols in range(most, most // 2, -1) if count % cols == 0)
    tried = [_plan(count, cols, shape, queries, keys) for cols in dict.fromkeys((most, *fewer))]
    return next((layout for layout in tried if layout.labels.is_whole), tried[0])


def _plan(
    count: int, cols: int, shape: tuple[int, int], queries: Sequence[str], keys: Sequence[str]
) -> GridLayout:
    rows = math.ceil(count / cols)
    size = 9.0 if cols <= 2 else 8.0
    left = max(map(columns, queries)) * LETTER * size / 72 + 0.45
    bar, heading = 1.0, 0.45
    side = min((WIDTH - left - bar) / cols - GAP, max(CELL * max(shape), 2.0), 6.0)
    ratio = min(max(shape[0] / shape[1], 0.2), 5.0)
    width, height = (side, side * ratio) if ratio <= 1 else (side / ratio, side)
    width, height = max(width, min(side, 1.2)), max(height, 0.4)  # room for a title, a label
    labels = fit(size, keys, shape, width, height)
    bottom = depth(keys, labels) + 0.45
    if count % cols:  # the columns that end a row earlier carry their own labels
        bottom *= 2
    return GridLayout(
        rows=rows,
        cols=cols,
        width=width,
        height=height,
        figure=(left + cols * (width + GAP) + bar, rows * (height + heading) + bottom + 0.5),
        labels=labels,
    )


def draw(
    maps: Sequence[np.ma.MaskedArray],
    queries: Sequence[str],
    keys: Sequence[str],
    *,
    titles: Sequence[str],
    title: str | None,
    colours: Colormap,
    norm: Normalize,
    meaning: str,
) -> Figure:
    """The maps on a grid under one scale; masked cells are drawn as empty.

    Args:
        maps: arrays (N, M), rows are queries and columns keys.
        queries: N tokens.
        keys: M tokens.
        titles: one for each map.
        title: over all, or None.
        colours: the colour map.
        norm: the scale that all maps share.
        meaning: what the colour bar says it shows.
    """
    rows, cols = names(queries), names(keys)
    layout = plan(len(maps), maps[0].shape, rows, cols)
    figure = Figure(figsize=layout.figure, facecolor="white")
    figure.set_layout_engine("compressed", w_pad=0.08, h_pad=0.08)
    axes = [figure.add_subplot(layout.rows, layout.cols, i + 1) for i in range(len(maps))]
    cell = min(layout.width / len(cols), layout.height / len(rows))
    headings = _titles(titles, (layout.width + GAP) * 72)
    for i, (ax, values) in enumerate(zip(axes, maps, strict=True)):
        image = draw_map(ax, values, colours, norm, cell)
        ax.set_box_aspect(layout.height / layout.width)
        ax.set_title(**headings[i], color=INK, loc="left")
        _label(
            ax,
            rows if i % layout.cols == 0 else None,
            cols if i + layout.cols >= len(maps) else None,
            layout,
        )
    style.bar(figure, image, axes, meaning)
    style.head(figure, title)
    style.literal(figure)
    return figure


def _titles(titles: Sequence[str], room: float) -> list[dict[str, Any]]:
    """Titles of one size that fit into `room` points: smaller letters first, then an ellipsis."""
    texts = [drawable(text) for text in titles]
    size = min(10.0, max(7.0, room / (LETTER * max(1, *map(columns, texts)))))
    fits = int(room / (LETTER * size) + 1e-9)
    return [{"label": shorten(text, fits), "fontsize": size} for text in texts]


def _columns(count: int, shape: tuple[int, int]) -> int:
    """How many maps stand beside each other; fewer where they are wide."""
    if count <= 3:
        cols = count
    elif count > 4 and count % 4 == 0 and count <= 16:
        cols = 4
    else:
        cols = 6 if count > 16 else math.ceil(math.sqrt(count))
    return max(1, cols // 2) if shape[1] >= 2 * shape[0] and count > 1 else cols


def _label(
    ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None, layout: GridLayout
) -> None:
    draw_labels(ax, queries, keys, layout.labels)
    quiet: dict[str, Any] = {"fontsize": 9, "color": QUIET, "labelpad": 6}
    if queries is not None:
        ax.set_ylabel("queries", **quiet)
    if keys is not None:
        ax.set_xlabel("keys", **quiet)
