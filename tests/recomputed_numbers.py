"""Checks of numbers that are written out: each is recomputed from its formula."""

import math
import re


def value(formula):
    """Evaluate a formula in Python."""
    text = formula.text
    for number in formula.numbers:
        text = text.replace("{}", f"({number!r})", 1)
    text = text.replace("×", "*").replace("²", "**2").replace("10000^", "10000 ** ")
    text = re.sub(r"e\^(\([^)]*\))", r"exp\1", text)
    return eval(
        text, {"exp": math.exp, "max": max, "sin": math.sin, "cos": math.cos, "__builtins__": {}}
    )


def in_words(formula):
    """The indices in a formula that only locates a number."""
    return [int(number) for number in re.findall(r"\d+", formula.text)]


def check_numbers(explanation, tolerance=1e-5):
    """Recompute numbers from what is written out, and return how many were compared.

    Of each stage: two rows, the first and the last column, all heads.
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
    """Recompute a number; None if its formula has no numbers, or if it has none."""
    if stage.factors is not None:
        left, right, more = stage.terms(row, column, head, explanation.heads)
        return float(left.double() @ right.double()) + (more or 0.0)
    if stage.kind in ("masked", "weights"):
        [before] = stage.sources
        scores = before.of_head(head, explanation.heads, [row], range(stage.shape[-1]))[0].tolist()
        if stage.kind == "masked":  # the tests themselves compare the masks
            return scores[column] if math.isfinite(number) else number
        powers = [math.exp(score - max(scores)) for score in scores]
        return powers[column] / sum(powers)
    if stage.number_formula is None:
        return None
    formula = stage.formula_of(row, column, head, explanation.heads)
    return value(formula) if formula.numbers else None


def hidden(explanation):
    """The masked pairs of each stage `masked`, as (N, M) booleans."""
    return [
        stage.numbers().isneginf().reshape(-1, *stage.shape[-2:])[0]
        for stage in explanation.stages
        if stage.kind == "masked"
    ]
