"""The kernel's side of a page in a notebook: it answers the page's messages.

The page sends `{"ask": id, "question": …, "words": {…}}`, `{"leave": id}` to cancel a question, or
`{"page": id, "open": true or false}`. The kernel replies `{"answer": id}` with the bytes, or
`{"answer": id, "wrong": message}` with a message of one line.
"""

from __future__ import annotations

import json
import weakref
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from heedful.errors import HeedfulError, RunError
from heedful.recording import Call, Recording, Sequence
from heedful.views.bundler import one_script
from heedful.views.explorer.catalogue import Catalogue, call_id
from heedful.views.explorer.handlers import Handlers
from heedful.views.explorer.jobs import Worker
from heedful.views.explorer.one_file import STANDALONE, styles
from heedful.views.explorer.text import is_same_call

NAME = "recording"
PAGE = Path(__file__).parent / "page"
ENTRY, STYLE = PAGE / "kernel_source.js", PAGE / "notebook.css"

Viewable = Recording | Sequence | Call
Send = Callable[[dict[str, Any], list[bytes]], None]


class KernelHandler:
    """Answers the pages of one cell output in a thread, so that cells can run meanwhile.

    While a page is open, the handler holds a strong reference to the recording. When the last page
    is closed, the thread ends, and only a weak reference remains.

    Args:
        item: the recording, sequence or call that the cell shows.
        send: called with a reply and its buffers, also from the thread.
        chosen: `layers` and `heads`, as for `texts_and_view`.
    """

    def __init__(self, item: Viewable, send: Send, **chosen: Any) -> None:
        self._item = weakref.ref(item)
        self._strong: Viewable | None = item
        self._send, self._chosen = send, chosen
        self._pages: set[str] = set()
        self._pending: dict[str, Future] = {}
        self._worker: tuple[Worker, Handlers] | None = None

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message from a page."""
        if "page" in message and message["open"]:
            self._pages.add(message["page"])
            self._strong = self._item()
        elif "page" in message:
            self._pages.discard(message["page"])
            if not self._pages:
                self._strong = None
                self.end()
        elif "ask" in message:
            self._answer(message["ask"], message["question"], message["words"])
        elif future := self._pending.pop(message["leave"], None):
            future.cancel()

    def end(self) -> None:
        """End the thread, without further answers."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker[0].shutdown(0)

    def _answer(self, number: str, question: str, words: dict[str, Any]) -> None:
        if question == "page":  # needs no recording
            self._send({"answer": number}, [page()])
            return
        options = {name: str(word) for name, word in words.items()}
        try:
            thread, handlers = self._start()
        except HeedfulError as error:
            self._send({"answer": number, "wrong": str(error)}, [])
            return
        self._pending[number] = future = thread.submit(lambda: handlers.handle(question, options))
        future.add_done_callback(lambda future: self._reply(number, future))

    def _start(self) -> tuple[Worker, Handlers]:
        """Return the thread and the handlers of its requests; create them if needed."""
        if self._worker is None:
            item = self._item()
            if item is None:
                raise RunError(
                    "the recording of this cell is no longer in the kernel's memory",
                    remedy="run the cell again",
                )
            texts, _ = texts_and_view(item, **self._chosen)
            handlers = Handlers(texts)
            self._worker = Worker(handlers.background.work), handlers
        return self._worker

    def _reply(self, number: str, future: Future) -> None:
        self._pending.pop(number, None)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._send({"answer": number}, [future.result()])
        else:
            self._send({"answer": number, "wrong": str(error)}, [])


@cache
def page() -> bytes:
    """Return the page's script and style as deflated JSON; a cell requests them first."""
    sheets = [sheet for sheet in styles() if sheet.stem != STANDALONE]
    style = "".join(sheet.read_text("utf-8") for sheet in [*sheets, STYLE])
    return zlib.compress(json.dumps({"script": one_script(ENTRY), "style": style}).encode())


def texts_and_view(item: Recording | Sequence | Call, **chosen: Any) -> tuple[Catalogue, str]:
    """Return the contents of a page, and its initial view as a query string.

    Args:
        item: the recording, sequence or call that the cell shows. For a sequence or a call, the
            page contains its recording, and the view selects the sequence or call.
        chosen: `layers` and `heads`, as for `Catalogue`.

    Raises:
        ArgumentError: a layer or head that does not exist.
        RunError: a call whose recording no longer exists.
    """
    if isinstance(item, Recording):
        return Catalogue({NAME: item}, **chosen), ""
    recording = item.recording_ref()
    if isinstance(item, Sequence):
        recording = recording or Recording(item._sequence_captures, texts=item._texts)
        texts = Catalogue({NAME: recording}, **chosen)
        indices = item._index, item._part
        return texts, _view_of(texts, lambda call: (call.sequence, call.part) == indices)
    if recording is None:
        raise RunError(
            "the recording of this call is no longer in memory",
            remedy="keep it in a variable: recording = …",
        )
    texts = Catalogue({NAME: recording}, **chosen)
    return texts, _view_of(texts, lambda call: is_same_call(call, item))


def _view_of(texts: Catalogue, matches: Callable[[Call], bool]) -> str:
    """Return the query string of the first call that matches, or ""."""
    indices = (index for index, call in texts.calls() if matches(call))
    return next((urlencode({"call": call_id(index)}) for index in indices), "")
