"""Windows that look beyond themselves, and a memory that all texts read, as public code has it."""

import math

import pytest
import torch
from looked import WIDTH, D, Given, H, Heads, looked_at, shows, weighed
from torch import nn
from torch.nn import functional as F

SIZE = 2  # of a window


def packed(heads):
    """(B, H, L, d) with texts and heads in one axis, as einops' `pack` puts them."""
    return torch.cat([heads.reshape(-1, *heads.shape[2:])], dim=0)


def around(windows, fill):
    """(…, windows, SIZE, d) with the windows before and after each, (…, windows, 3 · SIZE, d)."""
    beyond = F.pad(windows, (0, 0, 0, 0, 1, 1), value=fill)
    return beyond.unfold(1, 3, 1).movedim(-1, 2).flatten(2, 3)


class Local(nn.Module):
    """Local attention: each window sees those beside it, and none beyond the ends of a text."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * H * D), nn.Linear(H * D, WIDTH)

    def heads(self, x):
        return [one.unflatten(-1, (H, D)).transpose(1, 2) for one in self.qkv(x).chunk(3, dim=-1)]

    def forward(self, x):
        query, key, value = (packed(one).unflatten(1, (-1, SIZE)) for one in self.heads(x))
        places = torch.arange(x.shape[1]).view(1, -1, SIZE, 1)
        is_beyond = around(places, -1).mT < 0
        scores = query @ around(key, -1.0).mT
        scores = scores.masked_fill(is_beyond, -torch.finfo(scores.dtype).max)
        made = scores.softmax(-1) @ around(value, -1.0)
        return self.out(made.flatten(1, 2).view(len(x), H, -1, D).transpose(1, 2).flatten(2)) + x

    def maps(self, x):
        """(windows of all texts, H, SIZE, 3 · SIZE)."""
        query, key, _ = self.heads(x)
        L, found = x.shape[1], []
        for b in range(len(x)):
            for first in range(0, L, SIZE):
                here = range(max(0, first - SIZE), min(L, first + 2 * SIZE))
                map_ = torch.zeros(H, SIZE, 3 * SIZE)
                at = slice(here.start - first + SIZE, here.stop - first + SIZE)
                map_[..., at] = weighed(query[b, :, first : first + SIZE], key[b][:, list(here)])
                found.append(map_)
        return found


@pytest.mark.parametrize(("texts", "length"), [(1, 6), (2, 6), (3, 4), (2, 2 * H * SIZE)])
def test_windows_that_look_around_keep_what_lies_beyond_the_ends(texts, length):
    """Their keys beyond a text are hidden from all queries, and are no padding and no cache."""
    model, x = Local().eval(), torch.randn(texts, length, WIDTH)
    recording = looked_at(model, x)
    shows(recording, model.maps(x), proof="proved" if texts == 1 else "assumed")
    recording.verify(model, x)
    shows(recording, model.maps(x), proof="proved")


class Memory(nn.Module):
    """Local attention; then all texts ask one memory, whose keys a layer makes of parameters."""

    def __init__(self, rooms, expands):
        super().__init__()
        self.local, self.rooms, self.expands = Local(), nn.Parameter(torch.randn(rooms, D)), expands
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(D, D)

    def forward(self, x):
        query, key = self.given(x)
        if self.expands:
            key = key.expand(len(x), H, -1, -1)
            return (query @ key.mT / math.sqrt(D)).softmax(-1) @ key
        weights = torch.einsum("bhid,jd->bhij", query, key).div(math.sqrt(D)).softmax(-1)
        return torch.einsum("bhij,jd->bhid", weights, key)

    def given(self, x):
        query = self.asks(self.local(x)).unflatten(-1, (H, D)).transpose(1, 2)
        return query, self.says(self.rooms)


@pytest.mark.parametrize("expands", [False, True])
@pytest.mark.parametrize(("texts", "length"), [(1, 6), (2, 6), (3, 4), (H, 2 * H)])
def test_texts_that_ask_one_memory_have_their_own_sequences(texts, length, expands):
    model, x = Memory(5, expands).eval(), torch.randn(texts, length, WIDTH)
    query, key = model.given(x)
    maps = weighed(query / math.sqrt(D), key.expand(texts, H, -1, -1))
    recording = looked_at(model, x)
    _seen(recording, maps, "proved" if texts == 1 else "assumed")
    recording.verify(model, x)
    _seen(recording, maps, "proved")


def _seen(recording, maps, proof):
    """The last call of the first sequences, one for each text, has these maps."""
    shown = [sequence[-1] for sequence in recording.sequences[: len(maps)]]
    for call, map_ in zip(shown, maps, strict=True):
        assert call.proof == proof, call.why
        torch.testing.assert_close(call.weights().detach(), map_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("texts", [2, 3])
def test_copies_of_one_query_are_of_the_texts(texts):
    """Each text asks the same of a memory, as states of a recurrent model do at first."""

    class Copies(nn.Module):
        def __init__(self):
            super().__init__()
            self.state = nn.Parameter(torch.randn(4, WIDTH))
            self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, D)

        def heads(self, x):
            query = self.asks(self.state).unflatten(-1, (H, D)).transpose(0, 1)
            return query.expand(len(x), -1, -1, -1), self.says(self.state)

        def forward(self, x):
            query, key = self.heads(x)
            weights = torch.einsum("bhid,jd->bhij", query, key).softmax(-1)
            return torch.einsum("bhij,jd->bhid", weights, key) + x.mean()

    model, x = Copies(), torch.randn(texts, 5, WIDTH)
    query, key = model.heads(x)
    shows(looked_at(model, x), weighed(query, key.expand(texts, H, -1, -1)), proof="assumed")


def test_one_piece_that_is_put_together_is_that_piece():
    def attends(x):
        heads = torch.cat([x.unflatten(-1, (H, D)).transpose(1, 2)], dim=1)
        return (heads @ heads.mT).softmax(-1) @ heads

    x = torch.randn(2, 5, H * D)
    heads = x.unflatten(-1, (H, D)).transpose(1, 2)
    shows(looked_at(Given(attends), x), weighed(heads, heads), proof="assumed")


REPEATED = {
    "repeated": lambda query: query.repeat(1, 1, 2, 1),
    "expanded": lambda query: query[:, :, None].expand(-1, -1, 2, -1, -1),
}


@pytest.mark.parametrize("way", REPEATED)
def test_queries_that_are_repeated_beside_texts_are_queries(way):
    class Repeats(Local):
        def forward(self, x):
            query, key, _ = self.heads(x)
            weights = torch.einsum("bh...nd,bhmd->bh...nm", REPEATED[way](query), key).softmax(-1)
            return torch.einsum("bh...nm,bhmd->bh...nd", weights, key)

    model, x = Repeats().eval(), torch.randn(2, 6, WIDTH)
    query, key, _ = model.heads(x)
    recording = looked_at(model, x)
    recording.verify(model, x)
    assert len(recording.sequences) == len(x)
    for [call], map_ in zip(recording.sequences, weighed(query, key), strict=True):
        assert call.proof != "refuted"
        weights = call.weights().reshape(H, -1, x.shape[1]).detach()
        torch.testing.assert_close(weights[:, : x.shape[1]], map_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("texts", [2, 3])
def test_learned_queries_that_are_repeated_are_sequences(texts):
    class Learned(nn.Module):
        def __init__(self):
            super().__init__()
            self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)
            self.latents = nn.Parameter(torch.randn(4, WIDTH))
            self.memory = nn.Parameter(torch.randn(5, WIDTH))

        def heads(self):
            pair = self.asks(self.latents), self.says(self.memory)
            return [one.unflatten(-1, (H, D)).transpose(0, 1) for one in pair]

        def forward(self, x):
            query, key = self.heads()
            query = query.expand(6, -1, -1, -1)
            weights = torch.einsum("rhnd,hmd->rhnm", query, key).softmax(-1)
            return torch.einsum("rhnm,hmd->rhnd", weights, key).mean() + x

    model = Learned().eval()
    query, key = model.heads()
    recording = looked_at(model, torch.randn(texts, 7, WIDTH))
    assert len(recording.sequences) == 6
    for [call] in recording.sequences:
        assert call.proof == "assumed"
        torch.testing.assert_close(call.weights(), weighed(query, key), atol=2e-6, rtol=1e-5)


THRESHOLDS = {
    "where": lambda scores, least: torch.where(scores >= least, scores, -1e9),
    "first": lambda scores, least: torch.where(least <= scores, scores, -torch.inf),
    "added": lambda scores, least: ((scores < least) * -1e9) + scores,
    "filled": lambda scores, least: scores.masked_fill(scores < least, -torch.inf),
}


@pytest.mark.parametrize("way", THRESHOLDS)
def test_scores_below_a_threshold_that_was_picked_of_them_are_hidden(way):
    def attends(query, key):
        scores = query @ key.mT
        least = scores.topk(3, -1).values[..., -1:]
        return THRESHOLDS[way](scores, least).softmax(-1) @ key

    model, x = Heads(attends), torch.randn(1, 6, WIDTH)
    scores = torch.einsum("bhnd,bhmd->bhnm", *model.heads(x))
    is_seen = scores >= scores.topk(3, -1).values[..., -1:]
    maps = scores.masked_fill(~is_seen, -torch.inf).softmax(-1).detach()
    shows(looked_at(model, x), maps, proof="proved")


def test_a_first_key_whose_score_and_value_are_zero_is_seen():
    """A kernel says the same of it as of a row that sees nothing."""

    def attends(query, key):
        query, key = (F.pad(one, (0, 0, 1, 0)) for one in (query, key))
        return F.scaled_dot_product_attention(query, key, key, is_causal=True, scale=1.0)

    model, x = Heads(attends), torch.randn(1, 5, WIDTH)
    query, key = (F.pad(one, (0, 0, 1, 0)).double() for one in model.heads(x))
    ahead = torch.ones(6, 6).triu(1).bool()
    scores = torch.einsum("bhnd,bhmd->bhnm", query, key).masked_fill(ahead, -torch.inf)
    [call] = looked_at(model, x)
    torch.testing.assert_close(
        call.weights().detach(), scores.softmax(-1)[0].float().detach(), atol=2e-6, rtol=1e-5
    )
