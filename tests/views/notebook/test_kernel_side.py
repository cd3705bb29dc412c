"""The kernel's side of a page: answers equal those of `Handlers`, errors, and the thread's end."""

import gc
import threading
import time

import pytest
from small_recordings import of_gpt

from heedful.views.explorer.catalogue import Catalogue
from heedful.views.explorer.handlers import Handlers
from heedful.views.notebook.kernel_side import KernelHandler


class Cell:
    """A page that sends questions and stores the replies."""

    def __init__(self, shown, **chosen):
        self.replies, self._arrived = {}, threading.Condition()
        self.handler = KernelHandler(shown, self._send, **chosen)

    def _send(self, message, buffers):
        with self._arrived:
            self.replies[message["answer"]] = message, buffers
            self._arrived.notify()

    def ask(self, question, number="1", **words):
        self.handler.receive({"ask": number, "question": question, "words": words})
        with self._arrived:
            assert self._arrived.wait_for(lambda: number in self.replies, 20)
        return self.replies.pop(number)


QUESTIONS = [
    ("about", {}),
    ("cell", {"call": "0.0.1", "head": 2, "query": 9, "key": 4}),
    ("row", {"call": "0.0.0", "heads": "0,2", "at": 16}),
    ("tile", {"call": "0.0.1", "place": "1,0,0,0", "reduce": "max"}),
]


def test_answers_are_those_of_every_host():
    recording = of_gpt()
    cell, handlers = Cell(recording), Handlers(Catalogue({"recording": recording}))
    for number, (question, words) in enumerate(QUESTIONS):
        message, [data] = cell.ask(question, str(number), **words)
        assert message == {"answer": str(number)}
        texts = {name: str(word) for name, word in words.items()}
        assert bytes(data) == handlers.handle(question, texts)
    cell.handler.end()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"question": "row", "words": {"call": "0.0.9"}}, "call 9"),
        ({"question": "row", "words": {}}, "without 'call'"),
        ({"question": "nothing", "words": {}}, "nothing"),
    ],
)
def test_errors_have_one_line(message, text):
    cell = Cell(of_gpt())
    cell.handler.receive({"leave": "no"})
    cell.handler.receive({"ask": "1", **message})
    cell.ask("about", "2")  # answers come one after another
    assert list(cell.replies) == ["1"]
    assert text in cell.replies["1"][0]["wrong"]
    cell.handler.end()


def threads():
    return sum(thread.name == "heedful-explorer" for thread in threading.enumerate())


def test_closing_the_last_page_ends_the_thread_and_frees_the_recording():
    recording, before = of_gpt(), threads()
    cell = Cell(recording)
    for page in ("a", "b"):
        cell.handler.receive({"page": page, "open": True})
    cell.ask("about")
    assert threads() == before + 1
    cell.handler.receive({"page": "a", "open": False})
    assert "wrong" not in cell.ask("about")[0]
    cell.handler.receive({"page": "b", "open": False})
    cell.handler.receive({"page": "c", "open": True})  # the notebook was opened again
    assert "wrong" not in cell.ask("about")[0]
    cell.handler.receive({"page": "c", "open": False})
    end = time.monotonic() + 10
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == before
    del recording
    gc.collect()
    assert cell.ask("about")[0]["wrong"] == (
        "the recording of this cell is no longer in the kernel's memory; run the cell again"
    )
