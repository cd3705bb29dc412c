"""Numbers the blocks of a model, as the names of its modules do.

A name may have several numbers: in "0.model.encoder.layer.3.attention" the first one says which
part of a pipeline the encoder is, and the second one is its block. A list of blocks has parts that
are alike; a list of other parts, such as an embedding, an encoder and a head, counts no blocks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn

from heedful.recorder.module_names import plain_name


class Blocks:
    """The lists of a model's parts, by the names of the modules that have them.

    >>> layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])
    >>> model = nn.Sequential(nn.Identity(), nn.ModuleDict({"layers": layers}))
    >>> blocks = Blocks({part: name for name, part in model.named_modules()})
    >>> blocks.layer_of("1.layers.0.0"), blocks.layer_of("pool")
    (0, None)
    """

    def __init__(self, modules: Mapping[nn.Module, str]) -> None:
        # under torch.compile the module inside comes later, and counts
        parts = {plain_name(name): part for part, name in modules.items()}
        self._parts: dict[str, list[nn.Module]] = defaultdict(list)
        for name, part in parts.items():
            home, _, number = name.rpartition(".")
            if number.isdecimal():
                self._parts[home].append(part)

    def layer_of(self, name: str) -> int | None:
        """The number of the block that a module is in; None where its name has no number.

        It is the first one in a list of blocks. Where no list is one, it is the first number.
        """
        numbers = list(_numbers(name))
        if not numbers:
            return None
        return next((one for one, home in numbers if self._has_blocks(home)), numbers[0][0])

    def _has_blocks(self, home: str) -> bool:
        """Whether some parts of a list are alike, or it has one alone; a single layer is none."""
        parts = self._parts.get(home, [])
        kinds = [type(part) for part in parts if part._modules]
        return len(parts) == 1 or len(set(kinds)) < len(kinds)


def _numbers(name: str) -> Iterator[tuple[int, str]]:
    """The numbers in a name, each with the name of the module that has it."""
    parts = name.split(".")
    return ((int(one), ".".join(parts[:i])) for i, one in enumerate(parts) if one.isdecimal())
