"""Plots of words as points in a plane, with arrows between chosen words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from heedful.pictures import style
from heedful.pictures.labels import drawable, shorten
from heedful.pictures.style import EMPTY, INK, QUIET, ROW, name_axes

POINT = "#277f8e"
ARROW = {"arrowstyle": "-|>", "color": ROW, "linewidth": 1.4, "shrinkA": 0, "shrinkB": 3}
LEADER = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 3}
LONGEST = 24  # columns of a name
# Offsets of a name from its word's point, in 1/72 inch, in the order in which they are tried
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))
OFFSETS = [(distance * x, distance * y) for distance in (7, 14, 24, 36) for x, y in SIDES]
NEAR = 10  # a name at a larger offset gets a line to its word's point


def words(
    coordinates: np.ndarray,
    labels: Sequence[str],
    axes: Sequence[str],
    *,
    arrows: Sequence[tuple[int, int]] = (),
    title: str | None = None,
    dots: int | None = None,
) -> Figure:
    """Draw words as points with names beside them, without overlaps if possible.

    Args:
        coordinates: (n, 2).
        labels: n names.
        axes: names of the two axes.
        arrows: pairs of indices of points, (start, end).
        title: above the plot.
        dots: how many of the points have dots, from the first; default: all.
    """
    figure = style.figure(7.5, 6)
    ax = figure.subplots()
    ax.update_datalim(coordinates)
    x, y = coordinates[:dots].T
    ax.scatter(x, y, s=34, color=POINT, zorder=3, linewidths=0)
    for a, b in arrows:
        ax.annotate("", coordinates[b], coordinates[a], zorder=2, arrowprops=ARROW)
    # equal scales on both axes, so that distances are not distorted
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.18)
    name_axes(ax, *axes)
    ax.tick_params(length=0, pad=5, labelsize=8, labelcolor=QUIET)
    ax.grid(color=EMPTY, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[:].set_visible(False)
    names = [
        ax.annotate(shorten(drawable(label), LONGEST), point, OFFSETS[0],
                    textcoords="offset points", fontsize=10, color=INK, zorder=4)
        for label, point in zip(labels, coordinates, strict=True)
    ]  # fmt: skip
    style.finish(figure, title)
    figure.draw_without_rendering()  # sets the positions of the points
    _place_names(names, ax, coordinates, arrows)
    return figure


def _place_names(
    names: Sequence[Annotation], ax: Axes, positions: np.ndarray, arrows: Sequence[tuple[int, int]]
) -> None:
    """Place each name at the offset in `OFFSETS` where it overlaps least with other items."""
    points = ax.transData.transform(positions)
    pixels = ax.figure.dpi / 72  # per 1/72 inch
    occupied = _boxes(points, 4)
    for a, b in arrows:
        occupied = np.vstack([occupied, _boxes(np.linspace(points[a], points[b], 60), 2)])
    for name, point in zip(names, points, strict=True):
        trials = []
        for x, y in OFFSETS:
            _move(name, x, y)
            box = np.atleast_2d(name.get_window_extent().padded(3, 0).extents)
            end = pixels * np.array([x, y])
            line = _boxes(np.linspace(point + 0.3 * end, point + end, 12), 1)
            boxes = np.vstack([box, line]) if _is_far(x, y) else box
            outside = _overlap(box, box) - _overlap(box, np.atleast_2d(ax.bbox.extents))
            overlap = _overlap(boxes, occupied) + outside
            trials.append((overlap, x, y, boxes))
            if not overlap:
                break
        _, x, y, boxes = min(trials, key=lambda trial: trial[0])
        _move(name, x, y)
        occupied = np.vstack([occupied, boxes])
        if _is_far(x, y):
            ax.annotate("", name.xy, (x, y), textcoords="offset points",
                        zorder=2, arrowprops=LEADER)  # fmt: skip


def _is_far(x: float, y: float) -> bool:
    return max(abs(x), abs(y)) > NEAR


def _move(name: Annotation, x: float, y: float) -> None:
    """Move a name to an offset (x, y) from its point, aligned away from the point."""
    name.set_position((x, y))
    name.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
    name.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")


def _boxes(points: np.ndarray, reach: float) -> np.ndarray:
    """Return boxes (n, 4) around points (n, 2): left, bottom, right, top."""
    return np.hstack([points - reach, points + reach])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> float:
    """Return the total area of overlap between boxes (n, 4) and others (m, 4)."""
    low = np.maximum(boxes[:, None, :2], others[:, :2])
    high = np.minimum(boxes[:, None, 2:], others[:, 2:])
    return float((high - low).clip(0).prod(-1).sum())
