"""Numbers the blocks of a model, as the names of its modules do.

A name may have several numbers: in "0.model.encoder.layer.3.attention" the first one says which
part of a pipeline the encoder is, and the second one is its block. A `ModuleList` has blocks; in a
`Sequential`, or in anything else with numbers for names, these are parts like each other, as an
embedding, an encoder and a head are not.
"""

from __future__ import annotations

import re

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

    def layer_of(self, name: str) -> int | None:
        """The first number in a name that counts blocks, else its first; None where it has none."""
        parts = name.split(".")
        places = [at for at, part in enumerate(parts) if part.isdecimal()]
        blocks = (at for at in places if self._has_blocks(".".join(parts[:at]), parts[at]))
        place = next(blocks, places[0] if places else None)
        return None if place is None else int(parts[place])

    def _has_blocks(self, home: str, number: str) -> bool:
        """Whether a list of parts has blocks, of which there are several alike."""
        parts = getattr(self._named.get(home), "_modules", {})
        if HEADS.search(home):  # a list of heads of attention
            return False
        alike = [part for part in parts.values() if type(part) is type(parts.get(number))]
        return isinstance(self._named.get(home), nn.ModuleList) or len(alike) > 1
