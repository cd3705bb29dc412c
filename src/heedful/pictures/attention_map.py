"""One map on its axes: cells, their colours and numbers, and the labels of its tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LogNorm, Normalize, PowerNorm
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from heedful.errors import ArgumentError
from heedful.pictures.labels import columns
from heedful.pictures.style import INK, LETTER, PALE, STRIPES, colours

LEAST = 6.5  # points: labels get so small before some are left out
# How labels of keys can stand, in degrees, and the room that one needs of its cell, in letter sizes
ANGLES = {45: 1.5, 90: 1.15}
SMALL = 10  # tokens: up to here the numbers stand in the cells, where there is room
LEGIBLE = 5.5  # points: numbers smaller than this are left out
NUMBER = 0.3  # the size of a number, in sides of its cell
SCALES = {
    "linear": "attention weight",
    "sqrt": "attention weight, square-root scale",
    "log": "attention weight, logarithmic scale",
}
DECADES = 4  # of a logarithmic scale; what is smaller has its lowest colour


class Fit(NamedTuple):
    """How the labels of tokens stand along a map."""

    size: float  # in points
    steps: tuple[int, int]  # every how many queries, and keys, a label stands
    angle: int  # of the labels of keys, in degrees

    @property
    def is_read(self) -> bool:
        """Whether every label stands, and can be read."""
        return self.steps == (1, 1) and self.size >= LEGIBLE


def fit(
    size: float, keys: Sequence[str], shape: tuple[int, int], width: float, height: float
) -> Fit:
    """How labels stand along a map of `shape` (N, M), of so many inches.

    All of them upright, else all of them slanted, if need be smaller, else all on end; else
    slanted, and some are left out.

    Args:
        size: the preferred one, in points.
        keys: the labels of the keys.
        shape: (N, M).
        width, height: of the map.
    """
    query, key = height / shape[0] * 72, width / shape[1] * 72
    size, angle = _size(size, max(map(columns, keys)) * LETTER, query, key)
    across = _step(ANGLES[angle] * size, key) if angle else 1
    return Fit(size, (_step(ANGLES[90] * size, query), across), angle)


def depth(keys: Sequence[str], how: Fit) -> float:
    """How far the labels of keys reach down, in inches."""
    letters = max(map(columns, keys)) * LETTER
    return how.size * max(letters * math.sin(math.radians(how.angle)), 1) / 72


def _size(size: float, letters: float, query: float, key: float) -> tuple[float, int]:
    """The size and the angle; `query` and `key` are the room of a label of theirs, in points."""
    if query >= ANGLES[90] * LEAST:
        size = min(size, query / ANGLES[90])
    if (letters + LETTER / 2) * size < key:  # and half a letter between two
        return size, 0
    for angle, room in ANGLES.items():
        if key >= room * LEAST:
            return min(size, key / room), angle
    return size, 45


def _step(room: float, cell: float) -> int:
    """Every how many cells of so many points a label stands that needs so many."""
    return max(1, math.ceil(room / cell - 1e-9))


def draw_map(
    ax: Axes,
    values: np.ma.MaskedArray,
    colours: Colormap,
    norm: Normalize,
    cell: float,
    numbers: bool | None = None,
) -> AxesImage:
    """The cells of a map, hidden ones striped; `cell` is the side of one, in inches.

    Args:
        numbers: whether they stand in the cells; None: in small maps, where they are legible.
    """
    N, M = values.shape
    stripe(ax, values, (-0.5, -0.5, M, N))
    image = ax.imshow(values, cmap=colours, norm=norm, aspect="auto", zorder=1)
    ax.spines[:].set_visible(False)
    is_small = max(values.shape) <= SMALL
    if is_small or numbers:
        ax.set_xticks(np.arange(1, M) - 0.5, minor=True)
        ax.set_yticks(np.arange(1, N) - 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.2 if is_small else 0.6)
    size = min(9.0, cell * 72 * NUMBER)
    if numbers or (numbers is None and is_small and size >= LEGIBLE):
        _numbers(ax, image, values, size)
    return image


def stripe(ax: Axes, values: np.ma.MaskedArray, box: tuple[float, float, float, float]) -> None:
    """Stripes behind a map whose hidden cells let them through: no colour means "hidden".

    A grey alone would look like a weight where a picture is printed without colours.
    """
    if np.ma.getmaskarray(values).any():
        left, top, width, height = box
        with matplotlib.rc_context({"hatch.linewidth": 0.5}):
            ax.add_patch(Rectangle((left, top), width, height, hatch="/" * 7, facecolor=PALE,
                                   edgecolor=STRIPES, linewidth=0, zorder=0))  # fmt: skip


def number(value: float) -> str:
    """A value for a cell, in at most five letters or so.

    >>> number(0.25), number(-0.001), number(-1.5), number(1234.5)
    ('0.25', '0.00', '−1.50', '1.23e+03')
    """
    return (f"{value:z.2f}" if abs(value) < 100 else f"{value:.3g}").replace("-", "−")


def _numbers(ax: Axes, image: AxesImage, values: np.ma.MaskedArray, size: float) -> None:
    shades = image.to_rgba(values)
    for row, col in zip(*np.nonzero(~np.ma.getmaskarray(values)), strict=True):
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
    """Ink or white, whichever has more contrast (WCAG 2.2, relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in background]
    luminance = float(np.dot([0.2126, 0.7152, 0.0722], linear))
    return INK if (luminance + 0.05) / 0.072 > 1.05 / (luminance + 0.05) else "white"


def draw_labels(
    ax: Axes, queries: Sequence[str] | None, keys: Sequence[str] | None, how: Fit
) -> None:
    """The labels of the tokens along a map; None leaves an axis without."""
    for axis, texts, step in zip((ax.yaxis, ax.xaxis), (queries, keys), how.steps, strict=True):
        axis.set_tick_params(which="both", length=0, pad=4, labelsize=how.size, labelcolor=INK)
        if texts is None:
            axis.set_ticks([])
        else:
            at = range(0, len(texts), step)
            axis.set_ticks(at, [texts[i] for i in at])
    if keys is not None and how.angle:
        ax.tick_params(axis="x", labelrotation=how.angle)
        for text in ax.get_xticklabels():
            # slanted, its end stands below the column; on end, its middle does
            upright = "center" if how.angle == 90 else "top"
            text.set(ha="right", va=upright, rotation_mode="anchor")


def draw_borders(
    ax: Axes,
    borders: tuple[Sequence[int], Sequence[int]],
    box: tuple[float, float, float, float],
    shape: tuple[int, int],
) -> None:
    """A line before each query, and each key, at which another text begins.

    `box` is where the map (N, M) is: left, top, width and height.
    """
    left, top, width, height = box
    lines = [
        ([left, left + width], [top + height * place / shape[0]] * 2) for place in borders[0]
    ] + [([left + width * place / shape[1]] * 2, [top, top + height]) for place in borders[1]]
    for x, y in lines:  # white beside the ink, so that it is seen on dark and on light cells
        ax.plot(x, y, color="white", linewidth=2.2, zorder=2, solid_capstyle="butt")
        ax.plot(x, y, color=INK, linewidth=0.9, zorder=3, solid_capstyle="butt")


class Scale(NamedTuple):
    """How the colours of maps follow their numbers, the same in all maps of a picture.

    meaning: what the colour bar says. is_cut: whether a number is above the end.
    """

    colours: Colormap
    norm: Normalize
    meaning: str
    is_cut: bool = False


def scale_of(
    maps: Sequence[np.ma.MaskedArray], kind: str | None, highest: float | None, small: bool
) -> Scale:
    """The scale for these maps, from 0 to the largest weight; 1 for nearly 1.

    Args:
        maps: what is drawn.
        kind: "linear", "sqrt" or "log"; None: linear in small maps, else sqrt. The first query of a
            causal map weighs 1; among many tokens all else would look like 0.
        highest: where the scale ends instead.
        small: whether the maps are.

    Raises:
        ArgumentError: another kind, or an end that is no number above 0.
    """
    kind = kind or ("linear" if small else "sqrt")
    if kind not in SCALES:
        raise ArgumentError(f"scale={kind!r}", expected="'linear', 'sqrt' or 'log'")
    if highest is not None and not (math.isfinite(highest) and highest > 0):
        raise ArgumentError(f"highest={highest}", expected="a number above 0, such as 1 or 0.2")
    found = largest(maps)
    end = float(highest or (1.0 if 0.9 < found < 1.001 else found))
    norm = {
        "linear": lambda: Normalize(0, end),
        "sqrt": lambda: PowerNorm(0.5, 0, end),
        "log": lambda: LogNorm(end / 10**DECADES, end, clip=True),
    }[kind]()
    return Scale(colours("viridis"), norm, SCALES[kind], found > end * 1.001)


def around_zero(maps: Sequence[np.ma.MaskedArray], meaning: str) -> Scale:
    """A scale as far below 0, in blue, as above it, in red."""
    limit = largest(maps)
    return Scale(colours("RdBu_r"), Normalize(-limit, limit), meaning)


def largest(maps: Sequence[np.ma.MaskedArray]) -> float:
    """The largest magnitude that is drawn; 1 where all are 0 or nothing is drawn."""
    return max((float(abs(values).max()) for values in maps if values.count()), default=0) or 1.0
