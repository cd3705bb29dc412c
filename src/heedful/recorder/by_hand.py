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
AT_ONCE = 2  # softmaxes whose products are still to come, as where two sides see each other
DOOR = "softmax and a product (weights alone)"


class Form(NamedTuple):
    """A tensor that the model has made of a softmax's result, and the same before any dropout.

    `folded` is the shape that it had before heads were put among the queries; None where none were.
    """

    tensor: Tensor
    weights: Tensor
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
        """Take in what a function of torch was given and gave."""
        if self._softmaxes.is_one(function, arguments, keywords, output):
            if self.here():
                self._followed = [*self._followed[1 - AT_ONCE :], [Form(output, output)]]
            return
        if not self._followed:
            return
        operands = _operands(arguments, keywords)
        found = self._given(operands)
        if found is None or not self.here():
            return
        forms, form = found
        if function in PRODUCT or function is torch.einsum:
            self._tell(forms, form, operands)
        elif form.is_moved:
            if function in SUM and _is_of_keys(arguments, keywords, form.tensor):
                self._tell(forms, form, [form.tensor])
        elif function in TIMES and _moves(form.tensor, operands):
            forms.append(Form(output, form.weights.squeeze(-1)))
        elif _goes_on(output, form.tensor):
            weights = _before_dropout(function, arguments, keywords, output, form)
            forms.append(Form(output, weights, _folded(output, form)))

    def _tell(self, forms: list[Form], form: Form, operands: list[Any]) -> None:
        self._followed = [other for other in self._followed if other is not forms]
        self.see(translated, self.texts, form, operands)

    def _given(self, operands: list[Any]) -> tuple[list[Form], Form] | None:
        """The form of the weights that is among the operands, and all of its softmax."""
        return next(
            (
                (forms, form)
                for forms in self._followed
                for one in operands
                for form in reversed(forms)
                if one is form.tensor
            ),
            None,
        )


def translated(texts: Texts, form: Form, operands: list[Any]) -> Seen:
    """The weights of a product as all doors tell a call."""
    spelled = operands.pop(0).replace(" ", "") if isinstance(operands[0], str) else None
    is_left = operands[0] is form.tensor
    if spelled is not None:
        weights = _spelled(spelled, form, is_left)
    else:
        weights = form.weights if is_left else form.weights.mT
    if form.folded is not None and weights.shape[-1] == form.folded[-1]:
        weights = weights.reshape(form.folded)
    if weights.ndim == 3:
        parts = texts(len(weights), weights.shape[1:])
        weights = weights.unflatten(0, (parts, -1))
    elif weights.ndim > 4:
        weights = weights.flatten(0, -4)
    return of_weights(weights[(None,) * (4 - weights.ndim)], DOOR)


def _spelled(equation: str, form: Form, is_left: bool) -> Tensor:
    """The weights with their axes in order, (…, N, M), as the letters of an einsum say."""
    given, _, made = equation.partition("->")
    own, other = given.split(",") if is_left else reversed(given.split(","))
    keys = [axis for axis in own if axis in other and axis not in made]
    queries = [axis for axis in own if axis in made and axis not in other]
    if "." in equation or len(keys) != 1 or len(queries) != 1:
        return form.weights
    lead = [axis for axis in own if axis not in (*keys, *queries)]
    return form.weights.permute([own.index(axis) for axis in (*lead, *queries, *keys)])


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


def _goes_on(output: Any, form: Tensor) -> bool:
    """Whether weights are still weights: as many, or without the last keys, such as a sink's."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return False
    return output.numel() == form.numel() or output.shape[:-1] == form.shape[:-1]


def _before_dropout(
    function: Any, arguments: tuple, keywords: dict, output: Tensor, form: Form
) -> Tensor:
    if function in DROPOUT:
        return form.weights
    if form.weights is form.tensor:
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
