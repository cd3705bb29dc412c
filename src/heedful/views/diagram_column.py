"""A column of a diagram, built upwards: boxes one over the other, sums, residual lines, frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from heedful.models.description import Shape
from heedful.pictures.diagram import RADIUS, Arrow, Box, Diagram, Frame, Label, Sum
from heedful.views.model_summary import written

WIDE, TALL = 2.75, 0.37  # inches: a box, and its height without small lines
LINE = 0.165
GAP, SHORT = 0.34, 0.22  # an arrow from one box to the next, with a shape beside it and without
BRANCH = 0.14  # from the beginning of an arrow to where a residual line leaves it
ASIDE = 0.3  # a residual line passes so far from the boxes


class Column:
    """The way of a batch through boxes around x, from y upwards.

    Residual lines pass on one `side`, −1 left or 1 right; shapes stand on the other side.
    """

    def __init__(self, diagram: Diagram, x: float, y: float, side: int = -1) -> None:
        self.diagram, self.x, self.top, self.side = diagram, x, y, side
        self.is_branched = False
        self.residuals = 0

    def words(self, words: str) -> None:
        """Words in the way: what goes in, or what comes out."""
        self.diagram.labels.append(Label(self.x, self.top + 0.1, words, "center", "strong"))
        self.top += 0.22

    def step(
        self, shape: Shape | None = None, height: float | None = None, *, head: bool = True
    ) -> None:
        """An arrow upwards, with the shape of what it carries."""
        if height is None:
            height = GAP if shape else SHORT
        end = self.top + height + (BRANCH if self.is_branched else 0.0)
        if height:
            self.diagram.arrows.append(Arrow(((self.x, self.top), (self.x, end)), head=head))
        if shape is not None:
            middle = self.top + (BRANCH if self.is_branched else 0.0) + GAP / 2 - 0.02
            side = "left" if self.side > 0 else "right"
            self.diagram.labels.append(
                Label(self.x - 0.09 * self.side, middle, written(shape), side)
            )
        self.top, self.is_branched = end, False

    def box(
        self,
        name: str,
        lines: Sequence[str] = (),
        tint: str = "plain",
        shape: Shape | None = None,
        *,
        gap: float | None = None,
        width: float = WIDE,
    ) -> Box:
        """An arrow, and a box over it."""
        self.step(shape, gap)
        height = TALL + LINE * len(lines)
        box = Box(self.x, self.top + height / 2, width, height, name, tuple(lines), tint)
        self.diagram.boxes.append(box)
        self.top += height
        return box

    def branch(self) -> float:
        """Where a residual line leaves: in the next arrow."""
        self.is_branched = True
        return self.top + BRANCH

    def add(self, start: float, shape: Shape | None = None, width: float = WIDE) -> None:
        """A sum with the residual line that left at `start`."""
        y = self.sum(shape)
        beside = self.x + self.side * (width / 2 + ASIDE)
        into = (self.x + self.side * RADIUS, y)
        line = ((self.x, start), (beside, start), (beside, y), into)
        self.diagram.arrows.append(Arrow(line, "residual"))
        if not self.residuals:
            side = "right" if self.side < 0 else "left"
            place = (beside - 0.12 * self.side, start + 0.08)
            self.diagram.labels.append(Label(*place, "residual", side, "residual"))
        self.residuals += 1

    def sum(self, shape: Shape | None = None, height: float | None = None) -> float:
        """An arrow into a sum; the height where it stands."""
        self.step(shape, height)
        y = self.top + RADIUS
        self.diagram.sums.append(Sum(self.x, y))
        self.top = y + RADIUS
        return y

    def beside(self, y: float, name: str, lines: Sequence[str], tint: str, side: int) -> None:
        """A small box on a side, whose arrow goes into the sum at y."""
        width = 1.34
        x = self.x + side * (RADIUS + 0.32 + width / 2)
        self.diagram.boxes.append(
            Box(x, y, width, TALL + LINE * len(lines), name, tuple(lines), tint)
        )
        ends = ((x - side * width / 2, y), (self.x + side * RADIUS, y))
        self.diagram.arrows.append(Arrow(ends))

    @contextmanager
    def frame(self, count: str, lines: Sequence[str], outside: int) -> Iterator[None]:
        """A frame around all that is put in meanwhile; its words stand outside, on a side."""
        self.step(height=0.34, head=False)
        bottom = self.top
        yield
        self.step(height=0.14, head=False)
        residual, free = WIDE / 2 + ASIDE + 0.2, WIDE / 2 + 0.2
        left, right = (residual, free) if self.side < 0 else (free, residual)
        self.diagram.frames.append(
            Frame(self.x - left, bottom, left + right, self.top - bottom, count, tuple(lines),
                  "left" if outside < 0 else "right")
        )  # fmt: skip
