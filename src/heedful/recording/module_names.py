"""The facts that a module's name implies: encoder or decoder, and the number of the block."""

from __future__ import annotations

import functools
import re
from typing import TypeAlias

from torch import nn

Modules: TypeAlias = dict[nn.Module, str]  # all modules of a model, with their names
HEADS = re.compile(r"(^|[._])heads?$")


def is_in(name: str, outer: str) -> bool:
    """Return whether a module is `outer` or a submodule of it, by their names; "" is the model.

    >>> is_in("layers.1.attend", "layers.1"), is_in("layers.10", "layers.1")
    (True, False)
    """
    return not outer or name == outer or name.startswith(f"{outer}.")


def side_of(name: str, has_encoder: bool = True) -> str | None:
    """Return "encoder" or "decoder" if a part of the module's name is that word, else None.

    Args:
        name: a name from `named_modules`.
        has_encoder: whether the model has an encoder; if not, "decoder" in a name does not count.

    >>> side_of("model.decoder.layers.0.self_attn"), side_of("h.0.attn")
    ('decoder', None)
    """
    parts = name.split(".")
    if has_encoder and "decoder" in parts:
        return "decoder"
    return "encoder" if "encoder" in parts else None


@functools.lru_cache(maxsize=4096)  # each recording calls it for every module
def plain_name(name: str) -> str:
    """Return a module's name without the parts that torch.compile adds.

    >>> plain_name("layers.0._orig_mod.attend")
    'layers.0.attend'
    """
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


class Blocks:
    """The numbers of a model's blocks, read from the names of its modules.

    In "0.model.encoder.layer.3.attention", 0 is a pipeline stage, and 3 is the block. The children
    of a module are blocks if it is a ModuleList (not of heads), or if several are of one class.
    """

    def __init__(self, modules: Modules) -> None:
        # torch.compile's wrapper and the module in it share a name; the module, being later, stays
        self._named = {plain_name(name): part for part, name in modules.items()}

    def layer_of(self, name: str) -> int | None:
        """Return a name's first number that counts blocks, else its first number, else None."""
        parts = name.split(".")
        numbered = [i for i, part in enumerate(parts) if part.isdecimal()]
        blocks = (i for i in numbered if self._has_blocks(".".join(parts[:i]), parts[i]))
        index = next(blocks, numbered[0] if numbered else None)
        return None if index is None else int(parts[index])

    def _has_blocks(self, parent: str, number: str) -> bool:
        """Return whether the children of the module `parent` are blocks."""
        children = getattr(self._named.get(parent), "_modules", {})
        if HEADS.search(parent):  # a list of attention heads
            return False
        repeats = [type(child) for child in children.values()].count(type(children.get(number)))
        return isinstance(self._named.get(parent), nn.ModuleList) or repeats > 1
