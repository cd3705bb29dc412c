"""Recordings of running generations, compared with attention over the full text."""

import copy

import pytest
import torch
import transformers
from peaked_models import pair

import heedful
from heedful.errors import ArgumentError, RunError
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.recording.live_generation import LiveGeneration

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48}  # fmt: skip
MODELS = {
    "GPT2LMHeadModel": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **SMALL),
    "MistralForCausalLM": transformers.MistralConfig(sliding_window=6, **WIDE, **SMALL),
    "GptOssForCausalLM": transformers.GptOssConfig(
        sliding_window=4, head_dim=8, num_local_experts=2, num_experts_per_tok=1, **WIDE, **SMALL),
    "GPTNeoForCausalLM": transformers.GPTNeoConfig(
        hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global"], 2]], **SMALL),
}  # fmt: skip
EAGER = ("GptOssForCausalLM", "GPTNeoForCausalLM")
SHAPE = {"vocabulary": 30, "context_length": 80, "width": 24, "layers": 2, "heads": 6}
OURS = {
    "plain": {},
    "grouped and rotary": {"kv_heads": 2, "positions": "rotary"},
    "windowed": {"window": 5},
}
TEXT = torch.randint(3, 29, (1, 70), generator=torch.Generator().manual_seed(3))


def of_ours(**changes):
    torch.manual_seed(4)
    return GPT(GPTConfig(**SHAPE, **changes)).eval()


@torch.inference_mode()
def grown(model, first, tokens):
    """Record a pass of a GPT over a prompt of `first` tokens, and then a pass for each token."""
    growing, cache, ids = LiveGeneration(), model.new_cache(1), TEXT[:, :tokens]
    for start, stop in [(0, first), *((n, n + 1) for n in range(first, tokens))]:
        with heedful.record(model) as recording:
            model.hidden_states(ids[:, start:stop], cache=cache)
        growing.append(recording)
    return growing


@pytest.mark.parametrize(
    ("kind", "first", "tokens"),
    [("plain", 1, 9), ("grouped and rotary", 4, 11), ("windowed", 3, 13), ("windowed", 61, 70)],
)
def test_any_length_equals_one_pass_over_it(kind, first, tokens):
    """70 tokens exceed the initial capacity."""
    growing = grown(model := of_ours(**OURS[kind]), first, tokens)
    assert growing.tokens == tokens
    for size in (1, first, first + 1, tokens - 2, tokens):
        recording = growing.recording(size)
        for call, steps in zip(recording, model.steps(TEXT[:, :size]), strict=True):
            torch.testing.assert_close(call.weights(), steps.weights[0], atol=1e-6, rtol=0)
            assert (call.kind, call.proof, call.ids.tolist()) == (
                "causal", "proved", TEXT[0, :size].tolist())  # fmt: skip
            call.summary()  # for rows whose log-sum-exps the kernel returned


def test_a_live_generation_equals_the_stitched_one():
    model, cache = of_ours(window=5), of_ours().new_cache(1)
    with torch.inference_mode(), heedful.record(model) as recording:
        for start, stop in [(0, 4), *((n, n + 1) for n in range(4, 12))]:
            model.hidden_states(TEXT[:, start:stop], cache=cache)
    for ours, other in zip(grown(model, 4, 12).recording(), recording.stitched(), strict=True):
        torch.testing.assert_close(ours.weights(), other.weights(), atol=1e-6, rtol=0)
        assert (ours.name, ours.layer, ours.shape) == (other.name, other.layer, other.shape)


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_with_their_own_caches(name):
    implementation = "eager" if name in EAGER else "sdpa"
    model, eager = pair(name, copy.deepcopy(MODELS[name]), implementation, seed=5)
    growing, cache, ids = LiveGeneration(), None, TEXT[:, :12]
    with torch.inference_mode():
        for start, stop in [(0, 5), *((n, n + 1) for n in range(5, 12))]:
            with heedful.record(model) as recording:
                output = model(ids[:, start:stop], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            growing.append(recording)
        true = eager(ids, output_attentions=True).attentions
    for size in (5, 12):
        for call, map_ in zip(growing.recording(size), true, strict=True):
            expected = map_[0, :, :size, :size]
            torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=0)


def test_an_encoder_decoder_grows_by_its_target():
    torch.manual_seed(6)
    config = Seq2SeqConfig(vocabulary=30, context_length=32, width=24, layers=2, heads=3)
    model, source, target = Seq2Seq(config).eval(), TEXT[:, :7], TEXT[:, 20:31]
    growing, cache = LiveGeneration(), model.new_cache(1, 7)
    with torch.inference_mode():
        for n in range(11):
            with heedful.record(model) as recording:
                if n == 0:
                    memory = model.encode(source)
                model.decoder_states(target[:, n : n + 1], memory, cache=cache)
            growing.append(recording)
        with heedful.record(model) as recorded:
            model(source, target)
    for size in (4, 11):
        for call in growing.recording(size):
            N, M = (7 if "encoder" in call.name else size), call.shape[2]
            other = recorded[call.name].weights()[:, :N, :M]
            torch.testing.assert_close(call.weights(), other, atol=1e-6, rtol=0)
        assert {call.kind for call in growing.recording(size)} == {"self", "causal", "cross"}


def test_a_copy_of_the_first_tokens_is_independent():
    growing = grown(of_ours(), 5, 12)
    expected = growing.recording(9)[0]
    short = growing.until(9)
    assert (short.tokens, growing.tokens) == (9, 12)
    with pytest.raises(RunError, match="does not continue"):  # the pass of token 13
        short.append(_pass_after(of_ours(), 12))
    torch.testing.assert_close(short.recording()[0].weights(), expected.weights())
    for wrong in (0, 10):
        with pytest.raises(ArgumentError, match="1 to 9"):
            short.recording(wrong)


def _pass_after(model, tokens):
    cache = model.new_cache(1)
    model.hidden_states(TEXT[:, :tokens], cache=cache)
    with heedful.record(model) as recording:
        model.hidden_states(TEXT[:, :1], cache=cache)
    return recording


def test_a_live_generation_can_be_saved(tmp_path):
    growing = grown(of_ours(), 5, 8)
    loaded = heedful.load(growing.recording(7).save(tmp_path / "text.safetensors"))
    for call, other in zip(loaded, growing.recording(7), strict=True):
        torch.testing.assert_close(call.weights(), other.weights())
        assert call.shape == (6, 7, 7)


def test_batches_and_other_texts_are_not_appended():
    model = of_ours()
    with heedful.record(model) as batch:
        model(TEXT[:, :8].view(2, 4))
    with pytest.raises(RunError, match="a batch or padding in"):
        LiveGeneration().append(batch)
    growing = LiveGeneration()
    with heedful.record(model) as recording:
        model(TEXT[:, :4])
    growing.append(recording)
    with heedful.record(model) as recording:  # without the cache
        model(TEXT[:, :5])
    with pytest.raises(RunError, match="does not continue the pass before it"):
        growing.append(recording)
