"""Attention by hand in many spellings: the recorded map is the model's."""

import pytest
import torch
from shown_maps import (
    WIDTH,
    B,
    D,
    Given,
    H,
    Heads,
    M,
    N,
    looked_at,
    near,
    of_heads,
    shows,
    weighed,
)  # fmt: skip
from torch import nn
from torch.nn import functional as F

import heedful


def over_its_sum(raised):
    return raised / raised.sum(-1, keepdim=True)


def attends(query, key):
    return (query @ key.mT).softmax(-1) @ key


def tokens(texts=B, sizes=(N, M)):
    return [torch.randn(texts, size, WIDTH) for size in sizes]


SPELLED = {
    "function": lambda scores: F.softmax(scores, dim=-1),
    "a logarithm, raised": lambda scores: F.log_softmax(scores, -1).exp(),
    "in place": lambda scores: torch.exp_(scores.log_softmax(dim=-1)),
    "raised, and its sum": lambda scores: over_its_sum((scores - scores.amax(-1, True)).exp()),
    "less its logarithm": lambda scores: (scores - scores.logsumexp(-1, keepdim=True)).exp(),
    "divided in place": lambda scores: (raised := scores.exp()).div_(raised.sum(-1, True)),
    "hidden": lambda scores: over_its_sum(scores.exp() * (scores.abs() > 0)),
    "of another type": lambda scores: scores.softmax(-1, dtype=torch.float64).to(scores.dtype),
    "with factors of one": lambda scores: scores.softmax(-1) * torch.ones(H, 1, 1),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("way", SPELLED)
def test_spellings_of_a_softmax(way, flat):
    def attend(query, key):
        if flat:
            query, key = query.flatten(0, 1), key.flatten(0, 1)
            weights = SPELLED[way]((query @ key.mT / 2).unflatten(0, (-1, H)))
            return torch.bmm(weights.flatten(0, 1), key)
        return SPELLED[way](query @ key.mT / 2) @ key

    of_heads(attend, N, M, maps=lambda query, key: weighed(query / 2, key))


OTHER_AXES = {
    "by its number": lambda x, y: torch.softmax(y @ x.mT, 2).transpose(2, 3) @ y,
    "values on the left": lambda x, y: (y.mT @ (y @ x.mT).softmax(dim=-2)).mT,
    "an einsum": lambda x, y: torch.einsum("bhji,bhjd->bhid", (y @ x.mT).softmax(-2), y),
    "keys first": lambda x, y: torch.einsum(
        "jbhi,bhjd->bhid", torch.einsum("bhid,bhjd->jbhi", x, y).softmax(0), y
    ),
}


@pytest.mark.parametrize("keys", [N, M])
@pytest.mark.parametrize("way", OTHER_AXES)
def test_a_softmax_over_another_axis(way, keys):
    of_heads(OTHER_AXES[way], N, keys)


PRODUCTS = {
    "on the right": lambda weights, value: (value.mT @ weights.mT).mT,
    "keywords, turned round": lambda weights, value: torch.matmul(other=weights.mT, input=value.mT),
    "flat, keywords": lambda weights, value: torch.bmm(
        mat2=value.flatten(0, 1), input=weights.flatten(0, 1)
    ),
    "added to nothing": lambda weights, value: torch.baddbmm(
        torch.zeros(()), weights.flatten(0, 1), value.flatten(0, 1)
    ),
    "a list, on the right": lambda weights, value: torch.einsum(
        "bhkd,bhqk->bqhd", [value, weights]
    ),
    "values through a gate": lambda weights, value: weights @ (value * value.softmax(-1)),
}


@pytest.mark.parametrize("way", PRODUCTS)
def test_weights_on_either_side_of_a_product(way):
    of_heads(lambda query, key: PRODUCTS[way]((query @ key.mT).softmax(-1), key), N, M)


KEEP = (torch.ones(B, N, 1), torch.tensor([[1.0] * M, [1.0] * 4 + [0.0] * 3])[:, None])


@pytest.mark.parametrize("is_masked", [False, True])
def test_softmaxes_over_both_axes_of_the_same_scores(is_masked):
    """As in BiDAF, which masks padding by very low scores."""

    def bidaf(x, y):
        scores = x @ y.mT
        of_x, of_y = (
            scores * keep + (1 - keep) * -1e30 if is_masked else scores for keep in KEEP[::-1]
        )
        of_x, of_y = of_x.softmax(dim=2), of_y.softmax(dim=1)
        return of_x @ y, of_x @ (of_y.mT @ x)

    x, y = torch.randn(B, N, D), torch.randn(B, M, D)
    of_x, of_y = weighed(x, y), weighed(y, x)
    if is_masked:
        of_x = over_its_sum(of_x * KEEP[1])
    shows(looked_at(Given(bidaf), x, y), of_x[:, None], of_y[:, None])


def test_one_softmax_with_several_values_is_one_call():
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return weights @ key, torch.einsum("bhij,bhjd->bhid", weights, key.exp())

    of_heads(attend, N, M)


@pytest.mark.parametrize("low", [-1e9, -torch.inf])
@pytest.mark.parametrize("other", ["same", "rolled", "second"])
def test_weights_that_are_set_to_zero_where_their_scores_were_hidden(low, other):
    """As in ESPnet and SEW-D: padding rows, which may attend to nothing, have zero weights.

    If the two masks differ, such a row is uniform over half of the keys.
    """
    hidden = torch.rand(B, 1, N, M, generator=torch.Generator().manual_seed(1)) < 0.4
    hidden[..., 0] = False
    if low > -torch.inf:
        hidden[1, :, 3] = True
    emptied = hidden if other == "same" else hidden.roll(1, -1)
    calls = []

    def attend(query, key):
        scores = (query @ key.mT / 2).masked_fill(hidden, low)
        scores = scores.masked_fill(emptied, low) if other == "second" else scores
        calls.append(scores.softmax(-1).masked_fill_(emptied, 0.0))
        return calls[0] @ key

    with torch.no_grad(), heedful.record(model := Heads(attend)) as recording:
        model(*tokens())
    emptied.fill_(True)  # later changes of the mask have no effect
    shows(recording, calls[0].nan_to_num(0.0), proof=None if calls[0].isnan().any() else "proved")


@pytest.mark.parametrize("keeps", [lambda w: w, lambda w: w.double()], ids=["own", "cast"])
@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.4),
        lambda weights: torch.dropout(weights, 0.4, True),
        # random numbers, as many as there are weights
        lambda weights: F.dropout(weights, 0.4) + 0 * torch.rand_like(weights),
        lambda weights: torch.rand_like(F.dropout(weights, 0.4)) * 0 + weights,
    ],
)
def test_weights_in_training_are_recorded_without_dropout(drop, keeps):
    def attend(query, key):
        return drop(keeps((query @ key.mT).softmax(-1))).to(key.dtype) @ key

    inputs = tokens()
    recording = looked_at(model := Heads(attend), *inputs)
    shows(recording, weighed(*model.heads(*inputs)))
    if recording[0].proof != "proved":
        assert (recording[0].proof, "dropped at random" in recording[0].why) == ("unproved", True)


def test_values_and_selected_heads_are_stored(tmp_path):
    query, key = (model := Heads(attends)).heads(*(inputs := tokens()))
    recording = looked_at(model, *inputs, heads=[2, 0], budget=0, values=True)
    maps = weighed(query, key)[:, [2, 0]]
    for each in (recording, heedful.load(recording.save(tmp_path / "r"))):
        shows(each, maps)
        for [call], weights, rows in zip(each.sequences, maps, key[:, [2, 0]], strict=True):
            near(call.value_norm(), weights * rows.norm(dim=-1)[:, None])


@pytest.mark.parametrize("pads", [slice(4, M), slice(0, 1)])
def test_a_multiplied_causal_mask_and_an_added_padding_mask(pads):
    """The arithmetic of the first GPT: scores · b − 1e4 · (1 − b), then the padding.

    With left padding, a padding query may attend only to itself, so all later keys are equal.
    """
    before, keep = torch.ones(M, M).tril(), torch.ones(2, 1, 1, M)
    keep[1, ..., pads] = 0.0

    def scores(query, key):
        return (query @ key.mT) * before - 1e4 * (1 - before) + (1 - keep) * -1e9

    model = Heads(lambda query, key: scores(query, key).softmax(-1) @ key)
    [x] = tokens(2, (M,))
    query, key = model.heads(x)
    shows(looked_at(model, x), scores(query, key).softmax(-1), proof="proved")


OTHERWISE = {  # scores that `AttentionInputs` cannot express: the map is stored
    "added before a cap": lambda x, y: 3 * ((x @ y.mT + 0.5) / 3).tanh(),
    "a column added before a cap": lambda x, y: ((x @ y.mT) + x[..., :1]).tanh(),
    "activated": lambda x, y: (x @ y.mT).relu(),
    "complex": lambda x, y: (torch.fft.fft(x) @ torch.fft.fft(y).conj().mT).real / D,
    "whole numbers": lambda x, y: ((4 * x).int() @ (4 * y).int().mT).float() / 16,
}


@pytest.mark.parametrize("way", OTHERWISE)
def test_scores_of_another_form_are_recorded_as_weights(way):
    model = Heads(lambda x, y: OTHERWISE[way](x, y).softmax(-1) @ y)
    recording = looked_at(model, *(inputs := tokens()))
    expected = OTHERWISE[way](*model.heads(*inputs)).softmax(-1)
    shows(recording, expected, proof=None if way == "complex" else "proved",
          door=recording[0].door)  # fmt: skip
