"""Token labels in custom models, beside other texts and caches: those of their text, or none."""

import weakref

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, Attends, N, named
from shown_maps import WIDTH, D, H, looked_at, recorded
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

import heedful

TINY = {"vocab_size": 99, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 = transformers.GPT2Config(**TINY, bos_token_id=0, eos_token_id=0)


def labelled(recording, ids):
    """Assert that queries and keys of the only call have the labels of these ids (texts, N)."""
    for text, [call] in zip(ids, recording.sequences, strict=True):
        assert call.query_tokens == call.key_tokens == named(text)


class Pair(Attends):
    """Self-attention in two texts, and cross-attention from the second to the first."""

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        return self.attend(x, x), self.attend(y, y), self.attend(y, x)


@pytest.mark.parametrize("length", [N, N - 2])
@pytest.mark.parametrize("texts", [1, 2])
def test_two_texts_are_not_labelled_with_each_others_tokens(texts, length):
    source, target = IDS[:texts], OTHERS[:texts, :length]
    recording = looked_at(Pair(), source, target, tokenizer=named)
    for b, (first, second, cross) in enumerate(recording.sequences):
        names = None if length == N else named(source[b])  # of equal lengths, the text is ambiguous
        assert first.query_tokens == first.key_tokens == names
        assert second.key_tokens is second.query_tokens is None
        assert cross.query_tokens in (None, named(target[b]))
        assert cross.key_tokens in (None, named(source[b]))


def test_ids_that_are_passed_twice_label_their_tokens():
    for call in looked_at(Pair(), IDS[:1], IDS[:1], tokenizer=named):
        assert call.query_tokens == call.key_tokens == named(IDS[0])


class Asks(Attends):
    def forward(self, x, y):
        return self.attend(x, y).transpose(1, 2).flatten(2)


class OwnSeq2Seq(nn.Module):
    """A custom encoder and decoder."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(80, WIDTH)
        self.encoder, self.decoder = Asks(), nn.ModuleDict({"self": Asks(), "cross": Asks()})
        self.widen = nn.Linear(H * D, WIDTH)

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        memory = self.widen(self.encoder(x, x))
        return self.decoder["cross"](self.widen(self.decoder["self"](y, y)), memory)


@pytest.mark.parametrize("length", [N, N - 1])
def test_a_custom_decoder_has_labels_of_its_text_and_of_the_memory(length):
    recording = recorded(OwnSeq2Seq(), IDS[:1], OTHERS[:1, :length], tokenizer=named)
    source, target = named(IDS[0]), named(OTHERS[0, :length])
    names = [(call.query_tokens, call.key_tokens) for call in recording]
    assert names == [(source, source), (target, target), (target, source)]


class Few(Attends):
    """Queries that are learned, some of the tokens, or of an image."""

    def __init__(self):
        super().__init__()
        self.learned = nn.Parameter(torch.randn(1, 2, WIDTH))

    def forward(self, ids, image):
        x = self.table(ids)
        asking = (self.learned.expand(len(x), -1, -1), x[:, :1], x[:, -1:], image)
        return [self.attend(query, x) for query in asking]


@pytest.mark.parametrize("texts", [1, 2])
def test_keys_have_labels_with_any_kind_of_queries(texts):
    recording = looked_at(Few(), IDS[:texts], torch.randn(texts, 4, WIDTH), tokenizer=named)
    for b, calls in enumerate(recording.sequences):
        assert [(call.query_tokens, call.key_tokens) for call in calls] == [
            (None, named(IDS[b]))
        ] * 4


class Computes(Attends):
    """Computes queries and keys from ids, places and a mask."""

    def __init__(self, does):
        super().__init__()
        self.does, self.places = does, nn.Embedding(20, WIDTH)

    def forward(self, ids, position_ids, attention_mask):
        return self.does(self, ids, position_ids, attention_mask)


def to_itself(vectors):
    """Return a function of a model and its inputs: attention between vectors that it computes."""

    def attend(self, *inputs):
        x = vectors(self, *inputs)
        return self.attend(x, x)

    return attend


def by_flex(self, ids, at, mask):
    x = self.table(ids)
    query, key = (part(x).unflatten(-1, (H, D)).transpose(1, 2) for part in (self.asks, self.says))
    return flex_attention(query, key, key)


COMPUTED = {
    "other keys": lambda self, ids, at, mask: self.attend(
        self.table(ids), self.table(ids) * 2 + torch.ones(N, 1)
    ),
    "flex attention": by_flex,
    "places first": to_itself(lambda self, ids, at, mask: self.places(at) + self.table(ids)),
    "places last": to_itself(lambda self, ids, at, mask: self.table(ids) + self.places(at)),
    "places made": to_itself(
        lambda self, ids, at, mask: (
            self.places(torch.arange(N).expand(len(ids), -1)) + self.table(ids)
        )
    ),
    "a mask first": to_itself(lambda self, ids, at, mask: mask[..., None] * self.table(ids)),
    "by an index": to_itself(lambda self, ids, at, mask: self.table.weight[ids]),
    "an empty cache": to_itself(
        lambda self, ids, at, mask: torch.cat([torch.empty(len(ids), 0, WIDTH), self.table(ids)], 1)
    ),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", COMPUTED)
def test_labels_come_from_ids_and_not_from_other_integers(way, texts):
    places, mask = torch.arange(N).expand(texts, -1), torch.ones(texts, N, dtype=torch.long)
    model, inputs = Computes(COMPUTED[way]), (IDS[:texts], places, mask)
    with torch.no_grad():
        labelled(recorded(model, *inputs, tokenizer=named), IDS[:texts])


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


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["encoder", "attention"])
@pytest.mark.parametrize("pads", [0, 2])
def test_fused_layers_have_labels_without_padding(kind, pads):
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, N - pads :] = True
    recording = recorded(Fused(kind).eval(), IDS, padding, tokenizer=named)
    assert len(recording) == (2 if kind == "encoder" else 1)
    for b, calls in enumerate(recording.sequences):
        for call in calls:
            assert (call.proof, call.key_tokens) == ("proved", named(IDS[b, ~padding[b]]))


class Wraps(nn.Module):
    """A GPT-2 of transformers inside a custom model."""

    def __init__(self, change=torch.clone):
        super().__init__()
        self.encoder, self.decoder = nn.Identity(), transformers.GPT2LMHeadModel(GPT2)
        self.change = change

    def forward(self, ids, cache=None):
        logits = self.decoder(input_ids=self.change(ids), past_key_values=cache).logits
        self.output = weakref.ref(logits)
        return logits.mean()


MOVED = {
    "turned": lambda ids: ids.flip(1),
    "rolled": lambda ids: ids.roll(1, 1),
    "padded": lambda ids: torch.nn.functional.pad(ids, (2, 0)),
    "after a prefix": lambda ids: torch.cat([torch.ones_like(ids[:, :1]), ids], 1),
    "other texts first": lambda ids: ids.flip(0),
}


@pytest.mark.parametrize("way", MOVED)
def test_an_inner_model_has_labels_of_the_ids_that_it_was_passed(way):
    recording = looked_at(Wraps(MOVED[way]).eval(), IDS, tokenizer=named)
    labelled(recording, MOVED[way](IDS))


def test_outputs_of_an_inner_model_are_released_after_the_pass():
    with heedful.record(model := Wraps(), tokenizer=named) as recording:
        model(IDS).backward()
        assert model.output() is None
    labelled(recording, IDS)


@torch.no_grad()
def test_a_cache_of_an_inner_model_continues_from_pass_to_pass():
    model, cache = Wraps().eval(), transformers.DynamicCache()
    with heedful.record(model, tokenizer=named) as recording:
        for at in (slice(0, 3), slice(3, 4), slice(4, 6)):
            model(IDS[:, at], cache)
    for b, calls in enumerate(recording.sequences):
        assert [call.key_tokens for call in calls] == [named(IDS[b, :M]) for M in (3, 4, 6)]


@pytest.mark.parametrize("texts", [1, 2])
def test_the_first_step_of_a_decoder_has_the_label_of_its_token(texts):
    class Translates(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(80, 8)
            self.inner = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)

        def forward(self, src, tgt):
            return self.inner(self.table(src), self.table(tgt))

    recording = looked_at(Translates().eval(), IDS[:texts], OTHERS[:texts, :1], tokenizer=named)
    for b, (_, own, cross) in enumerate(recording.sequences):
        assert own.query_tokens == own.key_tokens == cross.query_tokens == named(OTHERS[b, :1])
        assert cross.key_tokens == named(IDS[b])


T5 = transformers.T5Config(
    vocab_size=99, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
)


class HandsOn(nn.Module):
    """Encodes several texts, and then decodes a target for each."""

    def __init__(self, form):
        super().__init__()
        self.t5, self.form = transformers.T5Model(T5), form

    def forward(self, texts, target):
        memories = [self.form(self.t5.encoder(input_ids=ids)[0]) for ids in texts]
        return [self.t5(encoder_outputs=m, decoder_input_ids=target)[0] for m in memories]


@pytest.mark.parametrize("form", [lambda memory: (memory,), lambda memory: [memory]])
def test_a_memory_that_is_passed_on_has_the_labels_of_its_text(form):
    ids, target = torch.cat([IDS, OTHERS[:1]]), OTHERS.flatten()[:9].view(3, 3)
    recording = looked_at(HandsOn(form).eval(), [ids], target, tokenizer=named)
    assert len(recording.sequences) == 3
    for b, calls in enumerate(recording.sequences):
        assert [call.proof for call in calls] == ["proved"] * 3
        assert calls[2].kind == "cross"
        assert (calls[2].query_tokens, calls[2].key_tokens) == (named(target[b]), named(ids[b]))


def test_of_several_texts_that_were_encoded_the_memory_has_no_labels():
    model, texts = HandsOn(lambda memory: (memory,)).eval(), [IDS[:1], OTHERS[:1]]
    crosses = looked_at(model, texts, OTHERS[:1, :3], tokenizer=named)[3::2]
    assert [call.kind for call in crosses] == ["cross"] * 2
    assert [call.key_tokens for call in crosses] == [None, None]
