import numpy as np
import oracle
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import heedful
from heedful.errors import ArgumentError
from heedful.ops import dispatch, reference, sdpa
from heedful.ops.masks import Causal, Dense, Padding, Window

TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def tensors(lead, heads, groups, N, M, d, v, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(heads, *shape):
        axes = (*lead, heads, *shape) if heads else (*lead, *shape)
        return torch.randn(axes, generator=generator, dtype=torch.float64).to(dtype)

    kv_heads = heads // groups if heads else heads
    return make(heads, N, d), make(kv_heads, M, d), make(kv_heads, M, v)


@st.composite
def structured(draw, shape):
    """Draw a combination of masks, and the same mask as a table."""
    N, M = shape[-2:]
    offset = draw(st.none() | st.integers(-3, 5))
    position = np.arange(N)[:, None] + (M - N if offset is None else offset)
    distance = position - np.arange(M)
    size = draw(st.integers(1, 5))
    batch = shape[:-3] if len(shape) >= 4 else shape[:-2]
    keep = np.random.default_rng(size).random((*batch, M)) < 0.7
    real = keep.reshape(*batch, *[1] * (len(shape) - 1 - len(batch)), M)
    parts = [
        (Causal(offset), distance >= 0),
        (Window(size, offset), abs(distance) < size),
        (Padding(torch.from_numpy(keep)), real),
    ]
    chosen = draw(st.lists(st.sampled_from(parts), min_size=1, max_size=3))
    mask, table = chosen[0]
    for part, allowed in chosen[1:]:
        mask, table = mask & part, table & allowed
    return mask, np.broadcast_to(table, shape)


@st.composite
def calls(draw, tokens=13, width=7):
    """Draw tensors of random shape and type, arguments, and the allowed pairs as a table."""
    axes = draw(st.sampled_from([(), (3,), (2, 3)]))
    kv_heads = draw(st.integers(1, 3)) if axes else 0
    groups = draw(st.integers(1, 3)) if axes else 1
    N, M = draw(st.integers(1, tokens)), draw(st.integers(1, tokens))
    dtype = draw(st.sampled_from(list(TOLERANCE)))
    lead = axes[:-1] if axes else draw(st.sampled_from([(), (5,)]))
    query, key, value = tensors(
        (*lead, 2) if axes else lead,
        kv_heads * groups,
        groups,
        N,
        M,
        draw(st.integers(1, width)),
        draw(st.integers(1, width)),
        dtype,
        draw(st.integers(0, 1000)),
    )
    shape = (*query.shape[:-1], M)
    arguments, allowed = {}, np.ones(shape, bool)
    if draw(st.booleans()):
        arguments["causal"] = True
        allowed &= np.tri(N, M, M - N, dtype=bool)
    if draw(st.booleans()):
        table = torch.rand(shape, generator=torch.Generator().manual_seed(7)) < 0.7
        arguments["mask"] = draw(st.sampled_from([table, Dense(table)]))
        allowed &= table.numpy()
    elif draw(st.booleans()):
        arguments["mask"], table = draw(structured(shape))
        allowed &= table
    if draw(st.booleans()):
        bias_type = draw(st.sampled_from([dtype, torch.float32, torch.float64]))
        arguments["bias"] = torch.randn(shape[-2:], dtype=bias_type)
    if draw(st.booleans()):
        arguments["scale"] = draw(st.floats(0.1, 2.0))
    return (query, key, value), arguments, allowed


@given(calls())
@settings(max_examples=80)
def test_attention_and_steps_equal_loops_in_numpy(call):
    inputs, arguments, allowed = call
    bias, scale = arguments.get("bias"), arguments.get("scale")
    output, weights = oracle.attention(*inputs, allowed, bias, scale)
    tolerance = TOLERANCE[inputs[0].dtype]
    context, our_weights = heedful.attention(*inputs, **arguments, return_weights=True)
    assert torch.equal(context, heedful.attention(*inputs, **arguments))
    steps = heedful.steps(*inputs, **arguments)
    assert context.dtype == our_weights.dtype == steps.context.dtype == inputs[0].dtype
    for result in (context, steps.context):
        np.testing.assert_allclose(oracle.numpy(result), output, atol=4 * tolerance, rtol=tolerance)
    for result in (our_weights, steps.weights):
        np.testing.assert_allclose(oracle.numpy(result), weights, atol=tolerance)


@given(calls())
@settings(max_examples=25)
def test_arrays_and_tensors_give_the_same_results(call):
    inputs, arguments, _ = call
    inputs = [t.float() if t.dtype == torch.bfloat16 else t for t in inputs]
    if "bias" in arguments and arguments["bias"].dtype == torch.bfloat16:
        arguments["bias"] = arguments["bias"].float()
    arrays = {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}
    expected = heedful.attention(*inputs, **arguments, return_weights=True)
    result = heedful.attention(*[t.numpy() for t in inputs], **arrays, return_weights=True)
    expected += heedful.steps(*inputs, **arguments)
    result += heedful.steps(*[t.numpy() for t in inputs], **arrays)
    for array, tensor in zip(result, expected, strict=True):
        assert isinstance(array, np.ndarray)
        assert array.dtype == tensor.numpy().dtype
        np.testing.assert_array_equal(array, tensor)


def head_by_head(function, query, key, value, *, mask, bias, scale):
    """Compute each head of each sequence separately; several query heads may share a key head."""
    B, H, N, _ = query.shape
    group = H // key.shape[1]
    mask, bias = (tensor.expand(B, H, N, key.shape[2]) for tensor in (mask, bias))
    contexts = [
        function(
            query[b, h], key[b, h // group], value[b, h // group],
            mask=mask[b, h], bias=bias[b, h], scale=scale,
        )[0]
        for b in range(B) for h in range(H)
    ]  # fmt: skip
    return torch.stack(contexts).unflatten(0, (B, H))


def by_every_path(inputs, arguments, allowed):
    """Return the output of every implementation in heedful, and of torch."""

    def four_axes(tensor):
        return tensor.reshape(-1, *(tensor.shape if tensor.ndim >= 4 else (1, *tensor.shape))[-3:])

    heads = [four_axes(t) for t in inputs]
    mask = four_axes(torch.from_numpy(allowed))
    bias = arguments.get("bias", inputs[0].new_zeros(()))
    bias = four_axes(bias.expand(allowed.shape))
    plain = {"mask": mask, "bias": bias, "scale": arguments.get("scale")}
    outputs = {
        "attention": heedful.attention(*inputs, **arguments),
        "dropout": heedful.attention(*inputs, **arguments, dropout=1e-12),
        "steps": heedful.steps(*inputs, **arguments).context,
        "loops": head_by_head(reference.attention_in_loops, *heads, **plain),
        "products": head_by_head(reference.attention_in_products, *heads, **plain),
        "torch": F.scaled_dot_product_attention(
            *heads, bias.masked_fill(~mask, -torch.inf), scale=plain["scale"], enable_gqa=True
        ),
    }
    return {path: t.reshape(outputs["attention"].shape) for path, t in outputs.items()}


@given(calls(tokens=5, width=3))
@settings(max_examples=40)
def test_every_path_gives_the_same_output_and_gradients(call):
    inputs, arguments, allowed = call
    dtype = inputs[0].dtype
    inputs = [t.requires_grad_() for t in inputs]
    sources = list(inputs)
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"].to(dtype).requires_grad_()
        sources.append(arguments["bias"])
    outputs = by_every_path(inputs, arguments, allowed)
    direction = torch.randn_like(outputs["steps"])
    exact, _ = oracle.attention(*inputs, allowed, arguments.get("bias"), arguments.get("scale"))
    gradients = {
        path: torch.autograd.grad(output, sources, direction) for path, output in outputs.items()
    }
    tolerance = 8 * TOLERANCE[dtype]
    for path, output in outputs.items():
        result = oracle.numpy(output)
        np.testing.assert_allclose(result, exact, atol=tolerance, rtol=tolerance, err_msg=path)
        for a, b in zip(gradients[path], gradients["steps"], strict=True):
            torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance, msg=path)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_rows_that_may_attend_to_nothing_are_zero_with_zero_gradients(dtype):
    query, key, value = (t.requires_grad_() for t in tensors((2,), 3, 1, 5, 7, 4, 6, dtype))
    mask = torch.ones(5, 7, dtype=torch.bool)
    mask[2] = False
    context, weights = heedful.attention(query, key, value, mask=mask, return_weights=True)
    assert (context[:, :, 2] == 0).all()
    assert (weights[:, :, 2] == 0).all()
    (context.float().sum() + weights.float().square().sum()).backward()
    assert (query.grad[:, :, 2] == 0).all()
    assert not any(t.grad.isnan().any() for t in (query, key, value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scores_too_large_for_half_precision(dtype):
    query = torch.tensor([[300.0, -300.0]] * 3, dtype=dtype)
    key = torch.tensor([[300.0, -300.0], [299.0, 299.0], [-300.0, 300.0]], dtype=dtype)
    context, weights = heedful.attention(query, key, key, return_weights=True, scale=1.0)
    assert weights.tolist() == [[1.0, 0.0, 0.0]] * 3
    assert torch.equal(context, key[:1].expand(3, 2))
    assert heedful.steps(query, key, key, scale=1.0).scores.dtype == torch.float32


@pytest.mark.parametrize(
    "mask",
    [
        Window(9),
        Causal() & Window(4),
        Causal(offset=2),
        Causal() & Padding.from_lengths([9, 30], 37),
    ],
)
def test_blocks_of_a_structured_mask_equal_a_single_call(mask, monkeypatch):
    """Large masks are computed in blocks of queries; with FULL_MASK = 0, every mask is large."""
    inputs = [t.requires_grad_() for t in tensors((2,), 4, 2, 29, 37, 5, 3)]
    bias = torch.randn(29, 37, dtype=torch.float64)
    full = heedful.attention(*inputs, mask=mask, bias=bias)
    gradients = torch.autograd.grad(full.sum(), inputs)
    monkeypatch.setattr(dispatch, "FULL_MASK", 0)
    monkeypatch.setattr(sdpa, "BLOCK", 7)
    blocks = heedful.attention(*inputs, mask=mask, bias=bias)
    torch.testing.assert_close(blocks, full, atol=1e-12, rtol=0)
    for a, b in zip(torch.autograd.grad(blocks.sum(), inputs), gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=0)
    output, _ = oracle.attention(*inputs, mask.crop((2, 4, 29, 37)), bias)
    np.testing.assert_allclose(oracle.numpy(blocks), output, atol=1e-12)


def test_a_window_over_many_tokens_builds_no_full_table():
    tokens = 20_000
    query = torch.randn(1, 1, tokens, 4)
    with torch.profiler.profile(profile_memory=True) as profile:
        context = heedful.attention(query, query, query, mask=Causal() & Window(16))
    largest = max(event.self_cpu_memory_usage for event in profile.events())
    assert context.shape == query.shape
    assert largest < tokens * tokens / 50


def test_dropout_drops_a_share_and_keeps_the_mean():
    query, key, _ = tensors((), 0, 1, 400, 50, 8, 8, torch.float32)
    ones = torch.ones(50, 1)
    sums = heedful.attention(query, key, ones, dropout=0.5)
    assert sums.std() > 0.05
    assert abs(sums.mean().item() - 1.0) < 0.03
    steps = heedful.steps(query, key, ones, dropout=0.5)
    torch.testing.assert_close(steps.weights.sum(-1), torch.ones(400))
    assert abs(steps.context.mean().item() - 1.0) < 0.03
    assert steps.context.std() > 0.05


@pytest.mark.parametrize("mask", [None, Causal(0), Causal(), Causal() & Window(3), Causal(2)])
@pytest.mark.parametrize("full", [0, 1 << 20])
def test_every_argument_reaches_the_kernel(mask, full, monkeypatch):
    """With meta tensors, every call takes the path of a GPU, where torch applies dropout."""
    calls = []

    def fake_kernel(query, key, value, **arguments):
        calls.append(arguments)
        return query

    monkeypatch.setattr(sdpa.F, "scaled_dot_product_attention", fake_kernel)
    monkeypatch.setattr(dispatch, "FULL_MASK", full)
    monkeypatch.setattr(sdpa, "BLOCK", 4)
    query, key = torch.empty(2, 6, 9, 8, device="meta"), torch.empty(2, 2, 11, 8, device="meta")
    heedful.attention(query, key, key, mask=mask, scale=0.3, dropout=0.25)
    for arguments in calls:
        assert (arguments["dropout_p"], arguments["scale"]) == (0.25, 0.3)
        assert arguments["enable_gqa"]
        masked = arguments["attn_mask"] is not None
        assert arguments["is_causal"] == (mask == Causal(0))
        assert masked == (mask is not None and mask != Causal(0))


def test_a_bias_more_precise_than_the_query_keeps_its_precision():
    query, key, value = tensors((2,), 3, 1, 40, 2000, 16, 16, torch.bfloat16)
    far = -(1000 - 0.5 * torch.arange(2000.0))
    context, weights = heedful.attention(query, key, value, bias=far, return_weights=True)
    expected = weights.float() @ value.float()
    torch.testing.assert_close(context.float(), expected, atol=0.03, rtol=0.02)
    assert heedful.steps(query, key, value, bias=far.double()).masked.dtype == torch.float32


def test_leading_axes_broadcast():
    query = torch.randn(2, 1, 6, 3, 4, dtype=torch.float64)
    key, value = torch.randn(2, 1, 5, 2, 7, 4, dtype=torch.float64)
    mask = torch.rand(5, 1, 3, 7) < 0.7
    result = heedful.attention(query, key, value, mask=mask, causal=True)
    full = [query.expand(2, 5, 6, 3, 4), *(t.expand(2, 5, 2, 7, 4) for t in (key, value))]
    allowed = mask.numpy() & np.tri(3, 7, 4, dtype=bool)
    expected, _ = oracle.attention(*full, allowed)
    np.testing.assert_allclose(oracle.numpy(result), expected, atol=1e-12)


ONES = torch.ones(2, 4, 3, 8)
BAD = {
    "tokens for embeddings": ({"query": torch.ones(2, 4, 3, 8, dtype=torch.long)}, "embed the ids"),
    "a list": ({"query": [1.0, 2.0]}, "torch tensor"),
    "unequal types": ({"key": ONES.double()}, "float64"),
    "unequal axes": ({"key": ONES[0]}, "same number of axes"),
    "unequal widths": ({"key": ONES[..., :5]}, "same width"),
    "values short": ({"value": ONES[:, :, :2]}, "as many values as keys"),
    "key heads": ({"key": ONES[:, :3], "value": ONES[:, :3]}, "divide the query's heads"),
    "value heads": ({"value": ONES[:, :2]}, "equal numbers of key and value heads"),
    "unequal batches": ({"query": torch.ones(3, 4, 3, 8)}, "leading axes"),
    "float mask": ({"mask": torch.zeros(3, 3)}, "bias="),
    "mask shape": ({"mask": torch.ones(2, 3, dtype=torch.bool)}, "broadcasts"),
    "padding mask": ({"mask": torch.ones(2, 7, dtype=torch.bool)}, "heedful.masks.Padding"),
    "boolean bias": ({"bias": torch.ones(3, 3, dtype=torch.bool)}, "mask="),
    "bias shape": ({"bias": torch.ones(9, 9)}, "broadcasts"),
    "dropout": ({"dropout": 1.0}, "probability"),
    "mask elsewhere": ({"mask": torch.ones(3, 3, dtype=torch.bool, device="meta")}, "on meta"),
    "bias elsewhere": ({"bias": torch.ones(3, 3, device="meta")}, "on meta"),
    "padding of another batch": (
        {"mask": Padding(torch.ones(5, 3, dtype=torch.bool))},
        r"\(batch, keys\)",
    ),
    "scale": ({"scale": float("nan")}, "finite"),
}


@pytest.mark.parametrize("function", [heedful.attention, heedful.steps])
@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_raise_one_line(function, case, as_a_user):
    changes, words = BAD[case]
    arguments = {"query": ONES, "key": ONES, "value": ONES, **changes}
    inputs = [arguments.pop(name) for name in ("query", "key", "value")]
    with pytest.raises(ArgumentError, match=words) as caught:
        function(*inputs, **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("lead", [(), (2,), (1, 2)])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("arguments", [{}, {"causal": True}])
def test_nan_is_not_hidden(lead, which, arguments):
    """torch's CPU kernel returns zeros for small tensors with NaN; heedful must return NaN."""
    tensors = [torch.randn(*lead, n, 4) for n in (3, 5, 5)]
    tensors[which][..., 1, 2] = torch.nan
    output, weights = heedful.attention(*tensors, return_weights=True, **arguments)
    assert torch.equal(output.isnan().any(-1), weights.isnan().any(-1))
    assert output.isnan().any()


def test_a_scale_may_be_any_kind_of_number(as_a_user):
    query = torch.randn(3, 4)
    expected = heedful.attention(query, query, query, scale=0.5)
    for scale in (np.float32(0.5), torch.tensor(0.5)):
        assert torch.equal(heedful.attention(query, query, query, scale=scale), expected)
