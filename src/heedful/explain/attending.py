"""From query, key and value to the joined heads, as stages.

A stage with a number for each pair of tokens is never made whole unless somebody asks for it: it
is a function of its causes, the queries and keys, and each of its rows is computed from those.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from heedful.explain.stages import Formula, How, Part, Stage, held, reader_of
from heedful.layers import Heads
from heedful.ops import Steps, attention, steps
from heedful.ops.masks import Causal, Mask, Window

PURPOSES = {
    "query": "The query is what a token asks for.",
    "key": "The key is what it offers to those that ask.",
    "value": "The value is what it hands on to those that look at it.",
}


class Causes(NamedTuple):
    """What a call's map is made of: query, key and value (1, …, N, d), mask and scale."""

    heads: Heads
    causal: bool = False
    scale: float | None = None
    mask: Mask | None = None

    def rows(self, rows: Sequence[int]) -> Steps:
        """Every intermediate of some of the queries, exact, over all keys: (…, n, M)."""
        query, key, value = self.heads
        mask, allowed = self._mask(), None
        if mask is not None:
            shape = (query.shape[-2], key.shape[-2])
            allowed = mask.crop(shape, queries=list(rows), device=query.device)
        return steps(query[..., list(rows), :], key, value, mask=allowed, scale=self.scale)

    def part(self, name: str) -> Part:
        """Any part of one intermediate."""
        return lambda rows, columns: getattr(self.rows(rows), name)[0][..., list(columns)]

    def context(self) -> Tensor:
        """The weighted sums of values, whole, in the memory of one more value."""
        return attention(*self.heads, mask=self.mask, causal=self.causal, scale=self.scale)[0]

    def _mask(self) -> Mask | None:
        parts = [*([Causal()] if self.causal else []), *([self.mask] if self.mask else [])]
        return functools.reduce(operator.and_, parts) if parts else None


def attend(causes: Causes, projected: Sequence[Stage]) -> list[Stage]:
    """Scores, scaled, masked, weights, context and joined heads; what has no effect is left out.

    Args:
        causes: of the call.
        projected: the stages of the query, the key and the value, as they attend.
    """
    query, key, value = projected
    shape = (*query.shape[:-1], key.shape[-2])
    width = query.shape[-1]

    def pairs(name: str, formula: str, sentence: str, **more: Any) -> Stage:
        part = causes.part(name)
        return Stage(name, shape, formula, sentence, query.rows, key.rows, part, kind=name, **more)

    scores = pairs(
        "scores",
        f"scores = {query.name} · {key.name}ᵀ",
        "How well each query (row) fits each key (column): the products of their numbers, "
        "summed. It is larger where vectors point the same way, and where they are longer.",
        factors=(query, key),
    )
    found = [scores]
    if causes.scale is None:
        found.append(
            pairs(
                "scaled",
                f"scaled = scores / √{width} = scores / {math.sqrt(width):.4f}",
                f"Divided by the root of the width of a key, {width}. The wider the vectors, the "
                "larger their products; in wide layers softmax would give nearly all to one token.",
                how=_divided(scores, math.sqrt(width)),
                sources=(scores,),
                reads="number",
            )
        )
    if causes.causal or causes.mask is not None:
        words = _hidden(causes, found[-1].name)
        found.append(pairs("masked", *words, sources=(found[-1],), reads="number"))
    weights = pairs(
        "weights",
        f"weights = softmax({found[-1].name}), each row by itself",
        "e to the power of each score, divided by the sum of its row: positive shares that sum "
        "to 1. A row says where its token looks.",
        sources=(found[-1],),
        reads="row",
    )
    context = held(
        "context",
        causes.context(),
        f"context = weights · {value.name}",
        f"For each token the {_plural(value.name)} of all tokens, each multiplied by its weight, "
        "summed: what it has gathered from those it looks at.",
        query.rows,
        (weights, value),
        kind="context",
    )
    return [*found, weights, context]


def _divided(scores: Stage, root: float) -> How:
    read = reader_of(scores)

    def how(head: int, row: int, column: int) -> Formula:
        return Formula("{} / {}", (read(head, row)[column], root))

    return how


def _hidden(causes: Causes, before: str) -> tuple[str, str]:
    """The formula of a mask, and what it is for."""
    where, said = [], []
    if causes.causal:
        where.append("column ≤ row")
        said.append("No token may look at a later one: those scores become minus infinity.")
    if isinstance(causes.mask, Window):
        where.append(f"column > row - {causes.mask.size}")
        said.append(f"A token sees the {causes.mask.size} latest tokens, itself with them.")
    elif causes.mask is not None:
        where.append("the mask allows")
        said.append("Pairs that the mask does not allow become minus infinity.")
    return f"masked = {before} where {' and '.join(where)}, elsewhere -inf", " ".join(said)


def project(name: str, vectors: Tensor, source: Stage, table: Stage, **more: Any) -> Stage:
    """The stage of the query, key or value that a table of weights makes of what a layer reads.

    `vectors` are (N, d), or (H, N, d); `more` are fields of the stage, such as its bias.
    """
    several = vectors.ndim == 3
    made = f"{source.name} · {table.name}" + (" + bias" if more.get("bias") is not None else "")
    chain: tuple[tuple[int, ...], ...] = ()
    if several:
        heads, count, width = vectors.shape
        split = (1, count, heads, width)
        chain = ((1, count, heads * width), split, (1, heads, count, width))
    return held(
        name,
        vectors,
        f"{name} = {made}" + (", cut into heads" if several else ""),
        PURPOSES[name],
        source.rows,
        (source, table),
        chain=chain,
        kind=name,
        **more,
    )


def mix(context: Stage, layer: nn.Linear) -> list[Stage]:
    """The heads joined, the weights that mix them, and what these make of them: the output."""
    joined = _join(context) if len(context.shape) == 3 else context
    table = held(
        "W_output",
        layer.weight.detach().T,
        "",
        f"The weights that bring width {layer.in_features} back to {layer.out_features}.",
        "width",
        kind="table",
    )
    bias = None if layer.bias is None else layer.bias.detach()
    output = held(
        "output",
        layer(joined.numbers()),
        f"output = {joined.name} · W_output" + (" + bias" if bias is not None else ""),
        "What the layer has found, "
        + (
            "each number a mixture of all numbers of the heads."
            if layer.in_features == layer.out_features
            else f"brought to the width of the input, {layer.out_features}."
        ),
        context.rows,
        (joined, table),
        bias=bias,
        kind="output",
    )
    return [*([] if joined is context else [joined]), table, output]


def added(
    name: str, parts: Sequence[Stage], sentence: str, total: Tensor, kind: str = "sum"
) -> Stage:
    """The sum of stages (N, width) of one shape."""
    read = [reader_of(stage) for stage in parts]

    def how(head: int, at: int, column: int) -> Formula:
        numbers = tuple(row(head, at)[column] for row in read)
        return Formula(" + ".join("{}" for _ in parts), numbers)

    formula = f"{name} = {' + '.join(stage.name for stage in parts)}"
    return held(
        name, total, formula, sentence, parts[0].rows,
        how=how, sources=tuple(parts), reads="number", kind=kind,
    )  # fmt: skip


def _join(context: Stage) -> Stage:
    """The contexts of all heads beside each other, (N, H·d)."""
    heads, _, width = context.shape
    joined = context.numbers().transpose(0, 1).flatten(1)
    each = "1 number" if width == 1 else f"{width} numbers"
    count = context.shape[1]

    def how(head: int, row: int, column: int) -> Formula:
        return Formula(f"number {column % width} of head {column // width}", ())

    return held(
        "joined",
        joined,
        "joined = " + _listed([f"context of head {h}" for h in range(heads)]),
        f"The contexts of {heads} heads side by side, {each} from each."
        if heads > 1
        else "There is one head: its context as it is.",
        context.rows,
        how=how,
        sources=(context,),
        reads="head",
        kind="joined",
        chain=(
            (1, heads, count, width),
            (1, count, heads, width),
            (1, count, heads * width),
        ),
    )


def _listed(names: list[str]) -> str:
    return " | ".join(names if len(names) <= 3 else [names[0], "…", names[-1]])


def _plural(name: str) -> str:
    return name if name.endswith("s") else f"{name}s"
