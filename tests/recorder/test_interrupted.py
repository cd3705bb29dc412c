"""After an interruption of a recording or a check, such as Ctrl-C, nothing is left behind."""

from contextlib import suppress

import pytest
import torch
from shown_maps import WIDTH, Heads, M, N, recorded, weighed
from torch.utils._python_dispatch import TorchDispatchMode


class Interrupting(TorchDispatchMode):
    """Raises an error in one operation of torch, as a signal handler may."""

    def __init__(self, error, at):
        super().__init__()
        self.error, self.remaining = error, at

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.remaining -= 1
        if self.remaining == 0:
            raise self.error
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("error", [TimeoutError("too slow"), KeyboardInterrupt()])
def test_after_an_interruption_a_call_can_be_checked_again(error):
    model = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    x, y = torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH)
    recording = recorded(model, x, y)
    at, is_interrupted = 0, True
    while is_interrupted:
        at += 1
        with Interrupting(error, at) as interrupting, suppress(type(error)):
            recording.certificate()
        is_interrupted = interrupting.remaining <= 0
    assert at > 10  # every operation of the check was interrupted once
    assert recording[0].proof == "proved"
    torch.testing.assert_close(recording[0].weights(), weighed(*model.heads(x, y))[0])
