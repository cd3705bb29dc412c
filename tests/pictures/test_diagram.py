"""Diagrams: items are at their positions and inside the figure."""

import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from heedful.pictures.diagram import CORNER, Arrow, Box, Diagram, Frame, Label, draw


def items():
    return Diagram(
        [Box(1.0, 2.0, 2.0, 0.5, "norm", ("8 → 8",), "sand"), Box(-3.0, -1.0, 1.0, 0.4, "$x$")],
        [Arrow(((1.0, 2.25), (1.0, 4.0))), Arrow(((1, 0), (3, 0), (3, 5)), "residual", False)],
        sums=[(1.0, 4.1)],
        labels=[Label(1.1, 3.0, "[B, N, 8]"), Label(-1.0, 5.0, "strong", "left", "strong")],
        frames=[Frame(0.0, 1.0, 2.0, 2.0, "× 4", ("pre-norm", "blocks"), "left")],
    )


@pytest.mark.parametrize("title", [None, "a title that is far wider than what it is over" * 3])
def test_all_items_are_inside_the_figure(title):
    figure = draw(items(), title, None if title is None else "12 parameters")
    figure.draw_without_rendering()
    ax, canvas = figure.axes[0], figure.bbox
    for artist in [*ax.patches, *ax.texts]:
        box = artist.get_window_extent()
        assert (box.min >= canvas.min - 0.5).all(), artist
        assert (box.max <= canvas.max + 0.5).all(), artist
    across = np.ptp(ax.transData.transform([(1, 1), (2, 2)]), axis=0)
    assert across == pytest.approx([figure.dpi] * 2)  # a unit is an inch


def test_boxes_are_at_their_positions():
    patches = draw(items()).axes[0].patches
    frame, norm, other = [patch for patch in patches if isinstance(patch, FancyBboxPatch)]
    assert (frame.get_x(), frame.get_y(), frame.get_width()) == (0.0, 1.0, 2.0)
    assert (norm.get_x(), norm.get_y(), norm.get_height()) == (0.0, 1.75, 0.5)
    assert norm.get_zorder() > frame.get_zorder()
    assert norm.get_facecolor() != other.get_facecolor()


def test_text_is_literal():
    words = [text.get_text() for text in draw(items()).axes[0].texts]
    assert words == ["× 4", "pre-norm", "blocks", "norm", "8 → 8", "$x$", "[B, N, 8]", "strong"]
    assert not any(text.get_parse_math() for text in draw(items()).axes[0].texts)


def test_lines_have_round_corners():
    patches = draw(items()).axes[0].patches
    line = [patch for patch in patches if isinstance(patch, FancyArrowPatch)][1].get_path().vertices
    np.testing.assert_allclose(line[0], (1, 0), atol=1e-6)
    np.testing.assert_allclose(line[-1], (3, 5), atol=1e-6)
    assert np.abs(line - (3 - CORNER, 0)).sum(axis=1).min() < 1e-6
    assert np.abs(line - (3, CORNER)).sum(axis=1).min() < 1e-6
