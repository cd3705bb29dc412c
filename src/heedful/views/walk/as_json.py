"""The steps from a text to a word as plain data, for JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from heedful.explain import Answer, Explanation, Section, Stage
from heedful.views.walk.printed import asks
from heedful.views.walk.written_out import WrittenOut

WHOLE, TABLE = 1_000_000, 20_000  # numbers of a step, of a table; of larger ones, corners
CORNER = (*range(4), *range(-3, 0))
ROOM = 200  # letters of a number written out


def as_data(found: Explanation, places: Sequence[int] | None = None) -> dict[str, Any]:
    """All of an explanation; where a query is followed, its rows alone.

    Args:
        found: of a text.
        places: where the token stands that is followed; the first of them is.
    """
    about = facts(found)
    row, answers = None, found.answers
    if places is not None:
        row = places[0]
        about["query"] = {"token": found.tokens[row], "place": row, "places": list(places)}
        answer = found.answer(row)
        answers = () if answer is None else (answer,)
    if found.vocabulary:
        about |= {"asked": found.asked, "missing": found.missing}
        about["answers"] = [_answer(found, answer) for answer in answers]
    about["groups"] = [
        {
            "title": section.title,
            "layer": section.layer,
            "brief": section.kind == "blocks",
            "steps": [stage.name for stage in section.stages],
        }
        for section in found.sections
    ]
    return {
        **about,
        "steps": [
            {"group": number, **_step(found, section, stage, row)}
            for number, section in enumerate(found.sections)
            for stage in section.stages
        ],
    }


def facts(found: Explanation) -> dict[str, Any]:
    """What an explanation is of."""
    names = ("title", "notes", "tokens", "memory", "layers", "layer", "heads", "head")
    return {name: getattr(found, name) for name in names}


def words(stage: Stage) -> dict[str, Any]:
    """What a step is called, its sizes, and what is said of it."""
    names = ("name", "shape", "formula", "sentence", "chain")
    return {name: getattr(stage, name) for name in names} | {"axes": [stage.rows, stage.columns]}


def _answer(found: Explanation, answer: Answer) -> dict[str, Any]:
    return {
        "place": answer.place,
        "token": found.tokens[answer.place],
        "likeliest": [one._asdict() for one in answer.likeliest],
    }


def _step(found: Explanation, section: Section, stage: Stage, row: int | None) -> dict[str, Any]:
    """A step with its numbers; `indices` says which rows and columns these are."""
    *_, high, wide = stage.shape
    rows, columns = range(high), range(wide)
    if row is not None and asks(stage):
        rows = range(row, row + 1)
    size = math.prod(stage.shape[:-2]) * len(rows) * wide
    whole = size <= (TABLE if stage.rows == "width" else WHOLE)
    chosen = (rows, columns) if whole else (_corner(rows), _corner(columns))
    step = {
        **words(stage),
        "factors": [factor.name for factor in stage.factors or ()],
        "written_out": _written_out(found, section, stage, row),
        "whole": whole and len(rows) == high,
        "indices": [list(part) for part in chosen],
        "numbers": _finite(stage.part(*chosen).tolist()),
    }
    if stage.columns == "vocabulary":
        step["labels"] = [found.vocabulary[id] for id in chosen[1]]
    return step


def _written_out(found: Explanation, section: Section, stage: Stage, row: int | None) -> str | None:
    """One number as its own sum."""
    here = min(1, stage.shape[-2] - 1) if row is None or stage.rows != "tokens" else row
    lines = WrittenOut(found, section).example(stage, here, ROOM)
    return "".join(line.plain for line in lines) or None


def _corner(indices: range) -> list[int]:
    return list(indices) if len(indices) <= len(CORNER) else [indices[i] for i in CORNER]


def _finite(numbers: Any) -> Any:
    """The same nested lists with null for −inf, which JSON does not know."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None
