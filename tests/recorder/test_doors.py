"""The masks and kinds that the doors report, and the calls that they leave alone."""

import math
import warnings
from contextlib import contextmanager

import pytest
import torch
from shown_maps import Given, looked_at, recorded
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.ops.masks import Causal, Combined, KeyRanges, Packed
from heedful.recorder.axes import mask_structure
from heedful.recorder.doors.tape import NO_MAP

B, H, N, D = 2, 3, 7, 4
CAUSAL = torch.ones(N, N).tril().bool()


def maps(query, key, added):
    """Weights by their definition, in float64."""
    scores = torch.einsum("...nd,...md->...nm", query.double(), key.double()) / D**0.5 + added
    return scores.softmax(-1).float()


def added(allowed, low=-math.inf):
    return torch.zeros(allowed.shape).masked_fill(~allowed, low)


def is_exact(recording, *expected):
    """Check that all calls of all sequences are proved and have the expected maps."""
    assert len(recording) == len(expected)
    for b, sequence in enumerate(recording.sequences):
        for call, maps_of_call in zip(sequence, expected, strict=True):
            torch.testing.assert_close(call.weights(), maps_of_call[b], atol=2e-6, rtol=0)
            assert call.check.passed


def layers(times):
    """Several calls of a kernel of torch with the same mask, or with views of it."""

    def attend(x, mask=None):
        for _ in range(times):
            inputs = None if mask is None else mask[..., : x.shape[-2]]
            x = scaled_dot_product_attention(x.sin(), x.cos(), x, attn_mask=inputs)
        return x

    return Given(attend)


def run(x, mask, times=1, **options):
    with heedful.record(model := layers(times), **options) as recording:
        model(x, mask)
    return recording


LOW = [-1e4, -1e9, torch.finfo(torch.float32).min, -math.inf]


@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("slope", [0.0, 1.0, -1.0])
def test_very_low_numbers_are_a_mask_and_the_others_a_bias(low, slope):
    x, slopes = torch.randn(B, H, N, D), slope * torch.tensor([1.0, 0.5, 0.25])[:, None, None]
    alibi = slopes * (torch.arange(N) - torch.arange(N)[:, None])
    recording = run(x, (alibi + added(CAUSAL, low)).expand(B, H, N, N))
    is_exact(recording, maps(x.sin(), x.cos(), alibi + added(CAUSAL)))
    for [call] in recording.sequences:
        assert (call.kind, call.causes.mask) == ("causal", Causal(0))
        bias = None if slope == 0 else alibi.masked_fill(~CAUSAL, 0.0)
        assert (call.causes.bias is None) if bias is None else torch.equal(call.causes.bias, bias)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_mask_that_layers_share_is_split_once_and_stored_once(has_bias, monkeypatch):
    split, original = [], mask_structure._parts
    monkeypatch.setattr(
        mask_structure, "_parts", lambda mask, seen: split.append(mask) or original(mask, seen)
    )
    mask = added(torch.rand(B, 1, N, N + 2) < 0.6)
    mask[..., 1] = 0.0
    mask = mask + torch.randn(N, N + 2) if has_bias else mask
    recording = run(torch.randn(B, H, N, D), mask, times=3)
    for text in recording.sequences:
        first, *others = (call.causes for call in text)
        assert isinstance(first.mask, Packed | Combined)
        assert (first.bias is not None, len(others)) == (has_bias, 2)
        for other in others:
            assert other.mask is first.mask
            assert not has_bias or other.bias.data_ptr() == first.bias.data_ptr()
    assert len(split) == 1


@contextmanager
def kernel(name, function):
    """A replacement on CPUs for the GPU kernel that `causal_lower_right` calls."""
    library = torch.library.Library("aten", "IMPL")
    try:
        library.impl(name, function, "CPU")
        yield
    finally:
        library._destroy()


def test_flash_attention_on_gpus_aligns_the_last_query_to_the_last_key():
    query, key = torch.randn(B, H, 3, D), torch.randn(B, H, N, D)
    sees = torch.ones(3, N).tril(N - 3).bool()

    def flash(query, key, value, dropout_p=0.0, is_causal=False, debug=False, *, scale=None):
        scores = (query @ key.mT * D**-0.5).masked_fill(~sees, -torch.inf)
        nothing, none = torch.empty(0), torch.empty(0, dtype=torch.long)
        output = scores.softmax(-1) @ value
        return output, scores.logsumexp(-1), none, none, 3, N, none, none, nothing

    torchs = torch.ops.aten._scaled_dot_product_flash_attention
    model = Given(lambda query, key: torchs(query, key, key, is_causal=True)[0])
    flash_kernel = kernel("_scaled_dot_product_flash_attention", flash)
    with flash_kernel, torch.no_grad(), heedful.record(model) as recording:
        model(query, key)
    is_exact(recording, maps(query, key, added(sees)))
    assert recording[0].causes.mask == Causal(N - 3)


PREFIX = torch.ones(90, 90).tril().bool()
PREFIX[:30, :30] = True
DOCUMENTS = torch.block_diag(*(torch.ones(n, n) for n in (30, 3, 97))).bool()
TABLES = {
    "packed": (DOCUMENTS.tril(), Combined, "causal"),
    "prefix": (PREFIX, KeyRanges, "self"),
    "documents": (DOCUMENTS, KeyRanges, "self"),
}


@pytest.mark.parametrize("inputs", ["boolean", "added"])
@pytest.mark.parametrize("name", TABLES)
def test_a_key_range_for_each_query_is_recognised(name, inputs, tmp_path):
    table, structure, kind = TABLES[name]
    x = torch.randn(1, 2, len(table), D)
    mask = table if inputs == "boolean" else added(table, -1e9)
    expected = maps(x.sin(), x.cos(), added(table))
    first = run(x, mask)
    for recording in (first, run(x, mask, budget=0), heedful.load(first.save(tmp_path / "r"))):
        is_exact(recording, expected)
        call = recording[0]
        assert call.kind == kind
        assert type(call.causes.mask) is structure
        assert torch.equal(call.causes.mask.crop(call.shape), table)
        torch.testing.assert_close(call.received(), expected[0].sum(1), atol=2e-4, rtol=0)


def nested(x):
    parts = [x[0].transpose(0, 1), x[1].transpose(0, 1)[:3]]
    packed = torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2)
    result = scaled_dot_product_attention(packed, packed, packed)
    return torch.cat([text.flatten() for text in result.unbind()])


def above_one(x):
    return 3 * (x @ x.mT).softmax(-1) @ x


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(("what", "words"), [(nested, "nested tensors"), (above_one, NO_MAP)])
def test_a_call_that_cannot_be_recorded_is_reported_once(what, words):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.odd, self.plain = Given(what), layers(1)

        def forward(self, x):
            return self.odd(x), self.plain(x)

    x, model = torch.randn(B, H, N, D), Both()
    before = model(x)
    with warnings.catch_warnings(record=True) as warned, heedful.record(model) as recording:
        warnings.simplefilter("always")
        during = [model(x) for _ in range(3)]
    for after in during:
        assert all(torch.equal(tensor, other) for tensor, other in zip(before, after, strict=True))
    warned = [str(warning.message) for warning in warned if "recorded" in str(warning.message)]
    assert len(warned) == 1
    assert warned[0] == f"attention of odd was not recorded: {recording.missed['odd']}"
    assert words in warned[0]
    assert "\n" not in warned[0]
    assert list(recording.missed) == ["odd"]
    assert [call.name for call in recording] == ["plain"] * 3
    assert all(call.check.passed for call in recording)


ATTENTION = [
    lambda x: scaled_dot_product_attention(x, x.cos(), x, scale=0.5),
    lambda x: (x @ x.cos().mT / 2).softmax(-1) @ x,
]


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("depth", [1, 2])
def test_attention_inside_vmap(attention, depth):
    for _ in range(depth):
        attention = torch.func.vmap(attention)
    x = torch.randn(B, H, N, D)
    is_exact(looked_at(Given(attention), x), (x @ x.cos().mT / 2).softmax(-1))


def test_a_model_without_attention_is_reported():
    layer = nn.Linear(3, 3)
    with pytest.warns(UserWarning, match="attention of Linear"), heedful.record(layer) as recording:
        layer(torch.zeros(2, 3))
    assert list(recording.missed) == ["Linear"]
    with heedful.record(layer) as recording:  # the layer does not run
        pass
    assert not recording.missed


def nearer(score, b, h, q, k):
    return score - (q - k).abs()


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("call", [flex_attention, torch.compile(flex_attention, backend="eager")])
def test_flex_attention_is_recorded_with_a_mask_and_missed_with_a_score_mod(call):
    texts, place = torch.tensor([0] * 4 + [1] * 6), torch.arange(10)
    packed = lambda b, h, q, k: (texts[q] == texts[k]) & (q >= k)  # noqa: E731
    mask = create_block_mask(packed, None, None, 10, 10, device="cpu")
    query, key = torch.randn(B, 4, 10, 16), torch.randn(B, 2, 10, 16)
    with torch.no_grad(), heedful.record(model := Given(call)) as recording:
        model(query, key, key, None, mask, 0.3, True)
    allowed = packed(0, 0, place[:, None], place)
    scores = 0.3 * query @ key.repeat_interleave(2, 1).mT
    is_exact(recording, scores.masked_fill(~allowed, -torch.inf).softmax(-1))
    assert (recording[0].kind, recording[0].door) == ("causal", "flex_attention")
    assert [type(part) for part in recording[0].causes.mask.parts] == [Causal, KeyRanges]
    with torch.no_grad():
        looked_at(Given(call), query, query, query, nearer, missed={"Given": "score_mod"})


class NormAttention(nn.Module):
    """Attention without submodules, in a class whose name is not watched."""

    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)


def test_attention_in_a_module_that_is_not_watched_has_the_name_of_its_parent():
    model = nn.Sequential(nn.Sequential(NormAttention()), nn.Sequential(NormAttention()))
    x = torch.randn(2, 3, 5, 4)
    recording = recorded(model, x)
    assert [call.name for call in recording] == ["0", "1"]
    first = (x @ x.mT / 2).softmax(-1)
    torch.testing.assert_close(torch.stack([recording[0].weights(h) for h in range(3)]), first[0])
