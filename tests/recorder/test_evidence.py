"""The evidence of a call is sufficient to detect errors, and freed after the check."""

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from row_sums_by_definition import gpt, ids, llama
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import RunError
from heedful.ops.inputs import AttentionInputs
from heedful.recording import capture, evidence
from heedful.recording.certificate import certify
from heedful.recording.evidence import evidence_of
from heedful.recording.unpadded import RealTokens

B, H, N, D = 2, 3, 11, 16
SMALL = 0, evidence.SMALL  # bytes of values that are copied before they are projected


class Attends(nn.Module):
    """Computes attention, and stores its tensors, so that tests can modify them."""

    def __init__(self, attend):
        super().__init__()
        self.attend, self.used = attend, ()

    def forward(self, query, key, value, mask=None):
        self.used = query, key, value, mask, self.attend(query, key, value, mask)
        return self.used[-1]


def by_hand(query, key, value, mask):
    scores = query @ key.mT / D**0.5
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ value


FUNCTIONS = [scaled_dot_product_attention, by_hand]


def recorded(attend=scaled_dot_product_attention, mask=None, **options):
    torch.manual_seed(5)
    model = Attends(attend)
    with heedful.record(model, **options) as recording:
        model(*torch.randn(3, B, H, N, D), mask)
    assert len(recording) == 1
    return recording, model


@pytest.fixture
def checks(monkeypatch):
    """The calls that were checked so far."""
    checked = []
    monkeypatch.setattr(capture, "certify", lambda *args: checked.append(args) or certify(*args))
    return checked


def test_a_call_is_checked_once_on_first_use(checks):
    recording, _ = recorded()
    assert not checks
    [stored] = recording._captures
    evidence_ref = weakref.ref(stored.check_source)
    assert recording[0].check.passed
    assert recording.sequences[1][0].proof == recording[0].proof
    recording.certificate()
    assert len(checks) == 1
    checks.clear()
    assert evidence_ref() is None


def test_a_call_is_checked_before_it_is_written(checks, tmp_path):
    recording, _ = recorded()
    recording.save(tmp_path / "r.safetensors")
    assert len(checks) == 1
    recorded(budget=10)
    assert len(checks) == 2
    assert heedful.load(tmp_path / "r.safetensors")[0].check == recording[0].check
    assert len(checks) == 2


@pytest.mark.parametrize("small", SMALL)
@pytest.mark.parametrize("is_inference", [False, True])
@pytest.mark.parametrize("attend", FUNCTIONS)
def test_tensors_modified_later_do_not_change_the_check(attend, is_inference, small, monkeypatch):
    monkeypatch.setattr(evidence, "SMALL", small)
    mask = torch.rand(B, 1, N, N) < 0.7
    mask |= torch.eye(N, dtype=torch.bool)
    with torch.inference_mode(is_inference):
        model = Attends(attend)
        with heedful.record(model) as recording:
            model(*torch.randn(3, B, H, N, D), mask.clone())
        query, key, *_ = (tensor.clone() for tensor in model.used)
        for tensor in model.used:
            tensor.zero_()
    expected = (query @ key.mT / D**0.5).masked_fill(~mask, -torch.inf).softmax(-1)
    for [call], map_ in zip(recording.sequences, expected, strict=True):
        assert call.check.passed
        torch.testing.assert_close(call.weights(), map_, atol=2e-6, rtol=0)


@pytest.mark.parametrize("attend", FUNCTIONS)
def test_the_tolerance_is_that_of_the_settings_during_the_call(attend):
    products = torch.backends.mkldnn.matmul
    with heedful.record(model := Attends(attend)) as recording:
        for word in ("none", "bf16", "none"):
            products.fp32_precision = word
            model(*torch.randn(3, B, H, N, D))
    assert [check.tolerance for _, check in recording.certificate()] == [2e-5, 5e-2, 2e-5]


sizes = st.integers(1, 40)


@given(*[st.integers(1, 3)] * 3, sizes, sizes, sizes, st.data())
def test_a_difference_in_any_feature_is_detected(B, G, group, N, M, width, data):
    """Sizes are random, in float32 and float64. A correct record passes."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    kind = data.draw(st.sampled_from([torch.float32, torch.float64]))

    shapes = (B, G * group, N, 4), (B, G, M, 4), (B, G, M, width)
    query, key, value = (torch.randn(size, generator=generator, dtype=kind) for size in shapes)
    value += data.draw(st.sampled_from([0.0, 3.0]))
    repeated = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    output = scaled_dot_product_attention(query, *repeated)
    causes = [AttentionInputs(*inputs, 0.5) for inputs in zip(query, key, strict=True)]
    tokens = [RealTokens.all_of(N, M)] * B
    check, _ = certify(causes, tokens, evidence_of(value, output, {kind}))
    assert (check.passed, check.rows) == (True, B * min(N, 8))
    b, h, f = (data.draw(st.integers(0, size - 1)) for size in (B, G * group, width))
    output[b, h, :, f] += 0.03
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(evidence, "SMALL", data.draw(st.sampled_from(SMALL)))
        check, _ = certify(causes, tokens, evidence_of(value, output, {kind}))
    assert not check.passed
    assert check.where == f"head {h} of sequence {b} (texts × parts)"


def test_a_call_whose_check_raises_is_refuted(monkeypatch):
    def set_error(error):
        def check(*_):
            raise error

        monkeypatch.setattr(capture, "certify", check)

    recording, _ = recorded()
    set_error(torch.OutOfMemoryError("no room"))  # a later attempt may succeed
    with pytest.raises(torch.OutOfMemoryError):
        recording.certificate()
    set_error(ValueError("no such row"))
    assert recording[0].proof == "refuted"
    monkeypatch.undo()
    assert recording[0].why == "its check ended in an error: no such row (ValueError)"
    with pytest.raises(RunError, match="its check ended in an error"):
        recording[0].weights()


def test_an_output_of_another_width_than_the_values_is_missed():
    with pytest.raises(TypeError, match=r"an output \(2, 11, 17\) of values \(2, 11, 16\)"):
        evidence_of(torch.randn(2, N, D), torch.randn(2, N, D + 1), {torch.float32})
    with pytest.warns(UserWarning, match="values"), heedful.record(model := Attends(by_hand)) as r:
        model(*torch.randn(2, B, H, N, D), torch.randn(B, H, N, 0))
    assert list(r.missed) == ["Attends"]


MODELS = {
    "heedful": (gpt, (ids(),)),
    "transformers": (llama, (ids(),)),
    "nn.MultiheadAttention": (lambda: nn.MultiheadAttention(8, 2), (torch.randn(5, 2, 8),) * 3),
    "fused": (
        lambda: nn.TransformerEncoderLayer(8, 2, batch_first=True).eval(),
        (torch.randn(2, 5, 8),),
    ),
    "a kernel": (lambda: Attends(scaled_dot_product_attention), tuple(torch.randn(3, B, H, N, D))),
    "by hand": (lambda: Attends(by_hand), tuple(torch.randn(3, B, H, N, D))),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_modified_later_do_not_change_the_check(name):
    """Includes parameters of a fused layer that are used after attention."""
    make, inputs = MODELS[name]
    model = make()
    with torch.no_grad():
        with heedful.record(model) as recording:
            model(*inputs)
        for weight in model.parameters():
            weight.mul_(-3.0)
    assert [call.check.passed for call in recording] == [True] * len(recording)
    assert recording[0].check.rows


@pytest.mark.parametrize("name", MODELS)
def test_a_recording_is_freed_with_its_last_reference(name):
    """It has no reference cycle, because a long recording takes gigabytes."""
    make, inputs = MODELS[name]
    model = make()
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad(), heedful.record(model) as recording:
            model(*inputs)
        assert recording[0].check.passed
        assert recording[0].weights().isfinite().all()
        references = weakref.ref(recording), weakref.ref(recording._captures[0].query)
        del recording
        assert [reference() for reference in references] == [None, None]
    finally:
        gc.enable()


def test_tensors_that_the_model_frees_are_freed():
    """Queries, keys and values are freed together with their weights."""
    expired = []

    class Layer(nn.Module):
        def forward(self, x, storages):
            query, key, value = (x * n for n in (1.1, 1.2, 1.3))
            storages += [StorageWeakRef(x.untyped_storage()) for x in (query, key, value)]
            return by_hand(query, key, value, torch.ones(N, N).tril() > 0)

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer(), Layer()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x, storages := []).sin()
                expired.append([storage.expired() for storage in storages])
            return x

    with torch.no_grad(), heedful.record(model := Two()) as recording:
        model(torch.randn(B, H, N, D))
    assert expired == [[True] * 3] * 2
    assert all(call.check.passed for call in recording)
