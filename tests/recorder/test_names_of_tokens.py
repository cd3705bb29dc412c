"""Whose names a call shows in models of one's own: those of the ids that its axes came from."""

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, Attends, N, named
from looked import WIDTH, D, H, looked_at
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import heedful


class Changes(Attends):
    """Attends after a change of the vectors; `side` is what is changed."""

    def __init__(self, change, side):
        super().__init__()
        self.change, self.side = change, side

    def forward(self, ids):
        x = self.table(ids)
        y = self.change(x)
        return self.attend(*{"both": (y, y), "keys": (x, y), "queries": (y, x)}[self.side])


def assigned(x):
    y = torch.zeros_like(x)
    y[:, 1:] = x[:, :-1]
    return y


def swapped(x):
    y, half = torch.zeros_like(x), x.shape[1] // 2
    y[:, :half], y[:, half:] = x[:, half:], x[:, :half]
    return y


def scattered(x):
    order = torch.arange(N).flip(0)[None, :, None].expand_as(x)
    return torch.zeros_like(x).scatter(1, order, x)


def half_of(x):
    return x.unflatten(1, (-1, 2)).mean(2)


ELSEWHERE = {
    "assigned": assigned,
    "halves swapped": swapped,
    "scattered": scattered,
    "copied by index": lambda x: torch.zeros_like(x).index_copy(1, torch.arange(N).flip(0), x),
    "by a matrix": lambda x: torch.eye(N).flip(0) @ x,
    "stacked from the last": lambda x: torch.stack([x[:, i] for i in reversed(range(N))], 1),
    "after a prefix, cut": lambda x: torch.cat([torch.ones(len(x), 2, WIDTH), x], 1)[:, :N],
    "means, twice": lambda x: torch.cat([half_of(x), half_of(x)], 1),
    "mixed": lambda x: torch.fft.fft(x, dim=1).real,
}


@pytest.mark.parametrize("side", ["both", "keys", "queries"])
@pytest.mark.parametrize("way", ELSEWHERE)
def test_vectors_that_were_followed_to_no_place_have_no_names(way, side):
    for ids in (IDS, IDS[:1]):
        recording = looked_at(Changes(ELSEWHERE[way], side), ids, tokenizer=named)
        assert recording[0].shape == (H, N, N)
        assert recording[0].query_tokens is recording[0].key_tokens is None


@pytest.mark.parametrize(
    "change", [lambda x: x, lambda x: x * 2 + 1, lambda x: x + torch.ones(N, 1)]
)
def test_vectors_in_their_places_have_the_names_of_their_ids(change):
    recording = looked_at(Changes(change, "keys"), IDS, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == named(IDS[b])


def test_channels_have_no_names_even_if_there_are_as_many_as_tokens():
    class Channels(Attends):
        def forward(self, ids):
            x = self.table(ids)
            query, key = (
                one(x).unflatten(-1, (H, D)).permute(0, 2, 3, 1) for one in (self.asks, self.says)
            )
            return (query @ key.mT).softmax(-1) @ key

    recording = looked_at(Channels(), IDS[:1, :D], tokenizer=named)
    assert recording[0].shape == (H, D, D)
    assert recording[0].query_tokens is recording[0].key_tokens is None


class Two(Attends):
    """Two texts, each for itself, and each asks the other; the source may be changed for that."""

    def __init__(self, change=lambda x: x):
        super().__init__()
        self.change = change

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        each = self.attend(x, x), self.attend(y, y)
        return *each, self.attend(y, self.change(x)), self.attend(x, y)


@pytest.mark.parametrize("length", [N, N - 1])
def test_each_of_two_texts_has_its_own_names(length):
    recording = looked_at(Two(), IDS, OTHERS[:, :length], tokenizer=named)
    for b, (first, second, cross, back) in enumerate(recording.sequences):
        source, target = named(IDS[b]), named(OTHERS[b, :length])
        assert first.query_tokens == first.key_tokens == source
        assert second.query_tokens == second.key_tokens == target
        assert (cross.query_tokens, cross.key_tokens) == (target, source)
        assert (back.query_tokens, back.key_tokens) == (source, target)
        assert [one.kind for one in (first, second, cross, back)] == ["self"] * 2 + ["cross"] * 2


def test_a_text_that_was_moved_has_no_names_beside_another():
    model = Two(lambda x: x.flip(1))
    cross = looked_at(model, IDS[:1], OTHERS[:1, : N - 1], tokenizer=named)[2]
    assert cross.shape == (H, N - 1, N)
    assert cross.key_tokens is None


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("is_known", [True, False])
def test_flex_attention_of_ones_own_has_the_names_that_were_followed(is_known):
    class Flex(Attends):
        def forward(self, ids):
            x = self.table(ids)
            x = x if is_known else x.flip(1)
            query, key = (
                one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
            )
            return flex_attention(query, key, key)

    with torch.no_grad(), heedful.record(model := Flex(), tokenizer=named) as recording:
        model(IDS[:1])
    assert recording[0].key_tokens == (named(IDS[0]) if is_known else None)


def test_whole_numbers_of_another_name_are_not_taken_for_tokens():
    class Timed(Attends):
        def forward(self, tokens, times):
            x, y = self.table(tokens), self.table(times)
            return self.attend(x, x), self.attend(y, y)

    first, second = looked_at(Timed(), IDS[:1], OTHERS[:1], tokenizer=named)
    assert first.key_tokens == named(IDS[0])
    assert second.key_tokens is None


class Fused(nn.Module):
    """Layers of torch's own, which run as one kernel where no gradient is asked for."""

    def __init__(self, change, kind):
        super().__init__()
        self.table, self.change = nn.Embedding(80, 8), change
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2) if kind == "encoder" else None
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids, padding):
        x, padding = self.change(self.table(ids)), self.change(padding)
        if self.encode is not None:
            return self.encode(x, src_key_padding_mask=padding)
        return self.attend(x, x, x, key_padding_mask=padding)[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["encoder", "attention"])
@pytest.mark.parametrize("pads", [0, 2])
def test_fused_layers_are_followed_to_texts_and_tokens(kind, pads):
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, N - pads :] = True
    for change, is_known in ((lambda x: x, True), (lambda x: x.flip(1), False)):
        model = Fused(change, kind).eval()
        with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
            model(IDS, padding)
        assert len(recording) == (2 if kind == "encoder" else 1)
        assert {call.proof for calls in recording.sequences for call in calls} == {"proved"}
        for b, calls in enumerate(recording.sequences):
            expected = named(IDS[b, ~padding[b]]) if is_known else None
            assert all(call.key_tokens == expected for call in calls)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_texts_that_fused_layers_were_given_in_another_order_are_not_proved():
    model = Fused(lambda x: x.flip(0), "encoder").eval()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model(IDS, torch.zeros(2, N, dtype=torch.bool))
    assert {call.proof for call in recording} == {"assumed"}
    assert "'flip' put texts in other places" in recording[0].why
    assert recording[0].key_tokens is None


def test_a_model_of_transformers_inside_another_is_asked_what_it_reads():
    config = transformers.BertConfig(
        vocab_size=80,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = transformers.BertModel(config)

        def forward(self, input_ids, other_ids):
            shifted = input_ids.new_zeros(input_ids.shape)
            shifted[:, 1:] = input_ids[:, :-1]
            return [self.bert(input_ids=one)[0] for one in (input_ids, other_ids, shifted)]

    first, second, third = looked_at(Pair(), IDS[:1], OTHERS[:1], tokenizer=named)
    assert first.key_tokens == named(IDS[0])
    assert second.key_tokens == named(OTHERS[0])
    assert third.key_tokens == ["t0", *named(IDS[0, :-1])]


def test_means_that_ask_what_they_are_of_are_no_text_that_has_grown():
    class Landmarks(Attends):
        def forward(self, ids):
            x = self.table(ids)
            few = half_of(x)
            return self.attend(x, few), self.attend(few, x)

    calls = looked_at(Landmarks(), IDS[:1], tokenizer=named)
    assert [call.kind for call in calls] == ["cross", "cross"]
    assert [call.query_tokens for call in calls] == [named(IDS[0]), None]
    assert [call.key_tokens for call in calls] == [None, named(IDS[0])]


@pytest.mark.parametrize("items", [2, 3])
@pytest.mark.parametrize("form", ["vectors", "one row each", "dicts"])
def test_items_of_a_list_are_texts_of_which_the_calls_do_not_tell(items, form):
    class Goes(Attends):
        def forward(self, several):
            if form == "dicts":
                several = [one["x"] for one in several]
            return [self.attend(one.view(1, -1, WIDTH), one.view(1, -1, WIDTH)) for one in several]

    several = [torch.randn(4 + i, WIDTH) for i in range(items)]
    if form == "one row each":
        several = [one[None] for one in several]
    if form == "dicts":
        several = [{"x": one} for one in several]
    recording = looked_at(Goes(), several)
    assert [call.shape for call in recording] == [(H, 4 + i, 4 + i) for i in range(items)]
    for call in recording:
        assert call.proof == "assumed"
        assert f"the number of texts is {items}" in call.why


@pytest.mark.parametrize("way", ["among tokens", "no transpose"])
def test_pieces_of_features_on_both_sides_are_not_sure_to_be_heads(way):
    class Pieces(Attends):
        def forward(self, ids):
            x = self.table(ids)
            shape = (len(x), N * H, D) if way == "among tokens" else (len(x), H, N, D)
            query, key = (one(x).reshape(shape) for one in (self.asks, self.says))
            return (query @ key.mT).softmax(-1) @ key

    for call in looked_at(Pieces(), IDS[:1], tokenizer=named):
        assert call.proof == "assumed"
        assert call.key_tokens is None
