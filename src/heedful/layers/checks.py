"""What a layer is given, checked where a person would meet the error."""

from __future__ import annotations

from torch import Tensor

from heedful.errors import ArgumentError


def check_tokens(x: Tensor, width: int, *, axes: tuple[int, ...] = (3,), name: str = "x") -> None:
    """Refuse what is not a tensor of tokens (B, N, width), or (N, width) where 2 axes are allowed.

    Raises:
        ArgumentError: no tensor, another number of axes, or another width.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(
            f"{name} of type {type(x).__name__}",
            expected="a tensor or a NumPy array",
            remedy="torch.as_tensor converts arrays and lists",
        )
    if x.ndim not in axes:
        raise ArgumentError(
            f"{name} of shape {tuple(x.shape)}",
            expected=" or ".join(
                "(tokens, width)" if n == 2 else "(batch, tokens, width)" for n in axes
            ),
            remedy="unsqueeze(0) makes a batch of one" if x.ndim == 2 else None,
        )
    if x.shape[-1] != width:
        raise ArgumentError(
            f"{name} of width {x.shape[-1]}",
            expected=f"the layer's width of {width}",
            cause="axes in another order, or a layer made for other vectors",
        )


def check_heads(width: int, heads: int, kv_heads: int, head_width: int | None) -> None:
    """Refuse heads that do not divide the width, and key heads that do not divide the heads."""
    if min(width, heads, kv_heads, 1 if head_width is None else head_width) < 1:
        raise ArgumentError(
            f"width {width}, {heads} heads, {kv_heads} key heads, head width {head_width}",
            expected="at least 1 of each",
        )
    if head_width is None and width % heads:
        divisors = [n for n in range(1, width + 1) if width % n == 0]
        raise ArgumentError(
            f"{heads} heads for a width of {width}",
            expected="a number of heads that divides the width",
            remedy=f"try {min(divisors, key=lambda n: (abs(n - heads), n))} heads",
        )
    if heads % kv_heads:
        raise ArgumentError(
            f"{kv_heads} key heads for {heads} heads",
            expected="a number of key heads that divides the heads",
        )
