"""Lazy imports: a package imports a module when one of its public names is first used.

`heedful train --help` needs configurations but not torch, whose import takes a second. So a
package lists its public names in a table and imports their modules on access (PEP 562).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_FUNCTIONS: dict[str, tuple[str, str]] = {}


def register_function(name: str, module: str, function: str) -> None:
    """Register a function of a higher floor under a name, for calls from a lower floor.

    Modules import only from lower floors (see CONTRIBUTING.md), so the caller cannot import it.
    """
    _FUNCTIONS[name] = module, function


def registered_function(name: str) -> Callable[..., Any]:
    """Return the function registered under a name, and import its module now.

    >>> register_function("turn", "math", "tau")
    >>> registered_function("turn") > 6
    True
    """
    module, function = _FUNCTIONS[name]
    return getattr(importlib.import_module(module), function)


def lazy_exports(
    package: str, names_by_module: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    Args:
        package: the package's name.
        names_by_module: the public names of each module. `old as new` exports the module's `old`
            as `new`. No name may equal a module's name: importing the module would hide the name.

    >>> get, names = lazy_exports("numbers_of", {"math": ["pi", "tau as turn"]})
    >>> names(), get("turn") == 2 * get("pi")
    (['pi', 'turn'], True)
    >>> get("pie")
    Traceback (most recent call last):
    AttributeError: module 'numbers_of' has no attribute 'pie'
    """
    sources = {}
    for module, names in names_by_module.items():
        for name in names:
            attribute, _, alias = name.partition(" as ")
            sources[alias or attribute] = module, attribute

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = sources[name]
        return getattr(importlib.import_module(module), attribute)

    return get, lambda: sorted(sources)
