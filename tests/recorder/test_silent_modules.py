"""Softmaxes, products and projections that are not attention are not reported as missed."""

import pytest
import torch
from shown_maps import WIDTH, B, Given, N, looked_at, shows, weighed
from torch import nn
from torch.nn.functional import cross_entropy, one_hot, scaled_dot_product_attention

import heedful


def attended(query, key, value):
    return (query @ key.mT).softmax(-1) @ value


class Part(nn.Module):
    """Computes something with layers for queries, keys and values that have the usual names."""

    def __init__(self, does):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.does = does

    def heads(self, x):
        return self.q(x), self.k(x), self.v(x)

    def attend(self, x):
        return attended(*self.heads(x))

    def forward(self, x):
        return self.does(self, x)


def inputs():
    return torch.randn(B, N, WIDTH)


class Caller(nn.Module):
    """Completes the attention that its part begins."""

    def __init__(self, part, does):
        super().__init__()
        self.part, self.does = part, does

    def forward(self, x):
        return self.does(self.part, x)


def given_scores(part, x):
    scores, value = part(x)
    return scores.softmax(-1) @ value


def given_weights(part, x):
    weights, value = part(x)
    return weights @ value


PARTS = {  # what the part computes, and what its caller does
    "its layers alone ran": (Part.attend, lambda part, x: attended(*part.heads(x))),
    "it gives queries and keys": (Part.heads, lambda part, x: attended(*part(x))),
    "it gives scores": (lambda part, x: (part.q(x) @ part.k(x).mT, part.v(x)), given_scores),
    "it gives weights": (
        lambda part, x: ((part.q(x) @ part.k(x).mT).softmax(-1), part.v(x)),
        given_weights,
    ),
}


@pytest.mark.parametrize("is_top", [True, False])
@pytest.mark.parametrize("way", PARTS)
def test_a_part_of_attention_that_its_caller_completes_is_not_missed(way, is_top):
    first, rest = PARTS[way]
    part, x = Part(first), inputs()
    model = Caller(part, rest)
    recording = looked_at(model if is_top else nn.Sequential(model), x)
    assert [call.name for call in recording] == ["Caller" if is_top else "0"]
    shows(recording, weighed(part.q(x), part.k(x))[:, None])


def test_attention_that_an_inner_module_completes_is_not_missed():
    part = Part(lambda self, x: self.core(*self.heads(x)))
    part.core = Given(attended)
    assert [call.name for call in looked_at(part, inputs())] == ["core"]


def kernel(name):
    """Attention by an operation of torch in a foreign implementation."""

    def run(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attended(query, key, value)

    result = torch.library.custom_op(f"heedful_tests::{name}", run, mutates_args=())
    result.register_fake(lambda query, key, value: torch.empty_like(value))
    result.register_autograd(lambda context, grad: (None, None, grad))
    return result


KERNELS = {name: kernel(name) for name in ("softmax", "flash_fwd")}


class Ends(Part):
    """Attention, and then another operation on its output y."""

    def __init__(self, does):
        super().__init__(does)
        self.logits, self.single = nn.Linear(WIDTH, 9), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.does(self, self.attend(x))


def scores_of_pairs(self, y):
    return self.q(y).mean(1) @ self.k(y).mean(1).mT


def contrast(self, y):
    """The loss of CLIP: products of images and texts."""
    return cross_entropy(scores_of_pairs(self, y), torch.arange(len(y)))


def contrast_each_way(self, y):
    scores = scores_of_pairs(self, y)
    return -(scores.log_softmax(-1) + scores.log_softmax(0)).diagonal().mean()


def drawn(self, y):
    return torch.multinomial((self.logits(y[:, -1]) / 0.7).softmax(-1), 1)


def neighbours(self, y):
    """The nearest points, as in DGCNN."""
    near = (2 * y @ y.mT - y.square().sum(-1, keepdim=True)).topk(2)[1]
    return one_hot(near, N).float().sum(-2) @ y


ENDS = {
    "classes of each token": lambda self, y: self.logits(y).softmax(-1),
    "a token is drawn": drawn,
    "a router": lambda self, y: self.logits(y).softmax(-1).topk(2)[0],
    "where an answer begins": lambda self, y: self.single(y).squeeze(-1).softmax(-1),
    "a loss of it": lambda self, y: self.single(y).squeeze(-1).log_softmax(-1)[:, 0],
    "a share of each token for each class": lambda self, y: self.logits(y).softmax(1),
    "a place that is expected": lambda self, y: (
        self.single(y).squeeze(-1).softmax(-1) * torch.arange(N)
    ).sum(-1),
    "a contrastive loss": contrast,
    "a contrastive loss each way": contrast_each_way,
    "neighbours": neighbours,
    **{f"a foreign {name}": lambda self, y, name=name: KERNELS[name](y, self.k(y), y.clone())
       for name in KERNELS},
}  # fmt: skip


@pytest.mark.parametrize("way", ENDS)
def test_operations_beside_a_call_are_not_missed(way):
    assert len(looked_at(Ends(ENDS[way]), inputs())) == 1


def by_a_kernel(self, y):
    return scaled_dot_product_attention(*(heads[:, None] for heads in self.heads(y)))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("does", [contrast, drawn, Part.attend, by_a_kernel])
def test_operations_of_another_model_or_of_the_user_are_not_missed(does, mode):
    """For example, of a model of which only the encoder is recorded."""
    other = Ends(does)

    def encode(x):
        y = model(x)
        return other(y), does(other, y)

    model = Part(Part.attend)
    with mode(), heedful.record(model) as recording:
        encode(inputs())
    assert (len(recording), recording.missed) == (1, {})


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
    model = Ends(lambda self, y: SOFT[way](self.q(y) @ self.k(y).mT) @ y)
    assert len(looked_at(model, inputs())) == 2
