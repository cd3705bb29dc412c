"""The files of the page: its modules as one script, its style sheets as one."""

from __future__ import annotations

import gzip
from functools import cache
from pathlib import Path

from heedful.views.one_script import one_script

PAGE = Path(__file__).parent / "page"
ALONE = "alone"  # the sheet of a page that has a window to itself
# In their order: of equal rules the later one counts
SHEETS = (
    "base", "top", "heads", "map", "weight", "terms", "text", "picture", "segments", "generation",
    "moments", ALONE, "tour",
)  # fmt: skip


def styles() -> list[Path]:
    """The style sheets, in their order."""
    return [PAGE / "style" / f"{name}.css" for name in SHEETS]


@cache
def served() -> dict[str, tuple[str, bytes]]:
    """What a server answers, with its type, packed by gzip: two files, so that few are waited for.

    >>> list(served())
    ['page.js', 'page.css']
    """
    style = "".join(sheet.read_text("utf-8") for sheet in styles())
    script = one_script(PAGE / "sources" / "server.js")
    return {
        "page.js": ("text/javascript", gzip.compress(script.encode())),
        "page.css": ("text/css", gzip.compress(style.encode())),
    }
