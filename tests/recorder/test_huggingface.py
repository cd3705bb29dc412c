"""The door of transformers: what it refuses, and that it leaves nothing behind."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from torch import nn
from transformers.modeling_utils import AttentionInterface

import heedful
from heedful.errors import ArgumentError, HeedfulError
from heedful.recorder import capture, huggingface, refused
from heedful.recorder.seen import Seen

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 20,
         "intermediate_size": 24, "pad_token_id": 0, "bos_token_id": 1,
         "eos_token_id": 2}  # fmt: skip
IDS = torch.arange(3, 17).view(2, 7)


@pytest.fixture
def model():
    config = transformers.LlamaConfig(**SMALL)
    return transformers.LlamaModel._from_config(config, attn_implementation="sdpa").eval()


@pytest.mark.parametrize("inside", ["the model", "the block"])
def test_nothing_stays_patched_after_an_exception(model, inside):
    def fail(*_):
        raise ZeroDivisionError

    original = AttentionInterface.get_interface
    hooks = [len(module._forward_hooks) for module in model.modules()]
    handle = model.layers[1].mlp.register_forward_pre_hook(fail)
    recordings = []

    def run():
        with heedful.record(model) as recording:
            recordings.append(recording)
            assert AttentionInterface.get_interface is not original
            if inside == "the model":
                model(IDS)
            fail()

    with pytest.raises(ZeroDivisionError):
        run()
    [recording] = recordings
    assert AttentionInterface.get_interface is original
    assert len(recording) == (2 if inside == "the model" else 0)  # both came before the fault
    handle.remove()
    assert [len(module._forward_hooks) for module in model.modules()] == hooks
    model(IDS)
    assert len(recording) == (2 if inside == "the model" else 0)


def test_an_older_transformers_is_refused_with_the_version_that_is_needed(model, monkeypatch):
    monkeypatch.delattr(AttentionInterface, "get_interface")
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "4.57.1")
    with (
        pytest.raises(HeedfulError, match=r"transformers 4\.57\.1; expected version 5 or newer"),
        heedful.record(model),
    ):
        pass
    assert not any(module._forward_hooks for module in model.modules())
    with heedful.record(nn.MultiheadAttention(4, 2)):  # nothing of transformers, nothing to refuse
        pass


def test_a_model_that_is_not_recorded_is_left_alone(model):
    other = transformers.LlamaModel(model.config).eval()
    with heedful.record(model) as recording, torch.no_grad():
        other(IDS)
        assert len(recording) == 0
        model(IDS)
    assert [call.name for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"]


@pytest.mark.parametrize("length", [1, 7])
def test_no_mask_is_causal_where_the_module_or_the_call_says_so(length):
    """For one query it is not; and eager attention applies the mask that it is given, or none."""
    module = nn.Module()
    query = torch.randn(2, 3, length, 4)
    tensors = (query, torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4))

    def causal(implementation, **given):
        output = query.transpose(1, 2)
        seen = huggingface.translated(implementation, module, (*tensors, None), given, output)
        return seen.mask is not None

    assert causal("sdpa") == (length > 1)
    assert not causal("sdpa", is_causal=False)
    module.is_causal = False
    assert not causal("sdpa")
    assert causal("sdpa", is_causal=True) == (length > 1)
    assert not causal("eager", is_causal=True)


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        ("decoder.block.0.layer.1.EncDecAttention", True),
        ("decoder.layers.1.encoder_attn", True),
        ("encoder.layer.0.crossattention.self", True),
        ("cross_encoder.layers.0.self_attn", False),  # a name further up says nothing
        ("encoder.layer.0.attention.self", False),
    ],
)
def test_the_name_of_a_module_tells_cross_attention(name, crosses):
    query = torch.zeros(1, 2, 3, 4)
    seen = Seen(query, query, query, None, 1.0)
    assert capture.crosses(seen, name) is crosses
    assert capture.crosses(replace(seen, cross=True), name)


def test_longformer_is_refused_by_name():
    config = transformers.LongformerConfig(**SMALL | {"attention_window": [4, 4]})
    longformer = transformers.LongformerModel(config)
    with (
        pytest.raises(ArgumentError, match=r"encoder\.layer\.0.*a band of neighbours and a few"),
        heedful.record(longformer),
    ):
        pass


@pytest.mark.parametrize("name", refused.LAYOUTS)
def test_each_refused_layout_is_named_and_nothing_is_hooked(name):
    part = nn.Sequential(type(name, (nn.Module,), {})())
    with pytest.raises(ArgumentError, match=f"^0 is a {name}, which attends by "):
        refused.check(part)
    with pytest.raises(ArgumentError), heedful.record(part):
        pass
    assert not any(module._forward_hooks for module in part.modules())


def test_every_refused_layout_is_a_class_of_transformers():
    folder = Path(transformers.__path__[0])
    code = "".join(file.read_text() for file in folder.glob("models/*/modeling_*.py"))
    assert [name for name in refused.LAYOUTS if f"class {name}(" not in code] == []
