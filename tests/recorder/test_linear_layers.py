"""Linear layers, which run as one operation while a model is recorded."""

import threading

import pytest
import torch
import torch.nn.functional as F
from looked import WIDTH, Heads
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import heedful
from heedful.recorder.following.operations import Operations

H, D, N = 3, 4, 7
LINEAR = F.linear


def attend(query, key):
    return (query @ key.mT * D**-0.5).softmax(-1) @ key


@pytest.fixture
def names(monkeypatch):
    """The operations that come to the mode, and those that it is told of."""
    seen, real = [], Operations.__torch_dispatch__
    told, layer = [], Operations.layer

    def dispatch(self, function, types, arguments=(), keywords=None):
        seen.append(function.overloadpacket.__name__)
        return real(self, function, types, arguments, keywords)

    def follow(self, x, weight, *rest):
        told.append(weight)
        return layer(self, x, weight, *rest)

    monkeypatch.setattr(Operations, "__torch_dispatch__", dispatch)
    monkeypatch.setattr(Operations, "layer", follow)
    return seen, told


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_a_layer_is_one_operation(names, context):
    seen, told = names
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    with context():
        plain = model(x)
        with heedful.record(model) as recording:
            assert torch.equal(model(x), plain)
    assert not {"addmm", "linear", "t"} & set(seen)
    assert list(map(id, told)) == [id(model.asks.weight), id(model.says.weight)]
    assert recording[0].proof == "proved"
    assert F.linear is LINEAR


def test_its_gradients_and_what_autocast_makes_of_it_are_as_they_were():
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    found = []
    for is_recorded in (False, True):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            if is_recorded:
                with heedful.record(model) as recording:
                    output = model(x)
            else:
                output = model(x)
        output.square().sum().backward()
        found.append([output, *(one.grad for one in model.parameters())])
    assert all(map(torch.equal, *found))
    assert recording[0].causes.query.dtype == torch.bfloat16
    assert recording[0].proof == "proved"


class Learned(nn.Module):
    """Queries that a layer makes meet `keys`, and the weights `values`, by what `meets` does."""

    def __init__(self, meets):
        super().__init__()
        self.asks, self.meets = nn.Linear(WIDTH, D), meets
        self.keys, self.values = nn.Parameter(torch.randn(N, D)), nn.Parameter(torch.randn(D, N))
        self.table = nn.Parameter(torch.randn(N, WIDTH))

    def forward(self, x):
        return self.meets(self, self.asks(x), x)


def of_layers(model, query, x):
    """All of it as layers of its own: scores with a parameter, which are none of attention."""
    return F.linear(F.linear(query, model.keys).softmax(-1), model.values)


def of_written(model, query, x):
    """A parameter that keys were written into: products with it are scores."""
    with torch.no_grad():
        model.keys.copy_(x[0, :, :D])
    return F.linear(query, model.keys).softmax(-1) @ x


def of_values(model, query, x):
    """Values that are a parameter, by which a layer multiplies weights."""
    return F.linear((query @ x[..., :D].mT).softmax(-1), model.values)


def of_learned(model, query, x):
    """Queries that a layer makes of parameters."""
    return (model.asks(model.table[None]) @ x[..., :D].mT).softmax(-1) @ x


def of_products(model, query, x):
    """The same by a parameter that is no layer's."""
    return (F.linear(model.table[None], model.table) @ x[..., :N].mT).softmax(-1) @ x


@pytest.mark.parametrize("meets", [of_layers, of_written, of_values, of_learned, of_products])
def test_what_is_more_than_a_layer_is_seen_as_it_was(meets, monkeypatch):
    torch.manual_seed(0)
    model, x = Learned(meets), torch.randn(1, N, WIDTH)
    found = []
    for is_layer in (Operations.is_layer, lambda *_: False):
        monkeypatch.setattr(Operations, "is_layer", is_layer)
        with torch.no_grad(), heedful.record(model) as recording:
            model(x)
        calls = [(call.proof + call.why, call.weights()) for call in recording]
        found.append((calls, recording.missed))
    (one, missed), (other, as_missed) = found
    assert missed == as_missed
    assert len(one) == len(other)
    for (proof, weights), (as_proof, as_weights) in zip(one, other, strict=True):
        assert proof == as_proof
        assert torch.equal(weights, as_weights)


class Doubles(TorchFunctionMode):
    """Calls each function of torch, and counts the linear layers."""

    def __init__(self):
        super().__init__()
        self.layers = 0

    def __torch_function__(self, function, types, arguments=(), keywords=None):
        self.layers += function is LINEAR
        return function(*arguments, **(keywords or {}))


class Sees(TorchDispatchMode):
    """Counts the products with parameters."""

    def __init__(self):
        super().__init__()
        self.layers = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        self.layers += function is torch.ops.aten.addmm.default
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("mode", [Doubles, Sees])
@pytest.mark.parametrize("is_outside", [False, True])
def test_other_modes_see_what_they_saw(mode, is_outside, names):
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    with torch.no_grad():
        if is_outside:
            with mode() as seen, heedful.record(model) as recording:
                model(x)
        else:
            with heedful.record(model) as recording, mode() as seen:
                model(x)
    assert seen.layers == 2
    assert not names[1]
    assert recording[0].proof == "proved"


def test_operations_are_counted_as_they_were():
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    with FlopCounterMode(display=False) as plain:
        model(x)
    with heedful.record(model), FlopCounterMode(display=False) as recorded:
        model(x)
    assert recorded.get_total_flops() == plain.get_total_flops() > 0


def test_a_layer_inside_vmap_is_seen_as_it_was(names):
    class Maps(Heads):
        def forward(self, x):
            query, key = (
                torch.vmap(one)(x).unflatten(-1, self.sizes) for one in (self.asks, self.says)
            )
            return attend(query.transpose(1, 2), key.transpose(1, 2))

    model, x = Maps(attend, H, D), torch.randn(1, N, WIDTH)
    with torch.no_grad(), heedful.record(model) as recording:
        model(x)
    assert not names[1]
    assert recording[0].proof in ("proved", "assumed")


def test_a_function_that_somebody_puts_around_it_meanwhile_stays():
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    try:
        with heedful.record(model):
            inner = F.linear
            F.linear = lambda *given: 2 * inner(*given)
        layer = nn.Linear(WIDTH, 2)
        assert torch.equal(layer(x), 2 * LINEAR(x, layer.weight, layer.bias))
        with torch.no_grad(), heedful.record(model) as recording:
            model(x)
    finally:
        F.linear = LINEAR
    assert len(recording) == 1


def test_layers_of_another_thread_are_not_followed(names):
    model, x, other = Heads(attend, H, D), torch.randn(1, N, WIDTH), nn.Linear(WIDTH, 2)
    made = []
    with torch.no_grad(), heedful.record(model) as recording:
        thread = threading.Thread(target=lambda: made.append(other(x)))
        thread.start()
        thread.join()
        model(x)
    assert torch.equal(made[0], LINEAR(x, other.weight, other.bias))
    assert len(names[1]) == 2
    assert len(recording) == 1


def test_a_layer_that_fails_leaves_the_mode_as_it_was():
    model, x = Heads(attend, H, D), torch.randn(1, N, WIDTH)
    with torch.no_grad(), heedful.record(model) as recording:
        with pytest.raises(RuntimeError):
            model(x[..., :-1])
        model(x)
    assert [call.proof for call in recording] == ["proved"]
