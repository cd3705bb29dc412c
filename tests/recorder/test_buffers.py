"""Buffers of a model by hand: a cache of keys, and weights computed from a buffer."""

import pytest
import torch
from shown_maps import WIDTH, B, D, H, Heads, N, looked_at, near, shows, weighed
from torch import nn

ROOM = 9


def put(room, new, at):
    room[:, :, at] = new


def added(room, new, at):
    room.zero_()
    room.index_add_(2, at, new)


WRITES = {
    "a slice": lambda room, new, at: room[:, :, : len(at)].copy_(new),
    "index_copy_": lambda room, new, at: room.index_copy_(2, at, new),
    "places": put,
    "scatter_": lambda room, new, at: room.scatter_(2, at[:, None].expand_as(new), new),
    "index_add_": added,
}


class Cached(Heads):
    """Keys in a buffer with empty slots, (B, H, M, d) or flattened."""

    def __init__(self, write, texts, flat=False):
        super().__init__(self.attend)
        self.write, self.texts = write, texts
        shape = (texts, H, ROOM, D)
        self.register_buffer("keys", torch.zeros(texts * H * ROOM * D if flat else shape))

    def attend(self, query, key):
        keys = self.keys.detach().view(self.texts, H, ROOM, D)
        with torch.no_grad():
            self.write(keys, key, torch.arange(key.shape[2]))
        read = keys[:, :, : key.shape[2]].clone()
        return (query @ read.mT).softmax(-1) @ read


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("way", WRITES)
def test_keys_in_a_buffer_are_recorded_for_each_way_of_writing(way, texts, flat):
    model, x = Cached(WRITES[way], texts, flat), torch.randn(texts, N, WIDTH)
    shows(looked_at(model, x), weighed(*model.heads(x)), proof="proved")


def test_linear_layers_with_computed_weights_are_not_attention():
    """A spectral norm writes into its buffers at each pass."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            norm = nn.utils.parametrizations.spectral_norm
            self.layers = nn.Sequential(*(norm(nn.Linear(WIDTH, WIDTH)) for _ in range(3)))

        def forward(self, x):
            query = self.layers(x)
            self.weights = (query @ query.mT).softmax(-1)
            return self.weights @ query

    model = Scaled()
    [call] = looked_at(model, torch.randn(1, N, WIDTH))
    assert call.proof == "proved"
    near(call.weights(), model.weights)
