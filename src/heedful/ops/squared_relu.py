"""The squared ReLU, with its gradient written out: autograd's takes twice the passes."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch as functorch
from torch.autograd import forward_ad


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²; source: So et al. 2021, *Primer* (arXiv:2109.08668).

    >>> squared_relu(torch.tensor([-1.0, 3.0]))
    tensor([0., 9.])
    """
    return _SquaredRelu.apply(x) if _is_only_autograd(x) else F.relu(x).square()


def _is_only_autograd(x: Tensor) -> bool:
    """Whether a gradient is wanted, and no transform of torch.func and no compiler looks on."""
    return (
        x.requires_grad
        and torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
    )


class _SquaredRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.relu(x).square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """2 · max(x, 0) · gradient."""
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this gradient is wanted
            return 2 * F.relu(x) * gradient
        return F.relu(x).mul_(gradient).mul_(2)
