"""Judges which modules hold attention: where to watch for it, and which ran but told of none."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from torch import nn
from torch.nn.modules import module as of_all

from heedful.recorder.module_names import is_in, plain_name
from heedful.recorder.running import Modules

NAMED = re.compile(r"att(entio)?n(?!.*(Output|Norm|Mask|Embed|Pool|Config|Bias|Dropout))", re.I)
# Names of children or parameters that make queries and keys
PROJECTIONS = (
    {"q_proj", "k_proj"}, {"query", "key"}, {"to_q", "to_k"}, {"to_q", "to_kv"}, {"wq", "wk"},
    {"w_q", "w_k"}, {"q", "k"}, {"q", "kv"}, {"q_lin", "k_lin"}, {"linear_q", "linear_k"},
    {"q_net", "kv_net"}, {"query_projection", "key_projection"}, {"in_proj_weight"}, {"qkv"},
    {"to_qkv"}, {"c_attn"}, {"wqkv"}, {"qkv_proj"}, {"query_key_value"}, {"w_qs", "w_ks"},
)  # fmt: skip
INTERFACE = "ALL_ATTENTION_FUNCTIONS"
# Names that the code of attention uses where it does not go through transformers' interface
MADE_OF = {
    "softmax", "log_softmax", "scaled_dot_product_attention", "MultiheadAttention", "logsumexp",
    "multi_head_attention_forward", "flex_attention", "softmin",
}  # fmt: skip
# Packages whose code attends by a door that is told of it, or not at all
KNOWN = {
    "heedful", "transformers", "torch", "accelerate", "jaxtyping", "beartype",
    *sys.stdlib_module_names,
}  # fmt: skip


def is_to_be_watched(model: nn.Module, modules: Modules) -> bool:
    """Whether some of the model's attention may be seen through torch's operations only.

    That is so but for models of ours and of transformers' interface, as their packages made them:
    without parts, hooks or methods of somebody's own, which may do anything.
    """
    model = getattr(model, "_orig_mod", model)
    home = _package(type(model).__module__)
    is_told_of = home == "transformers" and getattr(model, "_supports_attention_backend", False)
    if home != "heedful" and not is_told_of:
        return True
    for_all = (*of_all._global_forward_pre_hooks.values(), *of_all._global_forward_hooks.values())
    if not all(map(_is_known, for_all)) or not all(map(_has_known_calls, modules)):
        return True
    kinds: set[Any] = {type(part) for part in modules}
    return any(_attends_by_itself(kind, _functions(kind)) for kind in kinds)


def _has_known_calls(part: nn.Module) -> bool:
    """Whether a module has no hook and no `forward` that somebody has given it."""
    own = part.__dict__.get("forward")
    hooks = (*part._forward_pre_hooks.values(), *part._forward_hooks.values())
    return (own is None or _is_known(own)) and all(map(_is_known, hooks))


def _is_known(function: Any) -> bool:
    """Whether a function was written in a package that attends by no way of its own."""
    # not by `__module__`, which `functools.wraps` copies
    places = getattr(function, "__globals__", None)
    home = type(function).__module__ if places is None else places.get("__name__", "")
    return _package(home) in KNOWN


def _package(module: str) -> str:
    return module.split(".")[0]


def _functions(kind: type[nn.Module]) -> tuple[FunctionType, ...]:
    """The functions of a class, and of those that it inherits from in its own module."""
    parents = [one for one in kind.__mro__ if one.__module__ == kind.__module__]
    members = [one for parent in parents for one in vars(parent).values()]
    members.append(getattr(kind, "forward", None))  # a scripted module's class has none
    return tuple(one for one in members if isinstance(one, FunctionType))


@functools.lru_cache(maxsize=1024)
def _attends_by_itself(kind: type, functions: tuple[FunctionType, ...]) -> bool:
    """Whether the code of a class may compute attention of which no other door is told."""
    if kind is nn.MultiheadAttention:
        return True
    home = _package(kind.__module__)
    if home not in ("heedful", "transformers", "torch") or not all(map(_is_known, functions)):
        return True
    if home != "transformers":
        return False
    names = {name for one in functions for name in _names_in(one)}
    return INTERFACE not in names and bool(names & MADE_OF)


def _names_in(function: Any) -> Iterator[str]:
    """The names that a function uses, and those of one that it was put around."""
    while function is not None:
        yield from _names(function.__code__) if hasattr(function, "__code__") else ()
        function = getattr(function, "__wrapped__", None)


def _names(code: CodeType) -> Iterator[str]:
    """The names that code uses, also in functions inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


class Holders:
    """The modules of a model that hold attention.

    names: theirs, as a recording has them.
    """

    def __init__(self, modules: Modules) -> None:
        self._modules = set(map(plain_name, modules.values()))
        named = ((plain_name(name), part) for part, name in modules.items())
        self._holding = {name: (part, why) for name, part in named if (why := _why(part))}
        self.names = {name or type(part).__name__ for name, (part, _) in self._holding.items()}

    def silent(
        self,
        ran: Mapping[str | None, Collection[str]],
        told: Collection[str],
        begun: Collection[str],
    ) -> Iterator[tuple[str, str]]:
        """Modules that hold attention and ran, but of which no call was told: each with the reason.

        A call of a module is its own and of those around it, whose innermost holder is judged. What
        a holder, or its layers alone, made for the call of the module that called it is no call of
        its own, unless something like attention ran in it.

        Args:
            ran: the names of the modules that ran, by that of the module which called them.
            told: the names of the modules of which a call or a miss was told.
            begun: the names of the modules in which a product of two tensors or a softmax ran.
        """
        told, begun = self._known(told), self._known(begun)
        calls = [
            (plain_name(one), None if by is None else plain_name(by))
            for by, several in ran.items()
            for one in several
        ]
        for name, (part, why) in self._holding.items():
            if any(other != name and is_in(other, name) for other in self._holding):
                continue  # the innermost holder is judged, not those around it
            if any(is_in(one, name) for one in told):
                continue
            callers = {by for one, by in calls if is_in(one, name) and not _is_called_in(by, name)}
            is_a_part = callers <= told and not any(is_in(one, name) for one in begun)
            if not is_a_part:
                yield name or type(part).__name__, f"{why}, and no attention was seen in it"

    def _known(self, names: Collection[str]) -> set[str]:
        """The names as modules have them: what is told of the model itself has its class's name."""
        return {one if one in self._modules else "" for one in names}


def _is_called_in(by: str | None, name: str) -> bool:
    return by is not None and is_in(by, name)


def _why(part: Any) -> str:
    """Why a module is taken to hold attention; "" where it is not."""
    if _is_simple(part):
        return ""
    members = (*part._modules.items(), *part._parameters.items())  # quicker than their methods
    return _why_of(type(part).__name__, tuple(name for name, one in members if one is not None))


def _is_simple(part: Any) -> bool:
    """Whether it is one of torch's containers, or of its layers with no others in it: none attends.

    A bare `nn.Module` may be given a forward of any kind.
    """
    kind = type(part)
    if not kind.__module__.startswith("torch.nn.modules.") or kind is nn.Module:
        return False
    return not part._modules or kind.__module__.endswith(".container")


@functools.lru_cache(maxsize=1024)  # a model's blocks are alike
def _why_of(kind: str, members: tuple[str, ...]) -> str:
    own = {name.lower() for name in members}
    if any(names <= own for names in PROJECTIONS):
        return f"a {kind} with projections to queries and keys"
    return f"a {kind}" if NAMED.search(kind) else ""
