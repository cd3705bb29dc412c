"""Questions in turn and work in steps: the newest first, and a failure harms nothing else."""

import errno
import threading

import pytest
from raised import RAISED

from heedful.errors import RunError
from heedful.views.explorer.jobs import Background, FaultError, Job, RefusedError, Turns

IN_GENERATORS = [error for error in RAISED if not isinstance(error, StopIteration)]


class Counted(Job):
    def __init__(self, name, done, steps=2, error=None):
        self.name, self.told, self.count, self.error = name, done, steps, error

    def steps(self):
        for i in range(self.count):
            if self.error:
                raise self.error
            self.told.append(self.name)
            self.done = (i + 1) / self.count
            yield


def test_the_newest_that_is_shown_comes_first_and_heads_come_in_turn():
    background, told = Background(), []
    jobs = {name: Counted(name, told) for name in "abcd"}
    background.know(jobs["a"])
    background.know(jobs["b"])
    background.show(jobs["c"])
    background.show(jobs["d"])
    background.show(jobs["c"])  # wanted again, and now the newest
    while background.work():
        pass
    assert "".join(told) == "ccddaabb"
    background.show(jobs["a"])  # is whole
    assert not background.work()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "not computed: No space left on device"),
        (RunError("not the model's"), "not the model's"),
        (OSError("by\nzero"), "not computed: OSError: by zero"),
        *((error, f"not computed: {type(error).__name__}: by zero") for error in IN_GENERATORS),
    ],
)
def test_a_job_that_fails_says_why_in_a_line_and_is_not_begun_again(error, said):
    background, told = Background(), []
    bad, good = Counted("bad", told, error=error), Counted("good", told)
    background.show(good)
    background.show(bad)
    while background.work():
        background.show(bad)
    assert told == ["good", "good"]
    assert bad.said == {"note": said, "done": 1.0}
    assert not bad.build()  # what it has is never told as all


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


def test_the_newest_question_comes_first_and_none_that_nobody_waits_for(turns):
    order = []
    asked = turns()
    held = Held(asked)
    answers = [asked.ask(lambda i=i: order.append(i) or i) for i in range(5)]
    assert answers[2].cancel()
    held.go.set()
    assert [answers[i].result(5) for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert order == [4, 3, 1, 0]


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
