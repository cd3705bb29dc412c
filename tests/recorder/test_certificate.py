"""The certificate detects wrong records, and reports the number of compared rows."""

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import RunError
from heedful.ops.masks import Causal
from heedful.recorder.axes import padding
from heedful.recorder.axes.mask_structure import recognise
from heedful.recording import capture, tolerance
from heedful.recording.capture import Capture


class Kernel(nn.Module):
    """Torch's kernel, with values that are a function of the keys."""

    def __init__(self, values=torch.cos):
        super().__init__()
        self.values = values

    def forward(self, query, key, attn_mask=None):
        return scaled_dot_product_attention(query, key, self.values(key), attn_mask)


def recorded_call(query, key, mask=None, values=torch.cos, **options):
    with heedful.record(kernel := Kernel(values), **options) as recording:
        kernel(query, key, mask)
    return recording


def tensors(N=9, M=9):
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, 4, size, 8, generator=random) for size in (N, M)]


CAUSAL = torch.ones(9, 9).tril().bool()
PER_HEAD = torch.rand(2, 4, 9, 9, generator=torch.Generator().manual_seed(3)) < 0.6
PER_HEAD |= torch.eye(9).bool()


def wrong_structure(monkeypatch):
    """A causal mask is recorded as one that allows one more token."""
    shifted = lambda mask, shape: Causal(recognise(mask, shape).offset + 1)  # noqa: E731
    monkeypatch.setattr(padding, "recognise", shifted)
    return recorded_call(*tensors(), CAUSAL)


def no_mask(monkeypatch):
    monkeypatch.setattr(padding, "recognise", lambda mask, shape: None)
    return recorded_call(*tensors(), CAUSAL)


def wrong_padding(monkeypatch):
    """Tokens are removed as padding, although the attention does not mask them."""

    class IgnoresMask(Kernel):
        def forward(self, query, key, attention_mask):
            return super().forward(query, key)

    monkeypatch.setattr(padding, "_hides_others", lambda *_: True)
    keep = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
    with heedful.record(layer := IgnoresMask()) as recording:
        layer(*tensors(), keep)
    return recording


def wrong_rows(monkeypatch):
    """The rows of a text are shifted by one."""
    monkeypatch.setattr(capture, "take_rows", lambda tensor, rows: tensor[..., rows - 1, :])
    return recorded_call(*tensors())


def too_narrow(monkeypatch):
    """Scores are in the hundreds, for which bfloat16 has only two digits."""
    query, key = tensors(9, 300)
    return recorded_call(300 * query, key, dtype=torch.bfloat16)


WRONG = [wrong_structure, no_mask, wrong_padding, wrong_rows, too_narrow]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_certificate_detects_wrong_records(wrong, monkeypatch):
    recording = wrong(monkeypatch)
    [(_, check)] = recording.certificate()
    assert not check.passed
    with pytest.raises(RunError, match="not recorded correctly"):
        recording.sequences[1][0].weights()
    monkeypatch.undo()
    right = recorded_call(*tensors(), PER_HEAD, heads=[3, 1])
    assert right[0].check.passed
    assert right[0].check.worst < 2e-6


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_error_of_a_narrower_dtype(dtype):
    query, key = tensors(12, 7)
    [call] = recorded_call(query, key, dtype=dtype).sequences[1]
    narrow = torch.einsum("bhnd,bhmd->bhnm", query.to(dtype).float(), key.to(dtype).float())
    used = scaled_dot_product_attention(query, key, key.cos())
    map_, value = (narrow / 8**0.5).softmax(-1), key.cos()
    rows = torch.linspace(0, 11, 8).long()  # the sampled rows
    share = torch.finfo(dtype).eps * 4 / call.check.tolerance  # the share lost by rounding
    spread = (value - value.mean(2, keepdim=True)).abs() + share * value.abs()
    difference, unit = (map_ @ value - used)[:, :, rows].abs(), (map_ @ spread)[:, :, rows]
    errors = difference.amax((2, 3)) / unit.amax((2, 3))
    assert call.check.worst == pytest.approx(float(errors.max()), rel=1e-3)
    sequence, head = divmod(int(errors.argmax()), 4)
    assert call.check.where == f"head {head} of sequence {sequence} (texts × parts)"
    assert 1e-4 < call.check.worst < call.check.tolerance
    assert call.check.tolerance == {torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
    assert recorded_call(query, key)[0].check.worst < 2e-6


def of_values(values, monkeypatch, wrong=1.0):
    """Record a call with these values; multiply queries of head 2 of sequence 1 by `wrong`."""
    original = Capture.inputs_of

    def inputs_of(self, row):
        factor = torch.ones(4, 1, 1)
        factor[2] = wrong if row == 1 else 1
        causes = original(self, row)
        return causes._replace(query=causes.query * factor)

    with monkeypatch.context() as patched:
        patched.setattr(Capture, "inputs_of", inputs_of)
        recording = recorded_call(*tensors(), values=values)
        _ = recording[0].check
    return recording


def small_head(key):
    """Values whose third feature is a millionth of the others."""
    return key.cos() * torch.tensor([1.0, 1.0, 1e-6, 1.0])[:, None, None]


def with_number(index, number):
    def values(key):
        value = key.cos()
        value[index] = number
        return value

    return values


VALUES = {
    "a small head": (small_head, "proved"),
    "a large mean": (lambda key: key.cos() + 50, "proved"),
    "NaN in one feature": (with_number((0, 1, 3, 2), math.nan), "proved"),
    # NaN times any weight is NaN, so any weights would agree
    "NaN in a head": (with_number((0, 1), math.nan), "unproved"),
    "infinity in a head": (with_number((0, 1, 3), math.inf), "unproved"),
}


@pytest.mark.parametrize("wrong", [1.002, math.nan])
@pytest.mark.parametrize("name", VALUES)
def test_errors_are_in_units_of_the_spread_of_a_heads_values(name, wrong, monkeypatch):
    values, proof = VALUES[name]
    recording = of_values(values, monkeypatch)
    assert recording[0].proof == proof
    assert ("no finite number" in recording[0].why) == (proof == "unproved")
    recording = of_values(values, monkeypatch, wrong)
    for text in recording.sequences:
        assert (text[0].check.passed, text[0].proof) == (False, "refuted")
        assert text[0].check.where == "head 2 of sequence 1 (texts × parts)"
        assert text[0].why.startswith(f"weights times values of {text[0].check.where} differ by ")


def masked_except(queries):
    """A mask under which only these queries of the second text may attend to any key."""
    mask = torch.zeros(2, 1, 20, 9, dtype=torch.bool)
    mask[1, 0, queries] = True
    return mask


OTHER_ROWS = torch.zeros(2, 4, 20, 9, dtype=torch.bool)
OTHER_ROWS[:, 1, 0] = OTHER_ROWS[:, 2, 19] = True


@pytest.mark.parametrize(
    ("length", "mask", "rows"),
    [
        (20, None, 16),  # eight of each of two texts
        (5, None, 10),  # or all, if there are fewer
        (1, None, 2),
        (20, masked_except(slice(None)), 8),
        (20, masked_except([0, 19]), 2),
        (20, masked_except([0, 1]), 1),  # the second is not sampled
        (20, OTHER_ROWS, 4),  # different rows are fully masked in each head
    ],
)
def test_rows_counts_the_compared_rows(length, mask, rows):
    recording = recorded_call(*tensors(length, 9), mask)
    check = recording[0].check
    assert (check.rows, check.passed, check.why) == (rows, True, "")
    [(name, check)] = recording.certificate()
    assert (name, check.rows, check.worst, check.proof) == ("Kernel", rows, check.worst, "proved")


def test_fully_masked_queries_are_unproved():
    recording = recorded_call(*tensors(20, 9), masked_except([]))
    check = recording[0].check
    assert (check.rows, check.passed) == (0, False)
    assert check.why == "all compared queries are fully masked"
    assert math.isnan(check.worst)
    assert not recording[0].weights().any()


def test_the_tolerance_depends_on_the_device():
    def both(cpu, cuda):
        torch.backends.mkldnn.matmul.fp32_precision = cpu
        torch.backends.cuda.matmul.fp32_precision = cuda
        return [tolerance.tolerance_of(torch.float32, torch.device(d)) for d in ("cpu", "cuda")]

    try:
        assert both("tf32", "tf32") == [2e-5, 1e-2]  # CPUs do not support TF32
        assert both("bf16", "ieee") == [5e-2, 2e-5]
        assert tolerance.tolerance_of(torch.float64, torch.device("cuda")) == 1e-10
        both("none", "none")
        torch.set_float32_matmul_precision("high")
        assert tolerance.tolerance_of(torch.float32, torch.device("cuda")) == 1e-2
    finally:
        torch.set_float32_matmul_precision("highest")
        assert both("none", "none") == [2e-5, 2e-5]


def key_of_nan(capture):
    capture.key = capture.key.clone()
    capture.key[0, 1, 2] = math.nan


FORGED = {
    "scale": lambda capture: setattr(capture, "scale", math.nan),
    "bias": lambda capture: setattr(capture, "bias", torch.full((1, 1, 1, 1), math.nan)),
    "a key": key_of_nan,
}


@pytest.mark.parametrize("is_checked", [False, True])
@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("tokens", [5, 20])
def test_nan_in_the_attention_inputs_is_refuted(name, tokens, is_checked):
    """The output refutes it; or, after the check, the kernel's log-sum-exps."""
    recording = recorded_call(*tensors(tokens, tokens))
    if is_checked:
        assert [check.proof for _, check in recording.certificate()] == ["proved"]
    assert len(recording) == 1
    FORGED[name](recording._captures[0])
    with pytest.raises(RunError, match=r"not recorded correctly|its scores is nan"):
        recording[0].weights()
    assert recording[0].proof == "refuted"
