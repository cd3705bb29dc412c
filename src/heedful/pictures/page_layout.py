"""Layout of a grid of maps on a page, with sizes in inches.

The layout is planned before the maps are computed, so that no map gets more cells than can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heedful.errors import ArgumentError
from heedful.pictures.attention_map import LEGIBLE, NUMBER, Fit, depth, fit
from heedful.pictures.labels import columns
from heedful.pictures.style import LETTER

WIDTH = 9.0  # default width of a picture
BAR = 1.0  # width of the colour bar and its labels
NAME = 0.3  # width of a layer's vertical name
CELL = 0.6  # largest side of a cell
LARGEST = 6.0  # largest side of a map
ENOUGH = 1.1  # smallest width of a map if only some of its tokens have labels
LEAST = 0.3  # smallest side of a map without token labels
LONGEST = 250.0  # largest side of a picture; a saved file then has 50,000 dots along it
GROWN = 40.0  # largest width of a picture that is enlarged so that numbers fit into the cells
APART = 200  # maximum number of maps with token labels
LINE = 4  # heads per line for a single layer, if no arrangement shows every label
SHARP = 150  # cells per inch
FEW, MANY = 64, 512  # lower and upper limit of the cells per side of a map
HEADS = 0.24  # height of the head numbers above the maps


class Frame(NamedTuple):
    """The shape of a block: numbers of lines and of maps per line, and the shape (N, M) of a map.

    queries, keys, name, axis: the widths, in text columns, of the longest query label, of the
    longest key label, of the longest name of a line, and of the name of the vertical axis.
    """

    lines: int
    heads: int
    shape: tuple[int, int]
    queries: int = 0
    keys: int = 0
    name: int = 8
    axis: int = 7


class Line(NamedTuple):
    """The maps of a call of attention, one for each head of the block; None for a missing head."""

    name: str
    maps: Sequence[np.ma.MaskedArray | None]


class Block(NamedTuple):
    """Lines of maps with the same shape and axes.

    heads: the number or the name of each column. queries, keys: labels of a map's N rows and M
    columns. axes: names of the vertical and the horizontal axis. borders: the rows and the
    columns at which another text begins. full_shape: (N, M) before the maps were pooled.
    """

    lines: Sequence[Line]
    heads: Sequence[int | str]
    queries: Sequence[str]
    keys: Sequence[str]
    axes: tuple[str, str] = ("queries", "keys")
    heading: str | None = None
    borders: tuple[Sequence[int], Sequence[int]] = ((), ())
    full_shape: tuple[int, int] | None = None

    def title(self, column: int) -> str:
        """Return the title of a column."""
        head = self.heads[column]
        return head if isinstance(head, str) else f"head {head}"

    @property
    def frame(self) -> Frame:
        """The shape of the block."""
        return Frame(
            len(self.lines),
            len(self.heads),
            (len(self.queries), len(self.keys)),
            max(map(columns, self.queries)),
            max(map(columns, self.keys)),
            max(columns(line.name) for line in self.lines),
            columns(self.axes[0]),
        )


class Layout(NamedTuple):
    """The positions and sizes of the maps of a block."""

    cols: int  # maps in a line
    wraps: int  # lines per layer
    width: float  # of a map
    map_height: float
    gap: float  # between two maps
    left: float  # of the first map
    pitch: float  # from line to line
    height: float  # of the block, with the key labels
    has_tokens: bool
    labels: Fit

    @property
    def content(self) -> float:
        """The width of a line of maps."""
        return self.cols * (self.width + self.gap) - self.gap

    def cell(self, frame: Frame) -> float:
        """Return the smaller side of a cell."""
        return min(self.width / frame.shape[1], self.map_height / frame.shape[0])


def cells(frame: Frame, size: float | None = None) -> int:
    """Return the maximum number of cells along the longer side of a map in this block.

    >>> cells(Frame(4, 4, (1000, 1000))), cells(Frame(48, 64, (1000, 1000)))
    (244, 64)
    """
    _check_size(size)
    layout = _layout(frame._replace(queries=6, keys=6), size)
    return min(MANY, max(FEW, int(SHARP * max(layout.width, layout.map_height))))


def plan(frames: Sequence[Frame], size: float | None, values: bool | None) -> list[Layout]:
    """Return the layout of each block.

    Args:
        frames: the shapes of the blocks.
        size: the width of the picture; None: the default, or wider if needed.
        values: whether numbers must fit into the cells.

    Raises:
        ArgumentError: the numbers do not fit, or the picture is too large or too small.
    """
    _check_size(size)
    layouts = [_layout(frame, size, bool(values)) for frame in frames]
    if max(layout.left + layout.content for layout in layouts) + BAR > LONGEST or (
        sum(layout.height for layout in layouts) > LONGEST
    ):
        lines = sum(frame.lines for frame in frames)
        raise ArgumentError(
            f"a picture of {lines:,} lines of {max(frame.heads for frame in frames):,} maps",
            expected=f"at most {LONGEST:g} inches in height and width",
            remedy="draw fewer layers or heads, or a single pass",
        )
    for frame, layout in zip(frames, layouts, strict=True):
        if values and layout.cell(frame) * 72 * NUMBER < LEGIBLE * 0.99:
            raise ArgumentError(
                f"numbers in the cells of {frame.lines * frame.heads:,} maps of "
                f"{frame.shape[0]:,} × {frame.shape[1]:,}",
                expected="cells that are large enough",
                remedy="choose a larger size, fewer layers and heads, or no numbers",
            )
    return layouts


def _check_size(size: float | None) -> None:
    if size is not None and not 2 <= size <= LONGEST:
        raise ArgumentError(f"size={size:g}", expected=f"2 to {LONGEST:g} inches (default 9)")


def _layout(frame: Frame, size: float | None, values: bool = False) -> Layout:
    one_line = _large(frame, frame.heads, size, values)
    if frame.lines * frame.heads > APART:
        return one_line if values else _small(frame, size)
    if frame.lines == 1 and not one_line.labels.is_readable:
        return _wrapped(frame, size, values)
    if values or one_line.labels.is_readable or one_line.width >= ENOUGH:
        return one_line
    return _small(frame, size)


def _wrapped(frame: Frame, size: float | None, values: bool) -> Layout:
    """Arrange one layer's heads in equal lines, the longest in which every label is readable.

    A line has at least three maps, unless the maps are wide or there are fewer heads.
    """
    min_cols = 1 if frame.shape[1] >= 2 * frame.shape[0] else min(3, frame.heads)
    divisors = [cols for cols in range(min_cols, frame.heads + 1) if frame.heads % cols == 0]
    candidates = {*divisors, min(LINE, frame.heads)}
    layouts = [_large(frame, cols, size, values) for cols in sorted(candidates, reverse=True)]
    complete = (layout for layout in layouts if layout.labels.is_readable)
    return next(complete, min(layouts, key=lambda layout: abs(layout.cols - LINE)))


def _large(frame: Frame, cols: int, size: float | None, values: bool) -> Layout:
    """Lay out maps with token labels, `cols` maps per line."""
    letters = 8.0 if cols > 2 else 9.0
    axis = (frame.axis + 2) * LETTER * 8 / 72  # with its arrow
    left = max(NAME + frame.queries * LETTER * letters / 72, axis) + 0.12
    gap = 0.16
    room = ((size or WIDTH) - left - BAR) / cols - gap
    if values and size is None:
        needed = LEGIBLE / (72 * NUMBER) * max(frame.shape) * 1.02
        room = max(room, min(needed, (GROWN - left - BAR) / cols - gap))
    wraps = math.ceil(frame.heads / cols)
    share = _share(frame.lines * wraps)
    tallest = min(share, size if size is not None and frame.lines == 1 else LARGEST)
    room = min(room, share / _ratio(frame.shape))
    width, height = _sides(frame.shape, max(room, 0.2), tallest)
    longest = max(frame.keys, 1)
    labels = fit(letters, longest, frame.shape, width, height)
    pitch = height + (0.3 if wraps > 1 else 0.24)
    return Layout(
        cols=cols,
        wraps=wraps,
        width=width,
        map_height=height,
        gap=gap,
        left=left,
        pitch=pitch,
        height=HEADS + frame.lines * wraps * pitch - 0.2 + depth(longest, labels) + 0.12,
        has_tokens=True,
        labels=labels,
    )


def _ratio(shape: tuple[int, int], limit: float = 5.0) -> float:
    """Return height / width of a map, from 0.2 to `limit`."""
    return min(max(shape[0] / shape[1], 0.2), limit)


def _share(lines: int) -> float:
    """Return the largest height of a map with which all lines fit into a picture."""
    return max(0.9 * LONGEST / lines - 0.4, LEAST)


def _sides(shape: tuple[int, int], room: float, limit: float) -> tuple[float, float]:
    """Return width and height of a map at most `room` wide, with square cells if possible.

    The height is at most the larger of `limit` and the width.
    """
    N, M = shape
    ratio = _ratio(shape)
    width = min(room, max(CELL * M, 1.2), max(limit, LARGEST if N > M else room))
    height = width * ratio
    tallest = max(min(max(limit, width), CELL * N), 0.4)
    if height > tallest:
        height = tallest
        width = max(height / ratio, min(width, 1.2))
    return width, max(height, 0.12)


def _small(frame: Frame, size: float | None) -> Layout:
    """Lay out maps without token labels, close together."""
    gap = 0.06
    left = frame.name * LETTER * 8 / 72 + 0.2
    room = ((size or WIDTH) - left - BAR) / frame.heads - gap
    width = max(room, 0.05) if size else min(max(room, LEAST), 2.0)
    ratio = _ratio(frame.shape, 2.5)
    width = min(width, _share(frame.lines) / ratio)
    height = width * ratio
    return Layout(
        cols=frame.heads,
        wraps=1,
        width=width,
        map_height=height,
        gap=gap,
        left=left,
        pitch=height + gap,
        height=HEADS + frame.lines * (height + gap),
        has_tokens=False,
        labels=Fit(8.0, (1, 1), 0),
    )
