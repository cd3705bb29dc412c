"""`heedful look`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from heedful.cli.cut import cut_option
from heedful.cli.images import image_option, record_image, text_beside
from heedful.cli.options import (
    Numbers,
    check_model,
    check_model_verified,
    check_no_text,
    check_place,
    file_option,
    is_recording,
    opening_options,
    program,
    read_text,
    second_option,
    verify_option,
)
from heedful.cli.segments import Given, check_usage, marked_of, segments_option
from heedful.cli.watched import moments_of, was_watched

EXAMPLE = """\b
Examples:
  heedful look first.safetensors
  heedful look runs/first "The import statement finds a module"
  heedful look google-bert/bert-base-uncased "Where is he?" --second "At home."
  heedful look runs/first "The import" --generate
  heedful look google/vit-base-patch16-224 --image photo.jpg
  heedful look microsoft/swin-tiny-patch4-window7-224 --image photo.jpg --verify
  heedful look first.safetensors second.safetensors
  heedful look runs/seen
  heedful look google-bert/bert-base-uncased --file prompt.txt --segments @@
  heedful look first.safetensors --html first.html
  heedful look first.safetensors --html one.html --layers 2 --heads 0-3 --limit 100

The page is served on this machine alone (127.0.0.1), to whoever has the address that is printed.
Ctrl-C ends it, with exit status 0. With a model, further texts can be typed into the page; with
--generate the model continues them there, token by token, while its maps grow.

With --html it is one file that opens anywhere, with no network. It computes any weight from query
and key; where those of all heads do not fit into --limit, the others have pictures and scores.
Architectures that are not ours need transformers.
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
    "--limit", type=click.FloatRange(0.5, 300), help="With --html: MB of the file at most [25]."
)
@click.option("--overwrite", is_flag=True, help="Replace the file of --html.")
@click.option("--generate", is_flag=True, help="Let the model continue the TEXT, in the page.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of the address [a free one]."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
@verify_option
@opening_options()
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
    limit: float | None,
    overwrite: bool,
    generate: bool,
    port: int,
    no_browser: bool,
    verify: bool,
    opening: dict[str, Any],
) -> None:
    """Look at recordings, or at what a model does with a text, in a browser.

    SOURCE is one recording or several; or a model of any architecture (a run, a directory in
    Hugging Face format, a hub name) with a TEXT, an --image, or both. A run that was trained with
    --watch needs none: the page then steps through its recordings.
    """
    if not source:
        raise click.UsageError(NOTHING)
    if html is None and (limit is not None or overwrite):
        raise click.UsageError(f"{'--overwrite' if overwrite else '--limit'} goes with --html.")
    if html is not None:
        check_place(html, overwrite)
    asked = _Asked(source, file, second, image, cut, layers, heads, segments, verify, opening)
    if generate:
        alone = {"--html": html, "--second": second, "--cut": cut or None, "--image": image,
                 "--verify": verify or None}  # fmt: skip
        _refuse("--generate", alone | {"--segments": segments})
        _serve(_grown(asked), port, no_browser)
        return
    if image is not None:
        _refuse("--image", {"--segments": segments})
    shown = _shown(asked)
    if html is not None:
        _write(html, shown, limit)
    else:
        _serve(shown, port, no_browser)


class _Asked(NamedTuple):
    """What is to be looked at: recordings, or a model with what it reads and how it is opened."""

    source: tuple[str, ...]
    file: Path | None
    second: str | None
    image: Path | None
    cut: bool
    layers: list[int] | None
    heads: list[int] | None
    segments: Given | None
    verify: bool
    opening: dict[str, Any]

    @property
    def text(self) -> str | None:
        """The text beside a model."""
        return self.source[1] if len(self.source) == 2 else None

    @property
    def has_text(self) -> bool:
        """Whether something to read was told by an option."""
        given = (self.file, self.second, self.image)
        return self.cut or any(one is not None for one in given)

    @property
    def options(self) -> dict[str, Any]:
        """What is recorded of a model, and how."""
        return {"layers": self.layers, "heads": self.heads, "verify": self.verify}


class _Shown(NamedTuple):
    """What a page shows; `model` records more texts for it, `generation` continues one.

    `title` is what it is called, by default after its texts.
    """

    texts: Any
    model: Any = None
    generation: Any = None
    title: str | None = None


def _refuse(option: str, given: dict[str, Any]) -> None:
    """Refuse what was given beside an option that it does not go with.

    Raises:
        UsageError: the first of it.
    """
    for name, value in given.items():
        if value is not None:
            raise click.UsageError(f"{name} does not go with {option}.")


def _shown(asked: _Asked) -> _Shown:
    """Recordings, or what a model does with a text or an image."""
    are_kept = all(is_recording(Path(each)) for each in asked.source)
    check_usage(asked.segments, are_kept, None, False)
    if are_kept:
        return _loaded(asked)
    _check_one_model(asked)
    if len(asked.source) == 1 and not asked.has_text and was_watched(Path(asked.source[0])):
        return _formed(asked)
    words = text_beside(asked.image, asked.text, asked.file, asked.second)
    opened = _opened(asked)
    if asked.image is not None:
        return _seen(asked, opened, asked.image, words)
    return _read(asked, opened, words or "")


def _loaded(asked: _Asked) -> _Shown:
    """Recordings by their names; those of one name by their paths."""
    check_no_text(Path(asked.source[0]), asked.has_text, "look")
    check_model_verified(asked.verify)
    from heedful.recording import load

    names = [Path(each).stem for each in asked.source]
    recordings = {
        each if names.count(name) > 1 else name: load(Path(each))
        for name, each in zip(names, asked.source, strict=True)
    }
    return _Shown(_texts(asked, recordings, asked.segments and asked.segments.ranges))


def _formed(asked: _Asked) -> _Shown:
    """The recordings of a run that was watched, one for each moment."""
    check_model_verified(asked.verify)
    recordings, moments = moments_of(Path(asked.source[0]))
    texts = _texts(asked, recordings, asked.segments and asked.segments.ranges)
    texts.moments = moments
    return _Shown(texts, title=_name(asked))


def _check_one_model(asked: _Asked) -> None:
    """Refuse a recording beside what is none, and more than a model and a text.

    Raises:
        UsageError: what is wrong.
    """
    first, *_ = source = asked.source
    if is_recording(Path(first)):
        other = next(each for each in source if not is_recording(Path(each)))
        if Path(other).is_dir():
            raise click.UsageError(f"{first} and {other}: give recordings, or one model.")
        check_no_text(Path(first), True, "look")
    if len(source) > 2:
        raise click.UsageError(
            f"{len(source)} arguments: give recordings, or one model with one text in quotes."
        )


def _opened(asked: _Asked) -> Any:
    """The model."""
    path, opening = Path(asked.source[0]), asked.opening
    check_model(path, opening)
    from heedful.opened import open_model

    return open_model(path, **opening)


def _read(asked: _Asked, opened: Any, text: str) -> _Shown:
    """What a model does with a text, whose segments are those of its marks."""
    from heedful.cli.record import record_text

    second, segments = asked.second, asked.segments
    marked = None if segments is None else marked_of(segments, text, second)
    if marked is not None:
        text, second = marked.text, marked.second
    recording = record_text(opened, text, second, asked.cut, **asked.options)
    marks: Any = segments and segments.ranges
    if marked is not None:
        marks = marked.tokens(opened, cut=asked.cut) or marks
    return _Shown(_texts(asked, {_name(asked): recording}, marks), opened)


def _seen(asked: _Asked, opened: Any, image: Path, text: str | None) -> _Shown:
    """What a model does with an image; texts that are typed into the page would have none."""
    recording = record_image(opened, image, text, asked.cut, **asked.options)
    return _Shown(_texts(asked, {_name(asked): recording}))


def _grown(asked: _Asked) -> _Shown:
    """A model that continues texts in the page; with no text it begins from nothing."""
    if is_recording(Path(asked.source[0])) or len(asked.source) > 2:
        raise click.UsageError("--generate takes one model, and a text in quotes where you like.")
    has_none = asked.text is None and asked.file is None
    prompt = "" if has_none else read_text(asked.text, asked.file, "prompt")
    opened, texts = _opened(asked), _texts(asked, {})
    from heedful.views.explorer.generation import Generation

    return _Shown(texts, opened, Generation(opened, texts, prompt))


def _texts(asked: _Asked, recordings: dict[str, Any], marks: Any = None) -> Any:
    from heedful.views.explorer.texts import Texts

    return Texts(recordings, asked.layers, asked.heads, marks)


def _name(asked: _Asked) -> str:
    return Path(asked.source[0]).name or asked.source[0]


def _write(path: Path, shown: _Shown, limit: float | None) -> None:
    from heedful.views.explorer import one_file
    from heedful.views.progress import share_done

    texts = shown.texts
    title = f"{shown.title or ', '.join(texts.names)} · heedful"
    with share_done("writing the page") as tell:
        size, said = one_file.write(path, texts, title, tell, limit=limit or one_file.LIMIT)
    click.echo(f"{path}, {size / 1e6:.1f} MB: opens in any browser, with no network")
    click.echo(said)


def _serve(shown: _Shown, port: int, no_browser: bool) -> None:
    from heedful.views.explorer.hosting import serve

    def ready(address: str) -> None:
        click.echo(f"{address}\nCtrl-C ends it.")
        if not no_browser and not _has_opened(address):
            click.echo(_by_hand(address))

    try:
        serve(shown.texts, ready, port=port, model=shown.model, generation=shown.generation)
    except KeyboardInterrupt:  # as it is meant to end
        click.echo("\nended", err=True)


def _has_opened(address: str) -> bool:
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
