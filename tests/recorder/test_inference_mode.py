"""In inference mode, torch does not decompose operations: the recorded maps are the same."""

import pytest
import torch
from shown_maps import WIDTH, B, Heads, M, N, shows, weighed

import heedful


def softened(scores):
    return scores.softmax(-1)


# Functions of queries (B, H, N, d) and keys (B, H, M, d), each with its maps by definition
LAYOUTS = {
    "four axes": (lambda q, k: softened(q @ k.mT) @ k, weighed),
    "keys first": (lambda q, k: softened((k @ q.mT).mT) @ k, weighed),
    "three axes": (
        lambda q, k: softened(q.flatten(0, 1) @ k.flatten(0, 1).mT) @ k.flatten(0, 1),
        weighed,
    ),
    "keys of all heads": (
        lambda q, k: softened(q @ k[:, :1].mT) @ k[:, :1],
        lambda q, k: weighed(q, k[:, :1].expand_as(k)),
    ),
    "logarithms": (lambda q, k: (q @ k.mT).log_softmax(-1).exp() @ k, weighed),
    "into a tensor": (
        lambda q, k: softened(torch.matmul(q, k.mT, out=q.new_empty(*q.shape[:3], k.shape[2]))) @ k,
        weighed,
    ),
    "another axis": (lambda q, k: (k @ q.mT).softmax(-2).mT @ k, weighed),
    "a function": (lambda q, k: torch.softmax(torch.matmul(q, k.mT), dim=-1).matmul(k), weighed),
}


def recorded(model, inputs, mode):
    """The recording, and whether the output equals that of the model alone bit for bit."""
    with mode():
        plain = model(*inputs)
        with heedful.record(model) as recording:
            output = model(*inputs)
        assert torch.equal(plain, output)
        assert not recording.missed
    return recording


@pytest.mark.parametrize("texts", [1, B])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_the_same_in_inference_mode(layout, texts):
    does, maps = LAYOUTS[layout]
    model = Heads(does).eval()
    inputs = [torch.randn(texts, length, WIDTH) for length in (N, M)]
    with torch.no_grad():
        expected = maps(*model.heads(*inputs))
    without = recorded(model, inputs, torch.no_grad)
    inside = recorded(model, inputs, torch.inference_mode)
    for recording in (without, inside):
        shows(recording, expected, proof="proved")
        recording.verify(model, inputs)
        shows(recording, expected, proof="proved", layout="verified")


@pytest.mark.parametrize("kind", [None, torch.bfloat16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_stored_tensors_keep_their_type_and_are_contiguous_per_head(layout, kind):
    model, inputs = Heads(LAYOUTS[layout][0]).eval(), torch.randn(B, N, WIDTH)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), heedful.record(model, dtype=kind) as recording:
            model(inputs, inputs)
        kept = recording[0].causes
        assert kept.query.dtype == kept.key.dtype == (kind or torch.float32)
        assert kept.query.is_contiguous()
        assert kept.key.is_contiguous()


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_tensors_that_autocast_has_cast_keep_their_type(kind):
    model = Heads(lambda query, key: softened(query @ key.mT).to(kind) @ key).eval()
    inputs = [torch.randn(1, length, WIDTH) for length in (N, M)]
    with torch.autocast("cpu", kind):
        [call] = recorded(model, inputs, torch.inference_mode)
        query, key = model.heads(*inputs)
    assert call.proof == "proved", call.why
    torch.testing.assert_close(call.weights()[None], weighed(query, key).float(), atol=2e-2, rtol=0)
