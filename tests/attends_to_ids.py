"""A custom model with attention between tokens, and ids and token names to test it with."""

import torch
from shown_maps import WIDTH, D, H
from torch import nn

N = 6
IDS = torch.arange(11, 11 + 2 * N).view(2, N)
OTHERS = IDS + 40


def named(ids):
    return [f"t{int(id_)}" for id_ in ids]


class Attends(nn.Module):
    """Attention between the embeddings of ids, written out as products and a softmax."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(80, WIDTH)
        self.asks, self.says = nn.Linear(WIDTH, H * D), nn.Linear(WIDTH, H * D)

    def attend(self, x, y):
        query, key = (
            projection(vectors).unflatten(-1, (H, D)).transpose(1, 2)
            for projection, vectors in ((self.asks, x), (self.says, y))
        )
        return (query @ key.mT).softmax(-1) @ key
