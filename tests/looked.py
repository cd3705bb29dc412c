"""What a recording shows, beside weights by their definition."""

import torch

import heedful
from heedful.recorder import softmax_matmul


def weighed(query, key):
    """Weights (…, N, M) of heads (…, N, d) and (…, M, d) by their definition, in float64."""
    raised = torch.einsum("...nd,...md->...nm", query.double(), key.double()).exp()
    return (raised / raised.sum(-1, keepdim=True)).float()


def looked_at(model, *given, **options):
    """What was recorded of a model whose output is what it was."""
    torch.manual_seed(8)
    before = model(*given)
    after = torch.rand(3)
    torch.manual_seed(8)
    with heedful.record(model, **options) as recording:
        torch.testing.assert_close(model(*given), before, atol=0, rtol=0)
    assert torch.equal(torch.rand(3), after)  # nothing was drawn for the record
    assert recording.missed == {}
    return recording


def shows(recording, expected, door=softmax_matmul.DOOR):
    """Each sequence is one call, whose weights are these."""
    assert len(recording.sequences) == len(expected)
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        assert call.door.startswith(door)
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)
