"""Tiles at any zoom, exact, sampled or from a pyramid, compared with maps pooled by NumPy."""

import itertools
import math

import numpy as np
import pytest
import small_recordings
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import allowed_pairs, random_inputs

import heedful
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Causal
from heedful.recording import Call
from heedful.recording.certificate import Check
from heedful.views.explorer import tiles
from heedful.views.explorer.tiles import Pyramid, Tile


def call_of(inputs):
    return Call("attend", 0, 0, "causal", inputs, Check(0.0, 1.0, 1))


def pooled(map_, allowed, cell, reduce):
    """Pool a map (N, M) in cells of cell[0] × cell[1]; NaN if no pair of a cell may attend."""
    shape = [math.ceil(size / side) for size, side in zip(map_.shape, cell, strict=True)]
    result = np.full(shape, np.nan)
    for i, j in itertools.product(*map(range, shape)):
        part = np.s_[i * cell[0] : (i + 1) * cell[0], j * cell[1] : (j + 1) * cell[1]]
        if allowed[part].any():
            result[i, j] = map_[part].mean() if reduce == "mean" else map_[part].max()
    return result


@pytest.fixture
def small_tiles():
    """Use tiles of 4 × 4 pixels and pyramids of cells of 2 × 2, which suit maps of 13 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for name, size in (("SIDE", 4), ("FINEST", 1), ("BAND", 1)):
            patch.setattr(tiles, name, size)
        yield


def all_tiles(call, reduce, lowest=0):
    """Yield every tile of the last head, from the lowest level on."""
    head = call.shape[0] - 1
    for level in range(lowest, tiles.highest_level(call) + 1):
        counts = (math.ceil(size / (tiles.SIDE << level)) for size in call.shape[1:])
        for row, column in itertools.product(*map(range, counts)):
            yield Tile(head, level, row, column, reduce)


def crop(pixels, tile):
    return pixels[
        tile.row * tiles.SIDE : (tile.row + 1) * tiles.SIDE,
        tile.column * tiles.SIDE : (tile.column + 1) * tiles.SIDE,
    ]


@settings(max_examples=25)
@given(
    sample=random_inputs(),
    reduce=st.sampled_from(["mean", "max"]),
    few=st.integers(1, 3),
    stops=st.lists(st.integers(0, 3), min_size=1, max_size=4),
)
@pytest.mark.usefixtures("small_tiles")
def test_exact_and_sampled_tiles_and_tiles_of_a_pyramid_equal_the_pooled_map(
    sample, reduce, few, stops
):
    """A sampled row of pixels shows one query; a pyramid is read while it is built in steps."""
    inputs, (map_, _) = sample
    call, N = call_of(inputs), inputs.shape[1]
    pyramid = Pyramid(call, call.shape[0] - 1, reduce)

    def compare(pixels, tile, rows=slice(None), high=None):
        cell = 1 << tile.level
        parts = map_[tile.head][rows], allowed_pairs(inputs)[tile.head][rows]
        expected = crop(pooled(*parts, (high or cell, cell), reduce), tile)
        np.testing.assert_allclose(pixels, expected, atol=4e-6, err_msg=str(tile))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "QUERIES", few)
        for tile in all_tiles(call, reduce):
            compare(tiles.exact(call, tile), tile)
            cell = 1 << tile.level
            middles = [min(start + cell // 2, N - 1) for start in range(0, N, cell)]
            compare(tiles.sampled(call, tile), tile, middles, 1)
    for steps in [*stops, N + 1]:  # so many steps, then its tiles are compared
        remaining = iter([True] * steps)
        pyramid.run_steps(lambda remaining=remaining: next(remaining, False))
        for tile in all_tiles(call, reduce, 1):
            if pyramid.has(tile):
                compare(pyramid.tile(tile), tile)
    assert pyramid.run_steps()
    assert all(pyramid.has(tile) for tile in all_tiles(call, reduce, 1))


def test_an_unmasked_zero_is_not_a_masked_cell(monkeypatch):
    monkeypatch.setattr(tiles, "FINEST", 0)
    query = torch.tensor([[[1000.0], [1000.0]]])
    key = torch.tensor([[[1.0], [-1.0]]])
    pyramid = Pyramid(call_of(AttentionInputs(query, key, 1.0, Causal())), 0, "max")
    pyramid.run_steps()
    np.testing.assert_array_equal(pyramid.tile(Tile(0, 0, 0, 0, "max")), [[1, np.nan], [1, 0]])


def test_tiles_of_half_precision_are_as_exact_as_weights():
    torch.manual_seed(5)
    query, key, value = (3 * torch.randn(3, 1, 2, 300, 16)).bfloat16()
    with heedful.record(model := small_recordings.Causal()) as recording:
        model(query, key, value)
    [call] = recording
    for level, reduce in ((0, "max"), (1, "mean"), (1, "max")):
        pixels = tiles.exact(call, tiles.Tile(1, level, 0, 0, reduce))
        cell = 1 << level
        pool = getattr(torch.nn.functional, {"mean": "avg", "max": "max"}[reduce] + "_pool2d")
        true = pool(call.weights(1).float()[None], cell)[0, :256, :256]
        visible = ~pixels.isnan()
        torch.testing.assert_close(pixels[visible], true[visible], atol=1e-7, rtol=1e-6)
