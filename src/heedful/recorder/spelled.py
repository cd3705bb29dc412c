"""What an einsum's letters say of weights: which axes are queries, keys, heads and texts."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from torch import Tensor

from heedful.recorder.seen import Texts

DOTS = "01234567"  # for what stands for "...", the last ones first


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
        is_of_pairs = self._query(weights) is not None  # with values of each query's own
        return axis in (place, None) and (is_of_texts or is_of_pairs)

    def _query(self, weights: Tensor) -> str | None:
        """The axis of the queries: that of the weights alone.

        Where there are several, or none, as values of each query's own leave it, one that is as
        long as the keys, and is not the first, or has one query; the others are of heads.
        """
        size = dict(zip(self.own, weights.shape, strict=True))
        own, M = self.queries, size[self.keys[0]]
        if len(own) == 1:
            return own[0]
        alike = [axis for axis in self.own if axis in self.made and size[axis] == M]
        later = [axis for axis in alike if axis != self.own[0]]
        likely = later or [axis for axis in own if axis in alike or size[axis] == 1] or own
        return likely[-1] if likely else None

    def in_order(self, weights: Tensor, texts: Texts) -> Tensor:
        """The weights as (…, N, M).

        Of the other axes, those that come to as many as there are texts are of texts; else those
        that stand before the queries in what comes out, and where all do, all but the last.
        """
        own, [key], query = self.own, self.keys, self._query(weights)
        if query is None:
            return weights.movedim(own.index(key), -1).reshape(
                -1, 1, 1, weights.shape[own.index(key)]
            )
        lead = sorted((axis for axis in own if axis not in (key, query)), key=self.made.find)
        if len(lead) < 2:  # of texts, of heads, or of both in one
            return weights.permute([own.index(axis) for axis in (*lead, query, key)])
        batch = self._batch(lead, query, weights, texts)
        heads = [axis for axis in lead if axis not in batch]
        ordered = weights.permute([own.index(axis) for axis in (*batch, *heads, query, key)])
        return ordered.reshape(math.prod(ordered.shape[: len(batch)]), -1, *ordered.shape[-2:])

    def _batch(self, lead: list[str], query: str, weights: Tensor, texts: Texts) -> list[str]:
        """Which of the axes that are neither of queries nor of keys are of texts."""
        size = dict(zip(self.own, weights.shape, strict=True))
        is_grouped = len(lead) > 2 and any(axis in self.queries for axis in lead)
        before = [axis for axis in lead if self.made.find(axis) < self.made.index(query)]
        batch = before[:-1] if before == lead else before
        if len(lead) > 2 and not is_grouped and batch:
            return batch
        rows = math.prod(size[axis] for axis in lead)
        count = texts(rows, (size[query], size[self.keys[0]]))
        firsts = [lead[:i] for i in range(1, len(lead))]
        ends = [] if is_grouped else [(one, one[-1:]) for one in firsts]  # after others of texts
        some = [(one, one) for one in firsts] + ends + [([axis], [axis]) for axis in lead]
        fits = (one for one, part in some if math.prod(size[axis] for axis in part) == count)
        return next(fits, batch)


def _opened(part: str, axes: int) -> str:
    """With a letter for each axis that the dots stand for."""
    dots = axes - len(part.replace("...", ""))
    return part.replace("...", DOTS[len(DOTS) - dots :]) if "..." in part else part
