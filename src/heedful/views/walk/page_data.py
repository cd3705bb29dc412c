"""An explanation as data: for JSON, and as a page has it, its words, and numbers in arrays.

For a page, of a stage with too many numbers the first and the last rows and columns are kept, so
that the page keeps to a size; of the vocabulary it is the likeliest tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.explain import Answer, Explanation, Formula, Section, Stage
from heedful.views.explorer.wire import packed
from heedful.views.number_format import WrittenOut
from heedful.views.walk.terminal_pages import asks

BYTES = 3_400_000  # of numbers, in four bytes each; as text of a page a third more
LEAST = 8  # rows or columns that are always kept
FORMULAS = 8_000  # numbers of a stage whose formulas are written out one by one
VOICES = 3  # answers whose likeliest tokens are kept
PLACES = 16  # tokens of which the whole vocabulary was computed
WHOLE, TABLE = 1_000_000, 20_000  # numbers of a step in JSON, of a table; of larger ones, corners
CORNER = 8  # rows or columns of these
ROOM = 200  # letters of a number written out


class Kept(NamedTuple):
    """Which rows and columns of a stage are in the file."""

    rows: Sequence[int]
    columns: Sequence[int]


def as_bytes(found: Explanation, room: int = BYTES) -> bytes:
    """All of an explanation for the page, as `wire.packed` writes it.

    Args:
        found: of a text.
        room: bytes for numbers.
    """
    stages = _listed(found)
    kept = _chosen(found, stages, room)
    arrays: dict[str, Tensor] = {}
    described = []
    for i, (stage, part) in enumerate(zip(stages, kept, strict=True)):
        arrays[f"numbers {i}"] = stage.part(part.rows, part.columns)
        if stage.bias is not None:
            arrays[f"bias {i}"] = stage.bias[..., list(part.columns)]
        formulas, more = _formulas(stage, part)
        arrays |= {f"{name} {i}": array for name, array in more.items()}
        described.append({**described_stage(stages, stage), **_cut(found, stage, part), **formulas})
    return packed({**about(found), "stages": described}, **arrays)


def about(found: Explanation) -> dict[str, Any]:
    """What is said of all stages together."""
    order = {id(stage): n for n, section in enumerate(found.sections) for stage in section.stages}
    return {
        **facts(found),
        "asked": found.asked,
        "missing": found.missing,
        "vocabulary": len(found.vocabulary),
        "answers": [_answer(found, one) for one in found.answers],
        "sections": [
            {"title": each.title, "brief": each.kind == "blocks"} for each in found.sections
        ],
        "section": [order.get(id(stage)) for stage in _listed(found)],
    }


def described_stage(stages: Sequence[Stage], stage: Stage) -> dict[str, Any]:
    """The words of a stage, and which others it was made of, by their places."""
    places = {id(each): place for place, each in enumerate(stages)}
    return {
        **words(stage),
        "kind": stage.kind,
        "step": stage.step,
        "factors": [places[id(each)] for each in stage.factors or ()],
        "sources": [places[id(each)] for each in stage.sources],
        "reads": stage.reads,
    }


def _listed(found: Explanation) -> list[Stage]:
    """All stages, and behind them those that are read and belong to no section."""
    stages = list(found.stages)
    known = {id(stage) for stage in stages}
    for stage in list(stages):
        for read in (*(stage.factors or ()), *stage.sources):
            if id(read) not in known:
                known.add(id(read))
                stages.append(read)
    return stages


def _chosen(found: Explanation, stages: Sequence[Stage], room: int) -> list[Kept]:
    """What is kept of each stage, so that all fits; each has at most as many numbers as another."""
    likeliest = _likeliest(found)
    wide = [_wide(stage) for stage in stages]
    most = max(math.prod(stage.shape) * each for stage, each in zip(stages, wide, strict=True))
    while True:
        kept = [
            _kept(found, stage, most // each, likeliest)
            for stage, each in zip(stages, wide, strict=True)
        ]
        total = sum(
            4 * each * _heads(stage) * len(part.rows) * len(part.columns)
            for stage, each, part in zip(stages, wide, kept, strict=True)
        )
        if total <= room or most <= LEAST**2:
            return kept
        most = most * 3 // 4


def _kept(found: Explanation, stage: Stage, most: int, likeliest: Sequence[int]) -> Kept:
    """At most so many numbers of a stage, where more than the least are there."""
    rows, columns = stage.shape[-2:]
    if stage.how is not None:
        most = min(most, FORMULAS)
    if stage.columns == "vocabulary":
        places = [answer.place for answer in found.answers]
        some = {*_ends(rows, PLACES), *places[-VOICES:]}
        of_table = stage.rows == "width"
        return Kept(_ends(rows, most) if of_table else sorted(some), likeliest)
    while _heads(stage) * rows * columns > most and max(rows, columns) > LEAST:
        if rows > columns:
            rows = max(LEAST, rows * 3 // 4)
        else:
            columns = max(LEAST, columns * 3 // 4)
    return Kept(_ends(stage.shape[-2], rows), _ends(stage.shape[-1], columns))


def _ends(size: int, count: int) -> Sequence[int]:
    """So many of all: three of four are the first ones, the others the last."""
    if size <= count:
        return range(size)
    last = max(1, count // 4)
    return [*range(count - last), *range(size - last, size)]


def _likeliest(found: Explanation) -> list[int]:
    """The tokens of the vocabulary that are kept, the likeliest at the last answer first."""
    answers = found.answers[-VOICES:][::-1]
    if not answers and found.vocabulary:
        last = found.answer(len(found.tokens) - 1)
        answers = () if last is None else (last,)
    ids = dict.fromkeys(one.id for answer in answers for one in answer.likeliest)
    return list(ids) or list(range(min(LEAST, len(found.vocabulary))))


def _heads(stage: Stage) -> int:
    return math.prod(stage.shape[:-2])


def _wide(stage: Stage) -> int:
    """How many numbers a number takes, with those of its formula: the last row has most."""
    last = stage.shape[-2] - 1
    return 1 if stage.how is None else 1 + len(with_places(stage.how(0, last, 0)).numbers)


def _cut(found: Explanation, stage: Stage, part: Kept) -> dict[str, Any]:
    """The places of rows and columns that are kept, where not all are; names of the vocabulary."""
    said: dict[str, Any] = {}
    sizes = stage.shape[-2:]
    for name, kept, size in zip(part._fields, part, sizes, strict=True):
        if len(kept) < size:
            said[name] = list(kept)
    if stage.columns == "vocabulary":
        said["names"] = [found.vocabulary[id] for id in part.columns]
    return said


def _formulas(stage: Stage, part: Kept) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """How each kept number comes about: the texts, which of them is whose, and their numbers.

    A formula of fewer numbers than others has zeros after its own.
    """
    if stage.how is None:
        return {}, {}
    texts: dict[str, int] = {}
    whole: list[list[int]] = []
    which, numbers = [], []
    for head in range(_heads(stage)):
        for row in part.rows:
            for column in part.columns:
                made = with_places(stage.how(head, row, column))
                if made.text not in texts:
                    texts[made.text] = len(texts)
                    whole.append([n for n, x in enumerate(made.numbers) if isinstance(x, int)])
                which.append(texts[made.text])
                numbers.append(made.numbers)
    most = max(map(len, numbers))
    padded = [[*own, *[0] * (most - len(own))] for own in numbers]
    more = {"formulas": torch.tensor(padded, dtype=torch.float64)}
    if len(texts) > 1:
        more["which"] = torch.tensor(which, dtype=torch.uint8)
    return {"texts": list(texts), "whole": whole}, more


def with_places(formula: Formula) -> Formula:
    """A formula that says where a number stands has its places as numbers."""
    if formula.numbers:
        return formula
    places = tuple(int(digits) for digits in re.findall(r"\d+", formula.text))
    return Formula(re.sub(r"\d+", "{}", formula.text), places)


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
    return [indices[i] for i in _ends(len(indices), CORNER)]


def _finite(numbers: Any) -> Any:
    """The same nested lists with null for −inf, which JSON does not know."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None
