"""User-defined attention inside a model of heedful or transformers is recorded too.

Operations of these models are watched only if another door might miss attention.
"""

import functools
import types

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from shown_maps import Given, recorded
from transformers import LlamaConfig, LlamaForCausalLM

import heedful
from heedful.models import GPT, GPTConfig

IDS = torch.arange(18).view(3, 6) % 9
SIZES = {"vocab_size": 9, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3,
         "num_key_value_heads": 3, "intermediate_size": 16}  # fmt: skip
MEMORY = torch.randn(1, 3, 5, 4)


def by_hand(x):
    query = x.unflatten(-1, (3, 4)).transpose(1, 2)
    return ((query @ MEMORY.mT / 2).softmax(-1) @ MEMORY).transpose(1, 2).flatten(2)


def by_kernel(x):
    query, memory = x.unflatten(-1, (3, 4)).transpose(1, 2), MEMORY.expand(len(x), -1, -1, -1)
    return F.scaled_dot_product_attention(query, memory, memory).transpose(1, 2).flatten(2)


def of_ours():
    return GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=1, heads=3)).eval()


def of_transformers():
    return LlamaForCausalLM(LlamaConfig(**SIZES)).eval()


def feed_of(model):
    """A block, and the name of its feed-forward part."""
    if isinstance(model, GPT):
        return model.blocks[0], "feed"
    return model.model.layers[0], "mlp"


def replaced(block, name, attend):
    setattr(block, name, Given(attend))


def hooked(block, name, attend):
    getattr(block, name).register_forward_hook(lambda part, inputs, result: attend(result))


def hooked_before(block, name, attend):
    getattr(block, name).register_forward_pre_hook(lambda part, inputs: (attend(inputs[0]),))


def with_its_own_forward(block, name, attend):
    getattr(block, name).forward = attend


def with_a_partial_as_forward(block, name, attend):
    """As accelerate does."""
    part = getattr(block, name)
    part.forward = functools.partial(lambda part, x: attend(x), part)


def with_a_class_that_was_patched(block, name, attend):
    """Patch a class of this object only, as all tests share its original class."""
    part = getattr(block, name)
    kind = type(part)
    part.__class__ = types.new_class(kind.__name__, (kind,))
    part.__class__.__module__ = kind.__module__
    part.__class__.forward = lambda self, x: attend(x)


WAYS = [replaced, hooked, hooked_before, with_its_own_forward,
        with_a_partial_as_forward, with_a_class_that_was_patched]  # fmt: skip


@pytest.mark.parametrize("attend", [by_hand, by_kernel])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_attention_of_the_user_is_a_call_beside_those_of_the_model(build, way, attend):
    model, model_maps = build(), []

    def attending(x):
        query = x.unflatten(-1, (3, 4)).transpose(1, 2)
        model_maps.append((query.double() @ MEMORY.double().mT / 2).softmax(-1).float())
        return attend(x)

    block, name = feed_of(model)
    way(block, name, attending)
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    for text, weights in zip(recording.sequences, model_maps[0], strict=True):
        assert sorted(call.shape for call in text) == [(3, 6, 5), (3, 6, 6)]
        [call] = [call for call in text if call.shape == (3, 6, 5)]
        assert call.proof == "proved"
        assert call.name.endswith(name) == (way is not hooked_before)
        torch.testing.assert_close(call.weights(), weights)


class ByHand(torch.nn.Module):
    """Replaces the attention of a layer of transformers, and uses its projections."""

    def __init__(self, before):
        super().__init__()
        self.before = before

    def forward(self, hidden_states, **keywords):
        before = self.before
        query, key, value = (
            layer(hidden_states).unflatten(-1, (3, 4)).transpose(1, 2)
            for layer in (before.q_proj, before.k_proj, before.v_proj)
        )
        hidden = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).triu(1)
        self.map = (query @ key.mT / 2).masked_fill(hidden, -torch.inf).softmax(-1)
        return before.o_proj((self.map @ value).transpose(1, 2).flatten(2)), None


@torch.no_grad()
def test_a_layer_without_the_interface_is_recorded_with_its_number():
    model = LlamaForCausalLM(LlamaConfig(**SIZES | {"num_hidden_layers": 3})).eval()
    layer = model.model.layers[1]
    layer.self_attn = ByHand(layer.self_attn)
    recording = recorded(model, IDS)
    assert [(call.layer, call.proof) for call in recording] == [(i, "proved") for i in range(3)]
    assert [call.layout for call in recording] == ["told", "usual", "told"]
    torch.testing.assert_close(recording[1].weights(), layer.self_attn.map[0])


@pytest.mark.parametrize("build", [of_ours, of_transformers])
def test_verify_refutes_texts_that_a_hook_exchanges(build):
    model = build()
    with torch.no_grad(), heedful.record(model) as before:
        model(IDS)
    [embeds] = [part for part in model.modules() if isinstance(part, torch.nn.Embedding)][:1]
    embeds.register_forward_hook(lambda part, inputs, result: result.flip(0))
    with torch.no_grad(), heedful.record(model) as recording:
        model(IDS)
    [moved], [other] = recording.sequences[0], before.sequences[2]
    torch.testing.assert_close(moved.weights(), other.weights(), atol=1e-6, rtol=0)
    assert [call.proof for [call] in recording.sequences] == ["proved"] * 3
    recording.verify(model, IDS)
    assert [call.proof for [call] in recording.sequences] == ["refuted", "proved", "refuted"]
