"""Processes that wait for each other, with a store between them and a clock of the test's own."""

from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from heedful import processes
from heedful.errors import HeedfulError
from heedful.processes import Processes


@pytest.fixture
def clock(monkeypatch):
    """A second goes by in each sleep; `then(second)` is what others do in it."""
    made = SimpleNamespace(now=100.0, then=lambda second: None)

    def sleep(seconds):
        assert seconds > 0
        made.now += 1
        made.then(made.now - 100)

    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: made.now, sleep=sleep))
    return made


@pytest.fixture
def three():
    store, made = HashStore(), [Processes(rank, 3) for rank in range(3)]
    for one in made:
        one._store = store
    return made


@pytest.mark.parametrize("waiting", [0, 1])
def test_who_is_early_waits_for_who_goes_on_far_longer_than_the_timeout(waiting, three, clock):
    """The first waits for all others, and others for the first; also a second time."""
    for meeting in range(2):

        def then(second, meeting=meeting):
            for one in three:
                if one.rank != waiting:
                    one.goes_on()
                    if second == 40 * (meeting + 1):
                        one._store.set(f"here {meeting} {one.rank}", b"")

        clock.then = then
        three[waiting].meet(5)
        assert clock.now == 100 + 40 * (meeting + 1)


def test_who_waits_is_not_taken_for_one_that_hangs(three, clock):
    said = three[1]._store.add("at work 1", 0)
    clock.then = lambda second: second == 30 and three[0]._store.set("here 0 0", b"")
    three[1].meet(60)
    assert three[1]._store.add("at work 1", 0) >= said + 29


@pytest.mark.parametrize("waiting", [0, 1])
def test_who_says_nothing_is_missed(waiting, three, clock):
    silent = 2 if waiting == 0 else 0
    three[1]._store.set("here 0 1", b"")
    words = f"no word from process {silent} of 3 for 5 s"
    with pytest.raises(HeedfulError, match=words):
        three[waiting].meet(5)
    assert 105 < clock.now < 110


def test_a_process_alone_waits_for_nobody():
    Processes().goes_on()
    Processes().meet(0.0)
