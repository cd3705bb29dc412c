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
AT_ONCE = 2  # softmaxes whose products are still to come, as where two sides see each other
DOOR = "softmax and a product (weights alone)"


class ByHand:
    """Follows what a softmax gave, through casts and dropout, up to a product.

    Args:
        see: is told of what was followed.
        batch: how many sequences the model was given, to part (B · H, N, M) by.
    """

    def __init__(self, see: Callable[[Seen], None], batch: Callable[[], int | None]) -> None:
        self.see, self.batch = see, batch
        self._followed: list[list[Tensor]] = []  # weights, and what was made of them since

    def follow(self, function: Any, arguments: tuple, keywords: dict, output: Any) -> None:
        """Take in what a function of torch was given and gave."""
        if function in SOFTMAX:
            if isinstance(output, Tensor) and output.ndim > 1 and _is_last(arguments, keywords):
                self._followed = [*self._followed[1 - AT_ONCE :], [output]]
            return
        forms = self._given(arguments) if self._followed else None
        if forms is None:
            return
        if function in PRODUCT:
            self._followed = [other for other in self._followed if other is not forms]
            self.see(of_weights(self._four(forms[0]), DOOR))
        elif isinstance(output, Tensor) and output.numel() == forms[0].numel():
            forms.append(output)

    def _given(self, arguments: tuple) -> list[Tensor] | None:
        """All forms of the weights that are among the arguments."""
        lists = (tuple, list)
        given = [part for one in arguments for part in (one if isinstance(one, lists) else (one,))]
        return next(
            (forms for forms in self._followed for one in given for form in forms if one is form),
            None,
        )

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
