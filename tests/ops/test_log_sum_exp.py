"""What torch's kernels compute beside their output, against NumPy; and that nothing changes."""

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
from heedful.ops.log_sum_exp import Catching, asked, beside

ATEN = torch.ops.aten
N, M = 40, 53
TABLE = torch.rand(2, 1, N, M) < 0.6
WAYS = {
    "no mask": {},
    "causal": {"is_causal": True},
    "boolean": {"attn_mask": TABLE},
    "added": {"attn_mask": torch.randn(N, M)},
    "scaled": {"scale": 0.3},
    "grouped": {"enable_gqa": True},
}


def tensors(way, dtype=torch.float32):
    G = 2 if way == "grouped" else 4
    return [torch.randn(2, H, n, 8, dtype=dtype) for H, n in ((4, N), (G, M), (G, M))]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("way", WAYS)
def test_the_kernel_tells_it_and_nothing_changes(way, dtype, mode):
    query, key, value = tensors(way, dtype)
    given = {name: one.to(dtype) if way == "added" else one for name, one in WAYS[way].items()}
    outputs, gradients = [], []
    for watched in (False, True):
        with mode(), ExitStack() as stack:
            learns = mode is torch.enable_grad
            inputs = [one.clone().requires_grad_(learns) for one in (query, key, value)]
            catching = Catching()
            if watched:
                stack.enter_context(catching)
            output = F.scaled_dot_product_attention(*inputs, **given)
        outputs.append(output)
        if learns:
            output.float().sin().sum().backward()
            gradients.append([one.grad for one in inputs])
    assert torch.equal(*outputs)
    for one, other in zip(*gradients, strict=True) if gradients else ():
        assert torch.equal(one, other)
    sums = catching.found((2, 4, N))
    for b in range(2):
        table = given.get("attn_mask")
        of = AttentionInputs(
            query[b],
            key[b],
            given.get("scale", 8**-0.5),
            masks.Causal(0)
            if way == "causal"
            else masks.Dense(table[b])
            if way == "boolean"
            else None,
            table if way == "added" else None,
        )
        close = 1e-4 if dtype == torch.bfloat16 else 2e-6
        torch.testing.assert_close(
            sums[b].double(), torch.from_numpy(log_sum_exps(of)), atol=close, rtol=0
        )


@pytest.mark.filterwarnings("ignore:flex_attention called")
def test_flex_attention_counts_in_bits():
    query, key, value = tensors("flex")
    mask = create_block_mask(lambda b, h, q, k: k <= q + 5, None, None, N, M, device="cpu")
    uncompiled = torch.compiler.set_stance("force_eager")  # as it is while a model is recorded
    with torch.no_grad(), uncompiled, Catching() as catching:
        flex_attention(query, key, value, block_mask=mask)
    allowed = torch.arange(M) <= torch.arange(N)[:, None] + 5
    expected = log_sum_exps(AttentionInputs(query[1], key[1], 8**-0.5, masks.Dense(allowed)))
    found = catching.found((2, 4, N))[1].double()
    torch.testing.assert_close(found, torch.from_numpy(expected), atol=2e-6, rtol=0)


def test_where_no_kernel_tells_it_there_is_none():
    query, key, value = tensors("none")
    with Catching() as catching, sdpa_kernel(SDPBackend.MATH):
        F.scaled_dot_product_attention(query, key, value)
    assert catching.found((2, 4, N)) is None
    with Catching() as catching:
        F.scaled_dot_product_attention(query, key, value)
    assert catching.found((2, 4, N + 1)) is None  # of other rows
    assert catching.found((2, 3, N)) is None


@pytest.mark.parametrize("name", [one for one in log_sum_exp.UNITS if one.startswith("_scaled")])
def test_kernels_of_a_gpu_are_asked_for_it_and_give_it_in_this_shape(name):
    """On meta tensors: the kernels' own rules of shapes, with no GPU."""
    if name.endswith("cpu"):
        return
    query, key = (torch.empty(2, 4, n, 64, device="meta") for n in (77, 99))
    schema = getattr(ATEN, name).default._schema
    given = (query, key, key, None, False) if len(schema.arguments) > 7 else (query, key, key)
    places = [one.name for one in schema.arguments]
    if "compute_log_sumexp" in places:
        given = asked(name, given)
        assert given[places.index("compute_log_sumexp")] is True
    found = beside(name, getattr(ATEN, name)(*given))
    assert found.shape == (2, 4, 77)


def test_a_kernel_that_puts_tokens_first_is_known():
    output, sums = torch.randn(2, 7, 3, 8), torch.randn(2, 3, 7)
    assert torch.equal(beside("_flash_attn_forward", (output, sums, None, None)), sums)
    assert beside("_flash_attn_forward", output) is None
    assert beside("mm", (output, sums)) is None


@pytest.mark.parametrize("mask", [None, masks.Causal(), masks.Causal() & masks.Window(70)])
def test_our_own_attention_tells_it_where_it_calls_the_kernel_block_by_block(mask):
    long = 1100  # a mask of so many queries and keys is made in blocks
    query, key = torch.randn(2, 3, long, 8), torch.randn(2, 3, long, 8)
    told = []
    with listening(lambda arguments, context, caught: told.append(caught.found((2, 3, long)))):
        attend(check(query, key, key, mask=mask, bias=None, causal=False, scale=None, dropout=0.0))
    [sums] = told
    expected = log_sum_exps(AttentionInputs(query[1], key[1], 8**-0.5, mask))
    torch.testing.assert_close(sums[1].double(), torch.from_numpy(expected), atol=4e-6, rtol=0)


class OfItsOwn(TorchDispatchMode):
    """Has a way of its own for attention as a whole."""

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function is ATEN.scaled_dot_product_attention.default:
            return arguments[0] * 2
        return function(*arguments, **keywords or {})


def test_a_mode_that_attends_in_a_way_of_its_own_is_asked():
    query, key, value = tensors("own")
    with torch.inference_mode(), OfItsOwn():
        expected = F.scaled_dot_product_attention(query, key, value)
        with Catching() as catching:
            found = F.scaled_dot_product_attention(query, key, value)
    assert torch.equal(found, expected)
    assert torch.equal(found, query * 2)
    assert catching.found((2, 4, N)) is None


def test_what_several_kernels_gave_is_joined_only_where_it_fits():
    catching = Catching()
    with catching:
        for rows in (3, 4):
            F.scaled_dot_product_attention(*[torch.randn(1, 2, rows, 4)] * 3)
    found = catching.found((1, 2, 7))
    assert found.shape == (1, 2, 7)
    assert bool(found.isfinite().all())
    with catching:
        F.scaled_dot_product_attention(*[torch.randn(1, 5, 2, 4)] * 3)
    assert catching.found((1, 2, 9)) is None
