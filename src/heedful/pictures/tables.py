"""Tables of vectors side by side, a row for each token."""

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
from heedful.pictures.style import INK, LETTER

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
    size = min(WIDTH, beside * 3.2 + left + 1.0), rows * (high + 0.75) + 0.6
    figure = style.figure(*size)
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
    return style.finished(figure, title)


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
