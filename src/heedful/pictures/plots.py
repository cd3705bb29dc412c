"""Plots of attention weights, scores, positional tables and vectors.

Every function except `save` returns a new `matplotlib.figure.Figure`, without pyplot's global
state. In maps, rows are queries and columns are keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from heedful.errors import ArgumentError
from heedful.pictures import head_grid, style
from heedful.pictures.attention_map import SMALL, around_zero, scale_of
from heedful.pictures.labels import columns, drawable, label, names, shorten
from heedful.pictures.page_layout import Block, Line
from heedful.pictures.saving import save
from heedful.pictures.style import INK, LETTER, ROW

__all__ = ["frame_rows", "heatmaps", "positions", "save", "scores", "vectors"]

Array: TypeAlias = np.ndarray | torch.Tensor
PER_ROW = 3  # maximum number of tables side by side
WIDTH = 9.0  # inches, largest width of tables of vectors
SIZE = 8.0  # points, of a token's label
HIGHEST = 5.5  # inches, largest height of a table; with several lines of tables, less
SHARE = 99.5  # percentile at which the scale ends, so that outliers do not stretch it


def heatmaps(
    weights: Sequence[Array],
    tokens: Sequence[str],
    *,
    titles: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    allowed: Array | None = None,
    title: str | None = None,
    axes: tuple[str, str] = ("queries", "keys"),
    quantity: str = "attention weight",
) -> Figure:
    """Draw attention weights as heat maps side by side.

    All maps have the same scale, from 0 to the largest weight, or to 1 if that weight is nearly 1.

    Args:
        weights: arrays (N, M), one for each head; rows are queries, columns are keys.
        tokens: the tokens of the N queries.
        titles: a title for each map, such as `layer 3, head 1`.
        key_tokens: the tokens of the M keys; default: `tokens`.
        allowed: boolean (N, M), True = may attend; the other cells are striped, unlike cells of
            weight 0. Default: all pairs are allowed.
        title: above the maps.
        axes: the names of rows and columns, for other tables than attention weights.
        quantity: the name of the numbers, beside the colour scale.

    Returns:
        A figure. Maps of up to 10 tokens contain the numbers, if these fit. In larger maps the
        colour follows the square root of the weight, so that small weights are distinguishable.

    Raises:
        ArgumentError: no maps, a map without a title, or a shape that does not match the tokens.

    >>> weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    >>> figure = heatmaps([weights], ["red", "sky"], titles=["head 0"], allowed=np.tri(2) > 0)
    >>> figure.axes[0].images[0].get_array()[1].tolist()
    [0.25, 0.75]
    """
    if not weights or len(titles) != len(weights):
        raise ArgumentError(
            f"{len(titles)} titles for {len(weights)} maps",
            expected="at least one map, and a title for each map",
        )
    keys = tokens if key_tokens is None else key_tokens
    maps = [_matrix(values, f"weights[{i}]", tokens, keys) for i, values in enumerate(weights)]
    masked = np.zeros(maps[0].shape, bool)
    if allowed is not None:
        masked = _matrix(allowed, "allowed", tokens, keys) == 0
    masked_maps = [np.ma.masked_where(masked | ~np.isfinite(values), values) for values in maps]
    block = Block([Line("", masked_maps)], titles, names(tokens), names(keys), axes)
    scale = scale_of(masked_maps, None, None, max(maps[0].shape) <= SMALL)
    scale = scale._replace(meaning=scale.meaning.replace("attention weight", quantity))
    return head_grid.draw([block], title=title, scale=scale)


def scores(
    scaled: Array,
    masked: Array | None,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw the scores before and after the mask, side by side; orange is below 0, blue above.

    Args:
        scaled: scores (N, M), or (H, N, M) of several heads, after scaling, before the mask.
        masked: the scaled scores with −inf in masked cells, which are striped. None: no mask, so
            only one map is drawn.
        tokens: the tokens of the N queries.
        key_tokens: the tokens of the M keys; default: `tokens`.
        title: above the maps.
        notes: lines of text below the maps.

    Raises:
        ArgumentError: a shape that does not match the tokens.

    >>> scaled = np.array([[0.3, -1.2], [0.5, 2.0]])
    >>> masked = np.where(np.tri(2) > 0, scaled, -np.inf)
    >>> figure = scores(scaled, masked, ["red", "sky"])
    >>> figure.axes[1].images[0].get_array().mask.tolist()
    [[False, True], [False, False]]
    """
    keys = tokens if key_tokens is None else key_tokens
    inputs = {"scaled": scaled} if masked is None else {"scaled": scaled, "masked": masked}
    maps = [
        [np.ma.masked_invalid(_matrix(table, name, tokens, keys)) for table in heads]
        for name, values in inputs.items()
        for heads in [values if np.ndim(values) == 3 else [values]]
    ]
    titles = ["scores"] if masked is None else ["scaled scores", "after the mask"]
    lines = [Line(f"head {h}" * (len(maps[0]) > 1), line)
             for h, line in enumerate(zip(*maps, strict=True))]  # fmt: skip
    block = Block(lines, titles, names(tokens), names(keys))
    return head_grid.draw([block], scale=around_zero(maps[0], "score"), title=title, notes=notes)


def frame_rows(figure: Figure, rows: Sequence[int | None]) -> None:
    """Frame a row of each table or map of a figure, in their order; None: no row."""
    images = [image for ax in figure.axes for image in ax.images]
    for image, row in zip(images, rows, strict=True):
        if row is None:
            continue
        left, right, bottom, top = image.get_extent()
        height = (bottom - top) / image.get_size()[0]
        for colour, width in ("white", 3), (ROW, 1.5):
            frame = Rectangle((left, top + row * height), right - left, height, fill=False)
            frame.set(edgecolor=colour, linewidth=width, zorder=5, clip_on=False)
            image.axes.add_patch(frame)


def positions(
    table: Array, *, title: str | None = None, columns: str = "dimension", meaning: str = "value"
) -> Figure:
    """Draw a positional table; rows are positions, columns are dimensions of the model.

    Args:
        table: (N, width). The scale is symmetric about 0, so −1 to 1 for sines and cosines.
        title: above the table.
        columns: label of the x axis; for rotary positions a column is a pair of dimensions.
        meaning: label of the colour bar.

    Raises:
        ArgumentError: not a table of numbers.

    >>> positions(np.ones((16, 64))).axes[0].get_xlabel()
    'dimension'
    """
    values = np.ma.masked_invalid(_matrix(table, "table"))
    scale = around_zero([values], meaning)
    figure = style.figure(8, 4.5)
    ax = figure.add_subplot()
    image = ax.imshow(values, cmap=scale.colours, norm=scale.norm, aspect="auto")
    ax.spines[:].set_visible(False)
    style.whole_numbers(ax, columns, "position")
    style.bar(figure, image, meaning, ax=ax)
    return style.finish(figure, title)


def _matrix(
    values: Array,
    name: str,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> np.ndarray:
    """Convert a tensor of any type and device, or an array, to a float64 array (N, M).

    Args:
        values: the numbers; N and M must be at least 1.
        name: name of the argument, for error messages.
        queries, keys: if passed, their lengths must be N and M.
    """
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64).numpy()
    try:
        table = np.asarray(values, float)
    except (TypeError, ValueError):
        raise ArgumentError(f"{name} is not a table of numbers", expected="(N, M)") from None
    if table.ndim != 2 or not table.size:
        raise ArgumentError(
            f"{name} has the shape {table.shape}",
            expected="two axes, neither empty: queries and keys",
            remedy="choose one sequence and one head",
        )
    rows, across = (size if axis is None else len(axis)
                    for size, axis in zip(table.shape, (queries, keys), strict=True))  # fmt: skip
    if table.shape != (rows, across):
        raise ArgumentError(
            f"{name} has the shape {table.shape}",
            expected=f"{(rows, across)}, a row for each query and a column for each key",
            remedy="pass key_tokens if queries and keys differ",
        )
    return table


def vectors(
    tables: Sequence[Array],
    tokens: Sequence[Sequence[str]],
    *,
    titles: Sequence[str],
    title: str | None = None,
) -> Figure:
    """Draw tables of vectors on a common scale; a row is a token, a column a dimension.

    Orange is below 0, blue above. Outliers are clipped to the ends of the scale, so that other
    numbers are distinguishable. If any are clipped, the colour bar has arrows.

    Args:
        tables: arrays (N, width), of any widths.
        tokens: the N tokens of each table.
        titles: a title for each table.
        title: above the tables.

    Raises:
        ArgumentError: no tables, or a table whose rows are not as many as its tokens.

    >>> figure = vectors([np.eye(2, 3)], [["red", "sky"]], titles=["embeddings"])
    >>> figure.axes[0].images[0].get_array().shape
    (2, 3)
    """
    matrices = [
        _matrix(values, f"tables[{i}]", part)
        for i, (values, part) in enumerate(zip(tables, tokens, strict=True))
    ]
    if not matrices:
        raise ArgumentError("no tables", expected="one or more")
    numbers = np.concatenate([np.abs(table[np.isfinite(table)]) for table in matrices])
    highest = float(numbers.max(initial=0.0)) or 1.0
    limit = float(np.percentile(numbers, SHARE)) if numbers.size else 1.0
    is_cut = highest / 1000 <= limit <= highest / 1.5
    limit = limit if is_cut else highest
    colours = style.colours("signed")
    labels = [[label(token) for token in part] for part in tokens]
    cols = 2 if len(matrices) == 4 else min(PER_ROW, len(matrices))
    rows = math.ceil(len(matrices) / cols)
    height = min(HIGHEST / math.sqrt(rows), max(1.2, max(map(len, labels)) * SIZE * 1.35 / 72))
    left = max(columns(name) for part in labels for name in part) * LETTER * SIZE / 72
    size = min(WIDTH, cols * 3.2 + left + 1.0), rows * (height + 0.75) + 0.6
    figure = style.figure(*size)
    for i, values in enumerate(matrices):
        ax = figure.add_subplot(rows, cols, i + 1)
        image = ax.imshow(
            values, cmap=colours, norm=Normalize(-limit, limit), aspect="auto",
            interpolation="nearest",
        )  # fmt: skip
        ax.spines[:].set_visible(False)
        letters = int((WIDTH - left) / cols * 72 / (9.5 * LETTER))
        ax.set_title(shorten(drawable(titles[i]), letters), fontsize=9.5, color=INK, loc="left")
        style.whole_numbers(ax, "dimension" if i >= len(matrices) - cols else "", "")
        ax.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 4, 5, 10], integer=True))
        is_repeated = i % cols and labels[i] == labels[i - 1]
        _label_rows(ax, [] if is_repeated else labels[i], height)
    style.bar(figure, image, "value", "both" if is_cut else "neither", ax=figure.axes)
    return style.finish(figure, title)


def _label_rows(ax: Axes, names: Sequence[str], height: float) -> None:
    """Label as many rows as fit into a table of `height` inches, evenly spaced."""
    if not names:
        ax.set_yticks([])
        return
    step = max(1, math.ceil(SIZE * 1.15 / (height * 72 / len(names)) - 1e-9))
    ticks = range(0, len(names), step)
    ax.set_yticks(ticks, [names[i] for i in ticks])
    ax.tick_params(axis="y", length=0, labelsize=SIZE, labelcolor=INK)
