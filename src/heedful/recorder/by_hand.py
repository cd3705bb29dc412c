"""The last door: attention written by hand, where only a softmax and a product can be seen.

A softmax whose result is then multiplied with something is taken for attention; its weights are
kept as they were, N × M of them, since their causes are not known. A mixture of other things than
values looks the same, so what this door sees carries its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.capture import Seen, of_weights

SOFTMAX = {F.softmax, torch.softmax, Tensor.softmax}
PRODUCT = {
    torch.matmul,
    torch.bmm,
    torch.einsum,
    torch.Tensor.matmul,
    torch.Tensor.bmm,
    torch.Tensor.__matmul__,
}
DOOR = "softmax and a product (weights alone)"


class ByHand:
    """Follows what a softmax gave, through casts and dropout, up to a product.

    Args:
        see: is told of what was followed.
        batch: how many sequences the model was given, to part (B · H, N, M) by.
    """

    def __init__(self, see: Callable[[Seen], None], batch: Callable[[], int | None]) -> None:
        self.see, self.batch = see, batch
        self._weights: Tensor | None = None
        self._seen_as: list[Tensor] = []

    def follow(self, function: Any, arguments: tuple, keywords: dict, output: Any) -> None:
        """Take in what a function of torch was given and gave."""
        if function in SOFTMAX:
            if isinstance(output, Tensor) and output.ndim > 1 and _is_last(arguments, keywords):
                self._weights, self._seen_as = output, [output]
            return
        if self._weights is None or not self._is_given(arguments):
            return
        if function in PRODUCT:
            weights, self._weights, self._seen_as = self._weights, None, []
            self.see(of_weights(self._four(weights), DOOR))
        elif isinstance(output, Tensor) and output.numel() == self._weights.numel():
            self._seen_as.append(output)

    def _is_given(self, arguments: tuple) -> bool:
        given = [part for one in arguments for part in (one if isinstance(one, tuple) else (one,))]
        return any(one is known for one in given for known in self._seen_as)

    def _four(self, weights: Tensor) -> Tensor:
        """(B, H, N, M); three axes are heads of the batch, where they can be."""
        if weights.ndim == 4:
            return weights
        if weights.ndim == 2:
            return weights[None, None]
        flat = weights.flatten(0, -3)
        batch = self.batch() or len(flat)
        return flat.unflatten(0, (batch if len(flat) % batch == 0 else len(flat), -1))


def _is_last(arguments: tuple, keywords: dict) -> bool:
    """Whether a softmax goes over the last axis."""
    dim = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
    scores = arguments[0] if arguments else keywords.get("input")
    return isinstance(scores, Tensor) and dim in (-1, scores.ndim - 1)
