"""Einsums by hand: their letters tell queries, keys, heads and texts, and values from all else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from looked import looked_at, shows, weighed
from torch import nn

import heedful

B, H, G, N, M, D = 2, 3, 4, 5, 7, 6


class Spelled(nn.Module):
    """Attention in two einsums, whose weights, values and output have their axes in some order."""

    def __init__(self, of_query, of_key, orders, is_left=True):
        super().__init__()
        self.given, self.is_left = (of_query, of_key), is_left
        self.own, self.other, self.out = ("".join(order) for order in orders)

    def forward(self, query, key):
        scores = torch.einsum(f"{','.join(self.given)}->{self.own}", query, key)
        weights = scores.softmax(self.own.index("j"))
        value = key.permute([self.given[1].index(axis) for axis in self.other])
        if self.is_left:
            return torch.einsum(f"{self.own},{self.other}->{self.out}", weights, value)
        return torch.einsum(f"{self.other}, {self.own} -> {self.out}", value, weights)


def orders(*axes):
    return some.tuples(*(some.permutations(of_one) for of_one in axes))


@settings(max_examples=50, deadline=None)
@given(orders("bhij", "bhjd", "bhid"), some.booleans())
def test_letters_in_any_order(axes, is_left):
    query, key = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    found = looked_at(Spelled("bhid", "bhjd", axes, is_left), query, key)
    shows(found, weighed(query, key))


@settings(max_examples=50, deadline=None)
@given(orders("bhgij", "bhjd", "bhgid"), some.booleans())
def test_heads_that_share_values_in_any_order(axes, is_left):
    """Of a text that attends to itself; heads come in the order that they have in the output."""
    query, key = torch.randn(B, H, G, N, D), torch.randn(B, H, N, D)
    map_ = weighed(query, key[:, :, None].expand_as(query))
    map_ = map_ if axes[2].index("h") < axes[2].index("g") else map_.transpose(1, 2)
    found = looked_at(Spelled("bhgid", "bhjd", axes, is_left), query, key)
    shows(found, map_.flatten(1, 2))


@settings(max_examples=20, deadline=None)
@given(orders("bgij", "bjd", "bgid"))
def test_heads_that_share_all_values_in_any_order(axes):
    query, key = torch.randn(B, G, N, D), torch.randn(B, N, D)
    found = looked_at(Spelled("bgid", "bjd", axes), query, key)
    shows(found, weighed(query, key[:, None].expand_as(query)))


@pytest.mark.parametrize("orders", [("bhgij", "bhjd", "bhgid"), ("bhgij", "bhjd", "bihgd")])
def test_heads_that_share_values_beside_a_cache(orders):
    query, key = torch.randn(B, H, G, 1, D), torch.randn(B, H, M, D)
    found = looked_at(Spelled("bhgid", "bhjd", orders), query, key)
    shows(found, weighed(query, key[:, :, None].expand(-1, -1, G, -1, -1)).flatten(1, 2))


@pytest.mark.parametrize("is_left", [True, False])
def test_dots_for_texts_and_heads(is_left):
    class Dotted(nn.Module):
        def forward(self, query, key):
            weights = torch.einsum("... i d, ... j d -> ... i j", query, key).softmax(-1)
            if is_left:
                return torch.einsum("...ij, ...jd -> ...id", weights, key)
            return torch.einsum("...jd, ...ij -> ...id", key, weights)

    query, key = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    shows(looked_at(Dotted(), query, key), weighed(query, key))


def test_one_text_whose_heads_have_two_axes():
    """As gpt-oss has it: queries (N, heads, group, d), and keys (M, heads, d) for each group."""

    class Grouped(nn.Module):
        def forward(self, query, key):
            key = key[:, :, None].expand(-1, -1, G, -1)
            weights = torch.einsum("qhmd,khmd->hmqk", query, key).softmax(-1)
            return torch.einsum("hmqk,khmd->qhmd", weights, key)

    query, key = torch.randn(N, H, G, D), torch.randn(M, H, D)
    found = looked_at(Grouped(), query, key)
    shared = key.transpose(0, 1)[:, None].expand(-1, G, -1, -1)
    shows(found, weighed(query.permute(1, 2, 0, 3), shared).flatten(0, 1)[None])


class Columns(nn.Module):
    """As ESM-MSA has it: ids (B, rows, columns), and rows attend to each other in each column."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, H * D)

    def heads(self, ids):
        """(rows, columns, B, heads, width)."""
        return self.embed(ids).permute(1, 2, 0, 3).unflatten(-1, (H, D)) / 2

    def forward(self, ids):
        x = self.heads(ids)
        weights = torch.einsum("icnhd,jcnhd->hcnij", x, x).softmax(-1)
        return torch.einsum("hcnij,jcnhd->icnhd", weights, x)


@pytest.mark.parametrize("texts", [1, 2])
def test_columns_of_an_alignment_are_texts_and_no_heads(texts):
    ids = torch.randint(20, (texts, N, 6))
    found = looked_at(model := Columns(), ids)
    x = model.heads(ids).permute(1, 2, 3, 0, 4).flatten(0, 1)
    shows(found, weighed(x, x))


class PositionsFirst(nn.Module):
    """As Transformer-XL has it: ids (T, B), and a softmax over the second of four axes."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, H * D)

    def forward(self, tokens):
        x = self.embed(tokens).unflatten(-1, (H, D))
        weights = torch.einsum("ibnd,jbnd->ijbn", x / D, x).softmax(dim=1)
        return torch.einsum("ijbn,jbnd->ibnd", weights, x)


def test_a_softmax_over_the_second_axis_of_positions_that_come_first():
    ids = torch.randint(20, (N, B))
    found = looked_at(model := PositionsFirst(), ids)
    x = model.embed(ids).unflatten(-1, (H, D)).permute(1, 2, 0, 3)
    shows(found, weighed(x / D, x))


class Talking(nn.Module):
    """Heads are mixed between softmax and values, as in CaiT and DeepViT."""

    def __init__(self, mix):
        super().__init__()
        self.mix = mix

    def forward(self, query, key):
        weights = torch.einsum("bhid,bhjd->bhij", query, key).softmax(-1)
        return torch.einsum("bhij,hg->bgij", weights, self.mix) @ key


def test_heads_that_talk_are_shown_as_they_were_used():
    mix = torch.rand(H, H).softmax(0)  # of each head that comes out, the shares are one
    query, key = torch.randn(B, H, N, D), torch.randn(B, H, M, D)
    mixed = (weighed(query, key)[:, :, None] * mix[:, :, None, None]).sum(1)
    shows(looked_at(Talking(mix), query, key), mixed)


def test_heads_that_talk_with_shares_below_nothing_are_missed_with_the_reason():
    with heedful.record(model := Talking(torch.randn(H, H))) as recording:
        model(torch.randn(B, H, N, D), torch.randn(B, H, M, D))
    assert (list(recording), list(recording.missed)) == ([], ["Talking"])
    assert "rows that sum to" in recording.missed["Talking"]


def test_pooling_is_one_query_of_each_text():
    class Pools(nn.Module):
        def forward(self, x, query):
            return torch.einsum("bm,bmd->bd", torch.einsum("bmd,d->bm", x, query).softmax(-1), x)

    x, query = torch.randn(3, M, D), torch.randn(D)
    found = looked_at(Pools(), x, query)
    shows(found, weighed(query.expand(3, 1, 1, D), x[:, None]))
    assert [call.kind for call in found] == ["cross"]


class Experts(nn.Module):
    """A router's shares of what experts say, and attention after it."""

    def __init__(self, way, experts=4):
        super().__init__()
        self.router, self.way = nn.Linear(D, experts), way
        self.experts = nn.Parameter(torch.randn(experts, D, D))

    def forward(self, x):
        shares, said = self.router(x).softmax(-1), torch.einsum("bnd,efd->bnef", x, self.experts)
        if self.way == "of each token":
            x = torch.einsum("bne,bnef->bnf", shares, said)
        elif self.way == "in one axis":
            x = torch.einsum("be,bef->bf", shares.flatten(0, 1), said.flatten(0, 1)).view_as(x)
        else:
            x = sum(shares[..., e : e + 1] * said[:, :, e] for e in range(len(self.experts)))
        self.x = x[:, None] / D
        return (self.x @ self.x.mT).softmax(-1) @ self.x


@pytest.mark.parametrize("way", ["of each token", "in one axis", "one by one"])
def test_a_router_is_no_attention_and_hides_none(way):
    found = looked_at(model := Experts(way), torch.randn(B, N, D))
    shows(found, weighed(model.x, model.x))
