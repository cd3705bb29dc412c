"""`heedful.attention` inside the transforms of torch.func, beside loops and beside autograd."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

import heedful
from heedful.ops.masks import Causal, Dense, KeyRanges, Padding, Window

B, H, G, N, M, D = 5, 4, 2, 3, 7, 6
WAYS = {
    "all": {},
    "causal": {"causal": True},
    "window": {"mask": Causal() & Window(2)},
    "padding": {"mask": Padding(torch.tensor([[True] * 5 + [False] * 2]))},
    "runs": {"mask": KeyRanges(torch.tensor([0, 1, 7]), torch.tensor([3, 7, 7]))},
    "bias": {"bias": torch.arange(21.0).view(3, 7).sin(), "scale": 0.3},
}  # fmt: skip
SLOW = "ignore:There is a performance drop:UserWarning"  # torch's own, of its backward kernel
OLD = "ignore:`torch.jit.script` is deprecated:DeprecationWarning"  # which its jvp still uses


@pytest.fixture
def tensors():
    torch.manual_seed(1)
    shapes = (B, 1, H, N, D), (B, 1, G, M, D), (B, 1, G, M, D + 1)
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def ways(name):
    return {key: one.double() if key == "bias" else one for key, one in WAYS[name].items()}


@pytest.mark.parametrize("name", WAYS)
def test_vmap_is_a_loop(name, tensors):
    def attend(*three):
        return heedful.attention(*three, **ways(name), return_weights=True)

    for found, *expected in zip(vmap(attend)(*tensors), *map(attend, *tensors), strict=True):
        torch.testing.assert_close(found, torch.stack(expected))


def test_vmap_over_masks_and_over_an_axis_inside(tensors):
    query, key, value = tensors
    keep = torch.rand(B, N, M) < 0.7
    keep[1, 2] = False
    found = vmap(lambda *four: heedful.attention(*four[:3], mask=Dense(four[3])))(*tensors, keep)
    for one, *four in zip(found, *tensors, keep, strict=True):
        torch.testing.assert_close(one, heedful.attention(*four[:3], mask=four[3]))
    swapped = vmap(heedful.attention, in_dims=(1, 0, 0), out_dims=1)
    torch.testing.assert_close(
        swapped(query.transpose(0, 1), key, value).transpose(0, 1),
        heedful.attention(query[:, 0], key[:, 0], value[:, 0])[:, None],
    )


def test_what_is_nan_stays_so_where_it_is(tensors):
    tensors[0][2, 0, 1, 2, 3] = torch.nan
    found = vmap(heedful.attention)(*tensors)
    assert found.isnan().any(dim=-1).nonzero().tolist() == [[2, 0, 1, 2]]


@pytest.mark.filterwarnings(SLOW, OLD)
@pytest.mark.parametrize("name", WAYS)
def test_derivatives_are_those_of_autograd(name, tensors):
    query, key, value = (tensor[0] for tensor in tensors)

    def total(query):
        return heedful.attention(query, key, value, **ways(name)).sin()

    def number(query):
        return total(query).sum()

    expected = torch.autograd.functional.jacobian(total, query)
    torch.testing.assert_close(jacrev(total)(query), expected)
    torch.testing.assert_close(jacfwd(total)(query), expected)
    torch.testing.assert_close(
        grad(number)(query), torch.autograd.functional.jacobian(number, query)
    )
    each = vmap(grad(number))(tensors[0])
    for one, own in zip(each, tensors[0], strict=True):
        torch.testing.assert_close(one, torch.autograd.functional.jacobian(number, own))
    seconds = hessian(number)(query).reshape(query.numel(), query.numel())
    torch.testing.assert_close(seconds, seconds.T)
    step = 1e-5 * torch.randn_like(query)
    ahead = grad(number)(query + step) - grad(number)(query - step)
    _, along = jvp(total, (query,), (step,))
    torch.testing.assert_close(along, torch.tensordot(expected, step, step.ndim))
    torch.testing.assert_close(2 * seconds @ step.flatten(), ahead.flatten(), atol=1e-11, rtol=1e-5)


class Attends(torch.nn.Module):
    def forward(self, x):
        return heedful.attention(x, x, x, causal=True)


def test_while_recording_it_goes_on_and_says_what_is_missing(tensors):
    x = tensors[0]
    with (
        heedful.record(model := Attends()) as recording,
        pytest.warns(UserWarning, match=r"inside torch\.func"),
    ):
        found = vmap(model)(x)
    torch.testing.assert_close(found, model(x.flatten(0, 1)).view(x.shape))
    assert len(recording) == 0
