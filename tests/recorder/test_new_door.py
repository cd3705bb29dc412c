"""A complete door, as described in CONTRIBUTING.md, to a kernel that no other door intercepts."""

import importlib
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import heedful
from heedful.recorder.observed_call import AXES, Observed

B, H, G, N, M, D, V = 2, 4, 2, 5, 7, 3, 6


def weights_of(query, key):
    """Weights by definition, in float64, of a kernel whose heads share keys."""
    key = np.repeat(key, H // G, axis=1)
    raised = np.exp(np.einsum("bhnd,bhmd->bhnm", query, key, dtype=np.float64) / D**0.5)
    return raised / raised.sum(-1, keepdims=True)


def in_numpy(query, key, value):
    """Attention computed outside of torch."""
    value = np.repeat(value.numpy(), H // G, axis=1)
    return torch.from_numpy((weights_of(query.numpy(), key.numpy()) @ value).astype(np.float32))


def in_torch(query, key, value):
    """Attention that calls a kernel of torch."""
    return nn.functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)


fast = SimpleNamespace(attention=in_numpy, scale=D**-0.5)  # the library that has the kernel


# the door: recorder/doors/fast.py
@contextmanager
def watch(report, claim):
    """Report each call of `fast.attention`."""
    original = fast.attention

    def attention(query, key, value):
        with claim() as is_wanted:  # no other door reports calls inside
            output = original(query, key, value)
        if is_wanted:
            report(observed, query, key, value, output)
        return output

    fast.attention = attention
    try:
        yield
    finally:
        fast.attention = original


def observed(query, key, value, output):
    """The call as the door reports it."""
    return Observed(query, key, value, output, fast.scale, door="fast", axes=AXES)


@pytest.fixture(autouse=True)
def entered(monkeypatch):
    """The line in `_enter_doors` of recorder/record.py."""
    record = importlib.import_module("heedful.recorder.record")
    begin = record._enter_doors

    def with_door(recorder, stack):
        begin(recorder, stack)
        stack.enter_context(watch(recorder.report, recorder.claim))

    monkeypatch.setattr(record, "_enter_doors", with_door)


class Model(nn.Module):
    """Calls the kernel with its arguments."""

    def forward(self, *heads):
        return fast.attention(*heads)


@pytest.mark.parametrize("kernel", [in_numpy, in_torch])
def test_the_call_is_proved_and_exact(kernel, monkeypatch):
    monkeypatch.setattr(fast, "attention", kernel)
    query, key, value = torch.randn(B, H, N, D), torch.randn(B, G, M, D), torch.randn(B, G, M, V)
    with heedful.record(model := Model()) as recording:
        output = model(query, key, value)
    assert fast.attention is kernel  # the door has removed its patch
    assert torch.equal(output, kernel(query, key, value))
    assert len(recording) == 1
    expected = weights_of(query.numpy(), key.numpy())
    for text, [call] in enumerate(recording.sequences):
        assert (call.door, call.layout, call.proof) == ("fast", "told", "proved")
        np.testing.assert_allclose(call.weights().numpy(), expected[text], atol=1e-6)


def run():
    with heedful.record(model := Model()) as recording:
        model(torch.randn(B, H, N, D), torch.randn(B, G, M, D), torch.randn(B, G, M, V))
    return recording


def test_a_wrong_scale_is_refuted(monkeypatch):
    monkeypatch.setattr(fast, "scale", 1.0)
    assert run()[0].proof == "refuted"


def test_an_error_in_the_door_does_not_end_the_pass(monkeypatch):
    monkeypatch.delattr(fast, "scale")
    with pytest.warns(UserWarning, match="attention of Model was not recorded"):
        recording = run()
    assert "no attribute 'scale'" in recording.missed["Model"]


def test_a_claim_of_another_thread_hides_nothing(monkeypatch):
    inside, finished = threading.Event(), threading.Event()

    def kernel(*heads):
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            finished.wait(10)
        return in_torch(*heads)

    monkeypatch.setattr(fast, "attention", kernel)
    heads = torch.randn(B, H, N, D), torch.randn(B, G, M, D), torch.randn(B, G, M, V)
    with heedful.record(model := Model()) as recording:
        thread = threading.Thread(target=fast.attention, args=heads)
        thread.start()
        inside.wait(10)
        model(*heads)
        finished.set()
        thread.join()
    assert len(recording) == 1
