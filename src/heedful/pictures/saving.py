"""A figure on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from heedful.errors import ArgumentError
from heedful.files import make_directory, replacing

FORMATS = (".png", ".svg", ".pdf")
DPI = 200  # twice the dots of a page: sharp on dense screens
# Text that can be searched, copied and edited: letters in SVG, whole fonts (TrueType) in PDF
TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42}


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Writes a figure as PNG, SVG or PDF; the suffix says which. In SVG and PDF text is text.

    The file appears whole or not at all: it is written under a temporary name and renamed.

    Args:
        figure: what to write.
        path: where; its folder is made.

    Returns:
        the path.

    Raises:
        ArgumentError: another suffix.
        SaveError: the file cannot be written; one that was there before is still there.

    >>> save(Figure(), "map.jpg")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    heedful.errors.ArgumentError: a picture named map.jpg; expected ...
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(
            f"a picture named {path.name}", expected="a name that ends in .png, .svg or .pdf"
        )
    make_directory(path.parent)
    with replacing(path) as file, matplotlib.rc_context(TEXT):
        figure.savefig(
            file, format=path.suffix[1:].lower(), dpi=DPI, bbox_inches="tight", pad_inches=0.2
        )
    return path
