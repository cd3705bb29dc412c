"""The common style of all figures: colours, axes, titles, colour bars and fonts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, LogNorm, PowerNorm
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from heedful.pictures.labels import drawable, families, shorten

INK, QUIET, EMPTY = "#24292f", "#6e7781", "#dfe3e7"
PALE, STRIPES = "#eef0f2", "#b4bbc2"  # masked cells: background and stripes
ROW = "#8a2a84"  # frame of a selected row, and arrows, as on the page of a walk
# Numbers of both signs, as on that page: orange below 0, blue above
SIGNED = LinearSegmentedColormap.from_list(
    "signed", ["#863e07", "#d4762a", "#fafafa", "#4296e7", "#17559b"]
)
NAN = "#d0308c"  # cells that are not numbers
LETTER = 0.62  # average width of a letter of DejaVu Sans, in font sizes


def colours(name: str) -> Colormap:
    """Return "signed", or a colour map of matplotlib; its masked cells are transparent."""
    chosen = SIGNED if name == "signed" else matplotlib.colormaps[name]
    return chosen.with_extremes(bad=(0, 0, 0, 0))


def name_axes(ax: Axes, x: str, y: str) -> None:
    """Label the x axis and the y axis."""
    ax.set_xlabel(x, fontsize=9, color=QUIET, labelpad=6)
    ax.set_ylabel(y, fontsize=9, color=QUIET, labelpad=6)


def whole_numbers(ax: Axes, x: str, y: str) -> None:
    """Label the axes, with whole numbers along x and no tick marks."""
    name_axes(ax, x, y)
    ax.tick_params(length=0, pad=5, labelsize=8.5, labelcolor=INK)
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 5, 10], integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def quiet(ax: Axes) -> None:
    """Leave only the bottom border and horizontal grid lines."""
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.spines["bottom"].set_color("#d0d7de")
    ax.grid(axis="y", color="#eaeef2", linewidth=0.8)
    ax.set_axisbelow(True)


def name_ends(ax: Axes, ends: Iterable[tuple[float, str, str]], gap: float) -> None:
    """Write the name of each line of a plot at its right end, without overlaps.

    Args:
        ax: the axes with the lines.
        ends: the last value of each line, its name and its colour.
        gap: smallest distance between two names, as a fraction of the axes' height.
    """
    ax.autoscale_view()  # updates the limits to the lines
    low, high = ax.get_ylim()
    ordered = sorted(((value - low) / (high - low), name, colour) for value, name, colour in ends)
    heights = spread([height for height, _, _ in ordered], gap)
    for height, (_, name, colour) in zip(heights, ordered, strict=True):
        ax.annotate(
            name, (1, height), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
            va="center", fontsize=8.5, color=colour, annotation_clip=False,
        )  # fmt: skip


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights (ascending, from 0 to 1) so that neighbours are at least `gap` apart.

    Heights that are too close first move up; then heights move down until none exceeds 1.

    >>> spread([0.2, 0.25, 0.98, 1.0], 0.1)
    [0.2, 0.3, 0.9, 1.0]
    """
    result: list[float] = []
    for height in heights:
        result.append(max(height, result[-1] + gap) if result else height)
    highest = max(1.0, heights[-1]) if result else 1.0
    for i in reversed(range(len(result))):
        result[i] = round(min(result[i], highest), 6)
        highest = result[i] - gap
    return result


def bar(
    figure: Figure, mappable: ScalarMappable, meaning: str, extend: Any = "neither", **axes: Any
) -> None:
    """Draw a colour bar labelled `meaning`, with arrows at the ends `extend`, which numbers exceed.

    `axes` is `cax`, the axes to draw the bar in, or `ax`, the axes to take space from.
    """
    size: dict[str, Any] = {} if "cax" in axes else {"fraction": 0.05, "pad": 0.03, "aspect": 28}
    bar = figure.colorbar(mappable, extend=extend, **axes, **size)
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", length=0, labelsize=8, labelcolor=QUIET, pad=4)
    bar.set_label(meaning, fontsize=8.5, color=QUIET, labelpad=6)
    if isinstance(bar.norm, LogNorm):  # plain numbers instead of formulas
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if isinstance(bar.norm, PowerNorm):  # evenly spaced ticks
        marks = square_root_marks(float(bar.norm.vmax or 1.0))
        bar.set_ticks(marks, labels=[f"{mark:g}" for mark in marks])


def square_root_marks(highest: float) -> list[float]:
    """Return round numbers from 0 to at most `highest`, spaced for a square-root scale.

    >>> square_root_marks(1.0)
    [0.0, 0.02, 0.1, 0.2, 0.5, 1.0]
    """
    marks = [0.0]
    for mark in (digit * 10.0**power for power in range(-9, 1) for digit in (1, 2, 5)):
        gap = math.sqrt(mark / highest) - math.sqrt(marks[-1] / highest)
        if mark <= highest * 1.001 and gap >= 0.12:
            marks.append(round(mark, 10))
    return marks


def head(figure: Figure, title: str | None, inset: float = 0.0) -> None:
    """Draw a figure's title, shortened if needed, `inset` inches below the figure's upper edge."""
    if title is not None:
        letters = int(figure.get_figwidth() * 72 / (13 * LETTER))  # bold is a little wider
        text = shorten(drawable(" ".join(title.split())), letters)
        # without a position, the layout reserves space for the title
        position = {"y": 1 - inset / figure.get_figheight()} if inset else {}
        font: dict[str, Any] = {"fontsize": 12, "color": INK, "fontweight": "bold"}
        figure.suptitle(text, x=0.01, ha="left", **position, **font)


def figure(width: float, height: float) -> Figure:
    """Return a white figure of this size, in inches, with a constrained layout."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def finish(figure: Figure, title: str | None = None) -> Figure:
    """Add the title, call `literal`, and return the figure."""
    head(figure, title)
    literal(figure)
    return figure


def literal(figure: Figure) -> None:
    """Draw all text literally (`$` does not start a formula), in fonts that have its characters."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(families())
