"""Finds modules whose `forward` was called itself, of which no hook tells.

`model.forward(ids)` goes past `__call__`, where hooks are; sentence-transformers calls the model
inside it so. What such a module was given stands in the Python frame of its `forward`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import nn


class Forward(NamedTuple):
    """A `forward` that runs: its module, its frame, and what it was called with."""

    module: nn.Module
    frame: FrameType
    arguments: tuple
    keywords: dict[str, Any]


def codes_of(module: nn.Module) -> frozenset[CodeType]:
    """What `forward` of a module may run: of its class and its bases, and what decorators wrap."""
    kind: Any = type(module)
    return _codes_of(kind)


@functools.lru_cache(maxsize=4096)
def _codes_of(kind: type) -> frozenset[CodeType]:
    found = set()
    for base in kind.__mro__:
        function = base.__dict__.get("forward")
        while function is not None:
            found.add(getattr(function, "__code__", None))
            function = getattr(function, "__wrapped__", None)
    return frozenset(one for one in found if isinstance(one, CodeType))


def running_forwards(
    call: FrameType, until: FrameType | None, codes: Collection[CodeType], own: Collection[CodeType]
) -> list[Forward]:
    """The modules between two Python frames whose `forward` runs, the outermost first.

    Args:
        call: the frame from which to look outwards.
        until: where to stop, a frame around it; None to look to the end.
        codes: of all modules that are looked for.
        own: of these, the codes of the module that runs in `until`, whose own `forward` this is.
            A frame whose locals were asked for holds them until it ends, so it is not asked.
    """
    found: dict[int, Forward] = {}
    frame = call.f_back
    while frame is not None and frame is not until:
        asked = frame.f_code in codes and frame.f_code not in own
        given = _given_to(frame) if asked else None
        if given is not None:  # of several that decorate each other the outermost counts
            found.pop(id(given.module), None)
            found[id(given.module)] = given
        frame = frame.f_back
    return list(reversed(found.values()))


def _given_to(frame: FrameType) -> Forward | None:
    """The module whose method runs in a frame, and its arguments; None where it is no module."""
    code, there = frame.f_code, inspect.getargvalues(frame)
    own = there.locals
    if not there.args or not isinstance(module := own.get(there.args[0]), nn.Module):
        return None
    alone = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    # what the model has deleted meanwhile counts as None
    arguments = tuple(own.get(name) for name in there.args[1:] if name not in alone)
    further = own.get(there.varargs, ()) if there.varargs else ()
    keywords = {name: own.get(name) for name in alone}
    keywords |= own.get(there.keywords, {}) if there.keywords else {}
    return Forward(module, frame, (*arguments, *further), keywords)
