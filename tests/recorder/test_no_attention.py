"""What has no map of queries × keys, or none that is truthful: it is missed, with the reason."""

import operator

import pytest
import torch
from heedful.recorder.doors.softmax_matmul import ALONE
from looked import WIDTH, B, D, Given, H, Heads, M, N, looked_at, shows, weighed
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention

CHAINED = "two products of three tensors with no softmax between, as linear attention has"


def given(*lengths, texts=B):
    return [torch.randn(texts, length, WIDTH) for length in lengths]


class Beside(nn.Module):
    """What has no map, and an ordinary layer after it."""

    def __init__(self, does):
        super().__init__()
        self.other = Heads(does)
        self.attend = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)

    def forward(self, *given):
        return self.other(*given), self.attend(*given)


def is_missed(does, reason, lengths=(N, M)):
    """It is told, shown nowhere, and what stands beside it is shown."""
    model, inputs = Beside(does), given(*lengths)
    recording = looked_at(model, *inputs, missed={"other": reason})
    assert [call.name for call in recording] == ["attend"]
    shows(recording, weighed(*model.attend.heads(*inputs)), proof="assumed")
    return recording


OVER_QUERIES = {
    "slots": lambda scores, x, y: scores.softmax(-2) @ y,
    "slots, scaled": lambda scores, x, y: (scores.softmax(-2) * 0.9) @ y,
    "on the left": lambda scores, x, y: x.mT @ scores.softmax(-1),
    "an einsum": lambda scores, x, y: torch.einsum("bhij,bhid->bhjd", scores.softmax(-1), x),
    "slots, each of which is a mean": lambda scores, x, y: (
        ((shares := scores.softmax(-2)) / shares.sum(-1, keepdim=True)) @ y
    ),
}


@pytest.mark.parametrize("way", OVER_QUERIES)
@pytest.mark.parametrize("keys", [N, M])
def test_a_product_over_another_axis_than_the_softmax(way, keys):
    is_missed(lambda x, y: OVER_QUERIES[way](x @ y.mT, x, y), "met no values", (N, keys))


def through(what):
    return f"queries and keys meet values through {what}, and no softmax"


def sparsemax(scores):
    """Martins and Astudillo 2016."""
    ordered, counts = scores.sort(-1, descending=True)[0], torch.arange(1, M + 1)
    sums = ordered.cumsum(-1) - 1
    size = (ordered * counts > sums).sum(-1, keepdim=True)
    return (scores - sums.gather(-1, size - 1) / size).clamp(min=0)


NONE = {
    "exp alone": (lambda scores, x: scores.exp() @ x, through("exp")),
    "exp of others": (lambda scores, x: (-scores.abs()).exp() @ x, through("abs and exp")),
    "a sigmoid": (lambda scores, x: scores.sigmoid() @ x, through("sigmoid")),
    "a sigmoid, renormalised": (
        lambda scores, x: (e := scores.sigmoid()) / e.sum(-1, keepdim=True) @ x,
        through("sigmoid"),
    ),
    "relu, renormalised": (
        lambda scores, x: (e := scores.relu()) / (e.sum(-1, keepdim=True) + 1e-6) @ x,
        through("relu"),
    ),
    "sparsemax": (lambda scores, x: sparsemax(scores) @ x, through("clamp")),
    "nothing at all": (lambda scores, x: scores @ x, CHAINED),
    "a gate": (lambda scores, x: (scores.exp() / (1 + scores.exp())) @ x, through("exp")),
    "another norm": (
        lambda scores, x: (e := scores.exp()) / e.norm(dim=-1, keepdim=True) @ x,
        "",
    ),
    "another axis": (
        lambda scores, x: (e := scores.exp()) / e.sum(-2, keepdim=True) @ x,
        "met no values",
    ),
    "another axis of logarithms": (
        lambda scores, x: scores.log_softmax(-2).exp() @ x,
        "met no values",
    ),
    "logarithms": (lambda scores, x: scores.log_softmax(-1) @ x, "met no values"),
    "sinkhorn, in logarithms": (
        lambda scores, x: scores.log_softmax(-1).log_softmax(-2).exp() @ x,
        "softmax",
    ),
    "sinkhorn, by hand": (
        lambda scores, x: ((s := scores.log_softmax(-1)) - s.logsumexp(-2, True)).exp() @ x,
        "changed after their softmax (sub)",
    ),
    "no sum": (
        lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).amax(-2),
        "met no values",
    ),
    "another sum": (
        lambda scores, x: (scores.softmax(-1)[..., None] * x[:, :, None]).sum(-3),
        "met no values",
    ),
    "values of each query": (
        lambda scores, x: (scores.softmax(-1)[..., None] * torch.rand(B, H, N, M, D)).sum(-2),
        "values of each query's own",
    ),
}


@pytest.mark.parametrize("way", NONE)
def test_what_looks_alike(way):
    does, reason = NONE[way]
    is_missed(lambda query, key: does(query @ key.mT, key), reason)


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        (lambda x: (x @ x.mT).sigmoid() @ x, through("sigmoid")),
        (lambda x: x.exp() @ x.mT @ x, CHAINED),
    ],
)
def test_of_raw_tensors_what_has_no_softmax_is_told(does, reason):
    recording = looked_at(Given(does), torch.randn(B, N, D), missed={"Given": reason})
    assert len(recording) == 0


def linear(query, key):
    """Axes b, h, n, d."""
    value = key.exp()
    return query.softmax(-1) * D**-0.5 @ (key.softmax(-2).mT @ value)


def linear_in_einsums(query, key):
    query, shares = query.softmax(-1), key.softmax(-2)
    context = torch.einsum("bhnd,bhne->bhde", shares, key.exp())
    return torch.einsum("bhnd,bhde->bhne", query, context)


def linear_over_an_image(query, key):
    """Axes b, h, d, n, as a U-Net has them."""
    query, shares = query.mT.softmax(-2), key.mT.softmax(-1)
    context = torch.einsum("b h d n, b h e n -> b h d e", shares, key.exp().mT)
    return torch.einsum("b h d e, b h d n -> b h e n", context, query)


@pytest.mark.parametrize("keys", [N, M])  # of both sides as many, or not
@pytest.mark.parametrize("does", [linear, linear_in_einsums, linear_over_an_image])
def test_linear_attention_is_missed_by_its_name(does, keys):
    is_missed(does, "linear attention", (N, keys))


class Asked(nn.Module):
    """Rows of a parameter ask as they are: their product with keys is also that of a layer."""

    def __init__(self):
        super().__init__()
        self.rows, self.says = nn.Parameter(torch.randn(N, WIDTH)), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return (self.rows @ self.says(x).mT).softmax(-1) @ x


def test_learned_queries_by_hand_that_no_layer_projects_are_missed_by_their_name():
    looked_at(Asked(), *given(M), missed={"Asked": "learned queries that no layer projects"})


@pytest.mark.parametrize("does", [linear, linear_in_einsums, linear_over_an_image])
def test_linear_attention_of_raw_tensors_is_never_proved(does):
    recording = looked_at(
        Given(does), torch.randn(B, H, N, D), torch.randn(B, H, M, D), missed=None
    )
    assert "proved" not in {call.proof for call in recording}
    assert recording.missed or len(recording)


@pytest.mark.parametrize("does", [lambda x: (x * 2).relu(), lambda x: nn.functional.elu(x) + 1])
def test_linear_attention_without_any_softmax(does):
    is_missed(lambda query, key: does(query) @ (does(key).mT @ key), CHAINED)


GATE = torch.rand(H, N, 1, generator=torch.Generator().manual_seed(9))
GATED = {
    "product": lambda weights: weights * GATE,
    "on the left": lambda weights: GATE * weights,
    "method": lambda weights: weights.mul(GATE),
    "in place": lambda weights: weights.mul_(GATE),
    "in place, by sign": lambda weights: operator.imul(weights, GATE),
    "division": lambda weights: weights.div(1 / GATE),
    "cast": lambda weights: (weights.double() * GATE).float(),
    "before dropout": lambda weights: dropout(weights * GATE, 0.4),
    "after dropout": lambda weights: dropout(weights, 0.4) * GATE,
    "in place, after dropout": lambda weights: dropout(weights, 0.4).mul_(GATE),
    "a factor of each head": lambda weights: weights * GATE[:, :1],
    "a number": lambda weights: weights * 0.9,
    "some left out": lambda weights: weights * (torch.arange(M) > 1),
    "a power": lambda weights: weights**2,
    "the largest": lambda weights: torch.where(weights > 0.2, weights, 0.0),
}


@pytest.mark.parametrize("way", GATED)
def test_weights_that_were_changed_after_their_softmax(way):
    reason = "dropped at random" if "dropout" in way else "softmax"
    is_missed(lambda query, key: GATED[way]((query @ key.mT).softmax(-1)) @ key, reason)


def test_what_is_changed_in_place_after_dropout_is_not_the_softmax():
    def both(query, key):
        weights = (query @ key.mT).softmax(-1)
        moved = dropout(weights, 0.4).mul_(GATE) @ key
        return torch.cat([moved.flatten(), weights.flatten()])

    is_missed(both, "dropped at random")


MIXES = {
    "shares": torch.rand(H, H, generator=torch.Generator().manual_seed(9)).softmax(0),
    "any numbers": torch.randn(H, H, generator=torch.Generator().manual_seed(9)),
}


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("way", ["an einsum", "a layer", "one by one"])
def test_heads_that_talk_after_the_softmax(mix, way):
    """As in CaiT and DeepViT: of several softmaxes, though rows may sum to one."""

    def talk(query, key):
        weights = (query @ key.mT).softmax(-1)
        if way == "an einsum":
            weights = torch.einsum("bhij,hg->bgij", weights, MIXES[mix])
        elif way == "a layer":
            weights = nn.functional.linear(weights.movedim(1, -1), MIXES[mix].mT).movedim(-1, 1)
        else:
            shares = MIXES[mix].mT[..., None, None]
            weights = torch.stack([(weights * one).sum(1) for one in shares], 1)
        return weights @ key

    is_missed(talk, "")


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", ["an einsum", "a layer"])
def test_heads_that_talk_before_the_softmax_are_weights_alone(way, texts):
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
    shows(recording, expected, door=ALONE, proof="unproved")


def test_scores_that_are_no_product_are_weights_alone():
    """As of Bahdanau: tanh of a sum, weighed by a layer."""

    class Added(Heads):
        def __init__(self):
            super().__init__(self.added)
            self.score = nn.Linear(D, 1)

        def maps(self, query, key):
            return (
                self.score((query[..., None, :] + key[:, :, None]).tanh()).squeeze(-1).softmax(-1)
            )

        def added(self, query, key):
            return self.maps(query, key) @ key

    inputs = given(N, M)
    recording = looked_at(model := Added(), *inputs)
    expected = model.maps(*model.heads(*inputs)).detach()
    shows(recording, expected, door=ALONE, proof="unproved")
    assert recording[0].check.why == "only the weights are known"


@pytest.mark.parametrize("rate", [0.2, 0.8, 1.0])
@pytest.mark.parametrize("way", ["weights", "weights by one product", "outputs"])
def test_differential_attention_is_never_a_sink(way, rate):
    """Ye et al. 2024: the difference of two softmaxes."""

    def halves(query, key):
        return [
            (one @ other.mT).softmax(-1)
            for one, other in zip(query.split(2, -1), key.split(2, -1), strict=True)
        ]

    def differ(query, key):
        if way == "weights by one product":
            both = torch.stack([one.unflatten(-1, (2, -1)) for one in (query, key)[:1]])[0]
            keys = key.unflatten(-1, (2, -1))
            maps = torch.einsum("bhipd,bhjpd->bhpij", both, keys).softmax(-1)
            return (maps[:, :, 0] - rate * maps[:, :, 1]) @ key
        first, second = halves(query, key)
        if way == "outputs":
            return first @ key - rate * (second @ key)
        return (first - rate * second) @ key

    model, inputs = Heads(differ), given(N, M)
    recording = looked_at(model, *inputs, missed=None)
    if way == "outputs":
        assert (len(recording), recording.missed) == (2, {})
    else:
        assert (len(recording), list(recording.missed)) == (0, ["Heads"])
    for call in recording:
        assert call.learned_sink().abs().max() < 1e-5


class Pools(nn.Module):
    """Texts pooled by weights that no query asked for, or one that is a parameter."""

    def __init__(self, does):
        super().__init__()
        self.does, self.asks = does, nn.Parameter(torch.randn(WIDTH))

    def forward(self, x):
        return self.does((x @ self.asks).softmax(-1), x)


POOLED = {
    "an einsum": lambda weights, x: torch.einsum("bm,bmd->bd", weights, x),
    "times, and a sum": lambda weights, x: (weights[..., None] * x).sum(1),
    "a product": lambda weights, x: (weights[:, None] @ x)[:, 0],
    "a product, turned round": lambda weights, x: (x.mT @ weights[..., None])[..., 0],
    "bmm": lambda weights, x: torch.bmm(weights.unsqueeze(1), x).squeeze(1),
}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("way", POOLED)
def test_pooling_is_missed_however_it_is_written(way, texts):
    recording = looked_at(Pools(POOLED[way]), torch.randn(texts, M, WIDTH), missed={"Pools": ""})
    assert len(recording) == 0


def test_pooling_by_a_layer_of_one_number():
    class Scored(nn.Module):
        def __init__(self):
            super().__init__()
            self.score = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 1))

        def forward(self, x):
            weights = self.score(x).softmax(1)
            return (weights * x).sum(1), torch.einsum("bmo,bmd->bod", weights, x)

    recording = looked_at(Scored(), torch.randn(3, M, WIDTH), missed={"Scored": ""})
    assert len(recording) == 0


class Experts(nn.Module):
    """A router's shares of what experts say, and attention after it."""

    def __init__(self, way, experts=4):
        super().__init__()
        self.router, self.way = nn.Linear(WIDTH, experts), way
        self.experts = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) / WIDTH)
        self.attend = Heads(lambda query, key: (query @ key.mT).softmax(-1) @ key)

    def routed(self, x):
        shares, said = self.router(x).softmax(-1), torch.einsum("bnd,efd->bnef", x, self.experts)
        if self.way == "of each token":
            return torch.einsum("bne,bnef->bnf", shares, said)
        if self.way == "in one axis":
            return torch.einsum("be,bef->bf", shares.flatten(0, 1), said.flatten(0, 1)).view_as(x)
        return sum(shares[..., e : e + 1] * said[:, :, e] for e in range(len(self.experts)))

    def forward(self, x):
        return self.attend(self.routed(x))


@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", ["of each token", "in one axis", "one by one"])
def test_a_router_is_no_attention_and_hides_none(way, texts):
    model, (x,) = Experts(way), given(N, texts=texts)
    recording = looked_at(model, x, missed=None)
    assert set(recording.missed) <= {"Experts"}
    assert [call.name for call in recording] == ["attend"]
    routed = model.routed(x)
    shows(recording, weighed(*model.attend.heads(routed)))


@pytest.mark.parametrize("dim", [1, 2])
def test_a_module_after_a_gate_runs_once(dim):
    class Gates(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(N)

        def forward(self, x):
            return self.norm(dropout(x * x.softmax(dim), 0.5))

    looked_at(Gates(), torch.randn(B, N, D), missed={"Gates": "no scaled_dot_product_attention"})


def test_dropout_of_weights_that_no_product_made():
    class Chooses(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(N, M))

        def forward(self, y):
            return dropout(self.table.softmax(-1), 0.4) @ y

    looked_at(Chooses(), torch.randn(B, M, WIDTH), missed={"Chooses": "dropped at random"})


def test_a_kernel_beside_it_is_shown():
    def both(x):
        return (x @ x.mT).softmax(-2) @ x, scaled_dot_product_attention(x, x, x)

    recording = looked_at(Given(both), torch.randn(B, H, N, D), missed={"Given": "met no values"})
    assert [call.door for call in recording] == ["scaled_dot_product_attention"]
