"""Exponents that are divided by more than their sum: what is more has a share, as a sink has."""

import pytest
import torch
from looked import WIDTH, Heads, M, N, looked_at
from torch import nn

import heedful

HIDDEN = torch.ones(N, M).tril(2) == 0
NONE_SEEN = torch.ones(N, M).tril(-1) == 0  # by the first query


def plus(scores, more=1.0):
    """Softmax-plus-one (Miller, Attention is off by one, 2023)."""
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + more)


def added_in_place(scores):
    raised = scores.exp()
    total = raised.sum(-1, keepdim=True)
    total += 1
    return raised / total


def added_twice(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + 1 + 0.5)


def taken_off(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) - -0.5)


def in_part(scores):
    raised = scores.exp()
    return raised / raised.sum(-1, keepdim=True).add(2, alpha=0.25)


def a_tensor_and_a_number(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + torch.tensor(0.5) + 0.25)


def without_an_axis(scores):
    raised = scores.exp()
    return raised / (1 + raised.sum(-1)).unsqueeze(-1)


def a_tensor_without_an_axis(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1) + torch.ones(N)).unsqueeze(-1)


def without_overflow(scores):
    most = scores.amax(-1, keepdim=True)
    raised = (scores - most).exp()
    return raised / (raised.sum(-1, keepdim=True) + (-most).exp())


SURE = {
    "plus one": plus,
    "twice": added_twice,
    "in place": added_in_place,
    "a negative one taken off": taken_off,
    "in part": in_part,
    "a tensor, then a number": a_tensor_and_a_number,
    "without an axis": without_an_axis,
    "a small number": lambda s: plus(s - s.amax(-1, keepdim=True), 1e-3),
    "keys hidden": lambda s: plus(s.masked_fill(HIDDEN, -torch.inf)),
    "a row that sees nothing": lambda s: plus(s.masked_fill(NONE_SEEN, -torch.inf)),
}


def shows(recording, expected, proof):
    assert len(recording.sequences) == len(expected)
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        assert call.proof == proof, call.why
        near = 1e-6 if map_.dtype == torch.float32 else 1e-13
        torch.testing.assert_close(call.weights(), map_.detach(), atol=near, rtol=0)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("texts", [1, 2])
@pytest.mark.parametrize("way", SURE)
def test_a_number_beside_their_sum(way, texts, kind):
    model = Heads(lambda query, key: SURE[way](query @ key.mT) @ key).to(kind)
    given = [torch.randn(texts, length, WIDTH, dtype=kind) for length in (N, M)]
    query, key = model.heads(*given)
    shows(
        looked_at(model, *given), SURE[way](query @ key.mT), "proved" if texts == 1 else "assumed"
    )


def test_a_number_that_keeps_a_sum_from_zero_refutes_nothing():
    """In float64 it is seen, in float32 it is less than rounding."""

    def safe(scores):
        return plus(scores - scores.amax(-1, keepdim=True), 1e-9)

    for kind in (torch.float32, torch.float64):
        model = Heads(lambda query, key: safe(query @ key.mT) @ key).to(kind)
        given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
        query, key = model.heads(*given)
        recording = looked_at(model, *given)
        shows(recording, safe(query @ key.mT), "proved")
        assert (recording._captures[0].sinks is None) == (kind == torch.float32)


ALMOST = {  # half precision cannot tell the rows of these from those that sum to one
    "a negative number": lambda total: total + -0.03,
    "a number taken off": lambda total: total - 0.03,
    "a part of it": lambda total: total * 0.99,
    "a part of it, in place": lambda total: total.mul_(0.99),
    "more of it": lambda total: total / 0.99,
    "a number that it is taken off": lambda total: -0.01 - total * -1,
    "a part, and a number": lambda total: total * 0.99 + 0.01,
    "a part that is added": lambda total: torch.add(torch.zeros(()), total, alpha=0.99),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", ALMOST)
def test_almost_their_sum_makes_no_softmax_in_half_precision_either(way, kind):
    def attend(query, key):
        scores = query @ key.mT
        raised = (scores - scores.amax(-1, keepdim=True)).exp()
        return raised / ALMOST[way](raised.sum(-1, keepdim=True)) @ key

    model = Heads(attend).to(kind)
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert (len(recording), list(recording.missed)) == (0, ["Heads"])


SAME = {
    "one part of it": lambda total: total * 1,
    "at least": lambda total: total.clamp(min=1e-9),
    "nothing added": lambda total: total + 0.0,
    "nothing where there is something": lambda total: total + (total == 0),
    "nothing taken off": lambda total: total - torch.zeros_like(total),
}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", SAME)
def test_their_sum_is_one_still_where_nothing_came_of_it(way, kind):
    def attend(query, key):
        raised = (query @ key.mT).exp()
        return raised / SAME[way](raised.sum(-1, keepdim=True)) @ key

    model = Heads(attend).to(kind)
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert recording[0].proof == "proved", recording[0].why


def test_a_column_of_true_and_false_scales_as_1_and_0():
    kept = torch.ones(N, 1, dtype=torch.bool)
    model = Heads(lambda query, key: (query @ key.mT * kept + 0.5).softmax(-1) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    query, key = model.heads(*given)
    shows(looked_at(model, *given), (query @ key.mT).softmax(-1), "proved")


class Learned(Heads):
    """Each head has learned what its sums are at the least."""

    def __init__(self):
        super().__init__(None)
        self.more = nn.Parameter(torch.rand(3, 1, 1) + 0.5)

    def forward(self, *given):
        query, key = self.heads(*given)
        self.own = plus(query @ key.mT, self.more)
        return self.own @ key


def test_a_parameter_beside_their_sum():
    recording = looked_at(model := Learned(), torch.randn(1, N, WIDTH), torch.randn(1, M, WIDTH))
    shows(recording, model.own, "proved")


@pytest.mark.parametrize("way", [without_overflow, a_tensor_without_an_axis])
def test_what_the_rows_bring_with_them_may_be_a_key(way):
    model = Heads(lambda query, key: way(query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    query, key = model.heads(*given)
    recording = looked_at(model, *given)
    shows(recording, way(query @ key.mT), "assumed")
    assert "added to their sum" in recording[0].why


def test_a_share_that_is_no_number_in_this_type_is_none_of_that_row():
    """exp(−m) is 0 where the highest score m is large: the sink of that row is minus infinity."""
    model = Heads(lambda query, key: without_overflow(400 * query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    query, key = model.heads(*given)
    expected = without_overflow(400 * query @ key.mT)
    assert bool((expected.sum(-1) < 0.9).any())
    assert bool(((-400 * query @ key.mT).amin(-1).exp() == 0).any())
    shows(looked_at(model, *given), expected, "assumed")


@pytest.mark.parametrize("more", [1e-6, 1e-8])
def test_a_number_is_seen_beside_small_sums(more):
    """No highest score is taken off, and all are far below zero."""
    model = Heads(lambda query, key: plus(query @ key.mT - 14, more) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    query, key = model.heads(*given)
    shows(looked_at(model, *given), plus(query @ key.mT - 14, more), "proved")


@pytest.mark.parametrize(
    ("kind", "more", "is_seen"),
    [
        (torch.float32, 1e-4, True), (torch.float32, 1e-5, True), (torch.float32, 5e-7, False),
        (torch.float16, 0.01, True), (torch.bfloat16, 0.1, True),
    ],
)  # fmt: skip
def test_a_share_that_is_seen_in_this_type_is_shown(kind, more, is_seen):
    def weights_of(scores):
        return plus(scores - scores.amax(-1, keepdim=True), more)

    model = Heads(lambda query, key: weights_of(query @ key.mT) @ key).to(kind)
    given = [torch.randn(1, length, WIDTH, dtype=kind) for length in (N, M)]
    query, key = model.heads(*given)
    recording = looked_at(model, *given)
    assert (recording._captures[0].sinks is not None) == is_seen
    near = 2e-6 if kind == torch.float32 else 8 * torch.finfo(kind).eps
    expected = weights_of((query @ key.mT).float())[0].detach()
    torch.testing.assert_close(recording[0].weights(), expected, atol=near, rtol=0)


def heads_joined(scores):
    raised = scores.exp()
    total = raised.sum(-1, keepdim=True) + 1
    return (raised.flatten(0, 1) / total.flatten(0, 1)).view_as(scores)


def test_sums_whose_axes_were_joined_with_those_of_the_scores():
    model = Heads(lambda query, key: heads_joined(query @ key.mT) @ key)
    given = [torch.randn(1, length, WIDTH) for length in (N, M)]
    query, key = model.heads(*given)
    shows(looked_at(model, *given), heads_joined(query @ key.mT), "proved")


def beside(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + (2 * scores).exp().sum(-1, keepdim=True))


def of_queries(scores):
    raised = scores.exp()
    return raised / (raised.sum(-2, keepdim=True) + 1)


def of_the_first_head(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + 1)[:, :1]


def of_other_heads(scores):
    raised = scores[:, :, :3].exp()
    return raised / (raised.sum(-1) + 1).mT[..., None]


def with_less_of_it(scores):
    raised = scores.exp()
    total = raised.sum(-1, keepdim=True)
    return raised / torch.add(total, torch.ones(()), alpha=-0.1)


def turned(scores):
    raised = scores.exp()
    return raised / (raised.sum(-1, keepdim=True) + 1).mT


def with_two_sinks(scores):
    column = torch.cat([scores, scores.new_full((*scores.shape[:-1], 1), 0.5)], dim=-1)
    raised = column.exp()
    return (raised / (raised.sum(-1, keepdim=True) + 1))[..., :-1]


OTHERWISE = {
    "a little less than their sum": lambda s: plus(s, -1e-2),
    "a column too": with_two_sinks,
    "the sum of other keys": beside,
    "less than their sum": lambda s: plus(s, -0.1),
    "less in one head": lambda s: plus(s, torch.tensor([1.0, -0.1, 1.0])[:, None, None]),
    "the sums of other rows": turned,
    "the sums of one head for all": of_the_first_head,
    "the sums of other heads": of_other_heads,
    "a part of a number": with_less_of_it,
    "a sum of the queries": of_queries,
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_what_is_no_sum_of_these_keys_and_a_share_is_missed(way):
    model = Heads(lambda query, key: OTHERWISE[way](query @ key.mT) @ key).eval()
    given = [torch.randn(1, N, WIDTH) for _ in range(2)]
    with torch.no_grad(), heedful.record(model) as recording:
        model(*given)
    assert (len(recording), list(recording.missed)) == (0, ["Heads"])
