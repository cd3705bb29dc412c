"""What kind of numbers a storage holds: parameters, and rows that something asked.

Additive attention has no product of queries and keys: for tanh(W q + U k) a query is added to all
keys alike, or put beside each of them. Where it is one query, no axis tells of it, and its weights
look like those of a pool. So it is kept along which axes of a storage something was put to all
alike. An axis is known by its stride in bytes, which views leave as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

NORMS = {
    "native_layer_norm", "_fused_rms_norm", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "native_group_norm", "layer_norm", "rms_norm",
    "cudnn_batch_norm", "miopen_batch_norm",
}  # fmt: skip
NOWHERE: frozenset[int] = frozenset()


class Nature(NamedTuple):
    """What the numbers of a storage are.

    is_parameter: whether they are parameters, or were made of them element by element.
    is_made: whether they are a product of parameters alone, or were made of one.
    same: the strides along which they are the same.
    asked: the strides along which something that is no parameter was put to all of them alike.
    """

    is_parameter: bool = False
    is_made: bool = False
    same: frozenset[int] = NOWHERE
    asked: frozenset[int] = NOWHERE

    @property
    def is_fixed(self) -> bool:
        """Whether they come from parameters alone, and so are the same for all inputs."""
        return self.is_parameter or self.is_made


PLAIN, PARAMETER = Nature(), Nature(is_parameter=True)


def are_plain(kind: Any, views: list[Any], sizes: tuple[int, ...]) -> bool:
    """Whether a result is plain too, as most are whose operands are: it costs little to see.

    Args:
        kind: of the operation, as `operation_kinds.Kind`.
        views: its operands, as `strides.View`.
        sizes: of the result.
    """
    has_plain = False
    for storage, own, strides, unit in views:
        if storage.nature is PLAIN:
            if 0 in strides or (kind.is_pointwise and own != sizes and unit > 1):
                return False
            has_plain = True
        elif storage.nature is not PARAMETER:
            return False
    return bool(has_plain and kind.name != "repeat")


def of_fixed(views: list[Any], is_product: bool) -> Nature:
    """The nature of a result of fixed operands alone."""
    are_parameters = all(view.storage.nature.is_parameter for view in views)
    return Nature(are_parameters and not is_product, is_product or not are_parameters)


def of_result(kind: Any, views: list[Any], placed: tuple) -> Nature:
    """The nature of a result that is not of fixed operands alone.

    Args:
        kind: of the operation, as `operation_kinds.Kind`.
        views: its operands, as `strides.View`.
        placed: the sizes of the result, its strides, and how many bytes one of its numbers takes.
    """
    # what takes a byte is a mask
    given = [view for view in views if view.unit > 1 and not view.storage.nature.is_fixed]
    if not given or kind.name in NORMS:
        return PLAIN
    alike = [_alike(view, placed) for view in given]
    same = frozenset.intersection(*alike)
    asked = {stride for view in given for stride in _kept(view, view.storage.nature.asked, placed)}
    if kind.is_pointwise or kind.name == "cat":
        pairs = zip(given, alike, strict=True)
        rows = [one for view, one in pairs if kind.name == "cat" or _is_of_rows(view, placed[0])]
        if rows:
            asked |= frozenset.union(*rows) - frozenset.intersection(*rows)
    return Nature(same=same, asked=frozenset(asked)) if same or asked else PLAIN


def _is_of_rows(view: Any, sizes: tuple[int, ...]) -> bool:
    """Whether an operand has the features of rows: it scales no rows, and is no constant vector."""
    return len(view.sizes) > 1 and view.sizes[-1] == sizes[-1] > 1


def _alike(view: Any, placed: tuple) -> frozenset[int]:
    """The strides of a result along which an operand is the same, but for its last axis."""
    sizes, strides, unit = placed
    lacks = len(sizes) - len(view.sizes)
    once = {
        strides[dim] * unit
        for dim in range(len(sizes) - 1)
        if sizes[dim] > 1
        if dim < lacks or view.sizes[dim - lacks] == 1 or not view.strides[dim - lacks]
    }
    return frozenset(once).union(_kept(view, view.storage.nature.same, placed))


def _kept(view: Any, marked: frozenset[int], placed: tuple) -> Iterator[int]:
    """The strides of a result where an operand has marked ones.

    An axis of it may be several joined: then one of its outer digits may be marked.
    """
    sizes, strides, unit = placed
    lacks = max(0, len(sizes) - len(view.sizes))
    pairs = zip(view.sizes, view.strides, sizes[lacks:], strides[lacks:], strict=False)
    for size, step, made, stride in pairs if marked else ():
        own = step * view.unit
        if size == made and own:
            yield from (
                mark // own * stride * unit
                for mark in marked
                if own <= mark < own * size and mark % own == 0
            )
