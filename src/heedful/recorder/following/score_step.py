"""One operation on a tensor that is scores or weights, as those read it who tell what comes of it.

`score_changes.py` and `exponents.py` ask it for what they need: the other operand, the factor that
stands before each operand of a sum, whether the other operand is the sum of these very scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.following.scores import Change, Scores, Total, is_same
from heedful.recorder.following.strides import Parts, length


class Operation(NamedTuple):
    """One operation on a tensor that is scores or weights.

    name: as in `aten`, without the final _ of an operation in place.
    arguments, keywords: what it was called with.
    place: which of the arguments has the role.
    axes: the parts of that argument.
    given: that argument, None where it was changed in place.
    made: the result.
    is_noise: tells whether a tensor was drawn at random.
    role_of: tells what a tensor is in attention.
    is_parameter: tells whether a tensor is one of the model's parameters.
    """

    name: str
    arguments: tuple
    keywords: dict[str, Any]
    place: int
    axes: list[Parts]
    given: Tensor | None
    made: Tensor
    is_noise: Callable[[Tensor], bool]
    role_of: Callable[[Any], Any]
    is_parameter: Callable[[Tensor], bool]

    @property
    def other(self) -> Any:
        """The other one of two operands; None where there are not two."""
        return self.arguments[1 - self.place] if len(self.arguments) == 2 else None

    @property
    def roles_beside(self) -> list[Any]:
        """The roles of all arguments but that which has the role that is followed."""
        others = (one for at, one in enumerate(self.arguments) if at != self.place)
        return [self.role_of(one) for one in others]

    @property
    def signs(self) -> tuple[float, float]:
        """The factors of this operand and of the other one in `add`, `sub` and `rsub`."""
        alpha = float(self.keywords.get("alpha", 1))
        if self.name == "rsub":
            return -alpha, 1.0
        second = -alpha if self.name == "sub" else alpha
        return (second, 1.0) if self.place == 1 else (1.0, second)

    @property
    def has_changed_nothing(self) -> bool:
        """Whether the result has the same numbers, as after a clamp whose bounds none reaches.

        What was changed in place is told by the other operand: a table of ones.
        """
        if self.given is not None:
            return is_same(self.given, self.made)
        is_divided = self.name == "div" and not self.keywords.get("rounding_mode")
        is_factor = self.name == "mul" or (is_divided and self.place == 0)
        return is_factor and isinstance(self.other, Tensor) and bool((self.other == 1).all())

    @property
    def has_its_shape(self) -> bool:
        """Whether the result has the shape of the operand that has the role."""
        return self.made.shape == tuple([length(parts) for parts in self.axes])

    def onto(
        self,
        role: Scores,
        kind: str,
        value: Any,
        source: Tensor | None = None,
        number: Any = -math.inf,
    ) -> Scores:
        """The scores after this operation, which is one more change of them."""
        return role.then(Change(kind, value, self.axes, self.made.dtype, source, number))

    def total_of(self, role: Scores) -> Total | None:
        """The total that the other operand is, where it is the total of these very scores."""
        found = self.role_of(self.other)
        total = found.total if isinstance(found, Scores) else None
        return total if total is not None and total.of is role else None


def is_of_bits(table: Tensor) -> bool:
    """Whether a table has zeros, and else only ones."""
    return bool(((table == 0) | (table == 1)).all()) and bool((table == 0).any())


def number_of(value: Any) -> float | None:
    """A number, also one in a tensor; None for a tensor of several."""
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value)
