"""Tables of vectors side by side, a row for each token, and shares as bars."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from heedful.errors import ArgumentError
from heedful.pictures import style
from heedful.pictures.labels import columns, drawable, label, shorten
from heedful.pictures.style import INK, LETTER, QUIET

Array: TypeAlias = np.ndarray | torch.Tensor
BESIDE = 3  # tables in a row
WIDTH = 9.0  # inches, of a whole figure at the most
SIZE = 8.0  # points, of a token's label
HIGHEST = 5.5  # inches, of one table
SHARE = 99.5  # percent of the numbers lie within the scale; a few that stand out do not stretch it


def vectors(
    tables: Sequence[Array],
    tokens: Sequence[Sequence[str]],
    *,
    titles: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Tables of vectors under one scale: a row is a token, a column a number of its vector.

    Blue is below 0 and red above. Few numbers that stand far out are drawn as the ends of the
    scale, so that the others can be told apart; the colour bar then has arrows.

    Args:
        tables: arrays (N, width), of any widths.
        tokens: the N tokens of each table.
        titles: one for each table.
        title: over all.

    Raises:
        ArgumentError: no tables, or one with other rows than tokens.

    >>> figure = vectors([np.eye(2, 3)], [["red", "sky"]], titles=["embeddings"])
    >>> figure.axes[0].images[0].get_array().shape
    (2, 3)
    """
    drawn = [_table(values, names) for values, names in zip(tables, tokens, strict=True)]
    if not drawn:
        raise ArgumentError("no tables", expected="one or more")
    limit, is_cut = _limit(drawn)
    colours = style.colours("RdBu_r")
    names = [[label(token) for token in part] for part in tokens]
    beside = 2 if len(drawn) == 4 else min(BESIDE, len(drawn))
    rows = math.ceil(len(drawn) / beside)
    high = min(HIGHEST, max(1.2, max(map(len, names)) * SIZE * 1.35 / 72))
    left = max(columns(name) for part in names for name in part) * LETTER * SIZE / 72
    figure = Figure(
        figsize=(min(WIDTH, beside * 3.2 + left + 1.0), rows * (high + 0.75) + 0.6),
        layout="constrained",
        facecolor="white",
    )
    axes = []
    for i, values in enumerate(drawn):
        ax = figure.add_subplot(rows, beside, i + 1)
        image = ax.imshow(
            values, cmap=colours, norm=Normalize(-limit, limit), aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        ax.spines[:].set_visible(False)
        fits = int((WIDTH - left) / beside * 72 / (9.5 * LETTER))
        ax.set_title(shorten(drawable(titles[i]), fits), fontsize=9.5, color=INK, loc="left")
        style.whole_numbers(ax, "dimension" if i >= len(drawn) - beside else "", "")
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10], integer=True))
        repeated = i % beside and names[i] == names[i - 1]
        _rows(ax, [] if repeated else names[i], high)
        axes.append(ax)
    style.bar(figure, image, "value", "both" if is_cut else "neither", ax=axes)
    style.head(figure, title)
    style.literal(figure)
    return figure


def bars(
    shares: Sequence[Sequence[float]],
    names: Sequence[Sequence[str]],
    *,
    titles: Sequence[str],
    title: str | None = None,
    meaning: str = "probability",
) -> Figure:
    """Shares as bars, each with its name and number; several groups under one scale from 0.

    Args:
        shares: those of each group, the first one on top.
        names: of each group's bars.
        titles: one for each group.
        title: over all.
        meaning: what the scale shows.

    Raises:
        ArgumentError: no groups, or other names than shares.

    >>> figure = bars([[0.75, 0.25]], [["tea", "milk"]], titles=["after cup of"])
    >>> [float(bar.get_width()) for bar in figure.axes[0].patches]
    [0.75, 0.25]
    """
    if not shares or any(len(a) != len(b) or not a for a, b in zip(shares, names, strict=True)):
        raise ArgumentError("bars without names", expected="a name for each of one bar or more")
    beside = min(BESIDE, len(shares))
    rows = math.ceil(len(shares) / beside)
    count = max(map(len, shares))
    figure = Figure(
        figsize=(min(WIDTH, 1.6 + 3.4 * beside), rows * (0.27 * count + 0.9) + 0.5),
        layout="constrained",
        facecolor="white",
    )
    top = max(max(group) for group in shares) or 1.0
    for i, (group, texts) in enumerate(zip(shares, names, strict=True)):
        ax = figure.add_subplot(rows, beside, i + 1)
        ax.barh(range(len(group)), group, color="#277f8e", height=0.72)
        for place, share in enumerate(group):
            ax.text(
                share + 0.015 * top, place, f"{share:.3f}", va="center", fontsize=8, color=QUIET
            )
        ax.set_xlim(0, 1.18 * top)
        ax.spines[["top", "right", "bottom"]].set_visible(False)
        ax.spines["left"].set_color(style.EMPTY)
        ax.set_yticks(range(len(group)), [label(text, 16) for text in texts])
        ax.invert_yaxis()
        ax.tick_params(length=0, labelsize=8.5, labelcolor=INK)
        ax.tick_params(axis="x", labelcolor=QUIET, labelsize=8)
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_xlabel(meaning if i >= len(shares) - beside else "", fontsize=9, color=QUIET)
        ax.set_title(shorten(drawable(titles[i]), 40), fontsize=9.5, color=INK, loc="left")
    style.head(figure, title)
    style.literal(figure)
    return figure


def _table(values: Array, tokens: Sequence[str]) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    if values.ndim != 2 or len(values) != len(tokens) or not values.size:
        raise ArgumentError(
            f"a table of the shape {values.shape}", expected=f"({len(tokens)}, width)"
        )
    return values


def _limit(tables: Sequence[np.ndarray]) -> tuple[float, bool]:
    """Where the scale ends, and whether numbers lie beyond it."""
    sizes = np.concatenate([np.abs(table[np.isfinite(table)]) for table in tables])
    most = float(sizes.max(initial=0.0)) or 1.0
    limit = float(np.percentile(sizes, SHARE)) if sizes.size else 1.0
    return (most, False) if limit < most / 1000 or most < 1.5 * limit else (limit, True)


def _rows(ax: Axes, names: Sequence[str], high: float) -> None:
    """Labels of the rows, as many as there is room for."""
    if not names:
        ax.set_yticks([])
        return
    step = max(1, math.ceil(SIZE * 1.15 / (high * 72 / len(names)) - 1e-9))
    places = range(0, len(names), step)
    ax.set_yticks(places, [names[i] for i in places])
    ax.tick_params(axis="y", length=0, labelsize=SIZE, labelcolor=INK)
