"""Lazy imports: a package imports a module when one of its public names is first used.

`heedful train --help` needs configurations but not torch, whose import takes a second. So a
package imports the modules of its public names on access (PEP 562).
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from typing import Any


def import_name(module: str, name: str) -> Any:
    """Import a module now, and return one of its names.

    A module imports only from lower floors (see CONTRIBUTING.md); in this way, it can call a
    function of a higher floor.

    >>> import_name("math", "tau") > 6
    True
    """
    return getattr(importlib.import_module(module), name)


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
        return import_name(*sources[name])

    return get, lambda: sorted(sources)
