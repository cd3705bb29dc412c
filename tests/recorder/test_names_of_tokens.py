"""Token labels in custom models: those of the ids, by position, or none."""

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, Attends, N, named
from shown_maps import D, H, looked_at
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import heedful


class Changes(Attends):
    """Attends to vectors that were changed."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, ids):
        x = self.table(ids)
        return self.attend(x, self.change(x))


def half_of(x):
    return x.unflatten(1, (-1, 2)).mean(2)


@pytest.mark.parametrize(
    "change", [lambda x: x, lambda x: x * 2 + 1, lambda x: x + torch.ones(N, 1)]
)
def test_vectors_at_their_positions_have_the_labels_of_their_ids(change):
    recording = looked_at(Changes(change), IDS, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == named(IDS[b])


def test_channels_have_no_labels():
    class Channels(Attends):
        def forward(self, ids):
            x = self.table(ids)
            query, key = (
                lin(x).unflatten(-1, (H, D)).permute(0, 2, 3, 1) for lin in (self.asks, self.says)
            )
            return (query @ key.mT).softmax(-1) @ key

    recording = looked_at(Channels(), IDS[:1], tokenizer=named, axes={"Channels": "b h n d"})
    assert recording[0].shape == (H, D, D)
    assert recording[0].query_tokens is recording[0].key_tokens is None


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_flex_attention_of_the_user_has_labels():
    class Flex(Attends):
        def forward(self, ids):
            x = self.table(ids)
            query, key = (
                layer(x).unflatten(-1, (H, D)).transpose(1, 2) for layer in (self.asks, self.says)
            )
            return flex_attention(query, key, key)

    with torch.no_grad(), heedful.record(model := Flex(), tokenizer=named) as recording:
        model(IDS[:1])
    assert recording[0].key_tokens == named(IDS[0])


class Fused(nn.Module):
    """Encoder layers of torch, which run as one kernel without gradients."""

    def __init__(self, kind):
        super().__init__()
        self.table = nn.Embedding(80, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2) if kind == "encoder" else None
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids, padding):
        x = self.table(ids)
        if self.encode is not None:
            return self.encode(x, src_key_padding_mask=padding)
        return self.attend(x, x, x, key_padding_mask=padding)[0]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["encoder", "attention"])
@pytest.mark.parametrize("pads", [0, 2])
def test_fused_layers_have_labels_without_padding(kind, pads):
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, N - pads :] = True
    with torch.no_grad(), heedful.record(model := Fused(kind).eval(), tokenizer=named) as recording:
        model(IDS, padding)
    assert len(recording) == (2 if kind == "encoder" else 1)
    for b, calls in enumerate(recording.sequences):
        for call in calls:
            assert (call.proof, call.key_tokens) == ("proved", named(IDS[b, ~padding[b]]))


def test_the_ids_are_those_of_the_model_of_transformers_inside_another():
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
            return [self.bert(input_ids=ids)[0] for ids in (input_ids, other_ids, shifted)]

    first, second, third = looked_at(Pair(), IDS[:1], OTHERS[:1], tokenizer=named)
    assert first.key_tokens == named(IDS[0])
    assert second.key_tokens == named(OTHERS[0])
    assert third.key_tokens == ["t0", *named(IDS[0, :-1])]


def test_means_of_tokens_as_queries_are_not_a_growing_cache():
    class Landmarks(Attends):
        def forward(self, ids):
            x = self.table(ids)
            few = half_of(x)
            return self.attend(x, few), self.attend(few, x)

    calls = looked_at(Landmarks(), IDS[:1], tokenizer=named)
    assert [call.kind for call in calls] == ["cross", "cross"]
    assert calls[0].key_tokens is calls[1].query_tokens is None
    assert calls[1].key_tokens in (None, named(IDS[0]))


def test_slices_of_features_have_no_labels():
    class Pieces(Attends):
        def forward(self, ids):
            x = self.table(ids)
            query, key = (layer(x).view(len(x), N * H, D) for layer in (self.asks, self.says))
            return (query @ key.mT).softmax(-1) @ key

    [call] = looked_at(Pieces(), IDS[:1], tokenizer=named)
    assert call.shape == (1, N * H, N * H)
    assert call.key_tokens is None
