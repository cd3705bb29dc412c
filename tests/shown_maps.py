"""Checks of recordings: weights equal their definition, and recording changes nothing."""

from types import MappingProxyType

import torch
from torch import nn
from torch.utils import _pytree

import heedful
from heedful.recorder.doors import tape_inputs

B, H, N, M, D = 2, 3, 5, 7, 4
WIDTH = 11  # of a model's input
NOTHING = MappingProxyType({})


class Given(nn.Module):
    """A model that computes a function of its input tensors."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, *inputs):
        return self.does(*inputs)


class Heads(nn.Module):
    """Projects x to queries (B, H, N, d) and y to keys (B, H, M, d), for a function of both."""

    def __init__(self, does, heads=H, width=D):
        super().__init__()
        self.does, self.sizes = does, (heads, width)
        self.asks = nn.Linear(WIDTH, heads * width)  # names without meaning for the recorder
        self.says = nn.Linear(WIDTH, heads * width)

    def heads(self, x, y=None):
        query, key = self.asks(x), self.says(x if y is None else y)
        return [each.unflatten(-1, self.sizes).transpose(1, 2) for each in (query, key)]

    def forward(self, *inputs):
        return self.does(*self.heads(*inputs))


def weighed(query, key):
    """Return the softmax weights (…, N, M) of heads (…, N, d) and (…, M, d), in float64."""
    raised = torch.einsum("...nd,...md->...nm", query.double(), key.double()).exp()
    return (raised / raised.sum(-1, keepdim=True)).to(query.dtype).detach()


def _trained(model, inputs):
    """Return the results of a training step: output, gradients, buffers, random state."""
    torch.manual_seed(8)
    output = model(*inputs)
    tensors = [each for each in _pytree.tree_leaves(output) if isinstance(each, torch.Tensor)]
    parameters = [each for each in model.parameters() if each.requires_grad]
    losses = [each.abs().square().sum() for each in tensors if each.requires_grad]
    gradients = []
    if losses and parameters:
        try:
            gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True)
        except RuntimeError as error:  # the model modifies tensors needed for gradients
            gradients = [str(error)]
    buffers = [each.clone() for each in model.buffers()]
    return [*tensors, *gradients, *buffers, torch.get_rng_state()]


def looked_at(model, *inputs, missed=NOTHING, **options):
    """Record one training step, and check that recording does not change it.

    Output, gradients of parameters, buffers and random state must be equal bit for bit.

    Args:
        model: the model to record.
        inputs: its inputs.
        missed: a part of the reason for each module that must be in `missed`, and no other; None
            allows any.
        options: options of `heedful.record`.
    """
    buffers_before = [(each, each.clone()) for each in model.buffers()]
    plain = _trained(model, inputs)
    with torch.no_grad():
        for buffer, before in buffers_before:
            buffer.copy_(before)
    with heedful.record(model, **options) as recording:
        during = _trained(model, inputs)
    for each, other in zip(during, plain, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(each, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert each == other
    assert missed is None or list(recording.missed) == list(missed), recording.missed
    for name, words in (missed or {}).items():
        assert words in recording.missed[name]
    return recording


def near(weights, expected):
    """Assert that weights are equal up to rounding."""
    is_double = expected.dtype == torch.float64
    bounds = {"atol": 1e-12, "rtol": 1e-10} if is_double else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(weights.detach(), expected.detach(), **bounds)


def shows(recording, *expected, door=tape_inputs.DOOR, proof=None, layout=None):
    """Assert the weights of all calls; `expected` has a map of each text for each call."""
    assert len(recording.sequences) == len(expected[0])
    for text, maps in zip(recording.sequences, zip(*expected, strict=True), strict=True):
        for call, weights in zip(text, maps, strict=True):
            assert call.door == door
            assert proof is None or call.proof == proof, call.why
            assert layout is None or call.layout == layout, call.why
            near(call.weights(), weights)


def at_once(model, inputs, expected, **options):
    """Record a model, and assert that its maps are exact and proved without `verify`."""
    recording = looked_at(model, *inputs, **options)
    shows(recording, expected, proof="proved", layout="usual")
    return recording


def verified(model, inputs, expected, **options):
    """Record a model, and assert that its maps are exact and proved before and after `verify`."""
    recording = at_once(model, inputs, expected, **options)
    recording.verify(model, list(inputs))
    shows(recording, expected, proof="proved", layout="verified")
    return recording


def of_heads(does, *lengths, maps=weighed, model=Heads, texts=(1, B), **options):
    """Assert that a model's attention is recorded, for one text and for several."""
    for count in texts:
        instance = model(does)
        inputs = [torch.randn(count, length, WIDTH) for length in lengths]
        check = verified if count == texts[-1] else at_once
        check(instance, inputs, maps(*instance.heads(*inputs)), **options)
