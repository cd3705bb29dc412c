"""How every figure looks: ink, quiet axes, literal text, one colour bar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LogNorm, PowerNorm
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from heedful.pictures.labels import drawable, families_of, shorten

INK, QUIET, EMPTY = "#24292f", "#6e7781", "#dfe3e7"
PALE, STRIPES = "#eef0f2", "#b4bbc2"  # what is hidden: the ground, and the stripes on it
LETTER = 0.62  # the width of an average letter of DejaVu Sans, in its size


def colours(name: str) -> Colormap:
    """A colour map of matplotlib in which masked cells are clear: what is behind them shows."""
    return matplotlib.colormaps[name].with_extremes(bad=(0, 0, 0, 0))


def name_axes(ax: Axes, x: str, y: str) -> None:
    """What is across and what is up."""
    ax.set_xlabel(x, fontsize=9, color=QUIET, labelpad=6)
    ax.set_ylabel(y, fontsize=9, color=QUIET, labelpad=6)


def whole_numbers(ax: Axes, x: str, y: str) -> None:
    """Names the axes, with whole numbers along x and no tick marks."""
    name_axes(ax, x, y)
    ax.tick_params(length=0, pad=5, labelsize=8.5, labelcolor=INK)
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 4, 5, 10], integer=True, min_n_ticks=1))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def quiet(ax: Axes) -> None:
    """Leaves only the lines that a curve over steps needs."""
    ax.spines[["top", "left", "right"]].set_visible(False)
    ax.spines["bottom"].set_color("#d0d7de")
    ax.grid(axis="y", color="#eaeef2", linewidth=0.8)
    ax.set_axisbelow(True)


def name_ends(ax: Axes, ends: Iterable[tuple[float, str, str]], gap: float) -> None:
    """What lines are called, at their right ends, none over another.

    Args:
        ax: with the lines.
        ends: the last value of each line, its name and its colour.
        gap: between two names, in heights of the axes.
    """
    ax.autoscale_view()  # else the limits are not yet those of the lines
    low, high = ax.get_ylim()
    ranked = sorted(((value - low) / (high - low), name, colour) for value, name, colour in ends)
    places = apart([place for place, _, _ in ranked], gap)
    for at, (_, name, colour) in zip(places, ranked, strict=True):
        ax.annotate(
            name, (1, at), xycoords="axes fraction", xytext=(6, 0), textcoords="offset points",
            va="center", fontsize=8.5, color=colour, annotation_clip=False,
        )  # fmt: skip


def apart(places: Sequence[float], gap: float) -> list[float]:
    """Rising places from 0 to 1, moved as little as keeps them apart; first up, then down from 1.

    >>> apart([0.2, 0.25, 0.98, 1.0], 0.1)
    [0.2, 0.3, 0.9, 1.0]
    """
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    highest = max(1.0, places[-1]) if moved else 1.0
    for at in reversed(range(len(moved))):
        moved[at] = round(min(moved[at], highest), 6)
        highest = moved[at] - gap
    return moved


def bar(
    figure: Figure, shown: ScalarMappable, meaning: str, extend: Any = "neither", **where: Any
) -> None:
    """A colour bar that `meaning` names, with arrows at ends beyond which numbers lie (`extend`).

    It stands on axes of its own, `cax`, or takes its room from others, `ax`.
    """
    room: dict[str, Any] = {} if "cax" in where else {"fraction": 0.05, "pad": 0.03, "aspect": 28}
    bar = figure.colorbar(shown, extend=extend, **where, **room)
    bar.outline.set_visible(False)
    bar.ax.tick_params(which="both", length=0, labelsize=8, labelcolor=QUIET, pad=4)
    bar.set_label(meaning, fontsize=8.5, color=QUIET, labelpad=6)
    if isinstance(bar.norm, LogNorm):  # in plain numbers: no formula is drawn
        bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    if isinstance(bar.norm, PowerNorm):  # at even distances: small weights have most room
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


def figure(width: float, height: float) -> Figure:
    """A white figure of so many inches, whose axes make room for what stands at them."""
    return Figure(figsize=(width, height), layout="constrained", facecolor="white")


def finished(figure: Figure, title: str | None = None) -> Figure:
    """A figure with its title, every text as it stands."""
    head(figure, title)
    literal(figure)
    return figure


def literal(figure: Figure) -> None:
    """Every text as it stands: `$` starts no formula, and each script finds its font."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_fontfamily(families_of(text.get_text()))
