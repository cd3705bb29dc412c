"""Where a query stands among its keys, however long a cache is; and what looks back alone."""

import copy
import math

import pytest
import torch
import transformers
from scored import means
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.masks import Causal, Combined, Packed, Padding, Window
from heedful.recording import from_attentions

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
TOTAL, ROOM = 9, 16
PASSES = [(0, 5), (5, 6), (6, 8), (8, TOTAL)]  # the tokens of each
IDS = torch.randint(3, 8, (2, TOTAL), generator=torch.Generator().manual_seed(1))
KEEP = torch.tensor([[False] * 2 + [True] * (TOTAL - 2), [True] * TOTAL])
B, H, N, D = 2, 3, 7, 4
NEAR = {"atol": 3e-5, "rtol": 0, "equal_nan": True}  # of scores: some ask for two tokens
CAUSAL = torch.ones(N, N).tril().bool()


def peaked(model):
    """The same model with attention that is far from even."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def llama():
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, **SMALL,
    )  # fmt: skip
    kind = transformers.LlamaForCausalLM
    eager = peaked(kind._from_config(config, attn_implementation="eager"))
    # a config of its own, in which the implementation stands
    model = kind._from_config(copy.deepcopy(config), attn_implementation="sdpa").eval()
    model.load_state_dict(eager.state_dict())
    return model, eager


CACHES = {
    "dynamic": lambda config: transformers.DynamicCache(config=config),
    "static": lambda config: transformers.StaticCache(config=config, max_cache_len=ROOM),
}


def continued(model, cache, keep=None):
    """A prompt, then a token, then two at once, and one: each is a pass."""
    cache = CACHES[cache](model.config)
    with torch.no_grad(), heedful.record(model) as recording:
        for start, end in PASSES:
            told = {} if keep is None else {"attention_mask": keep[:, :end].long()}
            model(IDS[:, start:end], past_key_values=cache, **told)
    assert recording.missed == {}
    return recording


def rows_of(eager, sequence, keep):
    """The maps of the text alone, without a cache, and the place of each of its tokens in it."""
    real = keep[sequence]
    with torch.no_grad():
        maps = eager(IDS[sequence, real][None], output_attentions=True).attentions
    return [map_[0] for map_ in maps], real.cumsum(0) - 1


def positions(map_):
    """Distance, self and previous of a map whose last query stands at its last key, by loops."""
    _, n, m = map_.shape
    map_ = map_.double()
    own = [row + m - n for row in range(n)]
    distance = [
        sum(map_[:, row, key] * abs(at - key) for key in range(m)) for row, at in enumerate(own)
    ]

    def looking(back):  # of those after the first
        found = [map_[:, row, at - back] for row, at in enumerate(own) if at > 0]
        return torch.stack(found, -1).mean(-1) if found else None

    return {"distance": torch.stack(distance, -1), "self": looking(0), "previous": looking(1)}


def stands_right(call, map_):
    """Everything that depends on where a query stands is that of the map."""
    assert call.shape == map_.shape
    torch.testing.assert_close(call.weights(), map_, atol=3e-6, rtol=0)
    expected, summary = positions(map_), call.summary()
    found = {"distance": call.distance(), "self": call.diagonal(0), "previous": call.diagonal(1)}
    for name, value in expected.items():
        if value is None:
            continue
        torch.testing.assert_close(found[name].double(), value, atol=2e-5, rtol=0)
        mean = value.mean(-1) if name == "distance" else value
        torch.testing.assert_close(summary[name].double(), mean, atol=2e-5, rtol=0)
    assert call.check.passed


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("cache", CACHES)
def test_every_pass_stands_where_the_text_alone_has_it(llama, cache, padded):
    model, eager = llama
    keep = KEEP if padded else torch.ones_like(KEEP)
    recording = continued(model, cache, keep if padded else None)
    for b, sequence in enumerate(recording.sequences):
        maps, place = rows_of(eager, b, keep)
        for call in sequence:
            start, end = PASSES[call.pass_index]
            first, last = int(keep[b, :start].sum()), int(place[end - 1]) + 1
            stands_right(call, maps[call.layer][:, first:last, :last])
            assert call.kind == "causal"
            expected = IDS[b, :end][keep[b, :end]].tolist()
            assert (call.ids if call.ids is None else call.ids.tolist()) == expected


def test_a_static_cache_has_the_kinds_of_a_dynamic_one(llama):
    found = []
    for cache in CACHES:
        recording = continued(llama[0], cache, KEEP)
        found.append([means(call) for one in recording.sequences for call in one])
    for one, other in zip(*found, strict=True):
        assert set(one) == set(other)
        torch.testing.assert_close(one, other, **NEAR)


class Kernel(nn.Module):
    def forward(self, query, key, **options):
        return scaled_dot_product_attention(query, key, key, **options)


def recorded(query, key, **options):
    with heedful.record(model := Kernel()) as recording:
        model(query, key, **options)
    return recording


def by_definition(query, key, added):
    scores = torch.einsum("...nd,...md->...nm", query.double(), key.double()) / D**0.5 + added
    return scores.softmax(-1).float()


def hidden(allowed):
    return torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)


@pytest.mark.parametrize("room", [N, N + 1, 3 * N])
def test_torchs_kernel_with_room_behind_the_last_query(room):
    """Its causal mask begins at the top left: keys from N on are seen by nobody."""
    query, key = torch.randn(B, H, N, D), torch.randn(B, H, room, D)
    recording = recorded(query, key, is_causal=True)
    expected = by_definition(query, key[:, :, :N], hidden(CAUSAL))
    for map_, [call] in zip(expected, recording.sequences, strict=True):
        stands_right(call, map_)
        assert (call.kind, call.causes.mask) == ("causal", Causal(0))
        assert set(means(call)) == set(means(from_attentions([map_[None]])[0]))


@pytest.mark.parametrize("form", ["boolean", "added"])
def test_queries_in_the_middle_of_a_long_cache(form):
    """Tokens 4, 5 and 6 of a cache with room for 12."""
    query, key = torch.randn(B, H, 3, D), torch.randn(B, H, 12, D)
    allowed = torch.ones(3, 12).tril(4).bool()
    mask = allowed if form == "boolean" else hidden(allowed)
    recording = recorded(query, key, attn_mask=mask)
    expected = by_definition(query, key[:, :, :N], hidden(allowed[:, :N]))
    for map_, [call] in zip(expected, recording.sequences, strict=True):
        stands_right(call, map_)
        assert (call.kind, call.causes.mask) == ("causal", Causal(4))


def test_of_another_sequence_no_key_is_left_out_though_nobody_sees_it():
    layer = nn.MultiheadAttention(12, 3, batch_first=True).eval()
    query, memory = torch.randn(B, 3, 12), torch.randn(B, N, 12)
    unseen = torch.arange(N) > 4
    with heedful.record(layer) as recording:
        layer(query, memory, memory, attn_mask=unseen.expand(3, N))
    assert [call.shape for [call] in recording.sequences] == [(3, 3, N)] * B
    assert recording[0].kind == "cross"


class Ours(nn.Module):
    """Our own attention, whose mask is a value; `keep` tells of the padding that is in it."""

    def forward(self, query, key, mask, keep=None):
        return heedful.attention(query, key, key, mask=mask)


# By how many tokens a query stands after a key that it sees; an offset counts from the top left
OURS = {
    "causal": (Causal(), lambda apart, span: apart >= 0),
    "last three": (Causal() & Window(3), lambda apart, span: 0 <= apart < 3),
    "around": (Window(2), lambda apart, span: abs(apart) < 2),
    "two ahead": (Causal(2), lambda apart, span: apart >= span - 2),
    "around the next": (Window(2, 1), lambda apart, span: abs(apart - span + 1) < 2),
}


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("n", [N, N - 2])
def test_a_structure_moves_with_the_padding_that_is_cut_away(n, name, side, told):
    mask, sees = OURS[name]
    query, key = torch.randn(B, H, n, D), torch.randn(B, H, N, D)
    padding = Padding.from_lengths([N, N - 3], N, side)
    with heedful.record(model := Ours()) as recording:
        model(query, key, mask & padding, padding.keep if told else None)
    span = N - n
    table = [[sees(row + span - m, span) for m in range(N)] for row in range(n)]
    for b, [call] in enumerate(recording.sequences):
        real = padding.keep[b]
        added = hidden(torch.tensor(table) & real)
        expected = by_definition(query[b], key[b], added).nan_to_num(0.0)[:, real[span:]][..., real]
        assert not told or call.shape == expected.shape
        rows, columns = expected.shape[1:]  # what nobody tells to be padding may stay
        left = (..., slice(-rows, None), slice(-columns, None))
        found = call.weights()[left if side == "left" else (..., slice(rows), slice(columns))]
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


@pytest.fixture(scope="module")
def bloom():
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SMALL)
    return peaked(transformers.BloomModel._from_config(config, attn_implementation="eager"))


class ByHand(nn.Module):
    """Causal attention by hand, that hides the padding too."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, H * D)

    def forward(self, input_ids, attention_mask=None):
        x = self.embed(input_ids).unflatten(-1, (H, D)).transpose(1, 2)
        T = x.shape[-2]
        allowed = torch.ones(T, T).tril().bool()
        if attention_mask is not None:
            allowed = allowed & attention_mask[:, None, None].bool()
        scores = (x.sin() @ x.cos().mT).masked_fill(~allowed, -1e9)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("name", ["bloom", "by hand"])
def test_maps_beside_a_padded_text_are_causal_each_for_itself(name, bloom):
    model = bloom if name == "bloom" else ByHand()
    with torch.no_grad(), heedful.record(model) as together:
        model(IDS, attention_mask=KEEP.long())
    for b, sequence in enumerate(together.sequences):
        text = IDS[b, KEEP[b]][None]
        with torch.no_grad(), heedful.record(model) as alone:
            model(text)
        for call, other in zip(sequence, alone, strict=True):
            assert call.kind == other.kind == "causal"
            assert isinstance(call.causes.mask, Causal)
            known = text[0].tolist() if name == "bloom" else None  # of no model that we know
            assert (call.ids if call.ids is None else call.ids.tolist()) == known
            assert call.proof == "assumed"  # neither is seen in an interface
            torch.testing.assert_close(call.weights(), other.weights(), atol=3e-6, rtol=0)
            torch.testing.assert_close(means(call), means(other), **NEAR)


def test_one_map_that_looks_ahead_leaves_the_other_causal():
    map_ = torch.stack([hidden(CAUSAL), hidden(CAUSAL.T)])[:, None].softmax(-1)
    first, second = from_attentions([map_]).sequences
    assert first[0].causes.mask == Causal()
    assert second[0].causes.mask is None


@pytest.mark.parametrize("ahead", [False, True])
def test_bits_of_each_head_that_look_back_alone_are_causal(ahead):
    x = torch.randn(1, H, N, D)
    allowed = (torch.rand(1, H, N, N) < 0.5) & CAUSAL | torch.eye(N).bool()
    allowed[0, 1, 2, 6] = ahead
    [call] = recorded(x, x, attn_mask=allowed)
    stands_right(call, by_definition(x, x, hidden(allowed))[0])
    assert call.kind == ("self" if ahead else "causal")
    mask = call.causes.mask
    assert isinstance(mask, Packed if ahead else Combined)
    assert torch.equal(mask.crop(call.shape).expand(H, N, N), allowed[0])
    for head in range(H):
        torch.testing.assert_close(call.received(head), call.weights()[head].sum(0))
