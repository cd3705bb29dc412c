"""One column of a model diagram, built upwards: boxes, sums, residual lines and frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from heedful.models.description import Shape
from heedful.pictures.diagram import RADIUS, Arrow, Box, Diagram, Frame, Label
from heedful.views.model_summary import shape_text

WIDE, TALL = 2.75, 0.37  # inches: width of a box, and its height without small lines
LINE = 0.165  # height of a small line
GAP, SHORT = 0.34, 0.22  # length of an arrow between boxes, with and without a shape label
BRANCH = 0.14  # from the start of an arrow to the start of a residual line
ASIDE = 0.3  # distance between a residual line and the boxes


class Column:
    """A column centred at x that methods draw upwards from `y`; `top` is the column's end.

    Residual lines run on `side` (−1 left, 1 right); shape labels stand on the other side.
    """

    def __init__(self, diagram: Diagram, x: float, y: float, side: int = -1) -> None:
        self.diagram, self.x, self.top, self.side = diagram, x, y, side
        self.is_branched = False
        self.residuals = 0

    def words(self, words: str) -> None:
        """Add the name of the input or the output."""
        self.diagram.labels.append(Label(self.x, self.top + 0.1, words, "center", "strong"))
        self.top += 0.22

    def step(
        self, shape: Shape | None = None, height: float | None = None, *, head: bool = True
    ) -> None:
        """Add an upward arrow, labelled with the shape of its tensor."""
        if height is None:
            height = GAP if shape else SHORT
        end = self.top + height + (BRANCH if self.is_branched else 0.0)
        if height:
            self.diagram.arrows.append(Arrow(((self.x, self.top), (self.x, end)), head=head))
        if shape is not None:
            middle = self.top + (BRANCH if self.is_branched else 0.0) + GAP / 2 - 0.02
            side = "left" if self.side > 0 else "right"
            self.diagram.labels.append(
                Label(self.x - 0.09 * self.side, middle, shape_text(shape), side)
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
        """Add an arrow and a box above it."""
        self.step(shape, gap)
        height = TALL + LINE * len(lines)
        box = Box(self.x, self.top + height / 2, width, height, name, tuple(lines), tint)
        self.diagram.boxes.append(box)
        self.top += height
        return box

    @contextmanager
    def residual(
        self, norm: str, order: str | None, shape: Shape, width: float = WIDE
    ) -> Iterator[None]:
        """Add a residual line beside all that is added in the context, and its sum.

        The norm is the first box beside the line if `order` is "pre", after the sum if "post".
        """
        start, self.is_branched = self.top + BRANCH, True
        if order == "pre":
            self.box(norm, (), "sand", shape, width=width)
        yield
        y = self.sum(shape)
        beside = self.x + self.side * (width / 2 + ASIDE)
        into = (self.x + self.side * RADIUS, y)
        line = ((self.x, start), (beside, start), (beside, y), into)
        self.diagram.arrows.append(Arrow(line, "residual"))
        if not self.residuals:
            side = "right" if self.side < 0 else "left"
            position = (beside - 0.12 * self.side, start + 0.08)
            self.diagram.labels.append(Label(*position, "residual", side, "residual"))
        self.residuals += 1
        if order == "post":
            self.box(norm, (), "sand", width=width)

    def sum(self, shape: Shape | None = None, height: float | None = None) -> float:
        """Add an arrow into a sum; return the height of the sum."""
        self.step(shape, height)
        y = self.top + RADIUS
        self.diagram.sums.append((self.x, y))
        self.top = y + RADIUS
        return y

    def beside(self, y: float, name: str, lines: Sequence[str], tint: str, side: int) -> None:
        """Add a small box on one side, with an arrow into the sum at height y."""
        width = 1.34
        x = self.x + side * (RADIUS + 0.32 + width / 2)
        self.diagram.boxes.append(
            Box(x, y, width, TALL + LINE * len(lines), name, tuple(lines), tint)
        )
        ends = ((x - side * width / 2, y), (self.x + side * RADIUS, y))
        self.diagram.arrows.append(Arrow(ends))

    @contextmanager
    def frame(self, count: str, lines: Sequence[str], outside: int) -> Iterator[None]:
        """Frame all that is added in the context; labels stand on the left if `outside` < 0."""
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
