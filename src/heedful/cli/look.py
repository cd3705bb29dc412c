"""`heedful look`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from heedful.cli.cut import cut_option
from heedful.cli.images import image_option, record_image, text_beside
from heedful.cli.options import (
    Numbers,
    check_model,
    check_no_text,
    check_place,
    checkpoint_option,
    device_option,
    file_option,
    is_recording,
    pickle_option,
    program,
    read_text,
    revision_option,
    second_option,
)
from heedful.cli.segments import Given, check_usage, marked_of, segments_option

EXAMPLE = """\b
Examples:
  heedful look first.safetensors
  heedful look runs/first "The import statement finds a module"
  heedful look google-bert/bert-base-uncased "Where is he?" --second "At home."
  heedful look runs/first "The import" --generate
  heedful look google/vit-base-patch16-224 --image photo.jpg
  heedful look first.safetensors second.safetensors
  heedful look google-bert/bert-base-uncased --file prompt.txt --segments @@
  heedful look first.safetensors --html first.html
  heedful look first.safetensors --html one.html --exact --layers 2 --heads 0-3

The page is served on this machine alone (127.0.0.1), to whoever has the address that is printed.
Ctrl-C ends it, with exit status 0. With a model, further texts can be typed into the page; with
--generate the model continues them there, token by token, while its maps grow.

With --html it is one file that opens anywhere, with no network: pooled maps of every head and the
largest weights of rows, at most 20 MB; --exact adds queries and keys in half precision, from which
the page computes any weight itself. Architectures that are not ours need transformers.
"""
NOTHING = (
    "Nothing to look at: give a recording, as in `heedful look first.safetensors`, or a model and "
    'a text, as in `heedful look runs/first "The import statement"`'
)


@click.command(epilog=EXAMPLE)
@click.argument("source", nargs=-1)
@file_option
@second_option
@image_option
@cut_option
@click.option("--layers", type=Numbers(), help="Only these layers, from 0: 0,3 or 0-2.")
@click.option("--heads", type=Numbers(), help="Only these heads, from 0: 1,4 or 0-3.")
@segments_option
@click.option("--html", type=click.Path(path_type=Path), help="Write the page as one file.")
@click.option(
    "--exact", is_flag=True, help="With --html: any weight, computed in the page; a larger file."
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --html.")
@click.option("--generate", is_flag=True, help="Let the model continue the TEXT, in the page.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the address [a free one]."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@checkpoint_option
@device_option
@revision_option
@pickle_option
def look(
    source: tuple[str, ...],
    file: Path | None,
    second: str | None,
    image: Path | None,
    cut: bool,
    layers: list[int] | None,
    heads: list[int] | None,
    segments: Given | None,
    html: Path | None,
    exact: bool,
    overwrite: bool,
    generate: bool,
    port: int,
    no_browser: bool,
    **opening: Any,
) -> None:
    """Look at recordings, or at what a model does with a text, in a browser.

    SOURCE is one recording or several; or a model of any architecture (a run, a directory in
    Hugging Face format, a hub name) with a TEXT, an --image, or both.
    """
    if not source:
        raise click.UsageError(NOTHING)
    if html is None and (exact or overwrite):
        raise click.UsageError(f"{'--exact' if exact else '--overwrite'} goes with --html.")
    if html is not None:
        check_place(html, overwrite)
    has_text = cut or file is not None or second is not None or image is not None
    if generate:
        no = {"--html": html, "--second": second, "--cut": cut or None, "--image": image}
        _refuse("--generate", no | {"--segments": segments})
        _grow(source, file, (layers, heads), opening, port, no_browser)
        return
    if image is not None:
        _refuse("--image", {"--segments": segments})
    are_kept = all(is_recording(Path(each)) for each in source)
    check_usage(segments, are_kept, None, False)
    marks: Any = None if segments is None else segments.ranges
    if are_kept:
        recordings, model = _loaded(source, has_text), None
    else:
        chosen = {"layers": layers, "heads": heads}
        recordings, model, marked = _recorded(
            source, (file, second, cut), image, chosen, opening, segments
        )
        marks = marked or marks
    from heedful.views.explorer.texts import Texts

    texts = Texts(recordings, layers, heads, marks)
    if html is not None:
        _write(html, texts, exact)
    else:
        _serve(texts, model, port, no_browser)


def _refuse(option: str, given: dict[str, Any]) -> None:
    """Refuse what was given beside an option that it does not go with.

    Raises:
        UsageError: the first of it.
    """
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} does not go with {option}.")


def _loaded(source: tuple[str, ...], has_text: bool) -> dict[str, Any]:
    """Recordings by their names; those of one name by their paths."""
    check_no_text(Path(source[0]), has_text, "look")
    from heedful.recorder import load

    names = [Path(each).stem for each in source]
    return {
        each if names.count(name) > 1 else name: load(Path(each))
        for name, each in zip(names, source, strict=True)
    }


def _recorded(
    source: tuple[str, ...],
    text: tuple[Path | None, str | None, bool],
    image: Path | None,
    chosen: dict[str, Any],
    opening: dict[str, Any],
    segments: Given | None = None,
) -> tuple[dict[str, Any], Any, dict[str, list[int]]]:
    """What a model does with a text; the model, which can record more texts without images;
    segments by their marks.
    """
    file, second, cut = text
    path = Path(source[0])
    if is_recording(path):
        other = next(each for each in source if not is_recording(Path(each)))
        if Path(other).is_dir():
            raise click.UsageError(f"{source[0]} and {other}: give recordings, or one model.")
        check_no_text(path, True, "look")
    if len(source) > 2:
        raise click.UsageError(
            f"{len(source)} arguments: give recordings, or one model with one text in quotes."
        )
    words = text_beside(image, source[1] if len(source) == 2 else None, file, second)
    check_model(path, opening["revision"], opening["allow_pickle"])
    from heedful.cli.record import record_text
    from heedful.opened import open_model

    opened, name = open_model(path, **opening), path.name or str(path)
    if image is not None:
        return {name: record_image(opened, image, words, cut, **chosen)}, None, {}
    marked = None if segments is None else marked_of(segments, words or "", second)
    if marked is not None:
        words, second = marked.text, marked.second
    recording = record_text(opened, words or "", second, cut, **chosen)
    tokens = {} if marked is None else marked.tokens(opened, cut=cut)
    return {name: recording}, opened, tokens


def _grow(
    source: tuple[str, ...],
    file: Path | None,
    chosen: tuple[list[int] | None, list[int] | None],
    opening: dict[str, Any],
    port: int,
    no_browser: bool,
) -> None:
    """Serve a model that continues texts in the page; with no text it begins from nothing."""
    path = Path(source[0])
    if is_recording(path) or len(source) > 2:
        raise click.UsageError("--generate takes one model, and a text in quotes where you like.")
    given = source[1] if len(source) == 2 else None
    prompt = "" if given is None and file is None else read_text(given, file, "prompt")
    check_model(path, opening["revision"], opening["allow_pickle"])
    from heedful.opened import open_model
    from heedful.views.explorer.generation import Generation
    from heedful.views.explorer.texts import Texts

    opened, texts = open_model(path, **opening), Texts({}, *chosen)
    generation = Generation(opened, texts, source[0], prompt)
    _serve(texts, opened, port, no_browser, generation)


def _write(path: Path, texts: Any, exact: bool) -> None:
    from heedful.views.explorer import one_file
    from heedful.views.progress import share_done

    title = f"{', '.join(texts.names)} · heedful"
    with share_done("writing the page") as tell:
        size, said = one_file.write(path, texts, title, tell, exact=exact)
    click.echo(f"{path}, {size / 1e6:.1f} MB: opens in any browser, with no network")
    click.echo(said)


def _serve(texts: Any, model: Any, port: int, no_browser: bool, generation: Any = None) -> None:
    from heedful.views.explorer.hosting import serve

    def ready(address: str) -> None:
        click.echo(f"{address}\nCtrl-C ends it.")
        if not no_browser and not _opened(address):
            click.echo(_by_hand(address))

    try:
        serve(texts, ready, port=port, model=model, generation=generation)
    except KeyboardInterrupt:  # as it is meant to end
        click.echo("\nended", err=True)


def _opened(address: str) -> bool:
    """Whether a browser with windows could be asked to open the address."""
    import webbrowser

    is_far = any(os.environ.get(name) for name in ("SSH_CONNECTION", "SSH_TTY"))
    has_screen = sys.platform in ("win32", "darwin") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )
    if is_far or not has_screen:  # else a browser in the terminal would take it over
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False


def _by_hand(address: str) -> str:
    """How the page is opened where no browser could be."""
    if not os.environ.get("SSH_CONNECTION"):
        return "No browser was found: open this address in one."
    port = address.partition("127.0.0.1:")[2].partition("/")[0]
    return (
        f"From the machine before you: ssh -L {port}:127.0.0.1:{port} HOST, then open this "
        f"address there; or write one file with {program()} look … --html page.html."
    )
