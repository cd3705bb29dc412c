"""The stages of one attention layer, from its weights to its output.

A stage with a number for each pair of tokens is never stored: its rows are computed from queries
and keys when they are requested.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from heedful.explain.common_stages import linear_stages, norm_stage, rotary_stage
from heedful.explain.stage_types import Formula, Part, Stage, row_reader, stored
from heedful.layers import CrossAttention, MultiHeadAttention, SelfAttention, SimpleSelfAttention
from heedful.ops import attention, steps
from heedful.ops.masks import Causal, Mask, Window

PURPOSES = {
    "query": "A token's query describes what it looks for in other tokens.",
    "key": "A token's key describes what it offers; queries are compared with keys.",
    "value": "A token's value is what it passes on to the tokens that attend to it.",
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
    """Return the stages of a layer, from its weight matrices to its output.

    Args:
        layer: an attention layer of `heedful.layers`.
        source: the layer's input, (N, width).
        memory: the input of keys and values; default `source`.
        tables: a sentence about the weights of the projections.
        causal, mask, rotary: as in the layer's `forward`.
    """
    if isinstance(layer, SimpleSelfAttention):
        return attend(source, source, source, causal=causal, mask=mask, scale=1.0)
    weights, vectors = [], []
    for name, (inputs, weight, bias, product) in zip(
        PURPOSES, _projections(layer, source, memory or source), strict=True
    ):
        matrix = _split_heads(layer, weight.T)
        table = stored(f"W_{name}", matrix, "", tables, "width", step="tables", kind="table")
        weights.append(table)
        vectors.append(_projected(layer, name, inputs, table, bias, product))
    last, more = list(vectors), []
    if isinstance(layer, MultiHeadAttention) and not isinstance(layer.query_norm, nn.Identity):
        about = "Each head's queries and keys are normalised before they are compared (QK-norm)."
        norms = {"query": layer.query_norm, "key": layer.key_norm}
        last[:2] = [
            norm_stage(f"normed {name}", vector, norm, about, step="normed", kind=name)
            for (name, norm), vector in zip(norms.items(), last, strict=False)
        ]
        more += last[:2]
    if rotary is not None:
        last[:2] = [rotary_stage(vector, rotary) for vector in last[:2]]
        more += last[:2]
    stages = [*weights, *vectors, *more, *attend(*last, causal=causal, mask=mask)]
    projection = layer.output
    return stages + (_output(stages[-1], projection) if isinstance(projection, nn.Linear) else [])


def attend(
    query: Stage,
    key: Stage,
    value: Stage,
    *,
    causal: bool = False,
    mask: Window | None = None,
    scale: float | None = None,
) -> list[Stage]:
    """Return the stages scores, scaled, masked, weights and context, as far as they apply."""
    heads = [stage.numbers()[None] for stage in (query, key, value)]
    shape = (*query.shape[:-1], key.shape[-2])
    masks: list[Mask] = []
    where, effects = [], []
    if causal:
        masks.append(Causal())
        where.append("column ≤ row")
        effects.append("No token may attend to a later one: those scores become minus infinity.")
    if mask is not None:
        masks.append(mask)
        where.append(f"column > row - {mask.size}")
        effects.append(f"A token attends only to the latest {mask.size} tokens, itself included.")
    combined = functools.reduce(operator.and_, masks) if masks else None

    def part(name: str) -> Part:
        def compute(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            queries, allowed = heads[0][..., list(rows), :], None
            if combined is not None:
                allowed = combined.crop(shape[-2:], queries=list(rows), device=queries.device)
            results = steps(queries, *heads[1:], mask=allowed, scale=scale)
            return getattr(results, name)[0][..., list(columns)]

        return compute

    def pairs(name: str, formula: str, sentence: str, **more: Any) -> Stage:
        return Stage(
            name, shape, formula, sentence, query.rows, key.rows, part(name), kind=name, **more
        )

    stages = [
        pairs(
            "scores",
            f"scores = {query.name} · {key.name}ᵀ",
            "How well each query (row) matches each key (column): their dot product. It is larger "
            "when the two vectors point the same way, and when they are longer.",
            factors=(query, key),
        )
    ]
    if scale is None:
        width = query.shape[-1]
        root, read = math.sqrt(width), row_reader(stages[0])
        stages.append(
            pairs(
                "scaled",
                f"scaled = scores / √{width} = scores / {root:.4f}",
                f"Divided by the square root of the width of a key, {width}. Otherwise the large "
                "dot products of wide vectors would give nearly all the weight to one token.",
                how=lambda head, row, column: Formula("{} / {}", (read(head, row)[column], root)),
                sources=(stages[0],),
                reads="number",
            )
        )
    if masks:
        formula = f"masked = {stages[-1].name} where {' and '.join(where)}, elsewhere -inf"
        stages.append(
            pairs("masked", formula, " ".join(effects), sources=(stages[-1],), reads="number")
        )
    weights = pairs(
        "weights",
        f"weights = softmax({stages[-1].name}), row by row",
        "e to the power of each score, divided by the sum of these powers in its row. Each row "
        "sums to 1 and shows how its token divides its attention.",
        sources=(stages[-1],),
        reads="row",
    )
    values = value.name if value.name.endswith("s") else f"{value.name}s"
    context = stored(
        "context",
        attention(*heads, mask=mask, causal=causal, scale=scale)[0],
        f"context = weights · {value.name}",
        f"For each token, the weighted sum of the {values} of all tokens: what it gathers from "
        "the tokens that it attends to.",
        query.rows,
        (weights, value),
        kind="context",
    )
    return [*stages, weights, context]


def _projections(
    layer: Any, source: Stage, memory: Stage
) -> Iterator[tuple[Stage, Tensor, Tensor | None, Tensor]]:
    """Yield input, weight, bias and product of query, key and value, with all heads in one axis."""
    if isinstance(layer, MultiHeadAttention):
        sizes = [count * layer.head_width for count in (layer.heads, *[layer.kv_heads] * 2)]
        products = [(layer.projection, source, sizes)]
    elif isinstance(layer, CrossAttention):
        width = layer.heads * layer.head_width
        products = [(layer.query, source, [width]), (layer.memory, memory, [width] * 2)]
    else:
        linears = (layer.query, layer.key, layer.value)
        products = [(each, source, [each.out_features]) for each in linears]
    for projection, inputs, sizes in products:
        bias = projection.bias
        biases = [None] * len(sizes) if bias is None else bias.detach().split(sizes)
        outputs = projection(inputs.numbers()).split(sizes, dim=-1)
        for parts in zip(projection.weight.detach().split(sizes), biases, outputs, strict=True):
            yield inputs, *parts


def _split_heads(layer: Any, joined: Tensor) -> Tensor:
    """Split (rows, H·d) into (H, rows, d), or (H·d) into (H, d), unless the layer has one head."""
    if isinstance(layer, SelfAttention):
        return joined
    split = joined.unflatten(-1, (-1, layer.head_width))
    return split.transpose(0, 1) if joined.ndim > 1 else split


def _projected(
    layer: Any, name: str, source: Stage, table: Stage, bias: Tensor | None, product: Tensor
) -> Stage:
    """Return the stage of the query, key or value vectors."""
    vectors = _split_heads(layer, product)
    formula = f"{name} = {source.name} · {table.name}" + ("" if bias is None else " + bias")
    sentence = PURPOSES[name]
    chain: tuple[tuple[int, ...], ...] = ()
    if vectors.ndim == 3:
        heads, count, width = vectors.shape
        formula += ", split into heads"
        chain = ((1, count, heads * width), (1, count, heads, width), (1, heads, count, width))
        if heads < layer.heads:
            sentence += f" {layer.heads // heads} query heads share each {name}."
    return stored(
        name, vectors, formula, sentence, source.rows, (source, table), chain=chain, kind=name,
        step="vectors", bias=None if bias is None else _split_heads(layer, bias),
    )  # fmt: skip


def _output(context: Stage, layer: nn.Linear) -> list[Stage]:
    """Return the stages of the joined heads, the output weights and the output."""
    joined = _joined_heads(context) if len(context.shape) == 3 else context
    about = (
        f"The weights of the output projection, {layer.in_features} × {layer.out_features}.",
        "The output of the layer: "
        + (
            "each number is a weighted sum of the numbers of all heads."
            if layer.in_features == layer.out_features
            else f"the context, projected to the width of the input, {layer.out_features}."
        ),
    )
    output = linear_stages("output", joined, layer, "W_output", about, kind="output")
    return output if joined is context else [joined, *output]


def _joined_heads(context: Stage) -> Stage:
    """Concatenate the contexts of all heads to (N, H·d)."""
    heads, count, width = context.shape
    names = [f"context of head {h}" for h in range(heads)]
    each = "1 number" if width == 1 else f"{width} numbers"
    return stored(
        "joined",
        context.numbers().transpose(0, 1).flatten(1),
        "joined = " + " | ".join(names if heads <= 3 else [names[0], "…", names[-1]]),
        f"The contexts of the {heads} heads side by side, {each} from each."
        if heads > 1
        else "There is only one head, so this is its context.",
        context.rows,
        how=lambda head, row, column: Formula(
            f"number {column % width} of head {column // width}", ()
        ),
        sources=(context,),
        reads="head",
        kind="joined",
        chain=((1, heads, count, width), (1, count, heads, width), (1, count, heads * width)),
    )
