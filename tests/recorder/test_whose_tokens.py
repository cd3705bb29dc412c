"""Texts and tokens that a model puts in other places, as the recording tells of them."""

import pytest
import torch
import transformers
from looked import WIDTH, D, H, looked_at, weighed
from torch import nn

import heedful


def named(ids):
    return [str(int(one)) for one in ids]


class Reads(nn.Module):
    """Reads ids, and attends to what it has made of them."""

    def __init__(self, before=lambda ids: ids, after=lambda x: x):
        super().__init__()
        self.before, self.after = before, after
        self.table, self.start = nn.Embedding(40, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def forward(self, ids):
        x = self.after(self.table(self.before(ids)))
        query, key = (
            one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
        )
        return (query @ key.mT).softmax(-1) @ key


def convolved(x, padding=1, reach=1):
    """Each vector with as many of its neighbours on both sides, (texts, tokens, width)."""
    kernel = torch.ones(WIDTH, WIDTH, 1 + 2 * padding // reach)
    return nn.functional.conv1d(x.mT, kernel, padding=padding, dilation=reach).mT


OTHERS = {
    "ids flipped": {"before": lambda ids: ids.flip(1)},
    "vectors flipped": {"after": lambda x: x.flip(1)},
    "rolled": {"after": lambda x: x.roll(1, 1)},
    "sorted": {"before": lambda ids: ids.sort(1, descending=True).values},
    "picked": {"after": lambda x: x[:, [2, 0, 3, 1]]},
    "shifted": {"before": lambda ids: torch.cat([ids[:, :1] * 0 + 39, ids[:, :-1]], 1)},
    "after a start": {"after": lambda x: torch.cat([torch.ones(len(x), 1, WIDTH), x[:, :-1]], 1)},
    "after a start, flipped": {
        "after": lambda x: torch.cat([torch.ones(len(x), 1, WIDTH), x[:, :-1]], 1).flip(1)
    },
    "flipped and convolved": {"after": lambda x: convolved(x.flip(1))},
    "after a start, convolved": {
        "after": lambda x: convolved(torch.cat([torch.ones(len(x), 1, WIDTH), x[:, :-1]], 1))
    },
    "even ones first": {
        "after": lambda x: x.view(len(x), 2, 2, WIDTH).transpose(1, 2).reshape(x.shape)
    },
    "the first half twice": {"after": lambda x: x[:, :2].repeat(1, 2, 1)},
    "every other one twice": {"after": lambda x: x[:, ::2].repeat_interleave(2, 1)},
    "the first one alone": {"after": lambda x: x[:, :1].expand(-1, 4, -1)},
}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("way", OTHERS)
def test_tokens_in_other_places_have_no_names(way, texts):
    ids = torch.arange(4 * texts).view(texts, 4)
    plain = looked_at(Reads(), ids, tokenizer=named)
    assert plain[0].query_tokens == plain[0].key_tokens == ["0", "1", "2", "3"]
    recording = looked_at(Reads(**OTHERS[way]), ids, tokenizer=named)
    assert len(recording.sequences) == texts
    assert recording[0].query_tokens is recording[0].key_tokens is None


@pytest.mark.parametrize("reach", [1, 2])
def test_tokens_that_are_convolved_with_their_neighbours_keep_their_names(reach):
    model = Reads(after=lambda x: convolved(x, padding=2 * reach, reach=reach))
    recording = looked_at(model, torch.arange(12).view(3, 4), tokenizer=named)
    assert len(recording.sequences) == 3
    for b, [call] in enumerate(recording.sequences):
        assert call.query_tokens == call.key_tokens == [str(4 * b + i) for i in range(4)]


class ReadsBeside(nn.Module):
    """Has its vectors given beside ids, which may be of anything."""

    def __init__(self):
        super().__init__()
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def forward(self, ids, x):
        query, key = (
            one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
        )
        return (query @ key.mT).softmax(-1) @ key


def test_vectors_that_stand_beside_ids_have_no_names():
    ids, x = torch.arange(8).view(2, 4), torch.randn(2, 4, WIDTH)
    recording = looked_at(ReadsBeside(), ids, x, tokenizer=named)
    assert recording[0].query_tokens is recording[0].key_tokens is None


class Negatives(nn.Module):
    """Each text asks the image of another, as what tells pairs from others is trained on."""

    def __init__(self, others):
        super().__init__()
        self.others, self.attend = others, nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x, y):
        y = self.others(y)
        return self.attend(x, y, y)[0]


def _assigned(y):
    made = torch.empty_like(y)
    made[1:], made[0] = y[:-1], y[-1]
    return made


PERMUTED = torch.eye(3)[[2, 0, 1]]


@pytest.mark.parametrize(
    "others",
    [
        lambda y: torch.stack([y[2] + 0, y[0] + 0, y[1] + 0]),
        lambda y: torch.einsum("ab,bnd->and", PERMUTED, y),
        _assigned,
    ],
)
def test_keys_that_were_not_followed_to_their_texts_are_not_proved(others):
    model, x, y = Negatives(others).eval(), torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    recording = looked_at(model, x, y)
    assert {sequence[0].proof for sequence in recording.sequences} == {"assumed"}
    assert "which of the 3 sequences is which of the 3 texts" in recording[0].why


def test_keys_of_another_text_by_its_digits_are_not_proved():
    def swapped(y):
        return y.view(2, 2, *y.shape[1:]).transpose(0, 1).reshape(y.shape)

    model, x, y = Negatives(swapped).eval(), torch.randn(4, 5, 8), torch.randn(4, 7, 8)
    assert looked_at(model, x, y)[0].proof == "assumed"


@pytest.mark.parametrize("others", [lambda y: y.roll(1, 0), lambda y: y.flip(0)])
def test_keys_of_another_text_are_not_proved_to_be_its_own(others):
    model, x, y = Negatives(others).eval(), torch.randn(3, 5, 8), torch.randn(3, 7, 8)
    recording = looked_at(model, x, y)
    assert {sequence[0].proof for sequence in recording.sequences} == {"assumed"}
    assert "put texts in other places" in recording[0].why
    recording.verify(model, [x, y])
    assert {sequence[0].proof for sequence in recording.sequences} <= {"assumed", "refuted"}
    plain = looked_at(Negatives(lambda y: y).eval(), x, y)
    assert plain[0].proof == "proved"


class OfRows(nn.Module):
    """Tokens attend to each other, and then texts do, as SAINT has it for the rows of a table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.tokens = nn.MultiheadAttention(8, 2, batch_first=True)
        self.texts = nn.MultiheadAttention(8, 2)

    def forward(self, ids):
        x = self.table(ids)
        x = x + self.tokens(x, x, x)[0]
        return x + self.texts(x, x, x)[0]


@pytest.mark.parametrize("texts", [3, 5])
def test_texts_that_attend_to_each_other_are_not_proved_to_be_tokens(texts):
    model, ids = OfRows().eval(), torch.randint(40, (texts, 5))
    recording = looked_at(model, ids)
    _, of_texts = recording.sequences[0]
    assert of_texts.proof == "assumed"
    assert "whether texts are along dimension 1" in of_texts.why
    recording.verify(model, ids)
    assert [call.proof for call in recording.sequences[0]] == ["proved", "assumed"]


@pytest.mark.parametrize("hidden", [[0, 0], [0, 2], [1, 2]])
def test_a_mask_that_is_true_at_padding_empties_no_text(hidden):
    class Hides(nn.Module):
        def __init__(self):
            super().__init__()
            self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

        def heads(self, x):
            pair = (self.asks(x), self.says(x))
            return [one.unflatten(-1, (H, D)).transpose(1, 2) for one in pair]

        def forward(self, x, attention_mask):
            query, key = self.heads(x)
            scores = (query @ key.mT).masked_fill(attention_mask[:, None, None], -1e9)
            return scores.softmax(-1) @ key

    model, x = Hides(), torch.randn(2, 5, WIDTH)
    mask = torch.arange(5) >= 5 - torch.tensor(hidden)[:, None]
    recording = looked_at(model, x, mask)
    query, key = model.heads(x)
    for b, gone in enumerate(hidden):
        seen = weighed(query[b], key[b, :, : 5 - gone])
        weights = recording.sequences[b][0].weights()
        torch.testing.assert_close(weights[..., : 5 - gone], seen, atol=2e-6, rtol=1e-5)


def test_a_query_that_does_not_see_its_own_token_keeps_its_place():
    """Of the likeliest keys that a step sees, its own token may be none: that is no empty room."""
    torch.manual_seed(0)
    config = transformers.DeepseekV32Config(
        vocab_size=60, hidden_size=32, intermediate_size=48, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, n_routed_experts=2,
        num_experts_per_tok=1, n_shared_experts=1, n_group=1, topk_group=1,
        first_k_dense_replace=1, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8,
        qk_rope_head_dim=8, v_head_dim=8, index_topk=4, index_n_heads=2, index_head_dim=16,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.DeepseekV32ForCausalLM(config).eval()
    for one in model.parameters():
        if one.ndim > 1:
            nn.init.normal_(one, std=1.2 * one.shape[-1] ** -0.5)
    ids, hides_own = torch.randint(60, (1, 12)), 0
    for length in range(5, 12):
        with torch.no_grad(), heedful.record(model) as recording:
            past = model(ids[:, :length]).past_key_values
            step = {"past_key_values": past, "output_attentions": True}
            expected = model(ids[:, length : length + 1], **step).attentions[0][0]
        hides_own += int(not expected[..., -1].any())
        torch.testing.assert_close(recording[1].weights(), expected, atol=2e-6, rtol=1e-5)
    assert hides_own


class Stores(Reads):
    """Keys in a cache of fixed room, which is an argument, as an exported model has it."""

    def forward(self, ids, cache, start):
        x = self.table(ids)
        query, key = (
            one(x).unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks, self.says)
        )
        key = cache.index_copy(2, torch.arange(start, start + ids.shape[1]), key)
        hidden = torch.arange(cache.shape[2]) > start + torch.arange(ids.shape[1])[:, None]
        return (query @ key.mT).masked_fill(hidden, -torch.inf).softmax(-1) @ key, key


def test_keys_that_are_written_into_a_cache_keep_their_names():
    model, cache = Stores(), torch.zeros(1, H, 10, D)
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        _, cache = model(torch.tensor([[0, 1, 2]]), cache, 0)
        model(torch.tensor([[3]]), cache, 3)
    first, second = recording
    assert first.query_tokens == first.key_tokens == ["0", "1", "2"]
    assert (second.query_tokens, second.key_tokens) == (["3"], ["0", "1", "2", "3"])


class Around(nn.Module):
    """A model of transformers inside one of the user's own."""

    def __init__(self):
        super().__init__()
        config = transformers.LlamaConfig(
            vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=4, num_key_value_heads=2,
        )  # fmt: skip
        self.model = transformers.LlamaForCausalLM(config)

    def forward(self, ids, **given):
        if "generates" in given:
            return self.model.generate(ids, do_sample=True, pad_token_id=0, **given["generates"])
        return self.model(ids, **given)


def test_several_tokens_after_a_cache_keep_their_names():
    model, ids = Around().eval(), torch.arange(5)[None]
    with torch.no_grad(), heedful.record(model, tokenizer=named) as recording:
        past = model(ids[:, :3], use_cache=True).past_key_values
        model(ids[:, 3:], past_key_values=past)
    assert recording[1].query_tokens == ["3", "4"]
    assert recording[1].key_tokens == ["0", "1", "2", "3", "4"]


def test_the_room_of_a_cache_is_left_out_also_of_samples_of_one_text():
    model = Around().eval()
    sampled = {"cache_implementation": "static", "num_return_sequences": 2, "max_new_tokens": 3}
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.arange(1, 5)[None], generates=sampled)
    shapes = [call.shape for call in recording.sequences[0]]
    assert shapes == [(4, 4, 4), (4, 1, 5), (4, 1, 6)]
