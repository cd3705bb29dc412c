"""Judges which modules hold attention, and which of them ran but told of none."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torch import nn

from heedful.recording.module_names import is_in, plain_name
from heedful.recorder.running import Modules

NAMED = re.compile(r"att(entio)?n(?!.*(Output|Norm|Mask|Embed|Pool|Config|Bias|Dropout))", re.I)
# Names of children or parameters that make queries and keys
PROJECTIONS = (
    {"q_proj", "k_proj"}, {"query", "key"}, {"to_q", "to_k"}, {"to_q", "to_kv"}, {"wq", "wk"},
    {"w_q", "w_k"}, {"q", "k"}, {"q", "kv"}, {"q_lin", "k_lin"}, {"linear_q", "linear_k"},
    {"q_net", "kv_net"}, {"query_projection", "key_projection"}, {"in_proj_weight"}, {"qkv"},
    {"to_qkv"}, {"c_attn"}, {"wqkv"}, {"qkv_proj"}, {"query_key_value"}, {"w_qs", "w_ks"},
)  # fmt: skip


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
