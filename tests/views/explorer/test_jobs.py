"""The worker thread and its jobs: their order, and that an error affects no other request."""

import threading

import pytest
from job_errors import RAISED

from heedful.errors import RunError
from heedful.views.explorer.jobs import Background, FaultError, Job, RefusedError, Worker

IN_GENERATORS = [error for error in RAISED if not isinstance(error, StopIteration)]


class LoggingJob(Job):
    """Logs its name in each step."""

    def __init__(self, name, log, steps=2, error=None):
        self.name, self.log, self.count, self.exception = name, log, steps, error

    def steps(self):
        for i in range(self.count):
            if self.exception:
                raise self.exception
            self.log.append(self.name)
            self.fraction_done = (i + 1) / self.count
            yield


def test_visible_jobs_run_newest_first_and_queued_jobs_in_order():
    background, log = Background(), []
    jobs = {name: LoggingJob(name, log) for name in "abcd"}
    background.enqueue(jobs["a"])
    background.enqueue(jobs["b"])
    background.prioritize(jobs["c"])
    background.prioritize(jobs["d"])
    background.prioritize(jobs["c"])  # now the newest
    while background.work():
        pass
    assert "".join(log) == "ccddaabb"
    background.prioritize(jobs["a"])  # complete
    assert not background.work()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RunError("not the model's"), "not the model's"),
        (OSError("by\nzero"), "not computed: OSError: by zero"),
        *((error, f"not computed: {type(error).__name__}: by zero") for error in IN_GENERATORS),
    ],
)
def test_a_failed_job_stores_its_error_and_does_not_run_again(error, message):
    background, log = Background(), []
    bad, good = LoggingJob("bad", log, error=error), LoggingJob("good", log)
    background.prioritize(good)
    background.prioritize(bad)
    while background.work():
        background.prioritize(bad)
    assert log == ["good", "good"]
    assert bad.status == {"note": message, "done": 1.0}
    assert not bad.run_steps()  # partial work is not complete


@pytest.fixture
def start():
    workers = []

    def start(*arguments):
        workers.append(Worker(*arguments))
        return workers[-1]

    yield start
    for worker in workers:
        worker.shutdown()


class Blocker:
    """A request that blocks the thread until `go` is set."""

    def __init__(self, worker):
        self.started, self.go = threading.Event(), threading.Event()
        worker.submit(self)
        assert self.started.wait(5)

    def __call__(self):
        self.started.set()
        assert self.go.wait(5)


def test_the_newest_request_runs_first_and_a_cancelled_request_never(start):
    order = []
    worker = start()
    blocker = Blocker(worker)
    futures = [worker.submit(lambda i=i: order.append(i) or i) for i in range(5)]
    assert futures[2].cancel()
    blocker.go.set()
    assert [futures[i].result(5) for i in (0, 1, 3, 4)] == [0, 1, 3, 4]
    assert order == [4, 3, 1, 0]


@pytest.mark.parametrize("error", [*RAISED, RunError("wrong")], ids=repr)
def test_a_failed_request_affects_no_other(start, error):
    def fails():
        raise error

    worker = start()
    blocker = Blocker(worker)
    good, bad = worker.submit(lambda: "result"), worker.submit(fails)
    blocker.go.set()
    raised = bad.exception(5)
    assert good.result(5) == "result"
    assert worker.submit(lambda: "later").result(5) == "later"
    if isinstance(error, RunError):
        assert raised is error
    else:
        assert (type(raised), str(raised)) == (FaultError, f"{type(error).__name__}: by zero")


def test_shutdown_refuses_waiting_requests_and_ends_idle_work(start):
    def work(may_continue):
        while may_continue():
            pass
        return False

    worker = start(work)
    blocker = Blocker(worker)
    waiting = worker.submit(lambda: 1)
    worker.shutdown(0)
    with pytest.raises(RefusedError, match="ended"):
        waiting.result(5)
    with pytest.raises(RefusedError, match="ended"):
        worker.submit(lambda: 1).result(5)
    blocker.go.set()
    worker.shutdown()
    assert not worker._thread.is_alive()
