"""What an einsum's letters say of weights: which axes are queries, keys, heads and texts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.seen import Texts

DOTS = "ABCDEFGH"  # letters for what stands for "...", the last ones first


class Letters(NamedTuple):
    """Those of an einsum of two tensors: of the weights, of the other one, and of the result."""

    own: str
    other: str
    made: str

    @classmethod
    def of(cls, operands: list[Any], weights: Tensor, output: Tensor) -> Letters | None:
        """None where it is no einsum, or not one of two tensors that says what comes out."""
        if not isinstance(operands[0], str):
            return None
        given, arrow, made = operands[0].replace(" ", "").partition("->")
        parts, tensors = given.split(","), operands[1:]
        if not arrow or len(parts) != 2:
            return None
        opened = [_opened(part, one.ndim) for part, one in zip(parts, tensors, strict=True)]
        own, other = opened if tensors[0] is weights else reversed(opened)
        return cls(own, other, _opened(made, output.ndim))

    @property
    def keys(self) -> list[str]:
        """What is summed over."""
        return [axis for axis in self.own if axis in self.other and axis not in self.made]

    @property
    def queries(self) -> list[str]:
        """What only the weights have."""
        return [axis for axis in self.own if axis in self.made and axis not in self.other]

    def is_sum_over(self, axis: int | None, weights: Tensor, texts: Texts) -> bool:
        """Whether it adds values up over an axis of the weights, None being any of them.

        Where each row has values of its own, it is one query of each text, or a mixture of
        something else, such as experts' outputs.
        """
        if len(self.keys) != 1:
            return False
        place = self.own.index(self.keys[0])
        rows = weights.numel() // max(1, weights.shape[place])
        is_of_texts = bool(self.queries) or texts(rows, ()) == rows
        return axis in (place, None) and is_of_texts

    def in_order(self, weights: Tensor, texts: Texts) -> Tensor:
        """The weights as (…, N, M).

        Axes that stand after the queries in what comes out are of heads, and so are all where no
        axis is as long as there are texts.
        """
        own, made, keys = self.own, self.made, self.keys
        queries = self.queries[-1:]  # the others are of heads that share values
        size = dict(zip(own, weights.shape, strict=True))
        lead = [axis for axis in own if axis not in (*keys, *queries)]
        ordered = weights.permute([own.index(axis) for axis in (*lead, *queries, *keys)])
        if not queries:
            return ordered.reshape(-1, 1, 1, size[keys[0]])
        place = made.index(queries[0])
        if any(axis not in made for axis in lead) or all(made.index(axis) < place for axis in lead):
            return ordered
        lead.sort(key=made.index)
        batch = [axis for axis in lead if made.index(axis) < place]
        if not batch:
            N, M = size[queries[0]], size[keys[0]]
            B = texts(weights.numel() // max(1, N * M), (N, M))
            batch = next((lead[: i + 1] for i, axis in enumerate(lead[:-1]) if size[axis] == B), [])
        heads = [axis for axis in lead if axis not in batch]
        ordered = weights.permute([own.index(axis) for axis in (*batch, *heads, *queries, *keys)])
        count = math.prod(size[axis] for axis in batch)
        return ordered.reshape(count, -1, *ordered.shape[-2:])


def _opened(part: str, axes: int) -> str:
    """With a letter for each axis that the dots stand for."""
    dots = axes - len(part.replace("...", ""))
    return part.replace("...", DOTS[len(DOTS) - dots :]) if "..." in part else part
