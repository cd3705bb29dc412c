"""Changed heads of models of transformers equal eager attention with the same change, to rounding.

Compared are logits of real tokens and gradients, for grouped heads, windows, soft caps, sinks,
padding on both sides, cross-attention and caches.
"""

import eager_changes
import pytest
import torch
import transformers
from recorder import test_architectures as architectures
from recorder.test_architectures import padding_mask, tiny, words

import heedful
from heedful import change
from heedful.errors import ArgumentError, RunError

SELF = ("GPT2Model", "LlamaModel", "MistralModel", "Gemma2Model", "GptOssModel", "BertModel",
        "DeepseekV3Model", "FalconModel", "BitNetModel")  # fmt: skip
architectures.TEXT["BitNetModel"] = architectures.GROUPED  # a norm before the output projection
CHANGES = {
    "zero": change.zero([0, 3]),
    "scale": change.scale(0.5, [0, 3]),
    "first": change.first([0, 3]),
    "uniform": change.uniform([3, 0]),
    "block": change.block([4, -1], slice(3, 5), heads=[0, 3]),
}


def run(model, *changes, ids=None):
    """Run a model with changes of its second layer."""
    with heedful.intervene(model, {"layers.1": list(changes)}) as changed:
        model(words() if ids is None else ids)
    return changed


def inputs_of(name, padding):
    keep = padding_mask(padding)
    if name in architectures.PAIRS:
        return {"input_ids": words(), "attention_mask": keep, "decoder_input_ids": words(7)}, None
    return {"input_ids": words(), "attention_mask": keep}, keep.bool()


def result_of(model, inputs, keep):
    """The outputs of real tokens, and the gradients of a function of them."""
    output = model(**inputs)[0]
    output = output if keep is None else output[keep]
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
    return [output.detach(), *(g for g in gradients if g is not None)]


def compare(name, implementation, padding, at, kinds, other=None):
    """Compare changes of the attention module `at` with eager attention that is changed alike."""
    model, reference = tiny(name, implementation), tiny(name)
    inputs, keep = inputs_of(name, padding)
    plain, plain_eager = (result_of(m, inputs, keep) for m in (model, reference))
    for kind, changes in kinds.items():
        with heedful.intervene(model, {at: changes}) as changed:
            results = result_of(model, inputs, keep)
        part = reference.get_submodule(changed.report()[0].module)
        with eager_changes.changed_eager(reference, part, kind, [0, 3], other):
            expected = result_of(reference, inputs, keep)
        assert len(results) == len(expected) > 5
        allowed = 2e-6 * expected[0].abs().max() + (plain[0] - plain_eager[0]).abs().max()
        assert (results[0] - expected[0]).abs().max() <= allowed, kind
        noise = 1e-6 * max(gradient.abs().max() for gradient in expected[1:])
        for new, other_new, old, other_old in zip(
            results[1:], expected[1:], plain[1:], plain_eager[1:], strict=True
        ):
            limit = 1e-5 * other_new.abs().max() + (old - other_old).abs().max() + noise
            assert (new - other_new).abs().max() <= limit, kind
        [line] = changed.report()
        assert (line.proof, line.heads, line.calls) == ("proved", changes.heads, 1)
        assert (expected[0] - plain[0]).abs().max() > 1e-4  # it matters
    assert torch.equal(result_of(model, inputs, keep)[0], plain[0])


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", [name for name in SELF if name != "FalconModel"])
def test_changes_equal_eager_attention(name, padding):
    at = {"GPT2Model": "h.1", "BertModel": "layer.1"}.get(name, "layers.1")
    compare(name, "sdpa", padding, at, CHANGES)


@pytest.mark.parametrize("name", ["LlamaModel", "MistralModel", "BertModel"])
def test_changes_of_eager_models(name):
    compare(name, "eager", "left", "layer.1" if name == "BertModel" else "layers.1", CHANGES)


@pytest.mark.parametrize("at", ["encoder.*.1", "decoder.*.1.*.0", "decoder.*.1.*.1"])
def test_changes_of_an_encoder_with_decoder(at):
    kinds = CHANGES | {"block": change.block([4, -1], [3, 4], heads=[0, 3])}
    compare("T5Model", "sdpa", "right", at.replace("*.1.", "block.1.").replace("*", "layer")
            if at.startswith("decoder") else "encoder.block.1", kinds)  # fmt: skip


@pytest.mark.parametrize("padding", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["LlamaModel", "Gemma2Model", "GptOssModel", "BertModel"])
def test_patterns_and_outputs_of_another_run(name, padding):
    model, reference = tiny(name, "sdpa"), tiny(name)
    inputs, _ = inputs_of(name, padding)
    others = inputs | {"input_ids": words().flip(0) + 1}
    with torch.no_grad(), heedful.record(model, values=True) as recording:
        model(**others)
    part = reference.get_submodule(recording[1].name)
    with eager_changes.changed_eager(reference, part, "none", []) as runs:
        reference(**others)
    kinds = {"pattern_from": change.pattern_from(recording, heads=[0, 3]),
             "output_from": change.output_from(recording, heads=[0, 3])}  # fmt: skip
    at, detached = "layer.1" if name == "BertModel" else "layers.1", [t.detach() for t in runs[0]]
    compare(name, "sdpa", padding, at, kinds, detached)
    with torch.no_grad():
        plain = model(**inputs)[0]
        with heedful.record(model, heads=[0, 1, 3], values=True) as same:
            model(**inputs)
        with heedful.intervene(model, {recording[1].name: [change.pattern_from(same, [3, 1])]}):
            torch.testing.assert_close(model(**inputs)[0], plain, rtol=1e-5, atol=1e-6)


def causal_model(name="LlamaForCausalLM", implementation="sdpa", **settings):
    kind = getattr(transformers, name)
    config = kind.config_class(**architectures.SMALL | architectures.GROUPED | settings)
    return kind._from_config(config, attn_implementation=implementation).eval()


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", ["LlamaForCausalLM", "MistralForCausalLM"])
def test_positions_are_absolute_in_generate(name, cache):
    model = causal_model(name, **({"sliding_window": 6} if name[0] == "M" else {}))
    prompt, keep = words(5), padding_mask("none", 5)
    keep[1, :2] = 0
    changes = {"layers.1": change.block([4, 7], [3, 6, 7], heads=[2]),
               "layers.0": change.scale(0.5, 1)}  # fmt: skip
    settings = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False,
                "attention_mask": keep, "cache_implementation": cache}  # fmt: skip
    with heedful.intervene(model, changes) as changed:
        ids = model.generate(prompt, **settings, output_logits=True, return_dict_in_generate=True)
    full = torch.cat([keep, torch.ones(2, 4, dtype=keep.dtype)], dim=1)
    with heedful.intervene(model, changes) as again:
        logits = model(ids.sequences[:, :9], attention_mask=full, use_cache=False).logits
    torch.testing.assert_close(torch.stack(ids.logits, 1), logits[:, 4:], rtol=1e-5, atol=1e-5)
    assert [(line.rows, line.lost) for line in changed.report()] == [(18, 0), (4, 0)]
    assert [line.rows for line in again.report()] == [18, 4]
    assert {line.proof for line in changed.report()} == {"proved"}


def test_means_over_recorded_texts():
    model, keep = tiny("LlamaModel", "sdpa"), padding_mask("right")
    with torch.no_grad(), heedful.record(model, values=True) as recording:
        model(words(), attention_mask=keep)
    values = [torch.einsum("hnm,hmv->hnv", call.weights(), call.value.repeat_interleave(2, 0))
              for call in (sequence[1] for sequence in recording.sequences)]  # fmt: skip
    expected = torch.cat(values, dim=1).mean(dim=1)[[2, 0]]
    seen = []
    look = [change.mean([2, 0], of=recording), lambda q, k, v, o: seen.append(o) or o]
    with heedful.intervene(model, {"layers.1": look}) as changed:
        model(words()[:, :4])
    torch.testing.assert_close(seen[0][:, [2, 0]], expected[None, :, None].expand(2, 2, 4, 8))
    assert [line.proof for line in changed.report()] == ["proved", "unproved"]
    with pytest.raises(ArgumentError, match="recorded texts of 6 to 9 tokens"):
        run(model, change.mean(of=recording, per_position=True))
    with heedful.record(model, values=True) as recording:
        model(words())
    seen.clear()
    by_position = change.mean([1], of=recording, per_position=True)
    with heedful.intervene(model, {"layers.1": [by_position, look[1]]}):
        model(words()[:, :4])
    outputs = [(s[1].weights(1) @ s[1].value[0])[:4] for s in recording.sequences]
    torch.testing.assert_close(seen[0][0, 1], sum(outputs) / 2)
    with pytest.raises(ArgumentError, match=r"means of shape \(1, 9, 8\).*unequal lengths"):
        run(model, by_position, ids=words(11))


def test_recordings_that_do_not_fit():
    model = tiny("LlamaModel", "sdpa")
    with heedful.record(model, values=True) as recording:
        model(words(7))
    for patch in (change.pattern_from, change.output_from):
        with pytest.raises(ArgumentError, match=r"7 queries × 7 keys, .* 9 queries × 9.*unequal"):
            run(model, patch(recording))
    with pytest.raises(ArgumentError, match=r"of 2 texts, 4 .* expected 1 texts, 4"):
        run(model, change.output_from(recording), ids=words(7)[:1])
    other_model = tiny("BertModel", "sdpa")
    with heedful.record(other_model, values=True) as other:
        other_model(words())
    with pytest.raises(ArgumentError, match=r"no call of layers.1.self_attn in the recording"):
        run(model, change.pattern_from(other))
    settings = architectures.SMALL | {"num_attention_heads": 2, "num_key_value_heads": 2}
    wide = transformers.LlamaModel(transformers.LlamaConfig(**settings)).eval()
    with heedful.record(wide, values=True) as other:
        wide(words())
    with pytest.raises(ArgumentError, match=r"2 heads of width 16, .* 2 texts, 4 heads of width 8"):
        run(model, change.pattern_from(other))
    with heedful.intervene(model, {"layers.1": change.zero(0)}), heedful.record(model) as recording:
        model(words())
    with pytest.raises(RunError, match=r"changed by heedful\.intervene"):
        run(model, change.pattern_from(recording))
    with pytest.raises(ArgumentError, match="without values"):
        change.output_from(recording)
    with heedful.record(model, heads=[1], values=True) as recording:
        model(words())
    with pytest.raises(ArgumentError, match=r"head 0 of layers.1.self_attn; expected a recorded"):
        run(model, change.output_from(recording))


def test_the_nth_call_uses_the_nth_recorded_call():
    model = causal_model()
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "output_logits": True,
                "return_dict_in_generate": True}  # fmt: skip
    with heedful.record(model, values=True) as recording:
        plain = model.generate(words(5), **settings)
    with heedful.intervene(model, {"layers.1": change.output_from(recording)}) as changed:
        again = model.generate(words(5), **settings)
    torch.testing.assert_close(torch.stack(again.logits), torch.stack(plain.logits))
    assert changed.report()[0].calls == 4
    more, patch = settings | {"max_new_tokens": 6, "min_new_tokens": 6}, changed._keys[0].changes
    message = r"call 4 of .*, of which 4 are recorded"
    with pytest.raises(ArgumentError, match=message), heedful.intervene(model, {"layers.1": patch}):
        model.generate(words(5), **more)


def test_resample_draws_a_recording_for_each_pass():
    model, recordings = tiny("LlamaModel", "sdpa"), []
    for shift in range(3):
        with heedful.record(model, values=True) as recording:
            model((words() + shift) % 47 + 3)
        recordings.append(recording)
    outputs = []
    for seed in (0, 0, 1):
        drawn = change.resample(recordings, seed)
        with heedful.intervene(model, {"layers.*": drawn}) as changed:
            outputs.append(torch.stack([model(words())[0] for _ in range(8)]))
        assert {line.proof for line in changed.report()} == {"proved"}
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_dropout_and_checkpointing_are_refused():
    model = causal_model(attention_dropout=0.5).float().train()
    for accepted in (change.zero(0), change.scale(2.0), change.mean(of=torch.zeros(4, 8))):
        run(model, accepted)
    for refused in (change.first(0), change.block(1, 0), lambda q, k, v, o: o):
        with pytest.raises(ArgumentError, match=r"dropped at random; expected evaluation mode"):
            run(model, refused)
    model.model.gradient_checkpointing = True
    with pytest.raises(ArgumentError, match="gradient checkpointing"):
        run(model, change.zero(0))


def test_each_call_is_changed_only_once():
    class Both(torch.nn.Module):  # SDPA by itself, and in a model of transformers
        def __init__(self):
            super().__init__()
            self.model = tiny("LlamaModel", "sdpa")

        def forward(self, ids):
            x = self.model(ids)[0].unflatten(-1, (4, 8)).transpose(1, 2)
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    model = Both().eval()
    with torch.no_grad(), heedful.record(model) as recording:
        plain = model(words())
    seen = []
    changes = {"layers.1": [change.scale(0.5), lambda q, k, v, o: seen.append(o) or 2 * o],
               "Both": change.scale(3.0)}  # fmt: skip
    several = "'Both', in which several modules attend"
    with pytest.raises(ArgumentError, match=several), heedful.intervene(model, changes):
        model(words())
    changes.pop("Both")
    with torch.no_grad(), heedful.intervene(model, changes) as changed:
        torch.testing.assert_close(model(words()), plain)
    assert [line.calls for line in changed.report()] == [1, 1]
    assert {call.proof for call in recording} == {"proved"}


def test_half_precision_and_autocast():
    model = tiny("LlamaModel", "sdpa")
    for kind in CHANGES.values():
        with heedful.intervene(model.to(torch.bfloat16), {"layers.1": kind}) as changed:
            assert model(words())[0].dtype == torch.bfloat16
        assert changed.report()[0].proof == "proved"
        with torch.autocast("cpu", torch.bfloat16):
            assert run(model.float(), kind).report()[0].proof == "proved"
