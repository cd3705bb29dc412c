"""`call.layer`: the number of the block, also after other numbers in the name."""

import pytest
from torch import nn

from heedful.recording.module_names import Blocks


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = nn.MultiheadAttention(4, 2)


class Other(Block):
    pass


class Encoder(nn.Module):
    def __init__(self, *kinds):
        super().__init__()
        self.layers = nn.ModuleList([kind() for kind in kinds])


def layers_of(model):
    names = {part: name for name, part in model.named_modules()}
    blocks = Blocks(names)
    return [
        blocks.layer_of(n) for part, n in names.items() if isinstance(part, nn.MultiheadAttention)
    ]


THREE = (Block, Block, Block)


@pytest.mark.parametrize(
    ("model", "layers"),
    [
        (Encoder(*THREE), [0, 1, 2]),
        (nn.Sequential(nn.Identity(), Encoder(*THREE)), [0, 1, 2]),
        (nn.Sequential(Encoder(*THREE), nn.Linear(2, 2), nn.Linear(2, 2)), [0, 1, 2]),
        (nn.Sequential(Block(), Block(), nn.LayerNorm(2)), [0, 1]),
        (nn.ModuleList([Encoder(*THREE), nn.Sequential(nn.Linear(2, 2))]), [0, 0, 0]),
        (Encoder(Block, Other), [0, 1]),
        (nn.Sequential(nn.Identity(), Block()), [1]),
        (nn.Sequential(Encoder(Block, Block)), [0, 1]),
        (nn.ModuleList([nn.ModuleList([Block(), nn.Linear(2, 2)]) for _ in range(2)]), [0, 1]),
        (Block(), [None]),
    ],
    ids=str,
)
def test_the_first_list_of_similar_modules_numbers_the_blocks(model, layers):
    assert layers_of(model) == layers
