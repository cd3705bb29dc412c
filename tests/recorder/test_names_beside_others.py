"""Whose names a call shows beside other texts, views, caches and models: its own, or none."""

import weakref

import pytest
import torch
import transformers
from attends_to_ids import IDS, OTHERS, Attends, N, named
from looked import WIDTH, D, H, looked_at
from torch import nn

import heedful

TINY = {"vocab_size": 99, "n_embd": 16, "n_layer": 1, "n_head": 2}
GPT2 = transformers.GPT2Config(**TINY, bos_token_id=0, eos_token_id=0)


class Pair(Attends):
    """Two texts, each for itself, and the second asks the first."""

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        return self.attend(x, x), self.attend(y, y), self.attend(y, x)


VIEWS = {
    "shifted": lambda: IDS.flatten()[None].unfold(1, N + 1, N - 1).squeeze(0).split(1),
    "chunks": lambda: torch.cat([IDS, OTHERS], 1).chunk(2, 1),
    "rows": lambda: torch.cat([IDS, OTHERS]).split(2),
    "of a stack": lambda: torch.stack([IDS, OTHERS]).unbind(0),
    "last of a stack": lambda: torch.stack([IDS, OTHERS], -1).unbind(-1),
    "next tokens": lambda: (IDS[:, :-1], IDS[:, 1:]),
    "the same": lambda: (IDS, IDS),
}


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", VIEWS)
def test_inputs_that_are_views_of_one_storage_have_their_own_names(way, texts):
    source, target = (one[:texts] for one in VIEWS[way]())
    recording = looked_at(Pair(), source, target, tokenizer=named)
    for b, (first, second, cross) in enumerate(recording.sequences):
        assert first.query_tokens == first.key_tokens == named(source[b])
        assert second.query_tokens == second.key_tokens == named(target[b])
        assert cross.query_tokens == named(target[b])
        assert cross.key_tokens == named(source[b])


def test_a_view_that_may_be_of_two_inputs_has_no_names():
    class Cut(Attends):
        def forward(self, source, target):
            x = self.table(source[:, 1:])  # target begins there too
            return self.attend(x, x)

    data = IDS[:1]
    [call] = looked_at(Cut(), data[:, :-1], data[:, 1:], tokenizer=named)
    assert call.key_tokens is None


class Asks(Attends):
    def forward(self, x, y):
        return self.attend(x, y).transpose(1, 2).flatten(2)


class OwnSeq2Seq(nn.Module):
    """An encoder and a decoder of one's own; the memory may be changed between them."""

    def __init__(self, change):
        super().__init__()
        self.change, self.table = change, nn.Embedding(80, WIDTH)
        self.encoder, self.decoder = Asks(), nn.ModuleDict({"self": Asks(), "cross": Asks()})
        self.widen = nn.Linear(H * D, WIDTH)

    def forward(self, source, target):
        x, y = self.table(source), self.table(target)
        memory = self.change(self.widen(self.encoder(x, x)))
        return self.decoder["cross"](self.widen(self.decoder["self"](y, y)), memory)


MEMORIES = {
    "as it is": lambda x: x,
    "turned": lambda x: x.flip(1),
    "by a matrix": lambda x: torch.eye(N).flip(0) @ x,
    "of nothing": lambda x: torch.randn_like(x),
}


@pytest.mark.parametrize("way", MEMORIES)
def test_a_memory_has_the_names_of_its_tokens_and_not_of_as_many_others(way):
    torch.manual_seed(0)
    model = OwnSeq2Seq(MEMORIES[way])
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model(IDS[:1], OTHERS[:1, :5])
    assert recording[2].query_tokens == named(OTHERS[0, :5])
    assert recording[2].key_tokens == (named(IDS[0]) if way == "as it is" else None)


def test_of_two_texts_that_an_encoder_has_read_none_is_taken_for_the_memory():
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(vocab_size=99, decoder_start_token_id=0, **sizes)

    class Reads(nn.Module):
        def __init__(self):
            super().__init__()
            self.t5 = transformers.T5Model(config)

        def forward(self, texts, target):
            read = [self.t5.encoder(input_ids=one) for one in texts]
            return [self.t5(encoder_outputs=one, decoder_input_ids=target)[0] for one in read]

    for texts, expected in (([IDS[:1]], named(IDS[0])), ([IDS[:1], OTHERS[:1]], None)):
        recording = looked_at(Reads().eval(), texts, OTHERS[:1, :3], tokenizer=named)
        crosses = [call for call in recording if call.kind == "cross"]
        assert [call.key_tokens for call in crosses] == [expected] * len(texts)
        assert all(call.query_tokens == named(OTHERS[0, :3]) for call in crosses)


ROWS = {
    "repeated": (lambda x: x.repeat(2, 1, 1), [0, 1, 0, 1]),
    "one of one, expanded": (lambda x: x[:1].expand(4, -1, -1), None),
    "the second, expanded": (lambda x: x[1:2].expand(4, -1, -1), None),
}


@pytest.mark.parametrize("form", ["by hand", "torch's"])
@pytest.mark.parametrize("way", ROWS)
def test_keys_of_fewer_texts_have_the_names_of_the_rows_that_they_are_of(way, form):
    change, rows = ROWS[way]

    class Shares(Attends):
        def __init__(self):
            super().__init__()
            self.torchs = nn.MultiheadAttention(WIDTH, 1, batch_first=True)

        def forward(self, source, target):
            x, y = change(self.table(source)), self.table(target)
            if form == "by hand":
                return self.attend(y, x)
            return self.torchs(y, x, x, need_weights=False)[0]

    target = torch.arange(50, 66).view(4, 4)
    recording = looked_at(Shares(), IDS, target, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        # by hand it is not certain which text is which, but each shows its own
        assert call.query_tokens in (named(target[b]), None)
        expected = None if rows is None else named(IDS[rows[b]])
        assert call.key_tokens in ([expected] if form == "torch's" else [expected, None])


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_of_ones_own_are_not_those_that_an_encoder_packed():
    class Packs(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(80, 8)
            first, self.second = (
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )
            self.encode = nn.TransformerEncoder(first, 1)

        def forward(self, ids, padding):
            x = self.table(ids)
            self.encode(x, src_key_padding_mask=padding)
            return self.second(torch.nested.as_nested_tensor([x[1, :3], x[0]]))

    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1, 3:] = True
    with torch.no_grad(), heedful.record(model := Packs().eval(), tokenizer=named) as recording:
        model(IDS, padding)
    for b, calls in enumerate(recording.sequences):
        assert [call.proof for call in calls] == ["proved", "assumed"]
        assert calls[0].key_tokens == named(IDS[b, ~padding[b]])
        assert calls[1].key_tokens is None


def test_texts_that_a_layer_of_torch_was_given_second_are_proved_for_each_of_two_inputs():
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
        assert (first.key_tokens, second.key_tokens) == (named(IDS[b]), named(OTHERS[b, :4]))


@pytest.mark.parametrize("along", ["tokens", "texts"])
def test_a_convolution_along_texts_leaves_none_in_its_place(along):
    class Convolves(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.weight = nn.Embedding(80, 8), nn.Parameter(torch.randn(8, 8, 3))
            self.encode = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, ids):
            x = self.table(ids)
            way = (0, 2, 1) if along == "tokens" else (1, 2, 0)
            back = (0, 2, 1) if along == "tokens" else (2, 0, 1)
            return self.encode(torch.conv1d(x.permute(way), self.weight, padding=1).permute(back))

    model, ids = Convolves().eval(), torch.cat([IDS, OTHERS])
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model(ids)
    is_known = along == "tokens"
    assert recording[0].proof == ("proved" if is_known else "assumed")
    assert recording[0].key_tokens == (named(ids[0]) if is_known else None)


def test_what_a_model_inside_was_given_and_gave_is_not_held_after_the_pass():
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.held = transformers.GPT2LMHeadModel(GPT2), []

        def forward(self, ids):
            own = ids.clone()
            found = self.inner(input_ids=own)
            self.held = [weakref.ref(own), weakref.ref(found.logits)]
            return found.logits.mean()

    model = Wraps()
    with heedful.record(model, tokenizer=named) as recording:
        model(IDS).backward()
        assert [one() for one in model.held] == [None, None]
    assert recording[0].key_tokens == named(IDS[0])


class Few(Attends):
    """Queries that are learned, a part of the tokens, or of an image."""

    def __init__(self):
        super().__init__()
        self.learned = nn.Parameter(torch.randn(1, 2, WIDTH))

    def forward(self, ids, image):
        x = self.table(ids)
        asking = (self.learned.expand(len(x), -1, -1), x[:, :1], x[:, -1:], image)
        return [self.attend(one, x) for one in asking]


@pytest.mark.parametrize("texts", [1, 2])
def test_keys_have_their_names_whatever_asks_them(texts):
    recording = looked_at(Few(), IDS[:texts], torch.randn(texts, 4, WIDTH), tokenizer=named)
    for b, calls in enumerate(recording.sequences):
        assert len(calls) == 4
        for call in calls:
            assert call.key_tokens == named(IDS[b])
            assert call.query_tokens is None


def test_the_last_token_of_one_text_is_not_named_by_the_only_token_of_another():
    class Last(Attends):
        def forward(self, source, target):
            y = self.table(target)
            return self.attend(y[:, -1:], y), self.attend(self.table(target[:, :1]), y)

    for call in looked_at(Last(), IDS[:1, :1], OTHERS[:1], tokenizer=named):
        assert call.query_tokens is None
        assert call.key_tokens == named(OTHERS[0])


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
def test_names_are_of_ids_and_not_of_what_stands_beside_them(way, texts):
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
def test_a_model_inside_has_the_names_of_the_ids_that_it_was_given(way):
    class Wraps(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Identity(), transformers.GPT2Model(GPT2)

        def forward(self, ids):
            return self.decoder(input_ids=MOVED[way](ids))[0]

    recording = looked_at(Wraps().eval(), IDS, tokenizer=named)
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == named(MOVED[way](IDS)[b])


def test_each_of_two_caches_goes_on_with_its_own_text_or_has_no_names():
    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = transformers.GPT2Model(GPT2)

        def forward(self, several, caches):
            for one, cache in zip(several, caches, strict=True):
                self.inner(input_ids=one, past_key_values=cache)

    model, caches = Streams().eval(), [transformers.DynamicCache() for _ in range(2)]
    texts = IDS[:1], OTHERS[:1]
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        model([one[:, :3] for one in texts], caches)
        for way in (1, -1):
            at = 3 if way == 1 else 4
            model([one[:, at : at + 1] for one in texts][::way], caches[::way])
    assert len(recording) == 6
    for number, call in enumerate(recording):
        text = texts[number % 2 if number < 4 else 1 - number % 2][0]
        N, M = call.shape[1:]
        assert call.query_tokens == named(text[M - N : M])
        assert call.key_tokens in (named(text[:M]), None)


def test_dicts_of_different_arguments_are_one_text_and_items_of_a_list_are_not_taken_apart():
    class Sides(Attends):
        def forward(self, query, document):
            x, y = (self.table(one["ids"]) for one in (query, document))
            return self.attend(x, x), self.attend(y, y), self.attend(x, y)

    model, given = Sides().eval(), [{"ids": IDS[:1]}, {"ids": OTHERS[:1, :4]}]
    recording = looked_at(model, *given, tokenizer=named)
    assert {call.proof for call in recording} == {"proved"}
    first, second, cross = ((call.query_tokens, call.key_tokens) for call in recording)
    own, other = named(IDS[0]), named(OTHERS[0, :4])
    assert (first, second, cross) == ((own, own), (other, other), (own, other))
    assert recording.verify(model, given) == {"proved": 3}

    class Items(Attends):
        def forward(self, several):
            x, y = several
            return self.attend(x, x), self.attend(x, y)

    several = [torch.randn(1, 4, WIDTH), torch.randn(1, 3, WIDTH)]
    alone, both = looked_at(model := Items().eval(), several)
    assert (alone.proof, both.proof) == ("assumed", "proved")  # one asks the other: of one text
    recording = looked_at(model, several)
    assert recording.verify(model, [several]) == {"assumed": 1, "proved": 1}
    assert "each is an item of a list, which is not taken apart" in recording[0].why


def test_one_tensor_given_twice_has_the_names_of_its_ids():
    class Learns(Attends):
        def forward(self, labels, kinds, ids):
            x = self.table(ids)
            return self.attend(x, x)

    [call] = looked_at(Learns(), IDS[:1], IDS[:1], IDS[:1], tokenizer=named)
    assert call.key_tokens == named(IDS[0])


def test_tokens_that_a_convolution_of_some_puts_elsewhere_have_no_names():
    class Shifts(Attends):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, 1))

        def forward(self, ids):
            x = self.table(ids)[:, :-2].mT
            x = torch.conv1d(x, self.weight, padding=1).mT
            return self.attend(x, x)

    [call] = looked_at(Shifts(), IDS[:1], tokenizer=named)
    assert call.shape == (H, N, N)
    assert call.key_tokens is None


def test_what_asks_an_image_is_not_named_by_the_only_token_of_a_text():
    class Looks(Attends):
        def __init__(self):
            super().__init__()
            self.learned = nn.Parameter(torch.randn(1, 1, WIDTH))

        def forward(self, ids, image):
            return self.attend(self.learned, image)

    [call] = looked_at(Looks(), IDS[:1, :1], torch.randn(1, 4, WIDTH), tokenizer=named)
    assert call.query_tokens is call.key_tokens is None


class Caches(Attends):
    """Keeps the vectors of the tokens so far in a list that it is given."""

    def forward(self, streams):
        for ids, cache in streams:
            cache.append(self.table(ids))
            self.attend(cache[-1], torch.cat(cache, 1))


def test_two_caches_of_ones_own_in_one_pass_do_not_share_their_texts():
    model, caches = Caches(), ([], [])
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        for at, way in ((slice(0, 3), 1), (slice(3, 4), -1), (slice(4, 5), 1)):
            ids = [one[:1, at] for one in (IDS, OTHERS)]
            model(list(zip(ids, caches, strict=True))[::way])
    assert len(recording) == 6
    for text, call in zip((IDS, OTHERS, OTHERS, IDS, IDS, OTHERS), recording, strict=True):
        text, (_, N, M) = text[0], call.shape
        assert call.query_tokens in (named(text[M - N : M]), None)
        assert call.key_tokens in (named(text[:M]), None)


def test_a_cache_of_a_model_inside_goes_on_from_pass_to_pass():
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


@pytest.mark.parametrize("asks", ["tokens", "one that is learned"])
def test_each_of_two_texts_is_without_its_own_padding(asks):
    class Siamese(Attends):
        def __init__(self):
            super().__init__()
            self.learned = nn.Parameter(torch.randn(1, 1, WIDTH))

        def forward(self, query, document):
            for one in (query, document):
                x = self.table(one["ids"])
                y = x if asks == "tokens" else self.learned.expand(len(x), -1, -1)
                keep = one["attention_mask"][:, None, None].bool()
                query, key = (
                    layer(each).unflatten(-1, (H, D)).transpose(1, 2)
                    for layer, each in ((self.asks, y), (self.says, x))
                )
                (query @ key.mT).masked_fill(~keep, -1e9).softmax(-1) @ key

    lengths, given = [(4, 2), (3, N)], []
    for (first, second), ids in zip(lengths, (IDS[:, :4], OTHERS), strict=True):
        mask = torch.arange(ids.shape[1]) < torch.tensor([[first], [second]])
        given.append({"ids": ids, "attention_mask": mask.long()})
    recording = looked_at(model := Siamese().eval(), *given, tokenizer=named)
    assert recording.verify(model, given) == {"proved": 2}
    for b, calls in enumerate(recording.sequences):
        for call, length, one in zip(calls, lengths, given, strict=True):
            assert call.shape == (H, length[b] if asks == "tokens" else 1, length[b])
            assert call.key_tokens == named(one["ids"][b, : length[b]])


@pytest.mark.parametrize("texts", [1, 2])
def test_the_first_step_of_a_decoder_has_the_name_of_its_token(texts):
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
def test_a_learned_query_is_not_named_by_the_only_token_of_the_pass(keys):
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
READ = {
    "as it is": (lambda x: x, "proved", True),
    "texts mixed": (lambda x: torch.einsum("ab,bnd->and", torch.eye(2).flip(0), x), "assumed", 0),
    "texts repeated": (lambda x: x.repeat(2, 1, 1)[1:3], "assumed", False),
    "tokens turned": (lambda x: x.flip(1), "proved", False),
    "another": (lambda x: torch.ones_like(x), "assumed", False),
}


@pytest.mark.parametrize("way", READ)
def test_a_memory_that_is_changed_after_it_was_read_is_not_named_by_what_was_read(way):
    change, proof, is_known = READ[way]

    class Changes(nn.Module):
        def __init__(self):
            super().__init__()
            self.t5 = transformers.T5Model(T5)

        def forward(self, ids, target):
            memory = change(self.t5.encoder(input_ids=ids)[0])
            return self.t5(encoder_outputs=(memory,), decoder_input_ids=target)[0]

    recording = looked_at(Changes().eval(), IDS, OTHERS[:, :3], tokenizer=named)
    for b, calls in enumerate(recording.sequences):
        assert calls[2].kind == "cross"
        assert calls[2].proof == proof
        assert calls[2].key_tokens == (named(IDS[b]) if is_known else None)
