"""Reads names of modules: which side, block and other module of a model they are in."""

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from torch import nn

Modules: TypeAlias = dict[nn.Module, str]  # all modules of a model, with their names
HEADS = re.compile(r"(^|[._])heads?$")


def is_in(name: str, outer: str) -> bool:
    """Whether a module is another one or in it, by their names; all are in the model itself, "".

    >>> is_in("layers.1.attend", "layers.1"), is_in("layers.10", "layers.1")
    (True, False)
    """
    return not outer or name == outer or name.startswith(f"{outer}.")


def side_of(name: str, has_encoder: bool = True) -> str | None:
    """ "encoder" or "decoder", by the parts of a module's name; None where it says neither.

    Args:
        name: as `named_modules` has it.
        has_encoder: whether the model has an encoder; a decoder alone is all of its model.

    >>> side_of("model.decoder.layers.0.self_attn"), side_of("h.0.attn")
    ('decoder', None)
    """
    parts = name.split(".")
    if has_encoder and "decoder" in parts:
        return "decoder"
    return "encoder" if "encoder" in parts else None


@functools.lru_cache(maxsize=4096)  # each recording asks for that of every module
def plain_name(name: str) -> str:
    """A module's name without what torch.compile puts into it.

    >>> plain_name("layers.0._orig_mod.attend")
    'layers.0.attend'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class Blocks:
    """Numbers the blocks of a model, as the names of its modules do.

    In "0.model.encoder.layer.3.attention" 0 is a part of a pipeline, and 3 the block: a ModuleList
    has blocks, and so has anything else with numbers for names whose parts are of the same class.
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
