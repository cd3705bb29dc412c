"""`heedful.attention` inside the transforms of torch.func, against loops and autograd."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import heedful
from heedful.ops.masks import Causal, Dense, KeyRanges, Padding, Window

B, H, G, N, M, D = 5, 4, 2, 3, 7, 6
CASES = {
    "all": {},
    "causal": {"causal": True},
    "window": {"mask": Causal() & Window(2)},
    "padding": {"mask": Padding(torch.tensor([[True] * 5 + [False] * 2]))},
    "runs": {"mask": KeyRanges(torch.tensor([0, 1, 7]), torch.tensor([3, 7, 7]))},
    "bias": {"bias": torch.arange(21.0).view(3, 7).sin(), "scale": 0.3},
}  # fmt: skip
SLOW = "ignore:There is a performance drop:UserWarning"  # from torch's backward kernel
OLD = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"  # torch's jvp still uses it


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    shapes = (B, 1, H, N, D), (B, 1, G, M, D), (B, 1, G, M, D + 1)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def options(name):
    return {key: value.double() if key == "bias" else value for key, value in CASES[name].items()}


@pytest.mark.parametrize("name", CASES)
def test_vmap_equals_a_loop(name, tensors):
    def attend(*tensors):
        return heedful.attention(*tensors, **options(name), return_weights=True)

    for output, *expected in zip(vmap(attend)(*tensors), *map(attend, *tensors), strict=True):
        torch.testing.assert_close(output, torch.stack(expected))


def test_vmap_over_masks_and_over_an_axis_inside(tensors):
    query, key, value = tensors
    keep = torch.rand(B, N, M) < 0.7
    keep[1, 2] = False
    outputs = vmap(lambda q, k, v, m: heedful.attention(q, k, v, mask=Dense(m)))(*tensors, keep)
    for output, q, k, v, m in zip(outputs, *tensors, keep, strict=True):
        torch.testing.assert_close(output, heedful.attention(q, k, v, mask=m))
    swapped = vmap(heedful.attention, in_dims=(1, 0, 0), out_dims=1)
    torch.testing.assert_close(
        swapped(query.transpose(0, 1), key, value).transpose(0, 1),
        heedful.attention(query[:, 0], key[:, 0], value[:, 0])[:, None],
    )


def test_nan_stays_in_its_row(tensors):
    tensors[0][2, 0, 1, 2, 3] = torch.nan
    output = vmap(heedful.attention)(*tensors)
    assert output.isnan().any(dim=-1).nonzero().tolist() == [[2, 0, 1, 2]]


@pytest.mark.filterwarnings(SLOW, OLD)
@pytest.mark.parametrize("name", CASES)
def test_derivatives_equal_autograd(name, tensors):
    query, key, value = (tensor[0] for tensor in tensors)

    def total(query):
        return heedful.attention(query, key, value, **options(name)).sin()

    def number(query):
        return total(query).sum()

    expected = torch.autograd.functional.jacobian(total, query)
    torch.testing.assert_close(jacrev(total)(query), expected)
    torch.testing.assert_close(jacfwd(total)(query), expected)
    gradient = torch.autograd.functional.jacobian(number, query)
    torch.testing.assert_close(grad(number)(query), gradient)
    gradients = vmap(grad(number))(tensors[0])
    for gradient, query_b in zip(gradients, tensors[0], strict=True):
        torch.testing.assert_close(gradient, torch.autograd.functional.jacobian(number, query_b))
    seconds = hessian(number)(query).reshape(query.numel(), query.numel())
    torch.testing.assert_close(seconds, seconds.T)
    step = 1e-5 * torch.randn_like(query)
    change = grad(number)(query + step) - grad(number)(query - step)
    _, derivative = jvp(total, (query,), (step,))
    torch.testing.assert_close(derivative, torch.tensordot(expected, step, step.ndim))
    expected = 2 * seconds @ step.flatten()
    torch.testing.assert_close(expected, change.flatten(), atol=1e-11, rtol=1e-5)


class Attention(torch.nn.Module):
    def forward(self, x):
        return heedful.attention(x, x, x, causal=True)


def test_recording_inside_vmap_warns_and_records_nothing(tensors):
    x = tensors[0]
    with (
        heedful.record(model := Attention()) as recording,
        pytest.warns(UserWarning, match=r"inside torch\.func"),
    ):
        output = vmap(model)(x)
    torch.testing.assert_close(output, model(x.flatten(0, 1)).view(x.shape))
    assert len(recording) == 0
