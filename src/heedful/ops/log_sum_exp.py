"""The log-sum-exp of each row of a map, which torch's fused kernels compute beside their output.

torch throws it away; a dispatch mode around the call sees it. With it a weight is
exp(score − log-sum-exp), and its row is not needed. Outputs and gradients stay bit for bit what
they are: each operation runs as it would, and is asked for one result more where it has to be.
Source: Dao et al. 2022, *FlashAttention* (arXiv:2205.14135), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

FLASH_ATTN = "_flash_attn_forward"  # of the package flash_attn
TOKENS_FIRST = {FLASH_ATTN, "_efficient_attention_forward"}  # whose output is (B, N, H, d)
# What one unit of the second result of each kernel is in nats: flex attention counts in bits
UNITS = {
    "_scaled_dot_product_flash_attention_for_cpu": 1.0,
    "_scaled_dot_product_flash_attention": 1.0,
    "_scaled_dot_product_efficient_attention": 1.0,
    "_scaled_dot_product_cudnn_attention": 1.0,
    **dict.fromkeys(TOKENS_FIRST, 1.0),
    "flex_attention": math.log(2),
}
# Kernels that compute it only where this argument, by its place, says so
WHERE_ASKED = {
    "_scaled_dot_product_efficient_attention": 4,
    "_scaled_dot_product_cudnn_attention": 4,
}


def asked(kernel: str, arguments: tuple) -> tuple:
    """The arguments of an operation, with which it gives the log-sum-exp too if it can."""
    place = WHERE_ASKED.get(kernel)
    if place is None or len(arguments) <= place:
        return arguments
    return (*arguments[:place], True, *arguments[place + 1 :])


def beside(kernel: str, made: Any) -> Tensor | None:
    """The log-sum-exp among the results of an operation, (B, H, N), in nats.

    None for an operation that gives none.

    Args:
        kernel: the name of the operation.
        made: its results, the first of which is attention's output.
    """
    raw = _raw(kernel, made)
    return None if raw is None else _in_nats(*raw)


def _raw(kernel: str, made: Any) -> tuple[str, Tensor, int] | None:
    """The kernel, what it gave beside its output, and how many rows that has; None for others."""
    if kernel not in UNITS or not isinstance(made, Sequence) or len(made) < 2:
        return None
    output, sums = made[:2]
    if not isinstance(sums, Tensor) or sums.ndim < 3 or not sums.numel():
        return None
    return kernel, sums, output.shape[1 if kernel in TOKENS_FIRST else 2]


def _in_nats(kernel: str, sums: Tensor, rows: int) -> Tensor:
    """The log-sum-exp of the rows, (B, H, N), of which some kernels have more than there are."""
    return sums.detach().flatten(2)[..., :rows] * UNITS[kernel]


class Catching(TorchDispatchMode):
    """Keeps the log-sum-exp of the kernels that run while it is entered.

    >>> words = torch.eye(3)[None, None]
    >>> with Catching() as catching:
    ...     _ = torch.nn.functional.scaled_dot_product_attention(words, words, words, scale=1.0)
    >>> catching.found((1, 1, 3))
    tensor([[[1.5514, 1.5514, 1.5514]]])
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        # as kernels gave them: where torch traces these, no operation of ours is to be in its graph
        self._raw: list[tuple[str, Tensor, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: it is entered while models run uncompiled, so dynamo need not be kept from it."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        is_whole = function is torch.ops.aten.scaled_dot_product_attention.default
        # In inference mode it comes here before torch has chosen a kernel. Other modes, and tensors
        # of other classes, may have a way of their own
        if is_whole and not types and not _get_current_dispatch_mode_stack():
            with self:
                return function.decompose(*arguments, **keywords)
        is_simple = isinstance(function, torch._ops.OpOverload)
        name = function._opname if is_simple else str(function)
        made = function(*asked(name, arguments), **keywords)
        raw = _raw(name, made)
        self._raw += [] if raw is None else [raw]
        return made

    def found(self, shape: Sequence[int]) -> Tensor | None:
        """What the kernels of one call gave, (B, H, N), one after the other where it took several.

        None where that is not the shape of the call's rows.
        """
        *lead, rows = shape
        parts = [_in_nats(*one) for one in self._raw]
        is_folded = rows == 1 and len(parts) == 1 and parts[0].numel() == math.prod(lead)
        if (
            is_folded and parts[0].shape[:1] == shape[:1]
        ):  # heads of one key, as queries of one head
            return parts[0].reshape(*shape)
        fits = all(list(one.shape[:-1]) == lead for one in parts)
        if not fits or sum(one.shape[-1] for one in parts) != rows or not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
