"""The worker thread and its jobs: the newest request comes first, and a failure stays alone."""

import errno
import threading

import pytest
from job_errors import RAISED

from heedful.errors import RunError
from heedful.views.explorer.jobs import Background, FaultError, Job, RefusedError, Worker

IN_GENERATORS = [error for error in RAISED if not isinstance(error, StopIteration)]


class Counted(Job):
    def __init__(self, name, log, steps=2, error=None):
        self.name, self.log, self.count, self.error = name, log, steps, error

    def steps(self):
        for i in range(self.count):
            if self.error:
                raise self.error
            self.log.append(self.name)
            self.done = (i + 1) / self.count
            yield


def test_the_newest_that_is_shown_comes_first_and_heads_come_in_turn():
    background, log = Background(), []
    jobs = {name: Counted(name, log) for name in "abcd"}
    background.enqueue(jobs["a"])
    background.enqueue(jobs["b"])
    background.prioritize(jobs["c"])
    background.prioritize(jobs["d"])
    background.prioritize(jobs["c"])  # requested again, and now the newest
    while background.work():
        pass
    assert "".join(log) == "ccddaabb"
    background.prioritize(jobs["a"])  # is complete
    assert not background.work()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "not computed: No space left on device"),
        (RunError("not the model's"), "not the model's"),
        (OSError("by\nzero"), "not computed: OSError: by zero"),
        *((error, f"not computed: {type(error).__name__}: by zero") for error in IN_GENERATORS),
    ],
)
def test_a_job_that_fails_says_why_in_a_line_and_is_not_begun_again(error, message):
    background, log = Background(), []
    bad, good = Counted("bad", log, error=error), Counted("good", log)
    background.prioritize(good)
    background.prioritize(bad)
    while background.work():
        background.prioritize(bad)
    assert log == ["good", "good"]
    assert bad.status == {"note": message, "done": 1.0}
    assert not bad.build()  # partial work never counts as complete


@pytest.fixture
def start():
    workers = []

    def start(*arguments):
        workers.append(Worker(*arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.shutdown()


class Held:
    """Keeps the thread busy until `go` is set."""

    def __init__(self, worker):
        self.began, self.go = threading.Event(), threading.Event()
        self.answer = worker.submit(self)
        assert self.began.wait(5)

    def __call__(self):
        self.began.set()
        assert self.go.wait(5)


def test_the_newest_question_comes_first_and_none_that_nobody_waits_for(start):
    order = []
    worker = start()
    held = Held(worker)
    answers = [worker.submit(lambda i=i: order.append(i) or i) for i in range(5)]
    assert answers[2].cancel()
    held.go.set()
    assert [answers[i].result(5) for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert order == [4, 3, 1, 0]


@pytest.mark.parametrize("error", [*RAISED, RunError("wrong")], ids=repr)
def test_a_question_that_fails_harms_no_other(start, error):
    def fails():
        raise error

    worker = start()
    held = Held(worker)
    good, bad = worker.submit(lambda: "found"), worker.submit(fails)
    held.go.set()
    raised = bad.exception(5)
    assert good.result(5) == "found"
    assert worker.submit(lambda: "later").result(5) == "later"
    if isinstance(error, RunError):
        assert raised is error
    else:
        assert (type(raised), str(raised)) == (FaultError, f"{type(error).__name__}: by zero")


def test_the_end_refuses_who_waits_and_ends_what_is_done_meanwhile(start):
    ended = threading.Event()

    def work(going_on):
        while going_on():
            pass
        ended.set()
        return False

    worker = start(work)
    held = Held(worker)
    waiting = worker.submit(lambda: 1)
    worker.shutdown(0)
    with pytest.raises(RefusedError, match="ended"):
        waiting.result(5)
    with pytest.raises(RefusedError, match="ended"):
        worker.submit(lambda: 1).result(5)
    held.go.set()
    worker.shutdown()
    assert not worker._thread.is_alive()
