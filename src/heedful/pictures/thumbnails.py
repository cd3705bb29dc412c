"""Thumbnails of attention maps, joined in a small PNG as a `data:` URL for HTML pages."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image  # a dependency of matplotlib

LEVELS = 64  # colours of weights; two more colours of the palette follow
MASKED, BACKGROUND = LEVELS, LEVELS + 1
GREY, WHITE = (208, 213, 218), (255, 255, 255)
IN_A_LINE = 16  # maps per line
LOWEST = 8  # pixels: smallest height of a map


def strip(maps: Sequence[np.ma.MaskedArray], side: int) -> tuple[str, int, int]:
    """Draw maps side by side; return a `data:` URL, and the picture's width and height in pixels.

    Colours follow the square root of the weight, from 0 to 1; masked cells are grey.

    Args:
        maps: arrays of the same shape (n, m), with n and m at most `side`.
        side: the upper limit of the longer side of a map, in pixels.

    >>> url, width, height = strip([np.ma.masked_array(np.eye(4))] * 3, 16)
    >>> url[:22], width, height
    ('data:image/png;base64,', 52, 16)
    """
    import matplotlib

    n, m = maps[0].shape
    cell, gap = max(1, side // max(n, m)), 2
    cell_height = max(cell, math.ceil(min(LOWEST, side) / n))  # so that a single row is visible
    width, height = m * cell, n * cell_height
    cols = min(len(maps), IN_A_LINE)
    rows = math.ceil(len(maps) / cols)
    shape = rows * (height + gap) - gap, cols * (width + gap) - gap
    sheet = np.full(shape, BACKGROUND, np.uint8)
    for i, values in enumerate(maps):
        top, left = (i // cols) * (height + gap), (i % cols) * (width + gap)
        shades = np.sqrt(np.clip(values.data, 0, 1)) * (LEVELS - 1)
        levels = np.where(np.ma.getmaskarray(values), MASKED, np.round(shades)).astype(np.uint8)
        tile = levels.repeat(cell_height, 0).repeat(cell, 1)
        sheet[top : top + height, left : left + width] = tile
    image, file = Image.fromarray(sheet), io.BytesIO()
    viridis = matplotlib.colormaps["viridis"](np.linspace(0, 1, LEVELS), bytes=True)[:, :3]
    image.putpalette(np.vstack([viridis, [GREY, WHITE]]).astype(np.uint8).tobytes())
    image.save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return f"data:image/png;base64,{data}", sheet.shape[1], sheet.shape[0]
