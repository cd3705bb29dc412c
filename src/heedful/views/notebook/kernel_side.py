"""The kernel's side of a page in a notebook: what the page asks, and what it is sent back.

A message of the page is `{"ask": id, "question": …, "words": {…}}`, `{"leave": id}` for an answer
that it does not wait for any more, or `{"page": id, "open": true or false}`. It is sent
`{"answer": id}` with the bytes, or `{"answer": id, "wrong": one line}`.
"""

from __future__ import annotations

import json
import sys
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
from heedful.views.explorer.catalogue import Texts, named
from heedful.views.explorer.handlers import QUESTIONS, Answers
from heedful.views.explorer.jobs import Turns
from heedful.views.explorer.one_file import ALONE, styles
from heedful.views.explorer.text import is_same

NAME = "recording"
PAGE = Path(__file__).parent / "page"
ENTRY, STYLE = PAGE / "kernel_source.js", PAGE / "notebook.css"

Shown = Recording | Sequence | Call
Send = Callable[[dict[str, Any], list[bytes]], None]


class Answering:
    """Answers the pages of one output, in a thread, so that no cell waits for them.

    It holds what is shown as long as a page of it is open, or none was; after that, what nobody
    else holds is gone. With its last page its thread ends.

    Args:
        shown: what the cell shows.
        send: called with a message and its bytes, also from the thread.
        chosen: `layers` and `heads` of it, as `opened_on` takes them.
    """

    def __init__(self, shown: Shown, send: Send, **chosen: Any) -> None:
        self._shown = weakref.ref(shown)
        self._kept: Shown | None = shown
        self._send, self._chosen = send, chosen
        self._pages: set[str] = set()
        self._waiting: dict[str, Future] = {}
        self._asked: tuple[Turns, Answers] | None = None

    def told(self, message: Any) -> None:
        """What a page says; what is no message of ours is passed over."""
        words = message if isinstance(message, dict) else {}
        if isinstance(words.get("page"), str):
            (self._open if words.get("open") else self._close)(words["page"])
        elif isinstance(words.get("leave"), str) and words["leave"] in self._waiting:
            self._waiting.pop(words["leave"]).cancel()
        elif isinstance(words.get("ask"), str):
            self._ask(words["ask"], words.get("question"), words.get("words"))

    def end(self) -> None:
        """Answer nothing more."""
        asked, self._asked = self._asked, None
        if asked is not None:
            asked[0].end(0)

    def _open(self, page: str) -> None:
        self._pages.add(page)
        self._kept = self._shown()

    def _close(self, page: str) -> None:
        self._pages.discard(page)
        if not self._pages:
            self._kept = None
            self.end()

    def _ask(self, number: str, question: Any, words: Any) -> None:
        if question == "page":  # needs no recording
            self._send({"answer": number}, [page()])
            return
        if not isinstance(question, str) or question not in QUESTIONS:
            self._send({"answer": number, "wrong": "no such question"}, [])
            return
        given = words if isinstance(words, dict) else {}
        texts = {str(name): str(word) for name, word in given.items()}
        try:
            turns, answers = self._asking()
        except HeedfulError as error:
            self._send({"answer": number, "wrong": str(error)}, [])
            return
        self._waiting[number] = future = turns.ask(lambda: answers.ask(question, texts))
        future.add_done_callback(lambda done: self._answered(number, done))

    def _asking(self) -> tuple[Turns, Answers]:
        """The thread and what it asks, begun where there is none."""
        if self._asked is None:
            shown = self._shown()
            if shown is None:
                raise RunError(
                    "what stood here is no longer in the kernel's memory",
                    remedy="run the cell again",
                )
            texts, _ = opened_on(shown, **self._chosen)
            answers, cells = Answers(texts), running()

            def idle(going_on: Callable[[], bool]) -> bool:
                free = not cells.is_running
                return free and answers.background.work(lambda: going_on() and not cells.is_running)

            self._asked = Turns(idle), answers
        return self._asked

    def _answered(self, number: str, future: Future) -> None:
        self._waiting.pop(number, None)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._send({"answer": number}, [future.result()])
        else:
            self._send({"answer": number, "wrong": str(error)}, [])


@cache
def page() -> bytes:
    """The page's script and style as JSON, deflated: what a cell asks for first."""
    sheets = [sheet for sheet in styles() if sheet.stem != ALONE]
    style = "".join(sheet.read_text("utf-8") for sheet in [*sheets, STYLE])
    return zlib.compress(json.dumps({"script": one_script(ENTRY), "style": style}).encode())


class Cells:
    """Whether a cell of the notebook runs: what nobody asked for waits meanwhile."""

    def __init__(self) -> None:
        self.is_running = False
        ipython = sys.modules.get("IPython")
        shell = ipython.get_ipython() if ipython is not None else None
        if shell is not None:
            shell.events.register("pre_execute", lambda: self._set(True))
            shell.events.register("post_execute", lambda: self._set(False))

    def _set(self, is_running: bool) -> None:
        self.is_running = is_running


@cache
def running() -> Cells:
    """The cells of this process."""
    return Cells()


class _OneCall(list[Call]):
    """A text that has one call."""

    sides = None  # nobody knows what else there was

    @property
    def parts(self) -> list[_OneCall]:
        """Itself: of a text of several parts one alone is there."""
        return [self]


class Alone(Recording):
    """One call whose recording is no longer there."""

    def __init__(self, call: Call) -> None:
        super().__init__()
        self._call_alone = call

    @property
    def sequences(self) -> list[Any]:
        """The one text with the one call."""
        return [_OneCall([self._call_alone])]


def opened_on(shown: Recording | Sequence | Call, **chosen: Any) -> tuple[Texts, str]:
    """All that a page may choose from, and what it shows first, as the words of its address.

    Args:
        shown: what stands in the cell; a text of a batch, or a call, opens its whole recording at
            its own place.
        chosen: `layers` and `heads`, as `Texts` takes them.

    Raises:
        ArgumentError: a layer or head that there is not.
    """
    if isinstance(shown, Recording):
        return Texts({NAME: shown}, **chosen), ""
    home = shown.home()
    if isinstance(shown, Sequence):
        texts = Texts({NAME: home or Recording(shown._own, texts=shown._texts)}, **chosen)
        of = shown._index, shown._part
        return texts, _address(texts, lambda call: (call.sequence, call.part) == of)
    if home is not None:
        texts = Texts({NAME: home}, **chosen)
        found = _address(texts, lambda call: is_same(call, shown))
        if found:
            return texts, found
    return Texts({NAME: Alone(shown)}, **chosen), urlencode({"call": "0.0.0"})


def _address(texts: Texts, is_meant: Any) -> str:
    """The address of the first call that is meant; empty where there is none."""
    meant = (where for where, call in texts.calls() if is_meant(call))
    return next((urlencode({"call": named(where)}) for where in meant), "")
