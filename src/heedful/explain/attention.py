"""One layer's attention as stages, whether its weights are drawn or learned.

A stage with a number for each pair of tokens is never computed whole unless somebody asks for it:
each of its rows is computed from the queries and keys.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from heedful.explain.operations import linear, normed, rotated
from heedful.explain.stages import Formula, Part, Stage, held, reader_of
from heedful.layers import CrossAttention, MultiHeadAttention, SelfAttention, SimpleSelfAttention
from heedful.ops import attention, steps
from heedful.ops.masks import Causal, Mask, Window

PURPOSES = {
    "query": "The query is what a token asks for.",
    "key": "The key is what it offers to those that ask.",
    "value": "The value is what it hands on to those that look at it.",
}


def attention_stages(
    layer: nn.Module,
    source: Stage,
    memory: Stage | None = None,
    *,
    tables: str,
    causal: bool = False,
    mask: Window | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> list[Stage]:
    """Stages from a layer's tables of weights to its output.

    Args:
        layer: an attention layer of `heedful.layers`.
        source: what the layer reads, (N, width).
        memory: what keys and values are made of; default `source`.
        tables: a sentence on the weights of the projections.
        causal, mask, rotary: as the layer's `forward` takes them.
    """
    if isinstance(layer, SimpleSelfAttention):
        return attend(source, source, source, causal=causal, mask=mask, scale=1.0)
    weights, vectors = [], []
    for name, (reads, weight, bias, made) in zip(
        PURPOSES, _projections(layer, source, memory or source), strict=True
    ):
        table = held(f"W_{name}", _cut(layer, weight.T), "", tables, "width", step="tables",
                     kind="table")  # fmt: skip
        weights.append(table)
        vectors.append(_vectors(layer, name, reads, table, bias, made))
    last, more = list(vectors), []
    if isinstance(layer, MultiHeadAttention) and not isinstance(layer.query_norm, nn.Identity):
        about = "Brought to one size before they are compared, each head by itself (QK-norm)."
        norms = {"query": layer.query_norm, "key": layer.key_norm}
        last[:2] = [
            normed(f"normed {name}", vector, norm, about, step="normed", kind=name)
            for (name, norm), vector in zip(norms.items(), last, strict=False)
        ]
        more += last[:2]
    if rotary is not None:
        last[:2] = [rotated(vector, rotary) for vector in last[:2]]
        more += last[:2]
    found = [*weights, *vectors, *more, *attend(*last, causal=causal, mask=mask)]
    back = layer.output
    return found + (_mixed(found[-1], back) if isinstance(back, nn.Linear) else [])


def attend(
    query: Stage,
    key: Stage,
    value: Stage,
    *,
    causal: bool = False,
    mask: Window | None = None,
    scale: float | None = None,
) -> list[Stage]:
    """Scores, scaled, masked, weights and context; what has no effect is left out."""
    heads = [stage.numbers()[None] for stage in (query, key, value)]
    shape = (*query.shape[:-1], key.shape[-2])
    masks: list[Mask] = []
    where, effects = [], []
    if causal:
        masks.append(Causal())
        where.append("column ≤ row")
        effects.append("No token may look at a later one: those scores become minus infinity.")
    if mask is not None:
        masks.append(mask)
        where.append(f"column > row - {mask.size}")
        effects.append(f"A token sees the {mask.size} latest tokens, itself with them.")
    whole = functools.reduce(operator.and_, masks) if masks else None

    def part(name: str) -> Part:
        def of(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            asking, allowed = heads[0][..., list(rows), :], None
            if whole is not None:
                allowed = whole.crop(shape[-2:], queries=list(rows), device=asking.device)
            made = steps(asking, *heads[1:], mask=allowed, scale=scale)
            return getattr(made, name)[0][..., list(columns)]

        return of

    def pairs(name: str, formula: str, sentence: str, **more: Any) -> Stage:
        return Stage(
            name, shape, formula, sentence, query.rows, key.rows, part(name), kind=name, **more
        )

    found = [
        pairs(
            "scores",
            f"scores = {query.name} · {key.name}ᵀ",
            "How well each query (row) fits each key (column): the products of their numbers, "
            "summed. It is larger where vectors point the same way, and where they are longer.",
            factors=(query, key),
        )
    ]
    if scale is None:
        width = query.shape[-1]
        root, read = math.sqrt(width), reader_of(found[0])
        found.append(
            pairs(
                "scaled",
                f"scaled = scores / √{width} = scores / {root:.4f}",
                f"Divided by the root of the width of a key, {width}. The wider the vectors, the "
                "larger their products; in wide layers softmax would give nearly all to one token.",
                how=lambda head, row, column: Formula("{} / {}", (read(head, row)[column], root)),
                sources=(found[0],),
                reads="number",
            )
        )
    if masks:
        formula = f"masked = {found[-1].name} where {' and '.join(where)}, elsewhere -inf"
        found.append(
            pairs("masked", formula, " ".join(effects), sources=(found[-1],), reads="number")
        )
    weights = pairs(
        "weights",
        f"weights = softmax({found[-1].name}), each row by itself",
        "e to the power of each score, divided by the sum of its row: positive shares that sum "
        "to 1. A row says where its token looks.",
        sources=(found[-1],),
        reads="row",
    )
    several = value.name if value.name.endswith("s") else f"{value.name}s"
    context = held(
        "context",
        attention(*heads, mask=mask, causal=causal, scale=scale)[0],
        f"context = weights · {value.name}",
        f"For each token the {several} of all tokens, each multiplied by its weight, "
        "summed: what it has gathered from those it looks at.",
        query.rows,
        (weights, value),
        kind="context",
    )
    return [*found, weights, context]


def _projections(
    layer: Any, source: Stage, memory: Stage
) -> Iterator[tuple[Stage, Tensor, Tensor | None, Tensor]]:
    """Of query, key and value: what is read, weight, bias, and the product, heads side by side."""
    if isinstance(layer, MultiHeadAttention):
        sizes = [count * layer.head_width for count in (layer.heads, *[layer.kv_heads] * 2)]
        products = [(layer.projection, source, sizes)]
    elif isinstance(layer, CrossAttention):
        width = layer.heads * layer.head_width
        products = [(layer.query, source, [width]), (layer.memory, memory, [width] * 2)]
    else:
        linears = (layer.query, layer.key, layer.value)
        products = [(each, source, [each.out_features]) for each in linears]
    for each, reads, sizes in products:
        bias = each.bias
        biases = [None] * len(sizes) if bias is None else bias.detach().split(sizes)
        made = each(reads.numbers()).split(sizes, dim=-1)
        for parts in zip(each.weight.detach().split(sizes), biases, made, strict=True):
            yield reads, *parts


def _cut(layer: Any, joined: Tensor) -> Tensor:
    """(rows, H·d) as (H, rows, d), (H·d) as (H, d); as it is where a layer has one head."""
    if isinstance(layer, SelfAttention):
        return joined
    cut = joined.unflatten(-1, (-1, layer.head_width))
    return cut.transpose(0, 1) if joined.ndim > 1 else cut


def _vectors(
    layer: Any, name: str, source: Stage, table: Stage, bias: Tensor | None, made: Tensor
) -> Stage:
    """The query, key or value as it comes out of its product."""
    vectors = _cut(layer, made)
    formula = f"{name} = {source.name} · {table.name}" + ("" if bias is None else " + bias")
    sentence = PURPOSES[name]
    chain: tuple[tuple[int, ...], ...] = ()
    if vectors.ndim == 3:
        heads, count, width = vectors.shape
        formula += ", cut into heads"
        chain = ((1, count, heads * width), (1, count, heads, width), (1, heads, count, width))
        if heads < layer.heads:
            sentence += f" {layer.heads // heads} heads share one."
    return held(
        name, vectors, formula, sentence, source.rows, (source, table), chain=chain, kind=name,
        step="vectors", bias=None if bias is None else _cut(layer, bias),
    )  # fmt: skip


def _mixed(context: Stage, layer: nn.Linear) -> list[Stage]:
    """The heads joined, the weights that mix them, and what these make of them: the output."""
    joined = _joined(context) if len(context.shape) == 3 else context
    about = (
        f"The weights that bring width {layer.in_features} back to {layer.out_features}.",
        "What the layer has found, "
        + (
            "each number a mixture of all numbers of the heads."
            if layer.in_features == layer.out_features
            else f"brought to the width of the input, {layer.out_features}."
        ),
    )
    mixed = linear("output", joined, layer, "W_output", about, kind="output")
    return mixed if joined is context else [joined, *mixed]


def _joined(context: Stage) -> Stage:
    """The contexts of all heads beside each other, (N, H·d)."""
    heads, count, width = context.shape
    names = [f"context of head {h}" for h in range(heads)]
    each = "1 number" if width == 1 else f"{width} numbers"
    return held(
        "joined",
        context.numbers().transpose(0, 1).flatten(1),
        "joined = " + " | ".join(names if heads <= 3 else [names[0], "…", names[-1]]),
        f"The contexts of {heads} heads side by side, {each} from each."
        if heads > 1
        else "There is one head: its context as it is.",
        context.rows,
        how=lambda head, row, column: Formula(
            f"number {column % width} of head {column // width}", ()
        ),
        sources=(context,),
        reads="head",
        kind="joined",
        chain=((1, heads, count, width), (1, count, heads, width), (1, count, heads * width)),
    )
