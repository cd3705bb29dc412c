"""Keys that a model by hand writes into buffers of its own, and reads back for its queries."""

import pytest
import torch
from looked import WIDTH, B, D, H, N, looked_at, shows, weighed
from torch import nn

ROOM = 9


def put(room, new, at):
    room[:, :, at] = new


def spread(room, new, at):
    room.scatter_(2, at[:, None].expand_as(new), new)


def added(room, new, at):
    room.zero_()
    room.index_add_(2, at, new)


WRITES = {
    "a slice": lambda room, new, at: room[:, :, : len(at)].copy_(new),
    "index_copy_": lambda room, new, at: room.index_copy_(2, at, new),
    "places": put,
    "scatter_": spread,
    "index_add_": added,
}


class Cached(nn.Module):
    """Keys and values, (B, H, M, d), stand in buffers with room for more."""

    def __init__(self, write, texts):
        super().__init__()
        self.write = write
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)
        self.register_buffer("keys", torch.zeros(texts, H, ROOM, D))

    def heads(self, x):
        made = self.asks(x), self.says(x)
        return [one.unflatten(-1, (H, D)).transpose(1, 2) for one in made]

    def forward(self, x):
        (query, key), keys = self.heads(x), self.keys.detach()
        with torch.no_grad():
            self.write(keys, key, torch.arange(x.shape[1]))
        read = keys[:, :, : x.shape[1]].clone()
        return (query @ read.mT).softmax(-1) @ read


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("way", WRITES)
def test_keys_in_a_buffer_are_followed_however_they_were_written(way, texts):
    model, x = Cached(WRITES[way], texts), torch.randn(texts, N, WIDTH)
    recording = looked_at(model, x)
    shows(recording, weighed(*model.heads(x)), proof="proved" if texts == 1 else "assumed")


def test_weights_that_a_buffer_scales_in_place_are_still_weights():
    """A spectral norm writes into its buffers what its parameters make, at each pass."""
    norm = nn.utils.parametrizations.spectral_norm
    layers = nn.Sequential(*(norm(nn.Linear(WIDTH, WIDTH)) for _ in range(3)))

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = layers

        def forward(self, x):
            query = self.layers(x)
            return (query @ query.mT).softmax(-1) @ query

    model, x = Scaled(), torch.randn(1, N, WIDTH)
    recording = looked_at(model, x)
    shows(recording, weighed(*[model.eval().layers(x)] * 2)[:, None], proof="proved")


class Flat(nn.Module):
    """Keys and values stand in one row of numbers, of which each pass makes its tables."""

    def __init__(self, texts):
        super().__init__()
        self.asks, self.keeps, self.says = (nn.Linear(WIDTH, H * D) for _ in range(3))
        self.register_buffer("row", torch.zeros(2 * texts * ROOM * H * D))

    def heads(self, x):
        return [one(x).unflatten(-1, (H, D)).transpose(1, 2)
                for one in (self.asks, self.keeps, self.says)]  # fmt: skip

    def forward(self, x):
        query, key, value = self.heads(x)
        tables = self.row.detach().view(2, len(x), ROOM, H * D)
        with torch.no_grad():
            tables[0, :, : x.shape[1]] = key.transpose(1, 2).flatten(2)
            tables[1, :, : x.shape[1]] = value.transpose(1, 2).flatten(2)
        key, value = (one[:, : x.shape[1]].unflatten(-1, (H, D)).transpose(1, 2) for one in tables)
        return (query @ key.mT).softmax(-1) @ value


@pytest.mark.parametrize("texts", [1, B])
def test_a_buffer_is_known_by_the_tables_that_are_made_of_it(texts):
    model, x = Flat(texts), torch.randn(texts, N, WIDTH)
    query, key, _ = model.heads(x)
    shows(looked_at(model, x), weighed(query, key), proof="proved" if texts == 1 else "assumed")
