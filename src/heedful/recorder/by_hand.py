"""The last door: attention written by hand, where only a softmax and a product can be seen.

A softmax whose result is then multiplied with something is taken for attention; its weights are
kept as the product had them, N × M of them, since their causes are not known. A mixture of other
things than values looks the same, so what this door sees carries its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from heedful.recorder.seen import See, Seen, Texts, of_weights
from heedful.recorder.softmax import Softmaxes
from heedful.recorder.spelled import Letters

DROPOUT = {F.dropout, torch.dropout}
PRODUCT = {
    torch.matmul,
    torch.bmm,
    torch.mm,
    Tensor.matmul,
    Tensor.bmm,
    Tensor.mm,
    Tensor.__matmul__,
}
TIMES, SUM = {torch.mul, Tensor.mul}, {torch.sum, Tensor.sum}
# After which the axis of a softmax is not known: it has moved, or, as of slots, is divided by sums
MOVES = {"transpose", "permute", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "__get__"}
DIVIDES = {"div", "div_", "true_divide"}
# What makes no weights of weights, costs much, or changes its module
ONCE = {F.linear, F.conv1d, F.conv2d, F.conv3d, F.batch_norm, F.instance_norm}
STEPS = 8  # of a softmax's result that are held: what is long followed is no attention
AT_ONCE = 2  # softmaxes whose products are still to come, as where two sides see each other
DOOR = "softmax and a product (weights alone)"


class Form(NamedTuple):
    """A tensor that the model has made of a softmax's result, and the same before any dropout.

    axis: that of the softmax; None where it may have moved.
    glimpse: two rows of what the softmax took, by which others of the same scores are known.
    folded: the shape that it had before heads were put among the queries; None where none were.
    """

    tensor: Tensor
    weights: Tensor
    axis: int | None
    glimpse: Tensor | None = None
    folded: torch.Size | None = None

    @property
    def is_moved(self) -> bool:
        """Whether it is each value times its weight, (…, N, M, d), whose sum is to come."""
        return self.tensor.ndim > self.weights.ndim


class ByHand:
    """Follows what a softmax gave, through casts, gates and dropout, up to a product.

    Args:
        see: is told of what was followed.
        here: whether what runs now is to be told; asked only where something could be.
        texts: of how many texts so many tables of some lengths are, to part (B · H, N, M) by.
    """

    def __init__(self, see: See, here: Callable[[], bool], texts: Texts) -> None:
        self.see, self.here, self.texts = see, here, texts
        self._softmaxes = Softmaxes()
        self._followed: list[list[Form]] = []  # a list for each softmax

    def follow(self, function: Any, arguments: tuple, keywords: dict, output: Any) -> None:
        """Take in what a function of torch was given and gave; never ends the pass it watches."""
        try:
            self._follow(function, arguments, keywords, output)
        except Exception as error:
            self._followed = []
            self.see(_failed, error)

    def _follow(self, function: Any, arguments: tuple, keywords: dict, output: Any) -> None:
        axis = self._softmaxes.axis_of(function, arguments, keywords, output)
        if axis is not None:
            if self.here():
                operands = _operands(arguments, keywords)
                form = Form(output, output, axis, _glimpse(operands[0]))
                self._followed = [*self._followed[1 - AT_ONCE :], [form]]
            return
        if not self._followed:
            return
        operands = _operands(arguments, keywords)
        found = self._given(operands)
        if found is None or not self.here():
            return
        forms, form = found
        if self._is_product(function, operands, form, output):
            self._tell(forms, form, operands, output)
        elif form.is_moved:
            if function in SUM and _is_of_keys(arguments, keywords, form.tensor):
                self._tell(forms, form, [form.tensor], output)
        elif function in TIMES and _moves(form.tensor, operands):
            forms.append(Form(output, form.weights.squeeze(-1), None))
        elif _goes_on(output, form.tensor):
            weights = _before_dropout(function, arguments, keywords, output, form)
            axis = _axis_after(function, output, form)
            forms.append(Form(output, weights, axis, folded=_folded(output, form)))
            del forms[1:-STEPS]

    def _tell(self, forms: list[Form], form: Form, operands: list[Any], output: Tensor) -> None:
        others = [other for other in self._followed if other is not forms]
        if any(_are_factors(forms[0], other[0]) for other in others):
            self._followed = []
            self.see(_of_factors)
        else:
            self._followed = others
            self.see(translated, self.texts, form, operands, output)

    def _is_product(self, function: Any, operands: list[Any], form: Form, output: Tensor) -> bool:
        """Whether weights are multiplied with values, and added up over the softmax's axis."""
        if function in PRODUCT:
            axis = form.tensor.ndim - (1 if operands[0] is form.tensor else 2)
            return form.axis in (axis, None)
        if function is not torch.einsum:
            return False
        letters = Letters.of(operands, form.tensor, output)
        return letters is None or letters.is_sum_over(form.axis, form.tensor, self.texts)

    def _given(self, operands: list[Any]) -> tuple[list[Form], Form] | None:
        """The form of the weights that is among the operands, and all of its softmax."""
        return next(
            (
                (forms, form)
                for forms in reversed(self._followed)
                for one in operands
                for form in reversed(forms)
                if one is form.tensor
            ),
            None,
        )


def translated(texts: Texts, form: Form, operands: list[Any], output: Tensor) -> Seen:
    """The weights of a product as all doors tell a call."""
    letters = Letters.of(operands, form.tensor, output)
    if letters is not None:
        weights = letters.in_order(form.weights, texts)
    elif operands[0] is form.tensor:
        weights = _of_groups(form.weights, operands[1:])
    elif isinstance(operands[0], str):
        weights = form.weights
    else:
        weights = _of_groups(form.weights.mT, operands[:1])
    if form.folded is not None and weights.shape[-1] == form.folded[-1]:
        weights = weights.reshape(form.folded)
    if weights.ndim == 3:
        parts = texts(len(weights), weights.shape[1:])
        weights = weights.unflatten(0, (parts, -1))
    elif weights.ndim > 4:
        weights = weights.flatten(0, -4)
    return of_weights(weights[(None,) * (4 - weights.ndim)], DOOR)


def _glimpse(scores: Any) -> Tensor | None:
    """The first and the last row of scores, of which padding may hide one."""
    if not isinstance(scores, Tensor) or not scores.numel():
        return None
    return scores.detach()[(0,) * (scores.ndim - 2)][[0, -1]]


def _are_factors(keys: Form, queries: Form) -> bool:
    """Whether two softmaxes are those of linear attention: of keys over all places, and of queries.

    Two of the same scores, one for each side of a cross-attention, are not: rows of them are equal
    but for a mask, where those of others are so by chance, or where they are 0.
    """
    one, other = keys.tensor.shape, queries.tensor.shape
    if keys.glimpse is None or queries.glimpse is None or keys.axis in (None, queries.axis):
        return False
    unequal = [axis for axis, size in enumerate(one) if [size] != [*other[axis : axis + 1]]]
    if len(one) != len(other) or unequal not in ([], [keys.axis]) or other[keys.axis] == 1:
        return False
    same = (keys.glimpse == queries.glimpse) & (keys.glimpse != 0) if not unequal else None
    return same is None or int(same.sum()) <= same.numel() // 8


def _failed(error: Exception) -> Seen:
    raise error


def _of_factors() -> Seen:
    raise TypeError("linear attention: a softmax of queries, one of keys, and no map of the two")


def _of_groups(weights: Tensor, others: list[Any]) -> Tensor:
    """Heads that share values as one axis with the key heads before it."""
    if weights.ndim != 5 or weights.shape[2] == 1 or not others or others[0].ndim != 5:
        return weights
    is_shared = others[0].shape[2] == 1 or others[0].stride(2) == 0
    return weights.flatten(1, 2) if is_shared else weights


def _operands(arguments: tuple, keywords: dict) -> list[Any]:
    """All that a function was given, in its order; lists opened, as an einsum may have one."""
    given = [*arguments, *(keywords[name] for name in sorted(keywords))]  # input, mat2 or other
    lists = (tuple, list)
    return [part for one in given for part in (one if isinstance(one, lists) else (one,))]


def _folded(output: Tensor, form: Form) -> torch.Size | None:
    """The shape before heads and queries became one axis, if they did now or before."""
    before = form.tensor
    if output.ndim == before.ndim:
        return form.folded
    fewer = output.ndim < before.ndim and output.shape[-1] == before.shape[-1]
    if not fewer or output.shape[-2] == before.shape[-2]:
        return None
    return before.shape if torch.equal(output.reshape(before.shape), before) else None


def _axis_after(function: Any, output: Tensor, form: Form) -> int | None:
    """That of the softmax after one more function; None where it may have moved."""
    before = form.tensor
    if form.axis is None or getattr(function, "__name__", "") in MOVES | DIVIDES:
        return None
    if output.ndim == before.ndim and output.shape[form.axis] == before.shape[form.axis]:
        return form.axis
    is_last = form.axis == before.ndim - 1 and output.shape[-1] == before.shape[-1]
    return output.ndim - 1 if is_last else None


def _goes_on(output: Any, form: Tensor) -> bool:
    """Whether weights are still weights: as many, or without the last keys, such as a sink's."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return False
    is_part = output.shape[:-1] == form.shape[:-1] and output.shape[-1] < form.shape[-1]
    return output.numel() == form.numel() or is_part


def _before_dropout(
    function: Any, arguments: tuple, keywords: dict, output: Tensor, form: Form
) -> Tensor:
    if function in DROPOUT:
        return form.weights
    if form.weights is form.tensor or function in ONCE:
        return output
    weights = form.weights.clone() if output is form.tensor else form.weights
    instead = (weights if one is form.tensor else one for one in arguments)
    with torch.random.fork_rng([weights.device] if weights.is_cuda else []):
        return function(*instead, **keywords)  # which may draw, and the model must not notice


def _moves(weights: Tensor, operands: list[Any]) -> bool:
    """Whether weights (…, N, M, 1) are multiplied with values (…, 1, M, d)."""
    _, other = operands if operands[0] is weights else reversed(operands)
    if not isinstance(other, Tensor) or other.ndim < 2:
        return False
    is_of_keys = other.ndim == 2 or other.shape[-3] == 1  # the same for all queries
    fits = weights.shape[-2:] == (other.shape[-2], 1)
    return is_of_keys and fits and other.shape[-1] > 1


def _is_of_keys(arguments: tuple, keywords: dict, moved: Tensor) -> bool:
    """Whether a sum goes over the axis of the keys."""
    dim = keywords.get("dim", arguments[1] if len(arguments) > 1 else None)
    return dim in (-2, moved.ndim - 2)
