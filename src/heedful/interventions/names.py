"""Keys of `intervene`, which name modules by a dotted part of their names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from heedful.configuration import nearest
from heedful.errors import ArgumentError
from heedful.interventions.base import Change
from heedful.recorder.missed_modules import modules_without_calls
from heedful.recorder.module_stack import class_of
from heedful.recording.module_names import Modules, is_in, plain_name

NAMES = 12  # module names listed in an error


@dataclass
class Key:
    """A name such as "layers.5", and its changes.

    modules: the names of the modules that it names; several only with `*`.
    attending: the modules in these whose attention was changed.
    """

    text: str
    changes: list[Change]
    modules: list[str]
    attending: set[str] = field(default_factory=set)

    def fits(self, name: str) -> bool:
        """Whether a module is one of the named modules, or in one."""
        return any(self.is_part(module, name) for module in self.modules)

    @staticmethod
    def is_part(module: str, name: str) -> bool:
        """Whether a module is in another, by their names."""
        return is_in(name, module)

    def add(self, name: str) -> None:
        """Add a module that attends; raise `ArgumentError` if one named module has two of them."""
        module = next(module for module in self.modules if is_in(name, module))
        others = [other for other in self.attending - {name} if is_in(other, module)]
        if others and "*" not in self.text:
            raise ArgumentError(
                f"{self.text!r}, in which several modules attend",
                expected=f"one of {', '.join(sorted([*others, name]))}",
                remedy=f"for all of them, use {self.text + '.*'!r}",
            )
        self.attending.add(name)


def keys_of(changes: Mapping[str, list[Change]], modules: Modules, model: nn.Module) -> list[Key]:
    """Return the keys with the modules that they name.

    Raises:
        ArgumentError: a key that names no module, or several without `*`.
    """
    names = [plain_name(name) for name in modules.values()]
    names[0] = names[0] or class_of(model).__name__
    return [Key(text, items, _named(text, names, modules)) for text, items in changes.items()]


def _named(text: str, names: list[str], modules: Modules) -> list[str]:
    """Return the modules that a key names, without those that are in another of them."""
    pattern = re.compile(rf"(?:.*\.)?{re.escape(text)}".replace(r"\*", r"[^.]+"))
    named = [name for name in dict.fromkeys(names) if pattern.fullmatch(name)]
    named = [name for name in named if not any(o != name and is_in(name, o) for o in named)]
    if not named:
        attending = [name for name, _ in modules_without_calls(modules, set(names), ())]
        raise ArgumentError(
            f"{text!r}, a part of no module's name",
            expected=nearest(text, (attending or names[1:])[:NAMES]) + f"; of {len(names)} modules",
        )
    if len(named) > 1 and "*" not in text:
        listed = ", ".join(named[:NAMES]) + (", …" if len(named) > NAMES else "")
        raise ArgumentError(
            f"{text!r} in the names of {len(named)} modules: {listed}",
            expected="one module", remedy="write more of its name, or * for several",
        )  # fmt: skip
    return named
