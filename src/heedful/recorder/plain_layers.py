"""Tells which layers of torch's own hold no attention, so that nothing in them is to be followed.

A linear layer is one, a `LayerNorm`, and a `Sequential` that begins with a linear layer and goes on
with others and with what works number by number, as most feed-forward parts do: what becomes of the
axes of its input is known before it runs.
"""

from __future__ import annotations

from typing import Any

from torch import nn

KINDS = nn.Linear, nn.LayerNorm, nn.Sequential
# A layer that works in place may stand among these: what it changes is the linear layer's output
AFTER_LINEAR = (
    nn.Linear, nn.Dropout, nn.ELU, nn.GELU, nn.Hardswish, nn.Identity, nn.LeakyReLU, nn.Mish,
    nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh,
)  # fmt: skip


def parts_of(layer: nn.Module) -> list[nn.Module]:
    """The layers that run one after the other as a plain one is called: itself, or its parts.

    None of them where it is no plain layer, or somebody has given it a `forward` of their own.

    >>> feed = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 2))
    >>> [len(parts_of(one)) for one in (feed, feed[0], feed[1], nn.LayerNorm(2), nn.Softmax(-1))]
    [3, 1, 0, 1, 0]
    """
    if type(layer) not in KINDS or not _has_torchs_forward(layer):
        return []
    if type(layer) is not nn.Sequential:
        return [layer]
    parts = [one for one in layer._modules.values() if one is not None]
    if not parts or type(parts[0]) is not nn.Linear:
        return []
    are_plain = all(type(one) in AFTER_LINEAR and _has_torchs_forward(one) for one in parts)
    return parts if are_plain else []


def _has_torchs_forward(layer: Any) -> bool:
    kind = type(layer)
    return "forward" not in layer.__dict__ and kind.forward.__module__ == kind.__module__
