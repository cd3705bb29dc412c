"""A check of the tokens that are passed to a layer."""

from __future__ import annotations

from torch import Tensor

from heedful.errors import ArgumentError


def check_tokens(x: Tensor, width: int, *, axes: tuple[int, ...] = (3,), name: str = "x") -> None:
    """Check that x has the axes (B, N, width), or (N, width) if `axes` includes 2.

    Raises:
        ArgumentError: not a tensor, another number of axes, or another width.
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
            remedy="unsqueeze(0) makes a batch of one sequence" if x.ndim == 2 else None,
        )
    if x.shape[-1] != width:
        raise ArgumentError(
            f"{name} of width {x.shape[-1]}",
            expected=f"the layer's width of {width}",
            cause="axes in another order, or a layer of another width",
        )
