"""Grids of heads: positions and names of maps, numbers, scales and sizes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg

from heedful.errors import ArgumentError
from heedful.pictures.head_grid import draw
from heedful.pictures.page_layout import BAR, Block, Frame, Line, cells, plan
from heedful.pictures.saving import save


def uneven(N, M, seed=0, hidden=None):
    weights = np.random.default_rng(seed).random((N, M)) ** 3
    table = np.zeros((N, M), bool) if hidden is None else hidden
    weights = np.where(table, 0, weights)
    return np.ma.masked_array(weights / weights.sum(1, keepdims=True), table)


def block(layers, heads, N, M, **options):
    lines = [
        Line(f"layer {n}", [uneven(N, M, 100 * n + h, options.get("hidden")) for h in range(heads)])
        for n in range(layers)
    ]
    options.pop("hidden", None)
    queries, keys = [f"q{i}" for i in range(N)], [f"k{i}" for i in range(M)]
    return Block(lines, list(range(heads)), queries, keys, **options)


def images(figure):
    """Return every drawn map by its line and head."""
    maps = {}
    for ax in figure.axes:
        for image in ax.images:
            prefix = ax.get_label() if ", head" in ax.get_label() else f"{ax.get_label()}, "
            key = prefix if ", head" in ax.get_label() else prefix + image.get_label()
            assert key not in maps
            maps[key] = image
    return maps


def written(figure):
    return [text.get_text() for text in figure.texts]


def ticks(axis):
    return [text.get_text() for text in axis.get_ticklabels()]


@pytest.mark.parametrize(
    ("layers", "heads", "N", "M"), [(2, 3, 5, 11), (4, 12, 17, 17), (3, 8, 90, 40)]
)
def test_every_map_is_drawn_unchanged(layers, heads, N, M):
    grid = block(layers, heads, N, M)
    maps = images(draw([grid]))
    assert len(maps) == layers * heads
    for n, line in enumerate(grid.lines):
        for h, values in enumerate(line.maps):
            np.testing.assert_array_equal(maps[f"layer {n}, head {h}"].get_array(), values)


def test_twelve_by_twelve_maps_are_labelled_by_layer_and_head():
    figure = draw([block(12, 12, 40, 40)])
    FigureCanvasAgg(figure).draw()
    assert len(images(figure)) == 144
    texts = written(figure)
    assert [text for text in texts if text.startswith("layer")] == [f"layer {n}" for n in range(12)]
    assert [text.removeprefix("head ") for text in texts[:12]] == [str(n) for n in range(12)]
    assert any("40 queries from top to bottom" in text for text in texts)
    lines = [ax.get_window_extent() for ax in figure.axes if ax.get_label().startswith("layer")]
    assert min(box.height for box in lines) > 0.4 * figure.dpi
    assert [box.y1 for box in lines] == sorted((box.y1 for box in lines), reverse=True)


def test_a_missing_head_leaves_a_gap():
    grid = block(2, 2, 5, 5)
    lines = [grid.lines[0], Line("layer 1", [None, grid.lines[1].maps[1]])]
    assert {*images(draw([grid._replace(lines=lines)]))} == {
        "layer 0, head 0", "layer 0, head 1", "layer 1, head 1",
    }  # fmt: skip


def test_axes_are_named_once_and_tokens_stand_along_the_edges():
    figure = draw([block(2, 2, 3, 4, axes=("queries (target)", "keys (source)"))])
    FigureCanvasAgg(figure).draw()
    assert written(figure).count("queries (target) ↓") == 1
    assert written(figure).count("keys (source) →") == 1
    by = {ax.get_label(): ax for ax in figure.axes}
    assert ticks(by["layer 1, head 0"].yaxis) == ["q0", "q1", "q2"]
    assert ticks(by["layer 1, head 0"].xaxis) == ["k0", "k1", "k2", "k3"]
    assert ticks(by["layer 0, head 1"].xaxis) == ticks(by["layer 0, head 1"].yaxis) == []
    upper, lower = (by[f"layer {n}, head 0"].get_window_extent() for n in range(2))
    assert upper.y0 > lower.y1
    right = by["layer 0, head 1"].get_window_extent()
    assert right.x0 > upper.x1


@pytest.mark.parametrize(
    ("N", "M", "axes"),
    [(6, 20, ("queries (target)", "keys (source)")), (3, 9, ("queries", "keys"))],
)
def test_no_text_is_cut_off_by_the_edge_of_the_figure(N, M, axes):
    grid = block(2, 2, N, M, axes=axes)
    grid = grid._replace(queries=[str(i) for i in range(N)], keys=[str(i) for i in range(M)])
    figure = draw([grid])
    FigureCanvasAgg(figure).draw()
    wide, tall = figure.get_size_inches() * figure.dpi
    labels = [text for ax in figure.axes if ax.images for text in ax.get_yticklabels()]
    labels += [text for ax in figure.axes if ax.images for text in ax.get_xticklabels()]
    for text in (*figure.texts, *labels):
        box = text.get_window_extent()
        assert min(box.x0, box.y0) >= 0, text
        assert max(box.x1 / wide, box.y1 / tall) <= 1, text


@pytest.mark.parametrize("size", [(2, 2, 6), (4, 12, 30)])
def test_masked_cells_are_striped_and_differ_from_zero(size):
    layers, heads, N = size
    figure = draw([block(layers, heads, N, N, hidden=np.tri(N) == 0)])
    for image in images(figure).values():
        values = image.get_array()
        np.testing.assert_array_equal(np.ma.getmaskarray(values), np.tri(N) == 0)
        shade = image.to_rgba(np.ma.masked_array([[0.0, 0.0]], [[False, True]]))
        assert shade[0, 0, 3] == 1  # a weight of 0 has its colour
        assert shade[0, 1, 3] == 0  # and a masked cell is transparent
        assert any(patch.get_hatch() for patch in image.axes.patches)
    assert any(text.startswith("striped cells are masked") for text in written(figure))
    unmasked = draw([block(layers, heads, N, N)])
    assert not any("striped" in text for text in written(unmasked))


def test_the_border_between_two_texts_is_drawn_on_both_axes():
    figure = draw([block(1, 1, 5, 7, borders=([2], [4]))])
    lines = [line.get_xydata().tolist() for line in figure.axes[0].lines]
    assert [[-0.5, 1.5], [6.5, 1.5]] in lines
    assert [[3.5, -0.5], [3.5, 4.5]] in lines


@pytest.mark.parametrize(
    ("scale", "highest", "values"),
    [
        ("linear", None, {0.0: 0, 0.2: 0.5, 0.4: 1}),
        ("sqrt", None, {0.0: 0, 0.1: 0.5, 0.4: 1}),
        ("log", None, {0.4: 1, 0.004: 0.5, 0.0: 0, 1e-9: 0}),
        ("linear", 0.1, {0.05: 0.5, 0.1: 1}),
        ("sqrt", 1, {0.25: 0.5}),
    ],
)
def test_scales(scale, highest, values):
    weights = np.ma.masked_array([[0.4, 0.3, 0.3], [0.2, 0.4, 0.4]])
    grid = Block([Line("layer 0", [weights])], [0], ["a", "b"], ["x", "y", "z"])
    figure = draw([grid], scale=scale, highest=highest)
    norm = images(figure)["layer 0, head 0"].norm
    for weight, share in values.items():
        assert float(norm(weight)) == pytest.approx(share, abs=1e-6)
    bar = figure.axes[-1]
    assert (scale == "linear") == (bar.get_ylabel() == "attention weight")
    FigureCanvasAgg(figure).draw()
    assert not any("$" in text for text in ticks(bar.yaxis))


def test_numbers_in_the_cells():
    grid = block(1, 2, 12, 12)
    assert not draw([grid]).axes[0].texts
    figure = draw([grid], values=True)
    texts = figure.axes[0].texts
    assert [text.get_text() for text in texts] == [f"{w:.2f}" for w in grid.lines[0].maps[0].flat]
    assert min(text.get_fontsize() for text in texts) > 5
    assert not draw([block(1, 1, 4, 4)], values=False).axes[0].texts
    with pytest.raises(ArgumentError, match="cells that are large enough"):
        draw([grid], values=True, size=4)


@given(st.integers(1, 50), st.integers(1, 64), st.integers(1, 64), st.integers(1, 64))
@example(40, 1, 10, 2)
@example(41, 5, 2, 1)
@example(1, 53, 52, 7)
@settings(max_examples=25)
def test_a_picture_has_the_requested_width_and_all_maps(layers, heads, N, M):
    frame = Frame(layers, heads, (N, M), 8, 8)
    [layout] = plan([frame], None, None)
    assert layout.cols * layout.wraps >= heads
    assert layout.wraps == 1 or layers == 1
    assert layout.width >= 0.09
    [wide] = plan([frame], 20, None)
    assert wide.left + wide.content + BAR <= 20 + 1e-6 or wide.width <= 1.2
    assert 64 <= cells(frame) <= 512


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plan([Frame(1000, 64, (9, 9))], None, None), "1,000 lines of 64 maps"),
        (lambda: draw([block(1, 1, 2, 2)], scale="cubic"), "'linear', 'sqrt' or 'log'"),
        (lambda: draw([block(1, 1, 2, 2)], highest=-1), "above 0"),
        (lambda: plan([Frame(12, 12, (512, 512))], None, True), "fewer layers and heads"),
    ],
)
def test_wrong_arguments_are_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


@pytest.mark.parametrize("heads", [1, 12])
def test_svg_contains_searchable_text(heads, tmp_path):
    path = save(draw([block(2, heads, 20, 20)], title="A <b> $title$"), tmp_path / "a.svg")
    text = path.read_text()
    for word in ("A &lt;b&gt; $title$", "layer 1", "attention weight, square-root scale"):
        assert f">{word}</text>" in text


def test_pdf_fonts_are_truetype(tmp_path):
    pdf = save(draw([block(1, 1, 3, 3)]), tmp_path / "a.pdf").read_bytes()
    assert b"/Subtype /Type3" not in pdf
    assert b"/CIDFontType2" in pdf


@pytest.mark.parametrize("size", [5, 20])
def test_cells_that_are_nan_have_a_colour_and_a_note(size):
    values = np.ma.masked_where(np.tri(size) == 0, uneven(size, size))
    values[-2, : size // 2] = np.nan
    sound, broken = (
        draw([Block([Line("", [maps])], [0], [*map(str, range(size))], [*map(str, range(size))])])
        for maps in (np.ma.masked_invalid(values), values)
    )
    assert [("NaN" in " ".join(written(figure))) for figure in (sound, broken)] == [False, True]
    pixels = []
    for figure in (sound, broken):
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels.append((np.asarray(canvas.buffer_rgba())[..., :3] == (208, 48, 140)).all(-1).sum())
    area = size // 2 / size**2  # of the map
    assert pixels[0] == 0
    assert pixels[1] > 0.5 * area * 300**2 / 2
