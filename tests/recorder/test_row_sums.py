"""The log-sum-exps of rows: returned by kernels, or computed once."""

import pytest
import torch
from row_sums_by_definition import (
    COMPUTED,
    FROM_KERNEL,
    B,
    D,
    H,
    N,
    assert_exact,
    forbid_full_rows,
    full_map,
    gpt,
    gpt2,
    ids,
    llama,
    recorded,
)
from shown_maps import Given
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import GptOssConfig, GptOssModel

import heedful
from heedful.recording import from_attentions, map_rows


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("options", [{}, {"heads": [2, 1]}, {"budget": 0}])
@pytest.mark.parametrize("record", FROM_KERNEL.values(), ids=FROM_KERNEL)
def test_sums_of_the_kernel_are_used_without_computing_rows(record, options, monkeypatch):
    recording = record(**options)
    calls = [call for sequence in recording.sequences for call in sequence]
    assert all(call.sums.get_known(slice(None), slice(None)) is not None for call in calls)
    forbid_full_rows(monkeypatch)
    for call in calls:
        assert_exact(call)
    assert len(calls) >= B


@pytest.mark.parametrize("record", COMPUTED.values(), ids=COMPUTED)
def test_without_a_kernels_sums_they_are_computed_once(record, monkeypatch, tmp_path):
    recording = record()
    calls = [call for sequence in recording.sequences for call in sequence]
    for call in calls:
        assert not call.sums.any_known
        call.weights(queries=[2, 5])  # computes these rows in full
        is_known = ~call.sums.table[0].isnan()
        assert is_known.nonzero()[:, 0].tolist() == [2, 5]
        assert_exact(call)
        assert call.sums.get_known(slice(None), slice(None)) is not None
    loaded = heedful.load(recording.save(tmp_path / "r.safetensors"))
    forbid_full_rows(monkeypatch)
    for sequence in loaded.sequences:
        for call in sequence:
            assert_exact(call)


def test_stored_maps_need_no_sums(tmp_path):
    recording = from_attentions([torch.rand(B, H, N, N).softmax(-1)])
    for stored in (recording, heedful.load(recording.save(tmp_path / "r.safetensors"))):
        for [call] in stored.sequences:
            assert_exact(call)


def test_a_file_with_some_rows_is_completed(tmp_path):
    recording = COMPUTED["by hand"]()
    recording[0].weights(queries=range(7), keys=[0])
    loaded = heedful.load(recording.save(tmp_path / "r.safetensors"))
    call = loaded[0]
    is_known = ~call.sums.table[0].isnan()
    assert is_known.nonzero()[:, 0].tolist() == [*range(7)]
    assert_exact(call)
    assert call.sums.get_known(slice(None), slice(None)) is not None
    assert_exact(heedful.load(loaded.save(tmp_path / "s.safetensors"))[0])


def test_computing_sums_reports_progress():
    call, shares = COMPUTED["eager"]()[0], []
    call.log_sum_exp(progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    call, shares = COMPUTED["eager"]()[0], []
    call.heatmap(4, queries=slice(10, 30), progress=shares.append)
    assert shares == sorted(shares)
    assert (shares[0] < 0.6, shares[-1]) == (True, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_half_precision(dtype, monkeypatch):
    """torch's CPU kernel approximates exponentials in half precision."""
    recording = recorded(gpt().to(dtype), ids())
    for call in recording:
        assert call.sums.any_known
        call.summary()
        assert call.proof == "proved"
        forbid_full_rows(monkeypatch)
        assert_exact(call, close=2e-4)
        monkeypatch.undo()


def test_queries_stored_in_another_dtype_do_not_use_the_kernels_sums():
    """The kernel's values differ from those of rounded queries and keys."""
    for size in (1.0, 1e-4):  # with the latter, nearly equal
        model = Given(lambda query, key: scaled_dot_product_attention(query, key, key))
        call = recorded(model, *size * torch.randn(2, B, H, N, D), dtype=torch.bfloat16)[0]
        assert not call.sums.any_known
        assert_exact(call)


def test_sums_of_rows_without_padding():
    mask = torch.ones(B, N, dtype=torch.long)
    mask[0, :9] = mask[1, 30:] = 0
    inputs = {"input_ids": ids(), "attention_mask": mask}
    recording = recorded(llama(), named=inputs)
    lengths = [sequence[0].shape[1] for sequence in recording.sequences]
    assert lengths == [31, 30]
    for sequence in recording.sequences:
        for call in sequence:
            assert call.sums.get_known(slice(None), slice(None)) is not None
            torch.testing.assert_close(
                call.log_sum_exp().double(), full_map(call)[1], atol=8e-6, rtol=0
            )
            call.summary()


def test_sums_include_sinks(monkeypatch):
    sizes = {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 9}
    model = llama("eager", GptOssModel, GptOssConfig, **sizes)
    for layer in model.layers:
        nn.init.normal_(layer.self_attn.sinks)
    for call in recorded(model, ids()):
        exact_part = call.weights()[:, 10:, 3:9]
        call.log_sum_exp()
        monkeypatch.setattr(map_rows, "block_entries", lambda _: 0)
        part = call.weights(queries=slice(10, None), keys=slice(3, 9))
        torch.testing.assert_close(part, exact_part, atol=2e-6, rtol=0)
        assert float(call.learned_sink().max()) > 0.1


def test_fully_masked_rows_are_zero_in_any_part():
    table = torch.rand(B, 1, N, N) < 0.5
    table[:, :, [0, 7]] = False
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    call = recorded(model, *torch.randn(2, B, H, N, D)).sequences[1][0]
    assert not call.weights(queries=[0, 7], keys=[1, 2, 3]).any()
    assert call.weights(queries=[1], keys=slice(0, 20)).any()
    assert call.log_sum_exp()[:, [0, 1, 7]].isnan().tolist() == [[True, False, True]] * H
    assert not call.heatmap(N, head=0)[[0, 7]].any()
    call.summary()


def test_a_stitched_generation_has_the_sums_of_its_passes():
    model = gpt2()
    with torch.no_grad(), heedful.record(model) as recording:
        cache, tokens = None, ids()
        for part in (tokens[:, :20], *tokens[:, 20:].split(1, dim=1)):
            cache = model(part, past_key_values=cache, use_cache=True).past_key_values
    for sequence in range(B):
        for call in recording.stitched(sequence):
            assert_exact(call)
