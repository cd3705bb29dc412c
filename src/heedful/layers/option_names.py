"""The names of a layer's options, and a check of the numbers of heads.

This module does not import torch, so that configurations and `--help` load fast. The options
themselves are `ACTIVATIONS`, `GATES` and `BLOCKS` in `block.py`, and `NORMS` in `norm.py`.
"""

from __future__ import annotations

from heedful.errors import ArgumentError

ACTIVATION_NAMES = ("relu", "gelu", "gelu_tanh", "relu2")
GATE_NAMES = ("swiglu", "geglu", "reglu")
NORM_NAMES = ("layer", "rms")
NORM_ORDERS = ("pre", "post")


def check_heads(width: int, heads: int, kv_heads: int, head_width: int | None) -> None:
    """Raise `ArgumentError` unless each number is at least 1 and `kv_heads` divides `heads`.

    Without a `head_width`, `heads` must also divide `width`.
    """
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
            expected="a number of key heads that divides the number of heads",
        )
