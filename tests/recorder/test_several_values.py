"""One map that meets several values, as a structure module's does: it is one call."""

import itertools

import pytest
import torch
from looked import WIDTH, B, D, H, Heads, looked_at, shows, weighed

import heedful
from heedful.recorder.doors import softmax_matmul

VALUES = {  # of weights (B, H, N, M)
    "keys": lambda weights, key: weights @ key,
    "points": lambda weights, key: torch.einsum(
        "bhij,bjhpc->bihpc", weights, key.transpose(1, 2).unflatten(-1, (2, 2))
    ),
    "pairs": lambda weights, key: torch.matmul(
        weights.transpose(1, 2), key.new_ones(len(key), weights.shape[2], key.shape[2], 6)
    ),
    "a copy": lambda weights, key: weights.permute(1, 0, 2, 3).clone() @ key.transpose(0, 1).exp(),
    "another type": lambda weights, key: weights.double() @ key.double(),
    "one head": lambda weights, key: weights[:, 1] @ key[:, 1],
    "some keys": lambda weights, key: weights[..., :1] * key[:, :, :1],
}


@pytest.mark.parametrize("length", [5, 1])
@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("others", [*itertools.combinations(list(VALUES)[1:], 2)])
def test_what_meets_several_values_is_one_call(others, texts, length):
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return [VALUES[way](weights, key) for way in ("keys", *others, "keys")]

    model, x = Heads(attend), torch.randn(texts, length, WIDTH)
    recording = looked_at(model, x)  # of which nothing is missed
    shows(recording, weighed(*model.heads(x)), proof="proved" if texts == 1 else "assumed")


REFUSED = {"one head": "some of the scores alone", "pairs": "values of each query's own"}


@pytest.mark.parametrize("way", REFUSED)
def test_values_that_are_refused_hide_no_others(way):
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        return VALUES[way](weights, key), VALUES["keys"](weights, key)

    model, x = Heads(attend), torch.randn(1, 5, WIDTH)
    recording = looked_at(model, x, missed={"Heads": REFUSED[way]})
    shows(recording, weighed(*model.heads(x)), proof="proved")


def test_maps_of_each_head_are_calls_of_their_own():
    def attend(query, key):
        weights = (query @ key.mT).sin().softmax(-1)
        return [weights[:, head] @ key[:, head] for head in range(H)]

    model, x = Heads(attend), torch.randn(1, 5, WIDTH)
    query, key = model.heads(x)
    expected = (query @ key.mT).sin().softmax(-1)[0].detach()
    calls = looked_at(model, x)[:]
    assert len(calls) == H
    for call, map_ in zip(calls, expected, strict=True):
        assert call.door == softmax_matmul.ALONE
        torch.testing.assert_close(call.weights(), map_[None])


def test_what_another_thing_was_done_to_is_another_call():
    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        gone = torch.zeros(len(key), 1, 5, 1, dtype=torch.bool)
        gone[:, :, 2] = True
        return weights @ key, weights.masked_fill(gone, 0.0) @ key

    model, x = Heads(attend, width=D), torch.randn(1, 5, WIDTH)
    first, second = looked_at(model, x)[:]
    expected = weighed(*model.heads(x))[0]
    torch.testing.assert_close(first.weights(), expected, atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(second.weights()[:, [0, 1, 3, 4]], expected[:, [0, 1, 3, 4]])
    assert not second.weights()[:, 2].any()


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("size", [2, 4])
def test_several_heads_or_queries_of_a_map_are_not_numbered_anew(size, dim):
    """The slice has a size that divides its axis, and one that does not."""

    def attend(query, key):
        weights = (query @ key.mT).softmax(-1)
        weights = weights / weights.sum(-1, keepdim=True)  # else they are refused by their causes
        values = key[:, -size:] if dim == 1 else key
        return weights.narrow(dim, weights.shape[dim] - size, size) @ values

    model, x = Heads(attend, heads=6), torch.randn(1, 6, WIDTH)
    with heedful.record(model) as recording, pytest.warns(UserWarning, match="not recorded"):
        model(x)
    assert not len(recording)
    assert any(part in str(recording.missed) for part in ("some of the scores", "take an axis"))
