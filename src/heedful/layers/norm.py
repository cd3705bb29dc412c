"""The norms: each token's vector to mean 0 and deviation 1, or to size 1."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm, that keeps its fused kernel where autocast gives it lower precision.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) to the same."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,  # Ba et al. 2016, arXiv:1607.06450
    "rms": RMSNorm,
}
