"""Where lines of maps go on a page, before there are any: sizes in inches.

Planned first, so that a map is computed with no more cells than it has room for.
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

WIDTH = 9.0  # of a picture, where it may be
BAR = 1.0  # for the colour bar
NAME = 0.3  # for a layer's name on end
CELL = 0.6  # the largest side of a cell
LARGEST = 6.0  # side of a map
ENOUGH = 1.1  # side of a map with the names of some of its tokens
LEAST = 0.3  # side of a small one
LONGEST = 250.0  # side of a picture, with the dots of a file in mind
GROWN = 40.0  # the width to which numbers may stretch a picture that was given none
APART = 200  # maps on axes of their own
LINE = 4  # heads of a single layer that stand in one line, whatever their tokens
SHARP = 150  # cells in an inch
FEW, MANY = 64, 512  # cells of a side that a map may always have, and has at the most
HEADS = 0.24  # for the numbers of the heads


class Frame(NamedTuple):
    """The shape of a block: so many lines of so many maps, each (N, M).

    queries, keys: the longest labels of their tokens, in columns; name: that of the lines' names;
    axis: that of what the rows are, which stands left of the first map.
    """

    lines: int
    heads: int
    shape: tuple[int, int]
    queries: int = 0
    keys: int = 0
    name: int = 8
    axis: int = 7


class Line(NamedTuple):
    """The maps of a call: one for each head of its block, None where it has no such head."""

    name: str
    maps: Sequence[np.ma.MaskedArray | None]


class Block(NamedTuple):
    """Lines whose maps have one shape and the same axes.

    heads: the number or the name of each column. queries, keys: labels of a map's N rows and M
    columns. axes: what its rows and its columns are. borders: the rows, and the columns, at which
    another text begins. whole: how many queries and keys there are, where cells are pooled.
    """

    lines: Sequence[Line]
    heads: Sequence[int | str]
    queries: Sequence[str]
    keys: Sequence[str]
    axes: tuple[str, str] = ("queries", "keys")
    heading: str | None = None
    borders: tuple[Sequence[int], Sequence[int]] = ((), ())
    whole: tuple[int, int] | None = None

    def title(self, column: int) -> str:
        """What a column is called."""
        head = self.heads[column]
        return head if isinstance(head, str) else f"head {head}"

    @property
    def frame(self) -> Frame:
        """Its shape."""
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
    """Where the maps of a block go."""

    cols: int  # maps in a line
    wraps: int  # lines that a layer takes
    width: float  # of a map
    map_height: float
    gap: float  # between two maps
    left: float  # of the first map
    pitch: float  # from line to line
    height: float  # of all, with the labels of keys
    has_tokens: bool
    labels: Fit

    @property
    def content(self) -> float:
        """The width of all maps of a line."""
        return self.cols * (self.width + self.gap) - self.gap

    def cell(self, frame: Frame) -> float:
        """The smaller side of a cell."""
        return min(self.width / frame.shape[1], self.map_height / frame.shape[0])


def cells(frame: Frame, size: float | None = None) -> int:
    """How many cells the longer side of a map may have, in a picture with such a block.

    >>> cells(Frame(4, 4, (1000, 1000))), cells(Frame(48, 64, (1000, 1000)))
    (244, 64)
    """
    _check_size(size)
    layout = _layout(frame._replace(queries=6, keys=6), size)
    return min(MANY, max(FEW, int(SHARP * max(layout.width, layout.map_height))))


def plan(frames: Sequence[Frame], size: float | None, values: bool | None) -> list[Layout]:
    """The layout of each block.

    Args:
        frames: the shapes of the blocks.
        size: the width of the picture; default as it needs.
        values: whether numbers must fit into the cells.

    Raises:
        ArgumentError: they do not, or a picture that is too large.
    """
    _check_size(size)
    layouts = [_layout(frame, size, bool(values)) for frame in frames]
    if max(layout.left + layout.content for layout in layouts) + BAR > LONGEST or (
        sum(layout.height for layout in layouts) > LONGEST
    ):
        lines = sum(frame.lines for frame in frames)
        raise ArgumentError(
            f"a picture of {lines:,} lines of {max(frame.heads for frame in frames):,} maps",
            expected=f"one that is at most {LONGEST:g} inches high and wide",
            remedy="choose layers, heads or a pass",
        )
    if values:
        for frame, layout in zip(frames, layouts, strict=True):
            _check_numbers(frame, layout)
    return layouts


def _check_size(size: float | None) -> None:
    if size is not None and not 2 <= size <= LONGEST:
        raise ArgumentError(f"size={size:g}", expected=f"2 to {LONGEST:g} inches, a page has 9")


def _check_numbers(frame: Frame, layout: Layout) -> None:
    if layout.cell(frame) * 72 * NUMBER < LEGIBLE * 0.99:
        raise ArgumentError(
            f"numbers in the cells of {frame.lines * frame.heads:,} maps of {frame.shape[0]:,} × "
            f"{frame.shape[1]:,}",
            expected="cells that have room for them",
            remedy="choose a larger size, fewer layers and heads, or no numbers",
        )


def _layout(frame: Frame, size: float | None, values: bool = False) -> Layout:
    one_line = _large(frame, frame.heads, size, values)
    if frame.lines * frame.heads > APART:
        return one_line if values else _small(frame, size)
    if frame.lines == 1 and not one_line.labels.is_read:
        return _wrapped(frame, size, values)
    if values or one_line.labels.is_read or one_line.width >= ENOUGH:
        return one_line
    return _small(frame, size)


def _wrapped(frame: Frame, size: float | None, values: bool) -> Layout:
    """The heads of a single layer in several lines: as many beside each other as have names.

    Only wide maps stand one over the other.
    """
    least = 1 if frame.shape[1] >= 2 * frame.shape[0] else min(3, frame.heads)
    fitting = [cols for cols in range(least, frame.heads + 1) if frame.heads % cols == 0]
    tried = {*fitting, min(LINE, frame.heads)}
    layouts = [_large(frame, cols, size, values) for cols in sorted(tried, reverse=True)]
    whole = (layout for layout in layouts if layout.labels.is_read)
    return next(whole, min(layouts, key=lambda layout: abs(layout.cols - LINE)))


def _large(frame: Frame, cols: int, size: float | None, values: bool) -> Layout:
    """Maps with the labels of their tokens, `cols` beside each other."""
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
    keys = ["m" * max(frame.keys, 1)] * frame.shape[1]
    labels = fit(letters, keys, frame.shape, width, height)
    pitch = height + (0.3 if wraps > 1 else 0.24)
    return Layout(
        cols=cols,
        wraps=wraps,
        width=width,
        map_height=height,
        gap=gap,
        left=left,
        pitch=pitch,
        height=HEADS + frame.lines * wraps * pitch - 0.2 + depth(keys[:1], labels) + 0.12,
        has_tokens=True,
        labels=labels,
    )


def _ratio(shape: tuple[int, int], most: float = 5.0) -> float:
    """How high a map is in widths, at most `most` and at least a fifth."""
    return min(max(shape[0] / shape[1], 0.2), most)


def _share(lines: int) -> float:
    """How high a map may be, so that a picture has room for all lines of many."""
    return max(0.9 * LONGEST / lines - 0.4, LEAST)


def _sides(shape: tuple[int, int], room: float, most: float) -> tuple[float, float]:
    """Width and height of a map in so much room; its cells are square where they can be.

    `most` is how high it may be, but that a page has room for its width.
    """
    N, M = shape
    ratio = _ratio(shape)
    width = min(room, max(CELL * M, 1.2), max(most, LARGEST if N > M else room))
    height = width * ratio
    tallest = max(min(max(most, width), CELL * N), 0.4)
    if height > tallest:
        height = tallest
        width = max(height / ratio, min(width, 1.2))
    return width, max(height, 0.12)


def _small(frame: Frame, size: float | None) -> Layout:
    """Maps without the names of tokens, close together."""
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
