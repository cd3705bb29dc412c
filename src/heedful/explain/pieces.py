"""Stages that every kind of block is made of: tables looked up, norms, products, activations."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from heedful.explain.stages import Formula, How, Stage, held, reader_of
from heedful.layers import ACTIVATIONS, GATES


def looked_up(
    name: str, found: Tensor, formula: str, sentence: str, rows: str, row_of: Callable[[int], int]
) -> Stage:
    """Rows taken from a table; `row_of(n)` names the row that token n got."""

    def how(head: int, row: int, column: int) -> Formula:
        return Formula(f"row {row_of(row)}, column {column} of the table", ())

    return held(name, found, formula, sentence, rows, how=how, kind=name)


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


def normed(
    name: str,
    source: Stage,
    norm: nn.Module,
    made: Tensor,
    sentence: str,
    step: str = "",
    kind: str = "norm",
) -> Stage:
    """A norm of each row of what came before, with its formula."""
    return held(
        name, made, f"{name} = {_norm_formula(source.name, norm)}", sentence, source.rows,
        how=_norming(source, norm), sources=(source,), reads="row", step=step, kind=kind,
    )  # fmt: skip


def _norm_formula(name: str, norm: nn.Module) -> str:
    if isinstance(norm, nn.LayerNorm):
        return f"({name} - its mean) / its deviation · gain + shift"
    return f"{name} / root of its mean square · gain"


def _norming(source: Stage, norm: Any) -> How:
    """How one number of a LayerNorm or RMSNorm comes about; the epsilon is in the root."""
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

    return how


def linear(
    name: str,
    source: Stage,
    layer: nn.Linear,
    made: Tensor,
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
        made: the product.
        table: the name of the table.
        about: a sentence on the table, and one on the product.
    """
    weights = held(table, layer.weight.detach()[rows].T, "", about[0], "width", kind="table")
    bias = None if layer.bias is None else layer.bias.detach()[rows]
    formula = f"{name} = {source.name} · {table}" + ("" if bias is None else " + bias")
    product = held(name, made, formula, about[1], source.rows, (source, weights), bias=bias,
                   kind=kind)  # fmt: skip
    return [weights, product]


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


def activated(source: Stage, activation: Callable[[Tensor], Tensor]) -> Stage:
    """What an activation of `ACTIVATIONS` makes of each number by itself."""
    name = next(name for name, function in ACTIVATIONS.items() if function is activation)
    written, read = WRITTEN[name], reader_of(source)

    def how(head: int, row: int, column: int) -> Formula:
        return written.of(read(head, row)[column])

    return held(
        "activated", activation(source.numbers()),
        f"activated = {written.formula.format(source.name)}", written.says, source.rows, how=how,
        sources=(source,), reads="number", kind="inner",
    )  # fmt: skip


GATED = {
    "swiglu": Activation(
        "{0} / (1 + e^-{0})",
        "SwiGLU: one half, through SiLU,",
        lambda x: Formula("{} / (1 + e^{})", (x, -x)),
    ),
    "geglu": Activation("{0} × Φ({0})", "GeGLU: one half, through GELU,", WRITTEN["gelu"].of),
    "reglu": Activation("max({0}, 0)", "ReGLU: one half, through ReLU,", WRITTEN["relu"].of),
}


def gated(gate: Stage, up: Stage, activation: Callable[[Tensor], Tensor]) -> Stage:
    """What a gate, through an activation of `GATES`, lets through of the other half."""
    written = GATED[next(name for name, function in GATES.items() if function is activation)]
    reads, lets = reader_of(gate), reader_of(up)

    def how(head: int, row: int, column: int) -> Formula:
        first, second = reads(head, row)[column], lets(head, row)[column]
        text, numbers = written.of(first)
        return Formula(f"{text} × {{}}", (*numbers, second))

    return held(
        "gated", activation(gate.numbers()) * up.numbers(),
        f"gated = {written.formula.format(gate.name)} × {up.name}",
        f"{written.says} says how much of the other goes on.", gate.rows, how=how,
        sources=(gate, up), reads="number", kind="inner",
    )  # fmt: skip
