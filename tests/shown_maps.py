"""Checks of recordings: recorded weights are exact, and recording does not change the model."""

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
    """A module that computes a function of its input tensors."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Heads(nn.Module):
    """A function of queries (B, H, N, d), projected from x, and of keys (B, H, M, d), from y."""

    def __init__(self, function, heads=H, width=D):
        super().__init__()
        self.function, self.sizes = function, (heads, width)
        self.asks = nn.Linear(WIDTH, heads * width)  # names without meaning for the recorder
        self.says = nn.Linear(WIDTH, heads * width)

    def heads(self, x, y=None):
        query, key = self.asks(x), self.says(x if y is None else y)
        return [x.unflatten(-1, self.sizes).transpose(1, 2) for x in (query, key)]

    def forward(self, *inputs):
        return self.function(*self.heads(*inputs))


def weighed(query, key):
    """Return the softmax weights (…, N, M) of heads (…, N, d) and (…, M, d), in float64."""
    exponentials = torch.einsum("...nd,...md->...nm", query.double(), key.double()).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).to(query.dtype).detach()


def _training_step(model, inputs):
    """Return the results of a training step: output, gradients, buffers, random state."""
    torch.manual_seed(8)
    output = model(*inputs)
    tensors = [leaf for leaf in _pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    losses = [tensor.abs().square().sum() for tensor in tensors if tensor.requires_grad]
    gradients = []
    if losses and parameters:
        try:
            gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True)
        except RuntimeError as error:  # the model modifies tensors needed for gradients
            gradients = [str(error)]
    buffers = [buffer.clone() for buffer in model.buffers()]
    return [*tensors, *gradients, *buffers, torch.get_rng_state()]


def looked_at(model, *inputs, missed=NOTHING, **options):
    """Record one training step, and check that recording does not change it.

    Output, gradients of parameters, buffers and random state must be equal bit for bit.

    Args:
        model: the model to record.
        inputs: its inputs.
        missed: the expected `recording.missed`, with a part of each reason; None for any.
        options: options of `heedful.record`.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    expected = _training_step(model, inputs)
    with torch.no_grad():
        for buffer, original in buffers:
            buffer.copy_(original)
    with heedful.record(model, **options) as recording:
        results = _training_step(model, inputs)
    for result, other in zip(results, expected, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(result, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert result == other
    assert missed is None or list(recording.missed) == list(missed), recording.missed
    for name, words in (missed or {}).items():
        assert words in recording.missed[name]
    return recording


def recorded(model, *inputs, named=NOTHING, **options):
    """Record one pass of a model with keyword arguments `named`, and with options of `record`."""
    with heedful.record(model, **options) as recording:
        model(*inputs, **named)
    return recording


def near(weights, expected):
    """Assert that weights are equal up to rounding."""
    is_double = expected.dtype == torch.float64
    bounds = {"atol": 1e-12, "rtol": 1e-10} if is_double else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(weights.detach(), expected.detach(), **bounds)


def shows(recording, *expected, door=tape_inputs.DOOR, proof=None, layout=None):
    """Assert the weights of all calls; `expected` has, for each call, a map of each text."""
    assert len(recording.sequences) == len(expected[0])
    for text, maps in zip(recording.sequences, zip(*expected, strict=True), strict=True):
        for call, weights in zip(text, maps, strict=True):
            assert call.door == door
            assert proof is None or call.proof == proof, call.why
            assert layout is None or call.layout == layout, call.why
            near(call.weights(), weights)


def check_unverified(model, inputs, expected, **options):
    """Record a model, and assert that its maps are exact and proved without `verify`."""
    recording = looked_at(model, *inputs, **options)
    shows(recording, expected, proof="proved", layout="usual")
    return recording


def check_verified(model, inputs, expected, **options):
    """Record a model, and assert that its maps are exact and proved before and after `verify`."""
    recording = check_unverified(model, inputs, expected, **options)
    recording.verify(model, list(inputs))
    shows(recording, expected, proof="proved", layout="verified")
    return recording


def of_heads(function, *lengths, maps=weighed, model=Heads, texts=(1, B), **options):
    """Assert that the attention of a model is recorded, for each number of texts in `texts`."""
    for count in texts:
        instance = model(function)
        inputs = [torch.randn(count, length, WIDTH) for length in lengths]
        check = check_verified if count == texts[-1] else check_unverified
        check(instance, inputs, maps(*instance.heads(*inputs)), **options)
