"""Tokens, padding and empty slots of caches."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful

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
    with heedful.record(model) as recording:
        model(x, attention_mask=real | (behind & (PLACES - end >= 0)), start=start)
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
    with heedful.record(model) as recording:
        model(x, attention_mask=real, start=start)
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
    with heedful.record(model) as recording:
        model(x, attention_mask=real, start=7)
    for (call,), keep, map_ in zip(
        recording.sequences, real, truth_of(model, x, real, 7), strict=True
    ):
        torch.testing.assert_close(call.weights(), map_[..., keep[:8]], atol=2e-6, rtol=1e-5)


class Goes(Roomy):
    """Continues after four tokens, with its own mask or none."""

    def forward(self, x, past, attention_mask):
        query, key = self.heads(torch.cat([past, x], dim=1))
        sees = self.sees(attention_mask)[:, None] if self.sees else None
        return scaled_dot_product_attention(query[:, :, 4:], key, key, attn_mask=sees)


def later_hidden(real):
    """Each of the last queries may attend to real tokens up to its own."""
    rows, places = torch.arange(4, real.shape[1])[:, None], torch.arange(real.shape[1])
    return real[:, None] & (places <= rows)


def but_for_its_own(real):
    return later_hidden(real) | torch.eye(real.shape[1], dtype=torch.bool)[4:]


def both_ways(real):
    return real[:, None].expand(-1, real.shape[1] - 4, -1)


def one_ahead(real):
    rows, places = torch.arange(5, real.shape[1] + 1)[:, None], torch.arange(real.shape[1])
    return real[:, None] & (places <= rows)


GOES_ON = torch.tensor(
    [
        [1, 1, 0, 0, 1, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 0],
        [1, 0, 0, 0, 1, 0, 0, 0],
        [0, 1, 1, 1, 1, 1, 1, 1],
    ]
).bool()


def each(*texts):
    return [slice(first, last) for first, last in texts]


SECOND = {
    "own": [
        *((None, texts) for texts in each((1, 2), (0, 2), (0, 1), (2, 3))),
        (later_hidden, slice(3, 4)),
        *((but_for_its_own, texts) for texts in each((1, 2), (0, 2), (0, 1), (2, 3))),
        *((both_ways, texts) for texts in each((3, 4), (1, 4))),
        (one_ahead, slice(3, 4)),
    ],
    # they may attend to later tokens
    "all": [(sees, slice(1, 2)) for sees in (both_ways, one_ahead)],
}


@pytest.mark.parametrize(
    ("rows", "sees", "texts"), [(rows, *row) for rows, several in SECOND.items() for row in several]
)
def test_padding_at_the_end_of_a_second_part_is_not_an_empty_slot(rows, sees, texts):
    model, real = Goes(), GOES_ON[texts]
    model.sees, x = sees, torch.randn(len(real), real.shape[1], 8)
    with heedful.record(model) as recording:
        model(x[:, 4:], x[:, :4], attention_mask=real)
    assert recording.missed == {}
    for (call,), query, key, keep in zip(recording.sequences, *model.heads(x), real, strict=True):
        scores = (query[:, 4:].double() @ key.double().mT) / 2
        if sees:
            scores = scores.masked_fill(~sees(keep[None]), -torch.inf)
            scores = scores[:, keep[4:] if rows == "own" else slice(None)][..., keep]
        truth = scores.softmax(-1).float()
        torch.testing.assert_close(call.weights(), truth, atol=2e-6, rtol=1e-5)
