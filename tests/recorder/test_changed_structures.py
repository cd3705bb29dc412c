"""Masks of our own whose tables a model changes in place between two layers."""

import pytest
import torch
from torch import nn

import heedful
from heedful import attention
from heedful.ops.masks import Causal, Dense, KeyRanges, Mask, Packed, Padding


class Seeing(Mask):
    """A mask of somebody's own, of which nothing is known but what it allows."""

    def __init__(self, sizes):
        self.sizes = sizes

    def allowed(self, query, key, shape):
        return (query - key).abs() < self.sizes[query]


class Layer(nn.Module):
    def __init__(self, masks):
        super().__init__()
        self.masks = masks

    def forward(self, x):
        made = [attention(x, x, x, mask=mask) for mask in self.masks]
        return torch.stack(made).mean(0)


def layers(*masks, count=2):
    return nn.Sequential(*(Layer(masks) for _ in range(count)))


def recorded(model, x, mode=torch.no_grad):
    """The recording, and what the first layer was given and each other one."""
    given = []
    for layer in model:
        layer.register_forward_pre_hook(lambda layer, args: given.append(args[0].double()))
    with mode(), heedful.record(model) as recording:
        model(x)
    assert recording.missed == {}
    return recording, given


def weights(x, allowed):
    """By their definition, in float64: (H, N, M)."""
    raised = (x @ x.mT / 2).exp() * allowed
    return (raised / raised.sum(-1, keepdim=True))[0]


STRUCTURES = {
    "table": lambda table: Dense(table.view(64, 1).expand(64, 64).tril() | torch.eye(64).bool()),
    "table of heads": lambda table: Dense(table.expand(1, 2, 64, 64).clone()),
    "runs": lambda table: KeyRanges(table.long() * 5, torch.full((64,), 64)),
    "padding": lambda table: Padding(table.view(1, 64).clone()),
    "bits": lambda table: Packed.of(table.view(64, 1).expand(64, 64) | torch.eye(64).bool()),
    "combined": lambda table: Causal() & Dense(table.view(1, 64) | torch.eye(64).bool()),
    "beside somebody's own": lambda table: (
        Seeing(table.long() * 4 + 3) & Dense(table.view(1, 64) | torch.eye(64).bool())
    ),
}
# One number, of a row or of a key that no check looks at
CHANGES = {
    "table": lambda mask: mask.table[30, :20].logical_not_(),
    "table of heads": lambda mask: mask.table[0, 1, 30, :20].logical_not_(),
    "runs": lambda mask: mask.first[30].sub_(9).abs_(),
    "padding": lambda mask: mask.keep[0, 5].logical_not_(),
    "bits": lambda mask: mask.bits[30].bitwise_not_(),
    "combined": lambda mask: mask.parts[1].table[30, :20].logical_not_(),
    "beside somebody's own": lambda mask: mask.parts[0].sizes[30].add_(5),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_structure_whose_tables_change_between_two_layers_is_that_of_each(kind, mode):
    mask, x = STRUCTURES[kind](torch.arange(64) % 3 > 0), torch.randn(1, 2, 64, 4)
    tables = [mask.crop((1, 2, 64, 64)).clone()]

    def change(*_):
        CHANGES[kind](mask)

    model = layers(mask)
    model[0].register_forward_hook(change)
    recording, given = recorded(model, x, mode)
    tables.append(mask.crop((1, 2, 64, 64)))
    assert not torch.equal(*tables)
    for call, x, table in zip(recording, given, tables, strict=True):
        torch.testing.assert_close(call.weights().double(), weights(x, table), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_layers_that_take_turns_with_several_masks_share_what_was_made_of_each(mode):
    tables = (torch.rand(5, 64, 64) < 0.5) | torch.eye(64).bool()
    masks = [*map(Dense, tables), Seeing(torch.full((64,), 3))]
    recording, _ = recorded(layers(*masks, count=3), torch.randn(1, 2, 64, 4), mode)
    assert len(recording) == 18
    assert len({id(call.causes.mask) for call in recording}) == 6
    for call, mask in zip(recording, masks * 3, strict=True):
        assert torch.equal(call.weights() > 0, mask.crop((2, 64, 64)).expand(2, 64, 64))


class Strict(Causal):
    """No key of a place that three divides, but one's own."""

    def allowed(self, query, key, shape):
        return (key <= query) & ((key % 3 > 0) | (key == query))


class WithItself(Padding):
    """Padding sees itself, so that what it allows is a table of queries too."""

    def allowed(self, query, key, shape):
        return super().allowed(query, key, shape) | (query == key)


@pytest.mark.parametrize("mask", [WithItself(torch.arange(64)[None] % 3 > 0), Strict()], ids=type)
def test_a_class_that_inherits_from_a_mask_allows_what_it_says(mask):
    query = torch.arange(64)[:, None]
    allowed = mask.allowed(query, query.T, (1, 2, 64, 64))
    recording, given = recorded(layers(mask), torch.randn(1, 2, 64, 4))
    for call, x in zip(recording, given, strict=True):
        torch.testing.assert_close(call.weights().double(), weights(x, allowed), atol=1e-6, rtol=0)
