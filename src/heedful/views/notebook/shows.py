"""What a recording is in a cell: the page that asks the kernel, one that does not, or a table."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from heedful.errors import HeedfulError
from heedful.recording import Call
from heedful.views.explorer import one_file
from heedful.views.notebook.answering import Shown, opened_on

HTML = "text/html"
# Guesses, as no notebook says its name to its kernel: VS Code starts kernels with variables of its
# own process, and Colab's kernels have brought its package
VS_CODE = ("VSCODE_PID", "VSCODE_CWD")
COLAB = "google.colab"
LIMIT = 2.0  # MB of a frame: a notebook is saved with all of its cells, and is read whole
STYLE = "width:100%;height:640px;border:1px solid #8886;border-radius:6px;resize:vertical"
QUICK = 1 << 30  # weights of which a frame is made without being asked for: in some seconds


def bundle(shown: Shown, *, kernel: bool | None = None, **chosen: Any) -> Any:
    """What a notebook is given of it beside its table and its words; None where that is all.

    Args:
        shown: a recording, a text of one, or a call.
        kernel: whether the page asks this kernel; default: where the notebook has the widgets'
            front end itself.
        chosen: `layers` and `heads`, as `Texts` takes them.
    """
    if kernel is None:
        if not is_notebook() or not has_widgets():
            return None
        kernel = not fetches_widgets()
        if not kernel and _weights(shown) > QUICK:
            return _table(shown, "a page of it, which takes a while: heedful.look(…, kernel=False)")
    try:
        if kernel:
            from heedful.views.notebook.widget import Page

            return Page(shown, **chosen).bundle()
        return {HTML: frame(shown, **chosen)}
    except HeedfulError as error:
        return _table(shown, str(error))


def _table(shown: Shown, line: str) -> dict[str, str]:
    """Its table, and why that is all."""
    return {HTML: f"<div>{escape(line)}</div>{shown._repr_html_()}"}


def _weights(shown: Shown) -> int:
    calls = [shown] if isinstance(shown, Call) else shown
    return sum(call.shape[0] * call.shape[1] * call.shape[2] for call in calls)


def is_notebook() -> bool:
    """Whether this process is a kernel, and not a terminal or a script."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def has_widgets() -> bool:
    """Whether anywidget is installed."""
    return importlib.util.find_spec("anywidget") is not None


def fetches_widgets() -> bool:
    """Whether the notebook may fetch the widgets' front end from elsewhere; a guess, see above."""
    return COLAB in sys.modules or any(name in os.environ for name in VS_CODE)


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
        f'<div style="font-size:13px">{escape(words)}. {escape(said)}</div>'
        f'<iframe sandbox="allow-scripts allow-downloads" style="{STYLE}" '
        f'title="{escape(words)}" srcdoc="{escape(page)}"></iframe>'
    )
