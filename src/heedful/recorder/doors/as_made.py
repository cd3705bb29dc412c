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
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
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
# Of torch these alone have no code of others in them, as torch.jit and torch.fx have
OF_TORCH = ("torch.nn.", "torch.ao.", "torch._dynamo.eval_frame")
# Packages whose functions attend by no way of their own; a mock may do anything
KNOWN = {"heedful", "transformers", "torch", "accelerate", "jaxtyping", "beartype"}
KNOWN |= set(sys.stdlib_module_names) - {"unittest"}
AROUND = ("__wrapped__", "_torchdynamo_orig_callable")  # by which decorators tell what they are on


def tell_all(model: nn.Module, modules: Modules) -> bool:
    """Whether a model as it was made tells all its attention without torch's operations."""
    model = getattr(model, "_orig_mod", model)
    is_ours = _package(type(model).__module__) == "heedful"
    if not (is_ours or getattr(model, "_supports_attention_backend", False)):
        return False
    kinds: set[Any] = {type(part) for part in modules}
    return not any(map(_attends_by_itself, kinds))


def are_as_made(modules: Iterable[nn.Module]) -> bool:
    """Whether modules of ours, of transformers and of torch are as their packages made them.

    Parts, hooks and functions of somebody's own may do anything: attend, or move texts and tokens.
    """
    parts = list(modules)
    for_all = (*of_all._global_forward_pre_hooks.values(), *of_all._global_forward_hooks.values())
    kinds: set[Any] = {type(part) for part in parts}
    return (
        all(map(_is_known, for_all))
        and all(map(_has_known_calls, parts))
        and all(_is_known_kind(kind) and all(map(_is_known, _members(kind))) for kind in kinds)
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
    left, seen = [function], set[int]()
    while left:
        one = left.pop()
        if id(one) not in seen:
            seen.add(id(one))
            if not _is_of_known_code(one):
                return False
            left += _inside(one)
    return True


def _is_of_known_code(one: Any) -> bool:
    if isinstance(one, nn.Module):
        return all(_is_known_kind(type(part)) for part in one.modules())
    kind: Any = type(one)
    if isinstance(one, FunctionType):
        home = str(one.__globals__.get("__name__"))  # and no `__module__`, which `wraps` copies
    else:
        home = str(one.__module__ if isinstance(one, type) else kind.__module__)
    if _package(home) not in KNOWN:
        return False
    if isinstance(one, FunctionType | BuiltinFunctionType):
        return one.__name__ not in MADE_OF or _package(home) in ("heedful", "transformers")
    return _package(home) != "torch" or home.startswith(OF_TORCH)


def _is_known_kind(kind: Any) -> bool:
    """Whether a class of modules is of ours, of transformers, or one of torch's own layers."""
    home = kind.__module__
    return _package(home) in ("heedful", "transformers") or str(home).startswith(OF_TORCH)


def _inside(one: Any) -> list[Any]:
    """What a function calls that it was put around, and what it may be given to call."""
    if isinstance(one, functools.partial | functools.partialmethod):
        given = (*one.args, *one.keywords.values())
        return [one.func, *(each for each in given if callable(each))]
    if isinstance(one, property):
        return [each for each in (one.fget, one.fset) if each is not None]
    if isinstance(one, staticmethod | classmethod):
        return [one.__func__]
    if isinstance(one, functools.cached_property):
        return [one.func]
    if isinstance(one, MethodType):
        return [one.__func__, one.__self__]
    if isinstance(one, BuiltinFunctionType):  # such as the `apply` of an `autograd.Function`
        return [one.__self__] if isinstance(one.__self__, type) else []
    if isinstance(one, FunctionType | _CACHED):
        return [vars(one)[name] for name in AROUND if name in vars(one)]
    return []


_CACHED = type(functools.lru_cache(len))


def _package(module: Any) -> str:
    return str(module).split(".")[0]


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
    """The names that a known function uses, and those that it was put around."""
    if isinstance(function, FunctionType):
        yield from _names(function.__code__)
    for inner in _inside(function):
        yield from _names_in(inner)


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The names that code uses, also in functions inside it."""
    inside = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(code.co_names).union(*inside)
