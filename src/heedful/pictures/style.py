"""How every figure looks: ink, quiet axes, literal text, one colour bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, Normalize
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
