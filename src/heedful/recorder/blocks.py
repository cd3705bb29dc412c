"""Numbers the blocks of a model, as the names of its modules do.

In "0.model.encoder.layer.3.attention" 0 is a part of a pipeline, and 3 the block: a `ModuleList`
has blocks, and so has anything else with numbers for names whose parts are of the same class.
"""

from __future__ import annotations

import re

from torch import nn

from heedful.recording.module_names import Modules, plain_name

HEADS = re.compile(r"(^|[._])heads?$")


class Blocks:
    """The lists of a model's parts, by the names of the modules that have them."""

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
