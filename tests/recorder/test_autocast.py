"""Passes under autocast, which keeps copies of the weights in half precision from pass to pass."""

import pytest
import torch
from looked import WIDTH, D, H, N
from torch import nn
from torch.nn import functional as F

import heedful


class JoinsHeadsAndTexts(nn.Module):
    """Heads are put beside the texts, (H · B, N, d), which only their projection tells apart."""

    def __init__(self):
        super().__init__()
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def forward(self, x):
        query, key = (torch.cat(one(x).split(D, -1)) for one in (self.asks, self.says))
        return (query @ key.mT).softmax(-1) @ key


def calls_of(model, x, before):
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(before):
            model(x)
        with heedful.record(model) as recording:
            model(x)
        if len(x) > 1:
            recording.verify(model, x)
    return [call for sequence in recording.sequences for call in sequence]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("texts", [1, 2])
def test_weights_that_an_earlier_pass_has_cast_are_known_as_weights(texts, gradients):
    model, x = JoinsHeadsAndTexts(), torch.randn(texts, N, WIDTH)
    with torch.set_grad_enabled(gradients):
        first, again = calls_of(model, x, 0), calls_of(model, x, 2)
    assert len(first) == len(again) == texts
    for call, other in zip(first, again, strict=True):
        assert call.shape == other.shape == (H, N, N)
        assert call.proof == other.proof == "proved", other.why
        assert torch.equal(call.weights(), other.weights())


class Calls(nn.Module):
    """Attention, and an operation of torch's own on what came of it, (B, N, WIDTH)."""

    def __init__(self, does):
        super().__init__()
        self.does, self.asks = does, nn.Linear(WIDTH, WIDTH)
        self.bilinear = nn.Bilinear(WIDTH, WIDTH, D)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 1, 6, batch_first=True)
        self.attends = nn.MultiheadAttention(WIDTH, 1, batch_first=True)
        self.reads = nn.GRU(WIDTH, D, batch_first=True)

    def forward(self, x):
        query = self.asks(x)
        return self.does(self, (query @ query.mT).softmax(-1) @ query + x)


CALLS = {
    "bilinear": lambda by, x: by.bilinear(x, x.flip(0)),
    "affine_grid": lambda by, x: F.affine_grid(x[:, :2, :3], (2, 1, 4, 4), False),
    "pinv": lambda by, x: torch.linalg.pinv(x.float()),
    "sparse": lambda by, x: torch.sparse.mm(torch.eye(N).to_sparse(), x[0].float()),
    "an encoder layer": lambda by, x: by.layer(x),
    "multihead attention": lambda by, x: by.attends(x, x, x)[0],
    "sdpa": lambda by, x: F.scaled_dot_product_attention(x, x, x),
    "einsum": lambda by, x: torch.einsum("bnd,bmd->bnm", x.float(), x.float()),
    "multi_dot": lambda by, x: torch.linalg.multi_dot([x[0].float(), x[0].float().mT]),
    "cdist of many": lambda by, x: torch.cdist(x.float().repeat(1, 6, 1), x.float()),
    "gru": lambda by, x: by.reads(x)[0],
}


@pytest.mark.filterwarnings("ignore:attention of Calls was not recorded")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("way", CALLS)
def test_what_operations_call_themselves_is_cast_as_without_recording(way, mode):
    model, x = Calls(CALLS[way]).eval(), torch.randn(2, N, WIDTH)
    with mode(), torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with heedful.record(model) as recording:
            during = model(x)
    assert plain.dtype == during.dtype
    assert torch.equal(plain, during)
    assert len(recording) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [False, True])
def test_a_fused_layer_is_shown_as_autocast_has_it(dtype, first):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=first).eval()
    x = torch.randn(1, N, 8, dtype=dtype)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), heedful.record(layer) as recording:
        layer(x)
    assert recording.missed == {}
    [call] = recording
    assert (call.proof, call.shape) == ("proved", (2, N, N)), call.why


@torch.library.custom_op("heedful_tests::times", mutates_args=())
def times(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight).float()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_operations_of_others_call_is_cast_too(mode):
    model = Calls(lambda by, x: times(x, by.asks.weight)).eval()
    x = torch.randn(2, N, WIDTH)
    with mode(), torch.autocast("cpu", torch.bfloat16):
        plain = model(x)
        with heedful.record(model):
            during = model(x)
    assert torch.equal(plain, during)


LINEAR = {
    "another order": lambda by, x: by.asks(x.transpose(0, 1)),
    "copies": lambda by, x: by.asks(x[:, :, None].expand(-1, -1, 3, -1)),
    "no bias": lambda by, x: F.linear(x.transpose(0, 1), by.asks.weight),
}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("way", LINEAR)
def test_linear_layers_add_up_in_the_same_order_in_inference_mode(way, texts):
    model, x = Calls(LINEAR[way]).eval(), torch.randn(texts, 40, WIDTH)
    with torch.inference_mode():
        plain = model(x)
        with heedful.record(model):
            during = model(x)
    assert torch.equal(plain, during)
