"""The stages of one attention layer, from its weights to its output.

A stage with a number for each pair of tokens is never stored. Its rows are computed from queries
and keys on request.
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
    "query": "A token's query describes what the token looks for in other tokens.",
    "key": "A token's key describes what the token offers. Queries are compared with keys.",
    "value": "A token's value is what other tokens receive when they attend to this token.",
}


def attention_stages(
    layer: nn.Module,
    source: Stage,
    memory: Stage | None = None,
    *,
    weights_note: str,
    causal: bool = False,
    mask: Window | None = None,
    rotary: tuple[Tensor, Tensor] | None = None,
) -> list[Stage]:
    """Return the stages of a layer, from its weight matrices to its output.

    Args:
        layer: an attention layer of `heedful.layers`.
        source: the layer's input, (N, width).
        memory: the input (M, width) from which keys and values are computed; default `source`.
        weights_note: a sentence about the weights of query, key and value.
        causal, mask, rotary: as in the layer's `forward`.
    """
    if type(layer) is SimpleSelfAttention:
        return attend(source, source, source, causal=causal, mask=mask, scale=1.0)
    weights, vectors = [], []
    for name, (inputs, weight, bias, product) in zip(
        PURPOSES, _projections(layer, source, memory or source), strict=True
    ):
        matrix = _split_heads(layer, weight.T)
        table = stored(f"W_{name}", matrix, "", weights_note, "width", step="tables", kind="table")
        weights.append(table)
        vectors.append(_projected(layer, name, inputs, table, bias, product))
    operands, extra = list(vectors), []  # norms and rotations replace operands, and join extra
    if isinstance(layer, MultiHeadAttention) and not isinstance(layer.query_norm, nn.Identity):
        sentence = "Each head's queries and keys are normalised before they are compared (QK-norm)."
        norms = {"query": layer.query_norm, "key": layer.key_norm}
        operands[:2] = [
            norm_stage(f"normed {name}", vector, norm, sentence, step="normed", kind=name)
            for (name, norm), vector in zip(norms.items(), operands, strict=False)
        ]
        extra += operands[:2]
    if rotary is not None:
        operands[:2] = [rotary_stage(vector, rotary) for vector in operands[:2]]
        extra += operands[:2]
    stages = [*weights, *vectors, *extra, *attend(*operands, causal=causal, mask=mask)]
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
    """Return the stages scores, scaled, masked, weights and context.

    "scaled" is omitted if `scale` is given. "masked" is omitted without `causal` and `mask`.
    """
    heads = [stage.numbers()[None] for stage in (query, key, value)]
    shape = (*query.shape[:-1], key.shape[-2])
    masks: list[Mask] = []
    conditions, sentences = [], []
    if causal:
        masks.append(Causal())
        conditions.append("column ≤ row")
        sentences.append("A token may not attend to later tokens.")
    if mask is not None:
        masks.append(mask)
        conditions.append(f"column > row - {mask.size}")
        sentences.append(f"A token may not attend to tokens {mask.size} or more positions earlier.")
    sentences.append("The scores of pairs that are not allowed become minus infinity.")
    combined = functools.reduce(operator.and_, masks) if masks else None

    def part(name: str) -> Part:
        def compute(rows: Sequence[int], columns: Sequence[int]) -> Tensor:
            queries, allowed = heads[0][..., list(rows), :], None
            if combined is not None:
                allowed = combined.crop(shape[-2:], queries=list(rows), device=queries.device)
            results = steps(queries, *heads[1:], mask=allowed, scale=scale)
            return getattr(results, name)[0][..., list(columns)]

        return compute

    stages: list[Stage] = []

    def add(name: str, formula: str, sentence: str, **fields: Any) -> None:
        stages.append(
            Stage(
                name, shape, formula, sentence, query.rows, key.rows, part(name), kind=name,
                sources=tuple(stages[-1:]), **fields,
            )
        )  # fmt: skip

    sentence = (
        "How well each query (row) matches each key (column): the dot product of the two vectors. "
        "It is large if both vectors are long and point in similar directions."
    )
    add("scores", f"scores = {query.name} · {key.name}ᵀ", sentence, factors=(query, key))
    if scale is None:
        width = query.shape[-1]
        root, read = math.sqrt(width), row_reader(stages[0])
        add(
            "scaled", f"scaled = scores / √{width} = scores / {root:.4f}",
            f"Each score is divided by the square root of {width}, the width of a key. Otherwise "
            "wide vectors would have such large dot products that one token would get nearly all "
            "the weight.", reads="number", rule="scaled", constants={"root": root},
            number_formula=lambda head, row, column: Formula(
                "{} / {}", (read(head, row)[column], root)
            ),
        )  # fmt: skip
    if masks:
        formula = f"masked = {stages[-1].name} where {' and '.join(conditions)}, elsewhere -inf"
        limits = {"causal": causal, "window": None if mask is None else mask.size}
        reading: dict[str, Any] = {"reads": "number", "rule": "masked", "constants": limits}
        add("masked", formula, " ".join(sentences), **reading)
    sentence = (
        "e to the power of each score, divided by the sum of these powers in the row. The weights "
        "of a row sum to 1: they show how the row's token distributes its attention."
    )
    formula = f"weights = softmax({stages[-1].name}), row by row"
    add("weights", formula, sentence, reads="row", rule="softmax")
    values = value.name if value.name.endswith("s") else f"{value.name}s"
    context = stored(
        "context", attention(*heads, mask=mask, causal=causal, scale=scale)[0],
        f"context = weights · {value.name}",
        f"For each token, the weighted sum of the {values}: what the token gathers from all "
        "tokens that it attends to.", query.rows, (stages[-1], value), kind="context",
    )  # fmt: skip
    return [*stages, context]


def _projections(
    layer: Any, source: Stage, memory: Stage
) -> Iterator[tuple[Stage, Tensor, Tensor | None, Tensor]]:
    """Yield (input, weight, bias, output) of the query, key and value projections, of all heads."""
    if isinstance(layer, MultiHeadAttention):
        sizes = [count * layer.head_width for count in (layer.heads, *[layer.kv_heads] * 2)]
        linears = [(layer.projection, source, sizes)]
    elif isinstance(layer, CrossAttention):
        width = layer.heads * layer.head_width
        linears = [(layer.query, source, [width]), (layer.memory, memory, [width] * 2)]
    else:
        separate = (layer.query, layer.key, layer.value)
        linears = [(linear, source, [linear.out_features]) for linear in separate]
    for projection, inputs, sizes in linears:
        bias = projection.bias
        biases = [None] * len(sizes) if bias is None else bias.detach().split(sizes)
        outputs = projection(inputs.numbers()).split(sizes, dim=-1)
        for parts in zip(projection.weight.detach().split(sizes), biases, outputs, strict=True):
            yield inputs, *parts


def _split_heads(layer: Any, joined: Tensor) -> Tensor:
    """Split (rows, H·d) into (H, rows, d), or (H·d) into (H, d), unless the layer has no heads."""
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
    """Return the stages of the joined heads (if any), the output weights and the output."""
    joined = _joined_heads(context) if len(context.shape) == 3 else context
    sizes = layer.in_features, layer.out_features
    sentence = "each number is a weighted sum of all numbers of the token's context."
    if sizes[0] != sizes[1]:
        sentence = f"the context, projected to {sizes[1]} numbers, the width of the input."
    about = (
        f"The weights of the output projection, {sizes[0]} × {sizes[1]}.",
        f"The output of the layer: {sentence}",
    )
    output = linear_stages("output", joined, layer, "W_output", about, kind="output")
    return output if joined is context else [joined, *output]


def _joined_heads(context: Stage) -> Stage:
    """Concatenate the contexts of all heads to (N, H·d)."""
    heads, count, width = context.shape
    names = [f"context of head {h}" for h in range(heads)]
    size = "1 number" if width == 1 else f"{width} numbers"
    sentence = f"The contexts of the {heads} heads side by side, {size} from each head."
    if heads == 1:
        sentence = "There is only one head, so this is the context of that head."

    def number_formula(head: int, row: int, column: int) -> Formula:
        return Formula("number {} of head {}", (column % width, column // width))

    return stored(
        "joined", context.numbers().transpose(0, 1).flatten(1),
        "joined = " + " | ".join(names if heads <= 3 else [names[0], "…", names[-1]]), sentence,
        context.rows, number_formula=number_formula, sources=(context,), reads="head",
        rule="joined", kind="joined",
        chain=((1, heads, count, width), (1, count, heads, width), (1, count, heads * width)),
    )  # fmt: skip
