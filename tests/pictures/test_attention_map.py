"""Attention maps: drawn values, the order of rows and columns, token labels."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb

from heedful.errors import ArgumentError
from heedful.pictures.plots import heatmaps, positions, scores

SIX = ["Your", "journey", "starts", "with", "one", "step"]


def uneven(rows, cols, seed=0):
    weights = np.random.default_rng(seed).random((rows, cols))
    return weights / weights.sum(1, keepdims=True)


def maps_of(figure):
    return [ax for ax in figure.axes if ax.images and ax.get_label() != "<colorbar>"]


def ticks(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


def drawn(figure):
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.mark.parametrize(("count", "rows", "cols"), [(1, 3, 3), (5, 11, 5)])
def test_the_passed_arrays_are_drawn(count, rows, cols):
    weights = [uneven(rows, cols, seed) for seed in range(count)]
    figure = heatmaps(
        weights,
        [f"q{i}" for i in range(rows)],
        key_tokens=[f"k{i}" for i in range(cols)],
        titles=[f"head {i}" for i in range(count)],
    )
    axes = maps_of(drawn(figure))
    assert [ax.get_title("left") for ax in axes] == [f"head {i}" for i in range(count)]
    for ax, expected in zip(axes, weights, strict=True):
        np.testing.assert_array_equal(ax.images[0].get_array(), expected)
        assert ax.images[0].get_clim() == (0, max(map(np.max, weights)))


@pytest.mark.parametrize(("largest", "end"), [(0.4, 0.4), (0.95, 1), (1.0000002, 1), (3, 3)])
def test_the_bar_ends_at_1_for_weights_near_1(largest, end):
    weights = np.zeros((11, 3))
    weights[7, 2] = largest
    figure = drawn(heatmaps([weights], list("abcdefghijk"), key_tokens=list("xyz"), titles=["h"]))
    assert maps_of(figure)[0].images[0].get_clim() == (0, end)
    assert ("1" in ticks(figure.axes[-1].yaxis)) == (end >= 1)


def test_rows_are_queries_from_the_top_and_columns_keys_from_the_left():
    weights = np.zeros((3, 5))
    weights[2, 1] = 1
    figure = drawn(heatmaps([weights], list("abc"), key_tokens=list("vwxyz"), titles=["h"]))
    (ax,) = maps_of(figure)
    assert (ticks(ax.yaxis), ticks(ax.xaxis)) == (list("abc"), list("vwxyz"))
    assert {"queries ↓", "keys →"} <= {text.get_text() for text in figure.texts}
    # In pixels, the weight of query c on key w is below and to the left of the middle
    x, y = ax.transData.transform((1, 2))
    box = ax.get_window_extent()
    assert x < box.x0 + box.width / 2
    assert y < box.y0 + box.height / 2
    number = next(text for text in ax.texts if text.get_text() == "1.00")
    assert number.get_position() == (1, 2)
    assert (ax.yaxis.get_ticklocs()[2], ax.xaxis.get_ticklocs()[1]) == (2, 1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_tensors_of_any_type(dtype):
    weights = torch.tensor(uneven(3, 3), dtype=dtype, requires_grad=True)
    image = maps_of(heatmaps([weights], SIX[:3], titles=["h"]))[0].images[0]
    np.testing.assert_array_equal(image.get_array(), weights.detach().double().numpy())


def test_numbers_are_readable_and_only_in_small_maps():
    weights = uneven(10, 10)
    axes = maps_of(heatmaps([weights, uneven(10, 10, 1)], list("abcdefghij"), titles=["0", "1"]))
    assert [text.get_text() for text in axes[0].texts] == [f"{w:.2f}" for w in weights.ravel()]
    shades = axes[0].images[0].to_rgba(weights)[..., :3].reshape(-1, 3)
    for text, shade in zip(axes[0].texts, shades, strict=True):
        assert abs(np.mean(to_rgb(text.get_color())) - shade.mean()) > 0.25
    eleven = heatmaps([uneven(11, 11)], list("abcdefghijk"), titles=["0"])
    assert not maps_of(eleven)[0].texts


def test_labels_are_left_of_the_first_and_below_each_column():
    figure = heatmaps([uneven(17, 17)] * 7, [f"w{i}" for i in range(17)], titles=list("abcdefg"))
    axes = maps_of(figure)
    assert [i for i, ax in enumerate(axes) if ticks(ax.yaxis)] == [0, 4]
    assert [i for i, ax in enumerate(axes) if ticks(ax.xaxis)] == [3, 4, 5, 6]


@pytest.mark.parametrize(("count", "length"), [(4, 128), (16, 16)])
def test_long_sequences_have_fewer_labels_without_overlaps(count, length):
    tokens = [f"token{i}" for i in range(length)]
    figure = heatmaps([uneven(length, length)] * count, tokens, titles=["h"] * count)
    axes = maps_of(drawn(figure))
    first, last = axes[0].yaxis, axes[-1].xaxis
    for axis in (first, last):
        step = int(np.diff(axis.get_ticklocs())[0])
        assert ticks(axis) == tokens[::step]
        assert step <= max(1, length // 7)
    boxes = [text.get_window_extent() for text in first.get_ticklabels()]
    assert all(above.y0 >= below.y1 for above, below in pairwise(boxes))
    keys = last.get_ticklabels()
    distances = np.diff([text.get_transform().transform(text.get_position())[0] for text in keys])
    size = keys[0].get_fontsize() * figure.dpi / 72
    # The distance between lines slanted at 45° is their horizontal spacing divided by √2
    assert keys[0].get_rotation() in (45, 90)
    divisor = {45: np.sqrt(2), 90: 1}[keys[0].get_rotation()]
    assert (distances / divisor >= 0.95 * size).all()


@pytest.mark.parametrize(
    ("count", "queries", "keys"),
    [
        (16, ["·namespace", "of", "·statement"] * 4, None),  # as in the demo
        (12, ["[CLS]", "##form", "is"] * 5, None),  # twelve heads of a BERT
        (8, "1987-09-03", "Wednesday, 3 September 1987"),  # a translation, letter by letter
    ],
)
def test_all_labels_are_drawn_if_they_fit(count, queries, keys):
    shape = (len(queries), len(keys or queries))
    figure = heatmaps([uneven(*shape)] * count, list(queries), titles=["h"] * count,
                      key_tokens=keys and list(keys))  # fmt: skip
    axes = maps_of(drawn(figure))
    assert len(ticks(axes[0].yaxis)) == shape[0]
    assert len(ticks(axes[-1].xaxis)) == shape[1]
    labels = axes[0].yaxis.get_ticklabels() + axes[-1].xaxis.get_ticklabels()
    assert all(text.get_fontsize() >= 6.5 for text in labels)
    for axis, side in ((axes[0].yaxis, "y"), (axes[-1].xaxis, "x")):
        if axis.get_ticklabels()[0].get_rotation() != 45:
            boxes = [text.get_window_extent() for text in axis.get_ticklabels()]
            ends = sorted((getattr(box, side + "0"), getattr(box, side + "1")) for box in boxes)
            assert all(first[1] <= second[0] + 0.5 for first, second in pairwise(ends))


def test_scores_before_and_after_the_mask():
    scaled = torch.linspace(-3, 2, 15).reshape(3, 5)
    masked = scaled.masked_fill(~torch.ones(3, 5).tril(2).bool(), -torch.inf)
    figure = scores(scaled, masked, list("abc"), key_tokens=list("vwxyz"), title="scores")
    before, after = (ax.images[0] for ax in maps_of(drawn(figure)))
    np.testing.assert_array_equal(before.get_array(), scaled.double().numpy())
    np.testing.assert_array_equal(np.ma.getmaskarray(after.get_array()), masked.isinf().numpy())
    assert len(maps_of(figure)[1].texts) == masked.isfinite().sum()
    assert before.get_clim() == after.get_clim() == (-3, 3)
    assert maps_of(figure)[0].texts[0].get_text() == "−3.00"


def test_positions_are_drawn_unchanged():
    angles = np.arange(16)[:, None] / 10_000 ** (np.arange(0, 64, 2) / 64)
    table = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(16, 64)
    figure = drawn(positions(torch.tensor(table), title="positions"))
    (ax,) = maps_of(figure)
    np.testing.assert_array_equal(ax.images[0].get_array(), table)
    assert ax.images[0].get_clim() == (-1, 1)
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("dimension", "position")
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


@given(
    st.integers(1, 17), st.integers(1, 40), st.integers(1, 40), st.integers(1, 12), st.booleans()
)
@settings(max_examples=4)
def test_any_number_of_maps_of_any_shape_is_drawn(count, rows, cols, length, mask):
    figure = heatmaps(
        [uneven(rows, cols)] * count,
        ["x" * length] * rows,
        key_tokens=["y" * length] * cols,
        titles=["h" * length] * count,
        allowed=np.zeros((rows, cols)) if mask else None,
    )
    assert sum(len(ax.images) for ax in maps_of(drawn(figure))) == count


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: heatmaps([np.eye(6)], SIX, titles=[]), "0 titles for 1 maps"),
        (lambda: heatmaps([np.eye(6), np.eye(5)], SIX, titles=["a", "b"]), r"weights\[1\]"),
        (lambda: heatmaps([uneven(6, 7)], SIX, titles=["h"]), "pass key_tokens"),
        (lambda: heatmaps([np.ones((2, 6, 6))], SIX, titles=["h"]), "two axes"),
        (lambda: heatmaps([[["a"]]], ["x"], titles=["h"]), "not a table of numbers"),
        (lambda: heatmaps([np.eye(6)], SIX, titles=["h"], allowed=np.tri(5)), "allowed"),
        (lambda: scores(np.eye(6), np.eye(5), SIX), "masked"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_nan_is_drawn_as_empty():
    image = maps_of(heatmaps([np.full((3, 3), np.nan)], SIX[:3], titles=["h"]))[0].images[0]
    assert np.ma.getmaskarray(image.get_array()).all()
    assert image.get_clim() == (0, 1)
