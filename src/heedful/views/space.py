"""Words as points on a plane, with arrows from one to another where asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from heedful.views.labels import drawable
from heedful.views.style import EMPTY, INK, QUIET, head, literal

POINT, ARROW = "#277f8e", "#d1701f"
SIDES = ((1, 0), (0, 1), (-1, 0), (0, -1), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8), (-0.8, -0.8))
AROUND = [(x * far, y * far) for far in (7, 14, 24) for x, y in SIDES]  # where a name may stand


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
    figure = Figure(figsize=(7.5, 6), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.scatter(places[:, 0], places[:, 1], s=34, color=POINT, zorder=3, linewidths=0)
    for a, b in arrows:
        ax.annotate("", places[b], places[a], zorder=2, arrowprops=_arrow())
    _frame(ax, places, shares)
    head(figure, title)
    names = [drawable(label) for label in labels]
    texts = [
        ax.annotate(name, place, (7, 0), textcoords="offset points", fontsize=10, color=INK,
                    ha="left", va="center", zorder=4)
        for name, place in zip(names, places, strict=True)
    ]  # fmt: skip
    literal(figure)
    canvas.draw()
    _spread(texts, canvas.get_renderer(), ax.transData.transform(places))
    return figure


def _arrow() -> dict:
    return {"arrowstyle": "-|>", "color": ARROW, "linewidth": 1.4, "shrinkA": 7, "shrinkB": 7}


def _frame(ax: Axes, places: np.ndarray, shares: Sequence[float]) -> None:
    # one scale for both axes: distances in the picture are those of the plane
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.18)
    for name, share in zip("xy", shares, strict=True):
        order = "first" if name == "x" else "second"
        text = f"{order} principal component · {100 * share:.0f} % of the variance"
        getattr(ax, f"set_{name}label")(text, fontsize=9, color=QUIET, labelpad=6)
    ax.tick_params(length=0, pad=5, labelsize=8, labelcolor=QUIET)
    ax.grid(color=EMPTY, linewidth=0.6)
    ax.set_axisbelow(True)
    for side in ax.spines.values():
        side.set_visible(False)


def _spread(texts: Sequence, renderer: RendererBase, points: np.ndarray) -> None:
    """Each name goes to the place around its point where it covers least."""
    dots = [_around(point) for point in points]
    taken: list[Bbox] = []
    for text in texts:
        covered = {}
        for offset in AROUND:
            box = _put(text, offset, renderer)
            covered[offset] = sum(_shared(box, other) for other in (*taken, *dots))
            if covered[offset] == 0:
                break
        taken.append(_put(text, min(covered, key=lambda at: covered[at]), renderer))


def _put(text: Text, offset: tuple[float, float], renderer: RendererBase) -> Bbox:
    """Move a name to an offset from its point, in dots; what it then covers."""
    x, y = offset
    text.set_position(offset)
    text.set_horizontalalignment("left" if x > 1 else "right" if x < -1 else "center")
    text.set_verticalalignment("center" if abs(y) < 1 else "bottom" if y > 0 else "top")
    return text.get_window_extent(renderer)


def _around(point: np.ndarray) -> Bbox:
    return Bbox.from_extents(*(point - 4), *(point + 4))


def _shared(one: Bbox, other: Bbox) -> float:
    common = Bbox.intersection(one, other)
    return 0.0 if common is None else common.width * common.height
