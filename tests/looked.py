"""What a recording shows, beside weights by their definition; and that it has changed nothing."""

import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

import torch
from torch import nn
from torch.utils import _pytree

import heedful
from heedful.recorder.doors import by_hand

B, H, N, M, D = 2, 3, 5, 7, 4
WIDTH = 11  # of what a model is given
HERE = str(Path(__file__).parent)
NOTHING = MappingProxyType({})


class Given(nn.Module):
    """Does what it is told with tensors of which nothing is known."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, *given):
        return self.does(*given)


class Heads(nn.Module):
    """Projects x to queries (B, H, N, d) and y to keys (B, H, M, d), and does what it is told."""

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


@contextmanager
def _counted():
    """How often each function of these tests runs."""
    ran = Counter()

    def seen(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(HERE):
            ran[frame.f_code] += 1

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        yield ran
    finally:
        sys.setprofile(before)


def _trained(model, given):
    """Everything that a step of training leaves: output, gradients, buffers, random state."""
    torch.manual_seed(8)
    with _counted() as ran:
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
    return [*tensors, *gradients, *buffers, torch.get_rng_state()], ran


def looked_at(model, *given, missed=NOTHING, **options):
    """What was recorded of a model that was trained by one step, as it is without recording.

    Output, gradients of parameters, buffers and random state are the same bit for bit, and every
    function of the tests ran as often.

    Args:
        model: that is recorded.
        given: to it.
        missed: words of the reason for each module that cannot be shown; nothing else is missed.
            None where anything may be.
        options: of `heedful.record`.
    """
    kept = [(one, one.clone()) for one in model.buffers()]
    plain, ran_plain = _trained(model, given)
    with torch.no_grad():
        for buffer, before in kept:
            buffer.copy_(before)
    with heedful.record(model, **options) as recording:
        during, ran = _trained(model, given)
    for one, other in zip(during, plain, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, atol=0, rtol=0, equal_nan=True)
        else:
            assert one == other
    assert ran == ran_plain
    assert missed is None or list(recording.missed) == list(missed), recording.missed
    for name, words in (missed or {}).items():
        assert words in recording.missed[name]
    return recording


def shows(recording, expected, door=by_hand.DOOR, proof=None):
    """Each sequence is one call, whose weights are these."""
    assert len(recording.sequences) == len(expected)
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        assert call.door == door
        assert proof is None or call.proof == proof, call.why
        is_double = map_.dtype == torch.float64
        near = {"atol": 1e-12, "rtol": 1e-10} if is_double else {"atol": 2e-6, "rtol": 1e-5}
        torch.testing.assert_close(call.weights().detach(), map_, **near)


def follows(model, given, expected, **options):
    """What is shown is exact and proved: of one text at once, of several ones once verified."""
    recording = looked_at(model, *given, **options)
    shows(recording, expected, proof="proved" if len(given[0]) == 1 else "assumed")
    recording.verify(model, list(given))
    shows(recording, expected, proof="proved")
    return recording


def of_heads(does, *lengths, maps=weighed, model=Heads, texts=(1, B), **options):
    """That `does` is followed with queries and keys of a model's own: of one text and of more."""
    for count in texts:
        made = model(does)
        given = [torch.randn(count, length, WIDTH) for length in lengths]
        follows(made, given, maps(*made.heads(*given)), **options)
