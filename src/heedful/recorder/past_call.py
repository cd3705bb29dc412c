"""Finds modules whose `forward` was called itself, of which no hook tells.

`model.forward(ids)` goes past `__call__`, where hooks are; sentence-transformers calls the model
inside it so. What such a module was given stands in the Python frame of its `forward`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from contextlib import suppress
from types import CellType, CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeAlias

from torch import nn

Cells: TypeAlias = tuple[CellType, ...]

ASKING = {"locals", "vars"}  # code that names one may ask for its locals
HELD_BY_FRAME = 3  # references to its locals: by itself, and by who asks
# Such a frame is entered again and again, between which others run
RESUMED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

# The code by which torch calls the `forward` of a module that is called, by their ids
_CALL: Any = nn.Module._call_impl
_SLOW: Any = nn.Module._slow_forward  # while it traces
CALLING = {id(one) for one in (*_CALL.__code__.co_consts, _CALL.__code__, _SLOW.__code__)}


class Forward(NamedTuple):
    """A `forward` that runs: its module, its frame, and what it was called with."""

    module: nn.Module
    frame: FrameType
    arguments: tuple
    keywords: dict[str, Any]


class Forwards:
    """Knows the `forward` of each module of a model by its code and the functions in its closure.

    Args:
        modules: all of the model.
    """

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        # codes by their id, as their hash goes through all that is in them; held, so that it stays
        self._held: list[CodeType] = []
        self._closures: dict[int, list[Cells]] = {}  # of each `forward` that has the code
        self._around: set[int] = set()  # of decorators, which other functions have too
        modules = list(modules)
        bases = {base for kind in set(map(type, modules)) for base in kind.__mro__}
        for one in (*bases, *modules):  # somebody may have put one on an object
            self._learn(one.__dict__.get("forward"))

    def _learn(self, function: Any) -> None:
        found = _codes(function)
        self._held += [code for code, _ in found]
        self._around.update(id(code) for code, _ in found[:-1])
        for code, closure in found[-1:]:
            self._closures.setdefault(id(code), []).append(closure)

    def running(self, call: FrameType | None, until: FrameType | None) -> list[Forward]:
        """The modules between two Python frames whose `forward` runs, the outermost first.

        Of one that was called, its hook tells.

        Args:
            call: the frame from which to look outwards.
            until: where to stop, a frame around it; None to look to the end.
        """
        found: dict[int, Forward] = {}
        last: Forward | None = None
        while call is not None and call is not until:
            code = id(call.f_code)
            is_around = last is not None and last.frame.f_back is call and code in self._around
            given = None
            if (is_around or code in self._closures) and not is_called(call):
                with suppress(Exception):  # a model's own pass goes on, whatever its locals are
                    given = _given_to(call, None if is_around else self._closures[code])
            if given is not None:
                # of several around each other the outermost counts, as it was given all
                found.pop(id(given.module), None)
                found[id(given.module)] = last = given
            call = call.f_back
        return list(reversed(found.values()))


def is_called(forward: FrameType) -> bool:
    """Whether the frame of a `forward` is that of a module that was called, as most are."""
    return forward.f_back is not None and id(forward.f_back.f_code) in CALLING


def _codes(function: Any) -> list[tuple[CodeType, Cells]]:
    """The code and the closure of a function, after those of each decorator around it."""
    found: list[tuple[CodeType, Cells]] = []
    seen: set[int] = set()
    with suppress(Exception):  # objects of others may raise anything when they are looked at
        while function is not None and id(function) not in seen:
            seen.add(id(function))
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType) and not code.co_flags & RESUMED:
                found.append((code, function.__closure__ or ()))
                if not _is_around(function):
                    break
            function = getattr(function, "__wrapped__", None)
    return found


def _held_by(closure: Cells) -> list[Any]:
    held: list[Any] = []
    for cell in closure:
        with suppress(ValueError):  # it is empty
            held.append(cell.cell_contents)
    return held


def _functions_among(held: Iterable[Any]) -> set[int]:
    """The ids of the plain functions among these."""
    return {id(one) for one in held if type(one) is FunctionType}


def _is_watched() -> bool:
    """Whether a debugger or a profiler runs, after which Python takes locals from that copy."""
    return sys.gettrace() is not None or sys.getprofile() is not None


def _is_around(function: Any) -> bool:
    """Whether a function may hold the one that it is said to wrap, and has not only its words."""
    named = (function.__kwdefaults__ or {}).values()
    has_cells = bool(set(function.__code__.co_freevars) - {"__class__"})
    return has_cells or any(map(callable, (*(function.__defaults__ or ()), *named)))


def _given_to(frame: FrameType, closures: Iterable[Cells] | None) -> Forward | None:
    """The module whose method runs in a frame, and its arguments; None where it is no module.

    closures: of the methods that it may be; None where any with its code will do.
    """
    code = frame.f_code
    if not ASKING.isdisjoint(code.co_names):  # before Python 3.13 their dict would be changed
        return None
    there = frame.f_locals
    own = dict(there)
    # before Python 3.13 it is a copy, which would hold all until the frame ends
    if type(there) is dict and sys.getrefcount(there) == HELD_BY_FRAME and not _is_watched():
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            there.pop(name, None)
    names = code.co_varnames
    positional, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    module = own.get(names[0]) if positional else None
    if not isinstance(module, nn.Module):
        return None
    if closures is not None:  # what a decorator or a factory makes has one code, for many functions
        held = _functions_among(map(own.get, code.co_freevars))
        if all(held != _functions_among(_held_by(one)) for one in closures):
            return None
    # what the model has deleted meanwhile counts as None
    arguments = [own.get(name) for name in names[1:positional]]
    keywords = {name: own.get(name) for name in names[positional:named]}
    if code.co_flags & inspect.CO_VARARGS:
        further = own.get(names[named])
        arguments += further if type(further) is tuple else ()  # the model may have another there
        named += 1
    if code.co_flags & inspect.CO_VARKEYWORDS:
        further = own.get(names[named])
        keywords |= further if type(further) is dict else {}
    return Forward(module, frame, tuple(arguments), keywords)
