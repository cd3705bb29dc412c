"""Rules of operations that multiply with parameters: they make features, and leave rows.

`x @ w` of x (batch, tokens, D) and parameters w (D, H · d) keeps batch and tokens, which stand
beside the features (`as_rows`); its last axis is a new one, of features (`feature`). A convolution
and a table of embeddings do alike. The rules have the form of `axis_rules.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from heedful.recorder.following.strides import (
    Axes,
    Axis,
    Part,
    Parts,
    Place,
    View,
    are_whole,
    common,
    written,
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


def parameter(at: Place, is_weight: bool) -> Callable[[], list[tuple[Part, int]]]:
    """The parts of a storage that holds a parameter, any axis of which may be of heads.

    Args:
        at: how it stands there.
        is_weight: whether it is the weight of a linear layer, (features, width).
    """
    return functools.partial(_of_parameter, is_weight, *at)


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
    is_fixed = right.storage.nature.is_fixed
    parts = right.axes()[at] if is_fixed else None
    return bool(parts) and all(part.feature is True for part in parts or ())


def product(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of a product (…, n, k) × (…, k, m), one factor of which may be parameters."""
    left, right = views[-2:]
    of_left, is_left = of_factor(left), left.storage.nature.is_parameter
    is_right, is_fixed = right.storage.nature.is_parameter, left.storage.nature.is_fixed
    is_projected = is_right and not is_left
    if is_projected and len(sizes) == 2:  # most products: the axes of the weights are not asked for
        return [as_rows(of_left[-2]), feature(sizes[-1])]
    of_right = of_factor(right)
    batch = [
        _beside(size, one, other, is_left, is_right)
        for size, one, other in zip(sizes[:-2], of_left, of_right, strict=False)
    ]
    if is_projected or (is_fixed and projects("mm", views)):
        return [*batch, as_rows(of_left[-2]), feature(sizes[-1])]
    if is_left and not is_right:
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
    if not view.storage.nature.is_made:
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
    if size > 1 and one is not None and one == other and is_left == is_right:
        return one
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


def linear(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of a linear layer's output, or of a layer that ends in one."""
    return [*map(as_rows, views[0].axes()[:-1]), feature(sizes[-1])]


def convolution(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
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
    """A new axis of space, which is of features or may be heads where the one before was.

    What was moved or joined along that one stays so. Tokens that stay as many are still those of
    the input, each with its neighbours beside it.
    """
    if size == 1:
        return ()
    if any(part.feature for part in parts or ()):
        return feature(size)
    before = [part.axis for part in parts or ()]
    moved = next((axis.moved for axis in before if axis.moved), "")
    joined = any(axis.joined for axis in before)
    may_be_heads = parts is None or any(part.may_be_heads for part in parts)
    place = before[0].given if len(before) == 1 else None
    is_whole = parts is not None and are_whole(parts) and before[0].size == size
    place = place if is_whole and place is not None and place[1] == 1 else None
    axis = Axis(size, place, moved, joined=joined, is_doubtful=may_be_heads)
    return (Part(axis, 1, size, None if may_be_heads else False),)


def embedding(views: list[View], sizes: tuple[int, ...], told: dict[str, Any]) -> Axes:
    """The axes of what is looked up in a table, a row for each id."""
    return [*map(as_rows, views[1].axes()), feature(sizes[-1])]
