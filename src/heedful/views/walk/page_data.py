"""A walk (the explanation of a text) as JSON data, and as JSON with arrays for its page.

To limit its size, the page contains only the first and last rows and columns of large stages, and
only the likeliest tokens of the vocabulary.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from heedful.explain import Answer, Explanation, Stage
from heedful.views.explorer.wire import packed
from heedful.views.number_format import example
from heedful.views.walk.terminal_pages import has_query_rows

BYTES = 3_400_000  # size of all numbers in the page, four bytes each; base64 adds a third
LEAST = 8  # rows or columns that are always stored
FORMULAS = 8_000  # numbers per stage that are stored with their formula
ANSWERS = 3  # answers whose likeliest tokens are stored
POSITIONS = 16  # rows of logits that are stored besides those of the answers
WHOLE, TABLE = 1_000_000, 20_000  # numbers of a step or weight matrix that JSON contains in full
CORNER = 8  # rows or columns in JSON of a larger step
ROOM = 200  # characters of a calculation that is written out


class Region(NamedTuple):
    """The rows and columns of a stage that the file stores."""

    rows: Sequence[int]
    columns: Sequence[int]


def packed_walk(walk: Explanation, room: int = BYTES) -> bytes:
    """Pack a walk with at most `room` bytes of numbers, in the format of `wire.packed`."""
    stages = all_stages(walk)
    regions = _stored_regions(walk, stages, room)
    arrays: dict[str, Tensor] = {}
    descriptions = []
    for i, (stage, region) in enumerate(zip(stages, regions, strict=True)):
        arrays[f"numbers {i}"] = stage.part(region.rows, region.columns)
        if stage.bias is not None:
            arrays[f"bias {i}"] = stage.bias[..., list(region.columns)]
        formulas, more = _formulas(stage, region)
        arrays |= {f"{name} {i}": array for name, array in more.items()}
        indices = _stored_indices(walk, stage, region)
        descriptions.append({**stage_data(stages, stage), **indices, **formulas})
    return packed({**walk_data(walk, stages), "stages": descriptions}, **arrays)


def walk_data(walk: Explanation, stages: Sequence[Stage]) -> dict[str, Any]:
    """Return the data of a walk without its stages, which are passed in the page's order."""
    order = {id(stage): n for n, section in enumerate(walk.sections) for stage in section.stages}
    return {
        **summary(walk),
        "heading": walk.predicted,
        "missing": walk.missing,
        "vocabulary": len(walk.vocabulary),
        "answers": [_answer(walk, answer) for answer in walk.answers],
        "sections": [{"title": s.title, "brief": s.kind == "blocks"} for s in walk.sections],
        "section": [order.get(id(stage)) for stage in stages],
    }


def stage_data(stages: Sequence[Stage], stage: Stage) -> dict[str, Any]:
    """Return the texts of a stage, and its inputs as indices into `stages`."""
    indices = {id(other): i for i, other in enumerate(stages)}
    return {
        **stage_summary(stage),
        "kind": stage.kind,
        "step": stage.step,
        "factors": [indices[id(factor)] for factor in stage.factors or ()],
        "sources": [indices[id(source)] for source in stage.sources],
        "reads": stage.reads,
    }


def computed_stage_data(
    stages: Sequence[Stage], stage: Stage, longer: Stage, growth: Mapping[int, str]
) -> dict[str, Any]:
    """Return what the page needs to compute a stage for any text, except its matrices.

    `longer` is the same stage for a longer text; `growth` has the letter that stands for a text's
    length in shapes, by the difference of the lengths.
    """

    def symbolic(sizes: Sequence[int], others: Sequence[int]) -> list[int | str]:
        return [a if a == b else growth[b - a] for a, b in zip(sizes, others, strict=True)]

    indices = {id(other): i for i, other in enumerate(stages)}
    return {
        **stage_data(stages, stage),
        "shape": symbolic(stage.shape, longer.shape),
        "chain": [symbolic(*pair) for pair in zip(stage.chain, longer.chain, strict=True)],
        "rule": stage.rule,
        "constants": dict(longer.constants),
        "inputs": [indices[id(source)] for source in stage.inputs],
    }


def all_stages(walk: Explanation, *, deep: bool = False) -> list[Stage]:
    """Return the stages of all sections, then their inputs that belong to no section.

    With `deep`, these include the stages of the blocks that a section shows as a single stage.
    """
    stages = list(walk.stages)
    ids = {id(stage) for stage in stages}
    for stage in stages:
        for source in stage.inputs if deep else (*(stage.factors or ()), *stage.sources):
            if id(source) not in ids:
                ids.add(id(source))
                stages.append(source)
    return stages


def _stored_regions(walk: Explanation, stages: Sequence[Stage], room: int) -> list[Region]:
    """Choose the region of each stage, with a common limit that makes the total fit."""
    likeliest = _likeliest(walk)
    costs = [_cost(stage) for stage in stages]
    limit = max(math.prod(s.shape) * cost for s, cost in zip(stages, costs, strict=True))
    while True:
        regions = [
            _stored_region(walk, stage, limit // cost, likeliest)
            for stage, cost in zip(stages, costs, strict=True)
        ]
        total = sum(
            4 * cost * _heads(stage) * len(region.rows) * len(region.columns)
            for stage, cost, region in zip(stages, costs, regions, strict=True)
        )
        if total <= room or limit <= LEAST**2:
            return regions
        limit = limit * 3 // 4


def _stored_region(walk: Explanation, stage: Stage, limit: int, likeliest: Sequence[int]) -> Region:
    """Choose at most `limit` numbers of a stage, but at least `LEAST` rows and columns."""
    rows, columns = stage.shape[-2:]
    if stage.number_formula is not None:
        limit = min(limit, FORMULAS)
    if stage.columns == "vocabulary":
        if stage.rows == "width":
            return Region(_ends(rows, limit), likeliest)
        positions = (answer.position for answer in walk.answers[-ANSWERS:])
        return Region(sorted({*_ends(rows, POSITIONS), *positions}), likeliest)
    while _heads(stage) * rows * columns > limit and max(rows, columns) > LEAST:
        if rows > columns:
            rows = max(LEAST, rows * 3 // 4)
        else:
            columns = max(LEAST, columns * 3 // 4)
    return Region(_ends(stage.shape[-2], rows), _ends(stage.shape[-1], columns))


def _ends(size: int, count: int) -> Sequence[int]:
    """Return `count` of `size` indices: three quarters from the start, the rest from the end."""
    if size <= count:
        return range(size)
    last = max(1, count // 4)
    return [*range(count - last), *range(size - last, size)]


def _likeliest(walk: Explanation) -> list[int]:
    """Return the token ids that are stored, beginning with the likeliest of the last answer."""
    answers = walk.answers[-ANSWERS:][::-1]
    if not answers and walk.vocabulary:
        last = walk.answer(len(walk.tokens) - 1)
        answers = () if last is None else (last,)
    ids = dict.fromkeys(token.id for answer in answers for token in answer.likeliest)
    return list(ids) or list(range(min(LEAST, len(walk.vocabulary))))


def _heads(stage: Stage) -> int:
    return math.prod(stage.shape[:-2])


def _cost(stage: Stage) -> int:
    """Return how many numbers are stored per number of a stage: itself and those of its formula."""
    last = stage.shape[-2] - 1  # the row whose formulas have the most numbers
    formula = stage.number_formula
    return 1 if formula is None else 1 + len(formula(0, last, 0).numbers)


def _stored_indices(walk: Explanation, stage: Stage, region: Region) -> dict[str, Any]:
    """Return the rows and columns that are stored if only some are, and a vocabulary's tokens."""
    data: dict[str, Any] = {}
    sizes = stage.shape[-2:]
    for name, indices, size in zip(region._fields, region, sizes, strict=True):
        if len(indices) < size:
            data[name] = list(indices)
    if stage.columns == "vocabulary":
        data["names"] = [walk.vocabulary[id] for id in region.columns]
    return data


def _formulas(stage: Stage, region: Region) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the distinct texts of formulas, which of their numbers are integers, and arrays.

    The arrays are the numbers of each formula, padded with zeros, and the index of its text.
    """
    if stage.number_formula is None:
        return {}, {}
    places = itertools.product(range(_heads(stage)), *region)
    texts, numbers = zip(*itertools.starmap(stage.number_formula, places), strict=True)
    samples = dict(zip(texts, numbers, strict=True))  # the numbers of one formula of each text
    whole = [[n for n, x in enumerate(row) if isinstance(x, int)] for row in samples.values()]
    length = max(map(len, numbers))
    padded = [[*row, *[0] * (length - len(row))] for row in numbers]
    more = {"formulas": torch.tensor(padded, dtype=torch.float64)}
    if len(samples) > 1:
        indices = {text: i for i, text in enumerate(samples)}
        more["which"] = torch.tensor([indices[text] for text in texts], dtype=torch.uint8)
    return {"texts": list(samples), "whole": whole}, more


def as_data(walk: Explanation, places: Sequence[int] = ()) -> dict[str, Any]:
    """Return a walk as JSON data.

    Args:
        walk: the explanation of a text.
        places: positions of a token. If there are any, steps with a row per query contain only the
            row of the first of these positions.
    """
    walk = walk.of_token(places[0]) if places else walk
    data = summary(walk)
    if places:
        place = walk.row
        data["query"] = {"token": walk.tokens[place], "place": place, "places": list(places)}
    if walk.vocabulary:
        data |= {"heading": walk.predicted, "missing": walk.missing}
        data["answers"] = [_answer(walk, answer) for answer in walk.answers]
    data |= {"groups": [], "steps": []}
    for number, section in enumerate(walk.sections):
        names = [stage.name for stage in section.stages]
        entry = {"title": section.title, "layer": section.layer, "brief": section.kind == "blocks"}
        data["groups"].append(entry | {"steps": names})
        data["steps"] += [{"group": number, **_step(walk, s)} for s in section.stages]
    return data


def summary(walk: Explanation) -> dict[str, Any]:
    """Return the title, notes, tokens and sizes of a walk."""
    names = ("title", "notes", "tokens", "memory", "layers", "layer", "heads", "head", "row")
    return {name: getattr(walk, name) for name in names}


def stage_summary(stage: Stage) -> dict[str, Any]:
    """Return the name, sizes and texts of a stage."""
    names = ("name", "shape", "formula", "sentence", "chain")
    return {name: getattr(stage, name) for name in names} | {"axes": [stage.rows, stage.columns]}


def _answer(walk: Explanation, answer: Answer) -> dict[str, Any]:
    return {
        "place": answer.position,
        "token": walk.tokens[answer.position],
        "likeliest": [token._asdict() for token in answer.likeliest],
    }


def _step(walk: Explanation, stage: Stage) -> dict[str, Any]:
    """Return a step with its numbers; `indices` are their rows and columns."""
    rows, columns = (range(size) for size in stage.shape[-2:])
    if walk.query is not None and has_query_rows(stage):
        rows = range(walk.row, walk.row + 1)
    size = _heads(stage) * len(rows) * len(columns)
    whole = size <= (TABLE if stage.rows == "width" else WHOLE)
    corner = [[part[i] for i in _ends(len(part), CORNER)] for part in (rows, columns)]
    chosen = (rows, columns) if whole else corner
    step = {
        **stage_summary(stage),
        "factors": [factor.name for factor in stage.factors or ()],
        "written_out": "".join(line.plain for line in example(walk, stage, ROOM)) or None,
        "whole": whole and len(rows) == stage.shape[-2],
        "indices": [list(part) for part in chosen],
        "numbers": _finite(stage.part(*chosen).tolist()),
    }
    if stage.columns == "vocabulary":
        step["labels"] = [walk.vocabulary[id] for id in chosen[1]]
    return step


def _finite(numbers: Any) -> Any:
    """Replace −inf in nested lists by None, because JSON has no infinity."""
    if isinstance(numbers, list):
        return [_finite(number) for number in numbers]
    return numbers if math.isfinite(numbers) else None
