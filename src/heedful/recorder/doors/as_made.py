"""Tells whether a model is as its packages made it, and where its operations are to be watched.

Models of ours and of transformers' interface tell each call of attention themselves. But somebody
may have put modules, hooks or functions of their own into one: these may attend too, and of that
nothing tells but torch's operations.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Iterable, Iterator
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
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
AMONG = "torch.distributed."
# The parts of torch that hold no code of others, as torch.jit and torch.fx do; and what stands
# around a model that is shared out among processes, or compiled, which is recorded uncompiled
OF_TORCH = ("torch.nn.", "torch.ao.", AMONG, "torch._dynamo.eval_frame")
PACKAGES = {"heedful", "transformers", "accelerate"}
# Packages whose functions attend by no way of their own
KNOWN = {*PACKAGES, "torch", "jaxtyping", "beartype", *sys.stdlib_module_names}
OF_PYTHON = ("builtins", "abc", "typing", "_abc")
AROUND = ("__wrapped__", "_torchdynamo_orig_callable")  # by which decorators tell what they are on
CACHED = type(functools.lru_cache(len))
HOLDING = (  # what is looked into; not their subclasses, which may do something else
    functools.partial, functools.partialmethod, functools.cached_property,
    functools.singledispatchmethod, property, staticmethod, classmethod, MethodType,
    MethodWrapperType, CACHED,
)  # fmt: skip
OF_C = (  # methods and attributes of Python's own classes
    ClassMethodDescriptorType, GetSetDescriptorType, MemberDescriptorType,
    MethodDescriptorType, WrapperDescriptorType,
)  # fmt: skip


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
    for_all = (*of_all._global_forward_pre_hooks.values(), *of_all._global_forward_hooks.values())
    return _are_known(itertools.chain(for_all, modules))


def _are_known(several: Iterable[Any]) -> bool:
    """Whether functions and modules were written in packages that attend by no way of their own.

    The same must hold for what they are put around, such as the function of a `functools.partial`,
    and for an object whose method one is.
    """
    seen: dict[int, Any] = {}  # held, so that each `id` stays its own
    try:
        left = list(several)
        while left:
            one = left.pop()
            if id(one) not in seen:
                seen[id(one)] = one
                if not _is_of_known_code(one):
                    return False
                left += _inside(one)
    except Exception:  # objects of others may raise anything when they are looked at
        return False
    return True


def _is_of_known_code(one: Any) -> bool:
    # by `type`, as an object may say that its class is another one
    kind: Any = type(one)
    if issubclass(kind, type) and issubclass(one, nn.Module):
        return all(map(_is_of_known_home, one.__mro__[:-1]))
    if issubclass(kind, nn.Module) or kind in HOLDING or kind in OF_C:
        return True  # its class is judged, or what it holds
    if kind is FunctionType or kind is BuiltinFunctionType:
        # not by `__module__`, which `functools.wraps` copies
        home = one.__globals__.get("__name__") if kind is FunctionType else "torch"
        attends = _package(home) == "torch" and one.__name__ in MADE_OF
        return _package(home) in KNOWN and not attends
    return _is_of_known_home(one if issubclass(kind, type) else kind)


def _is_of_known_home(kind: type) -> bool:
    """Whether a class has no code of others in it, nor does one of its objects."""
    home = str(kind.__module__)
    return _package(home) in PACKAGES or home.startswith(OF_TORCH) or home in OF_PYTHON


def _inside(one: Any) -> list[Any]:
    """What a function calls that it was put around, and what it may be given to call."""
    kind: Any = type(one)
    if issubclass(kind, nn.Module):
        return _inside_module(one)
    if issubclass(kind, type):
        return _members(one) if issubclass(one, nn.Module) else []
    if kind in (functools.partial, functools.partialmethod):
        given = (*one.args, *one.keywords.values())
        return [one.func, *(each for each in given if callable(each))]
    if kind in (functools.cached_property, functools.singledispatchmethod):
        return [one.func]
    if kind is property:
        return [each for each in (one.fget, one.fset) if each is not None]
    if kind in (staticmethod, classmethod):
        return [one.__func__]
    if kind is MethodType:
        return [one.__func__, one.__self__]
    if kind is MethodWrapperType:
        return [one.__self__]
    if kind is BuiltinFunctionType:  # such as the `apply` of an `autograd.Function`
        return [one.__self__] if isinstance(one.__self__, type) else []
    if kind is FunctionType or kind is CACHED:
        return [vars(one)[name] for name in AROUND if name in vars(one)]
    return []


def _inside_module(part: nn.Module) -> list[Any]:
    """The class of a module, its hooks, the functions that it was given, and its parts."""
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    own = (one for one in part.__dict__.values() if callable(one))
    parts = (one for one in part._modules.values() if one is not None)
    return [type(part), *hooks, *own, *parts]


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
    # a layer that is shared out among processes has a class around its own
    around = (one for one in kind.__mro__ if not str(one.__module__).startswith(AMONG))
    kind = next(around)
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
