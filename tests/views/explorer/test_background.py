"""Work in steps: what is in view first, the newest of it, and a failure harms nothing else."""

import errno

import pytest
from raised import RAISED

from heedful.errors import RunError
from heedful.views.explorer.background import Background, Job

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


def of_steps(count):
    """Goes on so many times."""
    left = iter([True] * count)
    return lambda: next(left, False)


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
    assert not background.work()


def test_a_job_goes_on_where_it_was_left():
    background, told = Background(), []
    job = Counted("a", told, steps=3)
    background.show(job)
    assert background.work(of_steps(2))
    assert (len(told), job.said, job.is_whole) == (2, {"done": 2 / 3}, False)
    background.work()
    assert (len(told), job.is_whole) == (3, True)
    background.show(job)
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
