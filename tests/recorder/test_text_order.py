"""Which sequence is which text, where a model puts its texts in another order.

In training mode, where torch's own layer takes no kernel for all of it.
"""

import pytest
import torch
import transformers
from torch import nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.recorder.following import scores
from heedful.recorder.following.alignment import Atom
from heedful.recorder.following.strides import Axis, Part
from heedful.recorder.owners.text_order import parts_of

B, WIDTH, H = 4, 8, 2
PLACES = torch.tensor([2, 3, 0, 1])


class Torchs(nn.Module):
    """`nn.MultiheadAttention` of texts that `order` puts somewhere."""

    def __init__(self, order):
        super().__init__()
        self.order, self.attend = order, nn.MultiheadAttention(WIDTH, H, batch_first=True)

    def maps(self, x):
        """(B, H, N, N), of each text by itself."""
        return torch.stack([self.attended(one[None])[1][0] for one in x])

    def attended(self, x):
        return self.attend(x, x, x, average_attn_weights=False)

    def forward(self, x):
        return self.attended(self.order(x))


class ByHand(Torchs):
    """The same with a softmax between two products."""

    def __init__(self, order):
        super().__init__(order)
        self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def attended(self, x):
        query, key = (f(x).unflatten(-1, (H, -1)).transpose(1, 2) for f in (self.asks, self.says))
        weights = (query @ key.mT).softmax(-1)
        return weights @ key, weights


def recorded(model, x):
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    assert not recording.missed
    return recording, model.maps(x).detach()


def shown(recording, maps):
    """Which text each sequence shows."""
    return [
        next(b for b, one in enumerate(maps) if torch.allclose(call.weights(), one, atol=1e-5))
        for [call] in recording.sequences
    ]


def halves(x):
    moved = x.clone()
    moved[:2], moved[2:] = x[2:], x[:2]
    return moved


def one_by_one(x):
    moved = x.clone()
    for place, text in enumerate(PLACES.tolist()):
        moved[place] = x[text]
    return moved


def put(x):
    moved = x.clone()
    moved[PLACES] = x
    return moved


def pasted(x):
    moved = x.clone()
    return moved.copy_(x.flip(0))


IN_ORDER = {
    "as they came": lambda x: x,
    "pairs": lambda x: x.view(2, 2, *x.shape[1:]).transpose(0, 1).reshape(x.shape),
    "an axis of them that is split": lambda x: x.view(2, 2, *x.shape[1:]).flatten(0, 1) * 2,
    "halves of one storage": lambda x: torch.cat(x.chunk(2)),
    "taken apart and put together": lambda x: torch.stack(x.unbind()),
    "slices that are put together": lambda x: torch.stack([x[text] for text in range(len(x))]),
    "unequal pieces": lambda x: torch.cat([x[:1], x[1:]]),
    "rows": lambda x: torch.cat([x[text] for text in range(len(x))]).view(x.shape),
    "positions turned round": lambda x: torch.stack([x[:, n] for n in range(len(x[0]))][::-1], 1),
    "a token put in": lambda x: put_in(x, (slice(None), 0), torch.ones(WIDTH)),
    "tokens hidden by a mask": lambda x: put_in(x, x[..., 0] > 0.5, torch.ones(WIDTH)),
    "positions rolled": lambda x: x.roll(1, dims=1),
    "positions gathered": lambda x: x.gather(
        1, torch.arange(x.shape[1]).flip(0)[None, :, None].expand(x.shape)
    ),
    "a copy of all": lambda x: x.clone().copy_(x),
}
MOVED = {
    "index_put": put,
    "index_copy": lambda x: x.clone().index_copy_(0, PLACES, x),
    "copy": halves,
    "copy, one by one": one_by_one,
    "flip, copied": pasted,
    "index": lambda x: x[PLACES],
    "index_select": lambda x: x.index_select(0, PLACES),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, dims=0),
    "cat": lambda x: torch.cat([x[2:], x[:2]]),
    "cat, unequal": lambda x: torch.cat([x[3:], x[:3]]),
    "cat, one by one": lambda x: torch.cat([x[text : text + 1] for text in PLACES]),
    "cat, rows": lambda x: torch.cat([x[text] for text in PLACES]).view(x.shape),
    "stack": lambda x: torch.stack([x[text] for text in PLACES]),
    "stack, the other way round": lambda x: torch.stack(x.unbind()[::-1]),
    "stack, as the second": lambda x: torch.stack([x[text] for text in PLACES], 1).transpose(0, 1),
    "flip, chosen": lambda x: torch.where(torch.ones(B, 1, 1) > 0, x.flip(0), x),
    "gather": lambda x: x.gather(0, PLACES[:, None, None].expand(x.shape)),
    "scatter": lambda x: x.scatter(0, PLACES[:, None, None].expand(x.shape), x),
    "flip_, into": lambda x: torch.ops.aten.flip.out(x, [0], out=x.clone()),
}  # fmt: skip


def put_in(x, places, tokens):
    x = x.clone()
    x[places] = tokens
    return x


@pytest.mark.parametrize("length", [5, B, H])
@pytest.mark.parametrize("kind", [Torchs, ByHand])
@pytest.mark.parametrize("way", IN_ORDER)
def test_an_axis_of_texts_that_was_followed_gives_them_in_their_order(way, kind, length):
    model, x = kind(IN_ORDER[way]), torch.randn(B, length, WIDTH)
    recording, _ = recorded(model, x)
    with torch.no_grad():
        inner = IN_ORDER[way](x)
        inner = inner if way != "pairs" else x
    assert shown(recording, model.maps(inner)) == list(range(B))
    assert recording[0].proof == ("proved" if kind is Torchs else "assumed")


@pytest.mark.parametrize("length", [5, B, H])
@pytest.mark.parametrize("kind", [Torchs, ByHand])
@pytest.mark.parametrize("way", MOVED)
def test_texts_that_an_operation_put_elsewhere_are_in_no_known_order(way, kind, length):
    model, x = kind(MOVED[way]), torch.randn(B, length, WIDTH)
    recording, maps = recorded(model, x)
    assert sorted(shown(recording, maps)) == list(range(B))
    for [call] in recording.sequences:
        assert call.proof == "assumed"
        name = way.split(",")[0].rstrip("_")
        assert f"as {name!r} put texts in other places" in call.why


@pytest.mark.parametrize("kind", [Torchs, ByHand])
@pytest.mark.parametrize("way", [*IN_ORDER, *MOVED])
def test_one_text_has_no_order(way, kind):
    order = {**IN_ORDER, **MOVED}[way]

    def alone(x):
        return x if len(x) == 1 else order(x)

    model, x = kind(alone), torch.randn(1, 5, WIDTH)
    recording, maps = recorded(model, x)
    assert (shown(recording, maps), recording[0].proof) == ([0], "proved")


@pytest.mark.parametrize("kind", [Torchs, ByHand])
@pytest.mark.parametrize("sizes", [(3, 4), (2, 5), (3, 3)])
def test_axes_of_an_image_that_is_split_and_put_together(kind, sizes):
    """Texts of four axes, of which nothing tells features, in pieces that change places."""

    def order(x):
        return torch.cat([x[2:], x[:2]]).flatten(2).mT

    model, x = kind(order), torch.randn(B, WIDTH, *sizes)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    assert {call.proof for [call] in recording.sequences} == {"assumed"}
    assert "'cat' put texts in other places" in recording[0].why


@pytest.mark.parametrize("kind", [Torchs, ByHand])
@pytest.mark.parametrize("texts", [2, 3])
def test_the_same_texts_twice_are_sequences_of_each_text(texts, kind):
    """As guidance has them: with a condition and without it, in one batch."""
    model, x = kind(lambda x: torch.cat([x, x + 1])), torch.randn(texts, 5, WIDTH)
    recording, _ = recorded(model, x)
    both = model.maps(torch.stack([x, x + 1], dim=1).flatten(0, 1)).detach()
    assert shown(recording, both) == list(range(2 * texts))
    assert recording[0].proof == "assumed"


ANY_TYPE = {  # of MOVED, what goes with ids too
    name: MOVED[name]
    for name in ("index", "index_select", "flip", "roll", "cat", "cat, unequal", "cat, one by one",
                 "stack", "stack, the other way round", "copy", "index_put", "flip, copied")
}  # fmt: skip
SAME = {
    name: IN_ORDER[name]
    for name in ("as they came", "halves of one storage", "slices that are put together",
                 "unequal pieces", "taken apart and put together")
}  # fmt: skip


class OfIds(ByHand):
    """Texts that `order` puts somewhere while they are ids."""

    def __init__(self, order):
        super().__init__(order)
        self.table = nn.Embedding(30, WIDTH)

    def attended(self, ids):
        return super().attended(self.table(ids))


class Bert(nn.Module):
    """A model of transformers, which is given its texts in the order that `order` puts them in."""

    def __init__(self, order, kind="sdpa"):
        super().__init__()
        sizes = {"hidden_size": WIDTH, "num_attention_heads": H, "intermediate_size": 7}
        config = transformers.BertConfig(vocab_size=30, num_hidden_layers=1, **sizes)
        made = transformers.BertModel._from_config(config, attn_implementation=kind)
        self.order, self.inner = order, made.eval()

    def maps(self, ids):
        with torch.no_grad(), heedful.record(self.inner) as recording:
            self.inner(ids)
        return torch.stack([call.weights() for [call] in recording.sequences])

    def forward(self, ids):
        return self.inner(input_ids=self.order(ids)).last_hidden_state


class Eager(Bert):
    def __init__(self, order):
        super().__init__(order, "eager")


class Ours(Bert):
    """A model of heedful's."""

    def __init__(self, order):
        nn.Module.__init__(self)
        sizes = {"width": WIDTH, "layers": 1, "heads": H, "context_length": 9}
        self.order, self.inner = order, GPT(GPTConfig(vocabulary=30, **sizes)).eval()

    def forward(self, ids):
        return self.inner(self.order(ids))


@pytest.mark.parametrize("length", [5, B])
@pytest.mark.parametrize("kind", [OfIds, Bert, Eager, Ours])
@pytest.mark.parametrize("way", [*ANY_TYPE, *SAME])
def test_ids_of_texts_are_followed_into_a_model_that_another_one_holds(way, kind, length):
    order = {**ANY_TYPE, **SAME}[way]
    model, ids = kind(order), torch.randperm(B * length).view(B, length)
    recording, maps = recorded(model, ids)
    if way in SAME:
        assert shown(recording, maps) == list(range(B))
        assert recording[0].proof == ("assumed" if kind is OfIds else "proved")
        return
    assert shown(recording, maps) == order(torch.arange(B)[:, None]).flatten().tolist()
    for [call] in recording.sequences:
        assert call.proof == "assumed"
        assert f"as {way.split(',')[0]!r} put texts in other places" in call.why


@pytest.mark.parametrize("kind", [Bert, Ours])
def test_texts_stand_second_where_a_model_that_another_one_holds_was_given_them_turned(kind):
    """As many positions as texts: sizes tell nothing, and it is followed."""
    model, ids = kind(lambda ids: ids.T), torch.randperm(B * B).view(B, B)
    recording, _ = recorded(model, ids.T)
    assert shown(recording, model.maps(ids)) == list(range(B))
    assert recording[0].proof == "proved"
    assert recording.verify(model, [ids.T]) == {"proved": 1}


def test_texts_that_are_chosen_or_put_in_twice():
    """Pieces of one storage, not each once: which is which is not known."""
    for places in ([0, 0, 1, 3], [1, 2], [3, 1]):
        model = Torchs(lambda x, at=places: torch.stack([x[text] for text in at]))
        recording, maps = recorded(model, torch.randn(B, 5, WIDTH))
        assert shown(recording, maps) == places
        assert {call.proof for [call] in recording.sequences} == {"assumed"}


def test_a_digit_of_a_digit():
    """Of an axis that counts every fourth row, the part that counts every second is of every 8."""
    rows, own = Axis(24), Axis(6)
    [part] = parts_of([Atom(own, 2, 3)], {own: (Part(rows, 4, 6, False), None)})
    assert part == Part(rows, 8, 3, False)


def test_what_weights_have_of_their_queries_is_that_of_the_side_which_is_no_copy():
    axis, copy, other = Axis(6), Axis(6, is_copy=True), Axis(6)
    real, copied, key = (Part(one, 1, 6) for one in (axis, copy, other))
    made = Axis(6)
    part = Part(made, 2, 3)

    def before(*origin):
        return scores._of_query(part, {made: origin}).axis

    assert before(real, key) is axis
    assert before(copied, key) is other
    assert before(copied, copied) is copy
    assert before(None, copied) is copy
    assert before(real, None) is axis
    assert before(None, None) is made
