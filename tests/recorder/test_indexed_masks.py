"""Masks that are written by index, `scores[..., mask] = -inf`: a `masked_fill_` in other words."""

import pytest
import torch
from torch import nn

import heedful

B, H, N, D = 2, 3, 9, 4
LATER = torch.ones(N, N).triu(1) > 0
PADDING = torch.tensor([False] * 6 + [True] * 3)
TABLE = (torch.arange(B * H * N * N).view(B, H, N, N) % 3 == 1) & ~torch.eye(N).bool()
HIDE = {
    "queries and keys": lambda scores, low: scores.__setitem__((..., LATER), low),
    "all axes": lambda scores, low: scores.__setitem__(TABLE, low),
    "keys": lambda scores, low: scores.__setitem__((..., PADDING), low),
    "a number in a list": lambda scores, low: scores.__setitem__(
        (slice(None), slice(None), LATER), torch.tensor([low])
    ),
    "heads and queries and keys": lambda scores, low: scores.__setitem__(
        (slice(None), TABLE[1]), low
    ),
    "one after another": lambda scores, low: (
        scores.__setitem__((..., LATER), low),
        scores.__setitem__((..., PADDING), low),
    ),
}


class Attend(nn.Module):
    def __init__(self, hide, low, normalise=lambda scores: scores.softmax(-1)):
        super().__init__()
        self.project = nn.Linear(H * D, 3 * H * D)
        self.hide, self.low, self.normalise = hide, low, normalise
        self.weights = None

    def forward(self, x):
        q, k, v = self.project(x).view(B, N, 3, H, D).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / D**0.5
        self.hide(scores, self.low)
        self.weights = self.normalise(scores)
        return (self.weights @ v).transpose(1, 2).reshape(B, N, H * D)


def written_out(scores):
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("normalise", [torch.nn.Softmax(-1), written_out])
@pytest.mark.parametrize("low", [-torch.inf, -1e9])
@pytest.mark.parametrize("kind", HIDE)
def test_a_mask_by_index_keeps_the_causes(kind, low, normalise, mode):
    model, x = Attend(HIDE[kind], low, normalise), torch.randn(B, N, H * D)
    with mode():
        plain = model(x)
        with heedful.record(model) as recording:
            assert torch.equal(model(x), plain)
    for sequence, weights in zip(recording.sequences, model.weights.detach(), strict=True):
        [call] = sequence
        torch.testing.assert_close(call.weights().detach(), weights, atol=1e-6, rtol=0)
        assert call.proof == "assumed"  # which of the two texts is which
        assert "only the weights" not in call.why


def test_a_mask_that_is_changed_before_its_weights_meet_values_is_told_of():
    hidden = LATER.clone()

    def hide(scores, low):
        scores[..., hidden] = low
        hidden[5, 2] = True

    with torch.no_grad(), heedful.record(model := Attend(hide, -torch.inf)) as recording:
        model(torch.randn(B, N, H * D))
    assert "changed in place before" in recording.missed["Attend"]


@pytest.mark.parametrize(
    "hide",
    [
        lambda scores, low: scores.__setitem__((..., 3), low),
        lambda scores, low: scores.__setitem__((slice(None), [0, 2]), low),
        lambda scores, low: scores[:, 1].__setitem__((..., LATER), low),
        lambda scores, low: scores.__setitem__((..., LATER), torch.randn(B, H, int(LATER.sum()))),
        lambda scores, low: scores.index_put_(
            (torch.tensor([1]), torch.tensor([0])), torch.tensor(low), accumulate=True
        ),
    ],
)
def test_what_else_is_written_by_index_is_shown_by_its_weights(hide):
    with torch.no_grad(), heedful.record(model := Attend(hide, -5.0)) as recording:
        model(torch.randn(B, N, H * D))
    for sequence, weights in zip(recording.sequences, model.weights, strict=True):
        [call] = sequence
        torch.testing.assert_close(call.weights(), weights, atol=1e-6, rtol=0)
        assert call.proof == "unproved"
