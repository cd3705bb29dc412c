"""Einsums by hand, in any order of their letters, of heads that can be followed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from looked import WIDTH, B, Heads, follows, looked_at, of_heads, shows, weighed
from torch import nn

H, G, N, M, D = 3, 4, 5, 7, 6
PRIMES = (3, 5, 7, 11)


class Spelled(nn.Module):
    """Attention in two einsums whose operands and results have their axes in some order.

    Letters: b texts, h heads, g heads that share a key, i queries, j keys, d width. Sizes are told
    by letters; `softmax` says what to do along an axis.
    """

    def __init__(self, orders, sizes, groups="", is_left=True):
        super().__init__()
        self.of_query, self.of_key, self.own, self.other, self.out = map("".join, orders)
        self.groups, self.sizes, self.is_left = groups, sizes, is_left
        wide = sizes["h"] * sizes["d"]
        self.query = nn.Linear(WIDTH, wide * (sizes["g"] if groups else 1))
        self.key = nn.Linear(WIDTH, wide)

    def heads(self, x, y):
        """(b, h, g, i, d) or (b, h, i, d), and (b, h, j, d)."""
        letters = "h" + self.groups + "d"
        query = self.query(x).unflatten(-1, [self.sizes[one] for one in letters])
        key = self.key(y).unflatten(-1, [self.sizes[one] for one in "hd"])
        return query.movedim(1, -2), key.movedim(1, -2)

    def forward(self, x, y):
        query, key = self.heads(x, y)
        mine = f"bh{self.groups}id"
        query = query.permute([mine.index(axis) for axis in self.of_query])
        value = key.permute(["bhjd".index(axis) for axis in self.other])
        key = key.permute(["bhjd".index(axis) for axis in self.of_key])
        scores = torch.einsum(f"{self.of_query},{self.of_key}->{self.own}", query, key)
        weights = scores.softmax(self.own.index("j"))
        if self.is_left:
            return torch.einsum(f"{self.own},{self.other}->{self.out}", weights, value)
        return torch.einsum(f"{self.other}, {self.own} -> {self.out}", value, weights)


def orders(*axes):
    return some.tuples(*(some.permutations(of_one) for of_one in axes))


def maps(model, x, y):
    query, key = model.heads(x, y)
    if model.groups:
        key = key[:, :, None].expand(-1, -1, query.shape[2], -1, -1)
        return weighed(query, key).flatten(1, 2)
    return weighed(query, key)


@settings(max_examples=60)
@given(
    orders("bhid", "bhjd", "bhij", "bhjd", "bhid"),
    some.permutations(PRIMES),
    some.sampled_from([1, 2, 5]),
    some.booleans(),
)
def test_letters_in_any_order_are_maps_in_double_precision(axes, sizes, texts, is_left):
    model = Spelled(axes, dict(zip("hijd", sizes, strict=True)), is_left=is_left).double()
    _, queries, keys, _ = sizes
    x, y = (torch.randn(texts, length, WIDTH).double() for length in (queries, keys))
    follows(model, (x, y), maps(model, x, y))


@settings(max_examples=60)
@given(
    orders("bhgid", "bhjd", "bhgij", "bhjd", "bhgid"),
    some.permutations(PRIMES),
    some.sampled_from([1, 2, 3]),
    some.booleans(),
)
def test_heads_that_share_values_in_any_order(axes, sizes, texts, is_left):
    """Heads are counted as the features of their projection."""
    named = {**dict(zip("hijd", sizes, strict=True)), "g": 2}
    model = Spelled(axes, named, "g", is_left).double()
    x, y = (torch.randn(texts, named[one], WIDTH).double() for one in "ij")
    follows(model, (x, y), maps(model, x, y))


@settings(max_examples=40)
@given(
    orders("bhid", "bhjd", "bhij", "bhjd", "bhid"),
    some.tuples(*(some.sampled_from([2, 3]) for _ in range(4))),
    some.sampled_from([1, 2, 3]),
    some.booleans(),
)
def test_letters_in_any_order_whose_sizes_are_equal(axes, sizes, texts, is_left):
    named = dict(zip("hijd", sizes, strict=True))
    model = Spelled(axes, named, is_left=is_left).double()
    x, y = (torch.randn(texts, named[one], WIDTH).double() for one in "ij")
    follows(model, (x, y), maps(model, x, y))


@settings(max_examples=40)
@given(
    orders("bhid", "bhjd", "bhij", "bhjd", "bhid"),
    some.tuples(*(some.sampled_from([1, 2]) for _ in range(4))),
    some.sampled_from([1, 2]),
    some.booleans(),
)
def test_axes_of_one_are_shown_right_or_missed(axes, sizes, texts, is_left):
    """Of one key, or of a width of one, an einsum makes no product below Python."""
    named = dict(zip("hijd", sizes, strict=True))
    model = Spelled(axes, named, is_left=is_left)
    x, y = (torch.randn(texts, named[one], WIDTH) for one in "ij")
    recording = looked_at(model, x, y, missed=None)
    if recording.missed:
        assert (len(recording), 1 in (named["j"], named["d"])) == (0, True)
    else:
        found = torch.stack([one[0].weights() for one in recording.sequences])
        torch.testing.assert_close(found, maps(model, x, y), atol=2e-6, rtol=1e-5)


def test_the_first_token_of_a_generation():
    sizes = {"h": H, "i": 1, "j": 1, "d": D}
    model = Spelled(("bhid", "bhjd", "bhij", "bhjd", "bhid"), sizes)
    x = torch.randn(B, 1, WIDTH)
    follows(model, (x, x), torch.ones(B, H, 1, 1))


@settings(max_examples=20)
@given(orders("bhgij", "bhjd", "bhgid"), some.booleans())
def test_one_query_beside_a_cache(axes, is_left):
    sizes = {"h": H, "g": G, "i": 1, "j": M, "d": D}
    model = Spelled(("bhgid", "bhjd", *axes), sizes, "g", is_left)
    x, y = torch.randn(B, 1, WIDTH), torch.randn(B, M, WIDTH)
    found = looked_at(model, x, y)
    shows(found, maps(model, x, y), proof="assumed")  # several queries of one head look the same


@settings(max_examples=20)
@given(orders("bgij", "bjd", "bgid"))
def test_heads_that_share_all_values_in_any_order(axes):
    own, other, out = map("".join, axes)

    class Shared(Heads):
        def heads(self, x, y=None):
            query, key = super().heads(x, y)
            return query, key[:, 0]

    def attend(query, key):
        weights = torch.einsum(f"bgid,bjd->{own}", query, key).softmax(own.index("j"))
        value = key.permute(["bjd".index(axis) for axis in other])
        return torch.einsum(f"{own},{other}->{out}", weights, value)

    def expected(query, key):
        return weighed(query, key[:, None].expand(-1, H, -1, -1))

    of_heads(attend, N, N, maps=expected, model=Shared)


@pytest.mark.parametrize("is_left", [True, False])
def test_dots_for_texts_and_heads(is_left):
    def dotted(query, key):
        weights = torch.einsum("... i d, ... j d -> ... i j", query, key).softmax(-1)
        if is_left:
            return torch.einsum("...ij, ...jd -> ...id", weights, key)
        return torch.einsum("...jd, ...ij -> ...id", key, weights)

    of_heads(dotted, N, M)


@pytest.mark.parametrize(
    "axes",
    [
        ("bqhd", "bkhd", "bqhk", "bqhk,bkhd->bqhd"),
        ("bqhd", "bkhd", "bqhk", "bkhd,bqhk->bqhd"),  # weights on the right
        ("bqhd", "bkhd", "bhqk", "bhqk,bkhd->bqhd"),
        ("bhqd", "bhkd", "bhqk", "b h q k, b h k d -> b h q d"),
        ("bhqd", "bhkd", "bhqk", "bhkd,bhqk->bqhd"),
        ("bqhd", "bkhd", "bqhk", "bqhk,bkhd->bhdq"),
        ("bqhd", "bkhd", "qbhk", "qbhk,bkhd->qbhd"),
    ],
)
def test_einsums_as_they_are_often_written(axes):
    of_query, of_key, of_weights, product = axes

    def attend(query, key):
        query = query.permute(["bhqd".index(axis) for axis in of_query])
        key = key.permute(["bhkd".index(axis) for axis in of_key])
        weights = torch.einsum(f"{of_query},{of_key}->{of_weights}", query, key).softmax(-1)
        is_first = product.replace(" ", "").startswith(of_weights)
        value = key.permute([of_key.index(axis) for axis in _of_value(product, of_weights)])
        return torch.einsum(product, *((weights, value) if is_first else (value, weights)))

    of_heads(attend, N, M)


def _of_value(product, of_weights):
    one, other = product.replace(" ", "").split("->")[0].split(",")
    return other if one == of_weights else one
