"""A model of one's own that attends between tokens, and the ids and names that it is tried on."""

import torch
from looked import WIDTH, D, H
from torch import nn

N = 6
IDS = torch.arange(11, 11 + 2 * N).view(2, N)
OTHERS = IDS + 40


def named(ids):
    return [f"t{int(one)}" for one in ids]


class Attends(nn.Module):
    """Attention by hand between vectors made of ids."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(80, WIDTH)
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def attend(self, x, y):
        query, key = (
            one(given).unflatten(-1, (H, D)).transpose(1, 2)
            for one, given in ((self.asks, x), (self.says, y))
        )
        return (query @ key.mT).softmax(-1) @ key
