"""The steps from a text to a word as pictures: vectors, scores, weights, sums, probabilities."""

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

MOST = 1_000  # tokens of which a map of pairs is drawn
MOST_PLACES, LABEL = 40, 24  # places whose likeliest tokens are drawn, columns of their names


class Picture(NamedTuple):
    """A figure, and what its file is called."""

    name: str
    figure: Figure


def draw(
    found: Explanation, folder: Path, suffix: str = "png", *, overwrite: bool = False
) -> list[Path]:
    """Draw the walk, a picture for each group of steps; nothing is drawn where one cannot be.

    Args:
        found: of a text.
        folder: where to; it is made.
        suffix: png, svg or pdf.
        overwrite: replace pictures of these names.

    Returns:
        the files, in the order of the walk.

    Raises:
        ArgumentError: more tokens than can be seen in a map.
        SaveError: a file that is there already, or that cannot be written.
    """
    count = max(len(found.tokens), len(found.memory))
    if count > MOST:
        raise ArgumentError(
            f"pictures of {count:,} tokens", expected=f"at most {MOST:,}",
            remedy="give a shorter text",
        )  # fmt: skip
    drawn = [
        (folder / f"{number:02}-{picture.name}.{suffix}", picture.figure)
        for number, picture in enumerate(pictures(found), 1)
    ]
    for path, _ in drawn:
        check_free(path, overwrite)
    make_directory(folder)
    return [plots.save(figure, path) for path, figure in drawn]


def pictures(found: Explanation) -> Iterator[Picture]:
    """Figures of the walk, one for each group of steps, made as they are asked for."""
    before: Stage | None = None
    for section in found.sections:
        about = _about(section, found)
        if section.kind.endswith("attention"):
            yield from _attention(found, section, before, about)
        elif section.kind == "feed-forward":
            inside = [stage for stage in section.stages if stage.kind == "inner"]
            yield _vectors(found, f"{_slug(section)}feed-forward", inside, about)
            yield from _residual(found, section, before, "fed", "feed-forward-residual")
        elif section.kind == "words":
            yield from _answers(found)
        elif section.kind == "vectors":
            alone = len(section.stages) == 1
            name = section.stages[0].name if alone else f"{_slug(section)}vectors"
            yield _vectors(found, name, _arriving(section), about)
        before = section.stages[-1]


def _attention(
    found: Explanation, section: Section, before: Stage | None, about: str
) -> Iterator[Picture]:
    """The vectors that attend, their scores, their weights, what they find, and the sum."""
    scores, weights, context = (section.stage(name) for name in ("scores", "weights", "context"))
    slug, head = _slug(section), f", head {found.head}" if found.heads > 1 else ""
    if section.stages[0].kind == "embeddings":  # a layer alone, whose own vectors come first
        arrives = [stage for stage in section.stages if stage.kind in ARRIVES]
        yield _vectors(found, "vectors", arrives, "From text to vectors")
        before = arrives[-1]
    query, key = scores.factors or (scores, scores)
    value = (context.factors or (context, context))[1]
    if query is not key:
        yield _vectors(found, f"{slug}query-key-value", [query, key, value], about + head)
    rows, keys = found.labels(weights.rows), found.labels(weights.columns)
    last = section.before(weights)
    shown = section.of_kind("scaled") or scores
    masked = _of_head(found, last) if last.kind == "masked" else None
    title = f"{about}{head}: {shown.name if masked is None else 'scores'}"
    figure = plots.scores(_of_head(found, shown), masked, rows, key_tokens=keys, title=title)
    yield Picture(f"{slug}scores", figure)
    yield Picture(
        f"{slug}weights",
        plots.heatmaps(
            [_of_head(found, weights)], rows, key_tokens=keys,
            titles=[f"head {found.head}" if found.heads > 1 else "weights"],
            allowed=_of_head(found, last).isfinite(), title=f"{about}: where each token looks",
        ),
    )  # fmt: skip
    after = section.stages[section.stages.index(context) :]
    made = [stage for stage in after if stage.kind in ("context", "joined", "output")]
    yield _vectors(found, f"{slug}context", made, about + head)
    yield from _residual(found, section, before, "output", "residual")


def _residual(
    found: Explanation, section: Section, before: Stage | None, kind: str, file: str
) -> Iterator[Picture]:
    """What came, what the layer gave, their sum, and the norm after it."""
    made = section.of_kind(kind)
    after = () if made is None else section.stages[section.stages.index(made) :]
    if before is not None and len(after) > 1:
        about = f"{_about(section, found)}: the residual sum"
        yield _vectors(found, f"{_slug(section)}{file}", [before, *after], about)


def _arriving(section: Section) -> list[Stage]:
    """The vectors of a section; without the norm of a sum, whose scale is another."""
    shown = [stage for stage in section.stages if stage.columns == "width"]
    return shown[:-1] if any(stage.kind == "sum" for stage in shown) else shown


ARRIVES = ("embeddings", "positions", "input", "memory")


def _vectors(found: Explanation, name: str, stages: Sequence[Stage], about: str) -> Picture:
    figure = plots.vectors(
        [_of_head(found, stage) for stage in stages],
        [found.labels(stage.rows) for stage in stages],
        titles=[f"{stage.name}, {stage.shape[-2]} × {stage.shape[-1]}" for stage in stages],
        title=about,
    )
    return Picture(name, figure)


def _answers(found: Explanation) -> Iterator[Picture]:
    """The likeliest tokens; of several places the likeliest of each."""
    shown = found.answers[-MOST_PLACES:]
    if not shown:
        return
    last = shown[-1]
    title = f"The likeliest {found.asked} {found.tokens[last.place]} @{last.place}"
    shares = [one.probability for one in last.likeliest]
    names = [one.token for one in last.likeliest]
    if len(shown) > 1:
        title = f"The likeliest of all {found.asked} each token"
        shares = [answer.likeliest[0].probability for answer in shown]
        names = [f"{found.tokens[answer.place]}→{answer.likeliest[0].token}" for answer in shown]
    labels = [label(name, LABEL) for name in names]
    yield Picture("words", lesson_drawings.bars({title: shares}, labels, across="probability"))


def _of_head(found: Explanation, stage: Stage) -> Tensor:
    rows, columns = range(stage.shape[-2]), range(stage.shape[-1])
    return stage.of_head(found.head, found.heads, rows, columns)


def _about(section: Section, found: Explanation) -> str:
    """What a picture of a section is headed by."""
    if len(found.sections) == 1:
        return found.title.partition(":")[0]
    return section.title.partition(", norm")[0]


def _slug(section: Section) -> str:
    """What tells a section's files from those of others."""
    side = f"{section.side}-" if section.side else ""
    layer = "" if section.layer is None else f"block-{section.layer}-"
    return side + layer + ("cross-" if section.kind == "cross-attention" else "")
