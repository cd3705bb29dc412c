"""When a pass begins and ends, and which tensors are released after it."""

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.generate import Sampling, generate
from heedful.models import GPT, GPTConfig
from heedful.ops import dispatch
from heedful.recorder.axes import mask_structure

B, H, N, D = 2, 3, 7, 4


def attend(x, mask=None):
    return scaled_dot_product_attention(x.sin(), x.cos(), x, attn_mask=mask)


def by_definition(x, added=0.0):
    scores = torch.einsum("...nd,...md->...nm", x.sin().double(), x.cos().double()) / D**0.5
    return (scores + added).softmax(-1).float()


def runs(recording):
    return [(call.name, call.pass_index) for call in recording]


class Again(nn.Module):
    """Calls itself several times before it attends, and attends again afterwards."""

    def forward(self, x, times):
        if times:
            x = self(x, times - 1)
        self.seen.append(x)
        return attend(x)


@pytest.mark.parametrize("times", [1, 3])
def test_a_module_that_calls_itself_is_recorded_each_time(times):
    inner = Again()
    inner.seen = []
    model = Holds(inner)
    with heedful.record(model) as recording:
        for _ in range(2):
            model(torch.randn(B, H, N, D), times)
    assert runs(recording) == [("part", forward) for forward in (0, 1) for _ in range(times + 1)]
    for call, x in zip(recording, inner.seen, strict=True):
        torch.testing.assert_close(call.weights(), by_definition(x)[0], atol=2e-6, rtol=0)


class Holds(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, *inputs):
        return self.part(*inputs)


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
        self.embed, self.first, self.second = nn.Embedding(20, H * D), Again(), Again()
        self.first.seen = self.second.seen = []

    def step(self, ids):
        x = self.embed(ids).unflatten(-1, (H, D)).transpose(1, 2)
        return self.second(self.first(x, 0), 0)


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
    with heedful.record(model := Masked()) as recording:
        model(x, mask.expand(B, H, N, N))
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


class Ours(nn.Module):
    def forward(self, x):
        return heedful.attention(x, x, x)


def test_the_first_of_two_recordings_may_end_first():
    model, second_model = Ours(), Ours()
    x = torch.randn(1, 5, 4)
    first, second = heedful.record(model), heedful.record(second_model)
    early, late = first.__enter__(), second.__enter__()
    model(x), second_model(x)
    first.__exit__(None, None, None)
    model(x), second_model(x)
    second.__exit__(None, None, None)
    model(x), second_model(x)
    assert (len(early), len(late)) == (1, 2)
    assert early.missed == late.missed == {}
    assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    assert not getattr(dispatch._thread, "listeners", ())


class Part(nn.Module):
    """A block of layers that other modules call one by one, or in a loop of their own."""

    def __init__(self):
        super().__init__()
        self.norm, self.more = nn.LayerNorm(WIDE), nn.Linear(WIDE, WIDE)
        self.attend = ByHand()


class ByHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.asks, self.keeps, self.says = (nn.Linear(WIDE, WIDE) for _ in range(3))

    def forward(self, x):
        query, key, value = (layer(x) for layer in (self.asks, self.keeps, self.says))
        return (query @ key.mT).softmax(-1) @ value


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Part(), Part()])


WIDE = 6


@pytest.mark.parametrize("every", [1, 2])
def test_each_repeated_call_of_the_same_layers_begins_a_pass(every):
    model, x = Parts().eval(), torch.randn(B, N, WIDE)
    with heedful.record(model, every=every) as recording:
        for _ in range(3):
            for layer in model.layers:
                layer.attend(layer.norm(x))
    wanted = [index for index in range(3) if index % every == 0]
    names = [f"layers.{number}.attend" for number in range(2)]
    assert runs(recording) == [(name, index) for index in wanted for name in names]
