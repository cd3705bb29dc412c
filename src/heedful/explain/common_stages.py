"""Functions that return common stages: table look-ups, sums, norms, linear layers, activations."""

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


def lookup_stage(
    name: str, rows: Tensor, formula: str, sentence: str, indices: Tensor, **fields: Any
) -> Stage:
    """Return the stage of rows (N, width) of a table: the row of token n is indices[n]."""

    def number_formula(head: int, row: int, column: int) -> Formula:
        return Formula("row {}, column {} of the table", (int(indices[row]), column))

    return stored(
        name, rows, formula, sentence, "tokens", number_formula=number_formula, kind=name, **fields
    )


def position_stage(positions: Tensor, count: int) -> Stage:
    """Return the stage of learned positions, (N, width)."""
    sentence = "Each position's row of the position table."
    rows, formula = positions[:count].detach(), "positions = table[position]"
    return lookup_stage("positions", rows, formula, sentence, torch.arange(count),
                        rule="rows by position", constants={"table": rows})  # fmt: skip


def sinusoid_stage(table: Tensor, rows: str) -> Stage:
    """Return the stage of sinusoidal positions, (N, width)."""
    width = table.shape[-1]

    def number_formula(head: int, row: int, column: int) -> Formula:
        name = "cos" if column % 2 else "sin"
        return Formula(f"{name}({{}} / 10000^({{}} / {{}}))", (row, column - column % 2, width))

    return stored(
        "positions", table, f"positions = sin and cos of position / 10000^(2i / {width})",
        "Sines and cosines of each token's position. They encode the order of the tokens.", rows,
        number_formula=number_formula, kind="positions", rule="sinusoids",
        constants={"table": table},
    )  # fmt: skip


def sum_stage(name: str, parts: Sequence[Stage], sentence: str, kind: str = "sum") -> Stage:
    """Return the stage of the sum of stages (N, width)."""
    readers = [row_reader(stage) for stage in parts]

    def number_formula(head: int, row: int, column: int) -> Formula:
        return Formula(
            " + ".join("{}" for _ in parts), tuple(row_of(head, row)[column] for row_of in readers)
        )

    formula = f"{name} = {' + '.join(stage.name for stage in parts)}"
    total = functools.reduce(operator.add, (stage.numbers() for stage in parts))
    return stored(
        name, total, formula, sentence, parts[0].rows,
        number_formula=number_formula, sources=tuple(parts), reads="number", kind=kind, rule="sum",
    )  # fmt: skip


def norm_stage(
    name: str, source: Stage, norm: Any, sentence: str, step: str = "", kind: str = "norm"
) -> Stage:
    """Return the stage of a LayerNorm or RMSNorm of each row."""
    gain = norm.weight.detach().double()
    shift = getattr(norm, "bias", None)
    shift = None if shift is None else shift.detach()
    epsilon = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
    centred = isinstance(norm, nn.LayerNorm)
    read = row_reader(source)

    @functools.lru_cache(maxsize=64)
    def moments(head: int, row: int) -> tuple[float, float]:
        """Return a row's mean and divisor; the divisor is a square root that includes epsilon."""
        x = torch.tensor(read(head, row), dtype=torch.float64)
        square = x.var(correction=0) if centred else x.square().mean()
        return float(x.mean()), math.sqrt(float(square) + epsilon)

    def number_formula(head: int, row: int, column: int) -> Formula:
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
        number_formula=number_formula, sources=(source,), reads="row", step=step, kind=kind,
        rule="norm",
        constants={"gain": gain, "shift": shift, "epsilon": epsilon, "centred": centred},
    )  # fmt: skip


def rotary_stage(source: Stage, rotary: tuple[Tensor, Tensor]) -> Stage:
    """Return the stage of queries or keys with rotary positions.

    `rotary` has the cosines and the sines of the angles, (N, d / 2) each.
    """
    cosines, sines = rotary
    half = source.shape[-1] // 2
    read = row_reader(source)

    def number_formula(head: int, row: int, column: int) -> Formula:
        pair, vector = column % half, read(head, row)
        number, partner = vector[column], vector[(column + half) % (2 * half)]
        sign = "-" if column < half else "+"
        numbers = (number, float(cosines[row, pair]), partner, float(sines[row, pair]))
        return Formula(f"{{}} × {{}} {sign} {{}} × {{}}", numbers)

    return stored(
        f"rotated {source.kind}", rotate(source.numbers(), cosines, sines),
        f"rotated {source.kind} = {source.name}, rotated by the angles of the token's position",
        f"Two numbers {half} columns apart form a pair. Each pair is rotated by an angle that is "
        "proportional to the position (rotary positions). So scores depend on positions only "
        "through the distance between the two tokens.",
        source.rows, number_formula=number_formula, sources=(source,), reads="pair",
        step="rotated", kind=source.kind, rule="rotation",
        constants={"cosines": cosines, "sines": sines},
    )  # fmt: skip


def linear_stages(
    name: str,
    source: Stage,
    layer: nn.Linear,
    table: str,
    sentences: tuple[str, str],
    rows: slice = slice(None),
    kind: str = "inner",
) -> list[Stage]:
    """Return two stages: a linear layer's weights, and its output.

    Args:
        name: the name of the output's stage.
        source: the layer's input.
        layer: the layer.
        table: the name of the weights' stage.
        sentences: a sentence about the weights, and a sentence about the output.
        rows: the rows of the layer's weight to use; default all.
        kind: the kind of the output's stage.
    """
    matrix = layer.weight.detach()[rows].T
    weights = stored(table, matrix, "", sentences[0], "width", kind="table")
    bias = bias_of(layer)
    bias = None if bias is None else bias[rows]
    formula = f"{name} = {source.name} · {table}" + ("" if bias is None else " + bias")
    output = stored(name, layer(source.numbers())[..., rows], formula, sentences[1], source.rows,
                    (source, weights), bias=bias, kind=kind)  # fmt: skip
    return [weights, output]


def bias_of(layer: nn.Linear) -> Tensor | None:
    """Return the detached bias of a linear layer, or None if it has no bias."""
    return None if layer.bias is None else layer.bias.detach()


class Activation(NamedTuple):
    """Texts about an activation: a formula for the stage, a sentence, a formula for one number."""

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
        "Negative numbers become 0; positive numbers are squared.",
        lambda x: Formula("max({}, 0)²", (x,)),
    ),
    "gelu": Activation(
        "{0} × Φ({0})",
        "GELU: each number x times Φ(x), the share of the standard normal distribution below x.",
        lambda x: Formula("{} × {}", (x, _normal_cdf(x))),
    ),
    "gelu_tanh": Activation(
        "{0} × Φ({0}), Φ by its tanh approximation",
        "GELU: each number x times Φ(x), the share of the standard normal distribution below x, "
        "approximated as in GPT-2.",
        lambda x: Formula("{} × {}", (x, _normal_cdf_by_tanh(x))),
    ),
}


GATED = {
    "swiglu": Activation(
        "{0} / (1 + e^-{0})",
        "SwiGLU: the SiLU of the gate",
        lambda x: Formula("{} / (1 + e^{})", (x, -x)),
    ),
    "geglu": Activation("{0} × Φ({0})", "GeGLU: the GELU of the gate", PLAIN["gelu"].formula_of),
    "reglu": Activation("max({0}, 0)", "ReGLU: the ReLU of the gate", PLAIN["relu"].formula_of),
}


def activation_stage(
    source: Stage, activation: Callable[[Tensor], Tensor], up: Stage | None = None
) -> Stage:
    """Return the stage activation(source), or with `up`, activation(source) × up.

    The activation is a value of `ACTIVATIONS`, or with `up` a value of `GATES`.
    """
    functions, table = (ACTIVATIONS, PLAIN) if up is None else (GATES, GATED)
    key = next(name for name, function in functions.items() if function is activation)
    texts = table[key]
    sources = (source,) if up is None else (source, up)
    gate, *up_readers = map(row_reader, sources)

    def number_formula(head: int, row: int, column: int) -> Formula:
        text, numbers = texts.formula_of(gate(head, row)[column])
        factors = tuple(read(head, row)[column] for read in up_readers)
        return Formula(text + " × {}" * len(factors), (*numbers, *factors))

    name, output = "activated", activation(source.numbers())
    formula, sentence = texts.formula.format(source.name), texts.sentence
    if up is not None:
        name, output = "gated", output * up.numbers()
        formula += f" × {up.name}"
        sentence += f" multiplies each number of {up.name}."
    return stored(
        name, output, f"{name} = {formula}", sentence, source.rows,
        number_formula=number_formula, sources=sources, reads="number", kind="inner",
        rule="activation", constants={"name": key},
    )  # fmt: skip
