"""Attention that somebody has put into a model of ours, or of transformers, is seen there too.

Such models are not watched operation by operation where all their attention goes by its own door.
"""

import functools
import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import heedful
from heedful.models import GPT, GPTConfig
from heedful.recorder.doors import holders

IDS = torch.tensor([[1, 2, 3, 4, 5, 6]])
MEMORY = torch.randn(1, 3, 5, 4)


def by_hand(x):
    query = x.unflatten(-1, (3, 4)).transpose(1, 2)
    return ((query @ MEMORY.mT / 2).softmax(-1) @ MEMORY).transpose(1, 2).flatten(2)


def by_kernel(x):
    query = x.unflatten(-1, (3, 4)).transpose(1, 2)
    return F.scaled_dot_product_attention(query, MEMORY, MEMORY).transpose(1, 2).flatten(2)


class Part(nn.Module):
    def __init__(self, attend):
        super().__init__()
        self.attend = attend

    def forward(self, x):
        return self.attend(x)


def of_ours():
    return GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=1, heads=3)).eval()


def of_transformers():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=9,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=3,
        num_key_value_heads=3,
        intermediate_size=16,
    )
    return transformers.LlamaForCausalLM(config).eval()


def block_of(model):
    return model.blocks[0] if isinstance(model, GPT) else model.model.layers[0]


def put(model, name, part):
    setattr(block_of(model), name, part)


def replaced(model, name, attend):
    put(model, name, Part(attend))


def of_a_package_like_torch(model, name, attend):
    kind = type("Part", (Part,), {"__module__": "torchextra.parts"})
    put(model, name, kind(attend))


def hooked(model, name, attend):
    getattr(block_of(model), name).register_forward_hook(lambda part, given, made: attend(made))


def hooked_before(model, name, attend):
    part = getattr(block_of(model), name)
    part.register_forward_pre_hook(lambda part, given: (attend(given[0]),))


def with_its_own_forward(model, name, attend):
    getattr(block_of(model), name).forward = attend


def put_around(model, name, attend):
    part = getattr(block_of(model), name)
    part.forward = functools.wraps(part.forward)(lambda x, around=part.forward: attend(around(x)))


def method_of_the_class(model, name, attend):
    """For this object alone, as a class that somebody has patched is one for all tests."""
    part = getattr(block_of(model), name)
    kind = type(part)
    part.__class__ = types.new_class(kind.__name__, (kind,))
    part.__class__.__module__ = kind.__module__
    part.__class__.forward = lambda self, x: attend(x)


WAYS = [
    replaced,
    of_a_package_like_torch,
    hooked,
    hooked_before,
    with_its_own_forward,
    put_around,
    method_of_the_class,
]


@pytest.mark.parametrize("attend", [by_hand, by_kernel])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_attention_of_ones_own_is_a_call_beside_the_models(build, way, attend):
    model = build()
    name = "feed" if isinstance(model, GPT) else "mlp"
    with torch.no_grad(), heedful.record(model) as before:
        model(IDS)
    assert [call.shape for call in before] == [(3, 6, 6)]
    way(model, name, attend)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]
    assert recording.missed == {}


def test_attention_of_a_hook_for_all_modules_is_seen():
    model = of_ours()

    def hook(part, given, made):
        return by_hand(made) if part is model.blocks[0].feed else None

    handle = nn.modules.module.register_module_forward_hook(hook)
    try:
        with torch.no_grad(), heedful.record(model) as recording:
            model(IDS)
    finally:
        handle.remove()
    assert sorted(call.shape for call in recording) == [(3, 6, 5), (3, 6, 6)]


@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_models_as_their_packages_made_them_are_not_watched(build):
    model = build()
    modules = {part: name for name, part in model.named_modules()}
    assert not holders.is_to_be_watched(model, modules)
    with heedful.record(model):  # whose own hooks do not attend
        assert not holders.is_to_be_watched(model, modules)
