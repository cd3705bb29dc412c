"""Recording does not change a model, and stores its attention exactly."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from finalized_calls import settled
from shown_maps import recorded
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

import heedful
from heedful.errors import ArgumentError
from heedful.layers import CrossAttention, MultiHeadAttention
from heedful.models import GPT, GPTConfig
from heedful.ops.masks import Causal, Dense, Window
from heedful.recorder.axes.mask_structure import recognise
from heedful.recorder.observed_call import Observed


@pytest.fixture
def model():
    config = GPTConfig(vocabulary=23, context_length=32, width=24, layers=3, heads=4, kv_heads=2)
    return GPT(config).eval()


IDS = torch.arange(2 * 11).view(2, 11) % 23


def test_models_of_heedful(model):
    recording = recorded(model, IDS, values=True)
    assert [call.name for call in recording] == [f"blocks.{i}.attend" for i in range(3)]
    assert [(call.layer, call.pass_index, call.kind) for call in recording] == [
        (i, 0, "causal") for i in range(3)
    ]
    for b, sequence in enumerate(recording.sequences):
        for call, steps in zip(sequence, model.steps(IDS), strict=True):
            torch.testing.assert_close(call.weights(), steps.weights[b], atol=1e-6, rtol=1e-5)
            value = call.value[0].norm(dim=-1)  # heads 0 and 1 share the first key head
            torch.testing.assert_close(call.value_norm(head=1), call.weights(head=1) * value)


def test_statistics_of_a_call_are_those_of_its_map(model):
    recording = recorded(model, IDS)
    call, map_ = recording[1], recording[1].weights().double()
    entropy = -torch.special.xlogy(map_, map_).sum(-1)
    torch.testing.assert_close(call.entropy().double(), entropy, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(call.received(head=2).double(), map_[2].sum(0), atol=1e-6, rtol=1e-5)
    assert call.largest(head=3).keys.tolist() == map_[3].argmax(-1).tolist()
    summary = call.summary()
    torch.testing.assert_close(summary["entropy"].double(), entropy.mean(-1), atol=1e-6, rtol=1e-5)
    diagonal = map_.diagonal(-1, 1, 2).mean(-1)
    torch.testing.assert_close(summary["previous"].double(), diagonal, atol=1e-6, rtol=1e-5)
    assert recording.summary()["sink"].shape == (3, 4)
    pooled = call.heatmap(3, head=0, queries=slice(2, 11), keys=slice(0, 6))
    expected = map_[0, 2:, :6].reshape(3, 3, 3, 2).mean((1, 3))
    torch.testing.assert_close(pooled.double(), expected, atol=1e-6, rtol=1e-5)


def test_recording_changes_no_output_and_no_gradient(model):
    model.train()
    outputs = []
    for is_recorded in (False, True):
        model.zero_grad()
        if is_recorded:
            with heedful.record(model) as recording:
                loss = model(IDS).logits.square().mean()
                loss.backward()
        else:
            loss = model(IDS).logits.square().mean()
            loss.backward()
        outputs.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for first, other in zip(*outputs, strict=True):
        assert torch.equal(first, other)
    assert len(recording) == 3
    assert not any(call.causes.query.requires_grad for call in recording)


def test_layers_heads_and_every_nth_pass(model):
    with heedful.record(model, layers=[1], heads=[3, 1], every=2) as recording:
        for _ in range(5):
            model(IDS)
    assert [call.pass_index for call in recording] == [0, 2, 4]
    assert {call.layer for call in recording} == {1}
    weights = list(model.steps(IDS))[1].weights[0]
    torch.testing.assert_close(recording[0].weights(), weights[[3, 1]], atol=1e-6, rtol=1e-5)
    with pytest.raises(ArgumentError, match="heads from 0 to 3"), heedful.record(model, heads=[7]):
        model(IDS)


def test_later_passes_do_not_change_the_record(model):
    with heedful.record(model) as recording:
        cache = model.new_cache(2)
        model(IDS, cache=cache)
        expected = [call.weights().clone() for call in recording]
        cache.clear()
        model(IDS.flip(1), cache=cache)
    for call, weights in zip(recording, expected, strict=False):
        assert torch.equal(call.weights(), weights)


def test_kinds(model):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = MultiHeadAttention(12, 3), CrossAttention(12, heads=3)

        def forward(self, x, memory):
            return self.outer(self.inner(x), memory)

    both = Both()
    recording = recorded(both, torch.randn(2, 5, 12), torch.randn(2, 7, 12))
    assert [(call.name, call.kind) for call in recording] == [("inner", "self"), ("outer", "cross")]
    assert [call.shape for call in recording] == [(3, 5, 5), (3, 5, 7)]


@pytest.mark.parametrize("seed", range(20))
def test_structured_masks_are_recognised(seed):
    draw = np.random.default_rng(seed)
    N, M = (int(n) for n in draw.integers(1, 12, 2))
    offset, size = int(draw.integers(-2, 4)), int(draw.integers(1, 6))
    guesses = [Causal(offset), Causal(offset) & Window(size, offset), Window(size, M - N)]
    for mask in [*guesses, Dense(torch.from_numpy(draw.random((N, M)) < 0.5))]:
        table = mask.crop((1, N, M))
        recognised = recognise(Dense(table), (1, N, M))
        allowed = torch.ones(N, M) > 0 if recognised is None else recognised.crop((1, N, M))
        assert torch.equal(allowed.expand_as(table), table)
    long = Causal() & Window(3)
    assert not isinstance(recognise(Dense(long.crop((1, 9, 9))), (1, 9, 9)), Dense)
    assert recognise(Dense(torch.ones(1, 6).bool()), (1, 1, 6)) is None


@pytest.mark.parametrize("row", [0, 255, 256, 511, 599])
def test_a_single_different_row_of_a_long_mask_is_detected(row):
    table = torch.ones(600, 600).tril().bool()
    table[row, : row + 1] = torch.arange(row + 1) == row // 2
    recognised = recognise(Dense(table), (1, 600, 600))
    assert torch.equal(recognised.crop((1, 600, 600)), table)


def test_the_summary_reports_progress_and_can_be_interrupted(model):
    recording = recorded(model, IDS)
    shares = []
    summary = recording.summary(shares.append)
    assert shares == sorted(shares)
    assert len(shares) >= len(recording)
    assert shares[-1] == 1.0
    with heedful.record(model) as second:
        model(IDS)
    torch.testing.assert_close(second.summary()["entropy"], summary["entropy"])

    def interrupt(share):
        raise KeyboardInterrupt

    with heedful.record(model) as third:
        model(IDS)
    with pytest.raises(KeyboardInterrupt):
        third.summary(interrupt)
    torch.testing.assert_close(third.summary()["entropy"], summary["entropy"])


@pytest.mark.parametrize(
    ("kernel", "dropout"),
    [(heedful.attention, "dropout"), (scaled_dot_product_attention, "dropout_p")],
)
def test_attention_with_dropout_is_unproved(kernel, dropout):
    class Drops(nn.Module):
        def forward(self, x):
            return kernel(x, x, x, **{dropout: 0.4})

    x = torch.randn(2, 3, 5, 4)
    recording = recorded(Drops(), x)
    [(_, check)] = recording.certificate()
    assert (check.rows, check.passed, check.proof) == (0, False, "unproved")
    assert check.why == recording[0].why == "not compared: weights were dropped at random"
    assert recording[0].proof == check.proof
    expected = heedful.steps(x, x, x).weights  # before dropout
    torch.testing.assert_close(recording[0].weights(), expected[0], atol=2e-6, rtol=0)


def test_an_output_of_nan_proves_nothing():
    x = torch.randn(1, 1, 5, 4)
    observed = Observed(x, x, x, torch.full_like(x, torch.nan), 0.5)
    assert not check_of(observed).passed
    observed.output = heedful.attention(x, x, x, scale=0.5)
    assert check_of(observed).passed
    observed.query = observed.output = torch.full_like(x, torch.nan)  # as in the model
    assert (check_of(observed).rows, check_of(observed).passed) == (0, False)


def check_of(observed):
    return settled(observed).check


def test_an_additive_mask_and_a_bias_are_added():
    x, bias, added = torch.randn(2, 3, 5, 4), torch.randn(1, 3, 5, 5), torch.randn(2, 1, 5, 5)
    mask = added.masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    map_ = (x @ x.mT / 2 + bias + mask).softmax(-1)
    assert check_of(Observed(x, x, x, map_ @ x, 0.5, mask=mask, bias=bias)).passed


def test_calls_are_indexed_by_number_or_module_name():
    model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
    with heedful.record(model) as recording:
        for _ in range(2):
            model(torch.tensor([[1, 2, 3]]))
    assert recording["blocks.1.attend"] is recording[1]
    assert recording.sequences[0]["blocks.0.attend"].pass_index == 0
    assert recording[np.int64(2)] is recording[torch.tensor(2)] is recording[-2]
    with pytest.raises(ArgumentError, match=r"no call of 'blocks\.3\.attend'; expected blocks\.1"):
        recording["blocks.3.attend"]
    for wrong in (5.0, None, [1]):
        with pytest.raises(ArgumentError, match="expected an index, a module's name"):
            recording[wrong]
    with pytest.raises(IndexError, match="call 9 of 4"):
        recording[9]


OURS = """
import sys, torch, heedful
from heedful.models import GPT, GPTConfig
model = GPT(GPTConfig(vocabulary=9, context_length=8, width=12, layers=2, heads=3)).eval()
with torch.no_grad(), heedful.record(model) as recording:
    model(torch.tensor([[1, 2, 3]]))
print(len(recording), "torch._dynamo" in sys.modules)
"""
COMPILES = """
import sys, torch, heedful
import torch.nn.functional as F

class Compiles(torch.nn.Module):
    def forward(self, x):
        attend = torch.compile(F.scaled_dot_product_attention, backend="eager")
        print(torch._dynamo.eval_frame._stance.stance)
        return attend(x, x, x)

print("torch._dynamo" in sys.modules)
model = Compiles()
with torch.no_grad(), heedful.record(model) as recording:
    model(torch.randn(1, 2, 5, 4))
print(len(recording), recording.missed)
"""


@pytest.mark.parametrize(
    ("program", "printed"),
    [(OURS, "2 False"), (COMPILES, "False\nforce_eager\n1 {}")],
    ids=["ours", "compiles"],
)
def test_dynamo_is_imported_only_if_the_model_compiles(program, printed):
    """Importing dynamo takes a second; a model may compile a part of itself while it runs."""
    completed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert completed.stdout.strip() == printed, completed.stderr
