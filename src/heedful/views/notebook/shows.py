"""What a recording is in a cell: the page that asks the kernel, one that does not, or a table."""

from __future__ import annotations

from typing import Any

from heedful.errors import HeedfulError
from heedful.views.notebook import hosts
from heedful.views.notebook.answering import Shown

HTML = "text/html"


def bundle(shown: Shown, *, kernel: bool | None = None, **chosen: Any) -> Any:
    """What a notebook is given of it beside its table and its words; None where that is all.

    Args:
        shown: a recording, a text of one, or a call.
        kernel: whether the page asks this kernel; default: where the notebook has the widgets'
            front end itself.
        chosen: `layers` and `heads`, as `Texts` takes them.
    """
    if kernel is None:
        if not hosts.is_notebook():
            return None
        if not hosts.has_widgets():
            return None
        kernel = not hosts.fetches_widgets()
    try:
        if kernel:
            from heedful.views.notebook.widget import Page

            return Page(shown, **chosen).bundle()
        from heedful.views.notebook.frame import frame

        return {HTML: frame(shown, **chosen)}
    except HeedfulError:  # what has no page has its table
        return None
