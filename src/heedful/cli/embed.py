"""The command `heedful embed`."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from heedful.cli.options import check_model, json_option, opening_options, refuse
from heedful.cli.output_paths import check_picture
from heedful.errors import ArgumentError, printable

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from heedful.text.similarity import Nearest
    from heedful.text.word_vectors import WordVectors

SMALL = 8  # maximum number of words in the table of similarities: 8 words fit into 80 columns
LABEL = 14  # terminal columns for a word at the beginning of a row
MOST_DRAWN = 60  # maximum number of words in a picture
TABLES = (".csv", ".json")
EXAMPLE = """\b
Examples:
  heedful embed
  heedful embed --analogy king queen dad --picture family.png
  heedful embed words.csv --similar cherry --count 5
  heedful embed runs/book --between night day --similar night
"""


class Answers(NamedTuple):
    """The results of the options; words are given as row indices of the table of vectors."""

    between: tuple[list[int], float] | None = None
    similar: tuple[int, Nearest] | None = None
    analogy: tuple[list[int], Tensor, Nearest] | None = None


@click.command(epilog=EXAMPLE)
@click.argument("source", required=False, type=click.Path(path_type=Path))
@click.option(
    "--between", nargs=2, metavar="WORD WORD", help="Show the cosine similarity of two words."
)
@click.option("--similar", metavar="WORD", help="List the words most similar to this one.")
@click.option(
    "--analogy", "question", nargs=3, metavar="A B C",
    help="List the words that are to C as B is to A. A, B and C are left out of the answers, as "
    "in Mikolov et al. 2013.",
)  # fmt: skip
@click.option("--keep-given", is_flag=True, help="With --analogy: do not leave out A, B and C.")
@click.option(
    "--count", type=click.IntRange(1), metavar="N", default=10, show_default=True,
    help="Maximum number of words that --similar and --analogy list.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(path_type=Path), metavar="FILE",
    help="Draw the words on the plane of their first two principal components, into a file that "
    "ends in .png, .svg or .pdf.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="With --picture: replace an existing picture.")
@opening_options("checkpoint", "revision", "allow_pickle")
@json_option
def embed(
    source: Path | None, between: tuple[str, str] | None, similar: str | None,
    question: tuple[str, str, str] | None, keep_given: bool, count: int, picture: Path | None,
    overwrite: bool, opening: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    """Compare words by the embedding vectors of SOURCE.

    SOURCE is a CSV or JSON file with a vector for each word, or a model, whose tokens are then the
    words. A model is a training run, or the directory or hub name of a GPT-2, BERT or Llama in
    Hugging Face format. The default is queen, king, dad and mom of document 001 (Pahwa).
    """
    if not question:
        refuse("needs --analogy.", keep_given=keep_given)
    if picture:
        check_picture(picture, overwrite)
    vectors = _vectors(source, opening)
    answers = _answers(vectors, between, similar, question, keep_given, count)
    if picture:
        _draw(vectors, picture, _rows_to_draw(vectors, answers), answers)
    show_table = not (between or answers.similar or question or picture)
    if as_json:
        click.echo(json.dumps(_as_data(vectors, answers, picture, show_table)))
    else:
        _show(vectors, answers, picture, show_table)


def _vectors(source: Path | None, opening: dict[str, Any]) -> WordVectors:
    from heedful.text.example_texts import FAMILY
    from heedful.text.word_vectors import WordVectors, read_vectors

    if source is None:
        return WordVectors(list(FAMILY), list(FAMILY.values()))
    if source.is_file() or (source.suffix.lower() in TABLES and not source.is_dir()):
        return read_vectors(source)
    check_model(source, opening)
    from heedful.loaded import open_heedful

    return open_heedful(source, device="cpu", **opening).vectors()


def _answers(
    vectors: WordVectors,
    between: tuple[str, str] | None,
    similar: str | None,
    question: tuple[str, str, str] | None,
    keep_given: bool,
    count: int,
) -> Answers:
    import torch

    from heedful.text.similarity import analogy, cosine, nearest

    table = torch.from_numpy(vectors.table)
    answers: dict[str, Any] = {}
    if between:
        rows = [vectors.row(word) for word in between]
        answers["between"] = rows, float(cosine(*(table[row] for row in rows)))
    if similar is not None:
        row = vectors.row(similar)
        answers["similar"] = row, nearest(table, table[row], count, [row])
    if question:
        rows = [vectors.row(word) for word in question]
        vector = analogy(*(table[row] for row in rows))
        likely = nearest(table, vector, count, [] if keep_given else rows)
        answers["analogy"] = rows, vector, likely
    return Answers(**answers)


def _rows_to_draw(vectors: WordVectors, answers: Answers) -> list[int]:
    """Return the rows of the words to draw; raise `ArgumentError` for more than `MOST_DRAWN`."""
    rows: list[int] = []
    if answers.analogy:
        question, _, nearest = answers.analogy
        rows += [*question, *nearest.rows.tolist()[:1]]
    if answers.similar:
        row, nearest = answers.similar
        rows += [row, *nearest.rows.tolist()]
    if answers.between:
        rows += answers.between[0]
    rows = list(dict.fromkeys(rows)) or list(range(len(vectors.words)))
    if len(rows) > MOST_DRAWN:
        raise ArgumentError(
            f"a picture of {len(rows):,} words",
            expected=f"up to {MOST_DRAWN} words",
            remedy="select words with --similar, --between or --analogy",
        )
    return rows


def _draw(vectors: WordVectors, path: Path, rows: list[int], answers: Answers) -> None:
    import torch

    from heedful.cli.plot import warn_of_missing_fonts
    from heedful.pictures import word_plane
    from heedful.pictures.saving import save
    from heedful.text.similarity import principal_plane

    plane = principal_plane(torch.from_numpy(vectors.table[rows]))
    pairs: list[tuple[int, int]] = []
    title = None
    if answers.between:
        (a, b), similarity = answers.between
        title = f"{vectors.words[a]} and {vectors.words[b]}: cosine {similarity:.2f}"
    if answers.analogy:
        (a, b, c), _, nearest = answers.analogy
        best = nearest.rows.tolist()[:1]
        pairs = [(a, b), *((c, row) for row in best)]
        names = [vectors.words[row] for row in (a, b, c, *best)]
        title = " : ".join(names[:2]) + " = " + " : ".join((*names[2:], "?")[:2])
    figure = word_plane.words(
        plane.coordinates.numpy(),
        [vectors.words[row] for row in rows],
        [f"{order} principal component · {100 * share:.0f} % of the variance"
         for order, share in zip(("first", "second"), plane.shares.tolist(), strict=True)],
        arrows=[(rows.index(a), rows.index(b)) for a, b in pairs if a != b],
        title=title,
    )  # fmt: skip
    save(figure, path)
    warn_of_missing_fonts([vectors.words[row] for row in rows])


def _as_data(
    vectors: WordVectors, answers: Answers, picture: Path | None, show_table: bool
) -> dict[str, Any]:
    data: dict[str, Any] = {"words": len(vectors.words), "width": vectors.table.shape[1]}
    if answers.between:
        rows, similarity = answers.between
        words = [vectors.words[row] for row in rows]
        data["between"] = {"words": words, "similarity": similarity}
    if answers.similar:
        data["similar"] = _nearest_words(vectors, answers.similar[1])
    if answers.analogy:
        data["sum"] = answers.analogy[1].tolist()
        data["analogy"] = _nearest_words(vectors, answers.analogy[2])
    if picture:
        data["picture"] = str(picture)
    if show_table and len(vectors.words) <= SMALL:
        data["table"] = {
            word: [None if math.isnan(value) else value for value in line]
            for word, line in zip(vectors.words, _similarities(vectors), strict=True)
        }
    return data


def _nearest_words(vectors: WordVectors, nearest: Nearest) -> list[dict[str, Any]]:
    return [
        {"word": vectors.words[row], "row": row, "similarity": similarity}
        for row, similarity in zip(*(part.tolist() for part in nearest), strict=True)
    ]


def _similarities(vectors: WordVectors) -> list[list[float]]:
    """Return the cosine similarity of each pair of words; NaN for zero vectors."""
    import torch

    table = torch.from_numpy(vectors.table)
    lengths = table.norm(dim=-1)
    return (table @ table.T / (lengths[:, None] * lengths)).tolist()  # 0 / 0 is NaN


def _show(vectors: WordVectors, answers: Answers, picture: Path | None, show_table: bool) -> None:
    from heedful.views.terminal import console, facts, plural

    screen = console()
    size = f"{plural(len(vectors.words), 'word')} of {plural(vectors.table.shape[1], 'number')}"
    screen.print(facts([("table", size)]))
    if answers.between:
        _show_cosine(screen, vectors, *answers.between)
    if answers.similar:
        row, nearest = answers.similar
        _show_nearest(screen, vectors, f"most like {vectors.words[row]}", nearest)
    if answers.analogy:
        rows, total, nearest = answers.analogy
        _show_sum(screen, vectors, rows, total)
        _show_nearest(screen, vectors, "nearest to the sum", nearest)
    if picture:
        screen.print(f"\n{picture}", markup=False, soft_wrap=True)
    if show_table:
        _show_table(screen, vectors)


def _show_cosine(screen: Console, vectors: WordVectors, rows: list[int], similarity: float) -> None:
    """Print a cosine similarity as the dot product divided by the product of the norms."""
    from heedful.views.number_format import products
    from heedful.views.terminal import facts

    names = [printable(vectors.words[row]) for row in rows]
    a, b = vectors.table[rows].astype(float)
    dot, *norms = (f"{number:.5g}" for number in (a @ b, math.sqrt(a @ a), math.sqrt(b @ b)))
    labels = ["dot product", *(f"norm of {name}" for name in names), "cosine"]
    room = screen.width - max(map(len, labels)) - 14
    sums = [products(x.tolist(), y.tolist(), room) for x, y in ((a, b), (a, a), (b, b))]
    lines = [f"{sums[0]} = {dot}", *(f"√({s}) = {n}" for s, n in zip(sums[1:], norms, strict=True))]
    lines.append(f"{dot} / ({' × '.join(norms)}) = {similarity:.4f}")
    screen.print(f"\n{' and '.join(names)}  {similarity:.4f}", style="bold", markup=False)
    screen.print(facts(zip(labels, lines, strict=True)))


def _show_sum(screen: Console, vectors: WordVectors, rows: list[int], total: Tensor) -> None:
    """Print the vectors of the words of an analogy, and their sum b − a + c."""
    from heedful.views.number_format import Labels, Matrix

    a, b, c = (printable(vectors.words[row]) for row in rows)
    table = [*(vectors.table[rows[i]].tolist() for i in (1, 0, 2)), total.tolist()]
    matrix = Matrix(
        (4, len(table[0])), Labels([b, f"- {a}", f"+ {c}", "= sum"]), Labels(()),
        lambda chosen, columns: [[table[row][column] for column in columns] for row in chosen],
    )  # fmt: skip
    screen.print(f"\n{a} is to {b} as {c} is to …", style="bold", markup=False)
    for line in matrix.lines(screen.width):
        line.rstrip()
        screen.print(line)


def _show_nearest(screen: Console, vectors: WordVectors, title: str, nearest: Nearest) -> None:
    from heedful.views.terminal import table

    screen.print(f"\n{title}", style="bold", markup=False)
    words = _nearest_words(vectors, nearest)
    lines = [(word["word"], f"{word['similarity']:.4f}") for word in words]
    screen.print(table(["word", "cosine"], lines, numbers=[1]))


def _show_table(screen: Console, vectors: WordVectors) -> None:
    """Print the similarities of at most `SMALL` words."""
    from heedful.views.terminal import fit, table

    if len(vectors.words) > SMALL:
        screen.print("\nCompare words with --similar, --between or --analogy; draw with --picture.")
        return
    names = [printable(word) for word in vectors.words]
    numbers = (
        ["–" if math.isnan(value) else f"{value:.4f}" for value in line]
        for line in _similarities(vectors)
    )
    rows = [(fit(name, LABEL).strip(), *line) for name, line in zip(names, numbers, strict=True)]
    screen.print("\ncosine similarity", style="bold")
    header = [fit(name, LABEL // 2).strip() for name in names]
    screen.print(table(["", *header], rows, numbers=range(1, len(names) + 1)))
