"""Words as points on a plane, with arrows from one to another where asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

from heedful.views.labels import drawable, shorten
from heedful.views.style import EMPTY, INK, QUIET, head, literal

POINT, ARROW = "#277f8e", "#d1701f"
LONGEST = 24  # columns of a name
# Where a name may stand, in points from its own: near before far, beside before above
SIDES = ((1, 0), (-1, 0), (0, 1), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))
AROUND = [(far * x, far * y) for far in (7, 14, 24) for x, y in SIDES]


def words(
    places: np.ndarray,
    labels: Sequence[str],
    shares: Sequence[float],
    *,
    arrows: Sequence[tuple[int, int]] = (),
    title: str | None = None,
) -> Figure:
    """Words at their places, each with its name beside it, none over another where that can be.

    Args:
        places: (n, 2).
        labels: n names.
        shares: of the whole variance, what each of the two axes shows.
        arrows: pairs of points; the same relation makes parallel arrows.
        title: over the picture.
    """
    figure = Figure(figsize=(7.5, 6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.scatter(places[:, 0], places[:, 1], s=34, color=POINT, zorder=3, linewidths=0)
    for a, b in arrows:
        ax.annotate("", places[b], places[a], zorder=2, arrowprops=_arrow())
    _frame(ax, shares)
    head(figure, title)
    names = [
        ax.annotate(shorten(drawable(label), LONGEST), place, AROUND[0],
                    textcoords="offset points", fontsize=10, color=INK, zorder=4)
        for label, place in zip(labels, places, strict=True)
    ]  # fmt: skip
    literal(figure)
    figure.draw_without_rendering()  # the layout says where the points are
    _put_all(names, ax, places, arrows)
    return figure


def _arrow() -> dict:
    return {"arrowstyle": "-|>", "color": ARROW, "linewidth": 1.4, "shrinkA": 7, "shrinkB": 7}


def _frame(ax: Axes, shares: Sequence[float]) -> None:
    # one scale for both axes: distances in the picture are those of the plane
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.18)
    first, second = (f"{100 * share:.0f}% of the variance" for share in shares)
    ax.set_xlabel(f"first principal component · {first}", fontsize=9, color=QUIET, labelpad=6)
    ax.set_ylabel(f"second principal component · {second}", fontsize=9, color=QUIET, labelpad=6)
    ax.tick_params(length=0, pad=5, labelsize=8, labelcolor=QUIET)
    ax.grid(color=EMPTY, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[:].set_visible(False)


def _put_all(
    names: Sequence[Annotation], ax: Axes, places: np.ndarray, arrows: Sequence[tuple[int, int]]
) -> None:
    """Each name goes to the place around its point where it covers least."""
    points = ax.transData.transform(places)
    taken = [_around(point, 4) for point in points]
    for a, b in arrows:
        taken += [_around(point, 2) for point in np.linspace(points[a], points[b], 60)]
    for name in names:
        tried = []
        for x, y in AROUND:
            _put(name, x, y)
            box = name.get_window_extent()
            covered = sum(_shared(box, other) for other in taken) + _outside(box, ax.bbox)
            tried.append((covered, x, y))
            if not covered:
                break
        _put(name, *min(tried, key=lambda one: one[0])[1:])
        taken.append(name.get_window_extent())


def _put(name: Annotation, x: float, y: float) -> None:
    """A name at so many points from its own, growing away from it."""
    name.set_position((x, y))
    name.set_horizontalalignment("left" if x > 0 else "right" if x < 0 else "center")
    name.set_verticalalignment("bottom" if y > 0 else "top" if y < 0 else "center")


def _around(point: np.ndarray, reach: float) -> Bbox:
    return Bbox.from_extents(*(point - reach), *(point + reach))


def _outside(box: Bbox, frame: Bbox) -> float:
    return box.width * box.height - _shared(box, frame)


def _shared(one: Bbox, other: Bbox) -> float:
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else common.width * common.height
