"""Token labels beside other texts, views, caches and models: those of its text, or none."""

import weakref

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, Attends, N, named
from shown_maps import WIDTH, D, H, looked_at
from torch import nn

import heedful

TINY = {"vocab_size": 99, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 = transformers.GPT2Config(**TINY, bos_token_id=0, eos_token_id=0)


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
    with torch.no_grad(), heedful.record(model := OwnSeq2Seq(), tokenizer=named) as recording:
        model(IDS[:1], OTHERS[:1, :length])
    source, target = named(IDS[0]), named(OTHERS[0, :length])
    names = [(call.query_tokens, call.key_tokens) for call in recording]
    assert names == [(source, source), (target, target), (target, source)]


def test_after_two_encoder_passes_the_memory_has_no_labels():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=99, decoder_start_token_id=0, **sizes)

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.t5 = transformers.T5Model(config)

        def forward(self, texts, target):
            read = [self.t5.encoder(input_ids=ids) for ids in texts]
            return [self.t5(encoder_outputs=states, decoder_input_ids=target)[0] for states in read]

    for texts, expected in (([IDS[:1]], named(IDS[0])), ([IDS[:1], OTHERS[:1]], None)):
        recording = looked_at(Reads().eval(), texts, OTHERS[:1, :3], tokenizer=named)
        crosses = [call for call in recording if call.kind == "cross"]
        assert [call.key_tokens for call in crosses] == [expected] * len(texts)
        assert all(call.query_tokens == named(OTHERS[0, :3]) for call in crosses)


def test_a_shorter_second_text_of_a_layer_has_no_labels():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(80, 8)
            self.encode = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, source, target):
            return self.encode(self.table(source)), self.encode(self.table(target))

    with torch.no_grad(), heedful.record(model := Both().eval(), tokenizer=named) as recording:
        model(IDS, OTHERS[:, :4])
    for b, (first, second) in enumerate(recording.sequences):
        assert first.proof == second.proof == "proved"
        assert (first.key_tokens, second.key_tokens) == (named(IDS[b]), None)


def test_outputs_of_an_inner_model_are_released_after_the_pass():
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outputs = transformers.GPT2LMHeadModel(GPT2), []

        def forward(self, ids):
            logits = self.inner(input_ids=ids.clone()).logits
            self.outputs = [weakref.ref(logits)]
            return logits.mean()

    model = Wraps()
    with heedful.record(model, tokenizer=named) as recording:
        model(IDS).backward()
        assert model.outputs[0]() is None
    assert recording[0].key_tokens == named(IDS[0])


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
        assert len(calls) == 4
        for call in calls:
            assert call.key_tokens == named(IDS[b])
            assert call.query_tokens is None


def test_the_last_token_of_a_text_is_not_labelled_with_the_only_token_of_another():
    class Last(Attends):
        def forward(self, source, target):
            y = self.table(target)
            return self.attend(y[:, -1:], y), self.attend(self.table(target[:, :1]), y)

    for call in looked_at(Last(), IDS[:1, :1], OTHERS[:1], tokenizer=named):
        assert call.query_tokens is None
        assert call.key_tokens in (None, named(OTHERS[0]))


BESIDE = {
    "places first": lambda self, ids, at, mask: self.places(at) + self.table(ids),
    "places last": lambda self, ids, at, mask: self.table(ids) + self.places(at),
    "places made": lambda self, ids, at, mask: (
        self.places(torch.arange(N).expand(len(ids), -1)) + self.table(ids)
    ),
    "a mask first": lambda self, ids, at, mask: mask[..., None] * self.table(ids),
    "chosen by a mask": lambda self, ids, at, mask: torch.where(
        mask[..., None].bool(), self.table(ids), 0.0
    ),
    "by an index": lambda self, ids, at, mask: self.table.weight[ids],
    "an empty cache": lambda self, ids, at, mask: torch.cat(
        [torch.empty(len(ids), 0, WIDTH), self.table(ids)], 1
    ),
}


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", BESIDE)
def test_labels_come_from_ids_and_not_from_other_integers(way, texts):
    class Beside(Attends):
        def __init__(self):
            super().__init__()
            self.places = nn.Embedding(20, WIDTH)

        def forward(self, ids, position_ids, attention_mask):
            x = BESIDE[way](self, ids, position_ids, attention_mask)
            return self.attend(x, x)

    places, mask = torch.arange(N).expand(texts, -1), torch.ones(texts, N, dtype=torch.long)
    recording = looked_at(Beside(), IDS[:texts], places, mask, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == named(IDS[b])


MOVED = {
    "turned": lambda ids: ids.flip(1),
    "rolled": lambda ids: ids.roll(1, 1),
    "padded": lambda ids: torch.nn.functional.pad(ids, (2, 0)),
    "after a prefix": lambda ids: torch.cat([torch.ones_like(ids[:, :1]), ids], 1),
    "other texts first": lambda ids: ids.flip(0),
}


@pytest.mark.parametrize("way", MOVED)
def test_an_inner_model_has_labels_of_the_ids_that_it_was_passed(way):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Identity(), transformers.GPT2Model(GPT2)

        def forward(self, ids):
            return self.decoder(input_ids=MOVED[way](ids))[0]

    recording = looked_at(Wraps().eval(), IDS, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == named(MOVED[way](IDS)[b])


def test_each_of_two_caches_continues_its_own_text_or_has_no_labels():
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformers.GPT2Model(GPT2)

        def forward(self, several, caches):
            for ids, cache in zip(several, caches, strict=True):
                self.inner(input_ids=ids, past_key_values=cache)

    model, caches = Streams().eval(), [transformers.DynamicCache() for _ in range(2)]
    texts = IDS[:1], OTHERS[:1]
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model([ids[:, :3] for ids in texts], caches)
        for way in (1, -1):
            at = 3 if way == 1 else 4
            model([ids[:, at : at + 1] for ids in texts][::way], caches[::way])
    assert len(recording) == 6
    for number, call in enumerate(recording):
        text = texts[number % 2 if number < 4 else 1 - number % 2][0]
        N, M = call.shape[1:]
        assert call.query_tokens == named(text[M - N : M])
        assert call.key_tokens in (named(text[:M]), None)


def test_dictionaries_of_different_arguments_are_texts_without_labels():
    class Sides(Attends):
        def forward(self, query, document):
            x, y = (self.table(side["ids"]) for side in (query, document))
            return self.attend(x, x), self.attend(y, y), self.attend(x, y)

    model, inputs = Sides().eval(), [{"ids": IDS[:1]}, {"ids": OTHERS[:1, :4]}]
    recording = looked_at(model, *inputs, tokenizer=named)
    assert {(call.proof, call.batch, call.key_tokens) for call in recording} == {
        ("proved", 1, None)
    }
    assert recording.verify(model, inputs) == {"verified": 3}


def test_a_tensor_that_is_passed_twice_has_labels_of_its_ids():
    class Learns(Attends):
        def forward(self, labels, kinds, ids):
            x = self.table(ids)
            return self.attend(x, x)

    [call] = looked_at(Learns(), IDS[:1], IDS[:1], IDS[:1], tokenizer=named)
    assert call.key_tokens == named(IDS[0])


def test_queries_of_an_image_are_not_labelled_with_the_only_token_of_a_text():
    class Looks(Attends):
        def __init__(self):
            super().__init__()
            self.learned = nn.Parameter(torch.randn(1, 1, WIDTH))

        def forward(self, ids, image):
            return self.attend(self.learned, image)

    [call] = looked_at(Looks(), IDS[:1, :1], torch.randn(1, 4, WIDTH), tokenizer=named)
    assert call.query_tokens is call.key_tokens is None


def test_a_cache_of_an_inner_model_continues_from_pass_to_pass():
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformers.GPT2Model(GPT2)

        def forward(self, ids, cache):
            return self.inner(input_ids=ids.clone(), past_key_values=cache)

    model, cache = Wraps().eval(), transformers.DynamicCache()
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
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


@pytest.mark.parametrize("keys", ["learned", "learned and read"])
def test_a_learned_query_is_not_labelled_with_the_only_token_of_the_pass(keys):
    class Asks(Attends):
        def __init__(self):
            super().__init__()
            self.learned = nn.Parameter(torch.randn(1, 1, WIDTH))
            self.bank = nn.Parameter(torch.randn(1, 5, WIDTH))

        def forward(self, ids):
            both = [self.bank] + ([self.table(ids)] if "read" in keys else [])
            return self.attend(self.learned, torch.cat(both, 1))

    [call] = looked_at(Asks(), IDS[:1, :1], tokenizer=named)
    assert call.query_tokens is call.key_tokens is None


T5 = transformers.T5Config(
    vocab_size=99, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
)


@pytest.mark.parametrize("form", [lambda memory: (memory,), lambda memory: [memory]])
def test_a_memory_that_is_passed_on_has_the_labels_of_its_text(form):
    class HandsOn(nn.Module):
        def __init__(self):
            super().__init__()
            self.t5 = transformers.T5Model(T5)

        def forward(self, ids, target):
            memory = self.t5.encoder(input_ids=ids)[0]
            return self.t5(encoder_outputs=form(memory), decoder_input_ids=target)[0]

    ids, target = torch.cat([IDS, OTHERS[:1]]), OTHERS.flatten()[:9].view(3, 3)
    recording = looked_at(HandsOn().eval(), ids, target, tokenizer=named)
    assert len(recording.sequences) == 3
    for b, calls in enumerate(recording.sequences):
        assert [call.proof for call in calls] == ["proved"] * 3
        assert calls[2].kind == "cross"
        assert (calls[2].query_tokens, calls[2].key_tokens) == (named(target[b]), named(ids[b]))


def test_vectors_that_are_passed_to_an_inner_model_have_no_labels():
    class Embeds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.inner = nn.Embedding(80, 16), transformers.GPT2Model(GPT2)

        def forward(self, ids):
            return self.inner(inputs_embeds=self.table(ids))[0]

    [call] = looked_at(Embeds().eval(), IDS[:1], tokenizer=named)
    assert call.query_tokens is call.key_tokens is None
