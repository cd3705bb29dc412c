"""`heedful look`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

from heedful.cli.input_texts import (
    cut_option,
    file_option,
    image_option,
    is_recording,
    read_text,
    recorded,
    refuse_with_recording,
    second_option,
    text_beside,
    verify_option,
)
from heedful.cli.options import (
    check_model,
    heads_option,
    layers_option,
    opening_options,
    refuse,
)
from heedful.cli.output_paths import check_page
from heedful.cli.segments_option import Given, check_usage, recorded_with_segments, segments_option
from heedful.cli.watched_heads import moments_of, was_watched

if TYPE_CHECKING:
    from heedful.recording import Recording
    from heedful.views.explorer.catalogue import Texts

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


@click.command(epilog=EXAMPLE)
@click.argument("source", nargs=-1)
@file_option
@second_option
@image_option
@cut_option
@layers_option
@heads_option
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
    is_kept = [is_recording(Path(name)) for name in source]
    if not source or any(is_kept) > all(is_kept) or (not all(is_kept) and len(source) > 2):
        raise click.UsageError(
            "give recordings, which have their texts, as in `heedful look first.safetensors`; or a "
            'model and one text in quotes, as in `heedful look runs/first "The import statement"`'
        )
    text = source[1] if len(source) == 2 and not is_kept[0] else None
    if html is None:
        refuse("goes with --html.", limit=limit, overwrite=overwrite)
    else:
        check_page(html, overwrite)
    reads: dict[str, Any] = {"file": file, "second": second, "image": image, "cut": cut}
    chosen: dict[str, Any] = {"layers": layers, "heads": heads}
    if generate:
        unread = {name: reads[name] for name in ("second", "image", "cut")}
        refuse(
            "does not go with --generate.", html=html, verify=verify, segments=segments, **unread
        )
        if is_kept[0]:
            raise click.UsageError("--generate takes one model; a recording has its text.")
        page = _growing(source[0], text, file, chosen, opening)
    elif is_kept[0] or (text is None and not any(reads.values()) and was_watched(Path(source[0]))):
        check_usage(segments, True, None, False)
        refuse_with_recording(source[0], **reads, verify=verify)
        page = _kept(source, chosen, segments and segments.ranges)
    else:
        if image is not None:
            refuse("does not go with --image.", segments=segments)
        words = text_beside(image, text, file)
        opened = _opened(source[0], opening)
        options = {**chosen, "cut": cut, "verify": verify}
        marks: Any = None
        if image is not None:
            recording = recorded(opened, words, second, image, **options)
        else:
            recording, marks = recorded_with_segments(
                opened, words or "", second, segments, **options
            )
        page = _Page(
            _texts({_name(source[0]): recording}, chosen, marks),
            model=None if image is not None else opened,  # a text typed in would have no image
        )
    if html is not None:
        _write(html, page, limit)
    else:
        _serve(page, port, no_browser)


class _Page(NamedTuple):
    """What a page shows; `model` records more texts for it, `generation` continues one.

    `title` is what it is called, by default after its texts.
    """

    texts: Texts
    model: Any = None
    generation: Any = None
    title: str | None = None


def _kept(source: tuple[str, ...], chosen: dict[str, Any], marks: Any) -> _Page:
    """Recordings by their names, those of one name by their paths; or those of a watched run."""
    if not is_recording(Path(source[0])):
        recordings, moments = moments_of(Path(source[0]))
        texts = _texts(recordings, chosen, marks)
        texts.moments = moments
        return _Page(texts, title=_name(source[0]))
    from heedful.recording import load

    names = [Path(each).stem for each in source]
    recordings = {
        each if names.count(name) > 1 else name: load(Path(each))
        for name, each in zip(names, source, strict=True)
    }
    return _Page(_texts(recordings, chosen, marks))


def _growing(
    source: str,
    text: str | None,
    file: Path | None,
    chosen: dict[str, Any],
    opening: dict[str, Any],
) -> _Page:
    """A model that continues texts in the page; with no text it begins from nothing."""
    prompt = "" if text is file is None else read_text(text, file, "prompt")
    opened, texts = _opened(source, opening), _texts({}, chosen)
    from heedful.views.explorer.generation import Generation

    return _Page(texts, opened, Generation(opened, texts, prompt))


def _opened(source: str, opening: dict[str, Any]) -> Any:
    check_model(Path(source), opening)
    from heedful.loaded import open_model

    return open_model(Path(source), **opening)


def _texts(recordings: dict[str, Recording], chosen: dict[str, Any], marks: Any = None) -> Texts:
    from heedful.views.explorer.catalogue import Texts

    return Texts(recordings, chosen["layers"], chosen["heads"], marks)


def _name(source: str) -> str:
    return Path(source).name or source


def _write(path: Path, page: _Page, limit: float | None) -> None:
    from heedful.views.explorer import one_file
    from heedful.views.progress import share_done

    texts = page.texts
    title = f"{page.title or ', '.join(texts.names)} · heedful"
    with share_done("writing the page") as tell:
        size, said = one_file.write(path, texts, title, tell, limit=limit or one_file.LIMIT)
    click.echo(f"{path}, {size / 1e6:.1f} MB: opens in any browser, with no network")
    click.echo(said)


def _serve(page: _Page, port: int, no_browser: bool) -> None:
    from heedful.views.explorer.server import serve

    def ready(address: str) -> None:
        click.echo(f"{address}\nCtrl-C ends it.")
        if not no_browser and not _has_opened(address):
            served = urlsplit(address).port
            click.echo(
                "No browser was opened: open this address in one. From another machine, first "
                f"ssh -L {served}:127.0.0.1:{served} HOST; or write one file with --html."
            )

    try:
        serve(page.texts, ready, port=port, model=page.model, generation=page.generation)
    except KeyboardInterrupt:  # as it is meant to end
        click.echo("\nended", err=True)


def _has_opened(address: str) -> bool:
    """Whether a browser with windows was opened; one in the terminal would take it over."""
    import webbrowser

    screens = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, screens))
    if not has_screen or os.environ.get("SSH_CONNECTION"):
        return False
    try:
        return webbrowser.open(address)
    except webbrowser.Error:
        return False
