"""`heedful plot`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heedful.cli import sequence_choice
from heedful.cli.input_texts import (
    cut_option,
    file_option,
    is_recording,
    read_text,
    recorded,
    refuse_with_recording,
    second_option,
    verify_option,
)
from heedful.cli.options import (
    check_model,
    heads_option,
    layers_option,
    opening_options,
    refuse,
    sequence_option,
)
from heedful.cli.output_paths import picture_paths
from heedful.cli.watched_heads import how_heads_formed, was_watched

if TYPE_CHECKING:
    from heedful.loaded import Positions
    from heedful.recording import Recording, Sequence

PICTURES = ("heads", "scores", "positions", "loss", "watched")
OF_TEXT = ("heads", "scores")  # pictures that need a text
DOTS = 200  # of a PNG, in an inch
EXAMPLE = """\b
Examples:
  heedful plot runs/first "The import statement finds a module"
  heedful plot runs/first "The import statement" --layers 0,3 --heads 1,2 --out import.svg
  heedful plot runs/first --only positions --only loss
  heedful plot runs/seen
  heedful plot first.safetensors --layers 2 --scale log --title "Layer 2"
  heedful plot google-bert/bert-base-uncased "Where is he?" --second "At home." --layers 0
  heedful plot runs/dates "the 3rd of May 1987" --attention cross
  heedful plot HuggingFaceTB/SmolLM2-135M --file chapter.txt --size 16 --out chapter.pdf
  heedful plot microsoft/mpnet-base "The cat sat." --verify
  heedful plot swin.safetensors --part 3

\b
A line of the picture is a layer, a column a head. Where maps are small, layers and heads alone
are named; choose a layer, fewer heads or a larger --size, and the tokens are too. A token that
stands more than once carries its position. Striped cells are masked. A map of more than a few
hundred tokens is pooled: a cell is then the largest weight in it, and the picture says so.
Architectures that are not ours need transformers: pip install 'transformers>=5.0'
"""


@click.command(epilog=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("text", required=False)
@file_option
@second_option
@cut_option
@layers_option
@heads_option
@click.option(
    "--attention",
    type=click.Choice(["encoder", "decoder", "cross"]),
    help="Of an encoder–decoder, only this attention of its three.",
)
@click.option(
    "--pass",
    "pass_index",
    type=int,
    help="Of a recording of several passes, only this one, from 0; "
    "default: a generation as one, or all.",
)
@sequence_option
@click.option(
    "--part",
    type=click.IntRange(0),
    default=0,
    help="Of a text of several parts, such as windows, this part, from 0 [0].",
)
@click.option(
    "--only",
    type=click.Choice(PICTURES),
    multiple=True,
    help="What to draw [heads; without a text watched]; repeatable. scores: those of the first "
    "chosen head, before and after the mask; positions: the positional table; loss: the loss curve "
    "of a run; watched: of a run trained with --watch, how its heads formed. The last three need "
    "no text.",
)
@click.option("--title", help="A title over the picture.")
@click.option(
    "--scale",
    type=click.Choice(["linear", "sqrt", "log"]),
    help="How colours follow weights [linear up to 10 tokens, else sqrt].",
)
@click.option(
    "--highest",
    type=click.FloatRange(0, min_open=True),
    metavar="X",
    help="The weight at which the colours end [the largest].",
)
@click.option(
    "--size",
    type=click.FloatRange(0, min_open=True),
    metavar="INCHES",
    help=f"The picture's width; a PNG has {DOTS} dots in an inch [9, and more for many heads].",
)
@click.option(
    "--values/--no-values",
    default=None,
    help="Numbers in the cells [up to 10 tokens, where they fit].",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="A file that ends in .png, .svg or .pdf, or a folder for PNGs "
    "[RUN/pictures; of what is no run, pictures]. In svg and pdf text is text.",
)
@click.option("--overwrite", is_flag=True, help="Replace pictures that are there.")
@verify_option
@opening_options()
def plot(
    source: Path,
    text: str | None,
    file: Path | None,
    second: str | None,
    cut: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    attention: str | None,
    pass_index: int | None,
    sequence: int | None,
    part: int,
    only: tuple[str, ...],
    title: str | None,
    scale: str | None,
    highest: float | None,
    size: float | None,
    values: bool | None,
    out: Path | None,
    overwrite: bool,
    verify: bool,
    opening: dict[str, Any],
) -> None:
    """Draw where the heads of SOURCE look: rows are queries, columns keys.

    SOURCE is a recording; or a model of any architecture (a run, a directory in Hugging Face
    format, a hub name), which reads TEXT. An encoder–decoder translates it, and all three
    attentions are drawn: rows of the cross-attention are the target's tokens, columns the source's.

    A run that was trained with --watch needs no TEXT: then the scores of its heads are drawn over
    the steps, under the loss.
    """
    reads: dict[str, Any] = {"text": text, "file": file, "second": second}
    has_recording = is_recording(source)
    is_bare = all(value is None for value in reads.values())
    own = "watched" if is_bare and not has_recording and was_watched(source) else "heads"
    kinds = tuple(dict.fromkeys(only)) or (own,)
    of_text = {*kinds} & {*OF_TEXT}
    if has_recording:
        refuse_with_recording(source, **reads, cut=cut, verify=verify)
        if len(of_text) < len(kinds):
            raise click.UsageError("a recording has no positions, loss and steps: name its model.")
        from heedful.recording import load

        recording = load(source)  # what is none is told before what is in the way
    else:
        if not of_text:
            refuse("is not read for positions, loss and watched.", **reads, cut=cut, verify=verify)
        words = read_text(text, file) if of_text else ""
        check_model(source, opening)
    paths = picture_paths(source, kinds, out, overwrite)
    figures: dict[str, Any] = {}
    if of_text:
        if not has_recording:
            from heedful.loaded import open_model

            wanted: dict[str, Any] = {"layers": layers, "heads": heads, "verify": verify}
            recording = recorded(open_model(source, **opening), words, second, cut=cut, **wanted)
        calls = sequence_choice.part_of(recording, sequence or 0, part)
        chosen = {"layers": layers, "heads": heads, "part": attention, "pass_index": pass_index}
        look = {"title": title, "scale": scale, "highest": highest, "size": size, "values": values}
        figures |= _of_text(calls, kinds, chosen, look)
        tell_of_fonts(
            token
            for call in calls
            for tokens in (call.query_tokens, call.key_tokens)
            for token in tokens or ()
        )
    if "positions" in kinds:
        from heedful.loaded import open_ours

        figures["positions"] = positions_figure(open_ours(source, **opening).positions, title)
    if "watched" in kinds:
        figures["watched"] = how_heads_formed(source, title)
    from heedful.pictures.saving import save

    for kind, figure in figures.items():
        click.echo(save(figure, paths[kind]))
    if "loss" in kinds:
        _draw_loss(source, paths["loss"])


def _of_text(
    calls: Sequence, kinds: Iterable[str], chosen: dict[str, Any], look: dict[str, Any]
) -> dict[str, Any]:
    """The pictures of a sequence of what was recorded, by name."""
    from heedful.recording.figure import Chosen, scores_picture
    from heedful.views.progress import share_done

    figures = {}
    for kind in kinds:
        if kind == "heads":
            with share_done("drawing") as tell:
                figures[kind] = calls.plot(**chosen, progress=tell, **look)
        elif kind == "scores":
            figures[kind] = scores_picture(list(calls), Chosen(**chosen), look.get("title"))
    return figures


def _draw_loss(source: Path, path: Path) -> None:
    from heedful.cli.run_training import draw_losses
    from heedful.errors import RunError

    if draw_losses(source, path) is None:
        raise RunError(
            f"{source} has no metrics to draw a loss curve from",
            expected="a run, made by `heedful train`",
        )
    click.echo(path)


def draw_attention(recording: Recording, folder: Path) -> list[Path]:
    """Write the heads of a recording, and the scores of its first head, into a folder."""
    from heedful.pictures.saving import save

    figures = _of_text(recording, OF_TEXT, {}, {})
    return [save(figure, folder / f"{kind}.png") for kind, figure in figures.items()]


def positions_figure(positions: Positions, title: str | None = None) -> Any:
    """The table that tells a model where a token stands; for rotary positions, its cosines."""
    from heedful.pictures import plots

    kind, table = positions
    words = {}
    if kind == "rotary":
        words = {
            "columns": "pair of dimensions, the same in each head",
            "meaning": "cosine of the angle by which the pair is turned",
        }
    return plots.positions(table, title=title or f"{kind} positions", **words)


def tell_of_fonts(texts: Iterable[str]) -> None:
    """A line on standard error where no font here draws a text."""
    from heedful.pictures.labels import hint

    missing = hint(texts)
    if missing:
        click.echo(missing, err=True)
