"""Operations under autocast and in inference mode give the same results while recording."""

import pytest
import torch
from shown_maps import WIDTH, D, Heads, N, recorded, weighed
from torch import nn
from torch.nn import functional as F

import heedful


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("before", [0, 2])
def test_parameters_that_autocast_has_cached_count_as_parameters(before, gradients):
    calls = []

    def attend(query, key):
        calls.append((query @ key.mT).softmax(-1))
        return calls[-1] @ key

    model, x = Heads(attend), torch.randn(2, N, WIDTH)
    with torch.set_grad_enabled(gradients), torch.autocast("cpu", torch.bfloat16):
        for _ in range(before):
            model(x)
        recording = recorded(model, x)
    assert recording.missed == {}
    for [call], weights in zip(recording.sequences, calls[-1], strict=True):
        assert (call.proof, call.layout) == ("proved", "usual")
        torch.testing.assert_close(call.weights(), weights, atol=1e-6, rtol=0)


class Calls(nn.Module):
    """Attention, and an operation of torch on its output, (B, N, WIDTH)."""

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


@torch.library.custom_op("heedful_tests::times", mutates_args=())
def times(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(x, weight).float()


CALLS = {
    "bilinear": lambda by, x: by.bilinear(x, x.flip(0)),
    "sparse": lambda by, x: torch.sparse.mm(torch.eye(N).to_sparse(), x[0].float()),
    "an encoder layer": lambda by, x: by.layer(x),
    "multihead attention": lambda by, x: by.attends(x, x, x)[0],
    "sdpa": lambda by, x: F.scaled_dot_product_attention(x, x, x),
    "einsum": lambda by, x: torch.einsum("bnd,bmd->bnm", x.float(), x.float()),
    "gru": lambda by, x: by.reads(x)[0],
    "a custom operation": lambda by, x: times(x, by.asks.weight).detach(),
    "linear, another order": lambda by, x: by.asks(x.transpose(0, 1)),
    "linear, copies": lambda by, x: by.asks(x[:, :, None].expand(-1, -1, 3, -1)),
    "linear, no bias": lambda by, x: F.linear(x.transpose(0, 1), by.asks.weight),
}


@pytest.mark.filterwarnings("ignore:attention of .* was not recorded")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("is_cast", [False, True])
@pytest.mark.parametrize("way", CALLS)
def test_operations_inside_operations_run_as_without_recording(way, is_cast, mode):
    if mode is torch.enable_grad and way == "a custom operation":
        pytest.skip("it has no gradient")
    model, x = Calls(CALLS[way]).eval(), torch.randn(2, N, WIDTH)
    with mode(), torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        plain = model(x)
        with heedful.record(model) as recording:
            during = model(x)
    assert plain.dtype == during.dtype
    assert torch.equal(plain, during)
    assert len(recording) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [False, True])
def test_a_fused_layer_under_autocast(dtype, first):
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, norm_first=first).eval()
    x = torch.randn(1, N, 8, dtype=dtype)
    with torch.no_grad():
        result = layer.norm1(x) if first else x
        with torch.autocast("cpu", torch.bfloat16):
            query, key, _ = (
                F.linear(result, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias)
                .unflatten(-1, (3, 2, 4))
                .permute(2, 0, 3, 1, 4)
            )
            recording = recorded(layer, x)
    assert recording.missed == {}
    [call] = recording
    assert call.proof == "proved", call.why
    torch.testing.assert_close(call.weights(), weighed(query.float() / 2, key.float())[0])
