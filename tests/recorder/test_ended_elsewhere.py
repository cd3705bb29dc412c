"""A recording that ends in another thread than it began in, as steps of a generator in a pool do.

torch keeps the modes of each thread: from another one none can be taken off.
"""

import threading
import warnings

import torch
from looked import Given

import heedful


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_what_runs_later_is_not_followed_and_the_user_is_told():
    model, x, told = Given(lambda x: (x @ x.mT).softmax(-1) @ x), torch.randn(1, 5, 4), []

    def leave(context):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            context.__exit__(None, None, None)
        told.extend(str(one.message) for one in caught)

    def work():
        context = heedful.record(model)
        recording = context.__enter__()
        plain = model(x)
        in_a_thread(lambda: leave(context))
        assert torch.equal(model(x), plain)
        with heedful.record(model) as again:
            model(x)
        return recording, again

    recording, again = in_a_thread(work)
    assert [call.proof for call in recording] == [call.proof for call in again] == ["proved"]
    assert recording.missed == again.missed == {}
    assert len(told) == 1
    assert "ended in another thread than it began in" in told[0]
