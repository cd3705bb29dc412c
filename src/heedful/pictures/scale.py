"""The scale of weights: where the colours end, and how they follow the numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.colors import Colormap, LogNorm, Normalize, PowerNorm

from heedful.errors import ArgumentError
from heedful.pictures.style import colours

SCALES = {
    "linear": "attention weight",
    "sqrt": "attention weight, square-root scale",
    "log": "attention weight, logarithmic scale",
}
DECADES = 4  # of a logarithmic scale; what is smaller has its lowest colour


class Scale(NamedTuple):
    """How the colours of maps follow their numbers, the same in all maps of a picture.

    meaning: what the colour bar says. is_cut: whether a number is above the end.
    """

    colours: Colormap
    norm: Normalize
    meaning: str
    is_cut: bool = False


def scale_of(
    maps: Sequence[np.ma.MaskedArray], kind: str | None, highest: float | None, small: bool
) -> Scale:
    """The scale for these maps, from 0 to the largest weight; 1 for nearly 1.

    Args:
        maps: what is drawn.
        kind: "linear", "sqrt" or "log"; None: linear in small maps, else sqrt. The first query of a
            causal map weighs 1; among many tokens all else would look like 0.
        highest: where the scale ends instead.
        small: whether the maps are.

    Raises:
        ArgumentError: another kind, or an end that is no number above 0.
    """
    kind = kind or ("linear" if small else "sqrt")
    if kind not in SCALES:
        raise ArgumentError(f"scale={kind!r}", expected="'linear', 'sqrt' or 'log'")
    if highest is not None and not (math.isfinite(highest) and highest > 0):
        raise ArgumentError(f"highest={highest}", expected="a number above 0, such as 1 or 0.2")
    found = largest(maps)
    end = float(highest or (1.0 if 0.9 < found < 1.001 else found))
    norm = {
        "linear": lambda: Normalize(0, end),
        "sqrt": lambda: PowerNorm(0.5, 0, end),
        "log": lambda: LogNorm(end / 10**DECADES, end, clip=True),
    }[kind]()
    return Scale(colours("viridis"), norm, SCALES[kind], found > end * 1.001)


def around_zero(maps: Sequence[np.ma.MaskedArray], meaning: str) -> Scale:
    """A scale as far below 0, in blue, as above it, in red."""
    limit = largest(maps)
    return Scale(colours("RdBu_r"), Normalize(-limit, limit), meaning)


def largest(maps: Sequence[np.ma.MaskedArray]) -> float:
    """The largest magnitude that is drawn; 1 where all are 0 or nothing is drawn."""
    return max((float(abs(values).max()) for values in maps if values.count()), default=0) or 1.0
