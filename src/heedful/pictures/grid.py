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
from matplotlib.image import AxesImage

from heedful.pictures import style
from heedful.pictures.labels import columns, drawable, label, shorten
from heedful.pictures.style import INK, LETTER, QUIET

WIDTH = 9.0
CELL = 0.6
GAP = 0.3  # between two maps
LEAST = 6.5  # points: labels get so small before some are left out
# How labels of keys can stand, in degrees, and the room that one needs of its cell, in letter sizes
ANGLES = {45: 1.5, 90: 1.15}
SMALL = 10  # tokens: up to here the numbers stand in the cells, where there is room
LEGIBLE = 5.5  # points: numbers smaller than this are left out


@dataclass(frozen=True)
class GridLayout:
    """Where things go in a grid of maps, all of one shape."""

    rows: int
    cols: int
    width: float  # of one map, in inches
    height: float
    figure: tuple[float, float]
    size: float  # of the labels, in points
    steps: tuple[int, int]  # every how many queries, and keys, a label stands
    angle: int  # of the labels of keys, in degrees


def plan(
    count: int, shape: tuple[int, int], queries: Sequence[str], keys: Sequence[str]
) -> GridLayout:
    """Sizes for `count` maps of `shape` (N, M) with these labels.

    >>> layout = plan(4, (6, 6), ["the"] * 6, ["the"] * 6)
    >>> layout.rows, layout.cols, layout.steps, layout.angle
    (2, 2, (1, 1), 0)
    """
    most = _columns(count, shape)
    fewer = (cols for cols in range(most, most // 2, -1) if count % cols == 0)
    tried = [_plan(count, cols, shape, queries, keys) for cols in dict.fromkeys((most, *fewer))]
    return next((layout for layout in tried if layout.steps == (1, 1)), tried[0])


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
    letters = max(map(columns, keys)) * LETTER
    size, angle = _label_size(size, letters, height / shape[0] * 72, width / shape[1] * 72)
    bottom = size * max(letters * math.sin(math.radians(angle)), 1) / 72 + 0.45
    if count % cols:  # the columns that end a row earlier carry their own labels
        bottom *= 2
    return GridLayout(
        rows=rows,
        cols=cols,
        width=width,
        height=height,
        figure=(
            left + cols * (width + GAP) + bar,
            rows * (height + heading) + bottom + 0.5,
        ),
        size=size,
        steps=(
            _step(ANGLES[90] * size, height / shape[0]),
            _step(ANGLES[angle] * size, width / shape[1]) if angle else 1,
        ),
        angle=angle,
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
    rows, cols = [label(token) for token in queries], [label(token) for token in keys]
    layout = plan(len(maps), maps[0].shape, rows, cols)
    figure = Figure(figsize=layout.figure, facecolor="white")
    figure.set_layout_engine("compressed", w_pad=0.08, h_pad=0.08)
    axes = [figure.add_subplot(layout.rows, layout.cols, i + 1) for i in range(len(maps))]
    names = _titles(titles, (layout.width + GAP) * 72)
    for i, (ax, values) in enumerate(zip(axes, maps, strict=True)):
        image = _map(ax, values, layout, colours, norm)
        ax.set_title(**names[i], color=INK, loc="left")
        _tokens(
            ax,
            rows if i % layout.cols == 0 else None,
            cols if i + layout.cols >= len(maps) else None,
            layout,
        )
    style.bar(figure, image, axes, meaning)
    style.head(figure, title)
    style.literal(figure)
    return figure


def _label_size(size: float, letters: float, query: float, key: float) -> tuple[float, int]:
    """The size of labels and the angle of those of keys: all of them upright, else all of them
    slanted, if need be smaller, else all on end; else slanted, and some are left out.

    Args:
        size: the preferred one, in points.
        letters: the width of the longest label of a key, in its size.
        query, key: the room of a query's label and of a key's, in points.
    """
    if query >= ANGLES[90] * LEAST:
        size = min(size, query / ANGLES[90])
    if letters * size < 0.95 * key:
        return size, 0
    for angle, room in ANGLES.items():
        if key >= room * LEAST:
            return min(size, key / room), angle
    return size, 45


def _step(room: float, cell: float) -> int:
    """Every how many cells of so many inches a label stands that needs so many points."""
    return max(1, math.ceil(room / (cell * 72) - 1e-9))


def _titles(titles: Sequence[str], room: float) -> list[dict[str, Any]]:
    """Titles of one size that fit into `room` points: smaller letters first, then an ellipsis."""
    texts = [drawable(text) for text in titles]
    size = min(10.0, max(7.0, room / (LETTER * max(1, *map(columns, texts)))))
    fits = int(room / (LETTER * size) + 1e-9)
    return [{"label": shorten(text, fits), "fontsize": size} for text in texts]


def number(value: float) -> str:
    """A value for a cell, in at most five letters or so.

    >>> number(0.25), number(-0.001), number(-1.5), number(1234.5)
    ('0.25', '0.00', '−1.50', '1.23e+03')
    """
    return (f"{value:z.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")


def _columns(count: int, shape: tuple[int, int]) -> int:
    """How many maps stand beside each other; fewer where they are wide."""
    if count <= 3:
        cols = count
    elif count > 4 and count % 4 == 0 and count <= 16:
        cols = 4
    else:
        cols = 6 if count > 16 else math.ceil(math.sqrt(count))
    return max(1, cols // 2) if shape[1] >= 2 * shape[0] and count > 1 else cols


def _map(
    ax: Axes, values: np.ma.MaskedArray, layout: GridLayout, colours: Colormap, norm: Normalize
) -> AxesImage:
    image = ax.imshow(values, cmap=colours, norm=norm, aspect="auto")
    ax.set_box_aspect(layout.height / layout.width)
    ax.spines[:].set_visible(False)
    if max(values.shape) <= SMALL:
        ax.set_xticks(np.arange(1, values.shape[1]) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, values.shape[0]) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.2)
        _numbers(ax, image, values, layout)
    return image


def _numbers(ax: Axes, image: AxesImage, values: np.ma.MaskedArray, layout: GridLayout) -> None:
    cell = min(layout.width / values.shape[1], layout.height / values.shape[0]) * 72
    size = min(9.0, cell * 0.3)
    if size < LEGIBLE:
        return
    shades = image.to_rgba(values)
    for row, col in zip(*np.nonzero(~np.ma.getmaskarray(values)), strict=True):
        colour = _readable(shades[row, col, :3])
        ax.text(
            col,
            row,
            number(values[row, col]),
            ha="center",
            va="center",
            fontsize=size,
            color=colour,
        )


def _readable(background: np.ndarray) -> str:
    """Ink or white, whichever has more contrast (WCAG 2.2, relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
    return INK if (luminance + 0.05) / 0.072 > 1.05 / (luminance + 0.05) else "white"


def _tokens(
    ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None, layout: GridLayout
) -> None:
    for axis, texts, step in zip((ax.yaxis, ax.xaxis), (queries, keys), layout.steps, strict=True):
        axis.set_tick_params(which="both", length=0, pad=4, labelsize=layout.size, labelcolor=INK)
        if texts is None:
            axis.set_ticks([])
        else:
            places = range(0, len(texts), step)
            axis.set_ticks(places, [texts[i] for i in places])
    if keys is not None and layout.angle:
        ax.tick_params(axis="x", labelrotation=layout.angle)
        for text in ax.get_xticklabels():
            # slanted, its end stands below the column; on end, its middle does
            upright = "center" if layout.angle == 90 else "top"
            text.set(ha="right", va=upright, rotation_mode="anchor")
    quiet: dict[str, Any] = {"fontsize": 9, "color": QUIET, "labelpad": 6}
    if queries is not None:
        ax.set_ylabel("queries", **quiet)
    if keys is not None:
        ax.set_xlabel("keys", **quiet)
