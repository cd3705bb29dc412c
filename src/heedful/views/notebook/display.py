"""The output of a recording in a cell: a widget, a self-contained frame, or a table."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError, HeedfulError
from heedful.loaded import LoadedModel, open_model
from heedful.recording import Call, Recording, Sequence, load
from heedful.views.explorer import one_file
from heedful.views.notebook.kernel_side import Viewable, texts_and_view

HTML = "text/html"
# Heuristics, because a kernel cannot query its front end: a kernel in VS Code has these environment
# variables, and a kernel in Colab has imported this package
VS_CODE = ("VSCODE_PID", "VSCODE_CWD")
COLAB = "google.colab"
LIMIT = 2.0  # MB of a frame; frames are saved in the notebook file
STYLE = "width:100%;height:640px;border:1px solid #8886;border-radius:6px;resize:vertical"
MAX_AUTOMATIC = 1 << 30  # maximum number of weights of a frame that is written without a request
EXPECTED = (
    "a recording, its path, or one of its sequences or calls; or a text and a model (the result of "
    "`heedful.open`, a path or a name)"
)


def bundle(item: Viewable, *, kernel: bool | None = None, **chosen: Any) -> Any:
    """Return the MIME bundle that shows the page in a cell; None shows only the table and text.

    Args:
        item: a recording, or one of its sequences or calls.
        kernel: whether the page requests numbers from this kernel; default: True if the notebook
            ships the widgets' front end.
        chosen: `layers` and `heads`, as for `Catalogue`.
    """
    if kernel is None:
        if not is_notebook() or not has_widgets():
            return None
        kernel = not fetches_widgets()
        calls = [item] if isinstance(item, Call) else item
        if not kernel and sum(math.prod(call.shape) for call in calls) > MAX_AUTOMATIC:
            return _table(item, "heedful.look(…, kernel=False) shows the page; it takes a while")
    try:
        if kernel:
            from heedful.views.notebook.widget import Page

            return Page(item, **chosen).bundle()
        return {HTML: frame(item, **chosen)}
    except HeedfulError as error:
        return _table(item, str(error))


def _table(item: Viewable, line: str) -> dict[str, str]:
    """Return the table, below a line that explains why there is no page."""
    return {HTML: f"<div>{escape(line)}</div>{item._repr_html_()}"}


def is_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def has_widgets() -> bool:
    """Whether anywidget is installed."""
    return importlib.util.find_spec("anywidget") is not None


def fetches_widgets() -> bool:
    """Whether the notebook downloads the widgets' front end; a heuristic, see `VS_CODE`."""
    return COLAB in sys.modules or any(name in os.environ for name in VS_CODE)


def frame(item: Viewable, **chosen: Any) -> str:
    """Return the page as a sandboxed HTML frame.

    Args:
        item: a recording, or one of its sequences or calls.
        chosen: `layers` and `heads`, as for `Catalogue`.

    Raises:
        RunError: the calls do not fit into the size limit.
    """
    texts, view = texts_and_view(item, **chosen)
    title = repr(item).strip("<>")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        _, contents = one_file.write(path, texts, title, limit=LIMIT, view=view)
        page = path.read_text("utf-8")
    # sites that remove frames from a notebook still show the line above the frame
    return (
        f'<div style="font-size:13px">{escape(title)}. {escape(contents)}</div>'
        f'<iframe sandbox="allow-scripts allow-downloads" style="{STYLE}" '
        f'title="{escape(title)}" srcdoc="{escape(page)}"></iframe>'
    )


class Look:
    """The result of `heedful.look`. A cell whose last value is this object displays the page.

    shown: the recording, sequence or call, for further use.
    """

    def __init__(self, item: Viewable, kernel: bool | None, chosen: dict[str, Any]) -> None:
        self.shown, self._kernel, self._chosen = item, kernel, chosen

    def __repr__(self) -> str:
        return f"<Look at {repr(self.shown).strip('<>')}; a notebook shows it>"

    def _repr_html_(self) -> str:
        return self.shown._repr_html_()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any] | None:
        return bundle(self.shown, kernel=self._kernel, **self._chosen)


def look(
    what: Viewable | LoadedModel | str | Path,
    text: str | None = None,
    second: str | None = None,
    *,
    layers: list[int] | None = None,
    heads: list[int] | None = None,
    kernel: bool | None = None,
) -> Look:
    """Open the explorer in a notebook: for a recording, or for a model that reads a text.

    A cell displays the page if the result is the cell's last value. In a terminal, `heedful look`
    opens the page in a browser.

    Args:
        what: a recording, one of its sequences (`recording.sequences[1]`) or calls
            (`recording[3]`), or its path; or a model from `heedful.open`, or its path or name.
        text: the text that the model reads; `second` is the second text of a pair.
        layers, heads: the layers and heads to show, as indices in the model; default all.
        kernel: True requests every number from the kernel, through anywidget. False stores the
            page in the notebook, in at most 2 MB; the page then needs no kernel and no network, and
            states which weights it contains. Default: True if the notebook ships the front end of
            widgets, as Jupyter does; False in VS Code and Colab, which download that front end.

    Raises:
        ArgumentError: an object of another type, a text beside a recording, a model without a text,
            a layer or head that does not exist, or `kernel=True` without anywidget.
        HeedfulError: the errors of `heedful.load`, `heedful.open` and `record`.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> look(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))
    <Look at Recording of 1 call, 1 sequence; a notebook shows it>
    """
    if kernel and not has_widgets():
        raise ArgumentError(
            "kernel=True without anywidget",
            remedy="pip install 'heedful[notebook]', or leave out kernel=True",
        )
    chosen = {"layers": layers, "heads": heads}
    item = _viewable(what, text, second)
    texts_and_view(item, **chosen)  # raises for a wrong layer or head, before the display
    return Look(item, kernel, chosen)


def _viewable(what: Any, text: str | None, second: str | None) -> Viewable:
    """Return the recording, sequence or call to show."""
    if isinstance(what, str | Path):
        what = load(what) if text is None else open_model(what)
    if isinstance(what, LoadedModel):
        if text is None:
            raise ArgumentError("a model without a text", expected="look(model, text)")
        return what.record(text, second)
    if not isinstance(what, Recording | Sequence | Call):
        raise ArgumentError(f"an object of type {type(what).__name__}", expected=EXPECTED)
    if text is not None or second is not None:
        raise ArgumentError("a text beside a recording", expected="a model before the text")
    return what
