"""Masks of our own whose tables a model changes in place between two layers."""

import pytest
import torch
from torch import nn

import heedful
from heedful import attention
from heedful.ops.masks import Causal, Combined, Dense, KeyRanges, Mask, Packed, Padding, Window


class Seeing(Mask):
    """A mask of somebody's own, of which nothing is known but what it allows."""

    def __init__(self, sizes):
        self.sizes = sizes

    def allowed(self, query, key, shape):
        return (query - key).abs() < self.sizes[query]


def own_layers(mask, change):
    """Two layers by heedful's own function, and a change of their mask between them."""
    return two_layers(lambda x: attention(x, x, x, mask=mask), change)


def two_layers(attend, change):
    """Two layers that attend to one input, and a change between them."""

    class Layer(nn.Module):
        def forward(self, x):
            return attend(x)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Layer(), Layer()

        def forward(self, x):
            made = self.first(x)
            change()
            return made, self.second(x)

    return Model()


STRUCTURES = {
    "table": lambda table: Dense(table.view(64, 1).expand(64, 64).tril() | torch.eye(64).bool()),
    "table of heads": lambda table: Dense(table.expand(1, 2, 64, 64).clone()),
    "runs": lambda table: KeyRanges(table.long() * 5, torch.full((64,), 64)),
    "padding": lambda table: Padding(table.view(1, 64).clone()),
    "bits": lambda table: Packed.of(table.view(64, 1).expand(64, 64) | torch.eye(64).bool()),
    "combined": lambda table: Causal() & Dense(table.view(1, 64) | torch.eye(64).bool()),
    "of a window": lambda table: Dense(table.view(1, 64) | torch.eye(64).bool()) & Window(9),
    "somebody's own": lambda table: Seeing(table.long() * 4 + 3),
}
# One number, of a row or of a key that no check looks at
CHANGES = {
    "table": lambda mask: mask.table[30, :20].logical_not_(),
    "table of heads": lambda mask: mask.table[0, 1, 30, :20].logical_not_(),
    "runs": lambda mask: mask.first[30].sub_(9).abs_(),
    "padding": lambda mask: mask.keep[0, 5].logical_not_(),
    "bits": lambda mask: mask.bits[30].bitwise_not_(),
    "combined": lambda mask: mask.parts[1].table[30, :20].logical_not_(),
    "of a window": lambda mask: mask.parts[0].table[30, 26:].logical_not_(),
    "somebody's own": lambda mask: mask.sizes[30].add_(1),
}


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("kind", STRUCTURES)
def test_a_structure_whose_tables_change_between_two_layers_is_that_of_each(kind, mode):
    mask, x = STRUCTURES[kind](torch.arange(64) % 3 > 0), torch.randn(1, 2, 64, 4)
    tables = [mask.crop((1, 2, 64, 64)).clone()]
    with mode():
        model = own_layers(mask, lambda: CHANGES[kind](mask))
        with heedful.record(model) as recording:
            model(x)
    tables.append(mask.crop((1, 2, 64, 64)))
    assert not torch.equal(*tables)
    assert recording.missed == {}
    for call, table in zip(recording, tables, strict=True):
        raised = (x.double() @ x.double().mT / 2).exp() * table
        sees = raised.any(0).any(0).any(0)
        expected = (raised / raised.sum(-1, keepdim=True))[0]
        shown = call.weights().double()
        if shown.shape != expected.shape:  # without padding
            expected = expected[:, sees][..., sees]
        torch.testing.assert_close(shown, expected, atol=1e-6, rtol=0)
        assert not call.why.startswith("row")


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_layers_share_what_was_made_of_one_mask(mode):
    mask = Dense((torch.arange(64 * 64) % 3 > 0).view(64, 64) | torch.eye(64).bool())
    with mode(), heedful.record(model := own_layers(mask, lambda: None)) as recording:
        model(torch.randn(1, 2, 64, 4))
    assert isinstance(recording[0].causes.mask, Packed)
    assert recording[0].causes.mask is recording[1].causes.mask


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_layers_that_take_turns_with_several_masks_share_what_was_made_of_each(mode):
    tables = (torch.rand(5, 64, 64) < 0.5) | torch.eye(64).bool()
    masks = [*map(Dense, tables), Seeing(torch.full((64,), 3))]

    class Layer(nn.Module):
        def forward(self, x):
            made = [attention(x, x, x, mask=mask) for mask in masks]
            return torch.stack(made).mean(0)

    model = nn.Sequential(*(Layer() for _ in range(3)))
    with mode(), heedful.record(model) as recording:
        model(torch.randn(1, 2, 64, 4))
    assert len(recording) == 18
    assert len({id(call.causes.mask) for call in recording}) == 6
    for call, mask in zip(recording, masks * 3, strict=True):
        allowed = mask.crop((2, 64, 64)).expand(2, 64, 64)
        assert torch.equal(call.weights() > 0, allowed)


class Either(Combined):
    """What one of two masks allows."""

    def allowed(self, query, key, shape):
        one, other = self.parts
        return one.allowed(query, key, shape) | other.allowed(query, key, shape)

    def span(self, queries, shape):
        return range(shape[-1])

    def certain(self, queries, shape):
        return range(0)


class Strict(Causal):
    """No key of a place that three divides, but one's own."""

    def allowed(self, query, key, shape):
        return (key <= query) & ((key % 3 > 0) | (key == query))


class WithItself(Padding):
    """Padding sees itself, so that what it allows is a table of queries too."""

    def allowed(self, query, key, shape):
        return super().allowed(query, key, shape) | (query == key)


INHERITED = {
    "padding": WithItself(torch.arange(64)[None] % 3 > 0),
    "either": Either((Window(4), KeyRanges.from_lengths([20, 44]))),
    "either and causal": Either((Window(4), KeyRanges.from_lengths([20, 44]))) & Causal(),
    "causal": Strict(),
}


@pytest.mark.parametrize("dropout", [0.0, 1e-9])
@pytest.mark.parametrize("kind", INHERITED)
def test_a_class_that_inherits_from_a_mask_allows_what_it_says(kind, dropout):
    mask, x = INHERITED[kind], torch.randn(1, 2, 64, 4)
    query = torch.arange(64)[:, None]
    allowed = mask.allowed(query, query.T, (1, 2, 64, 64))
    if kind == "either and causal":
        assert torch.equal(allowed, INHERITED["either"].allowed(query, query.T, (64, 64)).tril())
    raised = (x.double() @ x.double().mT / 2).exp() * allowed
    expected = raised / raised.sum(-1, keepdim=True)
    with torch.no_grad(), heedful.record(model := own_layers(mask, lambda: None)) as recording:
        output, _ = model(x)
    torch.testing.assert_close(output.double(), expected @ x.double(), atol=1e-5, rtol=0)
    streamed = heedful.streaming_attention(x, x, x, mask=mask)
    torch.testing.assert_close(streamed.output, output, atol=1e-5, rtol=0)
    received = streamed.statistics["received"].double()
    torch.testing.assert_close(received, expected.sum(-2), atol=1e-5, rtol=0)
    dropped = attention(x, x, x, mask=mask, dropout=dropout)
    torch.testing.assert_close(dropped, output, atol=1e-5, rtol=0)
    for call in recording:
        torch.testing.assert_close(call.weights().double(), expected[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("given", [Dense, lambda table: table])
def test_a_table_that_is_let_go_gives_its_address_to_no_other(given):
    """A tensor that is given other numbers by `.data =` counts nothing, and keeps its version."""
    table = torch.arange(64 * 64).view(64, 64) % 3 > 0
    changed = table.clone()
    changed[30, 30] ^= True
    met = []

    def attend(x):
        met.append(table.clone())
        if given is Dense:
            return attention(x, x, x, mask=mask)
        return torch.where(table, x @ x.mT / 2, -torch.inf).softmax(-1) @ x

    def change():
        homes = Addresses([table.untyped_storage()])
        table.data = torch.empty(0, dtype=torch.bool)
        assert homes.gone() == []
        table.data = changed.clone()

    mask, x = given(table), torch.randn(1, 2, 64, 4)
    with torch.no_grad(), heedful.record(model := two_layers(attend, change)) as recording:
        model(x)
    for call, allowed in zip(recording, met, strict=True):
        raised = (x.double() @ x.double().mT / 2).exp() * allowed
        expected = (raised / raised.sum(-1, keepdim=True))[0]
        torch.testing.assert_close(call.weights().double(), expected, atol=1e-6, rtol=0)
