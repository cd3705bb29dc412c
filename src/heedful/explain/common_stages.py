"""Constructors of common stages: table look-ups, sums, norms, linear layers, activations."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.explain.stage_types import Formula, Stage, row_reader, stored
from heedful.layers import ACTIVATIONS, GATES
from heedful.ops.positions import rotate

POSITION_SUM = "The token's vector plus the vector of its position."


def lookup_stage(name: str, rows: Tensor, formula: str, sentence: str, indices: Tensor) -> Stage:
    """Return the stage of rows taken from a table: for token n the row indices[n]."""

    def how(head: int, row: int, column: int) -> Formula:
        return Formula(f"row {int(indices[row])}, column {column} of the table", ())

    return stored(name, rows, formula, sentence, "tokens", how=how, kind=name)


def sinusoid_stage(table: Tensor, rows: str) -> Stage:
    """Return the stage of sinusoidal positions, (N, width)."""
    width = table.shape[-1]

    def how(head: int, row: int, column: int) -> Formula:
        name = "cos" if column % 2 else "sin"
        return Formula(f"{name}({{}} / 10000^({{}} / {{}}))", (row, column - column % 2, width))

    return stored(
        "positions", table, f"positions = sin and cos of position / 10000^(2i / {width})",
        "Sines and cosines of each token's position: they encode the order.", rows, how=how,
        kind="positions",
    )  # fmt: skip


def sum_stage(name: str, parts: Sequence[Stage], sentence: str, kind: str = "sum") -> Stage:
    """Return the stage of the sum of stages (N, width)."""
    readers = [row_reader(stage) for stage in parts]

    def how(head: int, row: int, column: int) -> Formula:
        return Formula(
            " + ".join("{}" for _ in parts), tuple(row_of(head, row)[column] for row_of in readers)
        )

    formula = f"{name} = {' + '.join(stage.name for stage in parts)}"
    total = functools.reduce(operator.add, (stage.numbers() for stage in parts))
    return stored(
        name, total, formula, sentence, parts[0].rows,
        how=how, sources=tuple(parts), reads="number", kind=kind,
    )  # fmt: skip


def norm_stage(
    name: str, source: Stage, norm: Any, sentence: str, step: str = "", kind: str = "norm"
) -> Stage:
    """Return the stage of a LayerNorm or RMSNorm of each row; the root includes the epsilon."""
    gain = norm.weight.detach().double()
    shift = getattr(norm, "bias", None)
    shift = None if shift is None else shift.detach()
    epsilon = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    centred = isinstance(norm, nn.LayerNorm)
    read = row_reader(source)

    @functools.lru_cache(maxsize=64)
    def moments(head: int, row: int) -> tuple[float, float]:
        """Return the mean of a row and the root by which the row is divided."""
        x = torch.tensor(read(head, row), dtype=torch.float64)
        square = x.var(correction=0) if centred else x.square().mean()
        return float(x.mean()), math.sqrt(float(square) + epsilon)

    def how(head: int, row: int, column: int) -> Formula:
        x, (mean, root) = read(head, row)[column], moments(head, row)
        if not centred:
            return Formula("{} / {} × {}", (x, root, float(gain[column])))
        numbers = (x, mean, root, float(gain[column]))
        if shift is None:
            return Formula("({} - {}) / {} × {}", numbers)
        return Formula("({} - {}) / {} × {} + {}", (*numbers, float(shift[column])))

    formula = f"{source.name} / root mean square · gain"
    if centred:
        formula = f"({source.name} - mean) / standard deviation · gain + shift"
    return stored(
        name, norm(source.numbers()), f"{name} = {formula}", sentence, source.rows,
        how=how, sources=(source,), reads="row", step=step, kind=kind,
    )  # fmt: skip


def rotary_stage(source: Stage, rotary: tuple[Tensor, Tensor]) -> Stage:
    """Return the stage of queries or keys with rotary positions; cosines, sines are (N, d / 2)."""
    cosines, sines = rotary
    half = source.shape[-1] // 2
    read = row_reader(source)

    def how(head: int, row: int, column: int) -> Formula:
        pair, vector = column % half, read(head, row)
        number, partner = vector[column], vector[(column + half) % (2 * half)]
        sign = "-" if column < half else "+"
        numbers = (number, float(cosines[row, pair]), partner, float(sines[row, pair]))
        return Formula(f"{{}} × {{}} {sign} {{}} × {{}}", numbers)

    return stored(
        f"rotated {source.kind}", rotate(source.numbers(), cosines, sines),
        f"rotated {source.kind} = {source.name}, rotated by the angles of its position",
        f"Each pair of numbers {half} apart is rotated by an angle that grows with the position "
        "(rotary positions), so that scores depend on the distance of the tokens.",
        source.rows, how=how, sources=(source,), reads="pair", step="rotated", kind=source.kind,
    )  # fmt: skip


def linear_stages(
    name: str,
    source: Stage,
    layer: nn.Linear,
    table: str,
    about: tuple[str, str],
    rows: slice = slice(None),
    kind: str = "inner",
) -> list[Stage]:
    """Return the stages of a linear layer's weights and of its output.

    Args:
        name: the name of the output.
        source: the layer's input.
        layer: the layer, of which only the outputs `rows` are used.
        table: the name of the weights.
        about: a sentence about the weights, and one about the output.
    """
    matrix = layer.weight.detach()[rows].T
    weights = stored(table, matrix, "", about[0], "width", kind="table")
    bias = bias_of(layer)
    bias = None if bias is None else bias[rows]
    formula = f"{name} = {source.name} · {table}" + ("" if bias is None else " + bias")
    output = stored(name, layer(source.numbers())[..., rows], formula, about[1], source.rows,
                          (source, weights), bias=bias, kind=kind)  # fmt: skip
    return [weights, output]


def bias_of(layer: nn.Linear) -> Tensor | None:
    """Return the bias of a linear layer, detached; None if it has none."""
    return None if layer.bias is None else layer.bias.detach()


class Activation(NamedTuple):
    """An activation in words: its formula for a stage, its sentence, its formula for a number."""

    formula: str
    sentence: str
    formula_of: Callable[[float], Formula]


def _normal_cdf(x: float) -> float:
    return 0.5 * (1 + math.erf(x / math.sqrt(2)))


def _normal_cdf_by_tanh(x: float) -> float:
    return 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


PLAIN = {
    "relu": Activation(
        "max({}, 0)", "Negative numbers become 0.", lambda x: Formula("max({}, 0)", (x,))
    ),
    "relu2": Activation(
        "max({}, 0)²",
        "Negative numbers become 0, the others are squared.",
        lambda x: Formula("max({}, 0)²", (x,)),
    ),
    "gelu": Activation(
        "{0} × Φ({0})",
        "GELU: each number times the share of the standard normal distribution below it.",
        lambda x: Formula("{} × {}", (x, _normal_cdf(x))),
    ),
    "gelu_tanh": Activation(
        "{0} × Φ({0}), Φ by its tanh approximation",
        "GELU: each number times the share of the standard normal distribution below it, in "
        "GPT-2's approximation.",
        lambda x: Formula("{} × {}", (x, _normal_cdf_by_tanh(x))),
    ),
}


GATED = {
    "swiglu": Activation(
        "{0} / (1 + e^-{0})",
        "SwiGLU: SiLU of the gate",
        lambda x: Formula("{} / (1 + e^{})", (x, -x)),
    ),
    "geglu": Activation("{0} × Φ({0})", "GeGLU: GELU of the gate", PLAIN["gelu"].formula_of),
    "reglu": Activation("max({0}, 0)", "ReGLU: ReLU of the gate", PLAIN["relu"].formula_of),
}


def activation_stage(
    source: Stage, activation: Callable[[Tensor], Tensor], up: Stage | None = None
) -> Stage:
    """Return the stage of an activation of `ACTIVATIONS`, or of a gate of `GATES` times `up`."""
    functions, table = (ACTIVATIONS, PLAIN) if up is None else (GATES, GATED)
    words = table[next(name for name, function in functions.items() if function is activation)]
    sources = (source,) if up is None else (source, up)
    gate, *others = map(row_reader, sources)

    def how(head: int, row: int, column: int) -> Formula:
        text, numbers = words.formula_of(gate(head, row)[column])
        factors = tuple(read(head, row)[column] for read in others)
        return Formula(text + " × {}" * len(factors), (*numbers, *factors))

    name, output = "activated", activation(source.numbers())
    formula, sentence = words.formula.format(source.name), words.sentence
    if up is not None:
        name, output = "gated", output * up.numbers()
        formula += f" × {up.name}"
        sentence += f" decides how much of each number of {up.name} passes."
    return stored(
        name, output, f"{name} = {formula}", sentence, source.rows, how=how, sources=sources,
        reads="number", kind="inner",
    )  # fmt: skip
