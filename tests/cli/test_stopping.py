"""Ctrl-C and SIGTERM during training, in one process and in one of several."""

import signal
from types import SimpleNamespace

import pytest

from heedful.cli.run_training import _stopping
from heedful.processes import Processes


@pytest.fixture
def handled():
    """The signals that reach the handlers from before training."""
    signals = []
    before = {
        number: signal.signal(number, lambda number, _: signals.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    yield signals
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("size", [1, 2])
def test_the_first_stops_after_the_step_and_a_second_one_at_once(size, number, handled):
    stops = []
    training = SimpleNamespace(processes=Processes(0, size), stop=lambda: stops.append(1))
    with _stopping(training):
        signal.raise_signal(number)
        assert (stops, handled) == ([1], [])
        signal.raise_signal(number)
        assert (stops, handled) == ([1], [number])
    signal.raise_signal(number)
    assert (stops, handled) == ([1], [number, number])


def test_an_error_restores_the_signal_handlers(handled):
    training = SimpleNamespace(processes=Processes(), stop=lambda: None)
    with pytest.raises(ZeroDivisionError), _stopping(training):
        raise ZeroDivisionError
    signal.raise_signal(signal.SIGTERM)
    assert handled == [signal.SIGTERM]
