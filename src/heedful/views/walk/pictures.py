"""Pictures of a walk: vectors, scores, weights, residual sums and probabilities."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from heedful.explain import Explanation, Section, Stage
from heedful.files import check_free, make_directory
from heedful.pictures import lesson_drawings, plots, word_plane
from heedful.pictures.labels import label, names, position_labels
from heedful.views.walk.terminal_pages import has_query_rows

MAX_KEYS, MAX_MOVES = 40, 7  # keys in a plane, and arrows with labels
INPUT_KINDS = ("embeddings", "positions", "input", "memory")
MAX_ANSWERS, LABEL = 40, 24  # answers in a picture; terminal cells of a bar's label


class Picture(NamedTuple):
    """A figure, the name of its file, and the stage of each of its tables or maps."""

    name: str
    figure: Figure
    stages: Sequence[Stage] = ()


def draw(
    explanation: Explanation, folder: Path, suffix: str = "png", *,
    query: int | None = None, overwrite: bool = False,
) -> list[Path]:  # fmt: skip
    """Save the pictures of each group of steps; save none if a file exists, unless `overwrite`.

    Args:
        explanation: the explanation of a text.
        folder: the folder of the files; it is created.
        suffix: png, svg or pdf.
        query: the position of a token, to frame its rows.
        overwrite: replace existing files of the same names.

    Returns:
        the paths of the files, in the order of the walk.

    Raises:
        SaveError: a file exists, and `overwrite` is False; or a file cannot be written.
    """
    files = [
        (folder / f"{number:02}-{picture.name}.{suffix}", picture.figure)
        for number, picture in enumerate(pictures(explanation, query), 1)
    ]
    for path, _ in files:
        check_free(path, overwrite)
    make_directory(folder)
    return [plots.save(figure, path) for path, figure in files]


def pictures(explanation: Explanation, query: int | None = None) -> Iterator[Picture]:
    """Yield the pictures of the walk, for each group of steps, with the rows of `query` framed."""
    for picture in _pictures(explanation, len(explanation.tokens) - 1 if query is None else query):
        rows = [query if has_query_rows(stage) else None for stage in picture.stages]
        plots.frame_rows(picture.figure, rows)
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
            vectors = [stage for stage in section.stages if stage.columns == "width"]
            if section.of_kind("sum"):  # leave out the norm after the sum: its scale differs
                vectors.pop()
            yield _vectors(explanation, name, vectors, heading)
        previous = section.stages[-1]


def _attention(
    explanation: Explanation, section: Section, previous: Stage | None, heading: str, row: int
) -> Iterator[Picture]:
    """Yield the pictures of an attention layer; `row` is the token in the planes."""
    scores, weights, context = (section.stage(name) for name in ("scores", "weights", "context"))
    slug, heads, every = _slug(section), _heads(explanation), range(explanation.heads)
    head = f", head {explanation.head}" if len(heads) < len(every) else ""
    if section.stages[0].kind == "embeddings":  # a variant: its section begins with its vectors
        inputs = [stage for stage in section.stages if stage.kind in INPUT_KINDS]
        yield _vectors(explanation, "vectors", inputs, "From text to vectors")
        previous = inputs[-1]
    if tables := [stage for stage in section.stages if stage.kind == "table"]:
        yield _vectors(explanation, f"{slug}matrices", tables, f"{heading}{head}: weight matrices")
    query, key = scores.factors or (scores, scores)
    value = (context.factors or (context, context))[1]
    if query is not key:
        yield _vectors(explanation, f"{slug}query-key-value", [query, key, value], heading + head)
    rows, keys = explanation.labels(weights.rows), explanation.labels(weights.columns)
    last = weights.sources[0]
    scored = section.of_kind("scaled") or scores
    compared = [scored, last] if last.kind == "masked" else [scored]
    maps = [torch.stack([_of_head(explanation, stage, h) for h in heads]) for stage in compared]
    title = f"{heading}{head}: {scored.name if scored is scores else 'scaled scores'}"
    figure = plots.scores(maps[0], (*maps, None)[1], rows, key_tokens=keys, title=title)
    yield Picture(f"{slug}scores", figure, compared * len(heads))
    figure = plots.heatmaps(
        [_of_head(explanation, weights, h) for h in every], rows, key_tokens=keys,
        titles=[f"head {h}" if explanation.heads > 1 else "weights" for h in every],
        title=f"{heading}: weights of each token",
        allowed=_of_head(explanation, last).isfinite(),
    )  # fmt: skip
    yield Picture(f"{slug}weights", figure, [weights] * len(every))
    if query is not key and _of_head(explanation, weights).isfinite().all():
        yield Picture(f"{slug}query-and-keys", _query_and_keys(explanation, section, row))
    after = section.stages[section.stages.index(context) :]
    outputs = [stage for stage in after if stage.kind in ("context", "joined", "output")]
    yield _vectors(explanation, f"{slug}context", outputs, heading + head)
    yield from _residual(explanation, section, previous, "output", "residual")
    if previous in section.stages and (total := section.of_kind("sum")):  # of a variant
        yield Picture("moved-token", _moved_token(explanation, row, total))


def _query_and_keys(explanation: Explanation, section: Section, row: int) -> Figure:
    """Draw a token's query as an arrow, and the keys that it may attend to, with their weights."""
    weights = section.stage("weights")
    queries, keys = (_of_head(explanation, s) for s in section.stage("scores").factors or ())
    row = row if weights.rows == "tokens" else -1
    shares, query = _of_head(explanation, weights)[row], queries[row]
    chosen = shares.topk(min(MAX_KEYS, int((shares > 0).sum()))).indices.sort().values.tolist()
    words, tokens = (names(explanation.labels(s)) for s in (weights.rows, weights.columns))
    labels = [*(f"{tokens[i]} {shares[i]:.2f}" for i in chosen), "0", f"query of {words[row]}"]
    axes = f"along the query of {words[row]}: score / {query.norm():.2f}", "keys"
    title = f"The query of {words[row]} among the keys, with attention weights"
    return _plane(keys[chosen], torch.stack([query * 0, query]), labels, axes, title)


def _moved_token(explanation: Explanation, row: int, total: Stage) -> Figure:
    """Draw the residual sum of a token as arrows: its vector, and the projected, weighted values.

    The largest arrows have labels, and the other points are the vectors of their tokens.
    """
    stages = [*map(explanation.stage, ("weights", "value", "W_output")), total.sources[-1]]
    weights, values, output, inputs = (_of_head(explanation, stage) for stage in stages)
    moves, tokens = weights[row, :, None] * (values @ output), names(explanation.tokens)
    order = moves.norm(dim=1).argsort(descending=True).tolist()
    path = torch.stack([inputs[row], *moves[order]]).cumsum(0)
    dots = list(dict.fromkeys([row, *order[:MAX_MOVES]]))
    labels = [*(tokens[i] for i in dots), *[""] * len(path)]
    for n, i in enumerate(order[:MAX_MOVES], len(dots) + 1):
        labels[n] = f"+ {weights[row, i]:.2f} {tokens[i]}"
    title = f"{tokens[row]}, moved by the values of the tokens that it attends to"
    axes = f"along the move of {tokens[row]}", "vectors"
    return _plane(inputs[dots], path, labels, axes, title)


def _plane(
    points: Tensor, path: Tensor, labels: Sequence[str], axes: tuple[str, str], title: str
) -> Figure:
    """Draw points and a path of arrows, whose direction is the first axis.

    The second axis is the first principal component of the points, orthogonal to the first axis.
    Vectors of two numbers are drawn at these coordinates.
    """
    vectors, n = torch.cat([points, path]), len(points)
    ends = "dimension 0", "dimension 1"
    if vectors.shape[1] != 2:
        ends = axes[0], f"across: first principal component of the {axes[1]}"
        unit = torch.nn.functional.normalize(path[-1] - path[0], dim=0)
        rest = vectors - (vectors @ unit)[:, None] * unit
        axis = torch.linalg.svd(rest[:n] - rest[:n].mean(0), full_matrices=False).Vh[0]
        vectors = torch.stack([vectors @ unit, rest @ axis], dim=1)
    arrows = list(itertools.pairwise(range(n, len(vectors))))
    return word_plane.words(vectors.numpy(), labels, ends, arrows=arrows, dots=n, title=title)


def _residual(
    explanation: Explanation, section: Section, previous: Stage | None, kind: str, file: str
) -> Iterator[Picture]:
    """Yield one picture of a residual sum, if any: input, output, sum, and a norm after the sum."""
    output = section.of_kind(kind)
    after = () if output is None else section.stages[section.stages.index(output) :]
    if previous is not None and len(after) > 1:
        heading = f"{_title(section, explanation)}: the residual sum"
        yield _vectors(explanation, f"{_slug(section)}{file}", [previous, *after], heading)


def _heads(explanation: Explanation) -> Sequence[int]:
    """Return the heads to draw: all heads of a variant, one head of a model."""
    return range(explanation.heads) if len(explanation.sections) == 1 else [explanation.head]


def _vectors(explanation: Explanation, name: str, stages: Sequence[Stage], heading: str) -> Picture:
    """Draw stages as tables: a line for each head, then the stages without heads."""
    heads = _heads(explanation)
    tables: list[tuple[Stage, int | None]]
    tables = [(stage, h) for h in heads for stage in stages if len(stage.shape) == 3]
    tables += [(stage, None) for stage in stages if len(stage.shape) == 2]
    figure = plots.vectors(
        [_of_head(explanation, *table) for table in tables],
        [explanation.labels(s.rows) or position_labels(s.shape[-2]) for s, _ in tables],
        titles=[f"{s.name}{f', head {h}' if heads[1:] and h is not None else ''}, "
                f"{s.shape[-2]} × {s.shape[-1]}" for s, h in tables],
        title=heading,
    )  # fmt: skip
    return Picture(name, figure, [stage for stage, _ in tables])


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
