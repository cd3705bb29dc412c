"""The page as one file in a frame of a cell: it asks no kernel and no network."""

from __future__ import annotations

import html
import tempfile
from pathlib import Path
from typing import Any

from heedful.views.explorer import one_file
from heedful.views.notebook.answering import Shown
from heedful.views.notebook.opening import opened_on

LIMIT = 2.0  # MB: a notebook is saved with all of its cells, and is read whole
STYLE = "width:100%;height:640px;border:1px solid #8886;border-radius:6px;resize:vertical"


def frame(shown: Shown, **chosen: Any) -> str:
    """The page as HTML for a cell; scripts in it reach nothing of what is around it.

    Args:
        shown: a recording, a text of one, or a call.
        chosen: `layers` and `heads`, as `Texts` takes them.

    Raises:
        RunError: more calls than there is room for.
    """
    texts, view = opened_on(shown, **chosen)
    words = repr(shown).strip("<>")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        _, said = one_file.write(path, texts, words, limit=LIMIT, view=view)
        page = path.read_text("utf-8")
    # the line is what is left where a site shows a notebook without its frames
    return (
        f'<div style="font-size:13px">{html.escape(words)}. {html.escape(said)}</div>'
        f'<iframe sandbox="allow-scripts allow-downloads" style="{STYLE}" '
        f'title="{html.escape(words)}" srcdoc="{html.escape(page)}"></iframe>'
    )
