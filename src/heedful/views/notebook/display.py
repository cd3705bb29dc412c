"""What a recording is in a cell: the page that asks the kernel, one that does not, or a table."""

from __future__ import annotations

import importlib.util
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
from heedful.views.notebook.kernel_side import Shown, opened_on

HTML = "text/html"
# Guesses, as no notebook says its name to its kernel: VS Code starts kernels with variables of its
# own process, and Colab's kernels have brought its package
VS_CODE = ("VSCODE_PID", "VSCODE_CWD")
COLAB = "google.colab"
LIMIT = 2.0  # MB of a frame: a notebook is saved with all of its cells, and is read whole
STYLE = "width:100%;height:640px;border:1px solid #8886;border-radius:6px;resize:vertical"
QUICK = 1 << 30  # weights of which a frame is made without being asked for: in some seconds
EXPECTED = (
    "a recording, a text or a call of one; the path of a recording; or a model that "
    "`heedful.open` opened, or its path or name, and a text"
)


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


class Look:
    """What `heedful.look` gives: the last value of a cell, it shows itself there as the page.

    shown: the recording, with which one can go on, or the text or call of one.
    """

    def __init__(self, shown: Shown, kernel: bool | None, chosen: dict[str, Any]) -> None:
        self.shown, self._kernel, self._chosen = shown, kernel, chosen

    def __repr__(self) -> str:
        return f"<Look at {repr(self.shown).strip('<>')}; a notebook shows it>"

    def _repr_html_(self) -> str:
        return self.shown._repr_html_()

    def _repr_mimebundle_(self, **given: Any) -> dict[str, Any] | None:
        return bundle(self.shown, kernel=self._kernel, **self._chosen)


def look(
    what: Shown | LoadedModel | str | Path,
    text: str | None = None,
    second: str | None = None,
    *,
    layers: list[int] | None = None,
    heads: list[int] | None = None,
    kernel: bool | None = None,
) -> Look:
    """The explorer in a notebook, of a recording or of what a model does with a text.

    As the last value of a cell it is the page. In a terminal, `heedful look` opens it in a browser.

    Args:
        what: a recording, a text (`recording.sequences[1]`) or a call of one (`recording[3]`); the
            path of a recording; or a model that `heedful.open` opened, or its path or name.
        text: what a model is to read; `second` is a second text, for one that reads pairs.
        layers, heads: only these, the model's numbers, from 0; default all.
        kernel: True asks the kernel for every number, through anywidget. False puts the page into
            the notebook as it is, at most 2 MB: it needs no kernel and no network, also when the
            notebook is opened again or sent to somebody, and says what of the weights it has.
            Default: True where the notebook brings the widgets' front end with it, as JupyterLab
            and Jupyter Notebook do; in VS Code and Colab, which may fetch that, False.

    Raises:
        ArgumentError: something else, a text beside a recording, a layer that there is not, or
            `kernel=True` without anywidget.
        HeedfulError: those of `heedful.load`, `heedful.open` and `record`.

    >>> import torch
    >>> from heedful.recording import from_attentions
    >>> look(from_attentions([torch.eye(3).expand(1, 2, 3, 3)]))
    <Look at Recording of 1 call, 1 sequence; a notebook shows it>
    """
    if kernel and not has_widgets():
        raise ArgumentError(
            "kernel=True without anywidget",
            remedy="pip install 'heedful[notebook]', or leave it out",
        )
    chosen = {"layers": layers, "heads": heads}
    shown = _shown(what, text, second)
    opened_on(shown, **chosen)  # what there is not is told here, and not when it is drawn
    return Look(shown, kernel, chosen)


def _shown(what: Any, text: str | None, second: str | None) -> Shown:
    """The recording that is meant."""
    if isinstance(what, str | Path) and text is not None:
        what = open_model(what)
    elif isinstance(what, str | Path):
        what = load(what)
    if isinstance(what, LoadedModel):
        if text is None:
            raise ArgumentError("a model without a text", expected="look(model, text)")
        return what.record(text, second)
    if not isinstance(what, Recording | Sequence | Call):
        raise ArgumentError(f"an object of type {type(what).__name__}", expected=EXPECTED)
    if text is not None or second is not None:
        raise ArgumentError("a text beside a recording", expected="a model before the text")
    return what
