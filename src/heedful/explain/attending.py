"""From query, key and value to the joined heads, as stages.

A stage with a number for each pair of tokens is never made whole unless somebody asks for it: it
is a function of its causes, the queries and keys, and each of its rows is computed from those.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor, nn

from heedful.explain.stages import Part, Stage, held
from heedful.layers import Heads
from heedful.ops import Steps, attention, steps
from heedful.ops.masks import Causal

PURPOSES = {
    "query": "The query is what a token asks for.",
    "key": "The key is what it offers to those that ask.",
    "value": "The value is what it hands on to those that look at it.",
}


class Causes(NamedTuple):
    """What a call's map is made of: query, key and value (1, …, N, d), mask and scale."""

    heads: Heads
    causal: bool
    scale: float | None

    def rows(self, rows: Sequence[int]) -> Steps:
        """Every intermediate of some of the queries, exact, over all keys: (…, n, M)."""
        query, key, value = self.heads
        shape = (query.shape[-2], key.shape[-2])
        mask = Causal().crop(shape, queries=list(rows), device=query.device)
        return steps(
            query[..., list(rows), :],
            key,
            value,
            mask=mask if self.causal else None,
            scale=self.scale,
        )

    def part(self, name: str) -> Part:
        """Any part of one intermediate."""
        return lambda rows, columns: getattr(self.rows(rows), name)[0][..., list(columns)]

    def context(self) -> Tensor:
        """The weighted sums of values, whole, in the memory of one more value."""
        return attention(*self.heads, causal=self.causal, scale=self.scale)[0]


def attend(causes: Causes, projected: Sequence[Stage]) -> list[Stage]:
    """Scores, scaled, masked, weights, context and joined heads; what has no effect is left out.

    Args:
        causes: of the call.
        projected: the stages of the query, the key and the value.
    """
    query, key, value = projected
    shape = (*query.shape[:-1], key.shape[-2])
    width = query.shape[-1]

    def pairs(name: str, formula: str, sentence: str, *factors: Stage) -> Stage:
        both = (factors[0], factors[1]) if factors else None
        return Stage(name, shape, formula, sentence, "tokens", key.rows, causes.part(name), both)

    found = [
        pairs(
            "scores",
            f"scores = {query.name} · {key.name}ᵀ",
            "How well each query (row) fits each key (column): the products of their numbers, "
            "summed. It is larger where vectors point the same way, and where they are longer.",
            query,
            key,
        )
    ]
    before = "scores"
    if causes.scale is None:
        found.append(
            pairs(
                "scaled",
                f"scaled = scores / √{width} = scores / {math.sqrt(width):.4f}",
                f"Divided by the root of the width of a key, {width}. The wider the vectors, the "
                "larger their products; in wide layers softmax would give nearly all to one token.",
            )
        )
        before = "scaled"
    if causes.causal:
        found.append(
            pairs(
                "masked",
                f"masked = {before} where column ≤ row, elsewhere -inf",
                "No token may look at a later one: those scores become minus infinity.",
            )
        )
        before = "masked"
    weights = pairs(
        "weights",
        f"weights = softmax({before}), each row by itself",
        "e to the power of each score, divided by the sum of its row: positive shares that sum "
        "to 1. A row says where its token looks.",
    )
    context = held(
        "context",
        causes.context(),
        f"context = weights · {value.name}",
        f"For each token the {_plural(value.name)} of all tokens, each multiplied by its weight, "
        "summed: what it has gathered from those it looks at.",
        "tokens",
        (weights, value),
    )
    return [*found, weights, context]


def project(name: str, vectors: Tensor, source: Stage, table: Stage) -> Stage:
    """The stage of the query, key or value that a table of weights makes of what a layer reads."""
    several = vectors.ndim == 3
    return held(
        name,
        vectors,
        f"{name} = {source.name} · {table.name}" + (", for each head" if several else ""),
        PURPOSES[name],
        source.rows,
        (source, table),
    )


def mix(
    context: Stage, layer: nn.Linear, output: Tensor, residual: Stage | None = None
) -> list[Stage]:
    """The heads joined, the weights that mix them, and the layer's output."""
    joined = _join(context) if len(context.shape) == 3 else context
    table = held(
        "W_output",
        layer.weight.detach().T,
        "",
        f"The weights that bring width {layer.in_features} back to {layer.out_features}.",
        "width",
    )
    formula, sentence = f"output = {joined.name} · W_output", "What the layer hands on: "
    if layer.bias is not None:
        formula += " + bias"
    if residual is not None:
        formula += f" + {residual.name}"
        sentence += "its find, brought back to the width of the input and added to it (residual)."
    else:
        sentence += "each number is a mixture of all numbers of the context."
    is_product = layer.bias is None and residual is None
    factors = (joined, table) if is_product else None
    last = held("output", output, formula, sentence, "tokens", factors)
    return [*([] if joined is context else [joined]), table, last]


def _join(context: Stage) -> Stage:
    """The contexts of all heads beside each other, (N, H·d)."""
    heads, _, width = context.shape
    joined = context.numbers().transpose(0, 1).flatten(1)
    each = "1 number" if width == 1 else f"{width} numbers"
    return held(
        "joined",
        joined,
        "joined = " + _listed([f"context of head {h}" for h in range(heads)]),
        f"The contexts of {heads} heads side by side, {each} from each."
        if heads > 1
        else "There is one head: its context as it is.",
        "tokens",
    )


def _listed(names: list[str]) -> str:
    return " | ".join(names if len(names) <= 3 else [names[0], "…", names[-1]])


def _plural(name: str) -> str:
    return name if name.endswith("s") else f"{name}s"
