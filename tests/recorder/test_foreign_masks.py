"""Masks of user-defined classes, and masks of heedful with tables that change."""

import pytest
import torch
from torch import nn

import heedful
from heedful import attention
from heedful.ops.masks import Causal, Dense, KeyRanges, Mask, Packed, Padding


class Seeing(Mask):
    """A mask of a user-defined class that only defines `allowed`."""

    def __init__(self, sizes):
        self.sizes = sizes

    def allowed(self, query, key, shape):
        return (query - key).abs() < self.sizes[query]


class OfHeads(Mask):
    """A window of a different size for each head, on any axis of the call."""

    def allowed(self, query, key, shape):
        sizes = 1 + 2 * torch.arange(shape[-3])[:, None, None]
        return (query - key).abs() < sizes


class Layer(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.masks = masks

    def forward(self, x):
        result = [attention(x, x, x, mask=mask) for mask in self.masks]
        return torch.stack(result).mean(0)


def layers(*masks, count=2):
    return nn.Sequential(*(Layer(masks) for _ in range(count)))


def expected(x, allowed):
    """The map by its definition, in float64."""
    raised = (x.double() @ x.double().mT / x.shape[-1] ** 0.5).exp() * allowed
    return raised / raised.sum(-1, keepdim=True)


def shows(call, weights):
    assert call.proof == "proved"
    torch.testing.assert_close(call.weights().double(), weights, atol=1e-6, rtol=0)


@pytest.mark.parametrize("axes", [(3,), (2, 3), (2, 2, 3)])
def test_a_mask_without_a_tensor_has_the_axes_of_the_call(axes):
    x, mask = torch.randn(*axes, 20, 4), OfHeads()
    with heedful.record(model := Layer([mask])) as recording:
        model(x)
    own = expected(x, mask.crop((*axes, 20, 20)))
    own = own[:, None] if len(axes) == 1 else own.flatten(0, -4)
    assert recording.missed == {}
    parts = [part for [call] in recording.sequences for part in call.parts]
    for part, weights in zip(parts, own, strict=True):
        shows(part, weights)


STRUCTURES = {
    "table": lambda table: Dense(table.view(64, 1).expand(64, 64).tril() | torch.eye(64).bool()),
    "table of heads": lambda table: Dense(table.expand(1, 2, 64, 64).clone()),
    "runs": lambda table: KeyRanges(table.long() * 5, torch.full((64,), 64)),
    "padding": lambda table: Padding(table.view(1, 64).clone()),
    "bits": lambda table: Packed.of(table.view(64, 1).expand(64, 64) | torch.eye(64).bool()),
    "combined": lambda table: Causal() & Dense(table.view(1, 64) | torch.eye(64).bool()),
    "beside a custom mask": lambda table: (
        Seeing(table.long() * 4 + 3) & Dense(table.view(1, 64) | torch.eye(64).bool())
    ),
}
# One number, of a row or a key that the check does not compare
CHANGES = {
    "table": lambda mask: mask.table[30, :20].logical_not_(),
    "table of heads": lambda mask: mask.table[0, 1, 30, :20].logical_not_(),
    "runs": lambda mask: mask.first[30].sub_(9).abs_(),
    "padding": lambda mask: mask.keep[0, 5].logical_not_(),
    "bits": lambda mask: mask.bits[30].bitwise_not_(),
    "combined": lambda mask: mask.parts[1].table[30, :20].logical_not_(),
    "beside a custom mask": lambda mask: mask.parts[0].sizes[30].add_(5),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_each_layer_has_its_own_mask_if_the_tables_change_between_layers(kind, mode):
    mask, inputs = STRUCTURES[kind](torch.arange(64) % 3 > 0), []

    def change(*_):
        CHANGES[kind](mask)

    model = layers(mask)
    for layer in model:
        layer.register_forward_pre_hook(
            lambda layer, x: inputs.append((x[0], mask.crop((1, 2, 64, 64)).clone()))
        )
        layer.register_forward_hook(change)
    with mode(), heedful.record(model) as recording:
        model(torch.randn(1, 2, 64, 4))
    assert not torch.equal(inputs[0][1], inputs[1][1])
    for call, (x, table) in zip(recording, inputs, strict=True):
        shows(call, expected(x, table)[0])
