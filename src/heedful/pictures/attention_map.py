"""Attention maps on matplotlib axes: their cells, colours, numbers and token labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, ListedColormap, LogNorm, Normalize, PowerNorm
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from heedful.errors import ArgumentError
from heedful.pictures.style import INK, LETTER, NAN, PALE, STRIPES, colours

LEAST = 6.5  # points: smallest size of labels; if not all fit at this size, some are left out
# Angles of key labels in degrees, and the cell width that each angle needs, in font sizes
ANGLES = {45: 1.5, 90: 1.15}
SMALL = 10  # tokens: maps up to this size show numbers in their cells if the numbers fit
LEGIBLE = 5.5  # points: numbers smaller than this are left out
NUMBER = 0.3  # font size of a number, as a fraction of the side of its cell
SCALES = {
    "linear": "attention weight",
    "sqrt": "attention weight, square-root scale",
    "log": "attention weight, logarithmic scale",
}
Bounds: TypeAlias = tuple[float, float, float, float]  # left, top, width and height
DECADES = 4  # powers of ten on a logarithmic scale; smaller weights have the lowest colour


class Fit(NamedTuple):
    """The placement of token labels along a map."""

    size: float  # in points
    steps: tuple[int, int]  # (n, m): every n-th query and every m-th key has a label
    angle: int  # of the key labels, in degrees

    @property
    def is_readable(self) -> bool:
        """Whether every token has a label that is large enough to read."""
        return self.steps == (1, 1) and self.size >= LEGIBLE


def fit(size: float, longest: int, shape: tuple[int, int], width: float, height: float) -> Fit:
    """Choose the placement of the labels along a map of shape (N, M).

    Placements of key labels in order of preference: all horizontal; all slanted; all vertical;
    some of them, slanted. All labels can be smaller than `size`, if their cells are small.

    Args:
        size: the preferred font size, in points.
        longest: the width of the longest key label, in columns.
        shape: (N, M).
        width, height: of the map, in inches.
    """
    query, key = height / shape[0] * 72, width / shape[1] * 72
    size, angle = _size(size, longest * LETTER, query, key)
    across = _step(ANGLES[angle] * size, key) if angle else 1
    return Fit(size, (_step(ANGLES[90] * size, query), across), angle)


def depth(longest: int, labels: Fit) -> float:
    """Return the height of key labels of up to `longest` columns below a map, in inches."""
    return labels.size * max(longest * LETTER * math.sin(math.radians(labels.angle)), 1) / 72


def _size(size: float, letters: float, query: float, key: float) -> tuple[float, int]:
    """Return size and angle of labels; a query has `query` points of space, a key `key` points."""
    if query >= ANGLES[90] * LEAST:
        size = min(size, query / ANGLES[90])
    if (letters + LETTER / 2) * size < key:  # with half a letter between two labels
        return size, 0
    for angle, room in ANGLES.items():
        if key >= room * LEAST:
            return min(size, key / room), angle
    return size, 45


def _step(room: float, cell: float) -> int:
    """Return the smallest n such that n cells of `cell` points hold a label of `room` points."""
    return max(1, math.ceil(room / cell - 1e-9))


def draw_map(
    ax: Axes, values: np.ma.MaskedArray, scale: Scale, cell: float, numbers: bool | None
) -> None:
    """Draw the cells of a map, with stripes in masked cells.

    Args:
        ax: the axes.
        values: (N, M), masked where a query may not attend.
        scale: the colour scale.
        cell: the side of a cell, in inches.
        numbers: whether to write numbers in the cells; None: in small maps, if legible.
    """
    N, M = values.shape
    stripe(ax, values, (-0.5, -0.5, M, N))
    image = ax.imshow(values, cmap=scale.colours, norm=scale.norm, aspect="auto", zorder=1)
    ax.spines[:].set_visible(False)
    is_small = max(values.shape) <= SMALL
    if is_small or numbers:
        ax.set_xticks(np.arange(1, M) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, N) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.2 if is_small else 0.6)
    size = min(9.0, cell * 72 * NUMBER)
    if numbers or (numbers is None and is_small and size >= LEGIBLE):
        _numbers(ax, image, values, size)


def stripe(ax: Axes, values: np.ma.MaskedArray, box: Bounds) -> None:
    """Draw stripes behind a map, visible in masked cells, and colour the cells that are NaN.

    In a print without colours, plain grey would look like a weight.
    """
    left, top, width, height = box
    if (broken := is_nan(values)).any():
        marks = np.ma.masked_where(~broken, broken.astype(float))
        add_image(ax, marks, box, ListedColormap([NAN]), Normalize())
    if np.ma.getmaskarray(values).any():
        with matplotlib.rc_context({"hatch.linewidth": 0.5}):
            ax.add_patch(Rectangle((left, top), width, height, hatch="/" * 7, facecolor=PALE,
                                   edgecolor=STRIPES, linewidth=0, zorder=0))  # fmt: skip


def add_image(
    ax: Axes, values: np.ma.MaskedArray, box: Bounds, colours: Colormap, norm: Normalize
) -> AxesImage:
    """Draw values in a box: faster than imshow, which also updates limits and ticks."""
    left, top, width, height = box
    extent = (left, left + width, top + height, top)
    image = AxesImage(ax, cmap=colours, norm=norm, origin="upper", zorder=1, extent=extent)
    image.set_data(values)
    return ax.add_image(image)


def is_nan(values: np.ma.MaskedArray) -> np.ndarray:
    """Return which cells are neither masked nor a number."""
    return np.isnan(np.ma.filled(values, 0.0))


def number(value: float) -> str:
    """Format a value for a cell, with two decimals or with three significant digits.

    >>> number(0.25), number(-0.001), number(-1.5), number(1234.5)
    ('0.25', '0.00', '−1.50', '1.23e+03')
    """
    return (f"{value:z.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")


def _numbers(ax: Axes, image: AxesImage, values: np.ma.MaskedArray, size: float) -> None:
    shades = image.to_rgba(values)
    for row, col in zip(*np.nonzero(~np.ma.getmaskarray(values) & ~is_nan(values)), strict=True):
        ax.text(
            col,
            row,
            number(values[row, col]),
            ha="center",
            va="center",
            fontsize=size,
            color=_readable(shades[row, col, :3]),
        )


def _readable(background: np.ndarray) -> str:
    """Return ink or white, whichever contrasts more with the background (luminance of WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
    return INK if (luminance + 0.05) / 0.072 > 1.05 / (luminance + 0.05) else "white"


def draw_labels(
    ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None, labels: Fit
) -> None:
    """Draw the labels of the tokens along a map; None leaves an axis without labels."""
    for axis, texts, step in zip((ax.yaxis, ax.xaxis), (queries, keys), labels.steps, strict=True):
        axis.set_tick_params(which="both", length=0, pad=4, labelsize=labels.size, labelcolor=INK)
        if texts is None:
            axis.set_ticks([])
        else:
            ticks = range(0, len(texts), step)
            axis.set_ticks(ticks, [texts[i] for i in ticks])
    if keys is not None and labels.angle:
        ax.tick_params(axis="x", labelrotation=labels.angle)
        for text in ax.get_xticklabels():
            # a slanted label ends below its column, a vertical label is centred on its column
            vertical = "center" if labels.angle == 90 else "top"
            text.set(ha="right", va=vertical, rotation_mode="anchor")


def draw_borders(
    ax: Axes, borders: tuple[Sequence[int], Sequence[int]], box: Bounds, shape: tuple[int, int]
) -> None:
    """Draw a line before each query and each key at which another text begins.

    `box` is the rectangle of the map. `shape` is (N, M).
    """
    left, top, width, height = box
    lines = [([left, left + width], [top + height * row / shape[0]] * 2) for row in borders[0]]
    lines += [([left + width * key / shape[1]] * 2, [top, top + height]) for key in borders[1]]
    for x, y in lines:  # ink with a white edge, visible on dark and on light cells
        ax.plot(x, y, color="white", linewidth=2.2, zorder=2, solid_capstyle="butt")
        ax.plot(x, y, color=INK, linewidth=0.9, zorder=3, solid_capstyle="butt")


class Scale(NamedTuple):
    """The colour scale of all maps of a picture.

    meaning: label of the colour bar. is_cut: whether a number exceeds the end of the scale.
    """

    colours: Colormap
    norm: Normalize
    meaning: str
    is_cut: bool = False


def scale_of(
    maps: Sequence[np.ma.MaskedArray], kind: str | None, highest: float | None, small: bool
) -> Scale:
    """Return the colour scale of weight maps; unless it is logarithmic, it starts at 0.

    Args:
        maps: the maps of the picture.
        kind: "linear", "sqrt" or "log"; None: linear for small maps, else sqrt. The first weight of
            a causal map is 1; on a linear scale, most weights of a large map would look like 0.
        highest: the end of the scale; None: the largest weight, or 1 if this weight is nearly 1.
        small: whether the maps have at most `SMALL` tokens.

    Raises:
        ArgumentError: another kind, or `highest` is not a finite number above 0.
    """
    kind = kind or ("linear" if small else "sqrt")
    if kind not in SCALES:
        raise ArgumentError(f"scale={kind!r}", expected="'linear', 'sqrt' or 'log'")
    if highest is not None and not (math.isfinite(highest) and highest > 0):
        raise ArgumentError(f"highest={highest}", expected="a number above 0, such as 1 or 0.2")
    maximum = largest(maps)
    end = float(highest or (1.0 if 0.9 < maximum < 1.001 else maximum))
    norm = {
        "linear": lambda: Normalize(0, end),
        "sqrt": lambda: PowerNorm(0.5, 0, end),
        "log": lambda: LogNorm(end / 10**DECADES, end, clip=True),
    }[kind]()
    return Scale(colours("viridis"), norm, SCALES[kind], maximum > end * 1.001)


def around_zero(maps: Sequence[np.ma.MaskedArray], meaning: str) -> Scale:
    """Return a scale symmetric about 0, orange below and blue above."""
    limit = largest(maps)
    return Scale(colours("signed"), Normalize(-limit, limit), meaning)


def largest(maps: Sequence[np.ma.MaskedArray]) -> float:
    """Return the largest magnitude in the maps; 1 if all are 0 or masked."""
    return max((float(abs(values).max()) for values in maps if values.count()), default=0) or 1.0
