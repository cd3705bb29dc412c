"""Texts, parts of texts, heads, queries: which axis is which, followed, told or assumed."""

import math

import pytest
import torch
from looked import (
    WIDTH,
    B,
    D,
    Given,
    H,
    Heads,
    M,
    N,
    follows,
    looked_at,
    of_heads,
    shows,
    weighed,
)  # fmt: skip
from torch import nn

import heedful
from heedful.recorder.following.parameters import Parameters
from heedful.recorder.following.storages import Traced

G = 4


class Groups(Heads):
    """Queries (B, H, G, N, d), and keys (B, H, M, d) for each group."""

    def __init__(self, does):
        super().__init__(does)
        self.asks = nn.Linear(WIDTH, H * G * D)

    def heads(self, x, y=None):
        query, key = self.asks(x), self.says(x if y is None else y)
        query = query.unflatten(-1, (H, G, D)).permute(0, 2, 3, 1, 4)
        return query, key.unflatten(-1, (H, D)).transpose(1, 2)


SHARED = {
    "one for each group": lambda key: key[:, :, None],
    "expanded": lambda key: key[:, :, None].expand(-1, -1, G, -1, -1),
    "repeated": lambda key: key[:, :, None].repeat(1, 1, G, 1, 1),
    "interleaved": lambda key: key.repeat_interleave(G, dim=1).unflatten(1, (H, G)),
}


@pytest.mark.parametrize("way", SHARED)
def test_heads_that_share_values_as_an_axis_of_their_own(way):
    def grouped(query, key):
        key = SHARED[way](key)
        return (query @ key.mT).softmax(-1) @ key

    def maps(query, key):
        return weighed(query, key[:, :, None].expand(-1, -1, G, -1, -1)).flatten(1, 2)

    of_heads(grouped, N, M, maps=maps, model=Groups)


class Windows(nn.Module):
    """As SAM's image encoder has them: in the batch, and heads with them in one axis."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, H * D)
        self.attend = Given(self.attended)

    def heads(self, image):
        """(windows, H, 9, D)."""
        x = self.project(image).unflatten(1, (2, 3)).unflatten(3, (4, 3)).transpose(2, 3)
        return x.flatten(0, 2).flatten(1, 2).unflatten(-1, (H, D)).transpose(1, 2)

    def attended(self, heads):
        flat = heads.flatten(0, 1)
        return (flat @ flat.mT).softmax(-1) @ flat

    def forward(self, image):
        return self.attend(self.heads(image))


@pytest.mark.parametrize("texts", [1, 2])
def test_windows_of_an_image_are_parts_of_texts_and_no_heads(texts):
    image = torch.randn(texts, 6, 12, WIDTH)
    heads = (model := Windows()).heads(image)
    found = follows(model, (image,), weighed(heads, heads))
    assert len(found.sequences) == texts * 8


class Core(nn.Module):
    """As Megatron has it: positions first, and for the product texts and heads in one axis."""

    def forward(self, query, key):
        _, B, H, _ = query.shape
        query, key = (one.flatten(1, 2).transpose(0, 1) for one in (query, key))
        weights = torch.bmm(query, key.mT).unflatten(0, (B, H)).softmax(-1)
        return torch.bmm(weights.flatten(0, 1), key)


class Around(nn.Module):
    """Is given texts first."""

    def __init__(self):
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, 12 * D), nn.Linear(WIDTH, 12 * D)
        self.core = Core()

    def heads(self, x, y):
        pairs = ((self.query, x), (self.key, y))
        return [layer(one).unflatten(-1, (12, D)).transpose(1, 2) for layer, one in pairs]

    def forward(self, x, y):
        return self.core(*(one.permute(2, 0, 1, 3) for one in self.heads(x, y)))


@pytest.mark.parametrize(("texts", "length"), [(1, 3), (1, 4), (2, 4), (3, 4), (2, 12), (2, 24)])
def test_heads_after_positions_that_come_first(texts, length):
    x, y = torch.randn(texts, length, WIDTH), torch.randn(texts, length + 1, WIDTH)
    model = Around()
    follows(model, (x, y), weighed(*model.heads(x, y)))


@pytest.mark.parametrize("texts", [1, 2, 3])
def test_heads_before_their_text_in_one_axis(texts):
    """As the Set Transformer has them, also where there are as many heads as texts."""

    def folded(query, key):
        flat = [one.transpose(1, 2).flatten(2) for one in (query, key)]
        query, key = (torch.cat(one.split(D, dim=2), dim=0) for one in flat)
        moved = (query @ key.mT).softmax(2) @ key
        return torch.cat(moved.split(len(flat[0]), dim=0), dim=2)

    of_heads(folded, N, M, texts=[texts])


def test_heads_of_all_texts_in_one_axis():
    def flat(query, key):
        query, key = query.flatten(0, 1), key.flatten(0, 1)
        return torch.bmm(torch.bmm(query, key.mT).softmax(-1), key)

    of_heads(flat, N, M, texts=[1, 2, 3])


class OneKey(Heads):
    """Heads of queries that share one of keys, as GPTBigCode had them."""

    def __init__(self, does):
        super().__init__(does)
        self.says = nn.Linear(WIDTH, D)

    def heads(self, x, y=None):
        query = self.asks(x).unflatten(-1, self.sizes).transpose(1, 2)
        return query, self.says(x if y is None else y)


@pytest.mark.parametrize("way", ["rows", "softmax", "turned round", "dropout"])
def test_heads_that_share_keys_and_stand_among_the_queries(way):
    """Multi-query attention: (B, H · N, d) times one key head."""

    def shared(query, key):
        B, H, N, _ = query.shape
        scores = (query.flatten(1, 2) @ key.mT).unflatten(1, (H, N))
        if way == "softmax":  # which knows nothing of heads
            weights = scores.flatten(1, 2).softmax(-1)
        else:
            weights = scores.softmax(-1)
            weights = nn.functional.dropout(weights, 0.0) if way == "dropout" else weights
            weights = weights.reshape(B, H * N, -1)
        if way == "turned round":
            return (key.mT @ weights.mT).mT.unflatten(1, (H, N))
        return (weights @ key).unflatten(1, (H, N))

    def maps(query, key):
        return weighed(query, key[:, None].expand(-1, H, -1, -1))

    of_heads(shared, N, M, maps=maps, model=OneKey)


def test_one_text_without_an_axis_for_it():
    """(N, width), of which the model makes heads."""

    class Unbatched(nn.Module):
        def __init__(self):
            super().__init__()
            self.project = nn.Linear(WIDTH, H * D)

        def heads(self, x):
            return self.project(x).unflatten(-1, (H, D)).transpose(0, 1)

        def forward(self, x):
            x = self.heads(x)
            return (x @ x.mT).softmax(-1) @ x

    model, x = Unbatched(), torch.randn(N, WIDTH)
    heads = model.heads(x)[None]
    shows(looked_at(model, x), weighed(heads, heads), proof="proved")


@pytest.mark.parametrize("texts", [1, 2])
def test_tokens_that_were_put_together(texts):
    """An axis of pieces may be of heads; where heads were followed it is of queries."""

    class Together(Heads):
        def forward(self, x):
            return super().forward(self.pieces(x))

        def pieces(self, x):
            return torch.stack([x.mean(1), x.amax(1), x[:, 0]], dim=1)

    model = Together(lambda query, key: (query @ key.mT).softmax(-1) @ key)
    x = torch.randn(texts, N, WIDTH)
    expected = weighed(*model.heads(model.pieces(x)))
    recording = looked_at(model, x)
    shows(recording, expected, proof="proved" if texts == 1 else "assumed")
    recording.verify(model, x)
    shows(recording, expected, proof="proved")


def test_one_text_whose_heads_have_two_axes():
    """As gpt-oss has it: queries (N, heads, group, d), and keys (M, heads, d) for each group."""

    class Grouped(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key = nn.Linear(WIDTH, H * G * D), nn.Linear(WIDTH, H * D)

        def heads(self, x, y):
            return self.query(x).unflatten(-1, (H, G, D)), self.key(y).unflatten(-1, (H, D))

        def forward(self, x, y):
            query, key = self.heads(x, y)
            key = key[:, :, None].expand(-1, -1, G, -1)
            weights = torch.einsum("qhmd,khmd->hmqk", query, key).softmax(-1)
            return torch.einsum("hmqk,khmd->qhmd", weights, key)

    model, given = Grouped(), (torch.randn(N, WIDTH), torch.randn(M, WIDTH))
    query, key = model.heads(*given)
    shared = key.transpose(0, 1)[:, None].expand(-1, G, -1, -1)
    map_ = weighed(query.permute(1, 2, 0, 3), shared).flatten(0, 1)[None]
    shows(looked_at(model, *given), map_, proof="proved")


class Columns(nn.Module):
    """As ESM-MSA has it: ids (B, rows, columns), and rows attend to each other in each column."""

    def __init__(self):
        super().__init__()
        self.embed, self.project = nn.Embedding(20, WIDTH), nn.Linear(WIDTH, H * D)

    def heads(self, ids):
        """(rows, columns, B, heads, width)."""
        return self.project(self.embed(ids)).permute(1, 2, 0, 3).unflatten(-1, (H, D))

    def forward(self, ids):
        x = self.heads(ids)
        weights = torch.einsum("icnhd,jcnhd->hcnij", x, x).softmax(-1)
        return torch.einsum("hcnij,jcnhd->icnhd", weights, x)


@pytest.mark.parametrize("texts", [1, 2, 6])
def test_columns_of_an_alignment_are_parts_of_texts_and_no_heads(texts):
    """Each text's columns one after another, though the model has columns first."""
    ids = torch.randint(20, (texts, N, 6))
    x = (model := Columns()).heads(ids).permute(2, 1, 3, 0, 4).flatten(0, 1)
    follows(model, (ids,), weighed(x, x))


class PositionsFirst(nn.Module):
    """As Transformer-XL has it: ids (T, B), and a softmax over the second of four axes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, H * D)

    def heads(self, tokens):
        return self.embed(tokens).unflatten(-1, (H, D))

    def forward(self, tokens):
        x = self.heads(tokens)
        weights = torch.einsum("ibnd,jbnd->ijbn", x / D, x).softmax(dim=1)
        return torch.einsum("ijbn,jbnd->ibnd", weights, x)


@pytest.mark.parametrize(("length", "texts"), [(N, 2), (2, N), (N, N)])
def test_a_softmax_over_the_second_axis_of_positions_that_come_first(length, texts):
    ids = torch.randint(20, (length, texts))
    found = looked_at(model := PositionsFirst(), ids)
    x = model.heads(ids).permute(1, 2, 0, 3)
    shows(found, weighed(x / D, x), proof="assumed")
    found.verify(model, [ids])
    shows(found, weighed(x / D, x), proof="proved")


@pytest.mark.parametrize("texts", [1, 2])
def test_what_runs_in_torch_func_is_shown_and_assumed(texts):
    def both(x, y):
        return torch.func.vmap(lambda x, y: (x @ y.mT).softmax(-1) @ y)(x, y)

    given = torch.randn(texts, N, D), torch.randn(texts, M, D)
    proof = "assumed" if texts > 1 else None
    shows(looked_at(Given(both), *given), weighed(*given)[:, None], proof=proof)


def attend(query, key):
    return (query @ key.mT).softmax(-1) @ key


RAW = [(2, 3), (3, 2), (1, 3), (3, 1), (2, 2), (6,), (1,), (2, 3, 4), ()]


@pytest.mark.parametrize("lead", RAW, ids=str)
def test_of_raw_tensors_all_maps_are_there_and_none_is_proved(lead):
    query, key = torch.randn(*lead, N, D), torch.randn(*lead, M, D)
    recording = looked_at(Given(attend), query, key)
    expected = weighed(query, key).reshape(-1, N, M)
    found = torch.cat([sequence[0].weights() for sequence in recording.sequences])
    left = list(range(len(expected)))
    for map_ in found:
        near = [one for one in left if torch.allclose(expected[one], map_, atol=2e-6, rtol=1e-5)]
        assert len(near) == 1
        left.remove(near[0])
    assert not left
    if len(expected) > 1:  # of one map there is nothing to be taken for another
        assert {call.proof for call in recording} == {"assumed"}


TOLD = {
    "b h n d": lambda one: one,
    "h b n d": lambda one: one.transpose(0, 1),
    "(b h) n d": lambda one: one.flatten(0, 1),
    "(h b) n d": lambda one: one.transpose(0, 1).flatten(0, 1),
}


@pytest.mark.parametrize("pattern", TOLD)
def test_axes_that_are_told(pattern):
    """Of raw tensors; how many texts there are is known from another input."""

    def turned(query, key, _):
        return attend(TOLD[pattern](query), TOLD[pattern](key))

    query, key, ids = torch.randn(B, H, N, D), torch.randn(B, H, M, D), torch.zeros(B, N).long()
    found = looked_at(Given(turned), query, key, ids, axes={"Given": pattern})
    shows(found, weighed(query, key))
    assert "heads" not in found[0].inferred


def test_windows_that_are_told():
    query, key = torch.randn(B, 4, H, N, D), torch.randn(B, 4, H, M, D)

    def windows(query, key):
        return attend(query.transpose(1, 2), key.transpose(1, 2))

    found = looked_at(Given(windows), query, key, axes={"Given": "b h w n d"})
    shows(found, weighed(query, key).flatten(0, 1))


def test_a_wrong_word_of_the_user_is_refuted_by_texts_alone():
    model = Given(attend)
    query, key = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    with heedful.record(model, axes={"Given": "h b n d"}) as recording:
        model(query, key)
    recording.verify(model, [query, key])
    assert {call.proof for call in recording} == {"refuted"}
    assert math.prod(recording[0].shape) == B * N * M


class Sources(nn.Module):
    """A learned query, or some, chooses among several sources at each token."""

    def __init__(self, queries):
        super().__init__()
        self.query, self.made = nn.Parameter(torch.randn(queries, D)), nn.Linear(WIDTH, M * D)

    def forward(self, x):
        sources = self.made(x).unflatten(-1, (M, D))
        asked = self.query.expand(*sources.shape[:-2], -1, -1)
        return nn.functional.scaled_dot_product_attention(asked, sources, sources)


@pytest.mark.parametrize("queries", [1, 3])
@pytest.mark.parametrize("texts", [1, 2])
def test_a_learned_query_at_each_token_makes_parts_of_texts(texts, queries):
    model, x = Sources(queries), torch.randn(texts, N, WIDTH)
    with heedful.record(model) as recording:
        model(x)
    assert recording.missed == {}
    sources = model.made(x).unflatten(-1, (M, D)).flatten(0, 1)
    expected = weighed(model.query.expand(len(sources), -1, -1) / D**0.5, sources)
    assert len(recording.sequences) == texts * N
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        torch.testing.assert_close(call.weights(), map_[None], atol=2e-6, rtol=1e-5)
    recording.verify(model, x)
    # several rows of a parameter may be queries, or heads that ask the same keys
    assert [call.proof for call in recording] == ["proved" if queries == 1 else "assumed"]


class Learned(nn.Module):
    """Learned queries are projected before they ask the tokens, as in DETR's first layer."""

    def __init__(self, is_fused, projection):
        super().__init__()
        self.is_fused = is_fused
        self.table = nn.Parameter(torch.randn(N, WIDTH))
        self.asks, self.says = projection(), nn.Linear(WIDTH, H * D)

    def heads(self, x):
        table = self.table[None].repeat(len(x), 1, 1)
        query, key = self.asks(table + torch.zeros_like(table)), self.says(x)
        return [one.unflatten(-1, (H, D)).transpose(1, 2) for one in (query, key)]

    def forward(self, x):
        query, key = self.heads(x)
        if self.is_fused:
            return nn.functional.scaled_dot_product_attention(query, key, key, scale=1.0)
        return (query @ key.mT).softmax(-1) @ key


class Factors(nn.Module):
    """A product with two matrices, which is no linear layer of torch's."""

    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Parameter(torch.randn(sizes)) for sizes in ((WIDTH, 2), (2, H * D))
        )

    def forward(self, x):
        return x @ (self.first @ self.second)


class LowRank(nn.Module):
    """A linear layer's weight with the product of two others added to it, as LoRA merges them."""

    def __init__(self):
        super().__init__()
        self.whole = nn.Linear(WIDTH, H * D)
        self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, H * D, bias=False)

    def forward(self, x):
        weight = self.whole.weight + self.up.weight @ self.down.weight
        return nn.functional.linear(x, weight, self.whole.bias)


PROJECTIONS = {"linear": lambda: nn.Linear(WIDTH, H * D), "factors": Factors, "low rank": LowRank}


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_projected_learned_queries_have_heads(projection, texts, is_fused, is_inference):
    model, x = Learned(is_fused, PROJECTIONS[projection]), torch.randn(texts, M, WIDTH)
    with torch.inference_mode(is_inference), heedful.record(model) as recording:
        model(x)
    assert recording.missed == {}
    recording.verify(model, x)
    for [call], map_ in zip(recording.sequences, weighed(*model.heads(x)), strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)
        assert call.proof == "proved"


class Grouped(nn.Module):
    """Groups of heads, each head with learned queries of its own, which stand one after another."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(H, G, N, WIDTH))
        self.asks, self.says = nn.Linear(WIDTH, D), nn.Linear(WIDTH, H * D)

    def forward(self, x):
        query = self.asks(self.table).flatten(1, 2)[None].expand(len(x), -1, -1, -1)
        key = self.says(x).unflatten(-1, (H, D)).transpose(1, 2)
        return nn.functional.scaled_dot_product_attention(query, key, key)


def test_heads_that_learned_queries_have_are_not_taken_for_queries_without_a_word():
    model, x = Grouped(), torch.randn(1, M, WIDTH)
    recording = looked_at(model, x)
    assert recording[0].proof == "assumed"
    assert "whether 4 × 5 are heads, queries or texts" in recording[0].why


class Seeds(nn.Module):
    """Heads of a parameter that ask once each; two of them share the keys of one projected head."""

    def __init__(self):
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, 4, 1, D))
        self.says = nn.Linear(WIDTH, 2 * D)

    def forward(self, x):
        key = self.says(x).unflatten(-1, (2, D)).transpose(1, 2)
        query = self.seeds.expand(len(x), -1, -1, -1)
        return nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)


@pytest.mark.parametrize("texts", [1, 2])
def test_heads_of_a_parameter_that_share_keys_are_not_proved_to_be_queries(texts):
    model, x = Seeds(), torch.randn(texts, N, WIDTH)
    recording = looked_at(model, x)
    recording.verify(model, x)
    key = model.says(x).unflatten(-1, (2, D)).transpose(1, 2).repeat_interleave(2, dim=1)
    for [call], map_ in zip(recording.sequences, weighed(model.seeds / D**0.5, key), strict=True):
        assert call.proof == "assumed"
        assert call.why.startswith("inferred: whether 2 are heads, queries or texts")
        rows = [one.detach().flatten(0, 1) for one in (call.weights(), map_)]  # if heads or queries
        torch.testing.assert_close(*rows, atol=2e-6, rtol=0)


class AmongThemselves(Learned):
    """Learned queries that attend to each other before any token is read."""

    def heads(self, x):
        query, _ = super().heads(x)
        return query, query.cos()


@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
def test_learned_queries_that_attend_to_each_other_have_heads(is_fused, is_inference):
    model, x = AmongThemselves(is_fused, PROJECTIONS["linear"]), torch.randn(2, M, WIDTH)
    with torch.inference_mode(is_inference), heedful.record(model) as recording:
        model(x)
    recording.verify(model, x)
    for [call], map_ in zip(recording.sequences, weighed(*model.heads(x)), strict=True):
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=1e-5)
        assert call.proof == "proved"


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_heads_of_tokens_through_a_weight_put_together(projection):
    def attend(query, key):
        return (query @ key.mT).softmax(-1) @ key

    model, x = Heads(attend), torch.randn(2, N, WIDTH)
    model.asks, model.says = (PROJECTIONS[projection]() for _ in range(2))
    found = looked_at(model, x)
    shows(found, weighed(*model.heads(x)))


@pytest.mark.parametrize("seen", [lambda x: x, lambda x: x.transpose(0, 1), lambda x: x[:, 1:]])
def test_numbers_viewed_as_complex_ones_stand_along_the_same_axes(seen):
    """A stride counts numbers, and a complex one takes twice the bytes."""
    traced, x = Traced(Parameters({})), torch.randn(3, 5, 4, 2)
    traced.begin([(x, False)])
    axes = traced.view(seen(torch.view_as_complex(x))).axes()
    assert None not in axes
    assert axes == traced.view(seen(x)).axes()[:-1]


class Pooled(nn.Module):
    """Queries and keys of each head are convolved over an image, as MViT pools them."""

    def __init__(self):
        super().__init__()
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)
        self.pool = nn.Conv2d(D, D, 3, padding=1, groups=D)

    def heads(self, x):
        made = [one.unflatten(-1, (H, D)).transpose(1, 2) for one in (self.asks(x), self.says(x))]
        return [self.pooled(one) for one in made]

    def pooled(self, one):  # (B, H, N, d)
        image = one.reshape(-1, 2, 3, D).permute(0, 3, 1, 2)
        return self.pool(image).flatten(2).mT.unflatten(0, (-1, H))

    def forward(self, x):
        query, key = self.heads(x)
        return (query @ key.mT).softmax(-1) @ key


class PooledTwice(Pooled):
    """With a border of zeros between two convolutions."""

    def pooled(self, one):
        image = self.pool(one.reshape(-1, 2, 3, D).permute(0, 3, 1, 2))
        image = self.pool(nn.functional.pad(image, (1, 1, 1, 1)))
        return image.flatten(2).mT.unflatten(0, (-1, H))


class BorderFirst(Pooled):
    """With a border of other numbers before the convolution, which is not the convolution's own."""

    def pooled(self, one):
        image = one.reshape(-1, 2, 3, D).permute(0, 3, 1, 2)
        image = nn.functional.pad(image, (1, 1, 1, 1), mode="replicate")
        image = nn.functional.conv2d(image, self.pool.weight, groups=D)
        return image.flatten(2).mT.unflatten(0, (-1, H))


class PooledByLargest(Pooled):
    """No layer of parameters reads the image: heads stay beside it as they were."""

    def pooled(self, one):
        image = one.reshape(-1, 2, 3, D).permute(0, 3, 1, 2)
        return nn.functional.max_pool2d(image, 2, 1).flatten(2).mT.unflatten(0, (-1, H))


class OverHeads(Pooled):
    """Heads that `stack` put side by side are mixed by a convolution along them, as over space."""

    def __init__(self):
        super().__init__()
        self.of_heads = nn.ModuleList(nn.Linear(WIDTH, D) for _ in range(2 * H))

    def heads(self, x):
        made = [layer(x) for layer in self.of_heads]
        return [self.pooled(torch.stack(made[half::2], dim=1)) for half in (0, 1)]

    def pooled(self, one):
        return self.pool(one.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class AlongTheWidth(Pooled):
    """A convolution whose texts are tokens, and whose space is the features."""

    def __init__(self):
        super().__init__()
        self.along = nn.Conv1d(1, 1, 3, padding=1)

    def heads(self, x):
        made = (layer(x) for layer in (self.asks, self.says))
        made = [self.along(one.reshape(-1, 1, H * D)).view(*x.shape[:2], H, D) for one in made]
        return [one.transpose(1, 2) for one in made]


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize(
    ("model", "proof"),
    [
        (Pooled, "assumed"),
        (PooledTwice, "assumed"),
        (BorderFirst, "assumed"),
        (PooledByLargest, "proved"),
        (OverHeads, "assumed"),
        (AlongTheWidth, "proved"),
    ],
)
def test_a_convolution_makes_no_sequences_of_heads(model, proof, texts):
    model, x = model(), torch.randn(texts, 6, WIDTH)
    recording = looked_at(model, x)
    recording.verify(model, x)
    shows(recording, weighed(*model.heads(x)), proof=proof)


MOVES = {  # of (B · H, N, d)
    "roll": lambda one: one.roll((1, 2), dims=(-2, 2)),
    "flip": lambda one: one.flip(-2),
    "some": lambda one: one.index_select(1, torch.tensor([4, 0, 0])),
    "pad": lambda one: nn.functional.pad(one, (0, 0, 2, 1)),
}


@pytest.mark.parametrize("way", MOVES)
def test_heads_stay_beside_tokens_that_come_to_stand_elsewhere(way):
    def move(query, key):
        return [MOVES[way](one.flatten(0, 1)).unflatten(0, (-1, H)) for one in (query, key)]

    def moved(query, key):
        query, key = move(query, key)
        return (query @ key.mT).softmax(-1) @ key

    of_heads(moved, N, M, maps=lambda query, key: weighed(*move(query, key)))


@pytest.mark.parametrize("texts", [1, 2])
def test_heads_of_channels_that_share_keys_are_no_channels(texts):
    def across(query, key):  # (B, H, N, d), of which one head's keys are for all
        scores = torch.einsum("bhnc,bnd->bhcd", query, key[:, 0])
        return torch.einsum("bhcd,bnd->bhnc", scores.softmax(-1), key[:, 0])

    model, x = Heads(across), torch.randn(texts, N, WIDTH)
    recording = looked_at(model, x)
    query, key = model.heads(x)
    shows(recording, weighed(query.mT, key[:, :1].mT.expand(-1, H, -1, -1)), proof="assumed")


def test_heads_of_one_channel_that_share_keys_are_no_channels():
    def across(query, key):  # (B, H, N, 1): a map of one row for each head
        scores = torch.einsum("bhnc,bnd->bhcd", query[..., :1], key[:, 0])
        return torch.einsum("bhcd,bnd->bhnc", scores.softmax(-1), key[:, 0])

    model, x = Heads(across), torch.randn(1, N, WIDTH)
    recording = looked_at(model, x)
    query, key = model.heads(x)
    expected = weighed(query[..., :1].mT, key[:, :1].mT.expand(-1, H, -1, -1))
    shows(recording, expected, proof="assumed")


def test_heads_that_share_the_only_key_are_no_channels():
    def shared(query, key):  # as in the first step of a generation
        weights = torch.einsum("bhnd,bmd->bhnm", query, key[:, 0]).softmax(-1)
        return torch.einsum("bhnm,bmd->bhnd", weights, key[:, 0])

    recording = looked_at(Heads(shared), torch.randn(1, 1, WIDTH))
    assert (recording[0].shape, recording[0].proof) == ((H, 1, 1), "assumed")


class Interleaved(Heads):
    """As the Decision Transformer has them: tokens of several kinds, stacked, and in turn."""

    def __init__(self, attends=None):
        super().__init__(attends)
        self.kinds = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def heads(self, x, y):
        tokens = torch.stack([kind(one) for kind, one in zip(self.kinds, (x, y), strict=True)], 2)
        return super().heads(tokens.flatten(1, 2))


@pytest.mark.parametrize("length", [5, H, 2])
def test_tokens_that_were_stacked_and_are_keys_too_are_queries(length):
    def attends(query, key):
        return (query @ key.mT).softmax(-1) @ key

    of_heads(attends, length, length, model=Interleaved, texts=[1, 2, 3])


class TwoLayers(nn.Module):
    """Two layers one after the other for the width of a head, which all heads share."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, H * D)
        self.asks, self.says = (
            nn.Sequential(nn.Linear(D, D), nn.Tanh(), nn.Linear(D, D)) for _ in range(2)
        )

    def heads(self, x):
        heads = self.project(x).unflatten(-1, (H, D)).transpose(1, 2)
        return self.asks(heads), self.says(heads)

    def forward(self, x):
        query, key = self.heads(x)
        return (query @ key.mT).softmax(-1) @ key


@pytest.mark.parametrize("texts", [1, 2, 3])
@pytest.mark.parametrize("length", [5, H])
def test_heads_that_two_layers_go_through_one_after_the_other(texts, length):
    model, x = TwoLayers(), torch.randn(texts, length, WIDTH)
    recording = looked_at(model, x)
    shows(recording, weighed(*model.heads(x)), proof="assumed")


@pytest.mark.parametrize("texts", [H, 2 * H, 2])
def test_what_was_followed_to_the_texts_is_theirs_whatever_its_place(texts):
    """Heads first, of an input that is split, and as many as texts."""

    def heads_first(x):
        x = x.unflatten(1, (H, D)).permute(1, 0, 3, 4, 2).flatten(2, 3)
        return (x @ x.mT).softmax(-1) @ x

    x = torch.randn(texts, H * D, 2, 3)
    heads = x.unflatten(1, (H, D)).flatten(3).mT
    shows(looked_at(Given(heads_first), x), weighed(heads, heads), proof="assumed")


class OneHead(nn.Module):
    """One head in windows of an image (B, C, h, w), as GMFlow has it, or in its rows."""

    def __init__(self, way, kernel):
        super().__init__()
        self.way, self.kernel = way, kernel
        self.asks, self.says = nn.Linear(WIDTH, D), nn.Linear(WIDTH, D)

    def heads(self, image):
        """(windows, N, D)."""
        made = [layer(image.permute(0, 2, 3, 1)) for layer in (self.asks, self.says)]
        if self.way == "windows":
            made = [one.unflatten(2, (2, -1)).unflatten(1, (2, -1)).transpose(2, 3) for one in made]
        last = 3 if self.way == "windows" else 2
        return [one.flatten(0, last - 1).flatten(1, -2) for one in made]

    def forward(self, image):
        query, key = self.heads(image)
        if self.kernel:
            query, key = query[:, None], key[:, None]
            return nn.functional.scaled_dot_product_attention(query, key, key, scale=1.0)
        return (query @ key.mT).softmax(-1) @ key


@pytest.mark.parametrize("texts", [1, 2, 4])
@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("way", ["windows", "rows"])
def test_one_head_has_windows_and_no_heads(way, kernel, texts):
    model, image = OneHead(way, kernel), torch.randn(texts, WIDTH, 4, 6)
    maps = weighed(*model.heads(image))[:, None]
    recording = looked_at(model, image)
    assert len(recording.sequences) == len(maps)
    for [call], map_ in zip(recording.sequences, maps, strict=True):
        torch.testing.assert_close(call.weights().detach(), map_, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("texts", [1, 2, H])
@pytest.mark.parametrize("length", [5, H])
def test_heads_of_what_a_model_is_given_that_a_layer_goes_through_are_no_windows(texts, length):
    """As in a well-known lesson: the width of each head is projected, by one layer for all."""

    class Shared(TwoLayers):
        def __init__(self):
            super().__init__()
            self.asks, self.says = nn.Linear(D, D), nn.Linear(D, D)

        def heads(self, x):
            heads = x.unflatten(-1, (H, D)).transpose(1, 2)
            return self.asks(heads), self.says(heads)

    model, x = Shared(), torch.randn(texts, length, H * D)
    shows(looked_at(model, x), weighed(*model.heads(x)), proof="assumed")
