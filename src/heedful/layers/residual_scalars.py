"""Learned numbers that weigh what comes from the block before against the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class ResidualScalars(nn.Module):
    """What a block reads: two learned numbers times the states before it and the embeddings.

        y = r · x + e · x₀

    So a late block finds the tokens themselves again, which the sums of the blocks before have
    buried. Each block has its own r, which begins at 1, and e, which begins at 0: a model begins as
    if it had none. Source: the lambdas of modded-nanogpt, and of nanochat.

    Args:
        blocks: how many there are.

    >>> scalars = ResidualScalars(blocks=2)
    >>> _ = nn.init.constant_(scalars.first, 0.5)
    >>> scalars(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[10.0, 20.0]]]), block=1)
    tensor([[[ 6., 12.]]], grad_fn=<AddcmulBackward0>)
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stream = nn.Parameter(torch.ones(blocks))
        self.first = nn.Parameter(torch.zeros(blocks))

    def forward(self, x: Tensor, embeddings: Tensor, block: int) -> Tensor:
        """States and embeddings, both (B, N, width), to what a block reads, the same shape."""
        return torch.addcmul(x * self.stream[block], embeddings, self.first[block])
