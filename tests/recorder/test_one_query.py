"""One query with additive scores: only its weights are recorded; a pool has no keys."""

import pytest
import torch
from shown_maps import WIDTH, B, M, looked_at, near
from torch import nn

from heedful.recorder.doors import tape_inputs
from heedful.recorder.missed_modules import NOTHING


class Additive(nn.Module):
    """Scores v · tanh(W q + U k) of one query (texts, WIDTH) and keys (texts, M, WIDTH)."""

    def __init__(self, does):
        super().__init__()
        self.does = does
        self.asks, self.says = nn.Linear(WIDTH, 6), nn.Linear(WIDTH, 6)
        self.both, self.score = nn.Linear(2 * WIDTH, 6), nn.Linear(6, 1, bias=False)

    def forward(self, query, keys):
        return self.does(self, query, keys) @ keys

    def weights(self, query, keys):
        """Weights (texts, 1, M), as in Bahdanau et al., with an axis for the single query."""
        scores = self.score((self.asks(query)[:, None] + self.says(keys)).tanh())
        return scores.mT.softmax(-1)

    def beside(self, query, keys):
        """The same weights, with the query repeated for each key."""
        many = query[:, None].repeat(1, keys.shape[1], 1)
        return self.score(self.both(torch.cat([many, keys], dim=2)).tanh()).mT.softmax(-1)


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("does", [Additive.weights, Additive.beside])
def test_weights_of_one_query_are_recorded(does, texts):
    model, inputs = Additive(does), [torch.randn(texts, WIDTH), torch.randn(texts, M, WIDTH)]
    recording = looked_at(model, *inputs)
    expected = does(model, *inputs)[:, None].detach()
    for _ in range(2):
        assert len(recording.sequences) == texts
        for [call], weights in zip(recording.sequences, expected, strict=True):
            assert (call.door, call.proof, call.layout) == (tape_inputs.ALONE, "proved", "guessed")
            assert call.why == "its scores are not a product of queries and keys"
            near(call.weights(), weights)
        recording.verify(model, inputs)  # which changes nothing


@pytest.mark.parametrize("texts", [1, B])
def test_a_sum_of_weighted_values_is_not_a_product(texts):
    class Pool(Additive):
        def forward(self, query, keys):
            return (self.weights(query, keys).mT * keys).sum(1)

    inputs = [torch.randn(texts, WIDTH), torch.randn(texts, M, WIDTH)]
    assert not looked_at(Pool(None), *inputs, missed={"Pool": NOTHING})
