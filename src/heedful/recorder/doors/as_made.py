"""Tells whether a model is as its packages made it, and where its operations are to be watched.

Models of ours and of transformers' interface tell each call of attention themselves. But somebody
may have put modules, hooks or functions of their own into one: these may attend too, and of that
nothing tells but torch's operations.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, MethodType
from typing import Any

from torch import nn
from torch.nn.modules import module as of_all

from heedful.recorder.running import Modules

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Names that the code of attention uses where it does not go through transformers' interface
MADE_OF = {
    "softmax", "log_softmax", "scaled_dot_product_attention", "MultiheadAttention", "logsumexp",
    "multi_head_attention_forward", "flex_attention", "softmin",
}  # fmt: skip
MADE = {"heedful", "transformers", "torch"}  # packages whose modules are known
# Packages whose functions attend by no way of their own; a mock may do anything
KNOWN = {*MADE, "accelerate", "jaxtyping", "beartype", *sys.stdlib_module_names} - {"unittest"}
# Attributes by which functions, partial ones, properties and decorators tell what they are around
AROUND = ("func", "fget", "__func__", "__wrapped__", "_torchdynamo_orig_callable")


def is_to_be_watched(model: nn.Module, modules: Modules) -> bool:
    """Whether some of the model's attention may be seen through torch's operations only."""
    model = getattr(model, "_orig_mod", model)
    home = _package(type(model).__module__)
    is_told_of = home == "transformers" and getattr(model, "_supports_attention_backend", False)
    if not (home == "heedful" or is_told_of) or not are_as_made(modules):
        return True
    kinds: set[Any] = {type(part) for part in modules}
    return any(map(_attends_by_itself, kinds))


def are_as_made(modules: Iterable[nn.Module]) -> bool:
    """Whether modules are as their packages made them.

    Parts, hooks and methods of somebody's own may do anything: attend, or move texts and tokens.
    """
    for_all = (*of_all._global_forward_pre_hooks.values(), *of_all._global_forward_hooks.values())
    if not all(map(_is_known, for_all)) or not all(map(_has_known_calls, modules)):
        return False
    kinds: set[Any] = {type(part) for part in modules}
    return all(
        _package(kind.__module__) in MADE and all(map(_is_known, _members(kind))) for kind in kinds
    )


def _has_known_calls(part: nn.Module) -> bool:
    """Whether a module has no hooks and functions that somebody has given it."""
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    own = (one for one in part.__dict__.values() if callable(one))
    return all(map(_is_known, hooks)) and all(map(_is_known, own))


def _is_known(function: Any) -> bool:
    """Whether a function was written in a package that attends by no way of its own.

    So must what it is put around, such as the function of a `functools.partial`, and the object
    whose method it is.
    """
    if isinstance(function, nn.Module):
        return all(_package(type(part).__module__) in MADE for part in function.modules())
    # not by `__module__`, which `functools.wraps` copies
    places = getattr(function, "__globals__", None)
    home = type(function).__module__ if places is None else places.get("__name__", "")
    return _package(home) in KNOWN and all(map(_is_known, _inside(function)))


def _inside(function: Any) -> list[Any]:
    """What a function calls that it was put around."""
    found = [getattr(function, name, None) for name in AROUND]
    if isinstance(function, MethodType):
        found.append(function.__self__)
    return [one for one in found if one is not None]


def _package(module: str) -> str:
    return module.split(".")[0]


def _members(kind: type) -> list[Any]:
    """The functions of a class, and of those that it inherits from in its own module."""
    parents = [one for one in kind.__mro__ if one.__module__ == kind.__module__]
    members = [one for parent in parents for one in vars(parent).values()]
    members.append(inspect.getattr_static(kind, "forward", None))
    return [one for one in members if callable(one) or hasattr(type(one), "__get__")]


def _attends_by_itself(kind: type) -> bool:
    """Whether the code of a class may compute attention of which no other door is told."""
    if kind is nn.MultiheadAttention or _package(kind.__module__) != "transformers":
        return kind is nn.MultiheadAttention
    names = {name for one in _members(kind) for name in _names_in(one)}
    return INTERFACE not in names and bool(names & MADE_OF)


def _names_in(function: Any) -> Iterator[str]:
    """The names that a function uses, and those that it was put around."""
    if hasattr(function, "__code__"):
        yield from _names(function.__code__)
    for inner in _inside(function):
        yield from _names_in(inner)


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The names that code uses, also in functions inside it."""
    inside = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(code.co_names).union(*inside)
