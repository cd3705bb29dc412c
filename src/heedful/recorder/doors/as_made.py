"""Tells whether a model is as its packages made it, and where its operations are to be watched.

Models of ours and of transformers' interface tell each call of attention themselves. But somebody
may have put modules, hooks or functions of their own into one: these may attend too, and of that
nothing tells but torch's operations.
"""

from __future__ import annotations

import abc
import functools
import inspect
import os
import sys
import typing
from collections.abc import Iterable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, MethodWrapperType
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as of_all

INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Names that the code of attention uses where it does not go through transformers' interface
MADE_OF = {
    "softmax", "log_softmax", "scaled_dot_product_attention", "MultiheadAttention", "logsumexp",
    "multi_head_attention_forward", "flex_attention", "softmin",
}  # fmt: skip
# What stands around a class of a package: around a layer that is shared out among processes, or
# whose parameters are made of others
AROUND_CLASSES = ("torch.distributed.", "torch.nn.utils.parametrize")
# The parts of torch that hold no code of others, as torch.jit and torch.fx do; a compiled model is
# recorded uncompiled
OF_TORCH = ("torch.nn.", "torch.ao.", "torch.distributed.", "torch._dynamo.eval_frame")
PACKAGES = {"heedful", "transformers", "accelerate"}
# Packages whose functions attend by no way of their own
KNOWN = {*PACKAGES, "torch", "jaxtyping", "beartype", "typing_extensions"}
LIBRARY = os.path.dirname(os.__file__) + os.sep  # of Python's own modules, and packages beside them
INSTALLED = tuple(LIBRARY + name for name in ("site-packages", "dist-packages"))
OF_PYTHON = (abc, typing)  # whose classes are written in Python
IN_PYTHON = 1 << 9  # the flag of classes that are not written in C (Py_TPFLAGS_HEAPTYPE)
AROUND = ("__wrapped__", "_torchdynamo_orig_callable")  # by which decorators tell what they are on
CACHED = type(functools.lru_cache(len))
HOLDING = (  # what is looked into; not their subclasses, which may do something else
    functools.partial, functools.partialmethod, functools.cached_property,
    functools.singledispatchmethod, property, staticmethod, classmethod, MethodType,
    MethodWrapperType, CACHED,
)  # fmt: skip


class Judged(NamedTuple):
    """What is known of a model by the code that it is made of.

    is_as_made: whether it is as its packages made it. Parts, hooks and functions of somebody's own
        may do anything: attend, or move texts and tokens.
    tells_all: whether it tells all its attention without torch's operations.
    """

    is_as_made: bool
    tells_all: bool


def judged(model: nn.Module) -> Judged:
    """Judge a model of ours or of transformers, with the hooks that torch has for all modules."""
    model = getattr(model, "_orig_mod", model)
    found = _gone_through([*_for_all_modules(), model])
    if found is None:
        return Judged(False, False)
    is_ours = _package(type(model).__module__) == "heedful"
    if not (is_ours or getattr(model, "_supports_attention_backend", False)):
        return Judged(True, False)
    kinds = {type(one) for one in found if isinstance(one, nn.Module)}
    return Judged(True, not any(map(_attends_by_itself, kinds)))


def _for_all_modules() -> list[Any]:
    return [*of_all._global_forward_pre_hooks.values(), *of_all._global_forward_hooks.values()]


def _gone_through(several: Iterable[Any]) -> list[Any] | None:
    """Functions and modules, with all that they are put around or hold, such as the function of a
    `functools.partial`; None where some of it is of a package that may attend by a way of its own.
    """
    seen: dict[int, Any] = {}  # held, so that each `id` stays its own
    left = list(several)
    try:
        while left:
            one = left.pop()
            if id(one) not in seen:
                seen[id(one)] = one
                if not _is_of_known_code(one):
                    return None
                left += _inside(one)
    except Exception:  # objects of others may raise anything when they are looked at
        return None
    return list(seen.values())


def _is_of_known_code(one: Any) -> bool:
    # by `type`, as an object may say that its class is another one
    kind: Any = type(one)
    if issubclass(kind, nn.Module) or kind in HOLDING:
        return True  # its class is judged, or what it holds
    if kind is FunctionType or kind is BuiltinFunctionType:
        # not by `__module__`, which `functools.wraps` copies
        home = _package(one.__globals__.get("__name__") if kind is FunctionType else "torch")
        if home in sys.stdlib_module_names:
            return _is_of_python(one.__code__)
        return home in KNOWN and not (home == "torch" and one.__name__ in MADE_OF)
    return _is_of_known_home(one if issubclass(kind, type) else kind)


def _is_of_python(code: CodeType) -> bool:
    """Whether code is of Python's own library, whose names, such as `code`, anybody may use."""
    place = code.co_filename
    return place.startswith("<frozen ") or (
        place.startswith(LIBRARY) and not place.startswith(INSTALLED)
    )


def _is_of_known_home(kind: type) -> bool:
    """Whether a class has no code of others in it, nor does one of its objects."""
    home = str(kind.__module__)
    if _package(home) in PACKAGES or home.startswith(OF_TORCH):
        return True
    if home == "builtins":  # as `exec` says it too, of classes that are written in Python
        return not kind.__flags__ & IN_PYTHON
    return any(getattr(one, kind.__name__, None) is kind for one in OF_PYTHON)


def _inside(one: Any) -> list[Any]:
    """What may be called where something is: what a function is put around, the parts of a module,
    and the functions of its class."""
    kind: Any = type(one)
    if issubclass(kind, nn.Module):
        return _inside_module(one)
    if issubclass(kind, type):
        return _inside_class(one) if issubclass(one, nn.Module) else []
    if kind is FunctionType or kind is CACHED:
        return [vars(one)[name] for name in AROUND if name in vars(one)]
    return _held(one, kind)


def _held(one: Any, kind: Any) -> list[Any]:
    """What one of Python's own objects calls, with what it may be given to call."""
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
    return [one.__self__] if kind is MethodWrapperType else []


def _inside_module(part: nn.Module) -> list[Any]:
    """The class of a module, its hooks, the functions that it was given, and its parts."""
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    own = [one for one in part.__dict__.values() if callable(one)]
    if (hook := part.__dict__.get("_hf_hook")) is not None:  # accelerate's, or several in one
        own += [hook, *getattr(hook, "hooks", ())]
    parts = (one for one in part._modules.values() if one is not None)
    return [type(part), *hooks, *own, *parts]


def _inside_class(kind: type) -> list[Any]:
    """The functions of a module's class, the classes of modules that it is made of, and what it has
    from others."""
    found = _functions(kind)
    for base in kind.__bases__:
        if not issubclass(base, nn.Module):
            found += [base, *(one for each in base.__mro__[:-1] for one in _functions(each))]
        elif base is not nn.Module:
            found.append(base)
    return found


def _functions(kind: type) -> list[Any]:
    """What stands in a class and may be called."""
    return [one for one in vars(kind).values() if callable(one) or hasattr(type(one), "__get__")]


def _package(module: Any) -> str:
    return str(module).split(".")[0]


def _attends_by_itself(kind: type) -> bool:
    """Whether the code of a class may compute attention of which no other door is told."""
    kind = next(one for one in kind.__mro__ if not str(one.__module__).startswith(AROUND_CLASSES))
    if issubclass(kind, nn.MultiheadAttention):
        return True
    if _package(kind.__module__) != "transformers":
        return False
    parents = [one for one in kind.__mro__ if one.__module__ == kind.__module__]
    functions = [one for parent in parents for one in _functions(parent)]
    names = _names_in([inspect.getattr_static(kind, "forward", None), *functions])
    return INTERFACE not in names and bool(names & MADE_OF)


def _names_in(functions: Iterable[Any]) -> set[str]:
    """The names that known functions use, and those that they were put around."""
    seen: dict[int, Any] = {}
    left, names = list(functions), set[str]()
    while left:
        one = left.pop()
        # classes and modules that a function has are judged by themselves
        if id(one) in seen or isinstance(one, type | nn.Module):
            continue
        seen[id(one)] = one
        if isinstance(one, FunctionType):
            names |= _names(one.__code__)
        left += _inside(one)
    return names


@functools.lru_cache(maxsize=4096)
def _names(code: CodeType) -> frozenset[str]:
    """The names that code uses, also in functions inside it."""
    inside = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return frozenset(code.co_names).union(*inside)
