"""Pictures of a walk: vectors, scores, weights, residual sums and probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.explain import Explanation, Section, Stage
from heedful.files import check_free, make_directory
from heedful.pictures import lesson_drawings, plots
from heedful.pictures.labels import label, position_labels
from heedful.views.walk import planes
from heedful.views.walk.terminal_pages import has_query_rows

MATRIX = 3.0  # inches, largest height of a weight matrix
MAX_TOKENS, MAX_HEADS = 1_000, 16  # of an attention map; drawn in full of a variant
MAX_ANSWERS, LABEL = 40, 24  # answers in a picture; terminal cells of a bar's label


class Picture(NamedTuple):
    """A figure, the name of its file, and the stage of each of its tables or maps."""

    name: str
    figure: Figure
    stages: Sequence[Stage] = ()


def draw(
    explanation: Explanation,
    folder: Path,
    suffix: str = "png",
    *,
    query: int | None = None,
    overwrite: bool = False,
) -> list[Path]:
    """Save the pictures of each group of steps; save none if a file exists, unless `overwrite`.

    Args:
        explanation: the explanation of a text.
        folder: the folder of the files; it is created.
        suffix: png, svg or pdf.
        query: the position of a token, whose rows are framed; default of the planes: the last.
        overwrite: replace existing files of the same names.

    Returns:
        the paths of the files, in the order of the walk.

    Raises:
        ArgumentError: the text has more tokens than an attention map can show.
        SaveError: a file exists, and `overwrite` is False; or a file cannot be written.
    """
    count = max(len(explanation.tokens), len(explanation.memory))
    if count > MAX_TOKENS:
        raise ArgumentError(
            f"pictures of {count:,} tokens", expected=f"at most {MAX_TOKENS:,}",
            remedy="pass a shorter text",
        )  # fmt: skip
    files = [
        (folder / f"{number:02}-{picture.name}.{suffix}", picture.figure)
        for number, picture in enumerate(pictures(explanation, query), 1)
    ]
    for path, _ in files:
        check_free(path, overwrite)
    make_directory(folder)
    return [plots.save(figure, path) for path, figure in files]


def pictures(explanation: Explanation, query: int | None = None) -> Iterator[Picture]:
    """Yield the pictures of the walk, for each group of steps; frame the rows of `query`."""
    row = len(explanation.tokens) - 1 if query is None else query
    for picture in _pictures(explanation, row):
        if query is not None:
            rows = [query if has_query_rows(stage) else None for stage in picture.stages]
            plots.mark_rows(picture.figure, rows)
        yield picture


def _pictures(explanation: Explanation, row: int) -> Iterator[Picture]:
    previous: Stage | None = None
    for section in explanation.sections:
        heading = _title(section, explanation)
        if section.kind.endswith("attention"):
            yield from _attention(explanation, section, previous, heading, row)
        elif section.kind == "feed-forward":
            inside = [stage for stage in section.stages if stage.kind == "inner"]
            yield _vectors(explanation, f"{_slug(section)}feed-forward", inside, heading)
            yield from _residual(explanation, section, previous, "fed", "feed-forward-residual")
        elif section.kind == "words":
            yield from _answers(explanation)
        elif section.kind == "vectors":
            alone = len(section.stages) == 1
            name = section.stages[0].name if alone else f"{_slug(section)}vectors"
            yield _vectors(explanation, name, _comparable_vectors(section), heading)
        previous = section.stages[-1]


def _attention(
    explanation: Explanation, section: Section, previous: Stage | None, heading: str, row: int
) -> Iterator[Picture]:
    """Yield the pictures of an attention layer; `row` is the token of the planes."""
    scores, weights, context = (section.stage(name) for name in ("scores", "weights", "context"))
    slug, heads = _slug(section), _heads(explanation)
    head = f", head {explanation.head}" if len(heads) < explanation.heads else ""
    if section.stages[0].kind == "embeddings":  # a variant: its section begins with its vectors
        inputs = [stage for stage in section.stages if stage.kind in INPUT_KINDS]
        yield _vectors(explanation, "vectors", inputs, "From text to vectors")
        previous = inputs[-1]
    if tables := [stage for stage in section.stages if stage.kind == "table"]:
        title = f"{heading}{head}: weight matrices"
        yield _vectors(explanation, f"{slug}matrices", tables, title, MATRIX)
    query, key = scores.factors or (scores, scores)
    value = (context.factors or (context, context))[1]
    if query is not key:
        yield _vectors(explanation, f"{slug}query-key-value", [query, key, value], heading + head)
    rows, keys = explanation.labels(weights.rows), explanation.labels(weights.columns)
    last = section.stage_before(weights)
    scored = section.of_kind("scaled") or scores
    compared = [scored, last] if last.kind == "masked" else [scored]
    maps = [torch.stack([_of_head(explanation, stage, h) for h in heads]) for stage in compared]
    title = f"{heading}{head}: scaled scores" if scored.kind == "scaled" else f"{heading}: scores"
    figure = plots.scores(maps[0], (*maps, None)[1], rows, key_tokens=keys, title=title)
    yield Picture(f"{slug}scores", figure, compared * len(heads))
    every = range(explanation.heads)
    figure = plots.heatmaps(
        [_of_head(explanation, weights, h) for h in every], rows, key_tokens=keys,
        titles=[f"head {h}" if explanation.heads > 1 else "weights" for h in every],
        title=f"{heading}: weights of each token",
        allowed=_of_head(explanation, last).isfinite(),
    )  # fmt: skip
    yield Picture(f"{slug}weights", figure, [weights] * explanation.heads)
    if query is not key:
        plane = planes.query_and_keys(explanation, section, row)
        yield Picture(f"{slug}query-and-keys", plane)
    after = section.stages[section.stages.index(context) :]
    outputs = [stage for stage in after if stage.kind in ("context", "joined", "output")]
    yield _vectors(explanation, f"{slug}context", outputs, heading + head)
    yield from _residual(explanation, section, previous, "output", "residual")
    if section.of_kind("embeddings") and section.of_kind("sum"):
        yield Picture("moved-word", planes.moved_word(explanation, section, row))


def _residual(
    explanation: Explanation, section: Section, previous: Stage | None, kind: str, file: str
) -> Iterator[Picture]:
    """Yield one picture of a residual sum, if any: input, output, sum, and a norm after the sum."""
    output = section.of_kind(kind)
    after = () if output is None else section.stages[section.stages.index(output) :]
    if previous is not None and len(after) > 1:
        heading = f"{_title(section, explanation)}: the residual sum"
        yield _vectors(explanation, f"{_slug(section)}{file}", [previous, *after], heading)


def _comparable_vectors(section: Section) -> list[Stage]:
    """Return the vectors of a section, without the norm after a sum, whose scale differs."""
    vectors = [stage for stage in section.stages if stage.columns == "width"]
    return vectors[:-1] if any(stage.kind == "sum" for stage in vectors) else vectors


INPUT_KINDS = ("embeddings", "positions", "input", "memory")


def _heads(explanation: Explanation) -> Sequence[int]:
    """Return the heads to draw: all heads of a variant, one head of a model."""
    all_heads = len(explanation.sections) == 1 and explanation.heads <= MAX_HEADS
    return range(explanation.heads) if all_heads else [explanation.head]


def _vectors(
    explanation: Explanation,
    name: str,
    stages: Sequence[Stage],
    heading: str,
    tallest: float = plots.HIGHEST,
) -> Picture:
    """Draw stages as tables: a line for each head, then the stages without heads."""
    heads = _heads(explanation)
    tables = [(stage, h) for h in heads for stage in stages if len(stage.shape) == 3]
    tables += [(stage, 0) for stage in stages if len(stage.shape) == 2]
    figure = plots.vectors(
        [_of_head(explanation, stage, head) for stage, head in tables],
        [explanation.labels(s.rows) or position_labels(s.shape[-2]) for s, _ in tables],
        titles=[_table_title(stage, head if len(heads) > 1 else None) for stage, head in tables],
        title=heading,
        tallest=tallest,
    )
    return Picture(name, figure, [stage for stage, _ in tables])


def _table_title(stage: Stage, head: int | None) -> str:
    name = stage.name if head is None or len(stage.shape) < 3 else f"{stage.name}, head {head}"
    return f"{name}, {stage.shape[-2]} × {stage.shape[-1]}"


def _answers(explanation: Explanation) -> Iterator[Picture]:
    """Yield a picture of the likeliest tokens; with several answers, the likeliest of each."""
    answers = explanation.answers[-MAX_ANSWERS:]
    if not answers:
        return
    last = answers[-1]
    word = explanation.tokens[last.position]
    title = f"The likeliest {explanation.predicted} {word} @{last.position}"
    shares = [token.probability for token in last.likeliest]
    names = [token.token for token in last.likeliest]
    if len(answers) > 1:
        title = f"The likeliest of the {explanation.predicted} each token"
        shares = [answer.likeliest[0].probability for answer in answers]
        names = [f"{explanation.tokens[a.position]}→{a.likeliest[0].token}" for a in answers]
    labels = [label(name, LABEL) for name in names]
    yield Picture("words", lesson_drawings.bars({title: shares}, labels, across="probability"))


def _of_head(explanation: Explanation, stage: Stage, head: int | None = None) -> Tensor:
    rows, columns = range(stage.shape[-2]), range(stage.shape[-1])
    head = explanation.head if head is None else head
    return stage.of_head(head, explanation.heads, rows, columns)


def _title(section: Section, explanation: Explanation) -> str:
    if len(explanation.sections) == 1:
        return explanation.title.partition(":")[0]
    return section.title.partition(", norm")[0]


def _slug(section: Section) -> str:
    """Return the prefix of a section's file names."""
    side = f"{section.side}-" if section.side else ""
    layer = "" if section.layer is None else f"block-{section.layer}-"
    return side + layer + ("cross-" if section.kind == "cross-attention" else "")
