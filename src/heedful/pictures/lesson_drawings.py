"""The drawings of the lessons, each one call: colours, points, boxes, lines and bars.

They stand here, so that a lesson shows what it computes and not how a line is drawn. Each returns
a `matplotlib.figure.Figure` of its own.
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
from heedful.pictures.style import EMPTY, INK, QUIET, bar, colours, figure, finished, name_axes

Numbers: TypeAlias = np.ndarray | torch.Tensor | Sequence[float]
COLOURS = ("#277f8e", "#d1701f", "#7a5195", "#8c9632")  # of lines and of groups
TINTED = {"attention": "teal", "feed-forward": "blue", "norm": "sand"}  # boxes, by their names
MARKED = 12  # points of a line that are few enough to be marked
BESIDE = {  # of a point, where its name stands: points away, and which side of it touches
    "above": ((0, 8), "center", "bottom"),
    "below": ((0, -8), "center", "top"),
    "left": ((-4, 7), "right", "bottom"),
    "right": ((4, 7), "left", "bottom"),
}


def swatches(shades: Numbers, names: Sequence[str]) -> Figure:
    """Colours in a row, (n, 3) from 0 to 1, each with its name below.

    >>> len(swatches([[1, 0, 0], [0, 0, 1]], ["red", "blue"]).axes[0].images)
    1
    """
    made, (ax,) = _figure((6, 1.3))
    ax.imshow(np.asarray(shades, float)[None])
    ax.set_xticks(range(len(names)), names)
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    return finished(made)


def points(
    groups: Mapping[str, Numbers],
    names: Sequence[str],
    *,
    axes: tuple[str, str],
    arrows: Sequence[tuple[int, int]] = (),
    beside: Mapping[str, str] | None = None,
) -> Figure:
    """Points on a plane: the first group's with their names, and arrows between them.

    Args:
        groups: (n, 2) by the group's name. An arrow leads from each point of the first to its
            point of the second, where there is a second.
        names: of the first group's points.
        axes: what is across and what is up.
        arrows: pairs of the first group's points.
        beside: "below", "left" or "right", by name, where it does not stand above its point.

    >>> figure = points({"": [[0.2, 0.1], [0.9, 0.1]]}, ["queen", "king"],
    ...                 axes=("first", "third"), arrows=[(1, 0)])
    >>> [text.get_text() for text in figure.axes[0].texts if text.get_text()]
    ['queen', 'king']
    """
    made, (ax,) = _figure((5.5, 3.8))
    places = [np.asarray(group, float) for group in groups.values()]
    ends = [(places[0][a], places[0][b]) for a, b in arrows]
    ends += [pair for other in places[1:] for pair in zip(places[0], other, strict=True)]
    for start, end in ends:
        style = {"arrowstyle": "->", "color": QUIET, "shrinkA": 5, "shrinkB": 5}
        ax.annotate("", end, start, arrowprops=style)
    for place, (name, colour) in zip(places, zip(groups, COLOURS, strict=False), strict=True):
        ax.scatter(place[:, 0], place[:, 1], color=colour, label=name, zorder=3, linewidths=0)
    for name, place in zip(names, places[0], strict=True):
        away, ha, va = BESIDE[(beside or {}).get(name, "above")]
        ax.annotate(name, place, away, textcoords="offset points", ha=ha, va=va, color=INK)
    ax.set(xlim=(0, 1.1), ylim=(0, 1.1))
    _quiet(ax, *axes)
    if len(groups) > 1:
        ax.legend(frameon=False, loc="lower left")
    return finished(made)


def boxes(shapes: Mapping[str, tuple[int, int]]) -> Figure:
    """Matrices side by side as rectangles, drawn to scale.

    >>> figure = boxes({"words": (7, 128), "queries": (7, 16)})
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['words\\n7 × 128', 'queries\\n7 × 16']
    """
    made, (ax,) = _figure((8, 3.2))
    tallest = max(height for height, _ in shapes.values())
    x, gap = 0.0, 0.35 * tallest
    for name, (height, width) in shapes.items():
        ax.add_patch(Rectangle((x, -height / 2), width, height, color=COLOURS[0]))
        label = f"{name}\n{height} × {width}"
        ax.text(x + width / 2, height / 2 + 3, label, ha="center", fontsize=8, color=INK)
        x += width + gap
    ax.set(xlim=(-10, x - gap + 10), ylim=(-tallest / 2 - 2, tallest / 2 + 26), aspect="equal")
    ax.axis("off")
    return finished(made)


def heads(words: Sequence[str], heads: int, width: int) -> Figure:
    """A table of words cut into its heads: beside it, each head's own columns.

    >>> [text.get_text() for text in heads(["a", "b"], 3, 4).axes[0].texts][-1]
    '2 words × 12'
    """
    made, (ax,) = _figure((7, 4.2))
    rows, apart = len(words), len(words) + 2
    middle = (heads - 1) * apart / 2  # the whole table stands at the middle head's height
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
    return finished(made)


def tables(tables: Mapping[str, Numbers], *, across: str = "keys", down: str = "queries") -> Figure:
    """Tables side by side, cell by cell: numbers in colours around 0, or which pairs are allowed.

    >>> figure = tables({"causal": np.tri(4) > 0, "all": np.ones((4, 5), bool)})
    >>> [ax.get_title() for ax in figure.axes]
    ['causal', 'all']
    """
    values = {name: np.asarray(table) for name, table in tables.items()}
    rows = max(len(table) for table in values.values())
    columns = max(table.shape[1] for table in values.values())
    made, axes = _figure((2.9 * len(values), 3.1), len(values))
    for ax, (name, table) in zip(axes, values.items(), strict=True):
        if table.dtype == bool:
            ax.pcolormesh(table, cmap="Blues", vmin=0, vmax=1.6, edgecolors=EMPTY)
        else:
            most = abs(table).max()
            ax.pcolormesh(table, cmap="RdBu_r", vmin=-most, vmax=most)
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal", xticks=[], yticks=[])
        ax.set_title(name, fontsize=10, color=INK)
        _quiet(ax, across, down)
        ax.spines[:].set_visible(False)
    return finished(made)


def probabilities(
    table: Numbers, rows: Sequence[str], columns: Sequence[str], *, axes: tuple[str, str]
) -> Figure:
    """A table of probabilities (n, m), each row for one name; brighter is likelier, to 1.

    >>> figure = probabilities([[0.9, 0.1]], ["the"], ["cat", "dog"], axes=("next", "text"))
    >>> figure.axes[0].get_xlabel(), [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    ('next', ['cat', 'dog'])
    """
    made, (ax,) = _figure((1.6 + 0.42 * len(columns), 1.3 + 0.36 * len(rows)))
    image = ax.imshow(np.asarray(table, float), vmin=0, vmax=1, cmap=colours("viridis"))
    _quiet(ax, *axes)
    ax.set_xticks(range(len(columns)), columns, rotation=45, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(len(rows)), rows)
    ax.spines[:].set_visible(False)
    bar(made, image, "probability", ax=ax)
    return finished(made)


def lines(
    x: Numbers,
    *panels: Mapping[str, Numbers],
    axes: tuple[str, str],
    titles: Sequence[str] = (),
    log: str = "",
    lowest: float | None = None,
) -> Figure:
    """Lines by their names, in one panel or in several side by side; few points are marked.

    Args:
        x: what all lines stand over.
        panels: for each panel, its lines.
        axes: what is across and what is up.
        titles: one for each panel.
        log: the axes that are logarithmic: "x", "y" or "xy".
        lowest: where a logarithmic axis ends; others begin at 0.

    >>> figure = lines([1, 2], {"slow": [3, 6], "fast": [1, 1]}, axes=("heads", "ms"))
    >>> [line.get_label() for line in figure.axes[0].lines]
    ['slow', 'fast']
    """
    places = np.asarray(x, float)
    marked = len(places) <= MARKED
    made, drawn = _figure((6 if len(panels) == 1 else 8.5, 3.3), len(panels))
    for ax, panel in zip(drawn, panels, strict=True):
        for (name, values), colour in zip(panel.items(), COLOURS, strict=False):
            look = "o-" if marked else "-"
            ax.plot(places, np.asarray(values, float), look, label=name, color=colour, ms=5)
        _quiet(ax, *axes)
        if "x" in log:
            ax.set_xscale("log")
        if "y" in log:
            ax.set_yscale("log")
        ax.set_ylim(lowest if "y" in log else 0, None)
        if marked:
            ax.set_xticks(places, [f"{place:,.0f}" for place in places])
            ax.xaxis.set_minor_locator(NullLocator())
    for ax, title in zip(drawn, titles, strict=False):
        ax.set_title(title, fontsize=10, color=INK)
    drawn[0].legend(frameon=False)
    return finished(made)


def bars(panels: Mapping[str, Numbers], names: Sequence[str], *, across: str) -> Figure:
    """Probabilities as bars, a panel for each way, all on one scale; what is cut off is a dot.

    Args:
        panels: for each way, a probability for each name, the first on top.
        names: of the bars.
        across: what a bar's length is.

    >>> figure = bars({"greedy": [1.0, 0.0]}, ["the", "a"], across="probability")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1.00', '·']
    """
    made, axes = _figure((max(4.5, 2.1 * len(panels)), 0.8 + 0.27 * len(names)), len(panels))
    values = [np.asarray(panel, float) for panel in panels.values()]
    most = max(float(panel.max()) for panel in values)
    for i, (ax, name, panel) in enumerate(zip(axes, panels, values, strict=True)):
        ax.barh(range(len(names)), panel, color=COLOURS[0], height=0.72)
        for row, value in enumerate(panel):
            label, size = (f"{value:.2f}", 8) if value > 0 else ("·", 13)
            ax.text(value + 0.03 * most, row, label, va="center", fontsize=size, color=INK)
        ax.set(xlim=(0, 1.3 * most), ylim=(len(names) - 0.5, -0.5), xticks=[])
        ax.set_yticks(range(len(names)), names if i == 0 else [""] * len(names))
        ax.set_title(name, fontsize=10, color=INK, loc="left")
        _quiet(ax, across if i == 0 else "", "")
        ax.spines["bottom"].set_visible(False)
    return finished(made)


def columns(
    columns: Mapping[str, Sequence[str]],
    links: Sequence[tuple[tuple[int, int], tuple[int, int]]] = (),
) -> Figure:
    """A model as columns of boxes, read upwards, each over the name of what goes in.

    Args:
        columns: for each, what goes in, and its boxes from below.
        links: further ways, from a (column, box) to another, both from 0.

    >>> figure = columns({"source": ["self"], "target": ["self", "cross"]}, [((0, 0), (1, 1))])
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['self', 'self', 'cross', 'source', 'target']
    """
    diagram, placed = Diagram(), []
    for number, (goes_in, names) in enumerate(columns.items()):
        x = 4.2 * number
        rows = [
            Box(x, 0.6 * row, 2.5, 0.38, name, tint=_tint(name)) for row, name in enumerate(names)
        ]
        diagram.boxes += rows
        diagram.labels.append(Label(x, -0.62, goes_in, "center", "strong"))
        goes_elsewhere = any(start == (number, len(rows) - 1) for start, _ in links)
        for y in [-0.5, *(row.y + 0.19 for row in rows[: -1 if goes_elsewhere else None])]:
            diagram.arrows.append(Arrow(((x, y), (x, y + (0.31 if y < 0 else 0.22)))))
        placed.append(rows)
    for (column, row), (other, end) in links:
        start, stop = placed[column][row], placed[other][end]
        middle = (start.x + stop.x) / 2
        way = ((start.x + 1.25, start.y), (middle, start.y), (middle, stop.y))
        diagram.arrows.append(Arrow((*way, (stop.x - 1.25, stop.y))))
    return draw(diagram)


def _tint(name: str) -> str:
    return next((tint for part, tint in TINTED.items() if part in name), "plain")


def _figure(size: tuple[float, float], panels: int = 1) -> tuple[Figure, list[Axes]]:
    drawn = figure(*size)
    return drawn, list(drawn.subplots(1, panels, squeeze=False)[0])


def _quiet(ax: Axes, across: str, up: str) -> None:
    """Names the axes, and leaves only the two lines that they need."""
    name_axes(ax, across, up)
    ax.tick_params(length=0, labelsize=8.5, labelcolor=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(EMPTY)


def _cells(ax: Axes, corner: tuple[float, float], shape: tuple[int, int], colour: str) -> None:
    """A table's cells; its corner is the upper left one."""
    left, top = corner
    for row in range(shape[0]):
        for column in range(shape[1]):
            place = (left + column, top - row - 1)
            ax.add_patch(Rectangle(place, 1, 1, facecolor=colour, edgecolor="white"))
