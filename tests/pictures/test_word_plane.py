"""Plots of words: every name is drawn, without overlaps if possible."""

import itertools

import numpy as np
import pytest
from matplotlib.transforms import Bbox

from heedful.pictures import word_plane


def boxes(figure):
    figure.canvas.draw()
    texts = [text for text in figure.axes[0].texts if text.get_text()]
    return texts, [text.get_window_extent() for text in texts]


@pytest.mark.parametrize("seed", range(2))
def test_names_do_not_overlap(seed):
    coordinates = np.random.default_rng(seed).normal(size=(14, 2))
    labels = [f"word {i}" for i in range(14)]
    figure = word_plane.words(coordinates, labels, ["first", "second"], title="$ words")
    texts, extents = boxes(figure)
    assert sorted(text.get_text() for text in texts) == sorted(labels)
    for first, second in itertools.combinations(extents, 2):
        assert Bbox.intersection(first, second) is None


def test_axes_have_their_names_and_arrows_connect_points():
    figure = word_plane.words(
        np.eye(2), ["a", "注意 $x"], ["58 % of x", "42 % of y"], arrows=[(0, 1)]
    )
    figure.canvas.draw()
    [ax] = figure.axes
    assert "58 %" in ax.get_xlabel()
    assert "42 %" in ax.get_ylabel()
    drawn = [text for text in ax.texts if text.arrow_patch]
    [arrow] = [text for text in drawn if text.arrowprops["arrowstyle"] == "-|>"]
    assert tuple(arrow.xyann) == (1, 0)
    assert tuple(arrow.xy) == (0, 1)


def test_names_avoid_arrows_and_stay_inside_the_frame():
    coordinates = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.4], [0.0, 0.4]])
    labels = ["start", "end", "a very long name, too long to be drawn whole", "left"]
    figure = word_plane.words(coordinates, labels, ["x", "y"], arrows=[(0, 1), (2, 3)])
    [ax] = figure.axes
    texts, extents = boxes(figure)
    assert [text.get_text() for text in texts][2].endswith("…")
    heights = ax.transData.transform(coordinates)[:, 1]
    for text, box in zip(texts, extents, strict=True):
        assert ax.bbox.x0 <= box.x0 < box.x1 <= ax.bbox.x1
        between = ax.transData.transform([[0.05, 0], [0.95, 0]])[:, 0]
        if box.x0 < between[1] and box.x1 > between[0]:
            assert not any(box.y0 < height < box.y1 for height in heights), text


def test_names_of_equal_points_do_not_overlap():
    texts, extents = boxes(word_plane.words(np.zeros((5, 2)), list("abcde"), ["x", "y"]))
    for first, second in itertools.combinations(extents, 2):
        assert Bbox.intersection(first, second) is None
    assert len(texts) == 5
