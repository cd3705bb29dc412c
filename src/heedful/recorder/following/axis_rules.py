"""Rules that say which axes the result of an operation has, given the axes of its operands.

Only an operation that makes a new storage needs a rule: a view is read off its strides
(`strides.py`). Each rule takes the operands as `View`s, the sizes of the result and what
`arguments_of_rule` says of the call, and returns the `Parts` of each axis of the result, None for
an axis of which nothing is known. Where an operation has no rule, all axes of its result are new.

An example: `x @ w` of x (batch, tokens, D) and parameters w (D, H · d) keeps batch and tokens,
which stand beside the features (`as_rows`); its last axis is a new one, of features (`feature`).
`q.view(B, N, H, d)` then needs no rule: its heads are found to be a part of that axis, and so
features, while its tokens are not. That is how heads are told from the batch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from heedful.recorder.following.moved import dims_moved, moved, moves, put_elsewhere
from heedful.recorder.following.strides import (
    Axes,
    Axis,
    Part,
    Parts,
    View,
    are_whole,
    common,
    place,
    written,
)

Rule: TypeAlias = Callable[[list[View], tuple[int, ...], dict[str, Any]], Axes]

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}  # which argument is the left factor
# Fused kernels of scaled_dot_product_attention
SDPA_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
# The result has the axes of its operand: each number is made from its own row or channel
SAME = {
    "_softmax", "_log_softmax", "_safe_softmax", "clone", "_to_copy", "native_layer_norm",
    "_fused_rms_norm", "native_dropout", "native_batch_norm", "_native_batch_norm_legit",
    "_native_batch_norm_legit_no_training", "native_group_norm", "cumsum", "tril", "triu",
    "_conj_physical", "layer_norm", "rms_norm",
}  # fmt: skip
REDUCE = {"sum", "mean", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm", "prod"}


def rule_of(name: str, is_pointwise: bool) -> Rule | None:
    """The rule of an operation of this name; None where it has none."""
    if name in PRODUCTS:
        return product
    if is_pointwise or name in SAME:
        return broadcast
    return moved if moves(name) else OTHERS.get(name)


def broadcast(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of operands that broadcast: each from the operand that says most about it."""
    read = [(view, view.axes()) for view in views if len(view.sizes) <= len(sizes)]
    made: Axes = []
    for back in range(len(sizes), 0, -1):
        size = sizes[-back]
        told_of = [
            axes[-back]
            for view, axes in read
            if back <= len(axes) and view.sizes[-back] == size and axes[-back] is not None
        ]
        made.append(max(told_of, key=_knowledge, default=None))
    return made


def _knowledge(parts: Parts | None) -> tuple[bool, ...]:
    """How much an operand says about an axis, as a key for `max`.

    No copy (as of `expand`) beats a copy; then known features or rows; then an axis of an input.
    Of two of these, one whose order is lost: what both together hold has none.
    """
    known = parts or ()
    return (
        all(not part.axis.is_copy for part in known),
        any(part.feature is not None for part in known),
        any(part.axis.given is not None for part in known),
        any(part.axis.moved for part in known),
    )


def as_rows(parts: Parts | None) -> Parts | None:
    """The parts of an axis that a product with parameters left as it was, such as the tokens.

    Where the axis was of features before, they may be heads, each multiplied by itself: then it is
    not known any more what they are.
    """
    if parts is None:
        return None
    return tuple(map(_as_row, parts))


def _as_row(part: Part) -> Part:
    is_settled = part.axis.stood_beside or part.axis.of_features
    if part.feature is None and part.axis.is_doubtful and not is_settled:
        return part._replace(axis=part.axis.beside())
    return part._replace(feature=None) if part.feature else part


def feature(size: int) -> Parts:
    """A new axis of features, as a product with parameters makes it."""
    axis = Axis(size, is_doubtful=True, of_features=True)
    return (Part(axis, 1, size, True),) if size > 1 else ()


def parameter(tensor: Tensor, is_weight: bool) -> Callable[[], list[tuple[Part, int]]]:
    """The parts of a storage that holds a parameter, any axis of which may be of heads.

    Args:
        tensor: that it holds.
        is_weight: whether it is the weight of a linear layer, (features, width).
    """
    return functools.partial(_of_parameter, is_weight, *place(tensor))


def _of_parameter(
    is_weight: bool, sizes: Sequence[int], strides: Sequence[int], unit: int
) -> list[tuple[Part, int]]:
    flags = [True if is_weight and dim == 0 else None for dim in range(len(sizes))]
    axes: Axes = [
        (Part(Axis(size, is_doubtful=True), 1, size, flag),) if size > 1 else ()
        for size, flag in zip(sizes, flags, strict=True)
    ]
    return written(axes, sizes, strides, unit)


def projects(name: str, views: list[View]) -> bool:
    """Whether an operation multiplies with the weight of a linear layer as that layer does.

    Then its features are known, also where it projects parameters, as learned queries are.
    """
    right, at = (views[1], 0) if name == "linear" else (views[-1], -1)
    is_fixed = right.storage.is_parameter or right.storage.is_made
    parts = right.axes()[at] if is_fixed else None
    return bool(parts) and all(part.feature is True for part in parts or ())


def product(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of a product (…, n, k) × (…, k, m), one factor of which may be parameters."""
    left, right = views[-2:]
    of_left, of_right = factors(left, right)
    batch = [
        _beside(size, one, other, left.storage.is_parameter, right.storage.is_parameter)
        for size, one, other in zip(sizes[:-2], of_left, of_right, strict=False)
    ]
    is_fixed = left.storage.is_parameter or left.storage.is_made
    is_projected = right.storage.is_parameter and not left.storage.is_parameter
    if is_projected or (is_fixed and projects("mm", views)):
        return [*batch, as_rows(of_left[-2]), feature(sizes[-1])]
    if left.storage.is_parameter and not right.storage.is_parameter:
        return [*batch, feature(sizes[-2]), as_rows(of_right[-1])]
    return [*batch, of_left[-2], of_right[-1]]


def factors(left: View, right: View) -> tuple[Axes, Axes]:
    """The axes of both factors of a product."""
    return of_factor(left), of_factor(right)


def of_factor(view: View) -> Axes:
    """The axes of a factor of a product.

    Whether axes of one that parameters alone have made are features is not known: learned queries
    are rows, and a weight matrix that was put together has features.
    """
    axes = view.axes()
    if not view.storage.is_made:
        return axes
    return [
        None if parts is None else tuple(part._replace(feature=None) for part in parts)
        for parts in axes
    ]


def _beside(
    size: int, one: Parts | None, other: Parts | None, is_left: bool, is_right: bool
) -> Parts | None:
    """A batch axis of a product, which both factors have.

    Where parameters have it too, as of heads with a weight matrix each, it becomes features.
    """
    made = []
    for shared in common(size, [one, other]):
        first, second = shared.parts
        if is_left != is_right:
            of_parameters, given = (first, second) if is_left else (second, first)
            if of_parameters is not None and not of_parameters.axis.is_copy:
                made.append((given or of_parameters)._replace(feature=True))
                continue
            first, second = None if given is None else _as_row(given), None
        known = [part for part in (first, second) if part is not None]
        if not known:
            return None
        made.append(next((part for part in known if not part.axis.is_copy), known[0]))
    return tuple(made)


def _linear(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    return [*map(as_rows, views[0].axes()[:-1]), feature(sizes[-1])]


def _convolution(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """Channels are features; what stands beside them is batch and space, if it was no features.

    Heads stand there too where each is convolved for itself, or a convolution goes along features.
    """
    batch, _, *space = views[0].axes()
    return [
        None if batch is None else tuple(map(_beside_channels, batch)),
        feature(sizes[1]),
        *(_space(parts, size) for parts, size in zip(space, sizes[2:], strict=True)),
    ]


def _beside_channels(part: Part) -> Part:
    """A part of the batch, which stands beside the channels; it may be heads if it was features."""
    if part.may_be_heads:
        return part
    return part._replace(feature=None if part.feature else False)


def _space(parts: Parts | None, size: int) -> Parts:
    """A new axis of space, which is of features or may be heads where the one before was."""
    if size == 1:
        return ()
    if any(part.feature for part in parts or ()):
        return feature(size)
    if parts is None or any(part.may_be_heads for part in parts):
        return (Part(Axis(size, is_doubtful=True), 1, size),)
    return (Part(Axis(size), 1, size, False),)


def _embedding(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    return [*map(as_rows, views[1].axes()), feature(sizes[-1])]


def _attended(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    query, _, value = views[:3]
    return [*query.axes()[:-1], value.axes()[-1]]


def _cat(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    dim = told["dim"] % len(sizes)
    pieces = [view for view in views if len(view.sizes) == len(sizes)]
    read = [view.axes() for view in pieces]
    made: Axes = []
    for axis in range(len(sizes)):
        several = [axes[axis] for axes in read]
        made.append(
            _joined(several, sizes[dim], told["steps"])
            if axis == dim
            else max((one for one in several if one is not None), key=_knowledge, default=None)
        )
    return made


def _joined(several: list[Parts | None], size: int, outer: Parts | None) -> Parts | None:
    """The axis along which `cat` puts pieces one after another.

    several: the parts of that axis in each piece.
    outer: the part that counts the pieces, where they stand at equal distances in one storage, as
        `split` leaves them; joined again they are the axis that was split.
    """
    first = several[0]
    if outer is not None and first is not None and all(one is not None for one in several):
        return (*outer, *first)
    flags = {part.feature for parts in several for part in parts or ()}
    if first and flags == {False} and all(parts == first and are_whole(first) for parts in several):
        return (Part(Axis(len(several)), 1, len(several), False), *first)  # the same again
    if first and len(first) == 1 and all(_is_alike(first, parts) for parts in several):
        return _of_pieces(first[0], size)
    flag = flags.pop() if len(flags) == 1 and None not in several else None
    return (Part(Axis(size, is_doubtful=flag is None), 1, size, flag),)


def _of_pieces(piece: Part, size: int) -> Parts:
    """The axis that pieces of one axis make, which may stand in it in any order."""
    if piece.axis.given is None:
        return (piece._replace(size=size),)
    return put_elsewhere((piece,), size, piece.feature, "cat", piece.axis.is_doubtful)


def _is_alike(one: Parts, other: Parts | None) -> bool:
    """Whether both are pieces of one axis, such as the halves that rotary positions swap."""
    return (
        other is not None
        and len(other) == 1
        and (one[0].axis, one[0].step, one[0].feature)
        == (other[0].axis, other[0].step, other[0].feature)
    )


def _stack(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    dim = told["dim"] % len(sizes)
    beside = (*sizes[:dim], *sizes[dim + 1 :])
    made = broadcast(views, beside, told)
    axis = Axis(sizes[dim], is_doubtful=True)
    new: Parts = (Part(axis, 1, sizes[dim]),) if sizes[dim] > 1 else ()
    return [*made[:dim], told["steps"] or new, *made[dim:]]


def _repeat(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    times = told["repeats"]
    axes: Axes = [()] * (len(sizes) - len(views[0].sizes)) + views[0].axes()
    return [
        parts
        if parts is None or count == 1
        else ((Part(Axis(count, is_copy=True), 1, count)), *parts)
        for parts, count in zip(axes, times, strict=True)
    ]


def _reduce(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    axes = views[0].axes()
    gone = told["dims"]
    if len(sizes) == len(axes):
        return [() if axis in gone else parts for axis, parts in enumerate(axes)]
    return [parts for axis, parts in enumerate(axes) if axis not in gone]


OTHERS: dict[str, Rule] = {
    "linear": _linear,
    "convolution": _convolution,
    "embedding": _embedding,
    "cat": _cat,
    "stack": _stack,
    "repeat": _repeat,
    **dict.fromkeys(SDPA_KERNELS, _attended),
    "_transformer_encoder_layer_fwd": _linear,
    "_native_multi_head_attention": _linear,
    **dict.fromkeys(REDUCE, _reduce),
}


def arguments_of_rule(name: str, given_by_name: dict[str, Any]) -> dict[str, Any]:
    """What a rule needs to know of an operation's arguments, such as the `dim` of `cat`.

    Args:
        name: the operation, as in `aten`.
        given_by_name: its arguments.
    """
    if name == "repeat":
        return {"repeats": given_by_name["repeats"]}
    if name in ("cat", "stack"):
        pieces, dim = given_by_name["tensors"], given_by_name.get("dim", 0)
        return {"dim": dim, "steps": None, "pieces": pieces}
    if name in REDUCE:
        given, dims = given_by_name["self"], given_by_name.get("dim")
        dims = range(given.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
        return {"dims": {dim % max(1, given.ndim) for dim in dims}}
    if moves(name):
        return {"moved": dims_moved(name, given_by_name), "by": name}
    return {}


def steps_between(pieces: Sequence[Tensor], view: View) -> Parts | None:
    """The part that counts pieces of one storage at equal distances, as `split` gives them.

    For `q1, q2 = q.split(H * d // 2, dim=-1)` it is the part of the features of step H · d / 2 and
    size 2. None where the pieces do not stand like that.
    """
    first = pieces[0]
    offsets = [piece.storage_offset() * piece.element_size() for piece in pieces]
    distances = {after - before for before, after in itertools.pairwise(offsets)}
    one = first.untyped_storage()._cdata
    alike = all(
        piece.shape == first.shape
        and piece.stride() == first.stride()
        and piece.untyped_storage()._cdata == one
        for piece in pieces
    )
    if len(pieces) < 2 or len(distances) != 1 or not alike or min(distances) <= 0:
        return None
    return View(view.storage, (len(pieces),), (int(distances.pop()),)).axes()[0]


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a plain dense tensor, whose axes can be read off its strides."""
    return type(value) in DENSE and value.layout == torch.strided and not value.is_nested


DENSE = (Tensor, torch.nn.Parameter)
