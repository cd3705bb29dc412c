"""The default type and device of a process change no number of a recording."""

import pytest
import torch
from process_defaults import default_elsewhere, default_type
from shown_maps import WIDTH, Heads, recorded
from torch import nn

LONG = 333  # more than the largest count that bfloat16 represents exactly


def by_hand(query, key):
    hidden = query.new_ones(LONG, LONG).bool().triu(1)
    scores = (query @ key.mT / 2 + query.new_tensor(0.3)).masked_fill(hidden, -torch.inf)
    return scores.softmax(-1) @ key


def fused(query, key):
    return nn.functional.scaled_dot_product_attention(query, key, key, is_causal=True)


MODELS = {
    "by hand": lambda: Heads(by_hand),
    "SDPA": lambda: Heads(fused),
    "torch's own": lambda: nn.TransformerEncoderLayer(WIDTH, 1, 8, batch_first=True),
}


def everything(model, x):
    """All numbers of a recording by name, and its texts."""
    recording = recorded(model, x)
    recording.verify(model, x)
    sequence = recording.sequences[1]
    (call,) = sequence
    numbers = {
        "weights": call.weights(),
        "some": call.weights(0, slice(5, 9), [0, 300]),
        "mean received": call.received(mean=True),
        "heatmap": call.heatmap(32),
        **call.summary(),
    }
    return numbers, [recording.certificate(), call.why, sequence.heads(), repr(call)]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64, None])
@pytest.mark.parametrize("name", MODELS)
def test_default_type_and_device_change_nothing(name, kind):
    torch.manual_seed(3)
    model, x = MODELS[name]().eval(), torch.randn(2, LONG, WIDTH)
    expected, words = everything(model, x)
    with default_elsewhere() if kind is None else default_type(kind):
        values, also = everything(model, x)
    assert also == words
    for statistic, value in expected.items():
        torch.testing.assert_close(values[statistic], value, atol=0, rtol=0, equal_nan=True)
