"""Rows are compared with a kernel's log-sum-exp: faults are detected, rounding is tolerated."""

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
    by_hand,
    exact,
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
from heedful.recording import map_rows as of_rows
from heedful.recording.evidence import sampled_rows
from heedful.recording.sequence import Sequence


def shifted_key(capture, row):
    capture.key[1, 2, row] += 0.3


def changed_query(capture, row):
    capture.query[1, 2, row] *= 1.02


def masked_otherwise(capture, row, key, sees):
    """Change one cell of the second text's mask in the record."""
    real = capture.tokens[1]
    table = real.mask.crop((H, N, N))
    table[row, key] = sees
    capture.tokens = [capture.tokens[0], real._replace(mask=Dense(table))]


def off_by_one(capture, row):
    """The row may attend to one key more than in the model."""
    masked_otherwise(capture, row, row + 1, True)


def off_by_one_at_its_begin(capture, row):
    masked_otherwise(capture, row, 0, False)


FAULTS = [shifted_key, changed_query, off_by_one, off_by_one_at_its_begin]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("row", [1, 20, 31, N - 2])
def test_a_fault_in_a_row_that_no_sample_saw_is_found(fault, row):
    assert row not in sampled_rows(N)
    for ask in (
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
            ask(call)
        assert "\n" not in str(raised.value)
        if fault is not shifted_key:
            assert f"row {row} of head" in call.why
        assert call.proof == "refuted"
        assert recording.sequences[1][1].proof == "refuted"  # also in a new object
        [_, (_, check)] = recording.certificate()
        assert check.proof == "refuted"
        with pytest.raises(RunError, match="not recorded correctly"):
            recording.sequences[1][1].heatmap(4)


def test_the_number_of_a_head_is_the_models_own():
    recording = FROM_KERNEL["our own"](heads=[3, 1])
    recording._captures[0].query[0, 1, 20] *= 1.1
    with pytest.raises(RunError, match="row 20 of head 1 is"):
        recording[0].summary()


def test_verify_compares_every_row():
    model = gpt()
    inputs = ids()
    recording = recorded(model, inputs)
    assert recording.verify(model, inputs) == {"told": 2}
    off_by_one(recording._captures[1], 20)
    assert recording.verify(model, inputs) == {"told": 2, "refuted": 1}
    assert "row 20 of head" in recording.sequences[1][1].why


@pytest.mark.parametrize("by", [by_hand, lambda q, k: scaled_dot_product_attention(q, k, k)])
def test_a_number_that_is_no_number_refutes_nothing_and_shows_in_every_part(by, monkeypatch):
    """A diverged model has NaN in its kernel's log-sum-exps too."""
    query, key = torch.randn(2, B, H, N, D)
    query[0, 1, 30], key[1, 2, 9] = torch.nan, torch.nan
    for sequence in recorded(Given(by), query, key).sequences:
        [call] = sequence
        call.summary()
        assert call.proof != "refuted"
        monkeypatch.setattr(of_rows, "block_entries", lambda _: 0)
        rows, part = call.weights(), call.weights(queries=slice(20, 35), keys=slice(10, 30))
        assert torch.equal(part.isnan(), rows[:, 20:35, 10:30].isnan())
        assert part.isnan().any()
        picture = call.heatmap(N, queries=slice(20, 35), keys=slice(10, 30))
        assert torch.equal(picture.isnan(), part.isnan())


def test_what_is_refused_has_computed_and_kept_nothing():
    call = COMPUTED["by hand"]()[0]
    for wrong in ({"queries": slice(0, None, 2)}, {"keys": slice(0, 9, 3)}, {"reduce": "median"}):
        with pytest.raises(ArgumentError):
            call.heatmap(4, **wrong)
        assert not call.sums.any_known
    exact(call)
    with pytest.raises(ArgumentError, match="a range without a step"):
        next(blocks(call.causes, within=range(0, 9, 2)))


@pytest.mark.parametrize("keys", [4096, 9000])
def test_long_rows_of_equal_scores_refute_nothing(keys):
    """torch's softmax loses digits when it adds many equal numbers one after the other."""
    query, key = torch.randn(1, H, 9, D), torch.zeros(1, H, keys, D)
    key[:, :, 0] = torch.randn(D)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key))
    call = recorded(model, query, key)[0]
    assert call.sums.any_known
    call.summary()
    call.weights()
    torch.testing.assert_close(call.log_sum_exp().double(), full_map(call)[1], atol=3e-6, rtol=0)


@pytest.mark.parametrize("size", [0.01, 1.0, 6.0, 20.0])
@pytest.mark.parametrize("alike", [0.0, 9.0])
def test_large_scores_and_keys_with_much_in_common_refute_nothing(size, alike):
    query, key = torch.randn(2, B, H, 500, 64)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, is_causal=True))
    for sequence in recorded(model, query * size, key + alike * torch.randn(64)).sequences:
        assert sequence[0].sums.any_known
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


def test_wide_queries_and_keys_refute_nothing():
    """Two kernels add products in different orders, and differ by more than the sum's last bits."""
    query, key = torch.randn(2, 1, 4, 2000, 128)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, is_causal=True))
    call = recorded(model, 10 * query, key)[0]
    assert call.sums.any_known
    call.summary()
    assert call.proof != "refuted"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_row_that_is_off_by_a_thousandth_is_found_in_half_precision(dtype):
    call = recorded(gpt().to(dtype), ids())[0]
    call.sums.table[2, 20] += 1e-3
    with pytest.raises(RunError, match="row 20 of head 2 is"):
        call.summary()


@pytest.mark.parametrize("size", [1e-4, 1.0])
def test_a_row_that_is_off_by_a_few_hundred_thousandths_is_found(size):
    query, key = torch.randn(2, B, H, N, D)
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key))
    call = recorded(model, query * size, key * size)[0]
    call.sums.table[2, 20] += 5e-5 if size == 1 else 8e-6
    with pytest.raises(RunError, match="row 20 of head 2 is"):
        call.weights(head=2)


def test_sums_that_are_not_those_of_the_rows_are_not_kept(monkeypatch):
    """As if the scores of a kernel had an offset that the record lacks."""
    original = LogSumExpMode.result
    monkeypatch.setattr(LogSumExpMode, "result", lambda self, shape: original(self, shape) + 0.001)
    call = recorded(gpt(), ids())[0]
    assert call.proof == "proved"
    assert not call.sums.any_known


def test_rounded_products_prove_no_row(monkeypatch):
    """Rows that agree only under reduced precision must not be refuted under full precision."""
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
def test_rows_hidden_by_the_lowest_number_refute_nothing(dtype):
    table = torch.zeros(N, N, dtype=dtype)
    table[7] = torch.finfo(dtype).min
    table[20, :9] = torch.finfo(dtype).min
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    for sequence in recorded(model, *torch.randn(2, B, H, N, D, dtype=dtype)).sequences:
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


def test_a_row_that_the_kernel_calls_blind_is_compared_too():
    table = torch.ones(N, N, dtype=torch.bool).tril()
    table[7] = False
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    recording = recorded(model, *torch.randn(2, B, H, N, D))
    recording[0].summary()
    seeing = table.clone()
    seeing[7, 3] = True
    capture = recording._captures[0]
    capture.tokens[0] = capture.tokens[0]._replace(mask=Dense(seeing))
    call = Sequence([capture], 0)[0]
    with pytest.raises(RunError, match="row 7 of head"):
        call.summary()


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_steps_of_grouped_heads_with_padding_have_their_sums(cache):
    """torch then treats the heads that share a key as queries of one head."""
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


def test_a_fault_in_one_pass_refutes_what_is_put_together():
    model = gpt2()
    with torch.no_grad(), heedful.record(model) as recording:
        model(ids())
    changed_query(recording._captures[1], 20)
    with pytest.raises(RunError, match="row 20"):
        recording.sequences[1][1].summary()
    assert [call.proof for call in recording.stitched(1)] == ["proved", "refuted"]


def test_products_rounded_now_refute_nothing_that_was_recorded_exactly():
    recording = FROM_KERNEL["our own"]()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        recording.summary()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert recording[0].proof == "proved"


def test_a_recording_grows_by_at_most_a_fiftieth(tmp_path):
    """With heads of width 64, as in most models: 4 of 516 bytes a row."""
    model = gpt(width=256, heads=4, layers=1)
    recording = recorded(model, ids())
    size = recording.save(tmp_path / "r.safetensors").stat().st_size
    [capture] = recording._captures
    assert capture.sums.nbytes <= 0.02 * size
    assert isinstance(capture.tokens[0].mask, Causal)
