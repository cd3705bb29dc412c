"""Packages whose names bring their modules when they are first used.

`heedful train --help` reads a configuration and needs no torch, which alone takes a second to
import. So a package names its public things in a table, and imports none of them itself (PEP 562).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_WIRED: dict[str, tuple[str, str]] = {}


def wire(name: str, module: str, function: str) -> None:
    """Say which function of a higher floor does what a lower one asks for by a name.

    The package's top says it: imports go down, and some things are shown by what stands above them.
    """
    _WIRED[name] = module, function


def wired(name: str) -> Callable[..., Any]:
    """The function of a name, whose module is brought now.

    >>> wire("turn", "math", "tau")
    >>> wired("turn") > 6
    True
    """
    module, function = _WIRED[name]
    return getattr(importlib.import_module(module), function)


def lazily(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The `__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        homes: from each module to the names that the package takes from it. `old as new` is the
            module's `old`, called `new` here. A name must not be that of a module in the package.

    >>> get, names = lazily("numbers_of", {"math": ["pi", "tau as turn"]})
    >>> names(), get("turn") == 2 * get("pi")
    (['pi', 'turn'], True)
    >>> get("pie")
    Traceback (most recent call last):
    AttributeError: module 'numbers_of' has no attribute 'pie'
    """
    home_of = {}
    for module, names in homes.items():
        for name in names:
            theirs, _, ours = name.partition(" as ")
            home_of[ours or theirs] = module, theirs

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, theirs = home_of[name]
        return getattr(importlib.import_module(module), theirs)

    return get, lambda: sorted(home_of)
