"""The axes of a call: in the usual order, as passed by the user, or refused."""

import pytest
import torch
from shown_maps import WIDTH, Heads, looked_at, near, recorded, weighed
from torch import nn

from heedful.errors import ArgumentError
from heedful.recorder.axes.usual_order import (
    BLOCK,
    HEADS,
    PARTS,
    TEXTS,
    Sizes,
    usual_order,
    widths_of,
)
from heedful.recorder.doors.tape_cells import BATCH, KEYS, QUERIES, Cells

N, M, D = 5, 7, 4


def ordered(beside, texts, heads=1, *, n=N, m=M, other=None, lengths=(N, M)):
    """The usual order of scores (*batch axes, n, m) with keys of width D, for a number of heads."""
    kinds = [BATCH] * len(beside) + [QUERIES, KEYS]
    rows, columns = (torch.zeros(1, dtype=torch.long) for _ in range(2))
    cells = Cells(kinds, (*beside, n, m), rows, columns, torch.zeros(n, D), torch.zeros(m, D))
    order, layout = usual_order(cells, Sizes(texts, other, {heads * D}, lengths))
    return tuple(order.count(role) for role in (TEXTS, PARTS, HEADS)), layout, order


# batch axes, number of texts, heads of the module → texts, parts, heads
RULES = [
    ((), 1, 1, (1, 1, 1)),
    ((3,), 1, 3, (1, 1, 3)),
    ((6,), 1, 1, (1, 6, 1)),
    ((2,), 2, 1, (2, 1, 1)),
    ((6,), 2, 3, (2, 1, 3)),
    ((8,), 2, 1, (2, 4, 1)),
    ((2, 3), 2, 3, (2, 1, 3)),
    ((8, 3), 2, 3, (2, 4, 3)),
    ((2, 4, 3), 2, 3, (2, 4, 3)),
]


@pytest.mark.parametrize(("beside", "texts", "heads", "counts"), RULES)
def test_the_first_rule_that_fits_determines_the_roles(beside, texts, heads, counts):
    result, layout, order = ordered(beside, texts, heads)
    assert (result, layout) == (counts, ("usual", ""))
    table = torch.rand(*beside, N, M)
    texts, parts, heads = counts
    assert torch.equal(order.arrange(table), table.reshape(texts * parts, heads, N, M))


GUESSED = [  # the other roles that the axes may have
    (((2, 3), None, 3), {}, "the number of texts is unknown"),
    (((4, 3), 4, 3), {"other": 2}, "there may be 2 texts and not 4, by the sizes of the inputs"),
    (((3,), 1, 3), {"n": 14, "lengths": (7,)}, "the 14 queries may be 2 heads of 7 queries"),
    (((3,), 1, 3), {"m": 1}, BLOCK),
    (((3,), 1, 3), {"lengths": (30,)}, "no input of the module has 5 rows, the number of queries"),
    (((24,), 2, 3), {}, "texts × parts × heads are in one axis"),
    (((2, 6), 2, 3), {}, "its heads together are twice as wide as the module"),
]


@pytest.mark.parametrize(("inputs", "more", "why"), GUESSED)
def test_a_layout_is_guessed_if_several_orders_fit(inputs, more, why):
    _, layout, _ = ordered(*inputs, **more)
    assert layout.word == "guessed"
    assert why in layout.why


REFUSED = [
    ((5, 2), 2, 2),
    ((3, 2), 2, 3),
    ((2, 4, 5), 2, 3),
    ((3, 4, 3), 2, 3),
    ((1, 2, 3, 4), 1, 4),
]


@pytest.mark.parametrize(("beside", "texts", "heads"), REFUSED)
def test_axes_that_fit_no_rule_raise_an_error_with_a_remedy(beside, texts, heads):
    with pytest.raises(ArgumentError, match=r"axes=, or call recording.verify"):
        ordered(beside, texts, heads)


def test_widths_are_read_without_computing_parametrized_weights():
    layers = nn.Sequential(
        nn.Linear(3, 6), nn.Conv1d(6, 8, 1), nn.Embedding(11, 5), nn.LayerNorm(9)
    )
    assert widths_of(layers) == {3, 6, 8}
    norm = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 6))
    before = [buffer.clone() for buffer in norm.buffers()]
    assert widths_of(norm) == {3, 6}
    assert all(map(torch.equal, norm.buffers(), before))


def attention(query, key):
    return (query @ key.mT).softmax(-1) @ key


def arranged(how):
    """Attention of queries and keys (b, h, n, d), which `how` permutes first."""
    if how is queries_first:
        return how
    return lambda query, key: attention(how(query), how(key))


def queries_first(query, key):
    """Scores (b, n, h, m) of queries (b, n, h, d)."""
    query, key = query.transpose(1, 2), key.transpose(1, 2)
    weights = torch.einsum("bnhd,bmhd->bnhm", query, key).softmax(-1)
    return torch.einsum("bnhm,bmhd->bnhd", weights, key)


def windows(x):
    return x.unflatten(2, (2, 3)).permute(0, 2, 1, 3, 4)  # b w h n d


ORDERS = {  # the axes of a query, and how to permute (b, h, n, d) to them
    "b h n d": lambda x: x,
    "(b h) n d": lambda x: x.flatten(0, 1),
    "(h b) n d": lambda x: x.transpose(0, 1).flatten(0, 1),
    "h b n d": lambda x: x.transpose(0, 1),
    "b n h d": queries_first,
    "(b w) h n d": lambda x: windows(x).flatten(0, 1),
    "b w h n d": windows,
    "(w b) h n d": lambda x: windows(x).transpose(0, 1).flatten(0, 1),
}
USUAL = ("b h n d", "(b h) n d", "b n h d", "(b w) h n d", "b w h n d")


def maps_of(model, x, order):
    query, key = model.heads(x)
    if "w" in order:
        return weighed(windows(query), windows(key))  # (b, w, h, n, m)
    return weighed(query, key)[:, None]


def are_those(recording, maps):
    """Check the maps of the parts of each text."""
    assert recording.missed == {}
    for text, parts in zip(recording.sequences, maps, strict=True):
        [call] = text
        assert (call.batch, len(call.parts), len(text.parts)) == (2, len(parts), len(parts))
        for number, (part, weights) in enumerate(zip(call.parts, parts, strict=True)):
            assert (part.part, part.proof) == (number, "proved")
            near(part.weights(), weights)
            near(call.weights(part=number), weights)


@pytest.mark.parametrize("order", ORDERS)
def test_the_usual_order_needs_no_verify_but_others_do(order):
    model, x = Heads(arranged(ORDERS[order]), heads=3), torch.randn(2, 6, WIDTH)
    recording = looked_at(model, x, missed=None)
    maps = maps_of(model, x, order)
    if order in USUAL:
        are_those(recording, maps)
        assert {call.layout for [call] in recording.sequences} == {"usual"}
    assert recording.verify(model, x) == {"verified": 1}
    are_those(recording, maps)


def test_a_missing_part_raises_one_line():
    model = Heads(arranged(windows), heads=3)
    [call] = looked_at(model, torch.randn(1, 6, WIDTH))
    with pytest.raises(ArgumentError, match="part 2; expected part 0 to 1"):
        call.weights(part=2)
    assert "part 0 of 2" in repr(call)


class Odd(nn.Module):
    """Five heads; their total width is not the width of any layer of the module."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, D)

    def forward(self, x):
        return attention(x, x)


def test_a_refused_layout_is_missed_unless_axes_are_passed():
    x = torch.randn(2, 5, N, D)
    recording = recorded(model := Odd(), x)
    with pytest.warns(UserWarning, match="attention of Odd was not recorded"):
        assert len(recording) == 0
    assert "axes=" in recording.missed["Odd"]
    recording = looked_at(model, x, axes={"Odd": "b h n d"})
    near(torch.stack([call.weights() for [call] in recording.sequences]), weighed(x, x))
