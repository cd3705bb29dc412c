"""Questions in turn: the newest first, none that nobody waits for, and work while none waits."""

import threading

import pytest
from raised import RAISED

from heedful.errors import RunError
from heedful.views.explorer.background import FaultError, RefusedError, Turns


@pytest.fixture
def turns():
    made = []

    def make(*given):
        made.append(Turns(*given))
        return made[-1]

    yield make
    for one in made:
        one.end()


class Held:
    """Keeps the thread busy until it is let go."""

    def __init__(self, turns):
        self.began, self.go = threading.Event(), threading.Event()
        self.answer = turns.ask(self)
        assert self.began.wait(5)

    def __call__(self):
        self.began.set()
        assert self.go.wait(5)


def test_the_newest_question_is_answered_first(turns):
    order = []
    asked = turns()
    held = Held(asked)
    answers = [asked.ask(lambda i=i: order.append(i) or i) for i in range(5)]
    held.go.set()
    assert [answer.result(5) for answer in answers] == [0, 1, 2, 3, 4]
    assert order == [4, 3, 2, 1, 0]


def test_a_question_that_nobody_waits_for_is_not_begun(turns):
    order = []
    asked = turns()
    held = Held(asked)
    answers = [asked.ask(lambda i=i: order.append(i)) for i in range(4)]
    assert answers[2].cancel()
    held.go.set()
    answers[0].result(5)
    assert order == [3, 1, 0]


@pytest.mark.parametrize("error", [*RAISED, RunError("wrong")], ids=repr)
def test_a_question_that_fails_harms_no_other(turns, error):
    def fails():
        raise error

    asked = turns()
    held = Held(asked)
    good, bad = asked.ask(lambda: "found"), asked.ask(fails)
    held.go.set()
    answer = bad.exception(5)
    assert good.result(5) == "found"
    assert asked.ask(lambda: "later").result(5) == "later"
    if isinstance(error, RunError):
        assert answer is error
    else:
        assert (type(answer), str(answer)) == (FaultError, f"{type(error).__name__}: by zero")


def test_the_end_refuses_who_waits_and_ends_what_is_done_meanwhile(turns):
    ended = threading.Event()

    def work(going_on):
        while going_on():
            pass
        ended.set()
        return False

    asked = turns(work)
    held = Held(asked)
    waiting = asked.ask(lambda: 1)
    asked.end(0)
    with pytest.raises(RefusedError, match="ended"):
        waiting.result(5)
    with pytest.raises(RefusedError, match="ended"):
        asked.ask(lambda: 1).result(5)
    held.go.set()
    asked.end()
    assert not asked._thread.is_alive()
