"""Tokens, padding and empty slots of caches."""

import pytest
import torch
from shown_maps import recorded
from torch import nn

PLACES = torch.arange(9)
SEES = {  # whether the query at a row may attend to the key at a column
    "all before": lambda row, column: column <= row,
    "a window": lambda row, column: (column <= row) & (column > row - 3),
    "a prefix": lambda row, column: (column <= row) | (column < 2),
}


class Roomy(nn.Module):
    """A cache of nine slots. The mask hides its empty slots and the padding alike.

    x: the tokens so far; the queries are those from `start`.
    """

    def __init__(self, way="all before"):
        super().__init__()
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.way = way

    def heads(self, x):
        return [layer(x).unflatten(-1, (2, 4)).transpose(1, 2) for layer in self.projections]

    def allows(self, attention_mask, start, end):
        sees = SEES[self.way](PLACES[start:end, None], PLACES) if self.way in SEES else True
        return sees & attention_mask[:, None, None].expand(-1, 1, end - start, 9)

    def forward(self, x, attention_mask, start=0):
        query, key = self.heads(x)
        place = torch.full((*key.shape[:2], 9, 4), 0.3)  # of a text before
        place[:, :, : x.shape[1]] = key
        hidden = ~self.allows(attention_mask, start, x.shape[1])
        scores = (query[:, :, start:] @ place.mT).masked_fill(hidden, torch.finfo(x.dtype).min)
        return scores.softmax(-1) @ place


PADS = [
    *(("left", pads) for pads in ([0], [0, 0, 0], [0, 2, 3], [2])),
    *(("right", pads) for pads in ([0, 1, 2], [1])),
]


def of_cache(pads, side, start, end):
    """Whether each slot holds a real token; padding is before or after the prompt."""
    pads, prompt, places = torch.tensor(pads)[:, None], start or end, torch.arange(9)
    behind = (places < prompt) & (places >= prompt - pads)
    return (places < end) & ~(places < pads if side == "left" else behind)


def truth_of(model, x, real, start):
    """The weights of all queries of each sequence, over the keys so far."""
    heads = zip(*model.heads(x), model.allows(real, start, x.shape[1]), strict=True)
    for query, key, sees in heads:
        scores = query[:, start:].double() @ key.double().mT
        yield scores.masked_fill(~sees[..., : x.shape[1]], -torch.inf).softmax(-1).float()


PARTS = [(0, 4), (0, 5), (0, 7), (0, 8), (4, 5), (4, 8), (7, 8)]


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize(("start", "end"), PARTS)
@pytest.mark.parametrize(("side", "pads"), PADS)
@pytest.mark.parametrize("way", SEES)
def test_a_mask_as_long_as_a_cache_with_empty_slots(way, side, pads, start, end, behind):
    """The mask marks them as padding, or as tokens to which no query attends yet."""
    model, x = Roomy(way), torch.randn(len(pads), end, 8)
    real = of_cache(pads, side, start, end)
    recording = recorded(model, x, real | (behind & (PLACES - end >= 0)), start)
    assert recording.missed == {}
    truth = truth_of(model, x, real, start)
    for (call,), keep, map_ in zip(recording.sequences, real, truth, strict=True):
        expected = map_[:, keep[start:end]][..., keep[:end]]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("start", "end"), PARTS)
@pytest.mark.parametrize(("side", "pads"), PADS)
def test_without_a_mask_of_positions_no_query_is_removed(side, pads, start, end):
    model, x = Roomy("all"), torch.randn(len(pads), end, 8)
    real = of_cache(pads, side, start, end)
    recording = recorded(model, x, real, start)
    for (call,), keep, map_ in zip(
        recording.sequences, real, truth_of(model, x, real, start), strict=True
    ):
        expected = map_[..., keep[:end]]
        if call.shape[1] < end - start:  # the last token of the mask is that of the last query
            expected = expected[:, keep[start:end]]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=1e-5)


def test_a_step_of_texts_of_unequal_lengths():
    """Each text is written to its own slot, and attends to its tokens so far."""
    model, x = Roomy("all"), torch.randn(3, 8, 8)
    real = torch.tensor([4, 6, 3])[:, None] > PLACES
    recording = recorded(model, x, real, 7)
    for (call,), keep, map_ in zip(
        recording.sequences, real, truth_of(model, x, real, 7), strict=True
    ):
        torch.testing.assert_close(call.weights(), map_[..., keep[:8]], atol=2e-6, rtol=1e-5)
