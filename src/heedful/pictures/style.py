"""How every figure looks: ink, quiet axes, literal text, one colour bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, LogNorm, Normalize, PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from heedful.pictures.labels import drawable, families_of, shorten

INK, QUIET, EMPTY = "#24292f", "#6e7781", "#dfe3e7"
PALE, STRIPES = "#eef0f2", "#b4bbc2"  # what is hidden: the ground, and the stripes on it
LETTER = 0.62  # the width of an average letter of DejaVu Sans, in its size


def colours(name: str) -> Colormap:
    """A colour map of matplotlib in which masked cells are clear: what is behind them shows."""
    return matplotlib.colormaps[name].with_extremes(bad=(0, 0, 0, 0))


def whole_numbers(ax: Axes, x: str, y: str) -> None:
    """Names the axes, with whole numbers along x and no tick marks."""
    ax.set_xlabel(x, fontsize=9, color=QUIET, labelpad=6)
    ax.set_ylabel(y, fontsize=9, color=QUIET, labelpad=6)
    ax.tick_params(length=0, pad=5, labelsize=8.5, labelcolor=INK)
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 5, 10], integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def bar(figure: Figure, image: AxesImage, axes: Sequence[Axes], meaning: str) -> None:
    """One colour bar for all these axes; `meaning` names its scale."""
    bar = figure.colorbar(image, ax=list(axes), fraction=0.05, pad=0.03, aspect=28)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=8, labelcolor=QUIET, pad=4)
    bar.set_label(meaning, fontsize=9, color=QUIET, labelpad=8)
    _mark_small(bar)


def beside(
    figure: Figure, ax: Axes, norm: Normalize, colours: Colormap, meaning: str, is_cut: bool
) -> None:
    """A colour bar on axes of its own; one that is cut ends in an arrow."""
    shown = ScalarMappable(norm, colours)
    bar = figure.colorbar(shown, cax=ax, extend="max" if is_cut else "neither")
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", length=0, labelsize=8, labelcolor=QUIET, pad=4)
    if isinstance(norm, LogNorm):  # in plain numbers: no formula is drawn
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    bar.set_label(meaning, fontsize=8.5, color=QUIET, labelpad=6)
    _mark_small(bar)


def _mark_small(bar: Colorbar) -> None:
    """Numbers at even distances on a square-root scale, on which small weights have most room."""
    if isinstance(bar.norm, PowerNorm):
        marks = square_root_marks(float(bar.norm.vmax or 1.0))
        bar.set_ticks(marks, labels=[f"{mark:g}" for mark in marks])


def square_root_marks(highest: float) -> list[float]:
    """Round numbers from 0 to the highest that stand apart where their square roots are drawn.

    >>> square_root_marks(1.0)
    [0.0, 0.02, 0.1, 0.2, 0.5, 1.0]
    """
    found = [0.0]
    for power in range(-9, 1):
        for digit in (1, 2, 5):
            mark = digit * 10.0**power
            if (
                mark <= highest * 1.001
                and math.sqrt(mark / highest) - math.sqrt(found[-1] / highest) >= 0.12
            ):
                found.append(round(mark, 10))
    return found


def head(figure: Figure, title: str | None, inset: float = 0.0) -> None:
    """The title over a whole figure, `inset` inches below its edge, cut to its width."""
    if title is not None:
        fits = int(figure.get_figwidth() * 72 / (13 * LETTER))  # bold is a little wider
        text = shorten(drawable(" ".join(title.split())), fits)
        # a layout makes room for a title whose height it chooses itself
        place = {"y": 1 - inset / figure.get_figheight()} if inset else {}
        look: dict[str, Any] = {"fontsize": 12, "color": INK, "fontweight": "bold"}
        figure.suptitle(text, x=0.01, ha="left", **place, **look)


def literal(figure: Figure) -> None:
    """Every text as it stands: `$` starts no formula, and each script finds its font."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(families_of(text.get_text()))
