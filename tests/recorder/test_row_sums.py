"""The log-sum-exp of each row: told by kernels, computed where none tells it, and compared."""

import math

import pytest
import torch
from looked import Given
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import GPT2Config, GPT2Model, GptOssConfig, GptOssModel, LlamaConfig, LlamaModel

import heedful
from heedful.errors import RunError
from heedful.models import GPT, GPTConfig
from heedful.ops.masks import Causal, Dense
from heedful.recorder import from_attentions
from heedful.recorder.kept import call as of_call
from heedful.recorder.kept.certificate import sampled

B, H, N, D = 2, 4, 40, 8


def own(**changes):
    sizes = {"vocabulary": 23, "context_length": N, "width": 24, "layers": 2, "heads": 4}
    return GPT(GPTConfig(**{**sizes, **changes})).eval()


def llama(implementation="sdpa", kind=LlamaModel, config=LlamaConfig, **changes):
    made = config(
        vocab_size=23, hidden_size=24, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, **changes,
    )  # fmt: skip
    return kind._from_config(made, attn_implementation=implementation).eval()


def gpt2(implementation="sdpa"):
    config = GPT2Config(n_layer=2, n_head=4, n_embd=24, vocab_size=23, n_positions=64)
    return GPT2Model._from_config(config, attn_implementation=implementation).eval()


def by_hand(query, key):
    return (query @ key.mT / D**0.5).softmax(-1) @ key


def turned(query, key):
    """As some models have it: heads before texts."""
    query, key = query.transpose(0, 1), key.transpose(0, 1)
    return scaled_dot_product_attention(query, key, key).transpose(0, 1)


@torch.no_grad()
def recorded(model, *given, **options):
    named = options.pop("named", {})
    with heedful.record(model, **options) as recording:
        model(*given, **named)
    return recording


def ids():
    return torch.randint(0, 23, (B, N))


def of_ids(model):
    return lambda **options: recorded(model, ids(), **options)


def of_tensors(does):
    return lambda **options: recorded(Given(does), *torch.randn(2, B, H, N, D), **options)


def of_flex(query, key):
    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, N, N, device="cpu")
    return flex_attention(query, key, key, block_mask=mask)


def of_module():
    attention = nn.MultiheadAttention(24, 4, batch_first=True).train()  # not its own fused kernel
    named = {"need_weights": False}
    return lambda **options: recorded(attention, *torch.randn(3, B, N, 24), named=named, **options)


TOLD = {
    "our own": of_ids(own()),
    "our own, grouped": of_ids(own(kv_heads=2)),
    "transformers": of_ids(gpt2()),
    "transformers, grouped": of_ids(llama()),
    "SDPA": of_tensors(lambda query, key: scaled_dot_product_attention(query, key, key)),
    "SDPA, heads first": of_tensors(turned),
    "flex": of_tensors(of_flex),
    "nn.MultiheadAttention": of_module(),
}
COMPUTED = {
    "eager": of_ids(gpt2("eager")),
    "by hand": of_tensors(by_hand),
    "maps": lambda: from_attentions([torch.rand(B, H, N, N).softmax(-1)]),
}


def whole(call):
    """The map by its causes, and the log-sum-exp of each row, in float64 and all at once."""
    query, key, scale, mask, bias, *_ = call.causes
    scores = query.double() @ key.double().repeat_interleave(len(query) // len(key), 0).mT * scale
    scores = scores if bias is None else scores + bias
    allowed = torch.ones(call.shape).bool() if mask is None else mask.crop(call.shape)
    scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1), scores.logsumexp(-1)


def exact(call, close=2e-6):
    """Parts, pictures and sums of a call, beside the whole map."""
    map_, sums = whole(call)
    rows, columns = [3, -1, 17], slice(5, 21)
    part = call.weights(queries=rows, keys=columns)
    torch.testing.assert_close(part.double(), map_[:, rows, columns], atol=close, rtol=0)
    torch.testing.assert_close(call.log_sum_exp().double(), sums, atol=4 * close, rtol=1e-6)
    picture = call.heatmap(4, head=1, queries=slice(8, 40), keys=slice(0, 24))
    expected = map_[1, 8:40, :24].unflatten(1, (-1, 6)).unflatten(0, (-1, 8)).mean((1, 3))
    torch.testing.assert_close(picture.double(), expected, atol=close, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("options", [{}, {"heads": [2, 1]}, {"budget": 0}])
@pytest.mark.parametrize("record", TOLD.values(), ids=TOLD)
def test_a_kernel_tells_it_and_no_row_is_computed(record, options, monkeypatch):
    recording = record(**options)
    calls = [call for sequence in recording.sequences for call in sequence]
    assert all(call.sums.known(slice(None), slice(None)) is not None for call in calls)
    monkeypatch.setattr(of_call, "by_rows", None)
    monkeypatch.setattr(of_call.of, "gather", None)
    for call in calls:
        exact(call)
    assert len(calls) >= B


@pytest.mark.parametrize("record", COMPUTED.values(), ids=COMPUTED)
def test_where_no_kernel_tells_it_it_is_computed_once_and_kept(record, monkeypatch, tmp_path):
    recording = record()
    calls = [call for sequence in recording.sequences for call in sequence]
    for call in calls:
        assert not call.sums.any_known
        call.weights(queries=[2, 5])  # which rows it had to compute anyhow
        known = ~call.sums.table[0].isnan()
        assert known.nonzero()[:, 0].tolist() == [2, 5]
        exact(call)
        assert call.sums.known(slice(None), slice(None)) is not None
    again = heedful.load(recording.save(tmp_path / "r.safetensors"))
    monkeypatch.setattr(of_call, "by_rows", None)
    monkeypatch.setattr(of_call.of, "gather", None)
    for sequence in again.sequences:
        for call in sequence:
            exact(call)


def test_a_file_with_some_rows_is_completed(tmp_path):
    recording = COMPUTED["by hand"]()
    recording[0].weights(queries=range(7), keys=[0])
    again = heedful.load(recording.save(tmp_path / "r.safetensors"))
    known = ~again[0].sums.table[0].isnan()
    assert known.nonzero()[:, 0].tolist() == [*range(7)]
    exact(again[0])
    assert again[0].sums.known(slice(None), slice(None)) is not None
    exact(heedful.load(again.save(tmp_path / "again.safetensors"))[0])


def test_progress_is_told_while_it_is_computed():
    call, told = COMPUTED["eager"]()[0], []
    call.log_sum_exp(progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    call, told = COMPUTED["eager"]()[0], []
    call.heatmap(4, queries=slice(10, 30), progress=told.append)
    assert told == sorted(told)
    assert (told[0] < 0.6, told[-1]) == (True, 1.0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_nearly_as_its_kernel_has_it(dtype):
    """torch's kernel for CPUs takes exponents nearly, where the model itself is less exact."""
    recording = recorded(own().to(dtype), ids())
    for call in recording:
        assert call.sums.any_known
        exact(call, close=1e-4)
        call.summary()
        assert call.proof == "proved"


def test_what_is_kept_in_another_type_has_sums_of_its_own():
    """The kernel's are not those of queries and keys that were rounded."""
    call = recorded(own(), ids(), dtype=torch.bfloat16)[0]
    assert not call.sums.any_known
    exact(call)


def test_rows_without_padding_have_their_own_sums():
    mask = torch.ones(B, N, dtype=torch.long)
    mask[0, :9] = mask[1, 30:] = 0
    given = {"input_ids": ids(), "attention_mask": mask}
    recording = recorded(llama(), named=given)
    lengths = [one[0].shape[1] for one in recording.sequences]
    assert lengths == [31, 30]
    for sequence in recording.sequences:
        for call in sequence:
            assert call.sums.known(slice(None), slice(None)) is not None
            torch.testing.assert_close(
                call.log_sum_exp().double(), whole(call)[1], atol=8e-6, rtol=0
            )
            call.summary()


def test_sinks_are_among_the_scores():
    model = llama(
        "eager",
        GptOssModel,
        GptOssConfig,
        head_dim=8,
        num_local_experts=2,
        num_experts_per_tok=1,
        sliding_window=9,
    )
    for layer in model.layers:
        nn.init.normal_(layer.self_attn.sinks)
    for call in recorded(model, ids()):
        exact_part = call.weights()[:, 10:, 3:9]
        call.log_sum_exp()
        part = call.weights(queries=slice(10, None), keys=slice(3, 9))
        torch.testing.assert_close(part, exact_part, atol=2e-6, rtol=0)
        assert float(call.learned_sink().max()) > 0.1


def test_rows_that_see_nothing_are_zero_in_any_part():
    table = torch.rand(B, 1, N, N) < 0.5
    table[:, :, [0, 7]] = False
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, table))
    call = recorded(model, *torch.randn(2, B, H, N, D)).sequences[1][0]
    assert not call.weights(queries=[0, 7], keys=[1, 2, 3]).any()
    assert call.weights(queries=[1], keys=slice(0, 20)).any()
    assert call.log_sum_exp()[:, [0, 1, 7]].isnan().tolist() == [[True, False, True]] * H
    assert not call.heatmap(N, head=0)[[0, 7]].any()
    call.summary()


def test_a_generation_put_together_knows_the_sums_of_its_passes():
    model = gpt2()
    with torch.no_grad(), heedful.record(model) as recording:
        cache, tokens = None, ids()
        for part in (tokens[:, :20], *tokens[:, 20:].split(1, dim=1)):
            cache = model(part, past_key_values=cache, use_cache=True).past_key_values
    for sequence in range(B):
        for call in recording.stitched(sequence):
            assert call.sums.known(slice(None), slice(None)) is not None
            exact(call)


def shifted_key(capture, row):
    capture.key[1, 2, row] += 0.3


def changed_query(capture, row):
    capture.query[1, 2, row] *= 1.02


def off_by_one(capture, row):
    """The row sees one key more than the model's did."""
    layout = capture.layouts[1]
    table = layout.mask.crop((H, N, N))
    table[row, row + 1] = True
    capture.layouts[1] = layout._replace(mask=Dense(table))


def off_by_one_at_its_begin(capture, row):
    layout = capture.layouts[1]
    table = layout.mask.crop((H, N, N))
    table[row, 0] = False
    capture.layouts[1] = layout._replace(mask=Dense(table))


FAULTS = [shifted_key, changed_query, off_by_one, off_by_one_at_its_begin]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("row", [1, 20, 31, N - 2])
def test_a_fault_in_a_row_that_no_sample_saw_is_found(fault, row):
    assert row not in sampled(N)
    for ask in (
        lambda call: call.summary(),
        lambda call: call.weights(),
        lambda call: call.weights(head=2, queries=slice(row, None)),
        lambda call: call.top(3),
        lambda call: call.entropy(head=2),
    ):
        recording = TOLD["our own"]()
        assert recording.sequences[1][1].proof == "proved"
        fault(recording._captures[1], row)
        recording.sequences[0][1].summary()  # the other text is as it was
        call = recording.sequences[1][1]
        with pytest.raises(RunError, match=r"row \d+ of head \d is not the model.s") as raised:
            ask(call)
        assert "\n" not in str(raised.value)
        if fault is not shifted_key:
            assert f"row {row} of head" in call.why
        assert call.proof == "refuted"
        assert recording.sequences[1][1].proof == "refuted"  # asked anew
        [_, (_, check)] = recording.certificate()
        assert check.proof == "refuted"
        with pytest.raises(RunError, match="not recorded truthfully"):
            recording.sequences[1][1].heatmap(4)


def test_the_number_of_a_head_is_the_models_own():
    recording = TOLD["our own"](heads=[3, 1])
    recording._captures[0].query[0, 1, 20] *= 1.1
    with pytest.raises(RunError, match="row 20 of head 1 is"):
        recording[0].summary()


def test_verify_compares_every_row():
    model = own()
    given = ids()
    recording = recorded(model, given)
    assert recording.verify(model, given) == {"proved": 2}
    right = recording._captures[1].layouts[1]
    off_by_one(recording._captures[1], 20)
    assert recording.verify(model, given) == {"proved": 1, "refuted": 1}
    assert "row 20 of head" in recording.sequences[1][1].why
    recording._captures[1].layouts[1] = right
    assert recording.verify(model, given) == {"proved": 2}


def test_a_number_that_is_no_number_refutes_nothing():
    """A model that diverges has NaN in its own kernel's sums too."""
    query, key = torch.randn(2, B, H, N, D)
    query[0, 1, 30] = torch.nan
    model = Given(lambda query, key: scaled_dot_product_attention(query, key, key, is_causal=True))
    for sequence in recorded(model, query, key).sequences:
        sequence[0].summary()
        assert sequence[0].proof != "refuted"


def test_products_rounded_now_refute_nothing_that_was_recorded_exactly():
    recording = TOLD["our own"]()
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        recording.summary()
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = "none"
    assert recording[0].proof == "proved"


def test_a_recording_grows_by_at_most_a_fiftieth(tmp_path):
    """Of heads of width 64, as nearly all models have: 4 of 516 bytes a row."""
    model = own(width=256, heads=4, layers=1)
    recording = recorded(model, ids())
    size = recording.save(tmp_path / "r.safetensors").stat().st_size
    [capture] = recording._captures
    assert capture.sums.nbytes <= 0.02 * size
    assert isinstance(capture.layouts[0].mask, Causal)
