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

LISTED = 12  # module names in an error


@dataclass
class Key:
    """A name such as "layers.5", and its changes.

    modules: the names of the modules that it names; several only with `*`. "" is the model.
    attending: the modules in these whose attention was changed.
    """

    text: str
    changes: list[Change]
    modules: list[str]
    attending: set[str] = field(default_factory=set)

    def fits(self, name: str) -> bool:
        """Whether a module is one of the named modules, or in one."""
        return any(is_in(name, module) for module in self.modules)

    def add(self, name: str) -> None:
        """Add a module that attends; raise `ArgumentError` if one named module has two of them."""
        self.attending.add(name)
        if len(self.attending) > 1 and "*" not in self.text:
            raise ArgumentError(
                f"{self.text!r}, in which several modules attend",
                expected=f"one of {', '.join(sorted(self.attending))}",
                remedy="name each, or use * for a part of the name that differs",
            )


def keys_of(changes: Mapping[str, list[Change]], modules: Modules, model: nn.Module) -> list[Key]:
    """Return the keys with the modules that they name.

    Raises:
        ArgumentError: a key that names no module, or several without `*`.
    """
    names = list(dict.fromkeys(map(plain_name, modules.values())))
    keys = []
    for text, items in changes.items():
        pattern = re.compile(rf"(?:.*\.)?{re.escape(text)}".replace(r"\*", r"[^.]+"))
        named = [name for name in names if name and pattern.fullmatch(name)]
        named = [name for name in named if not any(o != name and is_in(name, o) for o in named)]
        if text in names or text == class_of(model).__name__:
            named = [text if text in names else ""]
        if not named:
            attending = [name for name, _ in modules_without_calls(modules, {*names}, ())]
            raise ArgumentError(
                f"{text!r}, not a part of a module's name",
                expected=nearest(text, (attending or names)[:LISTED]),
            )
        if len(named) > 1 and "*" not in text:
            listed = ", ".join(named[:LISTED]) + (", …" if len(named) > LISTED else "")
            raise ArgumentError(
                f"{text!r}, a part of {len(named)} names: {listed}", expected="one module",
                remedy="write more of its name, or * for several",
            )  # fmt: skip
        keys.append(Key(text, items, named))
    return keys
