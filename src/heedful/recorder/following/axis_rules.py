"""Rules that say which axes the result of an operation has, given the axes of its operands.

Only an operation that makes a new storage needs a rule: a view is read off its strides
(`strides.py`). Each rule takes the operands as `View`s, the sizes of the result and what
`arguments_of_rule` says of the call, and returns the `Parts` of each axis of the result, None for
an axis of which nothing is known. Where an operation has no rule, all axes of its result are new.

An example: q = x @ w of x (batch, tokens, D) and parameters w (D, H · d) keeps batch and tokens;
its last axis is a new one, of features (`feature_rules.py`). `q.view(B, N, H, d)` then needs no
rule: its heads are found to be a part of that axis, and so features, while its tokens are not. That
is how heads are told from the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor

from heedful.recorder.following.feature_rules import convolution, embedding, linear, product
from heedful.recorder.following.moved import dims_moved, moved, moves, put_elsewhere
from heedful.recorder.following.natures import NORMS
from heedful.recorder.following.pieces import Together
from heedful.recorder.following.strides import Axes, Axis, Part, Parts, View, are_whole

Rule: TypeAlias = Callable[[list[View], tuple[int, ...], dict[str, Any]], Axes]

# Which argument is the left factor
PRODUCTS = {"mm": 0, "bmm": 0, "matmul": 0, "addmm": 1, "baddbmm": 1}
# Fused kernels of scaled_dot_product_attention
SDPA_KERNELS = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    EFFICIENT := "_efficient_attention_forward",  # of tokens × heads, as `CausalBias` calls it
)
# The result has the axes of its operand: each number is made from its own row or channel
SAME = NORMS | {
    "_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "clone", "_to_copy",
    "native_dropout", "_thnn_fused_gru_cell", "_thnn_fused_lstm_cell", "cumsum", "tril", "triu",
    "_conj_physical",
}  # fmt: skip
REDUCE = {"sum", "mean", "amax", "amin", "var", "std", "logsumexp", "linalg_vector_norm", "prod"}


def is_of_one_batch(left: Any, right: Any) -> bool:
    """Whether two factors, (…, n, d) and (…, d, m), have the same axes before their last two."""
    if not (is_tensor(left) and is_tensor(right)) or min(left.ndim, right.ndim) < 2:
        return False
    return left.shape[:-2] == right.shape[:-2]


def rule_of(name: str, is_pointwise: bool) -> Rule | None:
    """The rule of an operation of this name; None where it has none."""
    if name in PRODUCTS:
        return product
    if is_pointwise or name in SAME:
        return broadcast
    return _moved if moves(name) else OTHERS.get(name)


def broadcast(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of operands that broadcast: each from the operand that says most about it."""
    if len(views) == 1 and views[0].sizes == sizes:
        return views[0].axes()
    read = [(view, view.axes()) for view in views if len(view.sizes) <= len(sizes)]
    made: Axes = []
    for back in range(len(sizes), 0, -1):
        size = sizes[-back]
        told_of = [
            axes[-back] for view, axes in read if back <= len(axes) and view.sizes[-back] == size
        ]
        made.append(_most_telling(told_of))
    return made


def _moved(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of numbers put elsewhere; `weight[ids]` looks up rows as an embedding does."""
    table, *indices = views
    is_looked_up = told["by"] == "index" and table.storage.nature.is_parameter
    if is_looked_up and len(table.sizes) == 2 and len(indices) == 1 and indices[0].unit > 1:
        return embedding(views, sizes, told)
    return moved(views, sizes, told)


def _most_telling(several: Axes) -> Parts | None:
    """What says most about an axis, of which most often all say the same; None if none is known."""
    if several and several.count(several[0]) == len(several):
        return several[0]
    return max((parts for parts in several if parts is not None), key=_knowledge, default=None)


def _knowledge(parts: Parts | None) -> tuple[bool, ...]:
    """How much an operand says about an axis, as a key for `max`.

    No copy (as of `expand`) beats a copy; then known features or rows; then an axis of an input,
    the last of these one that only stands beside others. Of two such inputs, one whose order is
    lost: what both together hold has none.
    """
    is_copy = is_told = is_given = is_aside = is_moved = False
    for axis, _, _, feature in parts or ():
        is_copy |= axis.is_copy
        is_told |= feature is not None
        is_given |= axis.given is not None
        is_aside |= axis.is_aside
        is_moved |= bool(axis.moved)
    return not is_copy, is_told, is_given, not is_aside, is_moved


def _attended(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    query, _, value = views[:3]
    return [*query.axes()[:-1], value.axes()[-1]]


def _cat(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    dim = told["dim"] % len(sizes)
    pieces = [view for view in views if len(view.sizes) == len(sizes)]
    pieces = [view for view in pieces if view.sizes[dim]] or pieces  # a cache begins with no tokens
    read = [view.axes() for view in pieces]
    if len(read) == 1:  # as einops' `pack` has it
        return read[0]
    made: Axes = []
    for axis in range(len(sizes)):
        several = [axes[axis] for axes in read]
        made.append(
            _joined(several, sizes[dim], told["together"])
            if axis == dim
            else _most_telling(several)
        )
    return made


def _joined(several: list[Parts | None], size: int, stand: Together) -> Parts | None:
    """The axis along which `cat` puts pieces one after another.

    several: the parts of that axis in each piece.
    stand: how they stand in one storage.
    """
    first = several[0]
    if first is not None and all(one is not None for one in several):
        if stand.outer is not None:
            return (*stand.outer, *first)
        known = stand.whole or stand.elsewhere(several, size, "cat")
        if known is not None:
            return known
    flags = {part.feature for parts in several for part in parts or ()}
    if first and flags == {False} and all(parts == first and are_whole(first) for parts in several):
        again = Axis(len(several), is_again=True)
        return (Part(again, 1, len(several), False), *first)
    if first and len(first) == 1 and all(_is_alike(first, parts) for parts in several):
        return _of_pieces(first[0], size)
    flag = flags.pop() if len(flags) == 1 and None not in several else None
    is_of_input = any(part.axis.given is not None for parts in several for part in parts or ())
    return (Part(Axis(size, joined=is_of_input, is_doubtful=flag is None), 1, size, flag),)


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
    stand = told["together"]
    known = stand.outer or stand.elsewhere([()], sizes[dim], "stack")
    return [*made[:dim], known or new, *made[dim:]]


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
    "linear": linear,
    "convolution": convolution,
    "embedding": embedding,
    "cat": _cat,
    "stack": _stack,
    "repeat": _repeat,
    **dict.fromkeys(SDPA_KERNELS, _attended),
    "_transformer_encoder_layer_fwd": linear,
    "_native_multi_head_attention": linear,
    **dict.fromkeys(REDUCE, _reduce),
}


def is_asked(name: str) -> bool:
    """Whether the rule of an operation asks for its arguments."""
    return name in ("repeat", "cat", "stack") or name in REDUCE or moves(name)


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
        return {"dim": dim, "pieces": pieces}
    if name in REDUCE:
        given, dims = given_by_name["self"], given_by_name.get("dim")
        dims = range(given.ndim) if dims is None else [dims] if isinstance(dims, int) else dims
        return {"dims": {dim % max(1, given.ndim) for dim in dims}}
    if moves(name):
        return {"moved": dims_moved(name, given_by_name), "by": name}
    return {}


def is_tensor(value: Any) -> TypeGuard[Tensor]:
    """Whether a value is a plain dense tensor, whose axes can be read off its strides."""
    return type(value) in DENSE and value.layout is STRIDED and not value.is_nested


DENSE, STRIDED = (Tensor, torch.nn.Parameter), torch.strided
