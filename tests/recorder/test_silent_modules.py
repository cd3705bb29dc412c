"""A module that looks like attention and ran without a recorded call is reported as missed."""

import pytest
import torch
from shown_maps import WIDTH, B, N, looked_at, shows, weighed
from torch import nn
from torch.nn.functional import cross_entropy, dropout, one_hot, scaled_dot_product_attention

import heedful

SILENT = "with projections to queries and keys, but no attention was detected in it"


class Projects(nn.Module):
    """Layers for queries, keys and values, with the usual names."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def maps(self, x):
        return weighed(self.q(x), self.k(x))


class Attends(Projects):
    def forward(self, x):
        return (self.q(x) @ self.k(x).mT).softmax(-1) @ self.v(x)


class Picks(Projects):
    """Averages the values of nearby keys for each query, without a softmax."""

    def forward(self, x):
        return (self.q(x) @ self.k(x).mT > 0).float() @ self.v(x)


def inputs():
    return torch.randn(B, N, WIDTH)


class Around(Attends):
    """Attention, and a part that is called before or after it."""

    def __init__(self, part, is_first):
        super().__init__()
        self.part, self.is_first = part, is_first

    def forward(self, x):
        return super().forward(self.part(x)) if self.is_first else self.part(super().forward(x))


class Through(nn.Module):
    """Attention computed with the layers of a part."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        query, key, value = (layer(x) for layer in (self.part.q, self.part.k, self.part.v))
        return (query @ key.mT).softmax(-1) @ value


class Gives(Projects):
    """Computes queries, keys and values; its caller does the rest."""

    def forward(self, x):
        return self.q(x), self.k(x), self.v(x)


class Takes(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        query, key, value = self.part(x)
        return (query @ key.mT).softmax(-1) @ value


class Scores(Projects):
    """Computes scores or their softmax; its caller does the rest."""

    def __init__(self, is_softmax):
        super().__init__()
        self.is_softmax = is_softmax

    def forward(self, x):
        scores = self.q(x) @ self.k(x).mT
        return scores.softmax(-1) if self.is_softmax else scores, self.v(x)


class Meets(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        scores, value = self.part(x)
        return (scores if self.part.is_softmax else scores.softmax(-1)) @ value


PARTS = {
    "its layers alone ran": lambda: Through(Attends()),
    "it gives queries and keys": lambda: Takes(Gives()),
    "it gives scores": lambda: Meets(Scores(False)),
    "it gives weights": lambda: Meets(Scores(True)),
}


@pytest.mark.parametrize("is_top", [True, False])
@pytest.mark.parametrize("way", PARTS)
def test_a_part_of_attention_that_its_caller_completes_is_not_missed(way, is_top):
    part, x = PARTS[way](), inputs()
    recording = looked_at(part if is_top else nn.Sequential(part), x)
    assert [call.name for call in recording] == [type(part).__name__ if is_top else "0"]
    shows(recording, part.part.maps(x)[:, None])


class Twice(Attends):
    """A recorded call, and additive weights without a product with values."""

    def __init__(self, does):
        super().__init__()
        self.score, self.does = nn.Linear(WIDTH, 1), does

    def forward(self, x):
        y = super().forward(x)
        weights = self.score(torch.tanh(y[:, :, None] + y[:, None])).squeeze(-1).softmax(-1)
        return self.does(weights, y)


UNSEEN = {
    "one key after the other": lambda weights, y: sum(
        weights[..., at, None] * y[:, at, None] for at in range(N)
    ),
    "the best key": lambda weights, y: one_hot(weights.argmax(-1), N).float() @ y,
    "the largest": lambda weights, y: (weights[..., None] * y[:, None]).amax(-2),
}


class Ends(Attends):
    """Attention, followed by another use of a softmax."""

    def __init__(self, does):
        super().__init__()
        self.does, self.logits, self.single = does, nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.does(self, super().forward(x))


ENDS = {
    "classes of each token": lambda self, y: self.logits(y).softmax(-1),
    "a token is drawn": lambda self, y: torch.multinomial(
        (self.logits(y[:, -1]) / 0.7).softmax(-1), 1
    ),
    "a router": lambda self, y: self.logits(y).softmax(-1).topk(2)[0],
    "where an answer begins": lambda self, y: self.single(y).squeeze(-1).softmax(-1),
    "a loss of it": lambda self, y: self.single(y).squeeze(-1).log_softmax(-1)[:, 0],
    "a share of each token for each class": lambda self, y: self.logits(y).softmax(1),
    "a place that is expected": lambda self, y: (
        self.single(y).squeeze(-1).softmax(-1) * torch.arange(N)
    ).sum(-1),
}


@pytest.mark.parametrize("way", ENDS)
def test_a_softmax_without_queries_is_not_missed(way):
    assert len(looked_at(Ends(ENDS[way]), inputs())) == 1


class Volume(nn.Module):
    """Disparities of stereo images as expectations, as in PSMNet, beside attention."""

    def __init__(self):
        super().__init__()
        self.attend, self.reads = Attends(), nn.Conv2d(1, 4, 3, padding=1)
        self.mixes = nn.Conv3d(8, 1, 3, padding=1)

    def forward(self, left, right, x):
        left_features, right_features = self.reads(left), self.reads(right)
        cost = left_features.new_zeros(len(left_features), 8, 3, *left_features.shape[2:])
        for shift in range(3):
            cost[:, :4, shift, :, shift:] = left_features[..., shift:]
            cost[:, 4:, shift, :, shift:] = right_features[..., : right_features.shape[-1] - shift]
        shares = self.mixes(cost).squeeze(1).softmax(1)
        return (shares * torch.arange(3.0).view(1, 3, 1, 1)).sum(1), self.attend(x)


def test_disparities_of_a_cost_volume_are_not_keys():
    images = [torch.randn(B, 1, 6, 6) for _ in range(2)]
    assert len(looked_at(Volume(), *images, inputs())) == 1


def kernel(name, does):
    """An operation of torch in a foreign implementation."""

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return does(query, key, value)

    result = torch.library.custom_op(f"heedful_tests::{name}", run, mutates_args=())
    result.register_fake(lambda query, key, value: torch.empty_like(value))
    return result


def _attended(query, key, value):
    return (query @ key.mT).softmax(-1) @ value


KERNELS = {
    name: kernel(name, does)
    for name, does in {
        "fast_attention": _attended,
        "flash_fwd": _attended,
        "softmax": _attended,
        "pattern_match": lambda query, key, value: query + key + value,
    }.items()
}


class Kernel(nn.Module):
    """A recorded call, and an unknown operation."""

    def __init__(self, name):
        super().__init__()
        self.attend, self.says, self.name = Attends(), nn.Linear(WIDTH, WIDTH), name

    def forward(self, x):
        x = self.attend(x)
        return KERNELS[self.name](x, self.says(x), x.clone())


@pytest.mark.parametrize("name", ["softmax", "pattern_match"])
def test_a_foreign_operation_is_not_attention_of_torch(name):
    with torch.no_grad():
        assert len(looked_at(Kernel(name), inputs())) == 1


def test_a_kernel_beside_a_call_of_its_module_is_not_missed():
    class Both(Attends):
        def forward(self, x):
            return KERNELS["flash_fwd"](x, x.clone(), super().forward(x))

    with torch.no_grad():
        assert len(looked_at(Both(), inputs())) == 1


class Method(nn.Module):
    """Continues after its attention in another method, for which no hook runs."""

    def __init__(self, does):
        super().__init__()
        self.attend, self.does = Attends(), does
        self.asks, self.says = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.logits = nn.Linear(WIDTH, 9)

    def encode(self, x):
        return self.does(self, self.attend(x))


def by_hand(self, y):
    return dropout((self.asks(y) @ self.says(y).mT / 2).softmax(-1), 0.0) @ y


def by_a_kernel(self, y):
    return scaled_dot_product_attention(self.asks(y)[:, None], self.says(y)[:, None], y[:, None])


def contrast(self, y):
    """The loss of CLIP: products of images and texts."""
    first, second = (layer(y).mean(1) for layer in (self.asks, self.says))
    return cross_entropy(first @ second.mT, torch.arange(len(first)))


def drawn(self, y):
    return torch.multinomial((self.logits(y[:, -1]) / 0.7).softmax(-1), 1)


def quantised(self, y):
    return self.logits.weight[torch.cdist(y, self.logits.weight).argmin(-1)]


MODES = {"no gradient": torch.no_grad, "inference": torch.inference_mode}
OUTSIDE = "attention in a method that is no call of the module"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("does", [contrast, drawn, quantised])
@pytest.mark.parametrize("is_method", [True, False])
def test_similar_operations_in_a_method_or_beside_the_model_are_not_missed(does, mode, is_method):
    model, x = Method(does), inputs()
    with MODES[mode](), heedful.record(model) as recording:
        model.encode(x) if is_method else does(model, model.attend(x))
    assert (len(recording), recording.missed) == (1, {})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("does", [by_hand, by_a_kernel])
def test_attention_of_another_model_or_of_the_user_is_not_missed(does, mode):
    """For example, of a model of which only the encoder is recorded."""
    model, other, x = Attends(), Method(does), inputs()
    with MODES[mode](), heedful.record(model) as recording:
        other.encode(model(x))
        does(other, model(x))
    assert recording.missed == {}
    assert {call.name for call in recording} == {"Attends"}


LOSSES = {
    "cross entropy": lambda scores: cross_entropy(scores, torch.arange(len(scores))),
    "by hand": lambda scores: -scores.log_softmax(-1).diagonal().mean(),
    "each way": lambda scores: (
        cross_entropy(scores, torch.arange(len(scores))) - scores.log_softmax(0).diagonal().mean()
    ),
}


@pytest.mark.parametrize("way", LOSSES)
def test_a_contrastive_loss_is_not_attention(way):
    class Pairs(nn.Module):
        def __init__(self):
            super().__init__()
            self.asks, self.says = Attends(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return LOSSES[way](self.asks(x).mean(1) @ self.says(x).mean(1).mT)

    assert len(looked_at(Pairs(), inputs())) == 1


class Best(Attends):
    """A recorded call, and a second one in which each query selects its best keys."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def forward(self, x):
        x = super().forward(x)
        return self.does(self.q(x) @ self.k(x).mT, x)


BEST = {
    "argmax": lambda scores, x: one_hot(scores.argmax(-1), N).float() @ x,
    "max": lambda scores, x: one_hot(scores.max(-1)[1], N).float() @ x,
}


SOFT = {
    "the largest is subtracted": lambda scores: (scores - scores.max(-1, keepdim=True)[0]).softmax(
        -1
    ),
    "the largest alone stay": lambda scores: scores.masked_fill(
        scores < scores.topk(2)[0][..., -1:], -torch.inf
    ).softmax(-1),
    "with the index of the best": lambda scores: (scores.softmax(-1), scores.argmax(-1))[0],
}


@pytest.mark.parametrize("way", SOFT)
def test_a_softmax_for_a_selection_of_the_largest_scores_is_not_missed(way):
    model = Best(lambda scores, x: SOFT[way](scores) @ x)
    assert len(looked_at(model, inputs())) == 2


def test_neighbours_of_points_are_not_attention():
    """As in DGCNN: the module has no layers for queries and keys."""

    class Neighbours(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = Attends()

        def forward(self, x):
            x = self.attend(x)
            near = (2 * x @ x.mT - x.square().sum(-1, keepdim=True)).topk(2)[1]
            return one_hot(near, N).float().sum(-2) @ x

    assert len(looked_at(Neighbours(), inputs())) == 1


class LinearAttention(nn.Module):
    """Has its projections in a parameter list, which is no layer and never runs."""

    def __init__(self):
        super().__init__()
        weights = {name: nn.Parameter(torch.randn(WIDTH, WIDTH)) for name in ("q_proj", "k_proj")}
        self.w = nn.ParameterDict(weights)

    def forward(self, x):
        return (x @ self.w["q_proj"]).relu() * (x @ self.w["k_proj"]).relu()


class SequentialAttention(nn.Sequential):
    """Attends to each earlier token in turn, without a softmax."""

    def forward(self, x):
        return x + super().forward(x).sigmoid().cumsum(1)


def _of_the_largest(scores):
    top = scores.topk(3)
    return torch.zeros_like(scores).scatter(-1, top.indices, top.values.softmax(-1))


def _of_the_largest_halved(scores):
    largest, at = scores.topk(3)
    largest /= 2
    return torch.zeros_like(scores).scatter(-1, at, largest.clone().softmax(-1))


def _sorted_and_back(scores):
    ordered = scores.sort(-1, descending=True)
    return ordered.values.div(2).softmax(-1).gather(-1, ordered.indices.argsort(-1))


def _into_another(scores):
    return torch.softmax(scores, -1, out=torch.empty_like(scores))
