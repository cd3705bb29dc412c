"""Passes under autocast, which keeps copies of the weights in half precision from pass to pass."""

import pytest
import torch
from looked import WIDTH, D, H, N
from torch import nn

import heedful


class JoinsHeadsAndTexts(nn.Module):
    """Heads are put beside the texts, (H · B, N, d), which only their projection tells apart."""

    def __init__(self):
        super().__init__()
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def forward(self, x):
        query, key = (torch.cat(one(x).split(D, -1)) for one in (self.asks, self.says))
        return (query @ key.mT).softmax(-1) @ key


def calls_of(model, x, before):
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(before):
            model(x)
        with heedful.record(model) as recording:
            model(x)
        if len(x) > 1:
            recording.verify(model, x)
    return [call for sequence in recording.sequences for call in sequence]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("texts", [1, 2])
def test_weights_that_an_earlier_pass_has_cast_are_known_as_weights(texts, gradients):
    model, x = JoinsHeadsAndTexts(), torch.randn(texts, N, WIDTH)
    with torch.set_grad_enabled(gradients):
        first, again = calls_of(model, x, 0), calls_of(model, x, 2)
    assert len(first) == len(again) == texts
    for call, other in zip(first, again, strict=True):
        assert call.shape == other.shape == (H, N, N)
        assert call.proof == other.proof == "proved", other.why
        assert torch.equal(call.weights(), other.weights())
