"""Stages that every kind of block is made of: tables looked up, norms, products, activations."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.explain.stages import Formula, Stage, held, reader_of
from heedful.layers import ACTIVATIONS, GATES
from heedful.ops.positions import rotate


def looked_up(name: str, rows: Tensor, formula: str, sentence: str, indices: Tensor) -> Stage:
    """Rows taken from a table: for token n the one at indices[n]."""

    def how(head: int, row: int, column: int) -> Formula:
        return Formula(f"row {int(indices[row])}, column {column} of the table", ())

    return held(name, rows, formula, sentence, "tokens", how=how, kind=name)


def placed(table: Tensor, rows: str) -> Stage:
    """The sines and cosines of each token's place, (N, width)."""
    width = table.shape[-1]

    def how(head: int, row: int, column: int) -> Formula:
        name = "cos" if column % 2 else "sin"
        return Formula(f"{name}({{}} / 10000^({{}} / {{}}))", (row, column - column % 2, width))

    return held(
        "positions", table, f"positions = sin and cos of place / 10000^(2i / {width})",
        "Sines and cosines of each token's place, so that order is told.", rows, how=how,
        kind="positions",
    )  # fmt: skip


def added(name: str, parts: Sequence[Stage], sentence: str, kind: str = "sum") -> Stage:
    """The sum of stages (N, width) of one shape."""
    read = [reader_of(stage) for stage in parts]

    def how(head: int, at: int, column: int) -> Formula:
        return Formula(
            " + ".join("{}" for _ in parts), tuple(row(head, at)[column] for row in read)
        )

    formula = f"{name} = {' + '.join(stage.name for stage in parts)}"
    total = functools.reduce(operator.add, (stage.numbers() for stage in parts))
    return held(
        name, total, formula, sentence, parts[0].rows,
        how=how, sources=tuple(parts), reads="number", kind=kind,
    )  # fmt: skip


def normed(
    name: str, source: Stage, norm: Any, sentence: str, step: str = "", kind: str = "norm"
) -> Stage:
    """A LayerNorm or RMSNorm of each row of a stage; the epsilon is in the root."""
    gain = norm.weight.detach().double()
    shift = getattr(norm, "bias", None)
    shift = None if shift is None else shift.detach()
    epsilon = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    centred = isinstance(norm, nn.LayerNorm)
    read = reader_of(source)

    @functools.lru_cache(maxsize=64)
    def measured(head: int, row: int) -> tuple[float, float]:
        """The mean of a row, and the root that it is divided by."""
        x = torch.tensor(read(head, row), dtype=torch.float64)
        square = x.var(correction=0) if centred else x.square().mean()
        return float(x.mean()), math.sqrt(float(square) + epsilon)

    def how(head: int, row: int, column: int) -> Formula:
        x, (mean, root) = read(head, row)[column], measured(head, row)
        if not centred:
            return Formula("{} / {} × {}", (x, root, float(gain[column])))
        numbers = (x, mean, root, float(gain[column]))
        if shift is None:
            return Formula("({} - {}) / {} × {}", numbers)
        return Formula("({} - {}) / {} × {} + {}", (*numbers, float(shift[column])))

    formula = f"{source.name} / root of its mean square · gain"
    if centred:
        formula = f"({source.name} - its mean) / its deviation · gain + shift"
    return held(
        name, norm(source.numbers()), f"{name} = {formula}", sentence, source.rows,
        how=how, sources=(source,), reads="row", step=step, kind=kind,
    )  # fmt: skip


def rotated(source: Stage, rotary: tuple[Tensor, Tensor]) -> Stage:
    """Queries or keys turned by the angles of their places; cosines and sines are (N, d / 2)."""
    cosines, sines = rotary
    half = source.shape[-1] // 2
    read = reader_of(source)

    def how(head: int, row: int, column: int) -> Formula:
        pair, vector = column % half, read(head, row)
        here, other = vector[column], vector[(column + half) % (2 * half)]
        sign = "-" if column < half else "+"
        numbers = (here, float(cosines[row, pair]), other, float(sines[row, pair]))
        return Formula(f"{{}} × {{}} {sign} {{}} × {{}}", numbers)

    return held(
        f"rotated {source.kind}", rotate(source.numbers(), cosines, sines),
        f"rotated {source.kind} = {source.name} turned by the angle of its place",
        f"Two numbers {half} apart are turned by an angle that grows with the place (rotary "
        "positions): the score of two tokens then depends on their distance.",
        source.rows, how=how, sources=(source,), reads="pair", step="rotated", kind=source.kind,
    )  # fmt: skip


def linear(
    name: str,
    source: Stage,
    layer: nn.Linear,
    table: str,
    about: tuple[str, str],
    rows: slice = slice(None),
    kind: str = "inner",
) -> list[Stage]:
    """The table of a linear layer, and its product with what came before.

    Args:
        name: of the product.
        source: what the layer reads.
        layer: of which `rows` are the outputs that belong to this product.
        table: the name of the table.
        about: a sentence on the table, and one on the product.
    """
    weights = held(table, layer.weight.detach()[rows].T, "", about[0], "width", kind="table")
    bias = bias_of(layer)
    bias = None if bias is None else bias[rows]
    formula = f"{name} = {source.name} · {table}" + ("" if bias is None else " + bias")
    made = layer(source.numbers())[..., rows]
    product = held(name, made, formula, about[1], source.rows, (source, weights), bias=bias,
                   kind=kind)  # fmt: skip
    return [weights, product]


def bias_of(layer: nn.Linear) -> Tensor | None:
    """The bias of a linear layer, without its gradient; None where it has none."""
    return None if layer.bias is None else layer.bias.detach()


class Activation(NamedTuple):
    """An activation as it is written: of the name of a stage, and of one number."""

    formula: str
    says: str
    of: Callable[[float], Formula]


def _normal(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _by_tanh(x: float) -> float:
    return 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


WRITTEN = {
    "relu": Activation(
        "max({}, 0)", "What is below 0 becomes 0.", lambda x: Formula("max({}, 0)", (x,))
    ),
    "relu2": Activation(
        "max({}, 0)²",
        "What is below 0 becomes 0, the rest is squared.",
        lambda x: Formula("max({}, 0)²", (x,)),
    ),
    "gelu": Activation(
        "{0} × Φ({0})",
        "GELU: each number times the share of a normal distribution that lies below it.",
        lambda x: Formula("{} × {}", (x, _normal(x))),
    ),
    "gelu_tanh": Activation(
        "{0} × Φ({0}), Φ by its tanh approximation",
        "GELU: each number times the share of a normal distribution that lies below it, as GPT-2 "
        "computes it.",
        lambda x: Formula("{} × {}", (x, _by_tanh(x))),
    ),
}


GATED = {
    "swiglu": Activation(
        "{0} / (1 + e^-{0})",
        "SwiGLU: one half, through SiLU,",
        lambda x: Formula("{} / (1 + e^{})", (x, -x)),
    ),
    "geglu": Activation("{0} × Φ({0})", "GeGLU: one half, through GELU,", WRITTEN["gelu"].of),
    "reglu": Activation("max({0}, 0)", "ReGLU: one half, through ReLU,", WRITTEN["relu"].of),
}


def activated(
    source: Stage, activation: Callable[[Tensor], Tensor], up: Stage | None = None
) -> Stage:
    """Each number through an activation of `ACTIVATIONS`; one of `GATES` is a factor of `up`."""
    functions, table = (ACTIVATIONS, WRITTEN) if up is None else (GATES, GATED)
    written = table[next(name for name, function in functions.items() if function is activation)]
    sources = (source,) if up is None else (source, up)
    gate, *others = map(reader_of, sources)

    def how(head: int, row: int, column: int) -> Formula:
        text, numbers = written.of(gate(head, row)[column])
        factors = tuple(read(head, row)[column] for read in others)
        return Formula(text + " × {}" * len(factors), (*numbers, *factors))

    name, made = "activated", activation(source.numbers())
    formula, sentence = written.formula.format(source.name), written.says
    if up is not None:
        name, made = "gated", made * up.numbers()
        formula += f" × {up.name}"
        sentence += " says how much of the other goes on."
    return held(
        name, made, f"{name} = {formula}", sentence, source.rows, how=how, sources=sources,
        reads="number", kind="inner",
    )  # fmt: skip
