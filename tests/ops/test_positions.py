import math

import numpy as np
import pytest
import torch

import heedful
from heedful.errors import ArgumentError
from heedful.ops.positions import alibi, alibi_slopes, rotary, rotate, sinusoidal
from heedful.rotary_scaling import RotaryScaling

# Rows 1, 9 and 15 of the table that document 004 prints, columns 0-9 and 54-63
PRINTED = {
    1: "0.841471 0.540302 0.681561 0.731761 0.533168 0.846009 0.409309 0.912396 0.310984 0.950415 "
    "0.000422 1.000000 0.000316 1.000000 0.000237 1.000000 0.000178 1.000000 0.000133 1.000000",
    9: "0.412118 -0.911130 0.449194 0.893434 -0.939824 0.341660 -0.608108 -0.793854 0.291259 "
    "-0.956644 0.003795 0.999993 0.002846 0.999996 0.002134 0.999998 0.001600 0.999999 0.001200 "
    "0.999999",
    15: "0.650288 -0.759688 -0.968206 0.250154 0.835838 -0.548975 0.042249 0.999107 -0.999519 "
    "0.031022 0.006325 0.999980 0.004743 0.999989 0.003557 0.999994 0.002667 0.999996 0.002000 "
    "0.999998",
}


@pytest.mark.parametrize("row", PRINTED)
def test_the_table_that_document_004_prints(row):
    table = sinusoidal(16, 64)
    printed = np.array(PRINTED[row].split(), float)
    assert table.shape == (16, 64)
    # the document computed its angles in float32: its last digit is off by one here and there
    np.testing.assert_allclose(table[row, [*range(10), *range(54, 64)]], printed, atol=1.5e-6)


def test_sinusoidal_equals_its_formula_in_float64():
    table = sinusoidal(50_000, 10)
    position, i = np.arange(50_000)[:, None], np.arange(5)[None, :]
    angle = position / 10_000 ** (2 * i / 10)
    np.testing.assert_allclose(table[:, 0::2], np.sin(angle), atol=1e-7)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angle), atol=1e-7)


def test_rotation_equals_complex_multiplication():
    vectors = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 5, 8, 13, 100_000])
    got = rotate(vectors, *rotary(positions, 10, base=500.0))
    pairs = vectors[..., :5].numpy() + 1j * vectors[..., 5:].numpy()
    angle = positions.numpy()[:, None] * 500.0 ** (-np.arange(0, 10, 2) / 10)
    turned = pairs * np.exp(1j * angle)
    np.testing.assert_allclose(got, np.concatenate([turned.real, turned.imag], -1), atol=1e-6)


def test_rotated_products_depend_on_the_distance_alone():
    query, key = torch.randn(2, 1, 8, dtype=torch.float64)

    def product(p, q):
        tables = [rotary(torch.tensor([at]), 8) for at in (p, q)]
        return (rotate(query, *tables[0]) @ rotate(key, *tables[1]).T).item()

    assert product(3, 1) == pytest.approx(product(903, 901), abs=1e-5)
    assert product(3, 1) != pytest.approx(product(3, 2), abs=1e-3)


def by_llama(frequency, factor, original, low, high):
    """One frequency by Llama 3.1's own code, `apply_scaling`."""
    wavelength = 2 * math.pi / frequency
    if wavelength < original / high:
        return frequency
    if wavelength > original / low:
        return frequency / factor
    smooth = (original / wavelength - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


@pytest.mark.parametrize(
    ("low", "high", "original"), [(1.0, 4.0, 60), (2.0, 7.0, 300), (0.5, 1.0, 9)]
)
def test_scaled_frequencies_are_those_of_llama(low, high, original):
    scaling = RotaryScaling(
        kind="llama3", factor=8.0, original_context=original, low_frequency=low, high_frequency=high
    )
    frequencies = 700.0 ** (-np.arange(0, 14, 2) / 14)
    expected = [by_llama(frequency, 8.0, original, low, high) for frequency in frequencies]
    assert expected[-1] < frequencies[-1]
    positions = torch.tensor([0, 1, 7, 1000])
    angle = positions.numpy()[:, None] * np.array(expected)
    cosines, sines = rotary(positions, 14, 700.0, scaling)
    np.testing.assert_allclose(cosines, np.cos(angle), atol=1e-7)
    np.testing.assert_allclose(sines, np.sin(angle), atol=1e-7)


def test_linear_scaling_divides_positions():
    slow = rotary(torch.arange(0, 30, 3), 6, 90.0, RotaryScaling(kind="linear", factor=3.0))
    for table, expected in zip(slow, rotary(torch.arange(10), 6, 90.0), strict=True):
        torch.testing.assert_close(table, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "yarn", "factor": 2.0}, "one of linear, llama3"),
        ({"kind": "linear", "factor": 0.9}, "at least 1"),
        ({"kind": "llama3", "factor": 2.0}, "without original_context"),
        ({"kind": "llama3", "factor": 2.0, "original_context": 9, "high_frequency": 1.0}, "more"),
    ],
)
def test_scalings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ArgumentError, match=words):
        RotaryScaling(**settings)


@pytest.mark.parametrize("width", [0, 7])
def test_odd_widths_are_refused(width):
    with pytest.raises(ArgumentError, match="even width"):
        sinusoidal(3, width)


def slopes_of_the_paper(heads):
    """The function of the paper's own code (`get_slopes`), typed again."""

    def of_a_power(heads):
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]

    if math.log2(heads).is_integer():
        return of_a_power(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return of_a_power(closest) + slopes_of_the_paper(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_equal_those_of_the_papers_code(heads):
    np.testing.assert_allclose(alibi_slopes(heads), slopes_of_the_paper(heads), rtol=1e-6)


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (5, 5), (3, 11), (11, 3)])
@pytest.mark.parametrize("heads", [1, 6, 8])
def test_alibi_equals_its_formula_aligned_bottom_right(heads, queries, keys):
    expected = np.zeros((heads, queries, keys))
    for h, n, m in np.ndindex(expected.shape):
        expected[h, n, m] = -slopes_of_the_paper(heads)[h] * abs(n + keys - queries - m)
    np.testing.assert_allclose(alibi(heads, queries, keys), expected, rtol=1e-6)


def test_alibi_as_a_bias_lowers_distant_keys():
    query, key = torch.zeros(1, 6, 3, 4), torch.zeros(1, 6, 9, 4)
    weights = heedful.steps(query, key, key, bias=alibi(6, 3, 9), causal=True).weights
    powers = [np.exp(-0.25 * distance) for distance in (6, 5, 4, 3, 2, 1, 0)]
    np.testing.assert_allclose(weights[0, 0, 0, :7], powers / np.sum(powers), rtol=1e-5)
    assert (weights[0, :, 0, 7:] == 0).all()


@pytest.mark.parametrize("sizes", [(0, 3, 3), (2, -1, 3), (2, 3, -1)])
def test_alibi_of_nothing_is_refused(sizes):
    with pytest.raises(ArgumentError):
        alibi(*sizes)
