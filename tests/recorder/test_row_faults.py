"""Rows are compared with the kernel's log-sum-exps: faults are detected, rounding is tolerated."""

import pytest
import torch
from head_scores_by_definition import means
from row_sums_by_definition import (
    FROM_KERNEL,
    B,
    D,
    H,
    N,
    full_map,
    gpt,
    gpt2,
    ids,
    llama,
    recorded,
)
from shown_maps import Given
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaForCausalLM

import heedful
from heedful.errors import RunError
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.masks import Dense
from heedful.recording.evidence import sampled_rows


def shifted_key(capture, row):
    capture.key[1, 2, row] += 0.3


def changed_query(capture, row):
    capture.query[1, 2, row] *= 1.02


def change_mask(capture, row, key, is_allowed):
    """Change one cell of the recorded mask of the second text."""
    real = capture.tokens[1]
    table = real.mask.crop((H, N, N))
    table[row, key] = is_allowed
    capture.tokens = [capture.tokens[0], real._replace(mask=Dense(table))]


def extra_key(capture, row):
    """The row may attend to one key more than in the model."""
    change_mask(capture, row, row + 1, True)


def missing_key(capture, row):
    change_mask(capture, row, 0, False)


FAULTS = [shifted_key, changed_query, extra_key, missing_key]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("row", [1, 20, 31, N - 2])
def test_a_fault_in_an_unsampled_row_is_detected(fault, row):
    assert row not in sampled_rows(N)
    for compute in (
        lambda call: call.summary(),
        lambda call: call.weights(),
        lambda call: call.weights(head=2, queries=slice(row, None)),
        lambda call: call.top(3),
        lambda call: call.entropy(head=2),
        means,
    ):
        recording = FROM_KERNEL["our own"]()
        assert recording.sequences[1][1].proof == "proved"
        fault(recording._captures[1], row)
        recording.sequences[0][1].summary()  # the other text is unchanged
        call = recording.sequences[1][1]
        with pytest.raises(RunError, match=r"row \d+ of head \d is not the model.s") as raised:
            compute(call)
        assert "\n" not in str(raised.value)
        if fault is not shifted_key:
            assert f"row {row} of head" in call.why
        assert call.proof == "refuted"
        assert recording.sequences[1][1].proof == "refuted"  # also in a new object
        [_, (_, check)] = recording.certificate()
        assert check.proof == "refuted"
        with pytest.raises(RunError, match="not recorded correctly"):
            recording.sequences[1][1].heatmap(4)


def test_the_error_names_the_models_number_of_the_head():
    recording = FROM_KERNEL["our own"](heads=[3, 1])
    recording._captures[0].query[0, 1, 20] *= 1.1
    with pytest.raises(RunError, match="row 20 of head 1 is"):
        recording[0].summary()


def test_verify_compares_every_row():
    model = gpt()
    inputs = ids()
    recording = recorded(model, inputs)
    assert recording.verify(model, inputs) == {"told": 2}
    extra_key(recording._captures[1], 20)
    assert recording.verify(model, inputs) == {"told": 2, "refuted": 1}
    assert "row 20 of head" in recording.sequences[1][1].why


def equal_scores():
    """torch's softmax loses digits when it adds many equal numbers."""
    query, key = torch.randn(1, H, 9, D), torch.zeros(1, H, 9000, D)
    key[:, :, 0] = torch.randn(D)
    return query, key


def large_scores_of_similar_keys():
    query, key = torch.randn(2, B, H, 500, 64)
    return 20 * query, key + 9 * torch.randn(64)


def wide():
    """Kernels add products in different orders, and differ by more than a sum's last bits."""
    query, key = torch.randn(2, 1, 4, 2000, 128)
    return 10 * query, key


def fused(query, key):
    return scaled_dot_product_attention(query, key, key)


@pytest.mark.parametrize("inputs", [equal_scores, large_scores_of_similar_keys, wide])
def test_rounding_of_a_kernel_is_not_refuted(inputs):
    for [call] in recorded(Given(fused), *inputs()).sequences:
        assert call.sums.any_known
        call.summary()
        call.weights()
        assert call.proof != "refuted"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_error_of_a_thousandth_is_detected_in_half_precision(dtype):
    call = recorded(gpt().to(dtype), ids())[0]
    call.sums.table[2, 20] += 1e-3
    with pytest.raises(RunError, match="row 20 of head 2 is"):
        call.summary()


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_an_error_of_a_few_hundred_thousandths_is_detected(size):
    query, key = torch.randn(2, B, H, N, D)
    call = recorded(Given(fused), query * size, key * size)[0]
    call.sums.table[2, 20] += 5e-5 if size == 1 else 8e-6
    with pytest.raises(RunError, match="row 20 of head 2 is"):
        call.weights(head=2)


def test_kernel_sums_that_differ_from_the_rows_are_dropped(monkeypatch):
    """The kernel's scores have an offset that the record lacks."""
    original = LogSumExpMode.result
    monkeypatch.setattr(LogSumExpMode, "result", lambda self, shape: original(self, shape) + 0.001)
    call = recorded(gpt(), ids())[0]
    assert call.proof == "proved"
    assert not call.sums.any_known


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_masked_by_the_lowest_number_are_not_refuted(dtype):
    table = torch.zeros(N, N, dtype=dtype)
    table[7] = torch.finfo(dtype).min
    table[20, :9] = torch.finfo(dtype).min
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    for sequence in recorded(model, *torch.randn(2, B, H, N, D, dtype=dtype)).sequences:
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_sums_of_grouped_heads_with_padding(cache):
    """For a single query, torch computes the heads that share a key head as queries of one head."""
    model = llama(kind=LlamaForCausalLM)
    mask = torch.ones(B, 9, dtype=torch.long)
    mask[0, :4] = 0
    with torch.no_grad(), heedful.record(model) as recording:
        model.generate(
            ids()[:, :9], attention_mask=mask, max_new_tokens=5, pad_token_id=0,
            do_sample=False, cache_implementation=None if cache == "dynamic" else cache,
        )  # fmt: skip
    steps = [call for call in recording if call.shape[1] == 1]
    assert len(steps) >= 8
    for call in steps:
        sums = full_map(call)[1]
        torch.testing.assert_close(call.log_sum_exp().double(), sums, atol=4e-6, rtol=0)


def test_a_fault_in_one_pass_refutes_the_stitched_call():
    model = gpt2()
    with torch.no_grad(), heedful.record(model) as recording:
        model(ids())
    changed_query(recording._captures[1], 20)
    with pytest.raises(RunError, match="row 20"):
        recording.sequences[1][1].summary()
    assert [call.proof for call in recording.stitched(1)] == ["proved", "refuted"]


def test_rounding_products_later_does_not_refute():
    recording = FROM_KERNEL["our own"]()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        recording.summary()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert recording[0].proof == "proved"
