"""`heedful.look`: the explorer's page in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heedful.errors import ArgumentError
from heedful.opened import Opened, open_model
from heedful.recording import Call, Recording, Sequence, load
from heedful.views.notebook.answering import Shown, opened_on
from heedful.views.notebook.shows import bundle, has_widgets

EXPECTED = (
    "a recording, a text or a call of one; the path of a recording; or a model that "
    "`heedful.open` opened, or its path or name, and a text"
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
    what: Shown | Opened | str | Path,
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
    if isinstance(what, Opened):
        if text is None:
            raise ArgumentError("a model without a text", expected="look(model, text)")
        return what.record(text, second)
    if not isinstance(what, Recording | Sequence | Call):
        raise ArgumentError(f"an object of type {type(what).__name__}", expected=EXPECTED)
    if text is not None or second is not None:
        raise ArgumentError("a text beside a recording", expected="a model before the text")
    return what
