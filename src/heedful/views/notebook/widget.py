"""The page in a cell, through anywidget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from heedful.views.notebook.kernel_side import Answering, Shown, opened_on

LOADER = Path(__file__).parent / "loader.js"


class Page(anywidget.AnyWidget):
    """A page whose questions this kernel answers.

    Its state is small, so that a saved notebook is: the page asks for its script, too. `view` is
    what it shows, as the words of an address; it stays where the page is drawn again.
    """

    _esm = LOADER.read_text("utf-8")
    view = traitlets.Unicode("").tag(sync=True)

    def __init__(self, shown: Shown, **chosen: Any) -> None:
        super().__init__(view=opened_on(shown, **chosen)[1])
        self._answering = Answering(shown, self.send, **chosen)
        self.on_msg(lambda _, message, buffers: self._answering.told(message))

    def bundle(self) -> Any:
        """What a notebook is given of it; its words and its table come from what it shows."""
        found = self._repr_mimebundle_()
        data, about = found if isinstance(found, tuple) else (found or {}, {})
        return {kind: each for kind, each in data.items() if kind != "text/plain"}, about

    def close(self) -> None:
        """As every widget's; nothing is computed for it any more."""
        super().close()
        if hasattr(self, "_answering"):
            self._answering.end()
