"""`heedful embed`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import check_picture
from heedful.errors import ArgumentError, TextError

if TYPE_CHECKING:
    from heedful.text.similarity import Nearest
    from heedful.text.word_vectors import WordVectors

SMALL = 8  # words of a table whose similarities are shown all: as many fit 80 columns
LABEL = 14  # cells of a word before its similarities
DRAWN = 60  # words that a picture can hold
TABLES = (".csv", ".json")
EXAMPLE = """\b
Examples:
  heedful embed
  heedful embed --analogy king queen dad --picture family.png
  heedful embed words.csv --similar cherry --count 5
  heedful embed runs/book --between night day --similar night
"""


class Found(NamedTuple):
    """The rows that were asked about, and what was found for them."""

    between: tuple[list[int], float] | None = None
    similar: tuple[int, Nearest] | None = None
    analogy: tuple[list[int], Nearest] | None = None


@click.command(epilog=EXAMPLE)
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option("--between", nargs=2, metavar="WORD WORD", help="How alike two words are.")
@click.option("--similar", metavar="WORD", help="The words that are most like this one.")
@click.option(
    "--analogy",
    "given",
    nargs=3,
    metavar="A B C",
    help="What is to C as B is to A. The three given words are left out of the answers, as is "
    "the custom since Mikolov et al. 2013; --keep-given keeps them.",
)
@click.option("--keep-given", is_flag=True, help="Let an analogy answer with a given word.")
@click.option(
    "--count", type=click.IntRange(1), default=10, show_default=True, help="How many answers."
)
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw words on a plane: .png, .svg, .pdf."
)
@click.option("--overwrite", is_flag=True, help="Replace a picture that is there.")
@opening_options("checkpoint", "revision", "allow_pickle")
@json_option
def embed(
    source: Path | None,
    between: tuple[str, str] | None,
    similar: str | None,
    given: tuple[str, str, str] | None,
    keep_given: bool,
    count: int,
    picture: Path | None,
    overwrite: bool,
    opening: dict[str, Any],
    as_json: bool,
) -> None:
    """How alike words are, by the vectors of SOURCE.

    SOURCE is a model (a run directory, a GPT-2, BERT or Llama in Hugging Face format, or its hub
    name), whose tokens are the words, or a table in a CSV or JSON file; without it, the four words
    of document 001 (Pahwa).
    """
    if not given:
        refuse("goes with --analogy.", keep_given=keep_given)
    if picture:
        check_picture(picture, overwrite)
    vectors = _vectors(source, opening)
    found = _find(vectors, between, similar, given, keep_given, count)
    if picture:
        _draw(vectors, picture, _drawn(vectors, found), found)
    everything = not (between or found.similar or given or picture)
    if as_json:
        click.echo(json.dumps(_described(vectors, found, picture, everything), ensure_ascii=False))
    else:
        _show(vectors, found, picture, everything)


def _vectors(source: Path | None, opening: dict[str, Any]) -> WordVectors:
    from heedful.text.example_texts import FAMILY
    from heedful.text.word_vectors import WordVectors, read_vectors

    if source is None:
        return WordVectors(list(FAMILY), list(FAMILY.values()))
    if source.is_file() or (source.suffix.lower() in TABLES and not source.is_dir()):
        return read_vectors(source)
    check_model(source, opening)
    from heedful.loaded import open_ours

    return open_ours(source, device="cpu", **opening).vectors()


def _find(
    vectors: WordVectors,
    between: tuple[str, str] | None,
    similar: str | None,
    given: tuple[str, str, str] | None,
    keep_given: bool,
    count: int,
) -> Found:
    import torch

    from heedful.text.similarity import analogy, cosine, nearest

    rows = torch.from_numpy(vectors.table)
    found: dict[str, Any] = {}
    if between:
        places = [_pointing(vectors, word) for word in between]
        found["between"] = places, float(cosine(*(rows[row] for row in places)))
    if similar is not None:
        row = _pointing(vectors, similar)
        found["similar"] = row, nearest(rows, rows[row], count, [row])
    if given:
        places = [vectors.row(word) for word in given]
        wanted = analogy(*(rows[row] for row in places))
        found["analogy"] = places, nearest(rows, wanted, count, [] if keep_given else places)
    return Found(**found)


def _pointing(vectors: WordVectors, word: str) -> int:
    """The row of a word whose vector has a direction."""
    row = vectors.row(word)
    if not vectors.table[row].any():
        raise TextError(
            f"the vector of {vectors.words[row]!r} is all zeros",
            expected="one with a direction, to compare",
            cause="a token that was never trained, or an empty row",
        )
    return row


def _drawn(vectors: WordVectors, found: Found) -> list[int]:
    """The rows of the picture: those asked about and the answers, or all of a small table."""
    rows: list[int] = []
    if found.analogy:
        places, answers = found.analogy
        rows += [*places, *answers.rows.tolist()[:1]]
    if found.similar:
        row, answers = found.similar
        rows += [row, *answers.rows.tolist()]
    if found.between:
        rows += found.between[0]
    rows = list(dict.fromkeys(rows)) or list(range(len(vectors.words)))
    if len(rows) > DRAWN:
        raise ArgumentError(
            f"a picture of {len(rows):,} words",
            expected=f"up to {DRAWN} of them",
            remedy="ask about some: --similar, --between or --analogy",
        )
    return rows


def _draw(vectors: WordVectors, path: Path, rows: list[int], found: Found) -> None:
    import torch

    from heedful.cli.plot import tell_of_fonts
    from heedful.pictures import word_plane
    from heedful.pictures.saving import save
    from heedful.text.similarity import principal_plane

    plane = principal_plane(torch.from_numpy(vectors.table[rows]))
    pairs: list[tuple[int, int]] = []
    title = None
    if found.between:
        (one, other), similarity = found.between
        title = f"{vectors.words[one]} and {vectors.words[other]}: cosine {similarity:.2f}"
    if found.analogy:
        (a, b, c), answers = found.analogy
        best = answers.rows.tolist()[:1]
        pairs = [(a, b), *((c, row) for row in best)]
        names = [vectors.words[row] for row in (a, b, c, *best)]
        title = " : ".join(names[:2]) + " = " + " : ".join((*names[2:], "?")[:2])
    figure = word_plane.words(
        plane.places.numpy(),
        [vectors.words[row] for row in rows],
        plane.shares.tolist(),
        arrows=[(rows.index(a), rows.index(b)) for a, b in pairs if a != b],
        title=title,
    )
    save(figure, path)
    tell_of_fonts([vectors.words[row] for row in rows])


def _described(
    vectors: WordVectors, found: Found, picture: Path | None, everything: bool
) -> dict[str, Any]:
    about: dict[str, Any] = {"words": len(vectors.words), "width": vectors.table.shape[1]}
    if found.between:
        rows, similarity = found.between
        words = [vectors.words[row] for row in rows]
        about["between"] = {"words": words, "similarity": similarity}
    if found.similar:
        about["similar"] = _answers(vectors, found.similar[1])
    if found.analogy:
        about["analogy"] = _answers(vectors, found.analogy[1])
    if picture:
        about["picture"] = str(picture)
    if everything and len(vectors.words) <= SMALL:
        about["table"] = {
            word: [None if math.isnan(value) else value for value in line]
            for word, line in zip(vectors.words, _each_with_each(vectors), strict=True)
        }
    return about


def _answers(vectors: WordVectors, answers: Nearest) -> list[dict[str, Any]]:
    return [
        {"word": vectors.words[row], "row": row, "similarity": similarity}
        for row, similarity in zip(*(part.tolist() for part in answers), strict=True)
    ]


def _each_with_each(vectors: WordVectors) -> list[list[float]]:
    """The similarity of every two words; NaN where a vector is zeros."""
    import torch

    from heedful.text.similarity import cosine

    rows = torch.from_numpy(vectors.table)
    pointing = rows.any(dim=-1).nonzero()[:, 0]
    similarities = torch.full((len(rows), len(rows)), torch.nan, dtype=rows.dtype)
    kept = rows[pointing]
    similarities[pointing[:, None], pointing] = cosine(kept[:, None], kept[None])
    return similarities.tolist()


def _show(vectors: WordVectors, found: Found, picture: Path | None, everything: bool) -> None:
    from heedful.views.terminal import console, facts, many

    screen = console()
    size = f"{many(len(vectors.words), 'word')} of {many(vectors.table.shape[1], 'number')}"
    screen.print(facts([("table", size)]))
    if found.between:
        one, other = (vectors.words[row] for row in found.between[0])
        screen.print(f"\n{one} and {other}  {found.between[1]:.4f}", markup=False)
    if found.similar:
        _show_answers(vectors, f"most like {vectors.words[found.similar[0]]}", found.similar[1])
    if found.analogy:
        a, b, c = (vectors.words[row] for row in found.analogy[0])
        title = f"{a} is to {b} as {c} is to"
        _show_answers(vectors, title, found.analogy[1])
    if picture:
        screen.print(f"\n{picture}", markup=False, soft_wrap=True)
    if everything:
        _show_everything(vectors)


def _show_answers(vectors: WordVectors, title: str, answers: Nearest) -> None:
    from heedful.views.terminal import console, table

    screen = console()
    screen.print(f"\n{title}", style="bold", markup=False)
    lines = [(one["word"], f"{one['similarity']:.4f}") for one in _answers(vectors, answers)]
    screen.print(table(["word", "cosine"], lines, numbers=[1]))


def _show_everything(vectors: WordVectors) -> None:
    """Every word with every other, of a small table; else what to ask."""
    from rich.cells import cell_len

    from heedful.views.number_format import visible
    from heedful.views.terminal import console, fit, table

    screen = console()
    if len(vectors.words) > SMALL:
        screen.print("\nAsk with --similar, --between or --analogy; draw with --picture.")
        return
    names = [visible(word) for word in vectors.words]
    numbers = [
        ["–" if math.isnan(value) else f"{value:.4f}" for value in line]
        for line in _each_with_each(vectors)
    ]
    cell, label = max(len(number) for line in numbers for number in line), max(map(cell_len, names))
    rows = [
        (fit(name, min(label, LABEL), left=True), *line)
        for name, line in zip(names, numbers, strict=True)
    ]
    screen.print("\ncosine similarity", style="bold")
    header = [fit(name, max(cell, min(cell_len(name), LABEL // 2))) for name in names]
    screen.print(table(["", *header], rows, numbers=range(1, len(names) + 1)))
