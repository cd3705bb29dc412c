"""Saving of figures as PNG, SVG or PDF."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from heedful.errors import ArgumentError
from heedful.files import atomic_write, make_directory
from heedful.pictures.labels import drawable

FORMATS = (".png", ".svg", ".pdf")
DPI = 200  # sharp on high-density screens
# Text stays searchable and editable: text elements in SVG, TrueType fonts in PDF
TEXT: Any = {"svg.fonttype": "none", "pdf.fonttype": 42}


def save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    """Save a figure as PNG, SVG or PDF, chosen by the suffix; text in SVG and PDF is searchable.

    The write is atomic: the file is written under a temporary name and then renamed.

    Args:
        figure: the figure.
        path: of the file; its directory is created if needed.

    Returns:
        The path.

    Raises:
        ArgumentError: another suffix.
        SaveError: the file cannot be written; an existing file stays unchanged.

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
    for text in figure.findobj(Text):  # SVG is XML, which has no control characters
        text.set_text("\n".join(map(drawable, text.get_text().split("\n"))))
    with atomic_write(path) as file, matplotlib.rc_context(TEXT):
        figure.savefig(
            file, format=path.suffix[1:].lower(), dpi=DPI, bbox_inches="tight", pad_inches=0.2
        )
    return path
