"""Models that run operations of other libraries, or are scripted, run as they do alone."""

import pytest
import torch
from torch import nn

import heedful

B, N, D = 2, 5, 4


@torch.library.custom_op("heedful_tests::bmm", mutates_args=())
def bmm(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Not a matrix product, despite its name; autocast casts the operations that it calls."""
    return (query + key) @ key.mT


class Calls(nn.Module):
    def __init__(self):
        super().__init__()
        self.asks = nn.Linear(D, D)

    def forward(self, x):
        return bmm(self.asks(x).float(), x).softmax(-1) @ x


@pytest.mark.parametrize("is_cast", [False, True])
def test_a_foreign_operation_with_a_name_of_torch(is_cast):
    model, x = Calls(), torch.randn(B, N, D)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        plain = model(x)
        with heedful.record(model) as recording:
            output = model(x)
        weights = bmm(model.asks(x).float(), x).softmax(-1)
    assert output.dtype == plain.dtype
    assert torch.equal(output, plain)
    for text, [call] in enumerate(recording.sequences):
        torch.testing.assert_close(call.weights(0), weights[text], check_dtype=False)


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.asks = nn.Linear(D, D)

    def forward(self, x):
        return torch.softmax(self.asks(x) @ x.transpose(-1, -2), -1) @ x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of scripting
def test_a_scripted_model_is_recorded():
    model, x = torch.jit.script(Scripted()), torch.randn(B, N, D)
    with torch.no_grad(), heedful.record(model) as recording:
        output = model(x)
        weights = (model.asks(x) @ x.mT).softmax(-1)
    assert torch.equal(output, model(x))
    assert len(recording.sequences) == B
    for text, [call] in enumerate(recording.sequences):
        assert call.proof == "proved"
        torch.testing.assert_close(call.weights(0), weights[text])
