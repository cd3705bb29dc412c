"""Stitched generations, compared with eager attention over the full text."""

import math
from dataclasses import replace

import pytest
import torch
import transformers
from crossing import cross_steps
from peaked_models import pair
from torch import nn

import heedful
from heedful.errors import RunError
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig, Seq2Seq, Seq2SeqConfig
from heedful.models.beam_search import Search, translate
from heedful.ops.masks import Causal, Combined, Packed, Padding

transformers.logging.set_verbosity_error()
SMALL = {"vocab_size": 50, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 48}  # fmt: skip
MODELS = {
    "GPT2LMHeadModel": transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **SMALL),
    "LlamaForCausalLM": transformers.LlamaConfig(**WIDE, **SMALL),
    "MistralForCausalLM": transformers.MistralConfig(sliding_window=6, **WIDE, **SMALL),
    "Gemma2ForCausalLM": transformers.Gemma2Config(
        sliding_window=6, head_dim=8, query_pre_attn_scalar=8, attn_logit_softcapping=2.0,
        **WIDE, **SMALL),
    "Gemma3ForCausalLM": transformers.Gemma3TextConfig(
        sliding_window=5, head_dim=8, query_pre_attn_scalar=8, **WIDE, **SMALL,
        layer_types=["sliding_attention", "full_attention"]),
    "GptOssForCausalLM": transformers.GptOssConfig(
        sliding_window=4, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
        **WIDE, **SMALL),
}  # fmt: skip
EAGER = ("Gemma2ForCausalLM", "GptOssForCausalLM")  # sdpa has no caps, and no sinks


def test_a_generation_of_heedful():
    torch.manual_seed(2)
    config = GPTConfig(vocabulary=30, context_length=64, width=24, layers=2, heads=3)
    model, prompt = GPT(config).eval(), [1, 2, 3, 4]
    with heedful.record(model) as recording:
        new_ids = generate(model, prompt, tokens=8, sampling=Sampling(temperature=0))
        text = [*prompt, *map(int, new_ids)][:-1]
    for call, steps in zip(recording.stitched(), model.steps(torch.tensor([text])), strict=True):
        torch.testing.assert_close(call.weights(), steps.weights[0], atol=1e-6, rtol=0)
        assert call.check.passed


def models(name, implementation="sdpa"):
    return pair(name, MODELS[name], implementation, seed=5)


def prompts_of(lengths, side="left"):
    """Return the padded ids of random prompts of these lengths, and their attention mask."""
    total, ids = max(lengths), torch.randint(3, 50, (len(lengths), max(lengths)))
    keep = Padding.from_lengths(lengths, total, side).keep
    return ids.masked_fill(~keep, 0), keep.long()


def generated(model, ids, keep, tokens=6, **options):
    """Record a generation; also return each text without padding and without its last token."""
    with heedful.record(model) as recording:
        output = model.generate(
            ids, attention_mask=keep, max_new_tokens=tokens, do_sample=False, **options
        )
    rest = torch.ones(len(ids), output.shape[1] - ids.shape[1], dtype=torch.bool)
    real = torch.cat([keep.bool(), rest], dim=1)[:, :-1]
    return recording, [row[real_keys] for row, real_keys in zip(output[:, :-1], real, strict=True)]


def passes_of(recording, sequence, layer):
    return [call for call in recording.sequences[sequence] if call.layer == layer]


def check_rows(call, passes, keep):
    """Assert that every stitched row equals the row of its pass, apart from masked keys."""
    rows = call.weights()
    n = len(rows[0])
    for call in reversed(passes):
        weights = call.weights()
        for row in reversed(range(weights.shape[1])):
            heads = weights[:, row]
            if weights.shape[1] == len(keep) and not keep[row]:
                continue  # padding that is part of the pass
            n -= 1
            for head in range(len(heads)):
                positive = heads[head][heads[head] > 0]
                expected = rows[head, n][rows[head, n] > 0]
                torch.testing.assert_close(expected, positive, atol=2e-6, rtol=0)
    assert n == 0


@pytest.mark.parametrize("cache", [None, "static"])
@pytest.mark.parametrize("name", MODELS)
def test_generation_by_transformers(name, cache):
    lengths = [4, 1, 5]
    torch.manual_seed(len(lengths))
    model, eager = models(name, "eager" if name in EAGER else "sdpa")
    ids, keep = prompts_of(lengths)
    options = {"cache_implementation": cache} if cache else {}
    recording, texts = generated(model, ids, keep, **options)
    for sequence, text in enumerate(texts):
        maps = eager(text[None], output_attentions=True).attentions
        calls = recording.stitched(sequence)
        for layer, (call, map_) in enumerate(zip(calls, maps, strict=True)):
            torch.testing.assert_close(call.weights(), map_[0].detach(), atol=3e-6, rtol=0)
            check_rows(call, passes_of(recording, sequence, layer), keep[sequence])
            assert isinstance(call.causes.mask, Causal | Combined)
            assert call.ids.tolist() == text.tolist()
            assert call.check.passed


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_stitched_rows_equal_those_of_the_passes(cache):
    torch.manual_seed(3)
    model, _ = models("MistralForCausalLM")
    for lengths, side in (([4, 2], "right"), ([9, 7], "left")):
        ids, keep = prompts_of(lengths, side)
        recording, texts = generated(model, ids, keep, cache_implementation=cache)
        for sequence, text in enumerate(texts):
            for layer, call in enumerate(recording.stitched(sequence)):
                assert call.shape[1:] == (len(text), len(text))
                check_rows(call, passes_of(recording, sequence, layer), keep[sequence])


def test_chunked_attention_has_a_bit_mask():
    torch.manual_seed(4)
    config = transformers.Llama4TextConfig(
        attention_chunk_size=4, head_dim=8, num_local_experts=2, num_experts_per_tok=1,
        intermediate_size_mlp=48, layer_types=["chunked_attention"] * 2, **WIDE, **SMALL,
    )  # fmt: skip
    model = transformers.Llama4ForCausalLM(config).eval()
    ids, keep = prompts_of([5, 3])
    recording, texts = generated(model, ids, keep)
    for sequence, text in enumerate(texts):
        for layer, call in enumerate(recording.stitched(sequence)):
            assert isinstance(call.causes.mask, Packed)
            assert call.shape[1:] == (len(text), len(text))
            check_rows(call, passes_of(recording, sequence, layer), keep[sequence])


def test_a_bias_that_begins_with_the_second_token():
    torch.manual_seed(7)
    config = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **SMALL)
    model = transformers.BloomForCausalLM(config).eval()
    ids, keep = prompts_of([1])
    recording, [text] = generated(model, ids, keep)
    maps = model(text[None], output_attentions=True).attentions
    for call, map_ in zip(recording.stitched(), maps, strict=True):
        torch.testing.assert_close(call.weights(), map_[0].detach(), atol=2e-6, rtol=0)


def test_some_heads_with_values_from_a_file(llama, tmp_path):
    with heedful.record(llama, heads=[3, 1], values=True) as recording:
        llama.generate(PROMPT, max_new_tokens=4, do_sample=False)
    [call, _] = heedful.load(recording.save(tmp_path / "generation")).stitched()
    assert call.heads == [3, 1]
    last = recording[-2]
    assert last.layer == 0
    torch.testing.assert_close(call.value_norm(1)[-1], last.value_norm(1)[-1])
    assert call.ids.tolist()[:4] == PROMPT[0].tolist()
    assert len(call.ids) == 7


@pytest.mark.parametrize("factor", [2, math.nan])
def test_a_scale_that_changes_between_passes_is_refused(factor, llama):
    with heedful.record(llama) as recording:
        llama.generate(PROMPT, max_new_tokens=4, do_sample=False)
    recording._captures[-1].scale *= factor
    with pytest.raises(RunError, match="cannot be stitched: rows differ"):
        recording.stitched()


@pytest.mark.parametrize("worst", [1e-5, 0.5, math.nan])
@pytest.mark.parametrize("number", [0, 1, -1])
def test_the_check_is_that_of_the_worst_pass(number, worst, llama):
    with heedful.record(llama) as recording:
        llama.generate(PROMPT, max_new_tokens=4, do_sample=False)
    passes = [capture for capture in recording._captures if capture.layer == 1]
    check = passes[number].check_source = replace(passes[number].check, worst=worst)
    first, second = recording.stitched()
    assert second.check is check
    assert first.check.passed


def test_a_cache_filled_before_the_recording_is_refused(llama):
    cache = llama(PROMPT, use_cache=True).past_key_values
    with heedful.record(llama) as recording:
        llama(PROMPT[:, :2], past_key_values=cache)
    with pytest.raises(RunError, match="filled before"):
        recording.stitched()


def test_nothing_to_stitch():
    with heedful.record(torch.nn.Linear(2, 2)) as recording:
        pass
    with pytest.raises(RunError, match="no pass of causal self-attention"):
        recording.stitched()


@pytest.fixture
def llama():
    torch.manual_seed(6)
    return transformers.LlamaForCausalLM(MODELS["LlamaForCausalLM"]).eval()


PROMPT = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.parametrize("options", [{"num_beams": 3, "max_new_tokens": 8}, {"max_new_tokens": 2}])
def test_beams_and_two_generations_are_refused(llama, options):
    with heedful.record(llama) as recording:
        if "num_beams" not in options:
            llama.generate(PROMPT, max_new_tokens=3, do_sample=False)
        llama.generate(PROMPT, do_sample=False, **options)
    with pytest.raises(RunError, match="does not continue the pass before it"):
        recording.stitched()


@pytest.mark.parametrize("cache", [None, "static"])
def test_missing_passes_are_detected(llama, cache):
    with heedful.record(llama, every=2) as recording:
        llama.generate(PROMPT, max_new_tokens=6, do_sample=False, cache_implementation=cache)
    with pytest.raises(RunError, match="a recording of every n-th pass"):
        recording.stitched()


FAMILIES = {
    "T5ForConditionalGeneration": transformers.T5Config(
        d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
        **{**SMALL, "eos_token_id": 1}),
    "BartForConditionalGeneration": transformers.BartConfig(
        d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
        max_position_embeddings=40, decoder_start_token_id=2, forced_eos_token_id=None,
        **{**SMALL, "eos_token_id": 2}),
}  # fmt: skip


def words_of(ids):
    """Return names of token ids, as a tokenizer."""
    return [f"<{number}>" for number in ids]


@pytest.mark.parametrize("name", FAMILIES)
def test_self_and_cross_attention_of_a_decoder_are_stitched(name):
    torch.manual_seed(8)
    model, eager = pair(name, FAMILIES[name], "sdpa", seed=5)
    ids, keep = prompts_of([6, 4], "right")
    with heedful.record(model, tokenizer=words_of) as recording:
        tokens = model.generate(
            ids, attention_mask=keep, max_new_tokens=7, min_new_tokens=7, do_sample=False
        )
    for sequence in (0, 1):
        source, target = ids[sequence, keep[sequence].bool()], tokens[sequence, :-1]
        output = eager(source[None], decoder_input_ids=target[None], output_attentions=True)
        pairs = zip(output.decoder_attentions, output.cross_attentions, strict=True)
        calls = recording.stitched(sequence)
        for call, map_ in zip(calls, (map_ for both in pairs for map_ in both), strict=True):
            torch.testing.assert_close(call.weights(), map_[0].detach(), atol=1e-5, rtol=0)
            assert call.check.passed
            assert call.query_tokens == words_of(target.tolist())
            crosses = call.kind == "cross"
            assert call.key_tokens == words_of((source if crosses else target).tolist())
            assert call.tokens == (None if crosses else call.key_tokens)
        assert [call.kind for call in calls] == ["causal", "cross"] * 2


def test_a_translation_by_our_own_encoder_decoder():
    config = Seq2SeqConfig(vocabulary=20, context_length=12, width=24, layers=2, heads=3)
    for shared in (True, False):
        torch.manual_seed(3)
        model = Seq2Seq(replace(config, shared=shared, tied=shared)).eval()
        sources = [[1, 2, 3, 4], [5, 6]]
        with heedful.record(model, tokenizer=words_of) as recording:
            translations = translate(model, sources, Search(beams=1, longest=6))
        for sequence, (source, [best]) in enumerate(zip(sources, translations, strict=True)):
            target = [config.begin, *best.ids]
            inputs = torch.tensor([[*source, config.end]]), torch.tensor([target])
            for call, steps in zip(
                [call for call in recording.stitched(sequence) if call.kind == "cross"],
                cross_steps(model, *inputs),
                strict=True,
            ):
                rows = call.weights()[:, : len(target)]
                torch.testing.assert_close(
                    rows, steps.weights[0, :, : rows.shape[1]], atol=1e-5, rtol=0
                )
                assert call.query_tokens[: len(target)] == words_of(target)[: rows.shape[1]]
                assert call.key_tokens == words_of([*source, config.end])


def test_under_autocast_the_tolerance_is_that_of_the_narrow_type(llama):
    with torch.autocast("cpu", torch.bfloat16), heedful.record(llama) as recording:
        llama(PROMPT)
    check = recording[0].check
    assert check.passed
    assert check.tolerance == 0.05
    text = "<Call 'model.layers.0.self_attn': causal, 4 heads, 4 × 4, pass 0, proved, layout told>"
    assert repr(recording[0]) == text
    assert repr(recording) == "<Recording of 2 calls, 1 sequence>"


class Cached(nn.Module):
    """Attention with a static cache of `slots` tokens, or a sliding one (`slides`)."""

    def __init__(self, slots, by_hand, slides):
        super().__init__()
        self.slots, self.by_hand, self.slides = slots, by_hand, slides
        self.keys, self.length = torch.zeros(2, 0 if slides else slots, 4), 0

    def forward(self, x):
        N, start = x.shape[1], self.length
        if self.slides:
            keys = torch.cat([self.keys, x], dim=1)
            distance = torch.arange(N)[:, None] + keys.shape[1] - N - torch.arange(keys.shape[1])
            self.keys = keys[:, 1 - self.slots :]
        else:
            keys = self.keys
            keys[:, start : start + N] = x
            distance = torch.arange(start, start + N)[:, None] - torch.arange(self.slots)
        self.length += N
        allowed = (distance >= 0) & (distance < self.slots)
        if self.by_hand:
            return (x @ keys.mT).masked_fill(~allowed, -math.inf).softmax(-1) @ keys
        parts = (part[:, None] for part in (x, keys, keys))
        return nn.functional.scaled_dot_product_attention(*parts, allowed, scale=1.0)


@pytest.mark.parametrize("prompt", [2, 5])
@pytest.mark.parametrize(
    ("slides", "slots", "by_hand"), [(False, 11, False), (True, 4, False), (True, 4, True)]
)
def test_caches_by_hand(slides, slots, by_hand, prompt):
    x = torch.randn(2, 8, 4)
    with heedful.record(model := Cached(slots, by_hand, slides)) as recording:
        for part in x.split([prompt] + [1] * (8 - prompt), dim=1):
            model(part)
    distance = torch.arange(8)[:, None] - torch.arange(8)
    exponentials = (x.double() @ x.double().mT).exp() * ((distance >= 0) & (distance < slots))
    expected = (exponentials / exponentials.sum(-1, keepdim=True)).float()
    for b, sequence in enumerate(recording.sequences):
        [stitched] = recording.stitched(b)
        torch.testing.assert_close(stitched.weights()[0], expected[b], atol=2e-6, rtol=0)
        assert slides or [call.kind for call in sequence] == ["causal"] * len(sequence)
