"""Capture of the log-sum-exp of each row, which torch's fused kernels compute with their output.

A single weight is exp(score − log-sum-exp), which needs no other weight of its row. torch
discards the log-sum-exp, so a dispatch mode around the call captures it. Outputs and gradients stay
the same to the last bit: operations run as before, and some also return the log-sum-exp.

Source: Dao et al. 2022, *FlashAttention* (arXiv:2205.14135), section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

FLASH_ATTN = "_flash_attn_forward"  # in the package flash_attn
TOKENS_FIRST = {FLASH_ATTN, "_efficient_attention_forward"}  # their output is (B, N, H, d)
# The unit, in nats, of each kernel's second result, the log-sum-exp; flex attention returns bits
UNITS = {
    "_scaled_dot_product_flash_attention_for_cpu": 1.0,
    "_scaled_dot_product_flash_attention": 1.0,
    "_scaled_dot_product_efficient_attention": 1.0,
    "_scaled_dot_product_cudnn_attention": 1.0,
    **dict.fromkeys(TOKENS_FIRST, 1.0),
    "flex_attention": math.log(2),
}
# Kernels that compute the log-sum-exp only if the argument at this position is True
ARGUMENT = {"_scaled_dot_product_efficient_attention": 4, "_scaled_dot_product_cudnn_attention": 4}


def request_lse(kernel: str, arguments: tuple) -> tuple:
    """Return the arguments of an operation, changed to request the log-sum-exp if necessary."""
    position = ARGUMENT.get(kernel)
    if position is None or len(arguments) <= position:
        return arguments
    return (*arguments[:position], True, *arguments[position + 1 :])


def find_log_sum_exp(kernel: str, results: Any) -> Tensor | None:
    """Return the log-sum-exp from the results of an operation, (B, H, N), in nats.

    Return None if the operation does not compute the log-sum-exp.

    Args:
        kernel: the name of the operation.
        results: the results of the operation; the first is the output of attention.
    """
    raw = _raw(kernel, results)
    return None if raw is None else _in_nats(*raw)


def _raw(kernel: str, results: Any) -> tuple[str, Tensor, int] | None:
    """Return the kernel, its second result and the number of rows; None without a log-sum-exp."""
    if kernel not in UNITS or not isinstance(results, Sequence) or len(results) < 2:
        return None
    output, sums = results[:2]
    if not isinstance(sums, Tensor) or sums.ndim < 3 or not sums.numel():
        return None
    return kernel, sums, output.shape[1 if kernel in TOKENS_FIRST else 2]


def _in_nats(kernel: str, sums: Tensor, rows: int) -> Tensor:
    """Convert sums to nats, and crop them to (B, H, N): some kernels return extra rows."""
    return sums.detach().flatten(2)[..., :rows] * UNITS[kernel]


class LogSumExpMode(TorchDispatchMode):
    """Dispatch mode that stores the log-sum-exp of each kernel that runs inside it.

    >>> words = torch.eye(3)[None, None]
    >>> with LogSumExpMode() as mode:
    ...     _ = torch.nn.functional.scaled_dot_product_attention(words, words, words, scale=1.0)
    >>> mode.result((1, 1, 3))
    tensor([[[1.5514, 1.5514, 1.5514]]])
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        # Converted only on request: the graph of a trace would include the conversion
        self._raw: list[tuple[str, Tensor, int]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False: models run uncompiled, so dynamo need not skip `__torch_dispatch__`."""
        return False

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: tuple = (), keywords: dict | None = None
    ) -> Any:
        keywords = keywords or {}
        is_composite = function is torch.ops.aten.scaled_dot_product_attention.default
        # In inference mode the call arrives before torch has chosen a kernel. Decompose the call
        # only if no other mode or tensor subclass may handle it
        if is_composite and not types and not _get_current_dispatch_mode_stack():
            with self:
                return function.decompose(*arguments, **keywords)
        is_simple = isinstance(function, torch._ops.OpOverload)
        name = function._opname if is_simple else str(function)
        results = function(*request_lse(name, arguments), **keywords)
        raw = _raw(name, results)
        self._raw += [] if raw is None else [raw]
        return results

    def result(self, shape: Sequence[int]) -> Tensor | None:
        """Return the log-sum-exp of one call, (B, H, N), joined if the call ran several kernels.

        Return None if the stored results do not have this shape.
        """
        *lead, rows = shape
        parts = [_in_nats(*raw) for raw in self._raw]
        is_folded = rows == 1 and len(parts) == 1 and parts[0].numel() == math.prod(lead)
        # With one query, torch may turn the query heads of a key head into queries of one head
        if is_folded and parts[0].shape[:1] == shape[:1]:
            return parts[0].reshape(*shape)
        fits = all(list(part.shape[:-1]) == lead for part in parts)
        if not fits or sum(part.shape[-1] for part in parts) != rows or not parts:
            return None
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
