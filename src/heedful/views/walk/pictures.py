"""Pictures of a walk: vectors, scores, weights, residual sums and probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure
from torch import Tensor

from heedful.errors import ArgumentError
from heedful.explain import Explanation, Section, Stage
from heedful.files import check_free, make_directory
from heedful.pictures import lesson_drawings, plots
from heedful.pictures.labels import label

MAX_TOKENS = 1_000  # of an attention map
MAX_ANSWERS, LABEL = 40, 24  # answers in a picture; terminal cells of a bar's label


class Picture(NamedTuple):
    """A figure, and the name of its file."""

    name: str
    figure: Figure


def draw(
    explanation: Explanation, folder: Path, suffix: str = "png", *, overwrite: bool = False
) -> list[Path]:
    """Save the pictures of each group of steps; save none if a file exists, unless `overwrite`.

    Args:
        explanation: the explanation of a text.
        folder: the folder of the files; it is created.
        suffix: png, svg or pdf.
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
        for number, picture in enumerate(pictures(explanation), 1)
    ]
    for path, _ in files:
        check_free(path, overwrite)
    make_directory(folder)
    return [plots.save(figure, path) for path, figure in files]


def pictures(explanation: Explanation) -> Iterator[Picture]:
    """Yield the pictures of the walk, for each group of steps."""
    previous: Stage | None = None
    for section in explanation.sections:
        heading = _title(section, explanation)
        if section.kind.endswith("attention"):
            yield from _attention(explanation, section, previous, heading)
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
    explanation: Explanation, section: Section, previous: Stage | None, heading: str
) -> Iterator[Picture]:
    """Yield vectors, scores, weights, context and residual sum of an attention layer."""
    scores, weights, context = (section.stage(name) for name in ("scores", "weights", "context"))
    slug, head = _slug(section), f", head {explanation.head}" if explanation.heads > 1 else ""
    if section.stages[0].kind == "embeddings":  # a variant: its section begins with its vectors
        inputs = [stage for stage in section.stages if stage.kind in INPUT_KINDS]
        yield _vectors(explanation, "vectors", inputs, "From text to vectors")
        previous = inputs[-1]
    query, key = scores.factors or (scores, scores)
    value = (context.factors or (context, context))[1]
    if query is not key:
        yield _vectors(explanation, f"{slug}query-key-value", [query, key, value], heading + head)
    rows, keys = explanation.labels(weights.rows), explanation.labels(weights.columns)
    last = section.stage_before(weights)
    scored = section.of_kind("scaled") or scores
    masked = _of_head(explanation, last) if last.kind == "masked" else None
    title = f"{heading}{head}: {scored.name if masked is None else 'scores'}"
    figure = plots.scores(_of_head(explanation, scored), masked, rows, key_tokens=keys, title=title)
    yield Picture(f"{slug}scores", figure)
    yield Picture(
        f"{slug}weights",
        plots.heatmaps(
            [_of_head(explanation, weights)], rows, key_tokens=keys,
            titles=[f"head {explanation.head}" if explanation.heads > 1 else "weights"],
            title=f"{heading}: weights of each token",
            allowed=_of_head(explanation, last).isfinite(),
        ),
    )  # fmt: skip
    after = section.stages[section.stages.index(context) :]
    outputs = [stage for stage in after if stage.kind in ("context", "joined", "output")]
    yield _vectors(explanation, f"{slug}context", outputs, heading + head)
    yield from _residual(explanation, section, previous, "output", "residual")


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


def _vectors(explanation: Explanation, name: str, stages: Sequence[Stage], heading: str) -> Picture:
    figure = plots.vectors(
        [_of_head(explanation, stage) for stage in stages],
        [explanation.labels(stage.rows) for stage in stages],
        titles=[f"{stage.name}, {stage.shape[-2]} × {stage.shape[-1]}" for stage in stages],
        title=heading,
    )
    return Picture(name, figure)


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


def _of_head(explanation: Explanation, stage: Stage) -> Tensor:
    rows, columns = range(stage.shape[-2]), range(stage.shape[-1])
    return stage.of_head(explanation.head, explanation.heads, rows, columns)


def _title(section: Section, explanation: Explanation) -> str:
    if len(explanation.sections) == 1:
        return explanation.title.partition(":")[0]
    return section.title.partition(", norm")[0]


def _slug(section: Section) -> str:
    """Return the prefix of a section's file names."""
    side = f"{section.side}-" if section.side else ""
    layer = "" if section.layer is None else f"block-{section.layer}-"
    return side + layer + ("cross-" if section.kind == "cross-attention" else "")
