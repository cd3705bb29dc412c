"""One query of additive scores: no axis tells of it, and yet it is no pool of its own weights."""

import pytest
import torch
from looked import WIDTH, B, M, looked_at
from torch import nn

ALONE = "not compared: only the weights are known"


class Additive(nn.Module):
    """Scores v · tanh(W q + U k) of one query (texts, WIDTH) and keys (texts, M, WIDTH)."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.asks, self.says = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        self.both, self.score = nn.Linear(2 * WIDTH, 6), nn.Linear(6, 1, bias=False)
        self.place = nn.Parameter(torch.randn(M, WIDTH))
        self.__dict__["weights"] = []

    def forward(self, query, keys):
        weights, context = self.does(self, query, keys)
        self.weights[:] = [weights.detach()]
        return context


def added(by, query, keys):
    """As Bahdanau's, with an axis for the one query."""
    scores = by.score((by.asks(query)[:, None] + by.says(keys)).tanh())
    weights = scores.squeeze(2).unsqueeze(1).softmax(-1)
    return weights[:, 0], torch.bmm(weights, keys)


def put_beside(by, query, keys):
    """The query is repeated, and stands beside each key."""
    many = query.unsqueeze(1).repeat(1, keys.shape[1], 1)
    scores = by.score(by.both(torch.cat([many, keys], dim=2)).tanh()).squeeze(2)
    weights = scores.softmax(1)
    return weights, torch.bmm(weights.unsqueeze(1), keys).squeeze(1)


def expanded(by, query, keys):
    """As it is, but for a view, which is copied once it was projected; keys come first."""
    many, keys = query.expand(keys.shape[1], *query.shape), keys.transpose(0, 1)
    scores = (by.score.weight[0] * (by.asks(many) + by.says(keys)).relu()).sum(-1)
    weights = scores.softmax(0)
    return weights.mT, (weights[..., None] * keys).sum(0)


def in_columns(by, query, keys):
    """Weights stand in a column, and meet the values one by one."""
    weights = by.score(torch.tanh(by.says(keys) + by.asks(query).unsqueeze(1))).softmax(dim=1)
    return weights[..., 0], (weights * keys).sum(dim=1)


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("does", [added, put_beside, expanded, in_columns])
def test_its_weights_are_shown(does, texts):
    model, given = Additive(does), [torch.randn(texts, WIDTH), torch.randn(texts, M, WIDTH)]
    recording = looked_at(model, *given)
    [expected] = model.weights
    recording.verify(model, given)
    assert len(recording.sequences) == texts
    for text, [call] in enumerate(recording.sequences):
        assert (call.proof, call.why) == ("unproved", ALONE)
        torch.testing.assert_close(call.weights(), expected[text, None, None])


def pooled(by, query, keys):
    weights = by.score(torch.tanh(by.says(keys))).softmax(dim=1)
    return weights[..., 0], (weights * keys).sum(dim=1)


def with_places(by, query, keys):
    return pooled(by, query, keys + by.place)


def with_made_places(by, query, keys):
    return pooled(by, query, keys + torch.arange(M)[:, None] / torch.arange(1, WIDTH + 1))


def with_a_mask(by, query, keys):
    return pooled(by, query, keys.masked_fill(torch.arange(WIDTH) < 2, 0.0))


def less_a_constant(by, query, keys):
    return pooled(by, query, keys - torch.arange(float(WIDTH)))


def less_their_largest(by, query, keys):
    scores = by.score(torch.tanh(by.says(keys)))
    weights = ((scores - scores.amax(1, keepdim=True)) / torch.tensor([2.0])).softmax(dim=1)
    return weights[..., 0], (weights * keys).sum(dim=1)


POOLS = [pooled, with_places, with_made_places, with_a_mask, less_a_constant, less_their_largest]


def after_a_norm(by, query, keys):
    """What came of a query before a norm is a part of the tokens."""
    return pooled(by, query, nn.functional.layer_norm(keys + query[:, None], (WIDTH,)))


@pytest.mark.filterwarnings("ignore:attention of Additive was not recorded")
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("does", [*POOLS, after_a_norm])
def test_pools_have_none(does, texts):
    given = [torch.randn(texts, WIDTH), torch.randn(texts, M, WIDTH)]
    assert not looked_at(Additive(does), *given, missed={"Additive": "no queries"})
