"""What is no number proves nothing: in what is kept of a kernel's call, and in a head."""

import pytest
import torch
from looked import WIDTH, Heads
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import RunError

NAN = torch.nan
H, D = 3, 4


def by_kernel(query, key):
    return scaled_dot_product_attention(query, key, key)


def recorded(tokens, attend=by_kernel, kind=torch.float32):
    model = Heads(attend, H, D).to(kind)
    with torch.no_grad(), heedful.record(model) as recording:
        model(torch.randn(1, tokens, WIDTH, dtype=kind))
    return recording


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
def test_a_head_of_zeros_whose_weights_are_no_numbers_is_not_proved(is_causal, kind):
    """torch's kernel for CPUs gives zeros there if there are few keys."""

    def attend(query, key):
        query = query.clone()
        query[:, 1] = NAN
        return scaled_dot_product_attention(query, key, key, is_causal=is_causal)

    [call] = recorded(5, attend, kind)
    assert call.proof == "unproved"
    assert "no finite number" in call.why
    assert call.weights().isnan().all(dim=-1).all(dim=-1).tolist() == [False, True, False]


def with_nan(capture, name, place):
    tensor = getattr(capture, name).clone()
    tensor[place] = NAN
    setattr(capture, name, tensor)


FORGED = {
    "scale": lambda one: setattr(one, "scale", NAN),
    "softcap": lambda one: setattr(one, "softcap", NAN),
    "sinks": lambda one: setattr(one, "sinks", torch.full((H,), NAN)),
    "the sink of a head": lambda one: setattr(one, "sinks", torch.tensor([-1e9, NAN, -1e9])),
    "bias": lambda one: setattr(one, "bias", torch.full((1, 1, 1, 1), NAN)),
    "the queries of a head": lambda one: with_nan(one, "query", (0, 1)),
    "a query": lambda one: with_nan(one, "query", (0, 1, 0)),
    "a key": lambda one: with_nan(one, "key", (0, 1, 2)),
}


# sinks are no part of the sums that this kernel gave
CASES = [(what, late) for what in FORGED for late in (False, True) if not (late and "sink" in what)]


@pytest.mark.parametrize(("what", "is_checked"), CASES)
@pytest.mark.parametrize("tokens", [5, 20])
def test_causes_that_are_no_numbers_are_refuted(what, tokens, is_checked):
    """By the output, or after that by the sums of the kernel, as those of a file with new sums."""
    recording = recorded(tokens)
    if is_checked:
        assert [check.proof for _, check in recording.certificate()] == ["proved"]
    assert len(recording) == 1
    FORGED[what](recording._captures[0])
    with pytest.raises(RunError, match=r"not recorded truthfully|its scores is nan"):
        recording[0].weights()
    assert recording[0].proof == "refuted"
