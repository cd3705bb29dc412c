"""Reads names of modules: which side of a model they are in, and which other module."""

from __future__ import annotations

import functools
from typing import TypeAlias

from torch import nn

Modules: TypeAlias = dict[nn.Module, str]  # all modules of a model, with their names


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
