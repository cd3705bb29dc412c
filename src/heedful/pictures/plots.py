"""Pictures of attention and of training, for PNG, SVG or PDF.

Every function returns a `matplotlib.figure.Figure` that belongs to nobody else: pyplot and its
global state are never used. Rows are queries and columns are keys, everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from heedful.errors import ArgumentError
from heedful.pictures import layers, style
from heedful.pictures.frames import Block, Line
from heedful.pictures.names import names
from heedful.pictures.saving import save
from heedful.pictures.scale import around_zero, largest

__all__ = ["heatmaps", "positions", "save", "scores"]

Array: TypeAlias = np.ndarray | torch.Tensor


def heatmaps(
    weights: Sequence[Array],
    tokens: Sequence[str],
    *,
    titles: Sequence[str],
    key_tokens: Sequence[str] | None = None,
    allowed: Array | None = None,
    title: str | None = None,
) -> Figure:
    """Attention weights as heat maps side by side, all on one scale from 0 to the largest.

    The scale ends at 1 where the largest is nearly that.

    Args:
        weights: arrays (N, M), one a head; rows are queries, columns keys.
        tokens: the N queries' tokens.
        titles: one for each map, as `layer 3, head 1`.
        key_tokens: the M keys' tokens; default: the same as `tokens`.
        allowed: boolean (N, M), True where a query may look; the other cells are drawn as
            empty, which differs from a weight of 0. Default: all are drawn.
        title: over all.

    Returns:
        a figure. Maps of up to 10 tokens show their numbers, where these have room; in larger
        ones the colour follows the square root of the weight, so that small weights can be told
        apart.

    Raises:
        ArgumentError: no maps, or a shape that does not fit the tokens.

    >>> weights = np.array([[1.0, 0.0], [0.25, 0.75]])
    >>> figure = heatmaps([weights], ["red", "sky"], titles=["head 0"], allowed=np.tri(2) > 0)
    >>> figure.axes[0].images[0].get_array()[1].tolist()
    [0.25, 0.75]
    """
    if not weights or len(titles) != len(weights):
        raise ArgumentError(
            f"{len(titles)} titles for {len(weights)} maps",
            expected="one or more, a title for each",
        )
    keys = tokens if key_tokens is None else key_tokens
    maps = [_matrix(values, f"weights[{i}]", tokens, keys) for i, values in enumerate(weights)]
    hidden = np.zeros(maps[0].shape, bool)
    if allowed is not None:
        hidden = _matrix(allowed, "allowed", tokens, keys) == 0
    drawn = [np.ma.masked_where(hidden | ~np.isfinite(values), values) for values in maps]
    return layers.draw([_block(drawn, titles, tokens, keys)], title=title)


def _block(
    maps: Sequence[np.ma.MaskedArray],
    titles: Sequence[str],
    queries: Sequence[str],
    keys: Sequence[str],
) -> Block:
    return Block([Line("", maps)], titles, names(queries), names(keys))


def scores(
    scaled: Array,
    masked: Array | None,
    tokens: Sequence[str],
    *,
    key_tokens: Sequence[str] | None = None,
    title: str | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """The scores before and after the mask, side by side; blue is below 0 and red above.

    Args:
        scaled: scores (N, M) after scaling, before the mask.
        masked: the same with −inf where a query may not look; those cells are empty. None: there
            is no mask, and one map is drawn.
        tokens: the N queries' tokens.
        key_tokens: the M keys' tokens; default: the same as `tokens`.
        title: over all.
        notes: lines beneath.

    Raises:
        ArgumentError: a shape that does not fit the tokens.

    >>> scaled = np.array([[0.3, -1.2], [0.5, 2.0]])
    >>> masked = np.where(np.tri(2) > 0, scaled, -np.inf)
    >>> figure = scores(scaled, masked, ["red", "sky"])
    >>> figure.axes[1].images[0].get_array().mask.tolist()
    [[False, True], [False, False]]
    """
    keys = tokens if key_tokens is None else key_tokens
    given = {"scaled": scaled} if masked is None else {"scaled": scaled, "masked": masked}
    tables = [_matrix(values, name, tokens, keys) for name, values in given.items()]
    drawn = [np.ma.masked_invalid(table) for table in tables]
    titles = ["scores"] if masked is None else ["scaled scores", "after the mask"]
    block = _block(drawn, titles, tokens, keys)
    return layers.draw_scaled([block], around_zero(drawn[:1], "score"), title=title, notes=notes)


def positions(
    table: Array,
    *,
    title: str | None = None,
    columns: str = "dimension",
    meaning: str = "value",
) -> Figure:
    """The positional table: rows are positions, columns the dimensions of the model.

    Args:
        table: (N, width); the scale is symmetric about 0, so −1 to 1 for sines and cosines.
        title: over all.
        columns: what a column is; for rotary positions a pair of dimensions.
        meaning: what the colour bar says it shows.

    Raises:
        ArgumentError: not a table of numbers.

    >>> positions(np.ones((16, 64))).axes[0].get_xlabel()
    'dimension'
    """
    values = np.ma.masked_invalid(_matrix(table, "table"))
    limit = largest([values])
    figure = style.figure(8, 4.5)
    ax = figure.add_subplot()
    image = ax.imshow(
        values, cmap=style.colours("viridis"), norm=Normalize(-limit, limit), aspect="auto"
    )
    ax.spines[:].set_visible(False)
    style.whole_numbers(ax, columns, "position")
    style.bar(figure, image, meaning, ax=ax)
    return style.finished(figure, title)


def _matrix(
    values: Array,
    name: str,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
) -> np.ndarray:
    """A table of numbers as float64, from a tensor of any kind and device, or an array.

    Args:
        values: (N, M), neither 0.
        name: of the argument, for an error.
        queries, keys: where these are given, its N and M tokens.
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
    if queries is not None and keys is not None and table.shape != (len(queries), len(keys)):
        raise ArgumentError(
            f"{name} has the shape {table.shape}",
            expected=f"{(len(queries), len(keys))}, a row for each query and a column for each key",
            remedy="give key_tokens where queries and keys differ",
        )
    return table
