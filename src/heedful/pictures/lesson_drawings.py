"""Drawings for the lessons, each with a single function call: points, boxes, lines, bars, ….

So lessons contain computations instead of plotting code. Each function returns a new
`matplotlib.figure.Figure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator

from heedful.pictures.diagram import Arrow, Box, Diagram, Label, draw
from heedful.pictures.style import EMPTY, INK, QUIET, bar, colours, figure, finish, name_axes

Numbers: TypeAlias = np.ndarray | torch.Tensor | Sequence[float]
COLOURS = ("#277f8e", "#d1701f", "#7a5195", "#8c9632")  # of lines and of groups
TINT_OF = {"attention": "teal", "feed-forward": "blue", "norm": "sand"}  # by part of a box's name
MARKED = 12  # lines with at most this many points get markers
BESIDE = {  # placement of a name at its point: offset in points, and alignment
    "above": ((0, 8), "center", "bottom"),
    "below": ((0, -8), "center", "top"),
    "left": ((-4, 7), "right", "bottom"),
    "right": ((4, 7), "left", "bottom"),
}


def swatches(shades: Numbers, names: Sequence[str]) -> Figure:
    """Draw colours (n, 3), with values from 0 to 1, in a row with their names below.

    >>> len(swatches([[1, 0, 0], [0, 0, 1]], ["red", "blue"]).axes[0].images)
    1
    """
    figure_, (ax,) = _figure((6, 1.3))
    ax.imshow(np.asarray(shades, float)[None])
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return finish(figure_)


def points(
    groups: Mapping[str, Numbers],
    names: Sequence[str],
    *,
    axes: tuple[str, str],
    arrows: Sequence[tuple[int, int]] = (),
    beside: Mapping[str, str] | None = None,
) -> Figure:
    """Draw groups of points in a plane, with names for the first group, and arrows.

    Args:
        groups: arrays (n, 2) by the group's name. Arrows lead from each point of the first group to
            the point with the same index in every further group.
        names: names of the first group's points.
        axes: labels of the x axis and the y axis.
        arrows: pairs (start, end) of indices of points of the first group.
        beside: for a name, its side of the point: "below", "left" or "right"; default "above".

    >>> figure = points({"": [[0.2, 0.1], [0.9, 0.1]]}, ["queen", "king"],
    ...                 axes=("first", "third"), arrows=[(1, 0)])
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    ['queen', 'king']
    """
    figure_, (ax,) = _figure((5.5, 3.8))
    clouds = [np.asarray(group, float) for group in groups.values()]
    ends = [(clouds[0][a], clouds[0][b]) for a, b in arrows]
    ends += [pair for other in clouds[1:] for pair in zip(clouds[0], other, strict=True)]
    for start, end in ends:
        style = {"arrowstyle": "->", "color": QUIET, "shrinkA": 5, "shrinkB": 5}
        ax.annotate("", end, start, arrowprops=style)
    for cloud, (name, colour) in zip(clouds, zip(groups, COLOURS, strict=False), strict=True):
        ax.scatter(cloud[:, 0], cloud[:, 1], color=colour, label=name, zorder=3, linewidths=0)
    for name, point in zip(names, clouds[0], strict=True):
        offset, ha, va = BESIDE[(beside or {}).get(name, "above")]
        ax.annotate(name, point, offset, textcoords="offset points", ha=ha, va=va, color=INK)
    ax.set(xlim=(0, 1.1), ylim=(0, 1.1))
    _quiet(ax, *axes)
    if len(groups) > 1:
        ax.legend(frameon=False, loc="lower left")
    return finish(figure_)


def boxes(shapes: Mapping[str, tuple[int, int]]) -> Figure:
    """Draw matrices side by side as rectangles, to scale.

    >>> figure = boxes({"words": (7, 128), "queries": (7, 16)})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['words\\n7 × 128', 'queries\\n7 × 16']
    """
    figure_, (ax,) = _figure((8, 3.2))
    tallest = max(height for height, _ in shapes.values())
    x, gap = 0.0, 0.35 * tallest
    for name, (height, width) in shapes.items():
        ax.add_patch(Rectangle((x, -height / 2), width, height, color=COLOURS[0]))
        label = f"{name}\n{height} × {width}"
        ax.text(x + width / 2, height / 2 + 3, label, ha="center", fontsize=8, color=INK)
        x += width + gap
    ax.set(xlim=(-10, x - gap + 10), ylim=(-tallest / 2 - 2, tallest / 2 + 26), aspect="equal")
    ax.axis("off")
    return finish(figure_)


def heads(words: Sequence[str], heads: int, width: int) -> Figure:
    """Draw a table of words whose columns are split into heads. Beside it, draw each head's part.

    >>> [text.get_text() for text in heads(["a", "b"], 3, 4).axes[0].texts][-1]
    '2 words × 12'
    """
    figure_, (ax,) = _figure((7, 4.2))
    rows, apart = len(words), len(words) + 2
    middle = (heads - 1) * apart / 2  # the full table is at the middle head's height
    for head in range(heads):
        colour, top = COLOURS[head % len(COLOURS)], middle - head * apart
        _cells(ax, (head * width, 0), (rows, width), colour)
        _cells(ax, (heads * width + 8, top), (rows, width), colour)
        start = (heads * width + 0.4, -rows / 2 + (heads - 1) / 2 - head)
        arrow = {"arrowstyle": "->", "color": colour, "lw": 1.5}
        ax.annotate("", (heads * width + 7.6, top - rows / 2), start, arrowprops=arrow)
        label = f"head {head}: {rows} × {width}"
        ax.text(heads * width + width + 8.6, top - rows / 2, label, va="center", color=INK)
    for row, word in enumerate(words):
        ax.text(-0.4, -row - 0.5, word, ha="right", va="center", fontsize=9, color=INK)
    ax.text(heads * width / 2, 0.6, f"{rows} words × {heads * width}", ha="center", color=INK)
    ax.set(xlim=(-5, heads * width + width + 19), ylim=(-middle - rows - 1, middle + 2))
    ax.set_aspect("equal")
    ax.axis("off")
    return finish(figure_)


def tables(tables: Mapping[str, Numbers], *, across: str = "keys", down: str = "queries") -> Figure:
    """Draw tables side by side: numbers, orange below 0 and blue above, or boolean masks.

    >>> figure = tables({"causal": np.tri(4) > 0, "all": np.ones((4, 5), bool)})
    >>> [ax.get_title() for ax in figure.axes]
    ['causal', 'all']
    """
    values = {name: np.asarray(table) for name, table in tables.items()}
    rows = max(len(table) for table in values.values())
    columns = max(table.shape[1] for table in values.values())
    figure_, axes = _figure((2.9 * len(values), 3.1), len(values))
    for ax, (name, table) in zip(axes, values.items(), strict=True):
        if table.dtype == bool:
            ax.pcolormesh(table, cmap="Blues", vmin=0, vmax=1.6, edgecolors=EMPTY)
        else:
            limit = abs(table).max()
            ax.pcolormesh(table, cmap=colours("signed"), vmin=-limit, vmax=limit)
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
        ax.set_title(name, fontsize=10, color=INK)
        _quiet(ax, across, down)
        ax.spines[:].set_visible(False)
    return finish(figure_)


def probabilities(
    table: Numbers, rows: Sequence[str], columns: Sequence[str], *, axes: tuple[str, str]
) -> Figure:
    """Draw a table of probabilities (n, m) with named rows and columns, on a scale from 0 to 1.

    >>> figure = probabilities([[0.9, 0.1]], ["the"], ["cat", "dog"], axes=("next", "text"))
    >>> figure.axes[0].get_xlabel(), [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    ('next', ['cat', 'dog'])
    """
    figure_, (ax,) = _figure((1.6 + 0.42 * len(columns), 1.3 + 0.36 * len(rows)))
    image = ax.imshow(np.asarray(table, float), vmin=0, vmax=1, cmap=colours("viridis"))
    _quiet(ax, *axes)
    ax.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.spines[:].set_visible(False)
    bar(figure_, image, "probability", ax=ax)
    return finish(figure_)


def lines(
    x: Numbers,
    *panels: Mapping[str, Numbers],
    axes: tuple[str, str],
    titles: Sequence[str] = (),
    log: str = "",
    lowest: float | None = None,
) -> Figure:
    """Draw named lines in panels side by side; lines of few points have markers.

    Args:
        x: the x values of all lines.
        panels: for each panel, its lines by name.
        axes: labels of the x axis and the y axis.
        titles: a title for each panel.
        log: the logarithmic axes: "x", "y" or "xy".
        lowest: the lower end of a logarithmic y axis; a linear y axis starts at 0.

    >>> figure = lines([1, 2], {"slow": [3, 6], "fast": [1, 1]}, axes=("heads", "ms"))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['slow', 'fast']
    """
    xs = np.asarray(x, float)
    marked = len(xs) <= MARKED
    figure_, all_axes = _figure((6 if len(panels) == 1 else 8.5, 3.3), len(panels))
    for ax, panel in zip(all_axes, panels, strict=True):
        for (name, values), colour in zip(panel.items(), COLOURS, strict=False):
            look = "o-" if marked else "-"
            ax.plot(xs, np.asarray(values, float), look, label=name, color=colour, ms=5)
        _quiet(ax, *axes)
        ax.set(**{f"{axis}scale": "log" for axis in log})
        ax.set_ylim(lowest if "y" in log else 0, None)
        if marked:
            ax.set_xticks(xs, [f"{value:,.0f}" for value in xs])
            ax.xaxis.set_minor_locator(NullLocator())
    for ax, title in zip(all_axes, titles, strict=False):
        ax.set_title(title, fontsize=10, color=INK)
    all_axes[0].legend(frameon=False)
    return finish(figure_)


def bars(panels: Mapping[str, Numbers], names: Sequence[str], *, across: str) -> Figure:
    """Draw probabilities as bars, in panels with a common scale; a dot marks a probability of 0.

    Args:
        panels: for each panel, a probability for each name; the first bar is on top.
        names: names of the bars.
        across: label of the x axis.

    >>> figure = bars({"greedy": [1.0, 0.0]}, ["the", "a"], across="probability")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1.00', '·']
    """
    figure_, axes = _figure((max(4.5, 2.1 * len(panels)), 0.8 + 0.27 * len(names)), len(panels))
    values = [np.asarray(panel, float) for panel in panels.values()]
    highest = max(float(panel.max()) for panel in values)
    for i, (ax, name, panel) in enumerate(zip(axes, panels, values, strict=True)):
        ax.barh(range(len(names)), panel, color=COLOURS[0], height=0.72)
        for row, value in enumerate(panel):
            label, size = (f"{value:.2f}", 8) if value > 0 else ("·", 13)
            ax.text(value + 0.03 * highest, row, label, va="center", fontsize=size, color=INK)
        ax.set(xlim=(0, 1.3 * highest), ylim=(len(names) - 0.5, -0.5), xticks=[])
        ax.set_yticks(range(len(names)), names if i == 0 else [""] * len(names))
        ax.set_title(name, fontsize=10, color=INK, loc="left")
        _quiet(ax, across if i == 0 else "", "")
        ax.spines["bottom"].set_visible(False)
    return finish(figure_)


def columns(
    columns: Mapping[str, Sequence[str]],
    links: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> Figure:
    """Draw a model as columns of boxes, from bottom to top, above the names of their inputs.

    Args:
        columns: for each input, the names of the boxes above it, from bottom to top.
        links: further arrows, each from (column, box) to (column, box), counted from 0.

    >>> figure = columns({"source": ["self"], "target": ["self", "cross"]}, [((0, 0), (1, 1))])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['self', 'self', 'cross', 'source', 'target']
    """
    diagram, grid = Diagram(), []
    for number, (source, names) in enumerate(columns.items()):
        x = 4.2 * number
        tints = [next((TINT_OF[k] for k in TINT_OF if k in name), "plain") for name in names]
        parts = enumerate(zip(names, tints, strict=True))
        rows = [Box(x, 0.6 * y, 2.5, 0.38, name, tint=tint) for y, (name, tint) in parts]
        diagram.boxes += rows
        diagram.labels.append(Label(x, -0.62, source, "center", "strong"))
        has_link = any(start == (number, len(rows) - 1) for start, _ in links)
        for y in [-0.5, *(row.y + 0.19 for row in rows[: -1 if has_link else None])]:
            diagram.arrows.append(Arrow(((x, y), (x, y + (0.31 if y < 0 else 0.22)))))
        grid.append(rows)
    for (column, row), (other, end) in links:
        start, stop = grid[column][row], grid[other][end]
        middle = (start.x + stop.x) / 2
        path = ((start.x + 1.25, start.y), (middle, start.y), (middle, stop.y))
        diagram.arrows.append(Arrow((*path, (stop.x - 1.25, stop.y))))
    return draw(diagram)


def _figure(size: tuple[float, float], panels: int = 1) -> tuple[Figure, list[Axes]]:
    result = figure(*size)
    return result, list(result.subplots(1, panels, squeeze=False)[0])


def _quiet(ax: Axes, across: str, up: str) -> None:
    """Label the axes, and remove the upper and the right border."""
    name_axes(ax, across, up)
    ax.tick_params(length=0, labelsize=8.5, labelcolor=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(EMPTY)


def _cells(ax: Axes, corner: tuple[float, float], shape: tuple[int, int], colour: str) -> None:
    """Draw the cells of a table; `corner` is the table's upper left corner."""
    left, top = corner
    for row, column in np.ndindex(shape):
        cell = (left + column, top - row - 1)
        ax.add_patch(Rectangle(cell, 1, 1, facecolor=colour, edgecolor="white"))
