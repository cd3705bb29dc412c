import math

import numpy as np
import pytest
import torch

from heedful.errors import ArgumentError
from heedful.ops.positions import alibi, rotary, rotate, sinusoidal
from heedful.rotary_scaling import RotaryScaling


def test_sinusoidal_equals_its_formula_in_float64():
    table = sinusoidal(50_000, 10)
    position, i = np.arange(50_000)[:, None], np.arange(5)[None, :]
    angle = position / 10_000 ** (2 * i / 10)
    np.testing.assert_allclose(table[:, 0::2], np.sin(angle), atol=1e-7)
    np.testing.assert_allclose(table[:, 1::2], np.cos(angle), atol=1e-7)


def test_rotation_equals_complex_multiplication():
    vectors = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    positions = torch.tensor([0, 1, 2, 5, 8, 13, 100_000])
    result = rotate(vectors, *rotary(positions, 10, base=500.0))
    pairs = vectors[..., :5].numpy() + 1j * vectors[..., 5:].numpy()
    angle = positions.numpy()[:, None] * 500.0 ** (-np.arange(0, 10, 2) / 10)
    rotated = pairs * np.exp(1j * angle)
    np.testing.assert_allclose(result, np.concatenate([rotated.real, rotated.imag], -1), atol=1e-6)


def by_llama(frequency, factor, original, low, high):
    """Scale a frequency as `apply_scaling` in the code of Llama 3.1."""
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
def test_scaled_frequencies_equal_llama(low, high, original):
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


def slopes_of_the_paper(heads):
    """Return the slopes as in the paper's code (`get_slopes`)."""

    def for_power_of_two(heads):
        start = 2 ** (-(2 ** -(math.log2(heads) - 3)))
        return [start * start**i for i in range(heads)]

    if math.log2(heads).is_integer():
        return for_power_of_two(heads)
    closest = 2 ** math.floor(math.log2(heads))
    return for_power_of_two(closest) + slopes_of_the_paper(2 * closest)[0::2][: heads - closest]


@pytest.mark.parametrize(("queries", "keys"), [(1, 7), (5, 5), (3, 11), (11, 3)])
@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 31])
def test_alibi_equals_its_formula_aligned_bottom_right(heads, queries, keys):
    expected = np.zeros((heads, queries, keys))
    for h, n, m in np.ndindex(expected.shape):
        expected[h, n, m] = -slopes_of_the_paper(heads)[h] * abs(n + keys - queries - m)
    np.testing.assert_allclose(alibi(heads, queries, keys), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda: RotaryScaling(kind="yarn", factor=2.0),
        lambda: RotaryScaling(kind="linear", factor=0.9),
        lambda: RotaryScaling(kind="llama3", factor=2.0),
        lambda: sinusoidal(3, 0),
        lambda: sinusoidal(3, 7),
        lambda: alibi(0, 3, 3),
    ],
)
def test_invalid_arguments_are_refused(call):
    with pytest.raises(ArgumentError):
        call()
