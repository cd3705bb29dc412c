"""The kernel's side of a page: what `Answers` answers, errors in a line, and an end."""

import gc
import threading
import time

import pytest
from every_kind import of_gpt

from heedful.views.explorer.catalogue import Texts
from heedful.views.explorer.handlers import Answers
from heedful.views.notebook.kernel_side import Answering, Cells, running


class Cell:
    """A page that asks, and what it was sent."""

    def __init__(self, shown, **chosen):
        self.sent, self._came = {}, threading.Condition()
        self.answering = Answering(shown, self._send, **chosen)

    def _send(self, message, buffers):
        with self._came:
            self.sent[message["answer"]] = message, buffers
            self._came.notify()

    def ask(self, question, number="1", **words):
        self.answering.told({"ask": number, "question": question, "words": words})
        with self._came:
            assert self._came.wait_for(lambda: number in self.sent, 20)
        return self.sent.pop(number)


QUESTIONS = [
    ("about", {}),
    ("cell", {"call": "0.0.1", "head": 2, "query": 9, "key": 4}),
    ("row", {"call": "0.0.0", "heads": "0,2", "at": 16}),
    ("tile", {"call": "0.0.1", "place": "1,0,0,0", "reduce": "max"}),
]


def test_answers_are_those_of_every_host():
    recording = of_gpt()
    cell, answers = Cell(recording), Answers(Texts({"recording": recording}))
    for number, (question, words) in enumerate(QUESTIONS):
        message, [data] = cell.ask(question, str(number), **words)
        assert message == {"answer": str(number)}
        given = {name: str(word) for name, word in words.items()}
        assert bytes(data) == answers.ask(question, given)
    cell.answering.end()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"question": "row", "words": {"call": "0.0.9"}}, "call 9"),
        ({"question": "row", "words": ["call"]}, "without 'call'"),
        ({"question": ["about"]}, "no such question"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_what_is_no_message_passed_over(message, said):
    cell = Cell(of_gpt())
    for other in (None, 7, {}, {"ask": 3}, {"leave": "no"}, {"page": []}):
        cell.answering.told(other)
    cell.answering.told({"ask": "1", **message})
    cell.ask("about", "2")  # answers come one after another
    assert list(cell.sent) == ["1"]
    assert said in cell.sent["1"][0]["wrong"]
    cell.answering.end()


def threads():
    return sum(one.name == "heedful-explorer" for one in threading.enumerate())


def test_with_its_last_page_the_thread_ends_and_the_recording_is_let_go():
    recording, before = of_gpt(), threads()
    cell = Cell(recording)
    for page in ("a", "b"):
        cell.answering.told({"page": page, "open": True})
    cell.ask("about")
    assert threads() == before + 1
    cell.answering.told({"page": "a", "open": False})
    assert "wrong" not in cell.ask("about")[0]
    cell.answering.told({"page": "b", "open": False})
    cell.answering.told({"page": "c", "open": True})  # the notebook was opened again
    assert "wrong" not in cell.ask("about")[0]
    cell.answering.told({"page": "c", "open": False})
    end = time.monotonic() + 10
    while threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threads() == before
    del recording
    gc.collect()
    assert cell.ask("about")[0]["wrong"] == (
        "what stood here is no longer in the kernel's memory; run the cell again"
    )


def test_while_a_cell_runs_nothing_is_computed_that_nobody_asked_for(monkeypatch):
    cell = Cell(of_gpt())
    cells = running()
    monkeypatch.setattr(cells, "is_running", True)
    cell.ask("scores", call="0.0.0")
    turns, answers = cell.answering._asked
    assert turns._idle(lambda: True) is False
    assert answers.background._known or answers._overviews
    cells.is_running = False
    assert Cells().is_running is False
    cell.answering.end()
