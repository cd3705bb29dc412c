"""A module without a map of queries × keys is missed with a reason; any map is recorded."""

import pytest
import torch
from shown_maps import WIDTH, B, D, Given, H, Heads, M, N, looked_at, near, shows, weighed
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from heedful.recorder.doors.tape import NO_MAP, UNUSED
from heedful.recorder.doors.tape_inputs import ALONE

SILENT = "an OtherAttention, but no attention was detected in it"
NO_PRODUCT = "a softmax without a product of queries and keys, and not over tokens"


def given(*lengths, texts=B):
    return [torch.randn(texts, length, WIDTH) for length in lengths]


class OtherAttention(Heads):
    """Only its name suggests attention."""


class Beside(nn.Module):
    """A function without a map, and an ordinary layer after it."""

    def __init__(self, does):
        super().__init__()
        self.other = OtherAttention(does)
        self.attend = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)

    def forward(self, *given):
        return self.other(*given), self.attend(*given)


def is_missed(does, reason, lengths=(N, M)):
    """The reason is reported, nothing is recorded for it, and the layer beside it is recorded."""
    model, inputs = Beside(does), given(*lengths)
    recording = looked_at(model, *inputs, missed={"other": reason})
    assert [call.name for call in recording] == ["attend"]
    shows(recording, weighed(*model.attend.heads(*inputs)), proof="proved", layout="usual")


OVER_QUERIES = {
    "slots": lambda scores, x, y: scores.softmax(-2) @ y,
    "on the left": lambda scores, x, y: x.mT @ scores.softmax(-1),
    "an einsum": lambda scores, x, y: torch.einsum("bhij,bhid->bhjd", scores.softmax(-1), x),
}


@pytest.mark.parametrize("way", OVER_QUERIES)
@pytest.mark.parametrize("keys", [N, M])
def test_a_product_over_another_axis_than_the_softmax(way, keys):
    is_missed(lambda x, y: OVER_QUERIES[way](x @ y.mT, x, y), NO_MAP, (N, keys))


def sparsemax(scores):
    """Martins and Astudillo 2016."""
    ordered, counts = scores.sort(-1, descending=True)[0], torch.arange(1, M + 1)
    sums = ordered.cumsum(-1) - 1
    size = (ordered * counts > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, size - 1) / size).clamp(min=0)


NONE = {
    "exp alone": (lambda scores, x: scores.exp() @ x, NO_MAP),
    "a sigmoid": (lambda scores, x: scores.sigmoid() @ x, SILENT),
    "a sigmoid, renormalised": (
        lambda scores, x: (e := scores.sigmoid()) / e.sum(-1, keepdim=True) @ x,
        SILENT,
    ),
    "relu, renormalised": (
        lambda scores, x: (e := scores.relu()) / (e.sum(-1, keepdim=True) + 1e-6) @ x,
        SILENT,
    ),
    "sparsemax": (lambda scores, x: sparsemax(scores) @ x, SILENT),
    "nothing at all": (lambda scores, x: scores @ x, SILENT),
    "a gate": (lambda scores, x: (scores.exp() / (1 + scores.exp())) @ x, NO_MAP),
    "another norm": (lambda scores, x: (e := scores.exp()) / e.norm(dim=-1, keepdim=True) @ x, ""),
    "another axis": (lambda scores, x: (e := scores.exp()) / e.sum(-2, keepdim=True) @ x, NO_MAP),
    "logarithms": (lambda scores, x: scores.log_softmax(-1) @ x, NO_MAP),
    "sinkhorn, in logarithms": (
        lambda scores, x: scores.log_softmax(-1).log_softmax(-2).exp() @ x,
        NO_MAP,
    ),
    "sinkhorn, by hand": (
        lambda scores, x: ((s := scores.log_softmax(-1)) - s.logsumexp(-2, True)).exp() @ x,
        NO_MAP,
    ),
    "no sum": (lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).amax(-2), UNUSED),
    "another sum": (
        lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).sum(-3),
        UNUSED,
    ),
    "values of each query": (
        lambda scores, x: (scores.softmax(-1)[..., None] * torch.rand(B, H, N, M, D)).sum(-2),
        UNUSED,
    ),
}


@pytest.mark.parametrize("way", NONE)
def test_similar_operations_are_missed(way):
    does, reason = NONE[way]
    is_missed(lambda query, key: does(query @ key.mT, key), reason)


def test_only_the_innermost_module_is_missed():
    class OuterAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.core = OtherAttention(lambda query, key: (query @ key.mT).sigmoid() @ key)
            self.out = nn.Linear(D, WIDTH)

        def forward(self, x):
            return self.out(self.core(x))

    looked_at(OuterAttention(), *given(N), missed={"core": SILENT})


def linear(query, key):
    """Axes b, h, n, d."""
    value = key.exp()
    return query.softmax(-1) * D**-0.5 @ (key.softmax(-2).mT @ value)


def linear_over_an_image(query, key):
    """Axes b, h, d, n, as in a U-Net."""
    query, shares = query.mT.softmax(-2), key.mT.softmax(-1)
    context = torch.einsum("b h d n, b h e n -> b h d e", shares, key.exp().mT)
    return torch.einsum("b h d e, b h d n -> b h e n", context, query)


@pytest.mark.parametrize("keys", [N, M])  # equal and unequal numbers of queries and keys
@pytest.mark.parametrize("does", [linear, linear_over_an_image])
def test_linear_attention_is_missed(does, keys):
    is_missed(does, NO_PRODUCT, (N, keys))
    tensors = torch.randn(B, H, N, D), torch.randn(B, H, keys, D)
    assert len(looked_at(Given(does), *tensors, missed={"Given": NO_PRODUCT})) == 0


@pytest.mark.parametrize("does", [lambda x: (x * 2).relu(), lambda x: nn.functional.elu(x) + 1])
def test_linear_attention_without_any_softmax(does):
    is_missed(lambda query, key: does(query) @ (does(key).mT @ key), SILENT)


class Asked(nn.Module):
    """The queries are a parameter: their product with keys looks like that of a layer."""

    def __init__(self):
        super().__init__()
        self.rows, self.says = nn.Parameter(torch.randn(N, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return (self.rows @ self.says(x).mT).softmax(-1) @ x


def test_several_learned_queries_by_hand_that_no_layer_projects_are_missed():
    looked_at(Asked(), *given(M), missed={"Asked": "without a product of queries and keys"})


GATE = torch.rand(H, N, 1, generator=torch.Generator().manual_seed(9))
GATED = {
    "product": lambda weights: weights * GATE,
    "on the left": lambda weights: GATE * weights,
    "in place": lambda weights: weights.mul_(GATE),
    "division": lambda weights: weights.div(1 / GATE),
    "cast": lambda weights: (weights.double() * GATE).float(),
    "a number": lambda weights: weights * 0.9,
    "some left out": lambda weights: weights * (torch.arange(M) > 1),
    "a power": lambda weights: weights**2,
    "the largest": lambda weights: torch.where(weights > 0.2, weights, 0.0),
}


def test_a_gate_is_recorded_without_the_dropout_beside_it():
    model, inputs = gated(lambda weights: dropout(weights * GATE, 0.4)), given(N, M)
    expected = weighed(*model.heads(*inputs)) * GATE
    shows(looked_at(model, *inputs), expected, proof="unproved", layout="usual")


def gated(change):
    return Heads(lambda query, key: change((query @ key.mT).softmax(-1)) @ key)


@pytest.mark.parametrize("way", GATED)
def test_weights_that_are_reduced_after_the_softmax_are_recorded_as_used(way):
    model, inputs = gated(GATED[way]), given(N, M)
    recording = looked_at(model, *inputs)
    expected = GATED[way](weighed(*model.heads(*inputs)))
    shows(recording, expected, proof="proved", layout="usual")
    lacking, sink = 1 - expected[0].sum(-1), recording[0].learned_sink()
    near(sink.nan_to_num(nan=1.0), lacking)  # NaN for rows of zeros


def test_a_softmax_over_queries_with_normalised_rows_is_a_map():
    """As in slot attention: a softmax over the queries, then a division by the sums of rows."""

    def maps(query, key):
        shares = (query @ key.mT).softmax(-2)
        return shares / shares.sum(-1, keepdim=True)

    model, inputs = Heads(lambda query, key: maps(query, key) @ key), given(N, M)
    shows(looked_at(model, *inputs), maps(*model.heads(*inputs)), proof="proved", layout="usual")


MIXES = {
    "shares": torch.rand(H, H, generator=torch.Generator().manual_seed(9)).softmax(0),
    "any numbers": torch.randn(H, H, generator=torch.Generator().manual_seed(9)),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("is_learned", [True, False])
@pytest.mark.parametrize("way", ["an einsum", "a layer", "head by head"])
def test_heads_that_are_mixed_after_the_softmax(mix, is_learned, way):
    """As in CaiT and DeepViT: a mixture of several softmaxes. Its rows may sum to one."""

    class Talks(Heads):
        def __init__(self):
            super().__init__(self.talk)
            self.mix = nn.Parameter(MIXES[mix]) if is_learned else MIXES[mix]

        def talk(self, query, key):
            weights = (query @ key.mT).softmax(-1)
            if way == "an einsum":
                weights = torch.einsum("bhij,hg->bgij", weights, self.mix)
            elif way == "a layer":
                weights = nn.functional.linear(weights.movedim(1, -1), self.mix.mT).movedim(-1, 1)
            else:
                shares = self.mix.mT[..., None, None]
                weights = torch.stack([(weights * share).sum(1) for share in shares], 1)
            return weights @ key

    assert len(looked_at(Talks(), *given(N, M), missed={"Talks": ""})) == 0


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", ["an einsum", "a layer"])
def test_heads_that_are_mixed_before_the_softmax_are_weights_alone(way, texts):
    class Talks(Heads):
        def __init__(self):
            super().__init__(self.talk)
            self.mix = nn.Linear(H, H, bias=False)

        def mixed(self, scores):
            if way == "an einsum":
                return torch.einsum("bhij,gh->bgij", scores, self.mix.weight)
            return self.mix(scores.movedim(1, -1)).movedim(-1, 1)

        def talk(self, query, key):
            return self.mixed(query @ key.mT).softmax(-1) @ key

    inputs = given(N, M, texts=texts)
    recording = looked_at(model := Talks(), *inputs)
    query, key = model.heads(*inputs)
    expected = model.mixed(query @ key.mT).softmax(-1).detach()
    shows(recording, expected, door=ALONE, proof="proved", layout="guessed")


class Additive(Heads):
    """Scores as in Bahdanau et al.: the tanh of a sum, weighted by a layer."""

    def __init__(self):
        super().__init__(lambda query, key: self.weights(query, key) @ key)
        self.score = nn.Linear(D, 1)

    def weights(self, query, key):
        return self.score((query[..., None, :] + key[:, :, None]).tanh()).squeeze(-1).softmax(-1)


class OneQuery(Additive):
    """The same for a single query (texts, WIDTH) without an axis for it."""

    def weights(self, query, key):
        return self.score((query[:, None] + key).tanh()).mT.softmax(-1)

    def heads(self, x, y):
        return self.asks(x)[:, :D], self.says(y)[..., :D]


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("kind", [Additive, OneQuery])
def test_scores_that_are_not_a_product_are_weights_alone(kind, texts):
    x, y = given(N, M, texts=texts)
    model, inputs = kind(), [x if kind is Additive else x[:, 0], y]
    recording = looked_at(model, *inputs)
    expected = model.weights(*model.heads(*inputs)).detach()
    expected = expected if kind is Additive else expected[:, None]
    for _ in range(2):
        shows(recording, expected, door=ALONE, proof="proved", layout="guessed")
        assert recording[0].why == "its scores are not a product of queries and keys"
        recording.verify(model, inputs)  # which changes nothing


@pytest.mark.parametrize("rate", [0.2, 0.8, 1.0])
@pytest.mark.parametrize("way", ["weights", "weights by one product", "outputs"])
def test_differential_attention_is_never_a_sink(way, rate):
    """Ye et al. 2024: the difference of two softmaxes."""

    def differ(query, key):
        if way == "weights by one product":
            sides = [side.unflatten(-1, (2, -1)) for side in (query, key)]
            maps = torch.einsum("bhipd,bhjpd->bhpij", *sides).softmax(-1)
            return (maps[:, :, 0] - rate * maps[:, :, 1]) @ key
        halves = zip(query.split(2, -1), key.split(2, -1), strict=True)
        first, second = ((asks @ says.mT).softmax(-1) for asks, says in halves)
        if way == "outputs":
            return first @ key - rate * (second @ key)
        return (first - rate * second) @ key

    model, inputs = Heads(differ), given(N, M)
    # halves of a head are narrower than the module, so no rule fits
    recording = looked_at(model, *inputs, missed=None, axes={"Heads": "b h n d"})
    if way == "outputs":
        assert (len(recording), recording.missed) == (2, {})
    else:
        assert (len(recording), list(recording.missed)) == (0, ["Heads"])
    for call in recording:
        assert call.learned_sink().abs().max() < 1e-5


class Pools(nn.Module):
    """Texts pooled by weights without a query, or with a parameter as the query."""

    def __init__(self, does):
        super().__init__()
        self.does, self.asks = does, nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return self.does((x @ self.asks).softmax(-1), x)


POOLED = {
    "an einsum": lambda weights, x: torch.einsum("bm,bmd->bd", weights, x),
    "a product": lambda weights, x: (weights[:, None] @ x)[:, 0],
    "a product, turned round": lambda weights, x: (x.mT @ weights[..., None])[..., 0],
    "bmm": lambda weights, x: torch.bmm(weights.unsqueeze(1), x).squeeze(1),
}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("way", POOLED)
def test_pooling_by_a_product_is_recorded_as_weights_alone(way, texts):
    model, x = Pools(POOLED[way]), torch.randn(texts, M, WIDTH)
    expected = (x @ model.asks).softmax(-1).detach()[:, None, None]
    shows(looked_at(model, x), expected, door=ALONE, proof="proved", layout="guessed")


@pytest.mark.parametrize("texts", [1, 3])
def test_pooling_element_by_element_is_missed(texts):
    model = Pools(lambda weights, x: (weights[..., None] * x).sum(1))
    looked_at(model, torch.randn(texts, M, WIDTH), missed={"Pools": "no softmax and product"})


class Experts(nn.Module):
    """The weights of a router over the outputs of experts, followed by attention."""

    def __init__(self, way, experts=4):
        super().__init__()
        self.router, self.way = nn.Linear(WIDTH, experts), way
        self.experts = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) / WIDTH)
        self.attend = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)

    def routed(self, x):
        shares, outs = self.router(x).softmax(-1), torch.einsum("bnd,efd->bnef", x, self.experts)
        if self.way == "of each token":
            return torch.einsum("bne,bnef->bnf", shares, outs)
        if self.way == "in one axis":
            return torch.einsum("be,bef->bf", shares.flatten(0, 1), outs.flatten(0, 1)).view_as(x)
        return sum(shares[..., e : e + 1] * outs[:, :, e] for e in range(len(self.experts)))

    def forward(self, x):
        return self.attend(self.routed(x))


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", ["of each token", "in one axis", "one by one"])
def test_a_router_is_not_attention_and_hides_none(way, texts):
    model, (x,) = Experts(way), given(N, texts=texts)
    recording = looked_at(model, x, missed=None)
    assert set(recording.missed) <= {"Experts"}
    assert [call.name for call in recording] == ["attend"]
    routed = model.routed(x)
    shows(recording, weighed(*model.attend.heads(routed)))


def test_a_kernel_beside_attention_by_hand_is_recorded():
    def both(x):
        return (x @ x.mT).softmax(-2) @ x, scaled_dot_product_attention(x, x, x)

    recording = looked_at(Given(both), torch.randn(B, H, N, D), missed={"Given": NO_MAP})
    assert [call.door for call in recording] == ["scaled_dot_product_attention"]
