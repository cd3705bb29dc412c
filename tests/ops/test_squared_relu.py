"""The gradient that is written out beside autograd's own, of first and second order."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad, gradcheck, gradgradcheck
from torch.func import grad, jvp, vmap

from heedful.ops.squared_relu import squared_relu


def plain(x):
    return F.relu(x).square()


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(3, 5, 7, dtype=torch.float64)


def test_it_is_torchs_own_bit_for_bit_and_so_is_its_gradient(x):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        one, other = (x.to(dtype, copy=True).requires_grad_() for _ in range(2))
        squared_relu(one).sum().backward()
        plain(other).sum().backward()
        assert torch.equal(squared_relu(one), plain(other))
        assert torch.equal(one.grad, other.grad)


def test_gradients_of_first_and_second_order(x):
    x.requires_grad_()
    assert gradcheck(squared_relu, x)
    assert gradgradcheck(squared_relu, x)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_transforms_see_torchs_own(x):
    def total(x):
        return squared_relu(x).sum()

    torch.testing.assert_close(vmap(grad(total))(x), 2 * F.relu(x))
    for found, expected in zip(jvp(squared_relu, (x,), (x,)), jvp(plain, (x,), (x,)), strict=True):
        assert torch.equal(found, expected)
    with forward_ad.dual_level():
        dual = squared_relu(forward_ad.make_dual(x.requires_grad_(), torch.ones_like(x)))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, 2 * F.relu(x))
