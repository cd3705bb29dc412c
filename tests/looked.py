"""What a recording shows, beside weights by their definition; and that it has changed nothing."""

from types import MappingProxyType

import torch
from torch import nn
from torch.utils import _pytree

import heedful
from heedful.recorder.doors import tape_inputs

B, H, N, M, D = 2, 3, 5, 7, 4
WIDTH = 11  # of what a model is given
NOTHING = MappingProxyType({})


class Given(nn.Module):
    """A model that computes a function of the tensors it is given."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, *given):
        return self.does(*given)


class Heads(nn.Module):
    """Projects x to queries (B, H, N, d) and y to keys (B, H, M, d), for a function of both."""

    def __init__(self, does, heads=H, width=D):
        super().__init__()
        self.does, self.sizes = does, (heads, width)
        self.asks = nn.Linear(WIDTH, heads * width)  # names that tell the recorder nothing
        self.says = nn.Linear(WIDTH, heads * width)

    def heads(self, x, y=None):
        query, key = self.asks(x), self.says(x if y is None else y)
        return [one.unflatten(-1, self.sizes).transpose(1, 2) for one in (query, key)]

    def forward(self, *given):
        return self.does(*self.heads(*given))


def weighed(query, key):
    """Weights (…, N, M) of heads (…, N, d) and (…, M, d) by their definition, in float64."""
    raised = torch.einsum("...nd,...md->...nm", query.double(), key.double()).exp()
    return (raised / raised.sum(-1, keepdim=True)).to(query.dtype).detach()


def _trained(model, given):
    """Everything that a step of training leaves: output, gradients, buffers, random state."""
    torch.manual_seed(8)
    output = model(*given)
    tensors = [one for one in _pytree.tree_leaves(output) if isinstance(one, torch.Tensor)]
    parameters = [one for one in model.parameters() if one.requires_grad]
    losses = [one.abs().square().sum() for one in tensors if one.requires_grad]
    gradients = []
    if losses and parameters:
        try:
            gradients = torch.autograd.grad(sum(losses), parameters, allow_unused=True)
        except RuntimeError as error:  # of a model that changes what its gradients need
            gradients = [str(error)]
    buffers = [one.clone() for one in model.buffers()]
    return [*tensors, *gradients, *buffers, torch.get_rng_state()]


def looked_at(model, *given, missed=NOTHING, **options):
    """The recording of one step of training, which is as it would be without a recording.

    Output, gradients of parameters, buffers and random state are the same bit for bit.

    Args:
        model: that is recorded.
        given: to it.
        missed: words of the reason for each module that cannot be shown; nothing else is missed.
            None where anything may be.
        options: of `heedful.record`.
    """
    kept = [(one, one.clone()) for one in model.buffers()]
    plain = _trained(model, given)
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
    with heedful.record(model, **options) as recording:
        during = _trained(model, given)
    for one, other in zip(during, plain, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert one == other
    assert missed is None or list(recording.missed) == list(missed), recording.missed
    for name, words in (missed or {}).items():
        assert words in recording.missed[name]
    return recording


def near(weights, expected):
    """Weights are these, to rounding."""
    is_double = expected.dtype == torch.float64
    bounds = {"atol": 1e-12, "rtol": 1e-10} if is_double else {"atol": 2e-6, "rtol": 1e-5}
    torch.testing.assert_close(weights.detach(), expected.detach(), **bounds)


def shows(recording, *expected, door=tape_inputs.DOOR, proof=None, layout=None):
    """The calls of each text have these weights: for each call a map of each text."""
    assert len(recording.sequences) == len(expected[0])
    for text, maps in zip(recording.sequences, zip(*expected, strict=True), strict=True):
        for call, weights in zip(text, maps, strict=True):
            assert call.door == door
            assert proof is None or call.proof == proof, call.why
            assert layout is None or call.layout == layout, call.why
            near(call.weights(), weights)


def at_once(model, given, expected, **options):
    """The recording of a model, whose maps are exact and proved without `verify`."""
    recording = looked_at(model, *given, **options)
    shows(recording, expected, proof="proved", layout="usual")
    return recording


def verified(model, given, expected, **options):
    """The recording of a model, whose maps are exact and proved at once, and once verified."""
    recording = at_once(model, given, expected, **options)
    recording.verify(model, list(given))
    shows(recording, expected, proof="proved", layout="verified")
    return recording


def of_heads(does, *lengths, maps=weighed, model=Heads, texts=(1, B), **options):
    """That attention of queries and keys of a model's own is shown: of one text and of more."""
    for count in texts:
        made = model(does)
        given = [torch.randn(count, length, WIDTH) for length in lengths]
        check = verified if count == texts[-1] else at_once
        check(made, given, maps(*made.heads(*given)), **options)
