"""The captured log-sum-exp of torch's kernels against NumPy; outputs do not change."""

from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from random_maps import log_sum_exps
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import TorchDispatchMode

from heedful.ops import log_sum_exp, masks
from heedful.ops.arguments import check
from heedful.ops.dispatch import attend, listening
from heedful.ops.inputs import AttentionInputs
from heedful.ops.log_sum_exp import LogSumExpMode, find_log_sum_exp, request_lse

ATEN = torch.ops.aten
N, M = 40, 53
TABLE = torch.rand(2, 1, N, M) < 0.6
CASES = {
    "no mask": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": TABLE},
    "added": {"attn_mask": torch.randn(N, M)},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}


def tensors(case, dtype=torch.float32):
    G = 2 if case == "grouped" else 4
    return [torch.randn(2, H, n, 8, dtype=dtype) for H, n in ((4, N), (G, M), (G, M))]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_returns_it_and_the_output_is_unchanged(case, dtype, mode):
    query, key, value = tensors(case, dtype)
    options = {name: x.to(dtype) if case == "added" else x for name, x in CASES[case].items()}
    outputs, gradients = [], []
    for watched in (False, True):
        with mode(), ExitStack() as stack:
            needs_gradient = mode is torch.enable_grad
            inputs = [x.clone().requires_grad_(needs_gradient) for x in (query, key, value)]
            capture = LogSumExpMode()
            if watched:
                stack.enter_context(capture)
            output = F.scaled_dot_product_attention(*inputs, **options)
        outputs.append(output)
        if needs_gradient:
            output.float().sin().sum().backward()
            gradients.append([tensor.grad for tensor in inputs])
    assert torch.equal(*outputs)
    for tensor, other in zip(*gradients, strict=True) if gradients else ():
        assert torch.equal(tensor, other)
    sums = capture.result((2, 4, N))
    for b in range(2):
        table = options.get("attn_mask")
        mask = masks.Causal(0) if case == "causal" else None
        mask = masks.Dense(table[b]) if case == "boolean" else mask
        bias = table if case == "added" else None
        scale = options.get("scale", 8**-0.5)
        expected = log_sum_exps(AttentionInputs(query[b], key[b], scale, mask, bias))
        atol = 1e-4 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(sums[b].double(), torch.from_numpy(expected), atol=atol, rtol=0)


@pytest.mark.filterwarnings("ignore:flex_attention called")
def test_flex_attention_counts_in_bits():
    query, key, value = tensors("flex")
    mask = create_block_mask(lambda b, h, q, k: k <= q + 5, None, None, N, M, device="cpu")
    uncompiled = torch.compiler.set_stance("force_eager")  # as `heedful.record` does
    with torch.no_grad(), uncompiled, LogSumExpMode() as capture:
        flex_attention(query, key, value, block_mask=mask)
    allowed = torch.arange(M) <= torch.arange(N)[:, None] + 5
    expected = log_sum_exps(AttentionInputs(query[1], key[1], 8**-0.5, masks.Dense(allowed)))
    result = capture.result((2, 4, N))[1].double()
    torch.testing.assert_close(result, torch.from_numpy(expected), atol=2e-6, rtol=0)


def test_without_a_fused_kernel_it_is_none():
    query, key, value = tensors("none")
    with LogSumExpMode() as capture, sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(query, key, value)
    assert capture.result((2, 4, N)) is None
    with LogSumExpMode() as capture:
        F.scaled_dot_product_attention(query, key, value)
    assert capture.result((2, 4, N + 1)) is None  # another number of rows
    assert capture.result((2, 3, N)) is None


@pytest.mark.parametrize("name", [name for name in log_sum_exp.UNITS if name.startswith("_scaled")])
def test_gpu_kernels_return_it_in_this_shape(name):
    """With meta tensors, a kernel computes the shapes of its results without a GPU."""
    if name.endswith("cpu"):
        return
    query, key = (torch.empty(2, 4, n, 64, device="meta") for n in (77, 99))
    schema = getattr(ATEN, name).default._schema
    arguments = (query, key, key, None, False) if len(schema.arguments) > 7 else (query, key, key)
    names = [argument.name for argument in schema.arguments]
    if "compute_log_sumexp" in names:
        arguments = request_lse(name, arguments)
        assert arguments[names.index("compute_log_sumexp")] is True
    result = find_log_sum_exp(name, getattr(ATEN, name)(*arguments))
    assert result.shape == (2, 4, 77)


def test_a_kernel_with_tokens_before_heads():
    output, sums = torch.randn(2, 7, 3, 8), torch.randn(2, 3, 7)
    assert torch.equal(find_log_sum_exp("_flash_attn_forward", (output, sums, None, None)), sums)
    assert find_log_sum_exp("_flash_attn_forward", output) is None
    assert find_log_sum_exp("mm", (output, sums)) is None


@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Causal() & masks.Window(70)])
def test_results_of_blocks_of_queries_are_joined(mask):
    long = 1100  # above FULL_MASK, so that the mask is built in blocks of queries
    query, key = torch.randn(2, 3, long, 8), torch.randn(2, 3, long, 8)
    results = []
    with listening(lambda arguments, context, mode: results.append(mode.result((2, 3, long)))):
        attend(check(query, key, key, mask=mask, bias=None, causal=False, scale=None, dropout=0.0))
    [sums] = results
    expected = log_sum_exps(AttentionInputs(query[1], key[1], 8**-0.5, mask))
    torch.testing.assert_close(sums[1].double(), torch.from_numpy(expected), atol=4e-6, rtol=0)


class DoublingMode(TorchDispatchMode):
    """A dispatch mode with its own implementation of attention."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function is ATEN.scaled_dot_product_attention.default:
            return arguments[0] * 2
        return function(*arguments, **keywords or {})


def test_another_mode_can_replace_the_kernel():
    query, key, value = tensors("own")
    with torch.inference_mode(), DoublingMode():
        expected = F.scaled_dot_product_attention(query, key, value)
        with LogSumExpMode() as capture:
            result = F.scaled_dot_product_attention(query, key, value)
    assert torch.equal(result, expected)
    assert torch.equal(result, query * 2)
    assert capture.result((2, 4, N)) is None


def test_results_of_several_kernels_are_joined_only_if_they_fit():
    capture = LogSumExpMode()
    with capture:
        for rows in (3, 4):
            F.scaled_dot_product_attention(*[torch.randn(1, 2, rows, 4)] * 3)
    result = capture.result((1, 2, 7))
    assert result.shape == (1, 2, 7)
    assert bool(result.isfinite().all())
    with capture:
        F.scaled_dot_product_attention(*[torch.randn(1, 5, 2, 4)] * 3)
    assert capture.result((1, 2, 9)) is None
