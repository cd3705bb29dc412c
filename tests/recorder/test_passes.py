"""When a pass begins and ends, and which tensors are released after it."""

import gc
import warnings
import weakref

import pytest
import torch
from shown_maps import Given, recorded
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig
from heedful.recorder.axes import mask_structure

B, H, N, D = 2, 3, 7, 4


def attend(x, mask=None):
    return scaled_dot_product_attention(x.sin(), x.cos(), x, attn_mask=mask)


def by_definition(x, added=0.0):
    scores = torch.einsum("...nd,...md->...nm", x.sin().double(), x.cos().double()) / D**0.5
    return (scores + added).softmax(-1).float()


def runs(recording):
    return [(call.name, call.pass_index) for call in recording]


def test_after_an_error_calls_outside_the_model_are_not_recorded():
    class Fails(nn.Module):
        def forward(self, x):
            attend(x)
            raise ZeroDivisionError

    x = torch.randn(B, H, N, D)
    with heedful.record(model := nn.Sequential(Fails())) as recording:
        with pytest.raises(ZeroDivisionError):
            model(x)
        attend(x)
        heedful.attention(x, x, x)
    assert runs(recording) == [("0", 0)]


@pytest.fixture(scope="module")
def gpt():
    return GPT(GPTConfig(vocabulary=30, context_length=64, width=24, layers=2, heads=3)).eval()


PROMPT, STEPS = [1, 2, 3, 4], 6


def generated(model, cache, **options):
    """A recorded generation, and the generated text without its last token."""
    with heedful.record(model, **options) as recording:
        generation = {"tokens": STEPS, "sampling": Sampling(temperature=0), "cache": cache}
        result = [int(token) for token in generate(model, PROMPT, **generation)]
    return recording, PROMPT + result[:-1]


@pytest.mark.parametrize("every", [1, 2, 4])
@pytest.mark.parametrize("cache", [True, False])
def test_generation_with_heedful_is_one_pass_per_step(gpt, cache, every):
    recording, text = generated(gpt, cache, every=every)
    passes = range(0, STEPS, every)
    names = ["blocks.0.attend", "blocks.1.attend"]
    assert runs(recording) == [(name, forward) for forward in passes for name in names]
    maps = [steps.weights[0] for steps in gpt.steps(torch.tensor([text]))]
    for call in recording:
        end = len(PROMPT) + call.pass_index
        start = end - 1 if cache and call.pass_index else 0
        expected = maps[call.layer][:, start:end, :end]
        torch.testing.assert_close(call.weights(), expected, atol=2e-6, rtol=0)
        if start == 0:
            assert call.ids.tolist() == text[:end]
    if cache and every == 1:
        assert [call.ids.tolist() for call in recording.stitched()] == [text] * 2


class Stages(nn.Module):
    """Parts that the generating code calls in turn; `forward` is never called."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, H * D)
        self.first, self.second = Given(attend), Given(attend)

    def step(self, ids):
        x = self.embed(ids).unflatten(-1, (H, D)).transpose(1, 2)
        return self.second(self.first(x))


@pytest.mark.parametrize("every", [1, 2])
def test_parts_that_are_called_one_after_another_are_one_pass(every):
    model = Stages()
    with heedful.record(model, every=every) as recording:
        for length in range(3, 7):
            model.step(torch.arange(length).expand(B, length))
    passes = range(0, 4, every)
    assert runs(recording) == [(name, step) for step in passes for name in ("first", "second")]
    assert [call.shape[-1] for call in recording[::2]] == [3 + step for step in passes]


class Masked(nn.Module):
    """Two calls with a mask that all heads share, expanded over the heads or not."""

    def forward(self, x, mask):
        return attend(attend(x, mask), mask)


def table():
    mask = torch.randn(B, 1, N, N)
    return mask.masked_fill(torch.rand(B, 1, N, N) < 0.3, -torch.inf).diagonal_scatter(
        torch.zeros(B, 1, N), 0, -2, -1
    )


def test_a_mask_expanded_over_heads_is_examined_once(monkeypatch):
    """Of an axis with stride 0, one slice is examined and stored."""
    sizes, faint = [], mask_structure._masks_by_constant
    monkeypatch.setattr(
        mask_structure, "_masks_by_constant", lambda mask: sizes.append(mask.numel()) or faint(mask)
    )
    x, mask = torch.randn(B, H, N, D), table()
    recording = recorded(Masked(), x, mask.expand(B, H, N, N))
    assert len(recording) == 2
    assert sizes == [B * N * N]
    for b, sequence in enumerate(recording.sequences):
        assert [call.causes.bias.shape for call in sequence] == [(1, N, N)] * 2
        expected = by_definition(x, mask)[b]
        torch.testing.assert_close(sequence[0].weights(), expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_a_mask_is_released_when_the_next_pass_begins(kind):
    model, seen = Masked(), []
    with heedful.record(model) as recording:
        for _ in range(3):
            mask = table()
            mask = mask if kind == "added" else mask == mask.clamp(min=-99)
            seen.append(weakref.ref(mask))
            model(torch.randn(B, H, N, D), mask)
            del mask
            gc.collect()
            assert [reference() is None for reference in seen[:-1]] == [True] * (len(seen) - 1)
    assert len(recording) == 6


class TooMuch(nn.Module):
    """Weights that sum to 3 (not a map), and a call that can be recorded."""

    def forward(self, x):
        return attend(3 * (x @ x.mT).softmax(-1) @ x)


def test_if_warnings_are_errors_a_missed_call_does_not_end_the_pass():
    model, x = TooMuch(), torch.randn(B, H, N, D)
    before = model(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with heedful.record(model) as recording:
            during = [model(x) for _ in range(2)]
        missed = recording.missed
    assert all(torch.equal(output, before) for output in during)
    assert list(missed) == ["TooMuch"]
    assert "sum to more than one" in missed["TooMuch"]
    assert runs(recording) == [("TooMuch", 0), ("TooMuch", 1)]
