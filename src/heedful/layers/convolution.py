"""A short convolution: each token's vector with those of the few tokens before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """Adds to each token's vector x those of the tokens before it, each number with a weight.

        y[n] = x[n] + w[1] · x[n − 1] + … + w[k] · x[n − k]

    So a model knows from the first block on which letters or words stand together, which attention
    would have to learn. The weights begin at 0: it begins as if it were not there. Sources: the
    shift of Fu et al. 2023, *Hungry hungry hippos* (arXiv:2212.14052); the "smear" of
    modded-nanogpt, which has k = 1.

    Args:
        width: of the tokens.
        reach: k, how many tokens back it goes.

    >>> layer = ShortConvolution(1, reach=2)
    >>> for weight in layer.weights:
    ...     _ = nn.init.constant_(weight, 0.5)
    >>> layer(torch.tensor([[[1.0], [2.0], [4.0], [8.0]]])).flatten()
    tensor([ 1.0000,  2.5000,  5.5000, 11.0000], grad_fn=<ViewBackward0>)
    """

    def __init__(self, width: int, reach: int) -> None:
        super().__init__()
        self.reach = reach
        self.weights = nn.ParameterList(torch.zeros(width) for _ in range(reach))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """(B, N, width) to the same; what `keep` (B, N) has as False is added to no other."""
        return x + self.before(x, keep)

    def before(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """What is added to each token, (B, N, width)."""
        read = x if keep is None else x * keep[..., None]
        padded = F.pad(read, (0, 0, self.reach, 0))
        starts, count = range(self.reach - 1, -1, -1), x.shape[1]
        parts = [
            padded[:, start : start + count] * weight
            for start, weight in zip(starts, self.weights, strict=True)
        ]
        return sum(parts[1:], parts[0])
