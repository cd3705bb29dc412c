"""`heedful embed`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch

from heedful.cli.opening import open_run
from heedful.cli.options import checkpoint_option, json_option
from heedful.errors import RunError
from heedful.ops.similarity import analogy, cosine, nearest, principal_plane
from heedful.text.examples import FAMILY
from heedful.text.vectors import WordVectors, read_vectors
from heedful.views.terminal import console, facts, table

SMALL = 12  # words of a table whose similarities are shown all
DRAWN = 60  # words that a picture can hold
EXAMPLE = """\b
Examples:
  heedful embed
  heedful embed --analogy king queen dad --picture family.png
  heedful embed words.csv --similar cherry --count 5
  heedful embed runs/book --between night day --similar night
"""


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
@click.option("--word", "chosen", multiple=True, metavar="WORD", help="A word of the picture.")
@checkpoint_option
@json_option
def embed(
    source: Path | None,
    between: tuple[str, str] | None,
    similar: str | None,
    given: tuple[str, str, str] | None,
    keep_given: bool,
    count: int,
    picture: Path | None,
    chosen: tuple[str, ...],
    checkpoint: str,
    as_json: bool,
) -> None:
    """How alike words are, by the vectors of SOURCE.

    SOURCE is a run directory, whose tokens are the words, or a table in a CSV or JSON file; without
    it, the four words of document 001.
    """
    vectors = _vectors(source, checkpoint)
    rows = torch.from_numpy(vectors.table)
    found: dict[str, Any] = {"words": len(vectors.words), "width": rows.shape[1]}
    if between:
        one, other = (rows[vectors.row(word)] for word in between)
        found["between"] = {"words": list(between), "similarity": float(cosine(one, other))}
    if similar:
        row = vectors.row(similar)
        found["similar"] = _answers(vectors, rows[row], count, [row])
    if given:
        places = [vectors.row(word) for word in given]
        wanted = analogy(*(rows[place] for place in places))
        found["analogy"] = _answers(vectors, wanted, count, [] if keep_given else places)
    if picture:
        found["picture"] = str(
            _draw(vectors, picture, _drawn(vectors, chosen, found, given), given)
        )
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    _show(vectors, found, similar, given)


def _vectors(source: Path | None, checkpoint: str) -> WordVectors:
    if source is None:
        return WordVectors(list(FAMILY), list(FAMILY.values()))
    if source.is_dir():
        run = open_run(source, checkpoint, "cpu")
        pieces = run.tokenizer.pieces(range(run.tokenizer.size))
        return WordVectors(pieces, run.model.tokens.weight.detach().float().numpy())
    if not source.exists():
        raise RunError(
            f"no {source}",
            expected="a run directory, or a table in a CSV or JSON file",
            remedy="check the path",
        )
    return read_vectors(source)


def _answers(
    vectors: WordVectors, vector: torch.Tensor, count: int, leave_out: list[int]
) -> list[dict[str, Any]]:
    answers = nearest(torch.from_numpy(vectors.table), vector, count, leave_out)
    return [
        {"word": vectors.words[row], "similarity": similarity}
        for row, similarity in zip(*(part.tolist() for part in answers), strict=True)
    ]


def _drawn(
    vectors: WordVectors,
    chosen: tuple[str, ...],
    found: dict[str, Any],
    given: tuple[str, ...] | None,
) -> list[int]:
    """The rows of the picture: those asked for, then those that answered, or a small table's."""
    wanted = [vectors.row(word) for word in (*chosen, *(given or ()))]
    if not chosen:
        answers = [*found.get("similar", []), *found.get("analogy", [])[: 1 if given else None]]
        wanted += [vectors.row(answer["word"]) for answer in answers]
        wanted += [vectors.row(word) for word in found.get("between", {}).get("words", [])]
    if not wanted and len(vectors.words) <= DRAWN:
        wanted = list(range(len(vectors.words)))
    if not wanted:
        raise RunError(
            f"a picture of {len(vectors.words):,} words",
            expected=f"up to {DRAWN} of them",
            remedy="name them: --word night --word day",
        )
    return list(dict.fromkeys(wanted))


def _draw(vectors: WordVectors, path: Path, rows: list[int], given: tuple[str, ...] | None) -> Path:
    from heedful.views import space
    from heedful.views.plots import save

    plane = principal_plane(torch.from_numpy(vectors.table[rows]))
    arrows = []
    if given:
        a, b, c = (rows.index(vectors.row(word)) for word in given)
        answer = [i for i in range(len(rows)) if i not in (a, b, c)][:1]
        arrows = [(a, b), *((c, i) for i in answer)]
    figure = space.words(
        plane.places.numpy(),
        [vectors.words[row] for row in rows],
        plane.shares.tolist(),
        arrows=arrows,
        title=f"{given[0]} : {given[1]} = {given[2]} : ?" if given else None,
    )
    return save(figure, path)


def _show(
    vectors: WordVectors,
    found: dict[str, Any],
    similar: str | None,
    given: tuple[str, ...] | None,
) -> None:
    screen = console()
    screen.print(facts([("table", f"{found['words']:,} words of {found['width']:,} numbers")]))
    if "between" in found:
        one, other = found["between"]["words"]
        screen.print(f"\n{one} and {other}  {found['between']['similarity']:.4f}")
    for name, title in (
        ("similar", f"most like {similar}"),
        ("analogy", "{} is to {} as {} is to".format(*given) if given else ""),
    ):
        if name in found:
            screen.print(f"\n{title}", style="bold", markup=False)
            answers = [(a["word"], f"{a['similarity']:.4f}") for a in found[name]]
            screen.print(table(["word", "cosine"], answers, numbers=[1]))
    if "picture" in found:
        screen.print(f"\n{found['picture']}", markup=False, soft_wrap=True)
    if not {"between", "similar", "analogy", "picture"} & set(found):
        _show_all(vectors)


def _show_all(vectors: WordVectors) -> None:
    """Every word with every other, of a small table; else what to ask."""
    screen = console()
    if len(vectors.words) > SMALL:
        screen.print("\nAsk with --similar, --between or --analogy; draw with --picture.")
        return
    rows = torch.from_numpy(vectors.table)
    similarities = cosine(rows[:, None], rows[None])
    lines = [
        (word, *(f"{value:.4f}" for value in line))
        for word, line in zip(vectors.words, similarities.tolist(), strict=True)
    ]
    screen.print("\ncosine similarity", style="bold")
    screen.print(table(["", *vectors.words], lines, numbers=range(1, len(lines) + 1)))
