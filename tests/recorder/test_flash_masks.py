"""The flash attention code of transformers, with kernels in plain torch for a CPU."""

import pytest
import torch
import transformers
from peaked_models import pair
from transformers import modeling_flash_attention_utils as utils

import heedful
from heedful.errors import RunError
from heedful.ops.masks import Causal, KeyRanges, Window
from heedful.recorder.doors import flash_masks

transformers.logging.set_verbosity_error()
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
         "num_key_value_heads": 2, "vocab_size": 30, "intermediate_size": 24, "pad_token_id": 0,
         "bos_token_id": 1, "eos_token_id": None}  # fmt: skip
IDS = torch.randint(3, 30, (3, 9), generator=torch.Generator().manual_seed(0))


def attend(query, key, value, scale, causal, window, softcap, sinks):
    """One sequence, (tokens, heads, width), aligned to the bottom right."""
    N, M, group = len(query), len(key), query.shape[1] // key.shape[1]
    scores = torch.einsum("nhd,mhd->hnm", query, key.repeat_interleave(group, 1)) * scale
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    away = torch.arange(N)[:, None] + M - N - torch.arange(M)
    hidden = torch.zeros(N, M, dtype=torch.bool)
    if causal:
        hidden |= away < 0
    left, right = window
    hidden |= (away > left) & (left >= 0) | (-away > right) & (right >= 0)
    scores = scores.masked_fill(hidden, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(-1, N, 1)], -1)
    weights = scores.softmax(-1)[..., :M]
    return torch.einsum("hnm,mhd->nhd", weights, value.repeat_interleave(group, 1))


def kernel(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1),
           softcap=None, s_aux=None):  # fmt: skip
    rows = zip(q, k, v, strict=True)
    return torch.stack(
        [attend(*row, softmax_scale, causal, window_size, softcap, s_aux) for row in rows]
    )


def varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0,
           softmax_scale=None, causal=False, window_size=(-1, -1), softcap=None,
           s_aux=None):  # fmt: skip
    out = torch.empty(*q.shape[:-1], v.shape[-1])
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    for a, b, c, d in zip(queries, queries[1:], keys, keys[1:], strict=False):
        out[a:b] = attend(q[a:b], k[c:d], v[c:d], softmax_scale, causal, window_size, softcap,
                          s_aux)  # fmt: skip
    return out


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    functions = kernel, varlen, None, utils._pad_input, utils._unpad_input
    process = utils._lazy_define_process_function(varlen)
    monkeypatch.setattr(
        utils, "lazy_import_flash_attention", lambda *_, **__: (functions, (process, dict))
    )


def both(name, **options):
    """A model with flash attention, and the same with eager attention."""
    config = getattr(transformers, f"{name}Config")(**SMALL | options)
    fast, eager = pair(f"{name}ForCausalLM", config, "eager")
    fast.config._attn_implementation = "flash_attention_2"
    return fast, eager


MODELS = {
    "Llama": {},
    "Mistral": {"sliding_window": 4},
    "Gemma2": {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 8},
    "GptOss": {"sliding_window": 4, "num_local_experts": 2, "num_experts_per_tok": 1},
}


def padded(side):
    real = torch.ones(3, 9, dtype=torch.long)
    for row, length in enumerate([9, 4, 6]):
        if side == "left":
            real[row, : 9 - length] = 0
        elif side == "right":
            real[row, length:] = 0
    return real


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("side", ["left", "right", "no"])
def test_weights_are_those_of_eager_attention(name, side):
    fast, eager = both(name, **MODELS[name])
    real = padded(side)
    eager_output = eager(IDS, attention_mask=real, output_attentions=True)
    with heedful.record(fast) as recording:
        output = fast(IDS, attention_mask=real)
    is_real = real.bool()
    logits = output.logits[is_real], eager_output.logits[is_real]
    torch.testing.assert_close(*logits, rtol=1e-4, atol=1e-5)
    assert len(recording) == 2
    for b, sequence in enumerate(recording.sequences):
        tokens = is_real[b].nonzero()[:, 0]
        for call, map_ in zip(sequence, eager_output.attentions, strict=True):
            assert call.check.passed, call.check
            expected = map_[b][:, tokens][:, :, tokens]
            torch.testing.assert_close(call.weights(), expected, rtol=0, atol=3e-6)
            assert call.ids.tolist() == IDS[b, tokens].tolist()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", MODELS)
def test_a_generation_is_one_pass_of_eager_attention(name, cache):
    fast, eager = both(name, **MODELS[name])
    real = padded("left")
    options = {"max_new_tokens": 6, "do_sample": False}
    if cache == "static":
        options["cache_implementation"] = cache
    with heedful.record(fast) as recording:
        text = fast.generate(IDS, attention_mask=real, **options)
    assert not recording.missed
    whole = torch.cat([real, torch.ones(3, 5, dtype=torch.long)], 1)
    eager_maps = eager(text[:, :-1], attention_mask=whole, output_attentions=True).attentions
    for b in range(3):
        tokens = whole[b].nonzero()[:, 0]
        for call, map_ in zip(recording.stitched(b), eager_maps, strict=True):
            expected = map_[b][:, tokens][:, :, tokens]
            torch.testing.assert_close(call.weights(), expected, rtol=0, atol=3e-6)


@pytest.mark.parametrize("packing", ["positions", "lengths"])
def test_packed_texts_attend_only_to_themselves(packing):
    fast, eager = both("Llama")
    lengths = [4, 2, 3]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    options = {"position_ids": positions}
    if packing == "lengths":
        starts = torch.tensor([0, 4, 6, 9], dtype=torch.int32)
        options |= {"cu_seq_lens_q": starts, "cu_seq_lens_k": starts, "max_length_q": 4,
                    "max_length_k": 4}  # fmt: skip
    with heedful.record(fast) as recording:
        fast(IDS[:1], use_cache=False, **options)
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        eager_maps = eager(IDS[:1, part], output_attentions=True).attentions
        for call, map_ in zip(recording, eager_maps, strict=True):
            assert call.check.passed
            weights = call.weights(queries=part)
            torch.testing.assert_close(weights[:, :, part], map_[0], rtol=0, atol=3e-6)
            assert float(weights.sum()) == pytest.approx(4 * length, abs=1e-4)
        start += length


def inputs(N, M, **others):
    return {"query": torch.zeros(1, 2, N, 4), "key": torch.zeros(1, 2, M, 4)} | others


def test_arguments_that_mask_no_key_are_no_mask():
    lengths = {"cu_seq_lens_q": torch.tensor([0, 2, 5])}  # ignored without the other arguments
    assert flash_masks.mask_of(inputs(5, 5, **lengths), causal=False) is None
    assert flash_masks.mask_of(inputs(1, 7, sliding_window=7), causal=True) is None
    assert flash_masks.mask_of(inputs(1, 8, sliding_window=7), causal=True) == Window(7, 7)
    assert flash_masks.mask_of(inputs(3, 7), causal=True) == Causal(4)
    assert flash_masks.mask_of(inputs(6, 6, sliding_window=2), causal=False) == Window(2, 0)


TOLD = [
    {"position_ids": torch.tensor([[0, 1, 0, 1, 2]])},
    {"position_ids": torch.tensor([[2, 3, 2, 3, 4]])},  # as in RoBERTa
    dict.fromkeys(flash_masks.LENGTHS, torch.tensor([0, 2, 5])),
]


@pytest.mark.parametrize("arguments", TOLD)
def test_masks_with_a_structure_are_stored_as_structures(arguments):
    mask = flash_masks.mask_of(inputs(5, 5, **arguments), causal=True)
    assert [type(part) for part in mask.parts] == [KeyRanges, Causal]
    assert mask.parts[0].end.tolist() == [2, 2, 5, 5, 5]


@pytest.mark.parametrize(
    "others", [{"cache": object()}, {"position_ids": torch.tensor([[5, 0, 1]])}]
)
def test_a_paged_cache_and_continued_packed_texts_are_missed(others):
    with pytest.raises(RunError, match=r"paged cache|packed"):
        flash_masks.mask_of(inputs(3, 8, **others), causal=True)
