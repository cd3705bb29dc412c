"""Normalisation layers: LayerNorm, and RMSNorm in the dtype of its input."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.RMSNorm):
    """torch's RMSNorm with the weight in the input's dtype, so autocast can use the fused kernel.

    Source: Zhang and Sennrich 2019 (arXiv:1910.07467).
    """

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


NORMS: dict[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,  # Ba et al. 2016, arXiv:1607.06450
    "rms": RMSNorm,
}
