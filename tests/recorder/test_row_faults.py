"""Rows are compared with the kernel's log-sum-exps: faults are detected, rounding is tolerated."""

import pytest
import torch
from head_scores_by_definition import means
from row_sums_by_definition import (
    COMPUTED,
    FROM_KERNEL,
    B,
    D,
    H,
    N,
    assert_exact,
    by_hand,
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
from heedful.errors import ArgumentError, RunError
from heedful.ops.log_sum_exp import LogSumExpMode
from heedful.ops.masks import Causal, Dense
from heedful.ops.weight_blocks import blocks
from heedful.recording import map_rows
from heedful.recording.evidence import sampled_rows
from heedful.recording.sequence import Sequence


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


@pytest.mark.parametrize("attend", [by_hand, lambda q, k: scaled_dot_product_attention(q, k, k)])
def test_nan_in_the_model_is_not_refuted(attend, monkeypatch):
    """If a model diverged, the log-sum-exps of its kernel are NaN too."""
    query, key = torch.randn(2, B, H, N, D)
    query[0, 1, 30], key[1, 2, 9] = torch.nan, torch.nan
    for sequence in recorded(Given(attend), query, key).sequences:
        [call] = sequence
        call.summary()
        assert call.proof != "refuted"
        monkeypatch.setattr(map_rows, "block_entries", lambda _: 0)
        rows, part = call.weights(), call.weights(queries=slice(20, 35), keys=slice(10, 30))
        assert torch.equal(part.isnan(), rows[:, 20:35, 10:30].isnan())
        assert part.isnan().any()
        picture = call.heatmap(N, queries=slice(20, 35), keys=slice(10, 30))
        assert torch.equal(picture.isnan(), part.isnan())


def test_invalid_arguments_compute_nothing():
    call = COMPUTED["by hand"]()[0]
    for wrong in ({"queries": slice(0, None, 2)}, {"keys": slice(0, 9, 3)}, {"reduce": "median"}):
        with pytest.raises(ArgumentError):
            call.heatmap(4, **wrong)
        assert not call.sums.any_known
    assert_exact(call)
    with pytest.raises(ArgumentError, match="a range without a step"):
        next(blocks(call.causes, within=range(0, 9, 2)))


@pytest.mark.parametrize("keys", [4096, 9000])
def test_long_rows_of_equal_scores_are_not_refuted(keys):
    """torch's softmax loses digits when it adds many equal numbers."""
    query, key = torch.randn(1, H, 9, D), torch.zeros(1, H, keys, D)
    key[:, :, 0] = torch.randn(D)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key))
    call = recorded(model, query, key)[0]
    assert call.sums.any_known
    call.summary()
    call.weights()
    torch.testing.assert_close(call.log_sum_exp().double(), full_map(call)[1], atol=3e-6, rtol=0)


@pytest.mark.parametrize("size", [0.01, 1.0, 6.0, 20.0])
@pytest.mark.parametrize("common", [0.0, 9.0])
def test_large_scores_and_similar_keys_are_not_refuted(size, common):
    query, key = torch.randn(2, B, H, 500, 64)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, is_causal=True))
    for sequence in recorded(model, query * size, key + common * torch.randn(64)).sequences:
        assert sequence[0].sums.any_known
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


def test_wide_queries_and_keys_are_not_refuted():
    """Kernels add products in different orders, and differ by more than a sum's last bits."""
    query, key = torch.randn(2, 1, 4, 2000, 128)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, is_causal=True))
    call = recorded(model, 10 * query, key)[0]
    assert call.sums.any_known
    call.summary()
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
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key))
    call = recorded(model, query * size, key * size)[0]
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


def test_rows_that_agree_only_when_rounded_are_not_proved(monkeypatch):
    """Then a later comparison at full precision does not refute them."""
    original = LogSumExpMode.result
    monkeypatch.setattr(LogSumExpMode, "result", lambda self, shape: original(self, shape) + 1e-3)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        recording = recorded(gpt(), ids())
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    recording.summary()
    assert not recording[1].sums.any_known or recording[1].proof == "proved"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_rows_masked_by_the_lowest_number_are_not_refuted(dtype):
    table = torch.zeros(N, N, dtype=dtype)
    table[7] = torch.finfo(dtype).min
    table[20, :9] = torch.finfo(dtype).min
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    for sequence in recorded(model, *torch.randn(2, B, H, N, D, dtype=dtype)).sequences:
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


def test_a_row_that_the_kernel_masks_is_compared():
    table = torch.ones(N, N, dtype=torch.bool).tril()
    table[7] = False
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    recording = recorded(model, *torch.randn(2, B, H, N, D))
    recording[0].summary()
    table = table.clone()
    table[7, 3] = True
    capture = recording._captures[0]
    capture.tokens[0] = capture.tokens[0]._replace(mask=Dense(table))
    call = Sequence([capture], 0)[0]
    with pytest.raises(RunError, match="row 7 of head"):
        call.summary()


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


def test_a_recording_grows_by_at_most_a_fiftieth(tmp_path):
    """With heads of width 64, log-sum-exps take 4 of 516 bytes per row."""
    model = gpt(width=256, heads=4, layers=1)
    recording = recorded(model, ids())
    size = recording.save(tmp_path / "r.safetensors").stat().st_size
    [capture] = recording._captures
    assert capture.sums.nbytes <= 0.02 * size
    assert isinstance(capture.tokens[0].mask, Causal)
