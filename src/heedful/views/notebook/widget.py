"""The explorer's page as an anywidget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from heedful.views.notebook.kernel_side import KernelHandler, Viewable, texts_and_view

LOADER = Path(__file__).parent / "loader.js"


class Page(anywidget.AnyWidget):
    """A page that requests its numbers from this kernel.

    The notebook file stores the widget's state, so the state must be small: the page requests even
    its script. `view` is the query string of the page's view; redrawing the page keeps it.
    """

    _esm = LOADER.read_text("utf-8")
    view = traitlets.Unicode("").tag(sync=True)

    def __init__(self, item: Viewable, **chosen: Any) -> None:
        super().__init__(view=texts_and_view(item, **chosen)[1])
        self._handler = KernelHandler(item, self.send, **chosen)
        self.on_msg(lambda _, message, buffers: self._handler.receive(message))

    def bundle(self) -> Any:
        """Return the widget's MIME bundle and metadata, without a plain-text form."""
        bundle = self._repr_mimebundle_()
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle or {}, {})
        return {kind: part for kind, part in data.items() if kind != "text/plain"}, metadata

    def close(self) -> None:
        """Close the widget and stop computing for it."""
        super().close()
        if hasattr(self, "_handler"):
            self._handler.end()
