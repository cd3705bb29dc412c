"""Lazy imports: a package imports a module when one of its public names is first used.

`heedful train --help` needs configurations but not torch, whose import takes a second. So a
package imports the modules of its public names on access (PEP 562).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
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


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the `__getattr__` and the `__dir__` of a package.

    The lazy names are those that the package's source imports under `if TYPE_CHECKING:`, which only
    type checkers execute. No name may equal a module's name: importing the module would hide it.

    >>> get, names = lazy_exports("heedful.train")
    >>> get("Step").__module__, "Step" in names()
    ('heedful.train.events', True)
    >>> get("Stop")
    Traceback (most recent call last):
    AttributeError: module 'heedful.train' has no attribute 'Stop'
    """
    loader: Any = importlib.util.find_spec(package).loader  # type: ignore[union-attr]
    imports = [
        line
        for block in ast.parse(loader.get_source(package)).body
        if isinstance(block, ast.If)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
    ]
    sources = {
        alias.asname or alias.name: (str(line.module), alias.name)
        for line in imports
        for alias in line.names
    }

    def get(name: str) -> Any:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = sources[name]
        return getattr(importlib.import_module(module), attribute)

    return get, lambda: sorted(sources)
