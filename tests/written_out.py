"""A number that is written out, computed again from what is written."""

import math
import re


def value(formula):
    """The number that a formula with numbers gives, by Python's own arithmetic."""
    text = formula.text
    for number in formula.numbers:
        text = text.replace("{}", f"({number!r})", 1)
    text = text.replace("×", "*").replace("²", "**2").replace("10000^", "10000 ** ")
    text = re.sub(r"e\^(\([^)]*\))", r"exp\1", text)
    return eval(
        text, {"exp": math.exp, "max": max, "sin": math.sin, "cos": math.cos, "__builtins__": {}}
    )


def in_words(formula):
    """The numbers of a formula that says where a number stands."""
    return [int(number) for number in re.findall(r"\d+", formula.text)]


def check_numbers(found, tolerance=1e-5):
    """Every number that can be written out is what it is said to be; how many were checked.

    Of each stage two rows, all heads, and the first and the last column.
    """
    checked = 0
    for stage in found.stages:
        for row in {stage.shape[-2] // 2, stage.shape[-2] - 1}:
            for column in {0, stage.shape[-1] - 1}:
                for head in range(found.heads if len(stage.shape) == 3 else 1):
                    number = float(stage.of_head(head, found.heads, [row], [column])[0, 0])
                    made = _again(found, stage, row, column, head, number)
                    if made is not None:
                        off = tolerance * max(1.0, abs(number))
                        assert made == number or abs(made - number) <= off, stage.name
                        checked += 1
    return checked


def _again(found, stage, row, column, head, number):
    """A number by what is written of it; None where that is a place, or nothing."""
    if stage.factors is not None:
        left, right, more = stage.terms(row, column, head, found.heads)
        return float(left.double() @ right.double()) + (more or 0.0)
    if stage.kind in ("masked", "weights"):
        [before] = stage.sources
        scores = before.of_head(head, found.heads, [row], range(stage.shape[-1]))[0].tolist()
        if stage.kind == "masked":  # which are hidden is for the tests to say
            return scores[column] if math.isfinite(number) else number
        powers = [math.exp(score - max(scores)) for score in scores]
        return powers[column] / sum(powers)
    if stage.how is None:
        return None
    formula = stage.formula_of(row, column, head, found.heads)
    return value(formula) if formula.numbers else None


def hidden(found):
    """Which pairs each stage `masked` hides, (N, M) booleans."""
    return [
        stage.numbers().isneginf().reshape(-1, *stage.shape[-2:])[0]
        for stage in found.stages
        if stage.kind == "masked"
    ]
