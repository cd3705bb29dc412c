"""Says of each operation of torch what it does: view, in place, pointwise, composite, or unknown.

It is said once for an operation, whatever it is called with, and remembered.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.recorder.following import axis_rules
from heedful.recorder.following.without_mode import has_kernel, may_differ

LISTS = (list, tuple)
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
# Composites that have a rule as a whole; `matmul` has one for factors of one batch
WHOLE = {"linear", "layer_norm", "rms_norm", "softmax", "log_softmax"}
VIEWS = {"_unsafe_view", "_reshape_alias"}
FLEX = ("query", "key", "value", "score_mod", "block_mask", "scale")
ATTENDS = re.compile(r"att(entio)?n|flash|fmha|sdpa", re.I)  # names of kernels of attention


class Kind(NamedTuple):
    """What an operation of torch does, whatever it is called with.

    name: as in `aten`, without the final _ of an operation in place ("add" for `add_`); of
        an operation that is none of torch's own, with its home ("fast::attention").
    is_into: whether it writes its result into a tensor that it is given with `out=`.
    writes: the places and names of the arguments that it writes into.
    is_composite: whether it consists of other operations; in inference mode we take it apart.
    is_only_view: whether it is a view and no composite, so that nothing is to be noted of it.
    parameters: the names of its arguments, in order.
    is_unknown: whether it is none of torch's own, and by its name a kernel of attention.
    is_asked: whether its rule asks for its arguments, such as the `dim` of `cat`.
    may_differ: whether it may run otherwise inside a mode.
    call: the function to call it with, torch's own below Python where there is one; None where it
        may differ and is none of torch's operations.
    """

    name: str
    is_view: bool = False
    is_in_place: bool = False
    is_into: bool = False
    writes: tuple[tuple[int, str], ...] = ()
    is_composite: bool = False
    is_pointwise: bool = False
    rule: axis_rules.Rule | None = None
    parameters: tuple[str, ...] = FLEX
    is_only_view: bool = False
    is_unknown: bool = False
    is_asked: bool = False
    may_differ: bool = True
    call: Any = None

    def named(self, arguments: tuple) -> dict[str, Any]:
        """The arguments of a call by their names."""
        return dict(zip(self.parameters, arguments, strict=False))

    @property
    def writes_beside(self) -> bool:
        """Whether it may write into others than the one tensor that is its result."""
        return len(self.writes) > self.is_in_place

    def written(self, arguments: tuple, keywords: dict[str, Any]) -> list[Any]:
        """What a call writes into: tensors, or lists of them."""
        return [
            arguments[place] if place < len(arguments) else keywords.get(name)
            for place, name in self.writes
        ]


class Done(NamedTuple):
    """An operation that has run: what it was called with, and its result."""

    kind: Kind
    arguments: tuple
    keywords: dict[str, Any]
    made: Tensor

    @property
    def by_name(self) -> dict[str, Any]:
        """All its arguments by their names."""
        return self.kind.named(self.arguments) | self.keywords


done_of = functools.partial(tuple.__new__, Done)  # as `view_of` does for views


def kind_of(function: Any) -> Kind:
    """The kind of an operation, remembered so that each is looked at once."""
    known = KINDS.get(id(function))
    if known is None:
        known = KINDS[id(function)] = _learned(function), function
    return known[0]


# By id(), for torch counts the hash of an operation anew in Python; held, so that it stays its own
KINDS: dict[int, tuple[Kind, Any]] = {}


def _learned(function: Any) -> Kind:
    if not isinstance(function, torch._ops.OpOverload):
        return Kind(str(function))
    home, name = function._schema.name.split("::")
    parameters = tuple(one.name for one in function._schema.arguments)
    writes = tuple(
        (place, one.name)
        for place, one in enumerate(function._schema.arguments)
        if one.alias_info is not None and one.alias_info.is_write
    )
    if home != "aten":
        is_unknown = ATTENDS.search(name) is not None
        name = f"{home}::{name}"
        return Kind(name, writes=writes, parameters=parameters, is_unknown=is_unknown)
    told = [one.alias_info for one in function._schema.returns if one.alias_info is not None]
    in_place = any(one.is_write for one in told)
    base = name[:-1] if in_place and name.endswith("_") else name
    is_pointwise = torch.Tag.pointwise in function.tags or base == "masked_fill"
    is_view = (bool(told) and not in_place) or name in VIEWS
    # not one written in Python: it is no kernel of torch's, and may draw other random numbers
    is_whole = name in WHOLE and "Dimname" not in function._overloadname
    is_composite = has_kernel(function, COMPOSITE) and not is_whole
    return Kind(
        base,
        is_view=is_view,
        is_in_place=in_place,
        is_into=in_place and base == name,
        writes=writes,
        is_composite=is_composite,
        is_pointwise=is_pointwise,
        rule=axis_rules.rule_of(base, is_pointwise),
        parameters=parameters,
        is_only_view=is_view and not is_composite,
        is_asked=axis_rules.is_asked(base),
        may_differ=may_differ(base),
        call=function._op if type(function) is torch._ops.OpOverload else function,
    )
