"""Numbers the blocks of a model, as the names of its modules do.

A name may have several numbers: in "0.model.encoder.layer.3.attention" the first one says which
part of a pipeline the encoder is, and the second one is its block. A `ModuleList` has blocks; in a
`Sequential`, or in anything else with numbers for names, these are parts like each other, as an
embedding, an encoder and a head are not.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

from torch import nn

from heedful.recording.module_names import plain_name

HEADS = re.compile(r"(^|[._])heads?$")


class Blocks:
    """The lists of a model's parts, by the names of the modules that have them.

    >>> layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])
    >>> model = nn.Sequential(nn.Identity(), nn.ModuleDict({"layers": layers}))
    >>> blocks = Blocks({part: name for name, part in model.named_modules()})
    >>> blocks.layer_of("1.layers.0.0"), blocks.layer_of("pool")
    (0, None)
    """

    def __init__(self, modules: Mapping[nn.Module, str]) -> None:
        self._modules = modules

    def layer_of(self, name: str) -> int | None:
        """The number of the block that a module is in; None where its name has no number.

        It is the first one that counts blocks. Where none does, it is the first number.
        """
        numbers = list(_numbers(name))
        if not numbers:
            return None
        if len(numbers) == 1:
            return numbers[0][0]
        return next((one for one, *where in numbers if self._is_block(*where)), numbers[0][0])

    @functools.cached_property
    def _named(self) -> dict[str, nn.Module]:
        # under torch.compile the module inside comes later, and counts
        return {plain_name(name): part for part, name in self._modules.items()}

    @functools.cached_property
    def _parts(self) -> dict[str, list[nn.Module]]:
        found = defaultdict(list)
        for name, part in self._named.items():
            home, _, number = name.rpartition(".")
            if number.isdecimal():
                found[home].append(part)
        return found

    def _is_block(self, home: str, own: str) -> bool:
        """Whether a part of a list is one of its blocks."""
        if HEADS.search(home):  # a guess, by the name: heads of one's own are a list too
            return False
        part = self._named.get(own)
        is_list = isinstance(self._named.get(home), nn.ModuleList)
        return is_list or sum(type(one) is type(part) for one in self._parts[home]) > 1


def _numbers(name: str) -> Iterator[tuple[int, str, str]]:
    """The numbers in a name, each with the name of the module that has it, and of what it is of."""
    parts = name.split(".")
    for i, one in enumerate(parts):
        if one.isdecimal():
            yield int(one), ".".join(parts[:i]), ".".join(parts[: i + 1])
