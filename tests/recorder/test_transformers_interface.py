"""The door to transformers: what it refuses, and that it removes its patch."""

import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from finalized_calls import settled
from torch import nn
from transformers.modeling_utils import AttentionInterface

import heedful
from heedful.errors import ArgumentError, HeedfulError
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.map_region import weights as of_causes
from heedful.recorder.axes import call_kind
from heedful.recorder.doors import refused_classes, transformers_interface
from heedful.recorder.observed_call import Observed

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
    assert len(recording) == (2 if inside == "the model" else 0)  # both calls precede the error
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
    with heedful.record(nn.MultiheadAttention(4, 2)):  # a model without transformers is not refused
        pass


def test_calls_of_other_models_are_not_recorded(model):
    other = transformers.LlamaModel(model.config).eval()
    with heedful.record(model) as recording, torch.no_grad():
        other(IDS)
        assert len(recording) == 0
        model(IDS)
    assert [call.name for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"]


@pytest.mark.parametrize("length", [1, 7])
def test_a_call_without_a_mask_is_causal_by_its_module_or_argument(length):
    """A single query is not masked; eager attention applies only the mask that is passed."""
    module = nn.Module()
    query = torch.randn(2, 3, length, 4)
    tensors = (query, torch.randn(2, 3, 7, 4), torch.randn(2, 3, 7, 4))

    def causal(implementation, **given):
        output = query.transpose(1, 2)
        seen = transformers_interface.from_arguments(
            implementation, module, (*tensors, None), given, output, LogSumExpMode()
        )
        return seen.mask is not None

    assert causal("sdpa") == (length > 1)
    assert not causal("sdpa", is_causal=False)
    module.is_causal = False
    assert not causal("sdpa")
    assert causal("sdpa", is_causal=True) == (length > 1)
    assert not causal("eager", is_causal=True)


def test_a_boolean_mask_is_added_by_eager_attention():
    """A boolean mask is added as 1 and 0 and hides nothing, as in Grounding DINO's text model."""
    from transformers.models.bert.modeling_bert import eager_attention_forward

    query, key, value = torch.randn(3, 2, 3, 5, 4)
    mask, module = torch.eye(5).bool().expand(2, 1, 5, 5), nn.Module().eval()
    output, weights = eager_attention_forward(module, query, key, value, mask)
    given = (
        "eager",
        module,
        (query, key, value, mask),
        {},
        output.transpose(1, 2),
        LogSumExpMode(),
    )
    kept = settled(transformers_interface.from_arguments(*given))
    assert kept.check.passed
    torch.testing.assert_close(of_causes(kept.inputs(1)), weights[1], atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "crosses"),
    [
        ("decoder.block.0.layer.1.EncDecAttention", True),
        ("decoder.layers.1.encoder_attn", True),
        ("encoder.layer.0.crossattention.self", True),
        ("cross_encoder.layers.0.self_attn", False),  # names of outer modules do not count
        ("encoder.layer.0.attention.self", False),
        ("AttentionAcrossTexts", False),
        ("blocks.0.across", False),
        ("VanillaCrossAttention", True),
    ],
)
def test_cross_attention_is_recognised_by_the_name_of_a_module(name, crosses):
    query = torch.zeros(1, 2, 3, 4)
    seen = Observed(query, query, query, None, 1.0)
    assert call_kind.crosses(seen, name) is crosses
    assert call_kind.crosses(replace(seen, cross=True), name)


def stance():
    """The state of torch's compiler in this process."""
    return torch._dynamo.eval_frame._stance.stance


@pytest.mark.parametrize("first_out", [0, 1])
def test_two_threads_that_leave_in_any_order_leave_nothing_patched(model, first_out):
    """Both record at once; each records only its model, also after the other has ended."""
    original, before = AttentionInterface.get_interface, stance()
    models = [model, transformers.LlamaModel(model.config).eval()]
    both, left = threading.Barrier(2, timeout=20), threading.Event()
    recordings, errors = {}, []

    def run(me):
        with torch.no_grad(), heedful.record(models[me]) as recording:
            recordings[me] = recording
            both.wait()
            models[me](IDS[:, : 5 + me])
            both.wait()
            if me != first_out:
                assert left.wait(20)
                assert AttentionInterface.get_interface is not original
                assert stance() == "force_eager"
                models[me](IDS[:, : 5 + me])
        left.set()

    def guarded(me):
        try:
            run(me)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert AttentionInterface.get_interface is original
    assert stance() == before
    assert transformers_interface._listeners == []
    for me, recording in recordings.items():
        assert len(recording) == (2 if me == first_out else 4)
        assert {call.shape for call in recording} == {(2, 5 + me, 5 + me)}
        assert all(call.check.passed for call in recording)
    for model in models:
        assert not any(module._forward_hooks for module in model.modules())


def test_nested_recordings_and_one_in_another_thread_inside(model):
    """The inner recordings end, and the outer one continues."""
    original = AttentionInterface.get_interface
    other = transformers.LlamaModel(model.config).eval()

    def elsewhere():
        with heedful.record(other) as third:
            other(IDS)
        lengths.append(len(third))

    lengths = []
    with torch.no_grad(), heedful.record(model) as outer:
        with heedful.record(model.layers[1]) as inner:
            model(IDS)
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join(30)
        model(IDS)
    assert lengths == [2]
    assert AttentionInterface.get_interface is original
    assert [call.name for call in inner] == ["self_attn"]
    assert [call.name for call in outer] == ["layers.0.self_attn", "layers.1.self_attn"] * 2
    assert [call.pass_index for call in outer] == [0, 0, 1, 1]
    assert torch.equal(inner[0].weights(), outer[1].weights())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of scripting
def test_a_scripted_part_is_run_and_the_others_are_recorded(model):
    gate = nn.Sequential(nn.Linear(16, 16), nn.Sigmoid())
    model.layers[0].mlp = torch.jit.script(gate)
    with torch.no_grad():
        before = model(IDS)[0]
        with heedful.record(model) as recording:
            during = model(IDS)[0]
    assert torch.equal(before, during)
    assert [call.name for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"]
    assert all(call.check.passed for call in recording)


class OddError(Exception):
    pass


ENDS = {
    "a hook before": lambda part, fail: part.register_forward_pre_hook(fail),
    "a hook before all others": lambda part, fail: part.register_forward_pre_hook(
        fail, prepend=True
    ),
    "a hook after": lambda part, fail: part.register_forward_hook(fail),
    "a hook after all others": lambda part, fail: part.register_forward_hook(fail, prepend=True),
}


@pytest.mark.parametrize("error", [OddError, KeyboardInterrupt])
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("place", ["layers.1", "layers.1.self_attn.o_proj", "layers.0.mlp", ""])
@pytest.mark.parametrize("inside", [True, False])
def test_after_a_pass_that_ended_early_the_next_has_right_names(model, end, place, error, inside):
    def fail(*_):
        raise error

    part = model.get_submodule(place)
    names = ["layers.0.self_attn", "layers.1.self_attn"]
    handle = None if inside else ENDS[end](part, fail)
    with torch.no_grad(), heedful.record(model) as recording:
        handle = handle or ENDS[end](part, fail)
        with pytest.raises(error):
            model(IDS)
        done = len(recording)
        handle.remove()
        model(IDS)
        model(IDS)
    assert [call.name for call in recording] == names[:done] + names * 2
    passes = [call.pass_index for call in recording][done:]
    assert passes == [passes[0]] * 2 + [passes[0] + 1] * 2
    assert passes[0] == (1 if done else passes[0])


@pytest.mark.parametrize("error", [OddError, KeyboardInterrupt])
def test_after_a_layer_that_was_interrupted_the_next_pass_has_right_names(model, error):
    inner, original = model.layers[1].mlp, model.layers[1].mlp.forward

    def forward(*given):
        inner.forward = original
        raise error

    inner.forward = forward
    with torch.no_grad(), heedful.record(model) as recording:
        with pytest.raises(error):
            model(IDS)
        model(IDS)
    assert [call.name for call in recording] == ["layers.0.self_attn", "layers.1.self_attn"] * 2
    assert [call.pass_index for call in recording] == [0, 0, 1, 1]
    assert torch.equal(recording[0].weights(), recording[2].weights())


@pytest.mark.parametrize("name", refused_classes.LAYOUTS)
def test_each_refused_layout_is_named_and_nothing_is_hooked(name):
    part = nn.Sequential(type(name, (nn.Module,), {})())
    with pytest.raises(ArgumentError, match=f"^0 is a {name}, which attends by "):
        refused_classes.modules_of(part)
    with pytest.raises(ArgumentError), heedful.record(part):
        pass
    assert not any(module._forward_hooks for module in part.modules())


def test_every_refused_layout_is_a_class_of_transformers():
    folder = Path(transformers.__path__[0])
    code = "".join(file.read_text() for file in folder.glob("models/*/modeling_*.py"))
    assert [name for name in refused_classes.LAYOUTS if f"class {name}(" not in code] == []
