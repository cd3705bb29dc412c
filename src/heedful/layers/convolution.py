"""A short causal convolution over a token and the few tokens before it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ShortConvolution(nn.Module):
    """Add to each token the k tokens before it, with a weight for each distance and dimension.

        y[n] = x[n] + w[1] · x[n − 1] + … + w[k] · x[n − k]

    So the input of the first block already contains which letters or words are adjacent; otherwise
    attention has to learn this. The weights start at 0, so the layer starts as the identity.

    Sources: the shift layer of Fu et al. 2023, *Hungry hungry hippos* (arXiv:2212.14052); the
    "smear" of modded-nanogpt, with k = 1.

    Args:
        width: of the tokens' vectors.
        reach: k, the number of previous tokens.

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
        """Map (B, N, width) to the same shape.

        A token for which `keep` (B, N) is False, such as padding, is not added to later tokens.
        """
        return x + self.sum_of_previous(x, keep)

    def sum_of_previous(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Return the weighted sum of previous tokens that is added to each token, (B, N, width)."""
        visible = x if keep is None else x * keep[..., None]
        padded = F.pad(visible, (0, 0, self.reach, 0))
        starts, count = range(self.reach - 1, -1, -1), x.shape[1]
        parts = [
            padded[:, start : start + count] * weight
            for start, weight in zip(starts, self.weights, strict=True)
        ]
        return sum(parts[1:], parts[0])
