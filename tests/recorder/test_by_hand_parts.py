"""Scale, mask, bias and soft cap from a tape equal those of the model, in float64.

If they do not reproduce the weights, as with sinks or in half precision, the map is stored.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from random_maps import full_map
from shown_maps import Given, near

import heedful
from heedful.ops.inputs import AttentionInputs
from heedful.ops.masks import Dense
from heedful.recorder.doors import tape_inputs


class Case:
    """Queries, keys and values, and the tables that models add to their scores."""

    def __init__(self, B=2, H=3, N=5, M=7, d=4, dtype=torch.float32, seed=0):
        random = torch.Generator().manual_seed(seed)
        self.query, self.key, self.value = (
            torch.randn(B, H, size, d, generator=random).to(dtype) for size in (N, M, M)
        )
        self.hidden = torch.rand(N, M, generator=random) < 0.4
        self.hidden[0] = self.hidden[:, 0] = False  # no key is padding
        self.bias = torch.randn(H, N, M, generator=random).to(dtype)
        self.slopes = (torch.rand(H, 1, 1, generator=random) + 0.5).to(dtype)
        self.sinks = torch.randn(H, generator=random).to(dtype)

    def added(self, low):
        return torch.zeros_like(self.hidden, dtype=self.query.dtype).masked_fill(self.hidden, low)

    def with_sinks(self, scores):
        column = self.sinks[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, column], dim=-1).softmax(-1)[..., :-1]

    def added_before(self, scores):
        """Scores by a product of torch that also adds a table."""
        table = self.bias.expand(scores.shape).flatten(0, 1)
        query, key = self.query.flatten(0, 1), self.key.flatten(0, 1)
        result = torch.baddbmm(table, query, key.mT, beta=0.5, alpha=0.37)
        return result.view(scores.shape).softmax(-1)

    def all_parts(self, scores):
        capped = 3 * torch.tanh(scores * 0.37 / 3) + self.bias
        return self.with_sinks(capped.masked_fill(self.hidden, -math.inf))


def by_exp(scores):
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return raised / raised.sum(-1, keepdim=True)


def mask(of):
    return {"mask": Dense(~of.hidden[None])}


LOW = {"infinity": -math.inf, "1e4": -1e4, "1e9": -1e9}
# Weights as a model computes them from scores, and their parts
FORMS = {
    "scale": (lambda of, scores: (scores * 0.37).softmax(-1), lambda of: {"scale": 0.37}),
    "usual scale": (
        lambda of, scores: (scores / of.key.shape[-1] ** 0.5).softmax(-1),
        lambda of: {"scale": of.key.shape[-1] ** -0.5},
    ),
    "temperature": (
        lambda of, scores: (scores * of.slopes).softmax(-1),
        lambda of: {"query": of.query.double() * of.slopes.double()},
    ),
    "exp and sum": (lambda of, scores: by_exp(scores), lambda of: {}),
    "bias": (lambda of, scores: (scores + of.bias).softmax(-1), lambda of: {"bias": of.bias}),
    "baddbmm": (
        lambda of, scores: of.added_before(scores),
        lambda of: {"scale": 0.37, "bias": 0.5 * of.bias},
    ),
    "softcap": (
        lambda of, scores: (3 * torch.tanh(scores / 3)).softmax(-1),
        lambda of: {"softcap": 3.0},
    ),
    "sinks": (lambda of, scores: of.with_sinks(scores), lambda of: {"sinks": of.sinks}),
    "all, and sinks": (
        lambda of, scores: of.all_parts(scores),
        lambda of: {"scale": 0.37, "softcap": 3.0, "bias": of.bias, "sinks": of.sinks} | mask(of),
    ),
    **{
        f"filled with -{name}": (
            lambda of, scores, low=low: scores.masked_fill(of.hidden, low).softmax(-1), mask
        )
        for name, low in LOW.items()
    },
    **{
        f"plus -{name}": (lambda of, scores, low=low: (scores + of.added(low)).softmax(-1), mask)
        for name, low in LOW.items()
    },
}  # fmt: skip


def recorded(form, of):
    """The recording, the weights of the model, and the parts in float64."""
    weigh, parts_of = FORMS[form]
    model_maps = []

    def attend(query, key, value):
        model_maps.append(weigh(of, query @ key.mT))
        return model_maps[0] @ value

    model = Given(attend)
    with torch.no_grad(), heedful.record(model, axes={"*": "b h n d"}) as recording:
        model(of.query, of.key, of.value)
    assert not recording.missed
    parts = {"query": of.query, "scale": 1.0, **parts_of(of)}
    query = parts.pop("query").double()
    expected = [AttentionInputs(query[b], of.key[b].double(), **parts) for b in range(len(query))]
    return recording, model_maps[0], expected


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(*[st.integers(1, 3)] * 2, *[st.integers(1, 9)] * 2, st.integers(1, 5), st.integers(0, 999))
def test_weights_equal_those_of_the_parts_in_float64(form, B, H, N, M, d, seed):
    recording, model_maps, expected = recorded(form, Case(B, H, N, M, d, seed=seed))
    for [call], used, causes in zip(recording.sequences, model_maps, expected, strict=True):
        assert (call.door, call.proof, call.layout) == (tape_inputs.DOOR, "proved", "told")
        weights = torch.from_numpy(full_map(causes)[0]).float()
        near(call.weights(), weights)
        near(used, weights)


@pytest.mark.parametrize("form", FORMS)
def test_parts_equal_those_of_the_model(form):
    recording, model_maps, expected = recorded(form, Case())
    for [call], used, causes in zip(recording.sequences, model_maps, expected, strict=True):
        if causes.sinks is not None:
            assert torch.equal(call.map_, used)
            continue
        inputs = call.causes
        assert call.map_ is None
        assert inputs.scale == pytest.approx(causes.scale, rel=2e-5)
        assert inputs.softcap == (None if causes.softcap is None else pytest.approx(3.0, rel=1e-4))
        torch.testing.assert_close(inputs.query.double(), causes.query, rtol=1e-4, atol=0)
        assert (inputs.mask is None, inputs.bias is None) == (
            causes.mask is None,
            causes.bias is None,
        )
        if causes.mask is not None:
            sees = causes.mask.crop(causes.shape)
            assert torch.equal(inputs.mask.crop(causes.shape).expand(3, -1, -1)[:1], sees)
        if causes.bias is not None:  # a constant of a row changes no weight
            off = inputs.bias - causes.bias
            assert (off - off.mean(-1, keepdim=True)).abs().max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [form for form in FORMS if not form.endswith("1e9")])
def test_half_precision_stores_the_map_of_the_model_bit_for_bit(form, dtype, tmp_path):
    recording, model_maps, _ = recorded(form, Case(dtype=dtype))
    again = heedful.load(recording.save(tmp_path / "r"))
    for each in (recording, again):
        for [call], used in zip(each.sequences, model_maps, strict=True):
            assert call.proof == "proved"
            assert torch.equal(call.weights(), used)


@pytest.mark.parametrize("low", LOW.values())
@pytest.mark.parametrize("how", [torch.Tensor.masked_fill, lambda s, hidden, low: s + hidden * low])
def test_a_fully_masked_row_has_the_weights_of_the_model(low, how):
    if low == -math.inf and how is not torch.Tensor.masked_fill:
        low = -1e30
    of, model_maps = Case(), []
    of.hidden[3] = True

    def attend(query, key, value):
        model_maps.append(how(query @ key.mT, of.hidden, low).softmax(-1))
        return model_maps[0] @ value

    with torch.no_grad(), heedful.record(model := Given(attend)) as recording:
        model(of.query, of.key, of.value)
    for [call], used in zip(recording.sequences, model_maps[0], strict=True):
        near(call.weights(), used.nan_to_num(0.0))
