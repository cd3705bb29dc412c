"""Holds what is known of each storage while a model runs: its axes, and its role in attention.

Tensors that share a storage share what is known of it, so views cost nothing here. `Traced` holds
the storages of a pass and makes those of results, by the rules of `axis_rules.py`.

An example: `h = norm(x)` is pointwise, so the storage of h gets the axes of x. `q = linear(h)` gets
the axes of h but for the last, which is a new one of features. `q.view(B, N, H, d)` makes no entry:
`Traced.view` reads its axes off q's storage. The axes of a storage are worked out only when asked
for, since most storages are never part of attention.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.following import axis_rules, feature_rules, natures
from heedful.recorder.following.addresses import Addresses
from heedful.recorder.following.inputs_apart import Apart, Standing, standing
from heedful.recorder.following.moved import dims_moved, stands_alike
from heedful.recorder.following.operation_kinds import LISTS, Kind
from heedful.recorder.following.parameters import Parameters
from heedful.recorder.following.pieces import together
from heedful.recorder.following.strides import (
    Axis,
    Part,
    Parts,
    Place,
    Storage,
    View,
    are_whole,
    fresh,
    place,
    view_of,
    written,
)

is_tensor, STRIDED = axis_rules.is_tensor, axis_rules.STRIDED
# Storages are asked whether they are gone every so many operations, and where many live, so many of
# them for each operation
EVERY, ASKED = 3, 16


class Kept:
    """What is known of a storage while it lives.

    role: what the storage holds in attention: `Scores`, `Weights`, `Weighing`, or None.
    is_noise: whether its numbers were drawn at random, as a dropout mask's are.
    apart: what is known of each of several inputs that are views of it; else None.
    """

    __slots__ = ("apart", "is_noise", "role", "storage")

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.role: Any = None
        self.is_noise = False
        self.apart: Apart | None = None


class Operand(NamedTuple):
    """A tensor that an operation was called with.

    at: its number among the arguments, those in lists (as of `cat`) counted one by one.
    kept: what is known of its storage.
    """

    at: int
    tensor: Tensor
    kept: Kept
    view: View


operand_of = functools.partial(tuple.__new__, Operand)  # as `view_of` does for views


class Traced:
    """The storages of a forward pass, and what is known of each.

    Args:
        parameters: those of the model.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self._kept: dict[int, Kept] = {}
        self._passing = Addresses()  # of those that may go
        self._unasked = 0  # how many operations have run since these were asked

    def begin(self, given: Sequence[tuple[Tensor, bool]]) -> None:
        """Begin a new pass: forget all storages but the inputs, whose axes are the first known.

        Args:
            given: the inputs, and of each whether it only stands beside others, as a mask does.
        """
        self.clear()
        several: dict[int, dict[Standing, Kept]] = defaultdict(dict)
        for number, (tensor, is_aside) in enumerate(given):
            if is_tensor(tensor) and tensor.numel():
                storage = _of_input(number, tensor, is_aside)
                self.keep(tensor, storage)
                several[tensor.untyped_storage()._cdata].setdefault(standing(tensor), Kept(storage))
        for key, inputs in several.items():
            own = self._kept[key]
            own.storage = next(iter(inputs.values())).storage
            if len(inputs) > 1:
                own.storage, own.apart = Storage(own.storage.unknown), Apart(inputs)

    def clear(self) -> None:
        """Forget all storages."""
        self._kept.clear()
        self._passing.clear()

    def let_go(self) -> None:
        """Forget the storages that are gone, and with them what they hold: queries, keys, masks.

        They are asked before every third operation; where more than 48 live, as those that wait for
        a backward pass do, less often. Even the mark of a storage that is gone, held any longer,
        keeps its large neighbours apart.
        """
        self._unasked += 1
        if self._unasked < EVERY or self._unasked * ASKED < len(self._passing.marks):
            return
        self._unasked = 0
        gone = self._passing.gone()
        for key in gone:
            self._kept.pop(key, None)
        self._passing.free(gone)  # last, as their addresses may be those of others then

    def of(self, tensor: Tensor) -> Kept:
        """What is known of a tensor's storage; one seen for the first time gets new axes."""
        key = tensor.untyped_storage()._cdata
        kept = self._kept.get(key)
        if kept is None:
            return self.keep(tensor, self.parameters.storage(tensor) or Storage(fresh(tensor)))
        return kept if kept.apart is None else kept.apart.of(tensor) or kept

    def keep(self, tensor: Tensor, storage: Storage) -> Kept:
        """Note the storage of a new tensor."""
        home = tensor.untyped_storage()
        key = home._cdata
        if key not in self.parameters.homes.marks:
            self._passing.hold(home)
        kept = self._kept[key] = Kept(storage)
        return kept

    def operands(self, arguments: tuple) -> list[Operand]:
        """The plain tensors that an operation was called with."""
        for one in arguments:
            if isinstance(one, LISTS):
                arguments = _opened(arguments)
                break
        found = []
        for at, one in enumerate(arguments):
            # as `is_tensor` has it: this is done for each argument of each operation
            if type(one) in axis_rules.DENSE and one.layout is STRIDED and not one.is_nested:
                kept = self._kept.get(one.untyped_storage()._cdata)
                if kept is None or kept.apart is not None:
                    kept = self.of(one)
                view = view_of((kept.storage, one.shape, one.stride(), one.element_size()))
                found.append(operand_of((at, one, kept, view)))
        return found

    def view(self, tensor: Tensor) -> View:
        """A tensor as its storage with sizes and strides, off which its axes can be read."""
        return View(self.of(tensor).storage, *place(tensor))

    def axes(self, tensor: Tensor) -> list[Parts] | None:
        """The axes of a tensor; None where one of them cannot be read off its strides."""
        return self.view(tensor).known()

    def role(self, tensor: Any) -> Any:
        """What a tensor is in attention: `Scores`, `Weights`, `Weighing`, or None."""
        if not is_tensor(tensor):
            return None
        kept = self._kept.get(tensor.untyped_storage()._cdata)
        return None if kept is None else kept.role

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor is of the model's parameters, and nothing of a pass was put into it."""
        key = tensor.untyped_storage()._cdata
        kept = self._kept.get(key)
        if kept is None:
            return key in self.parameters.homes.marks
        return kept.storage.nature.is_parameter

    def is_noise(self, tensor: Tensor) -> bool:
        """Whether a tensor's numbers were drawn at random, as a dropout mask's are."""
        kept = self._kept.get(tensor.untyped_storage()._cdata)
        return kept is not None and kept.is_noise

    def result(
        self, kind: Kind, arguments: tuple, keywords: dict, views: list[View], made: Tensor
    ) -> Storage:
        """The storage of an operation's result, whose axes are worked out when asked for."""
        rule, placed = kind.rule, place(made)
        plain = natures.are_plain(kind, views, placed[0])
        nature = natures.PLAIN if plain else _nature(kind, views, placed)
        if rule is None or not views:
            return Storage(fresh(made), 0, nature)
        first = views[0]
        own = first.storage
        is_as_first = first[1:] == placed and own.nature == nature
        if rule is axis_rules.broadcast and is_as_first and not _tell_more(views):
            return own  # the same axes stand in it with the same strides
        told = _told(kind, arguments, keywords, first) if kind.is_asked else {}
        depth = own.depth
        for view in views:
            depth = max(depth, view.storage.depth)
        return Storage(functools.partial(_by_rule, rule, views, told, placed), depth + 1, nature)

    def made_by(self, kind: Kind, given: View, made: Tensor) -> None:
        """Note what layers that come to one operation have made of a tensor that has no role."""
        self.let_go()
        self.keep(made, self.result(kind, (), {}, [given], made))

    def written_into(self, tensor: Tensor) -> Kept:
        """What is known of a storage that is written into; of several inputs in it nothing more."""
        kept = self._kept.get(tensor.untyped_storage()._cdata)
        if kept is not None and kept.apart is not None:
            kept.apart = None
        return self.of(tensor)

    def changed(self, kept: Kept, operands: list[Operand]) -> None:
        """Note that numbers were written into a storage: with others than parameters, it has none.

        A model may keep its keys in a buffer, which is one of its parameters until then.
        """
        own = kept.storage
        if not own.nature.is_fixed:
            return
        others = [
            one.kept.storage for one in operands if one.kept is not kept and _is_numbers(one.tensor)
        ]
        if all(one.nature.is_parameter for one in others):
            return
        is_made = all(one.nature.is_fixed for one in others)
        kept.storage = Storage(own.items, own.depth, natures.Nature(is_made=is_made))

    def mixed(self, target: Tensor, views: list[View]) -> None:
        """Note what a tensor is of once others were put into each of its numbers, as by `add_`.

        Where it is a part of its storage, that part is of what was moved, if one of these was.
        """
        kept = self.of(target)
        if kept.storage.nature.is_fixed or not _tell_more(views):
            return
        if fills(target):
            make = functools.partial(_by_rule, axis_rules.broadcast, views, {}, place(target))
            depth = max(view.storage.depth for view in views)
            kept.storage = Storage(make, depth + 1, kept.storage.nature)
            return
        moved: dict[int, str] = {}
        for view in views[1:]:
            if len(view.sizes) == target.ndim:
                axes = enumerate(view.axes())
                moved |= {d: p.axis.moved for d, parts in axes for p in parts or () if p.axis.moved}
        self._lose_order(target, moved)

    def copied(self, target: Tensor, source: Any) -> None:
        """Learn from what is copied into a storage, such as a cache, which axes are features.

        Where it was copied to other places along an axis, the order along that one is lost.
        """
        if not is_tensor(source):
            return
        kept = self.of(target)
        flags: dict[Axis, bool | None] = {}
        moved: dict[int, str] = {}
        pairs = zip(
            reversed(self.view(target).axes()), reversed(self.view(source).axes()), strict=False
        )
        for back, (own, other) in enumerate(pairs, 1):
            told = {part.feature for part in other or ()}
            if len(told) == 1:
                flags |= {part.axis: next(iter(told)) for part in own or () if part.feature is None}
            if not stands_alike(own, other):
                moved[target.ndim - back] = next((p.axis.moved for p in other or ()), "") or "copy"
        self._lose_order(target, moved)
        items = [
            (part._replace(feature=flags.get(part.axis, part.feature)), stride)
            for part, stride in kept.storage.items()
        ]
        before = kept.storage
        kept.storage = Storage(lambda: items, 0, before.nature)

    def moved(self, target: Tensor, kind: Kind, given: dict[str, Any]) -> None:
        """Note that an operation in place has put numbers elsewhere in a tensor."""
        dims = None if kind.is_into else dims_moved(kind.name, given)
        every = range(target.ndim)
        along = every if dims is None else [every[dim] for dim in dims]
        self._lose_order(target, dict.fromkeys(along, kind.name))

    def _lose_order(self, target: Tensor, moved: dict[int, str]) -> None:
        """Note along which axes of a tensor the order is lost, and by which operation each.

        Where the tensor is a slice of its storage, along an axis of which it has a part only, that
        part may now be of another place.
        """
        kept, lost = self.of(target), dict[Axis, str]()
        axes = self.view(target).axes()
        in_order = [part for d, parts in enumerate(axes) if d not in moved for part in parts or ()]
        by = next(iter(moved.values()), "copy")
        for part, _ in kept.storage.items():
            if part.axis.given is None or part.axis.moved:
                continue
            own = tuple(one for one in in_order if one.axis is part.axis)
            if not own or not are_whole(own):
                mine = (moved[d] for d in moved if any(p.axis is part.axis for p in axes[d] or ()))
                lost[part.axis] = next(mine, by)
        if lost:
            new = {axis: replace(axis, moved=by) for axis, by in lost.items()}
            items = [
                (part._replace(axis=new.get(part.axis, part.axis)), stride)
                for part, stride in kept.storage.items()
            ]
            before = kept.storage
            kept.storage = Storage(lambda: items, 0, before.nature)


def _of_input(number: int, tensor: Tensor, is_aside: bool) -> Storage:
    """The storage of the input of a number, whose axes stand beside features where these are."""
    beside = tensor.ndim if not tensor.is_floating_point() else tensor.ndim - 1
    axes: list[Parts] = []
    for dim, size in enumerate(tensor.shape):
        flag = False if tensor.ndim <= 3 and dim < beside else None
        axis = Axis(size, (number, dim), is_aside=is_aside)
        axes.append((Part(axis, 1, size, flag),) if size > 1 else ())
    return stored(axes, tensor)


def _tell_more(views: list[View]) -> bool:
    """Whether one of the further operands may say more of the axes of a result than the first."""
    own, wide = views[0].storage, len(views[0].sizes)
    for storage, sizes, _, _ in views[1:]:
        if len(sizes) == wide and storage is not own and not storage.nature.is_fixed:
            return True
    return False


def _is_numbers(tensor: Tensor) -> bool:
    """Whether a tensor holds numbers of a model, and not places or a mask."""
    return tensor.is_floating_point() or tensor.is_complex()


def _opened(arguments: tuple) -> tuple:
    """The operands of an operation, those in lists (as of `cat`) one by one."""
    found: list[Any] = []
    for one in arguments:
        found += one if isinstance(one, LISTS) else (one,)
    return tuple(found)


def _nature(kind: Kind, views: list[View], placed: Place) -> natures.Nature:
    """What kind of numbers the result of an operation holds."""
    for view in views:
        if not view.storage.nature.is_fixed:
            return natures.of_result(kind, views, placed)
    is_product = kind.name in axis_rules.PRODUCTS or kind.name == "linear"
    if not views or (is_product and feature_rules.projects(kind.name, views)):
        return natures.PLAIN
    return natures.of_fixed(views, is_product)


def _told(kind: Kind, arguments: tuple, keywords: dict, first: View) -> dict[str, Any]:
    """What the rule of an operation is told of its arguments, of which the first is viewed so."""
    told = axis_rules.arguments_of_rule(kind.name, kind.named(arguments) | keywords)
    pieces = told.pop("pieces", None)
    if pieces is not None:
        told["together"] = together(pieces, first, told["dim"] if kind.name == "cat" else None)
    return told


def _by_rule(
    rule: axis_rules.Rule, views: list[View], told: dict[str, Any], placed: Place
) -> list[tuple[Part, int]]:
    """The parts of a result's storage, whose axes a rule makes of those of the operands."""
    return written(rule(views, placed[0], told), *placed)


def fills(tensor: Tensor) -> bool:
    """Whether a tensor is all of its storage."""
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def stored(axes: Sequence[Parts | None], tensor: Tensor) -> Storage:
    """The storage of a tensor with these axes, which fills it."""
    items = written(axes, *place(tensor))
    return Storage(lambda: items)
