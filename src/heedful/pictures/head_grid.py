"""Grids of attention maps: a row for each layer and a column for each head.

Large maps have token labels. Smaller maps are small multiples, labelled only by layer and head.
Sizes are in inches, font sizes in points.
"""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure

from heedful.pictures import style
from heedful.pictures.attention_map import (
    SMALL,
    Scale,
    add_image,
    draw_borders,
    draw_labels,
    draw_map,
    is_nan,
    scale_of,
    stripe,
)
from heedful.pictures.labels import columns, drawable, shorten
from heedful.pictures.page_layout import BAR, HEADS, WIDTH, Block, Layout, plan
from heedful.pictures.style import INK, LETTER, QUIET

TITLE, NOTE, HEADING, AXIS = 0.45, 0.19, 0.34, 0.32
UNLABELLED = "draw fewer layers or heads, or a larger picture, to see token labels"


def draw(
    blocks: Sequence[Block],
    *,
    scale: Scale | str | None = None,
    highest: float | None = None,
    title: str | None = None,
    size: float | None = None,
    values: bool | None = None,
    notes: Sequence[str] = (),
) -> Figure:
    """Draw blocks of maps below each other, with a common colour scale.

    Args:
        blocks: rows of maps; the maps of a block have the same shape.
        scale: the scale of all maps: a `Scale`, or for attention weights "linear", "sqrt" or "log".
            Default: linear up to 10 tokens, else sqrt.
        highest: the end of a scale of weights; default: the largest weight, or 1 if it is nearly 1.
        title: above the maps.
        size: the width in inches; default 9, and more for many heads.
        values: whether to write numbers in the cells; default: up to 10 tokens, if numbers fit.
        notes: lines of text below the maps.

    Raises:
        ArgumentError: `values=True`, but the cells are too small; too many maps for a picture; a
            size or `highest` out of range; or an unknown scale.
    """
    if not isinstance(scale, Scale):
        is_small = max(max(block.frame.shape) for block in blocks) <= SMALL
        scale = scale_of(_maps(blocks), scale, highest, is_small)
    layouts = plan([block.frame for block in blocks], size, values)
    content = max(layout.left + layout.content for layout in layouts)
    width = max(content + BAR, min(size or WIDTH, columns(title or "") * LETTER * 13 / 72))
    letters = int((width - layouts[0].left) * 72 / (8 * LETTER))
    lines = ["\n".join(wrap(note, letters)) for note in (*_remarks(blocks, layouts), *notes)]
    top = TITLE if title else 0.1
    heights = [HEADING * bool(block.heading) + layout.height + (AXIS if layout.has_tokens else 0.16)
               for block, layout in zip(blocks, layouts, strict=True)]  # fmt: skip
    height = top + sum(heights) + sum(map(_height, lines)) + 0.1
    page = _Page(Figure(figsize=(width, height), facecolor="white"), scale, values)
    y = top
    for block, layout, block_height in zip(blocks, layouts, heights, strict=True):
        page.block(block, layout, y)
        y += block_height
    for i, note in enumerate(lines):
        page.text(layouts[0].left, y + sum(map(_height, lines[:i])), note, size=8)
    first = top + HEADING * bool(blocks[0].heading) + HEADS
    ax = page.axes(content + 0.25, first, 0.16, min(3.2, max(0.9, y - AXIS - first - 0.3)))
    mappable = ScalarMappable(scale.norm, scale.colours)
    style.bar(page.figure, mappable, scale.meaning, "max" if scale.is_cut else "neither", cax=ax)
    style.head(page.figure, title, 0.12)
    style.literal(page.figure)
    return page.figure


def _maps(blocks: Sequence[Block]) -> list[np.ma.MaskedArray]:
    return [values for block in blocks for line in block.lines for values in line.maps
            if values is not None]  # fmt: skip


def _height(note: str) -> float:
    return NOTE + 0.14 * note.count("\n")


def _remarks(blocks: Sequence[Block], layouts: Sequence[Layout]) -> list[str]:
    """Return notes on the maps: the sizes of unlabelled maps, and the meaning of stripes."""
    remarks = []
    for block, layout in zip(blocks, layouts, strict=True):
        if not layout.has_tokens:
            N, M = block.full_shape or block.frame.shape
            remarks.append(f"each map: {N:,} {block.axes[0]} from top to bottom, {M:,} "
                           f"{block.axes[1]} from left to right; {UNLABELLED}")  # fmt: skip
    if any(np.ma.getmaskarray(values).any() for values in _maps(blocks)):
        remarks.append("striped cells are masked: the query may not attend to the key")
    if any(is_nan(values).any() for values in _maps(blocks)):
        remarks.append("pink cells are not numbers (NaN)")
    return list(dict.fromkeys(remarks))


class _Page(NamedTuple):
    """A figure with positions in inches from its top left corner."""

    figure: Figure
    scale: Scale
    numbers: bool | None

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes at a position."""
        W, H = self.figure.get_size_inches()
        box = (left / W, 1 - (top + height) / H, width / W, height / H)
        return self.figure.add_axes(box)

    def text(self, left: float, top: float, text: str, size: float = 9, **options: object) -> None:
        """Write a text with its top left corner at a position."""
        W, H = self.figure.get_size_inches()
        look = {"color": QUIET, "ha": "left", "va": "top", **options}
        self.figure.text(left / W, 1 - top / H, text, fontsize=size, **look)  # type: ignore[arg-type]

    def block(self, block: Block, layout: Layout, top: float) -> None:
        """Draw a block with its labels."""
        if block.heading:
            self.text(layout.left, top, drawable(block.heading), 10, color=INK)
            top += HEADING
        if layout.has_tokens:
            self._large(block, layout, top)
        else:
            self._small(block, layout, top)

    def _large(self, block: Block, layout: Layout, top: float) -> None:
        """Draw each map on its own axes, with token labels on the left and below."""
        count, cols = len(block.heads), layout.cols
        room = int((layout.width + layout.gap) * 72 / (LETTER * 9))
        cell = layout.cell(block.frame)
        self.text(layout.left - 0.08, top + HEADS - 0.05, f"{block.axes[0]} ↓", 8,
                  ha="right", va="bottom")  # fmt: skip
        for number, line in enumerate(block.lines):
            middle = HEADS + (number + 0.5) * layout.wraps * layout.pitch - 0.12
            self.text(0.12, top + middle, line.name, 9, color=INK, rotation=90, va="center",
                      ha="center")  # fmt: skip
            for i, values in enumerate(line.maps):
                down, across = number * layout.wraps + i // cols, i % cols
                x = layout.left + across * (layout.width + layout.gap)
                y = top + HEADS + down * layout.pitch
                if values is None:
                    continue
                ax = self.axes(x, y, layout.width, layout.map_height)
                ax.set_label(f"{line.name}, {block.title(i)}")
                draw_map(ax, values, self.scale, cell, self.numbers)
                is_last = number == len(block.lines) - 1 and i + cols >= count
                draw_labels(ax, block.queries if across == 0 else None,
                            block.keys if is_last else None, layout.labels)  # fmt: skip
                draw_borders(ax, block.borders, (-0.5, -0.5, *values.shape[::-1]), values.shape)
                if down == 0 or layout.wraps > 1:
                    name = shorten(drawable(block.title(i)), room)
                    ax.set_title(name, fontsize=9, color=INK, loc="left", pad=4)
        self.text(layout.left, top + layout.height, f"{block.axes[1]} →", 8, va="top")

    def _small(self, block: Block, layout: Layout, top: float) -> None:
        """Draw all maps of a line on the same axes, whose unit is an inch."""
        width, height, pitch = layout.width, layout.map_height, layout.width + layout.gap
        for i, head in enumerate(block.heads):
            self.text(layout.left + i * pitch + width / 2, top + HEADS - 0.05,
                      block.title(i) if i == 0 and width > 0.5 else str(head), 8, color=INK,
                      ha="center", va="bottom")  # fmt: skip
        if width <= 0.5:
            self.text(layout.left - 0.08, top + HEADS - 0.05, "head", 8, ha="right",
                      va="bottom")  # fmt: skip
        size = min(8.0, max(5.0, layout.pitch * 72 * 0.8))
        for number, line in enumerate(block.lines):
            y = top + HEADS + number * layout.pitch
            self.text(layout.left - 0.08, y + height / 2, line.name, size, color=INK, ha="right",
                      va="center")  # fmt: skip
            ax = self.axes(layout.left, y, layout.content, height)
            ax.set_label(line.name)
            ax.set(xticks=[], yticks=[])  # matplotlib's ticks would take longer to draw than maps
            for i, values in enumerate(line.maps):
                if values is not None:
                    box = (i * pitch, 0.0, width, height)
                    stripe(ax, values, box)
                    image = add_image(ax, values, box, self.scale.colours, self.scale.norm)
                    image.set_label(block.title(i))
                    draw_borders(ax, block.borders, box, values.shape)
            ax.set(xlim=(0, layout.content), ylim=(height, 0))
            ax.set_axis_off()
