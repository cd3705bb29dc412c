"""A check of an explanation: each number is recomputed from its displayed formula."""

import math
import re

SOURCES = ("row {}", "number {}")  # beginnings of formulas that name the source of a number


def value(formula):
    """Return the value of a formula."""
    text = formula.text
    for number in formula.numbers:
        text = text.replace("{}", f"({number!r})", 1)
    text = text.replace("×", "*").replace("²", "**2").replace("10000^", "10000 ** ")
    text = re.sub(r"e\^(\([^)]*\))", r"exp\1", text)
    return eval(
        text, {"exp": math.exp, "max": max, "sin": math.sin, "cos": math.cos, "__builtins__": {}}
    )


def indices_in(formula):
    """Return the indices in a formula that names a number's source, such as a row of a table."""
    assert formula.text.startswith(SOURCES)
    return formula.numbers


def check_numbers(explanation, tolerance=1e-5):
    """Recompute some numbers of each stage, and return how many were compared.

    They are in two rows, the first and the last column, of all heads.
    """
    checked = 0
    for stage in explanation.stages:
        for row in {stage.shape[-2] // 2, stage.shape[-2] - 1}:
            for column in {0, stage.shape[-1] - 1}:
                for head in range(explanation.heads if len(stage.shape) == 3 else 1):
                    number = float(stage.of_head(head, explanation.heads, [row], [column])[0, 0])
                    result = _recomputed(explanation, stage, row, column, head, number)
                    if result is not None:
                        error = tolerance * max(1.0, abs(number))
                        assert result == number or abs(result - number) <= error, stage.name
                        checked += 1
    return checked


def _recomputed(explanation, stage, row, column, head, number):
    """Recompute a number; return None if its stage has no formula with numbers."""
    if stage.factors is not None:
        left, right, bias = stage.terms(row, column, head, explanation.heads)
        return float(left.double() @ right.double()) + (bias or 0.0)
    if stage.kind in ("masked", "weights"):
        [source] = stage.sources
        scores = source.of_head(head, explanation.heads, [row], range(stage.shape[-1]))[0].tolist()
        if stage.kind == "masked":  # `masked_pairs` is compared by the tests
            return scores[column] if math.isfinite(number) else number
        powers = [math.exp(score - max(scores)) for score in scores]
        return powers[column] / sum(powers)
    if stage.number_formula is None:
        return None
    formula = stage.formula_of(row, column, head, explanation.heads)
    return None if formula.text.startswith((*SOURCES, "no token")) else value(formula)


def masked_pairs(explanation):
    """Return the masked pairs (N, M) of each stage of the kind "masked", as booleans."""
    return [
        stage.numbers().isneginf().reshape(-1, *stage.shape[-2:])[0]
        for stage in explanation.stages
        if stage.kind == "masked"
    ]
