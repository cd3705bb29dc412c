"""Passes in other threads, of copies, and of gradient checkpointing."""

import copy
import threading

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import heedful
from heedful.layers import MultiHeadAttention
from heedful.models import GPT, GPTConfig

IDS = torch.arange(2 * 11).view(2, 11) % 23


@pytest.fixture
def model():
    config = GPTConfig(vocabulary=23, context_length=32, width=24, layers=3, heads=4, kv_heads=2)
    return GPT(config).eval()


def test_passes_in_other_threads_are_reported_as_missed(model):
    with heedful.record(model) as recording:
        thread = threading.Thread(target=model, args=(IDS,))
        thread.start()
        thread.join()
        assert len(recording) == 0
        model(IDS)
    assert len(recording) == 3
    assert recording.missed == {type(model).__name__: "it ran in another thread"}


def test_calls_of_a_copy_are_not_recorded(model):
    with heedful.record(model) as recording:
        copied = copy.deepcopy(model)
        copied(IDS)
        model(IDS)
    assert (len(recording), recording.missed) == (3, {})


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = MultiHeadAttention(12, 3)

    def forward(self, x):
        return checkpoint(self.attend, x, use_reentrant=False)


def test_a_backward_pass_in_another_thread_is_not_recorded():
    """A call that checkpointing recomputes for gradients was recorded when it first ran."""
    model = Checkpointed()
    with heedful.record(model) as recording:
        thread = threading.Thread(target=model(torch.randn(1, 5, 12)).sum().backward)
        thread.start()
        thread.join()
    assert all(weight.grad is not None for weight in model.parameters())
    assert (len(recording), recording.missed) == (1, {})


def test_gradient_checkpointing_records_once():
    layer, x = Checkpointed(), torch.randn(1, 5, 12, requires_grad=True)
    with heedful.record(layer) as recording:
        layer(x).sum().backward()
    assert len(recording) == 1
