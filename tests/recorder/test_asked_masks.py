"""Masks of somebody's own are asked by the model's pass alone, and shown with what they said."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import heedful
from heedful import attention
from heedful.ops.masks import Mask


class Drawn(Mask):
    """Draws which pairs may attend each time that it is asked."""

    def allowed(self, query, key, shape):
        return (torch.rand(len(query), key.shape[1]) < 0.8) | (query == key)


class OfHeads(Mask):
    """A window of another size for each head, whichever axis of the call that is."""

    def allowed(self, query, key, shape):
        sizes = 1 + 2 * torch.arange(shape[-3])[:, None, None]
        return (query - key).abs() < sizes


class Layer(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.mask = mask

    def forward(self, x):
        return attention(x, x, x, mask=self.mask)


class Layers(nn.Module):
    """Two layers that share a mask."""

    def __init__(self, mask):
        super().__init__()
        self.first, self.second = Layer(mask), Layer(mask)

    def forward(self, x):
        return self.first(x), self.second(x)


def expected(x, allowed):
    """The map by its definition, in float64."""
    raised = (x.double() @ x.double().mT / x.shape[-1] ** 0.5).exp() * allowed
    return raised / raised.sum(-1, keepdim=True)


def shows(call, weights):
    assert call.proof == "proved"
    torch.testing.assert_close(call.weights().double(), weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_a_mask_is_asked_once_by_each_layer(mode):
    x, ran = torch.randn(1, 2, 40, 4), []
    for recorded in (nullcontext, heedful.record):
        torch.manual_seed(0)
        with mode(), recorded(model := Layers(Drawn())) as recording:
            ran.append((*model(x), torch.rand(3)))  # also the random state is as it would be
    assert all(map(torch.equal, *ran))
    torch.manual_seed(0)
    for call in recording:
        shows(call, expected(x, Drawn().crop((40, 40)))[0])


@pytest.mark.parametrize("axes", [(3,), (2, 3), (2, 2, 3)])
def test_a_mask_without_a_tensor_has_the_axes_of_the_call(axes):
    x, mask = torch.randn(*axes, 20, 4), OfHeads()
    with heedful.record(model := Layer(mask)) as recording:
        model(x)
    own = expected(x, mask.crop((*axes, 20, 20)))
    own = own[:, None] if len(axes) == 1 else own.flatten(0, -4)
    assert recording.missed == {}
    parts = [part for [call] in recording.sequences for part in call.parts]
    for part, weights in zip(parts, own, strict=True):
        shows(part, weights)
