"""Numbers the blocks of a model, as the names of its modules do.

A name may have several numbers: in "0.model.encoder.layer.3.attention" the first one says which
part of a pipeline the encoder is, and the second one is its block. A `ModuleList` has blocks; in a
`Sequential`, or in anything else with numbers for names, these are parts like each other, as an
embedding, an encoder and a head are not.
"""

from __future__ import annotations

import re
from collections import defaultdict

from torch import nn

from heedful.recording.module_names import Modules, plain_name

HEADS = re.compile(r"(^|[._])heads?$")


class Blocks:
    """The lists of a model's parts, by the names of the modules that have them.

    >>> layers = nn.ModuleList([nn.Sequential(nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2))])
    >>> model = nn.Sequential(nn.Identity(), nn.ModuleDict({"layers": layers}))
    >>> blocks = Blocks({part: name for name, part in model.named_modules()})
    >>> blocks.layer_of("1.layers.0.0"), blocks.layer_of("pool")
    (0, None)
    """

    def __init__(self, modules: Modules) -> None:
        # under torch.compile the module inside comes later, and counts
        self._named = {plain_name(name): part for part, name in modules.items()}
        self._kinds: dict[str, list[type]] = defaultdict(list)  # of the numbered parts of each
        for name, part in self._named.items():
            home, _, number = name.rpartition(".")
            if number.isdecimal():
                self._kinds[home].append(type(part))

    def layer_of(self, name: str) -> int | None:
        """The number of the block that a module is in; None where its name has no number.

        It is the first one that counts blocks. Where none does, it is the first number.
        """
        parts = name.split(".")
        places = [i for i, part in enumerate(parts) if part.isdecimal()]
        blocks = (i for i in places if len(places) == 1 or self._is_block(parts[: i + 1]))
        place = next(blocks, places[0] if places else None)
        return None if place is None else int(parts[place])

    def _is_block(self, parts: list[str]) -> bool:
        """Whether a part of a list is one of its blocks, of which there are several alike."""
        home = ".".join(parts[:-1])
        if HEADS.search(home):  # a guess, by the name: heads of one's own are a list too
            return False
        kind = type(self._named.get(".".join(parts)))
        return isinstance(self._named.get(home), nn.ModuleList) or self._kinds[home].count(kind) > 1
