"""Tables of values: what each token gives to those that attend to it, whatever stands around it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ValueEmbeddings(nn.Module):
    """For each block a table, whose row of a token is added to its values in attention.

    The rows begin at 0: a model begins as if it had none. All tables stand side by side in one, so
    that one look-up serves all blocks. Source: Zhou et al. 2024, *Value residual learning*
    (arXiv:2410.17897), which adds the first block's values to the others'; with tables of their own
    in modded-nanogpt and nanochat.

    Args:
        vocabulary: rows of each table.
        width: of all values of a token in a block, key heads × their width.
        blocks: how many there are.

    >>> values = ValueEmbeddings(vocabulary=7, width=6, blocks=3)
    >>> [of_block.shape for of_block in values(torch.tensor([[1, 2, 3, 4]]))]
    [torch.Size([1, 4, 6]), torch.Size([1, 4, 6]), torch.Size([1, 4, 6])]
    """

    def __init__(self, vocabulary: int, width: int, blocks: int) -> None:
        super().__init__()
        self.blocks = blocks
        self.table = nn.Parameter(torch.zeros(vocabulary, blocks * width))

    def forward(self, ids: Tensor) -> tuple[Tensor, ...]:
        """Ids (B, N) to what each block adds to their values, (B, N, width)."""
        return F.embedding(ids, self.table).chunk(self.blocks, dim=-1)
