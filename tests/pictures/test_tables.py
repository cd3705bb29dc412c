import numpy as np
import pytest
import torch

from heedful.errors import ArgumentError
from heedful.pictures import lesson_drawings, plots
from heedful.pictures.plots import vectors

TOKENS = ["Your", "·journey", "$", "né"]


def test_tables_are_drawn_unchanged_on_a_common_scale():
    first, second = np.random.default_rng(3).normal(size=(4, 9)), torch.randn(4, 5)
    figure = vectors([first, second], [TOKENS, TOKENS], titles=["input", "output"], title="sum")
    images = [ax.images[0] for ax in figure.axes if ax.images]
    np.testing.assert_array_equal(images[0].get_array(), first)
    np.testing.assert_allclose(images[1].get_array(), second.numpy())
    assert images[0].norm.vmax == images[1].norm.vmax == -images[0].norm.vmin
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == TOKENS
    assert not figure.axes[1].get_yticklabels()


def test_outliers_are_clipped():
    table = np.ones((4, 1000))
    table[2, 7] = 500.0
    figure = vectors([table], [TOKENS], titles=["embeddings"])
    image = figure.axes[0].images[0]
    assert image.norm.vmax == pytest.approx(1.0)
    assert image.colorbar.extend == "both"
    even = vectors([table[:2]], [TOKENS[:2]], titles=["embeddings"]).axes[0].images[0]
    assert even.colorbar.extend == "neither"


def test_labels_are_left_out_if_they_do_not_fit():
    many = [f"w{n}" for n in range(400)]
    figure = vectors([np.zeros((400, 3))], [many], titles=["input"])
    labels = figure.axes[0].get_yticklabels()
    assert 20 < len(labels) < 80
    assert figure.get_figheight() < 8


def test_tables_that_do_not_match_are_refused():
    with pytest.raises(ArgumentError, match="no tables"):
        vectors([], [], titles=[])
    with pytest.raises(ArgumentError, match=r"shape \(3, 2\); expected \(4, 2\)"):
        vectors([np.zeros((3, 2))], [TOKENS], titles=["input"])


def test_orange_is_below_zero_and_blue_above_in_every_picture_of_signed_numbers():
    numbers = np.array([[-2.0, 0.0, 2.0]])
    figures = [
        plots.vectors([numbers], [["a"]], titles=["a"]),
        plots.positions(numbers),
        plots.scores(numbers, None, ["a"], key_tokens=["a", "b", "c"]),
        lesson_drawings.tables({"a": numbers}),
    ]
    for figure in figures:
        ax = figure.axes[0]
        drawn = (ax.images or ax.collections)[0]
        below, zero, above = drawn.to_rgba(drawn.get_array()).reshape(-1, 4)[:, :3]
        assert below[0] > below[1] > below[2]
        assert above[2] > above[1] > above[0]
        assert min(zero) > 0.9
