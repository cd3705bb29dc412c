"""Diagrams of boxes, arrows and frames, with positions in inches.

y grows upwards. The figure is as large as its content in inches, so font sizes are real points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path

from heedful.pictures.style import INK, LETTER, QUIET, literal

Point: TypeAlias = tuple[float, float]
# Fill and edge of each tint; tints are light enough for black text, and distinct in print
TINTS = {
    "sand": ("#fdf3d0", "#c9a227"),
    "teal": ("#d3ece8", "#277f8e"),
    "blue": ("#dbe6f7", "#4a6fa5"),
    "rose": ("#f8dfdf", "#b5656b"),
    "violet": ("#e6ddf1", "#7a5a9c"),
    "plain": ("#ffffff", "#8c959f"),
}
FRAME, RESIDUAL = ("#f6f8fa", "#c4ccd4"), "#d1701f"
NAME, SMALL = 10.0, 8.0  # font sizes, in points, of the names of boxes and of small text
LINE = 0.165  # inches between lines of small text
CORNER = 0.09
MARGIN = 0.1
TIMES = 13  # points: font size of a frame's number of repetitions


class Box(NamedTuple):
    """A box centred on a point, with a name and small lines of text below it."""

    x: float
    y: float
    width: float
    height: float
    name: str
    lines: tuple[str, ...] = ()
    tint: str = "plain"


class Arrow(NamedTuple):
    """A line through points, with rounded corners, and with an arrowhead at its end if `head`.

    `kind` is "flow", "residual" or "quiet".
    """

    points: tuple[Point, ...]
    kind: str = "flow"
    head: bool = True


class Label(NamedTuple):
    """A text beside a point or centred on it; `side` is "left", "right" or "center".

    `kind` is "quiet", "residual" (both small) or "strong".
    """

    x: float
    y: float
    text: str
    side: str = "right"
    kind: str = "quiet"


class Frame(NamedTuple):
    """A frame behind other items; `times` ("× 4") and small lines of text are at its `side`."""

    left: float
    bottom: float
    width: float
    height: float
    times: str = ""
    lines: tuple[str, ...] = ()
    side: str = "right"

    @property
    def text_x(self) -> float:
        """The x position of the text."""
        return self.left - 0.12 if self.side == "left" else self.left + self.width + 0.12


RADIUS = 0.11  # of the circle of a sum
START = {"right": 0.0, "left": -1.0, "center": -0.5}  # left end of a text, in text widths
ALIGNMENT = {"right": "left", "left": "right", "center": "center"}


@dataclass
class Diagram:
    """The items of a diagram, in lists to append to."""

    boxes: list[Box] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    sums: list[Point] = field(default_factory=list)  # centres of circles with a plus sign
    labels: list[Label] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)


def draw(diagram: Diagram, title: str | None = None, subtitle: str | None = None) -> Figure:
    """Draw a diagram as a figure.

    Args:
        diagram: boxes, arrows, sums, labels and frames.
        title: above the diagram.
        subtitle: a small line of text below the title.

    >>> diagram = Diagram(boxes=[Box(0, 0, 2, 0.5, "norm"), Box(0, 1, 2, 0.5, "attention")])
    >>> diagram.arrows.append(Arrow(((0, 0.25), (0, 0.75))))
    >>> [text.get_text() for text in draw(diagram).axes[0].texts]
    ['norm', 'attention']
    """
    left, bottom, right, top = _extent(diagram)
    head = 0.0 if title is None else 0.55 + (0.2 if subtitle else 0.0)
    inner = max(right - left, _width(title or "", 13) * 1.08, _width(subtitle or "", SMALL + 1))
    left -= (inner - (right - left)) / 2
    width, height = inner + 2 * MARGIN, top - bottom + head + 2 * MARGIN
    figure = Figure(figsize=(width, height), facecolor="white")
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(left - MARGIN, left - MARGIN + width)
    ax.set_ylim(bottom - MARGIN, bottom - MARGIN + height)
    ax.set_axis_off()
    for frame in diagram.frames:
        _frame(ax, frame)
    for arrow in diagram.arrows:
        _arrow(ax, arrow)
    for box in diagram.boxes:
        _box(ax, box)
    for x, y in diagram.sums:
        circle = Circle((x, y), RADIUS, facecolor="white", edgecolor=INK, linewidth=1.1, zorder=3)
        ax.add_patch(circle)
        arm = 0.6 * RADIUS
        for across, up in (((x - arm, x + arm), (y, y)), ((x, x), (y - arm, y + arm))):
            ax.plot(across, up, color=INK, linewidth=1.1, zorder=4)
    for label in diagram.labels:
        _label(ax, label)
    if title is not None:
        x, y = left + inner / 2, top + head
        ax.text(x, y, title, fontsize=13, color=INK, weight="bold", ha="center", va="top")
        ax.text(x, y - 0.3, subtitle or "", fontsize=SMALL + 1, color=QUIET, ha="center",
                va="top")  # fmt: skip
    literal(figure)
    return figure


def _width(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text, in inches."""
    return len(text) * LETTER * size / 72


def _extent(diagram: Diagram) -> tuple[float, float, float, float]:
    """Return left, bottom, right and top of all items."""
    points: list[Point] = []
    for box in diagram.boxes:
        points += _corners(box.x - box.width / 2, box.y - box.height / 2, box.width, box.height)
    for frame in diagram.frames:
        points += _corners(frame.left, frame.bottom, frame.width, frame.height)
        width = max(_width(frame.times, TIMES), *(_width(t, SMALL) for t in ("", *frame.lines)))
        points.append((frame.text_x + START[frame.side] * width, frame.bottom))
        points.append((frame.text_x + (1 + START[frame.side]) * width, frame.bottom))
    for arrow in diagram.arrows:
        points += arrow.points
    for label in diagram.labels:
        width = _width(label.text, _size(label))
        start = START[label.side] * width
        points += _corners(label.x + start, label.y - LINE / 2, width, LINE)
    if not points:
        return 0.0, 0.0, 1.0, 1.0
    low, high = np.min(points, axis=0), np.max(points, axis=0)
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def _corners(left: float, bottom: float, width: float, height: float) -> list[Point]:
    return [(left, bottom), (left + width, bottom + height)]


def _frame(ax: Axes, frame: Frame) -> None:
    fill, edge = FRAME
    ax.add_patch(
        FancyBboxPatch((frame.left, frame.bottom), frame.width, frame.height,
                       boxstyle="round,pad=0,rounding_size=0.14", facecolor=fill, edgecolor=edge,
                       linewidth=1.0, zorder=0)
    )  # fmt: skip
    middle = frame.bottom + frame.height / 2
    ax.text(frame.text_x, middle, frame.times, fontsize=TIMES, color=INK, weight="bold",
            ha=ALIGNMENT[frame.side], va="bottom", zorder=4)  # fmt: skip
    for i, line in enumerate(frame.lines):
        ax.text(frame.text_x, middle - (i + 0.6) * LINE, line, fontsize=SMALL, color=QUIET,
                ha=ALIGNMENT[frame.side], va="center_baseline", zorder=4)  # fmt: skip


def _box(ax: Axes, box: Box) -> None:
    fill, edge = TINTS[box.tint]
    left, bottom = box.x - box.width / 2, box.y - box.height / 2
    ax.add_patch(
        FancyBboxPatch((left, bottom), box.width, box.height,
                       boxstyle=f"round,pad=0,rounding_size={CORNER}", facecolor=fill,
                       edgecolor=edge, linewidth=1.1, zorder=3)
    )  # fmt: skip
    lift = len(box.lines) * LINE / 2
    ax.text(box.x, box.y + lift, box.name, fontsize=NAME, color=INK, ha="center",
            va="center_baseline", zorder=4)  # fmt: skip
    for i, line in enumerate(box.lines):
        ax.text(box.x, box.y + lift - (i + 1) * LINE - 0.015, line, fontsize=SMALL, color=QUIET,
                ha="center", va="center_baseline", zorder=4)  # fmt: skip


def _label(ax: Axes, label: Label) -> None:
    colour = {"quiet": QUIET, "residual": RESIDUAL, "strong": INK}[label.kind]
    ax.text(label.x, label.y, label.text, fontsize=_size(label), color=colour,
            ha=ALIGNMENT[label.side], va="center_baseline", zorder=4)  # fmt: skip


def _size(label: Label) -> float:
    return NAME if label.kind == "strong" else SMALL


def _arrow(ax: Axes, arrow: Arrow) -> None:
    colour = {"flow": INK, "residual": RESIDUAL, "quiet": QUIET}[arrow.kind]
    style, fill = ("-|>", colour) if arrow.head else ("-", "none")
    ax.add_patch(
        FancyArrowPatch(path=_rounded(arrow.points), arrowstyle=style, mutation_scale=8,
                        edgecolor=colour, facecolor=fill, linewidth=1.2, joinstyle="miter",
                        capstyle="butt", zorder=2)
    )  # fmt: skip


def _rounded(points: Sequence[Point]) -> Path:
    """Return a path along points, with rounded corners."""
    vertices: list[Point] = [points[0]]
    codes: list[int] = [int(Path.MOVETO)]
    for start, corner, end in zip(points, points[1:], points[2:], strict=False):
        vertices += [_towards(corner, start), corner, _towards(corner, end)]
        codes += [int(Path.LINETO), int(Path.CURVE3), int(Path.CURVE3)]
    return Path([*vertices, points[-1]], [*codes, int(Path.LINETO)])


def _towards(point: Point, other: Point) -> Point:
    """Return the point `CORNER` inches from `point` towards `other`, at most halfway."""
    step = np.subtract(other, point)
    length = float(np.hypot(*step))
    x, y = np.add(point, step * min(CORNER, length / 2) / (length or 1.0))
    return float(x), float(y)
