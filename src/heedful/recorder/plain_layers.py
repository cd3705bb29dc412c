"""Tells which layers of torch's own hold no attention, so that nothing in them is to be followed.

A linear layer, and a `Sequential` that begins with one and goes on with others, norms and what
works number by number, as most feed-forward parts are: what becomes of the axes of their input is
known before they run.
"""

from __future__ import annotations

from typing import Any

from torch import nn

# What may stand after a linear layer, which makes a new tensor and leaves its input as it is
AFTER = (
    nn.Linear, nn.LayerNorm, nn.Dropout, nn.ELU, nn.GELU, nn.Hardswish, nn.Identity, nn.LeakyReLU,
    nn.Mish, nn.ReLU, nn.ReLU6, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Tanh,
)  # fmt: skip


def parts_of(layer: nn.Module) -> list[nn.Module]:
    """The layers that run one after the other as a plain one is called: itself, or its parts.

    None of them where it is no plain layer, nor a `Sequential` of such layers.

    >>> feed = nn.Sequential(nn.Linear(2, 4), nn.GELU(), nn.Linear(4, 2))
    >>> [len(parts_of(one)) for one in (feed, feed[0], feed[1], nn.Softmax(-1))]
    [3, 1, 0, 0]
    """
    parts: list[nn.Module] = [layer]
    if type(layer) is nn.Sequential:
        parts = [one for one in layer._modules.values() if one is not None]
    kinds = [type(one) for one in parts]
    is_plain = kinds[:1] == [nn.Linear] and all(map(_is_torchs, kinds))
    return parts if is_plain else []


def _is_torchs(kind: Any) -> bool:
    """Whether a class is a plain layer's, and nobody has given it another `forward`."""
    return kind in AFTER and kind.forward.__module__ == kind.__module__
