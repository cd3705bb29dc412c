"""The doors to SDPA and nn.MultiheadAttention."""

import copy
import gc
import math
import pickle
import warnings
import weakref

import pytest
import torch
from shown_maps import looked_at, recorded
from torch import nn

import heedful
from heedful.ops.masks import Causal

PADDING = torch.tensor([[False] * 7, [False] * 5 + [True] * 2])


def multi_head(batch_first, **options):
    torch.manual_seed(3)
    layer = nn.MultiheadAttention(12, 3, batch_first=batch_first, **options).eval()
    query, memory = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    if not batch_first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    return layer, (query, memory, memory)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"kdim": 12, "vdim": 12}])
def test_multi_head_attention(need_weights, batch_first, options):
    layer, inputs = multi_head(batch_first, **options)
    _, maps = layer(*inputs, key_padding_mask=PADDING, average_attn_weights=False)
    before, _ = layer(*inputs, key_padding_mask=PADDING, need_weights=need_weights)
    with heedful.record(layer) as recording:
        during, _ = layer(*inputs, key_padding_mask=PADDING, need_weights=need_weights)
    assert torch.equal(before, during)
    for b, sequence in enumerate(recording.sequences):
        [call] = sequence
        assert (call.name, call.kind, call.door) == (
            "MultiheadAttention", "cross", "nn.MultiheadAttention"
        )  # fmt: skip
        torch.testing.assert_close(call.weights(), maps[b][..., ~PADDING[b]], atol=2e-6, rtol=0)
        assert call.check.passed


@pytest.mark.parametrize("need_weights", [True, False])
def test_a_mask_of_multi_head_attention_is_recognised(need_weights):
    layer, (query, _, _) = multi_head(True)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)  # True: masked
    options = {"attn_mask": mask, "need_weights": need_weights}
    _, map_ = layer(query[0], query[0], query[0], attn_mask=mask, average_attn_weights=False)
    with heedful.record(layer) as recording:
        layer(query[0], query[0], query[0], **options)
    assert recording[0].causes.mask == Causal(0)
    assert recording[0].kind == "causal"
    torch.testing.assert_close(recording[0].weights(), map_, atol=2e-6, rtol=0)


def test_torchs_own_transformer_with_gradients():
    torch.manual_seed(4)
    model = nn.Transformer(16, 2, 2, 2, 32, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, 7, 16), torch.randn(2, 7, 16)
    options = {
        "src_key_padding_mask": PADDING,
        "memory_key_padding_mask": PADDING,
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(7),
    }
    results = []
    for context in (heedful.record(nn.Identity()), heedful.record(model)):
        model.zero_grad()
        with context as recording:
            loss = model(source, target, **options).square().sum()
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for result, other in zip(*results, strict=True):
        assert torch.equal(result, other)
    kinds = ["self", "self", "causal", "cross", "causal", "cross"]
    assert [call.kind for call in recording] == kinds
    # of the second sequence, whose source has five tokens
    assert [call.shape[1:] for call in recording.sequences[1]] == [
        (5, 5), (5, 5), (7, 7), (7, 5), (7, 7), (7, 5)
    ]  # fmt: skip
    assert all(call.check.passed for call in recording)
    assert recording[3].name == "decoder.layers.0.multihead_attn"


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
def test_an_encoder_stays_on_its_fused_path(kind, nested, mode):
    """The output is equal bit for bit. Hooks or a function mode would disable the fused path."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested).eval()
    x = torch.randn(2, 7, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    masks = {"padding": {"src_key_padding_mask": PADDING}, "causal": {"mask": causal}}
    inputs = masks.get(kind, {})
    with mode():
        before = encoder(x, **inputs)
        with heedful.record(encoder) as recording:
            during = encoder(x, **inputs)
    torch.testing.assert_close(during, before, atol=0, rtol=0)
    assert [call.name for call in recording] == [f"layers.{i}.self_attn" for i in range(2)]
    sizes = [(2, 5, 5)] * 2 if kind == "padding" else [(2, 7, 7)] * 2
    assert [call.shape for call in recording.sequences[1]] == sizes
    assert all(call.check.passed for call in recording)


class Reads(nn.Module):
    """A recurrent layer, and attention over its outputs."""

    def __init__(self):
        super().__init__()
        self.reads, self.attend = nn.GRU(12, 12, batch_first=True), nn.MultiheadAttention(12, 3)

    def forward(self, x):
        read, _ = self.reads(x)
        return self.attend(read, read, read, need_weights=False)[0]


def test_a_model_is_copied_and_saved_while_it_is_recorded():
    """As the best model of a training run is. Copies are not recorded and hold no recording."""
    model, x = Reads().eval(), torch.randn(2, 5, 12)
    with heedful.record(model) as recording:
        expected = model(x)
        saved, best = pickle.dumps(model), copy.deepcopy(model)
        assert torch.equal(best(x), expected)
    assert len(recording) == 1
    is_gone = weakref.ref(recording)
    del recording
    gc.collect()
    assert is_gone() is None
    for twin in (pickle.loads(saved), best, pickle.loads(pickle.dumps(best))):
        assert torch.equal(twin(x), expected)


class Kernel(nn.Module):
    """Calls SDPA with the given options."""

    def forward(self, query, key, options):
        return nn.functional.scaled_dot_product_attention(query, key, key, **options)


@pytest.mark.parametrize("kind", ["boolean", "added"])
@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)])
def test_masks_of_any_number_of_axes(lead, kind):
    query, key = (torch.randn(*lead, n, 4) for n in (5, 6))
    mask = torch.rand(*lead, 5, 6) < 0.7
    mask[..., 0] = True
    if kind == "added":
        mask = torch.where(mask, torch.randn(*lead, 5, 6), -math.inf)
    recording = looked_at(Kernel(), query, key, {"attn_mask": mask, "scale": 0.7})
    scores = 0.7 * query @ key.mT
    scores = scores + mask if kind == "added" else scores.masked_fill(~mask, -math.inf)
    weights = torch.stack([sequence[0].weights() for sequence in recording.sequences])
    torch.testing.assert_close(
        weights.reshape(*lead, 5, 6), scores.softmax(-1), atol=2e-6, rtol=0
    )  # fmt: skip
    assert recording[0].check.passed
    assert recording[0].proof == "proved"


@pytest.mark.parametrize(
    "function",
    [torch._C._nn.scaled_dot_product_attention, torch.ops.aten.scaled_dot_product_attention],
)
def test_functions_that_call_the_kernel(function):
    class Other(nn.Module):
        def forward(self, x):
            return function(x, x, x)

    recording = recorded(Other(), torch.randn(2, 3, 5, 4))
    assert [call.door for call in recording] == ["scaled_dot_product_attention"]


def test_a_compiled_model_and_inference_mode():
    torch.manual_seed(6)
    model = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    compiled, x = torch.compile(model, backend="eager"), torch.randn(2, 7, 16)
    with torch.inference_mode(), heedful.record(compiled) as recording:
        compiled(x)
    with heedful.record(model) as plain:
        model(x)
    assert [call.name for call in recording] == ["self_attn"]
    torch.testing.assert_close(recording[0].weights(), plain[0].weights(), atol=2e-6, rtol=0)
    torch.testing.assert_close(recording.summary()["entropy"], plain.summary()["entropy"])


def test_a_norm_that_is_called_twice_is_recognised_as_self_attention():
    layer, x = multi_head(True)[0], torch.randn(2, 5, 12)
    with heedful.record(layer) as recording:
        layer(x, x.clone(), x)
        layer(x, x.flip(1), x.flip(1))  # the same shape, other numbers
    assert [call.kind for call in recording] == ["self", "cross"]


@pytest.mark.parametrize("kind", ["encoder layer", "linear"])
def test_no_tensor_of_a_pass_is_kept_after_the_recording(kind):
    """Inputs and outputs are released, without the garbage collector."""
    model = {
        "encoder layer": nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        "linear": nn.Linear(16, 16),
    }[kind]
    gc.disable()
    try:
        with warnings.catch_warnings(), heedful.record(model) as recording:
            warnings.simplefilter("ignore")
            inputs = torch.randn(2, 7, 16)
            output = model(inputs)
            alive = [weakref.ref(inputs), weakref.ref(output)]
            del inputs, output
        assert [reference() for reference in alive] == [None, None]
        assert len(recording) == (kind == "encoder layer")
    finally:
        gc.enable()
